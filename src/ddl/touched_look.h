/*
 * touched_look.h
 *	  A look at one object: what it is part of, which publications want it.
 */
#ifndef WEFT_TOUCHED_LOOK_H
#define WEFT_TOUCHED_LOOK_H

#include "ddl/local_object.h"
#include "nodes/pg_list.h"

/* An object that was created or altered, to be looked at after the statement. */
typedef struct TouchedObject
{
	Oid			class_id;
	Oid			object_id;
	int			sub_id;			/* a column's number, or zero */
	bool		created;
} TouchedObject;

/*
 * That a publication names a table or schema.  A dropped table's membership is dropped before the
 * table itself.
 */
typedef struct Membership
{
	Oid			class_id;
	Oid			object_id;
	Oid			publication;
} Membership;

/* No publication: stands for a table that this member of a node group keeps for itself. */
#define TOUCHED_STRAY InvalidOid

/* What a statement has touched, as far as publications are concerned. */
typedef struct Touched
{
	MemoryContext context;
	List	   *objects;		/* of TouchedObject */
	List	   *memberships;	/* of Membership */
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

extern Touched *touched_current(void);
extern Touched *touched_set_current(Touched *touched);
extern bool touched_has_created(Oid relid);
extern Touched touched_look(Oid class_id, Oid object_id);
extern List *touched_publications_of(Oid relid);
extern void touched_look_at(Touched *touched, Oid class_id, Oid object_id);
extern bool touched_created_by(const Touched *touched, Oid relid);
extern void touched_add_publications(Touched *touched, List *publications);
extern void touched_add_name(Touched *touched, char *name);
extern void touched_set_dependent(Touched *touched, Oid class_id, Oid object_id, int sub_id,
								  LocalReason reason);
extern Oid	touched_look_oid(Oid class_id, Oid object_id, AttrNumber attribute);

#endif							/* WEFT_TOUCHED_LOOK_H */
