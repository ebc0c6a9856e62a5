/*
 * convert.c
 *	  Replaces statements whose text cannot be repeated.
 *
 * CREATE TABLE AS, SELECT INTO and EXPLAIN ANALYZE of them.  The query may have parameters, read
 * tables that the subscriber does not have, and give other rows there.  Therefore the schema
 * change that is published is the definition of the table, as CREATE TABLE, and its rows travel
 * as those of any INSERT do.  The definition must come first, so it is published when the
 * server has created the table and before it stores the first row.  The server creates
 * the table when the executor starts the receiver of the query's rows (DestIntoRel).  Weft takes the place
 * of that step, runs it, and calls rows_follow(), which publishes the schema change (capture.c).
 * Everything else is the server's: IF NOT EXISTS, WITH NO DATA, EXECUTE, parameters, ON COMMIT.
 *
 * A function that a schema change calls, such as that of an event trigger, may store rows, too, in
 * tables that the schema change has made.  Therefore rows_follow() is called for these as well.
 *
 * CREATE INDEX without a name.  The server chooses one, and another one on a server with an invalid index
 * that a build has left behind.  Therefore the index's definition is published.  So is that of CREATE
 * INDEX CONCURRENTLY: the server releases the table before the schema change is published, so the
 * table may have got another name meanwhile.
 *
 * DROP INDEX of an invalid index.  It is what a CREATE INDEX CONCURRENTLY that has failed leaves behind,
 * so subscribers never had it; or a DROP INDEX CONCURRENTLY that has failed, so they still have it.
 * Therefore subscribers drop it if it exists.  (REINDEX of one: reindexed.c)
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "compat.h"
#include "ddl/convert.h"
#include "ddl/statement_settings.h"
#include "ddl/string_syntax.h"
#include "executor/executor.h"
#include "lib/stringinfo.h"
#include "nodes/queryjumble.h"
#include "nodes/value.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

static ExecutorRun_hook_type previous_executor_run = NULL;
static ConvertSteps steps;

/* The server's step that creates the table; the same for all receivers of that kind. */
static void (*create_table) (DestReceiver *self, int operation, TupleDesc type);

/* In place of that step. */
static void
startup(DestReceiver *self, int operation, TupleDesc type)
{
	self->rStartup = create_table;
	self->rStartup(self, operation, type);
	steps.rows_follow();
}

/* A query begins within a schema change. */
static void
look_at_query(QueryDesc *query)
{
	DestReceiver *receiver = query->dest;

	if (query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE)
		steps.rows_follow();
	if (receiver->mydest != DestIntoRel || receiver->rStartup == startup || creating_extension)
		return;
	create_table = receiver->rStartup;
	receiver->rStartup = startup;
}

static void
executor_run(COMPAT_EXECUTOR_RUN_PARAMETERS)
{
	ExecutorRun_hook_type next =
		previous_executor_run ? previous_executor_run : standard_ExecutorRun;

	if (steps.capturing())
		look_at_query(queryDesc);
	next(COMPAT_EXECUTOR_RUN_ARGUMENTS);
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
convert_install(const ConvertSteps *own_steps)
{
	steps = *own_steps;
	previous_executor_run = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
}

/* Returns the text of the statement alone, and makes the settings fit it. */
char *
convert_text(const PlannedStmt *pstmt, const char *source, List *settings)
{
	int			location = pstmt->stmt_location;
	int			length = pstmt->stmt_len;
	const char *start = CleanQuerytext(source, &location, &length);
	char	   *result = pnstrdup(start, length);
	List	   *trees = string_syntax_parse(result, pstmt->utilityStmt, settings);

	/* Whoever has made the tree may not know its place in the source text. */
	if (list_length(trees) != 1 ||
		CreateCommandTag(linitial_node(RawStmt, trees)->stmt) !=
		CreateCommandTag(pstmt->utilityStmt))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate %s because its text is not known",
						CreateCommandName(pstmt->utilityStmt)),
				 errhint("Execute the statement on its own.")));
	return result;
}

/* Returns a parameter whose value in this session a function gets, unless it is sent; or NULL. */
const char *
convert_current_value(Node *statement)
{
	List	   *options =
		IsA(statement, CreateFunctionStmt) ? ((CreateFunctionStmt *) statement)->options :
		IsA(statement, AlterFunctionStmt) ? ((AlterFunctionStmt *) statement)->actions : NIL;

	foreach_node(DefElem, option, options)
	{
		VariableSetStmt *set = (VariableSetStmt *) option->arg;

		if (strcmp(option->defname, "set") == 0 && set->kind == VAR_SET_CURRENT &&
			!statement_settings_include(set->name))
			return set->name;
	}
	return NULL;
}

static char *
qualified_name(const Form_pg_class form)
{
	return quote_qualified_identifier(get_namespace_name(form->relnamespace),
									  NameStr(form->relname));
}

static char *
collation_name(Oid collation)
{
	HeapTuple	tuple = SearchSysCache1(COLLOID, ObjectIdGetDatum(collation));
	Form_pg_collation form;
	char	   *result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for collation %u", collation);
	form = (Form_pg_collation) GETSTRUCT(tuple);
	result = quote_qualified_identifier(get_namespace_name(form->collnamespace),
										NameStr(form->collname));
	ReleaseSysCache(tuple);
	return result;
}

static void
write_column(StringInfo text, const Form_pg_attribute column)
{
	uint16		flags = FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY;

	appendStringInfo(text, "%s %s", quote_identifier(NameStr(column->attname)),
					 format_type_extended(column->atttypid, column->atttypmod, flags));
	if (OidIsValid(column->attcollation) &&
		column->attcollation != get_typcollation(column->atttypid))
		appendStringInfo(text, " COLLATE %s", collation_name(column->attcollation));
}

/* Appends the storage parameters of a relation to a list of DefElem. */
static List *
add_options(List *options, Oid relid, char *namespace)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		isnull;
	Datum		stored;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	stored = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	if (!isnull)
		foreach_node(DefElem, option, untransformRelOptions(stored))
	{
		option->defnamespace = namespace;
		options = lappend(options, option);
	}
	ReleaseSysCache(tuple);
	return options;
}

static void
write_options(StringInfo text, List *options)
{
	const char *separator = " WITH (";

	foreach_node(DefElem, option, options)
	{
		appendStringInfoString(text, separator);
		if (option->defnamespace)
			appendStringInfo(text, "%s.", quote_identifier(option->defnamespace));
		appendStringInfoString(text, quote_identifier(option->defname));
		if (option->arg)
			appendStringInfo(text, "=%s", quote_literal_cstr(strVal(option->arg)));
		separator = ", ";
	}
	if (options)
		appendStringInfoChar(text, ')');
}

/* The CREATE TABLE of a table that a query has made: it has columns and storage parameters only. */
static char *
definition(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Form_pg_class form = rel->rd_rel;
	char	   *method = get_am_name(form->relam);
	List	   *options = add_options(NIL, RelationGetRelid(rel), NULL);
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE TABLE %s (", qualified_name(form));
	for (int i = 0; i < desc->natts; i++)
	{
		if (i > 0)
			appendStringInfoString(&text, ", ");
		write_column(&text, TupleDescAttr(desc, i));
	}
	appendStringInfoChar(&text, ')');
	if (strcmp(method, default_table_access_method) != 0)
		appendStringInfo(&text, " USING %s", quote_identifier(method));
	if (OidIsValid(form->reltoastrelid))
		options = add_options(options, form->reltoastrelid, "toast");
	write_options(&text, options);
	return text.data;
}

/* Returns the definition of the table among what a query has created, or NULL. */
char *
convert_table(const List *created)
{
	foreach_oid(relid, created)
	{
		Relation	rel;
		char	   *result;

		if (get_rel_relkind(relid) != RELKIND_RELATION)
			continue;
		rel = relation_open(relid, AccessShareLock);
		result = definition(rel);
		relation_close(rel, NoLock);
		return result;
	}
	return NULL;
}

/* Puts words behind the CREATE INDEX of a definition. */
static char *
add_words(const char *definition, const char *words)
{
	static const char keyword[] = " INDEX ";
	const char *name = strstr(definition, keyword) + strlen(keyword);

	return psprintf("%.*s%s%s", (int) (name - definition), definition, words, name);
}

/* Returns the index among what a statement has created; InvalidOid if it is partitioned. */
static Oid
find_index(const List *created)
{
	Oid			result = InvalidOid;

	foreach_oid(relid, created)
	{
		char		relkind = get_rel_relkind(relid);

		if (relkind == RELKIND_PARTITIONED_INDEX)
			return InvalidOid;
		if (relkind == RELKIND_INDEX)
			result = relid;
	}
	return result;
}

/*
 * Returns the CREATE INDEX of the index among what a statement has created, or NULL if there is none,
 * or it is gone: a concurrent statement has released its table.
 */
char *
convert_index(const List *created, bool concurrently, bool if_not_exists)
{
	Oid			index = find_index(created);
	Oid			table = OidIsValid(index) ? IndexGetRelation(index, true) : InvalidOid;

	if (!OidIsValid(table))
		return NULL;
	LockRelationOid(table, AccessShareLock);
	if (!SearchSysCacheExists1(INDEXRELID, ObjectIdGetDatum(index)))
		return NULL;
	return add_words(pg_get_indexdef_string(index),
					 psprintf("%s%s", concurrently ? "CONCURRENTLY " : "",
							  if_not_exists ? "IF NOT EXISTS " : ""));
}

/* Does a statement drop an index that subscribers may not have? */
bool
convert_may_be_gone(Node *statement)
{
	DropStmt   *drop = (DropStmt *) statement;

	if (!IsA(statement, DropStmt) || drop->removeType != OBJECT_INDEX)
		return false;
	foreach_node(List, name, drop->objects)
	{
		Oid			relid = RangeVarGetRelid(makeRangeVarFromNameList(name), NoLock, true);

		if (OidIsValid(relid) && get_rel_relkind(relid) == RELKIND_INDEX &&
			!get_index_isvalid(relid))
			return true;
	}
	return false;
}
