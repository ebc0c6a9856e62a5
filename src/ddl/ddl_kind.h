/*
 * ddl_kind.h
 *	  Which statements are schema changes that are replicated.
 */
#ifndef WEFT_DDL_KIND_H
#define WEFT_DDL_KIND_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

/* Which publications want a statement, as far as its parse tree tells. */
typedef enum DdlKind
{
	DDL_NEVER,					/* no schema change, or one of the whole
								 * server */
	DDL_OF_ALL,					/* those with ddl = all */
	DDL_OF_TABLES,				/* those with ddl = table, too */
} DdlKind;

extern DdlKind ddl_kind(Node *statement);
extern bool ddl_is_for_command(Node *statement);
extern bool ddl_is_create_as(Node *statement);
extern bool ddl_is_concurrent(Node *statement);
extern void ddl_make_strict(Node *statement, const List *changes);
extern void ddl_set_concurrent(Node *statement, bool concurrent);

#endif							/* WEFT_DDL_KIND_H */
