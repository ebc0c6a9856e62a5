/*
 * copied_tables.h
 *	  Did something on the member that is copied take rows or values from the copy?
 */
#ifndef WEFT_COPIED_TABLES_H
#define WEFT_COPIED_TABLES_H

#include "group/remote.h"

extern void copied_tables_check(Remote *source, const char *dsn, const char *snapshot);

#endif							/* WEFT_COPIED_TABLES_H */
