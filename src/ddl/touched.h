/*
 * touched.h
 *	  Which objects a statement creates, alters and drops.
 */
#ifndef WEFT_TOUCHED_H
#define WEFT_TOUCHED_H

#include "ddl/local_object.h"
#include "nodes/pg_list.h"

/* No publication: stands for a table that this member of a node group keeps for itself. */
#define TOUCHED_STRAY InvalidOid

/* What a statement has touched, as far as publications are concerned. */
typedef struct Touched
{
	MemoryContext context;
	List	   *objects;		/* internal to touched.c */
	List	   *memberships;
	List	   *local_types;	/* OIDs of dropped composite types, */
	List	   *local_views;	/* and views, that subscribers did not have */
	bool		keep_dropped;	/* set it to fill the following */
	List	   *dropped;		/* for dropped.c */
	bool		keep_names;		/* set it to fill the following */
	List	   *names;			/* of ChangedName: see changes.c */
	List	   *lost;			/* of DroppedColumn: columns and tables that
								 * are dropped */

	/* Known once touched_finish() has been called. */
	List	   *publications;	/* OIDs of those that name a touched table or
								 * its schema, or get its neighbours; with
								 * TOUCHED_STRAY, there is a table that the
								 * node group does not replicate */
	List	   *altered;		/* OIDs of tables that existed before, or of
								 * which a part has been touched */
	List	   *created;		/* OIDs of relations that were created, and
								 * exist */
	List	   *constraints;	/* OIDs of constraints that were created, and
								 * exist */
	char	   *dependent;		/* an object that was created or altered, and
								 * depends on a local one, or NULL; */
	LocalReason reason;			/* and why that one is local */
	List	   *relations;		/* qualified names (char *) of those that can
								 * be replicated, before and after, and of the
								 * tables of indexes and sequences */
	bool		replicable;		/* an object that can be replicated */
	bool		tables;			/* one that level "table" replicates */
	bool		temporary;		/* one that cannot be: it is temporary, */
	bool		unlogged;		/* unlogged, */
	bool		own;			/* Weft's own, */
	bool		filtered;		/* or in a schema that weft.ddl_filter names */
} Touched;

extern void touched_install(void);
extern Touched *touched_begin(Touched *touched, MemoryContext context);
extern void touched_object(Oid class_id, Oid object_id, int sub_id);
extern bool touched_has_created(Oid relid);
extern Touched touched_look(Oid class_id, Oid object_id);
extern List *touched_publications_of(Oid relid);
extern void touched_end(Touched *outer);
extern void touched_finish(Touched *touched);

#endif							/* WEFT_TOUCHED_H */
