/*
 * seen.h
 *	  The order of schema changes of several members of a node group.
 */
#ifndef WEFT_SEEN_H
#define WEFT_SEEN_H

#include "ddl/ddl_message.h"

extern List *seen_get(List **copied);
extern void seen_check(const List *seen);
extern const char *seen_of(const DdlMessage *message, const char *node);

#endif							/* WEFT_SEEN_H */
