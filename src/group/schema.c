/*
 * schema.c
 *	  Copies the schema of a member: runs pg_dump's script here.
 */
#include "postgres.h"

#include "group/foreign_keys.h"
#include "local_query.h"
#include "group/schema.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pg_dump.h"
#include "pg_dump_script.h"
#include "utils/guc.h"

/* Returns a section of another member's schema, "pre-data" or "post-data", as a script. */
char *
schema_dump(const char *dsn, const char *node, const char *snapshot, const char *section)
{
	PgDump		call = {
		.conninfo = dsn,
		.must_use_password = !superuser(),
		.whose = psprintf("node \"%s\"", node)
	};

	call.arguments = list_make5("--schema-only", "--no-publications", "--no-subscriptions",
								"--exclude-schema=weft", "--exclude-extension=weft");
	call.arguments = lappend(call.arguments, "--quote-all-identifiers");

	/*
	 * A transaction with such a lock may wait for the end of this
	 * (ddl/schema_lock.c).
	 */
	call.arguments = lappend(call.arguments, "--lock-wait-timeout=60s");
	call.arguments = lappend(call.arguments, psprintf("--section=%s", section));
	call.arguments = lappend(call.arguments, psprintf("--snapshot=%s", snapshot));
	return pg_dump_run(&call);
}

/* pg_dump writes the comment on "public", which only the owner of that may set. */
static bool
is_comment_on_public(Node *statement)
{
	CommentStmt *comment = (CommentStmt *) statement;

	return IsA(statement, CommentStmt) && comment->objtype == OBJECT_SCHEMA &&
		strcmp(strVal(comment->object), "public") == 0;
}

/* Runs a statement; parameters that a function in it may set end with it. */
static void
run_alone(const char *statement)
{
	int			nest_level = NewGUCNestLevel();

	local_run(statement);
	AtEOXact_GUC(false, nest_level);
}

/* Runs such a script, statement by statement, in the current transaction. */
void
schema_run(const char *script)
{
	foreach_ptr(PgDumpStatement, statement, pg_dump_script_statements(script))
	{
		CHECK_FOR_INTERRUPTS();
		if (IsA(statement->tree, VariableSetStmt) || IsA(statement->tree, SelectStmt))
			local_run(statement->text);
		else if (!is_comment_on_public(statement->tree) &&
				 !foreign_keys_run(statement->tree, statement->text))
			run_alone(statement->text);
	}
}
