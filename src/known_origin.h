/*
 * known_origin.h
 *	  Which server this is, and which replication origins subscriptions have on it.
 */
#ifndef WEFT_KNOWN_ORIGIN_H
#define WEFT_KNOWN_ORIGIN_H

#include "compat.h"
#include "nodes/pg_list.h"
#include "replication/origin.h"
#include "storage/itemptr.h"

/* A row of weft.known_origin. */
typedef struct KnownOrigin
{
	ItemPointerData place;
	char	   *subname;
	Oid			subid;
	RepOriginId origin;
	uint64		server;			/* system identifier */
} KnownOrigin;

extern List *known_origin_rows(void);
extern void known_origin_store(const char *subname, Oid subid);
extern void known_origin_remove(const KnownOrigin *row);
extern bool known_origin_outdated(void);
extern bool known_origin_is_here(const KnownOrigin *row);
extern void known_origin_note(void);

#endif							/* WEFT_KNOWN_ORIGIN_H */
