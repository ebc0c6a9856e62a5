/*
 * past_origin.h
 *	  Nodes whose subscription has been dropped.
 */
#ifndef WEFT_PAST_ORIGIN_H
#define WEFT_PAST_ORIGIN_H

#include "compat.h"
#include "replication/origin.h"

typedef struct ConflictLegacy
{
	RepOriginId origin;
	int			node;
} ConflictLegacy;

extern ConflictLegacy conflict_legacy(const char *subscription);
extern void conflict_leave(ConflictLegacy legacy);

#endif							/* WEFT_PAST_ORIGIN_H */
