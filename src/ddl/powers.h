/*
 * powers.h
 *	  What a role may do to its server.
 */
#ifndef WEFT_POWERS_H
#define WEFT_POWERS_H

#include "nodes/pg_list.h"

extern List *powers_of(Oid role);
extern void powers_check(Oid role, const char *name, List *powers);

#endif							/* WEFT_POWERS_H */
