/*
 * schema_statement.h
 *	  Decides which statements of pg_dump's script weft.copy_schema() runs.
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
	bool		is_statistics;	/* these have a name space of their own */
} ObjectName;

typedef enum StatementUse
{
	STATEMENT_SKIPPED,
	STATEMENT_IGNORED,			/* sets a parameter that the caller sets
								 * itself */
	STATEMENT_PARAMETER,		/* sets a parameter that differs between
								 * tables */
	STATEMENT_RUN
} StatementUse;

typedef struct SchemaStatement
{
	StatementUse use;
	const char *type;			/* of the object that it creates or changes */
	const char *name;
	List	   *needs;			/* ObjectName: the objects that it changes */
	List	   *parents;		/* ObjectName: tables that a table becomes
								 * part of */
	List	   *creates;		/* ObjectName */
	bool		is_table;		/* does it create a table? */
} SchemaStatement;

extern SchemaStatement *schema_statement_read(Node *tree);
extern bool object_names_have(List *names, const ObjectName *name);

#endif							/* WEFT_SCHEMA_STATEMENT_H */
