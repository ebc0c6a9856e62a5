/*
 * seen.h
 *	  The order of schema changes of several members of a node group.
 */
#ifndef WEFT_SEEN_H
#define WEFT_SEEN_H

#include "nodes/pg_list.h"

extern List *seen_get(void);
extern void seen_check(const List *seen);
extern const char *seen_of(const List *seen, const char *node);

#endif							/* WEFT_SEEN_H */
