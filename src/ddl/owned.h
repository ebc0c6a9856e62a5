/*
 * owned.h
 *	  Statements about all objects of a role, object by object.
 */
#ifndef WEFT_OWNED_H
#define WEFT_OWNED_H

#include "nodes/parsenodes.h"

/* A statement about one object, instead of one about many. */
typedef struct DdlPart
{
	char	   *text;
	char	   *schema;			/* to be search_path, or NULL */
	bool		is_of_tables;	/* level "table" replicates it */
	List	   *publications;	/* OIDs of those that include the object */
	const char *lacks;			/* what this statement needs, unlike the one
								 * about all objects, and its role does not
								 * have; or NULL */
} DdlPart;

extern DdlPart *owned_part(Oid class_id, Oid object_id, char *text);
extern List *owned_reassign(ReassignOwnedStmt *statement);
extern List *owned_revoke(DropOwnedStmt *statement);

#endif							/* WEFT_OWNED_H */
