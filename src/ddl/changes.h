/*
 * changes.h
 *	  What a statement changes, in words that other members of a node group compare.
 */
#ifndef WEFT_CHANGES_H
#define WEFT_CHANGES_H

#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"

/* How a statement has touched an object. */
typedef enum ChangedHow
{
	CHANGED_CREATED,
	CHANGED_ALTERED,
	CHANGED_DROPPED,
	CHANGED_PART,				/* an index of it was touched */
} ChangedHow;

/* An object that a statement has touched, by the name that it had or has. */
typedef struct ChangedName
{
	ChangedHow	how;
	Oid			class_id;
	Oid			object_id;
	char	   *object;			/* kind and identity, whatever search_path is */
	char	   *schema;			/* that it is in, or NULL */
	char	   *part;			/* column, or NULL */
} ChangedName;

extern List *changes_note(List *names, ChangedHow how, Oid class_id, Oid object_id, int sub_id);
extern char *changes_name_of(Oid class_id, Oid object_id);
extern List *changes_tables_read(Node *statement);
extern List *changes_read(Node *statement);
extern List *changes_of(Node *statement, List *names, List *read);

#endif							/* WEFT_CHANGES_H */
