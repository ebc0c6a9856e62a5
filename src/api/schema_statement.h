/*
 * schema_statement.h
 *	  What weft.copy_schema() makes of a statement of pg_dump's script.
 */
#ifndef WEFT_SCHEMA_STATEMENT_H
#define WEFT_SCHEMA_STATEMENT_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

/* The name of a table, index, sequence or statistics object. */
typedef struct ObjectName
{
	const char *nspname;
	const char *relname;
	bool		is_statistics;	/* these have names of their own */
} ObjectName;

typedef enum StatementUse
{
	STATEMENT_LEFT_OUT,
	STATEMENT_IGNORED,			/* sets a parameter, as the caller does itself */
	STATEMENT_PARAMETER,		/* sets one that differs from table to table */
	STATEMENT_RUN
} StatementUse;

typedef struct SchemaStatement
{
	StatementUse use;
	const char *type;			/* of the object that it is about */
	const char *name;
	List	   *needs;			/* ObjectName: what it changes */
	List	   *parents;		/* ObjectName: tables that a table becomes
								 * part of */
	List	   *creates;		/* ObjectName */
	bool		is_table;		/* does it create a table? */
} SchemaStatement;

extern SchemaStatement *schema_statement_read(Node *tree);
extern bool object_names_have(List *names, const ObjectName *name);

#endif							/* WEFT_SCHEMA_STATEMENT_H */
