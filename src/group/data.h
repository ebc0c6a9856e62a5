/*
 * data.h
 *	  The rows and sequences of the member that is copied.
 */
#ifndef WEFT_GROUP_DATA_H
#define WEFT_GROUP_DATA_H

#include "group/remote.h"

extern void data_open(const char *dsn, const char *node, const char *snapshot);
extern char *data_lock(Remote *now);
extern void data_copy(void);
extern void data_check_types(void);
extern void data_copy_recent(void);
extern void data_close(void);

#endif							/* WEFT_GROUP_DATA_H */
