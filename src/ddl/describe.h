/*
 * describe.h
 *	  What a schema change is published as.
 *
 * The functions return messages (DdlMessage), in the order in which they are to be executed.  They
 * raise an error if a publication would get the statement, and subscribers could not repeat it.
 */
#ifndef WEFT_DESCRIBE_H
#define WEFT_DESCRIBE_H

#include "ddl/ddl_kind.h"
#include "ddl/ddl_message.h"
#include "ddl/touched.h"

/* A statement that is being captured. */
typedef struct Capture
{
	MemoryContext context;		/* survives transactions: a statement may use
								 * several */
	struct Capture *outer;		/* the statement that has caused this one */
	List	   *inner;			/* of Pending: what it has caused, so far */
	List	   *own;			/* of Pending: itself, if it has been
								 * described before its end */
	List	   *parts;			/* of DdlPart: what it is published as, if it
								 * is published in parts */
	List	   *requested;		/* OIDs of publications that get it anyway */
	const DdlMessage *replayed; /* the publisher's schema change that is being
								 * applied, or NULL */
	bool		automatic;		/* others may want it */
	bool		early;			/* it is published before it is executed */
	Node	   *statement;
	DdlKind		kind;

	/*
	 * As they were when the statement began.  It may be described within a
	 * function that it has called, such as that of an event trigger, which
	 * may have a role and settings of its own.
	 */
	Oid			role;
	List	   *settings;		/* of DdlSetting */
	const char *tag;
	char	   *text;			/* NULL if it is made of what is created */
	bool		create_as;		/* that is a table, */
	bool		create_index;	/* or an index, if it is one */
	bool		if_not_exists;
	bool		concurrently;
	bool		may_be_gone;	/* see DdlMessage */
	bool		drops_unique;	/* see capture.c */
	Oid			table;			/* of a concurrent statement, or InvalidOid */
	List	   *values;
	List	   *names;			/* of DdlName */
	RangeVar   *like;			/* see local_object_like() */
	bool		local_partition;	/* see local_object_is_partition() */
	List	   *members;		/* see membership.c */
	List	   *read;			/* see changes.c */
	Touched		touched;
} Capture;

extern List *describe_statement(Capture *capture);
extern List *describe_early(Capture *capture);
extern List *describe_tables(Capture *capture);

#endif							/* WEFT_DESCRIBE_H */
