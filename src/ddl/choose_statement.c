/*
 * choose_statement.c
 *	  Schema changes that an event trigger has captured.
 *
 * An event trigger (sql/16-ddl-capture.sql) knows the tag of a statement, but has no parser.  It finds the text by
 * rules of its own, and publishes whatever may be a schema change.  Here, the parse tree shows
 * whether the text is that of the statement, and what kind of statement it is.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "ddl/choose_statement.h"
#include "ddl/ddl_kind.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/varlena.h"

static bool
is_local(const DdlMessage *message, const char *schema, const char *name)
{
	foreach_ptr(char, local, message->local)
		if (strcmp(local, psprintf("%s.%s", schema, name)) == 0)
		return true;
	return false;
}

/*
 * Is a table one that the publisher keeps for itself?  A temporary one hides others, if its schema is not
 * named.  An unlogged one is found by its schema, or by search_path, unless another table comes first, which is here
 * as well.
 */
static bool
names_local(const DdlMessage *message, const RangeVar *table)
{
	const char *path = "";
	List	   *schemas;

	if (table->schemaname)
		return is_local(message, table->schemaname, table->relname);
	if (is_local(message, "pg_temp", table->relname))
		return true;
	foreach_ptr(DdlSetting, setting, message->settings)
		if (strcmp(setting->name, "search_path") == 0)
		path = setting->value;
	if (!SplitIdentifierString(pstrdup(path), ',', &schemas))
		return false;
	foreach_ptr(char, schema, schemas)
	{
		if (strcmp(schema, "$user") == 0)
			schema = message->role;
		if (is_local(message, schema, table->relname))
			return true;
		if (OidIsValid(get_relname_relid(table->relname, get_namespace_oid(schema, true))))
			return false;
	}
	return false;
}

/* Is a GRANT or REVOKE about tables that the publisher keeps for itself?  Fails if only some of them are. */
static bool
is_about_local(const DdlMessage *message, Node *statement)
{
	int			count = 0;
	GrantStmt  *grant = (GrantStmt *) statement;

	if (!IsA(statement, GrantStmt) || grant->targtype != ACL_TARGET_OBJECT)
		return false;
	foreach_ptr(Node, name, grant->objects)
		if (IsA(name, RangeVar) && names_local(message, (RangeVar *) name))
		count++;
	if (count == 0)
		return false;
	if (count < list_length(grant->objects))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a schema change of both permanent objects and temporary or unlogged ones"),
				 errhint("Execute the part about permanent objects here.")));
	return true;
}

/*
 * Is the statement to be executed for one of the subscription's publications?  Fails if another one
 * was executed on the publisher.
 */
bool
choose_statement(const DdlMessage *message, Node *statement,
				 bool (*is_subscribed) (const char *publication))
{
	DdlKind		kind = ddl_kind(statement);

	if (strcmp(CreateCommandName(statement), message->tag) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the text of a schema change is %s, but the publisher has executed %s",
						CreateCommandName(statement), message->tag)));
	if (kind == DDL_NEVER || is_about_local(message, statement))
		return false;
	foreach_ptr(DdlSetting, level, message->levels)
		if (is_subscribed(level->name) &&
			(kind == DDL_OF_TABLES || strcmp(level->value, "all") == 0))
		return true;
	return false;
}
