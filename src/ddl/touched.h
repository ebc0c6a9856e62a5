/*
 * touched.h
 *	  Which objects a statement creates, alters and drops.
 */
#ifndef WEFT_TOUCHED_H
#define WEFT_TOUCHED_H

#include "nodes/pg_list.h"

/* What a statement has touched, as far as publications are concerned. */
typedef struct Touched
{
	MemoryContext context;
	List	   *objects;		/* internal to touched.c */

	/* Known once touched_finish() has been called. */
	List	   *publications;	/* OIDs of those that name a touched table or
								 * its schema */
	List	   *created;		/* OIDs of tables that were created, and exist */
	bool		replicable;		/* an object that can be replicated */
	bool		temporary;		/* one that cannot: it is temporary, */
	bool		unlogged;		/* unlogged, */
	bool		own;			/* or Weft's own */
} Touched;

extern void touched_install(void);
extern Touched *touched_begin(Touched *touched, MemoryContext context);
extern void touched_table(Oid relid);
extern void touched_end(Touched *outer);
extern void touched_finish(Touched *touched);

#endif							/* WEFT_TOUCHED_H */
