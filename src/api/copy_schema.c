/*
 * copy_schema.c
 *	  weft.copy_schema(): creates the published tables that are missing here.
 *
 * pg_dump, of this server's version, writes a script of what the publisher has.  Its
 * statements are run here one by one, each in a subtransaction.  Tables come with their
 * indexes and keys; the initial copy defers these itself until the rows are stored.
 * Triggers, rules, policies and foreign keys are skipped.
 *
 * The owners of tables on the publisher choose names, literals and expressions in this
 * script, which runs with the caller's rights.  Therefore the server's parser splits it
 * into statements, and only statements that schema_statement.c knows are run.  One that
 * creates a table must create a requested one; the others may change only what was created
 * before.  Parameters that the script sets are ignored, and set here.
 *
 * This leaves expressions.  As part of a table, they are evaluated later, with the rights
 * of the table's owner, who is the caller, or of whoever inserts a row.  schema_trust.c
 * says what they may use, and docs/security.md what else follows.
 *
 * The requested tables are the published ones, their partitions, and the tables that they
 * are partitions of.
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/schema_statement.h"
#include "api/schema_trust.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "guc.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pg_dump.h"
#include "pg_dump_script.h"
#include "pinned_settings.h"
#include "remote_query.h"
#include "replication/walreceiver.h"
#include "result_rows.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(weft_copy_schema);

#define COLUMNS 4

/*
 * The requested tables.  A column list or a row filter makes no difference.  PostgreSQL 10
 * has partitions, but not the functions for them.
 */
#define TABLES_QUERY \
	"WITH RECURSIVE published AS (" \
	"SELECT c.oid FROM pg_catalog.pg_publication_tables p" \
	" JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname" \
	" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename" \
	" WHERE p.pubname IN (%s))," \
	" parents AS (SELECT oid FROM published UNION" \
	" SELECT i.inhparent FROM parents p JOIN pg_catalog.pg_class c ON c.oid = p.oid" \
	" JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid WHERE c.relispartition)," \
	" partitions AS (SELECT oid FROM published UNION" \
	" SELECT i.inhrelid FROM partitions p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid" \
	" JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE c.relispartition)" \
	" SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text" \
	" FROM (SELECT oid FROM parents UNION SELECT oid FROM partitions) t" \
	" JOIN pg_catalog.pg_class c ON c.oid = t.oid" \
	" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" \
	" WHERE c.relkind IN ('r', 'p') ORDER BY 1, 2"

static void
put(ReturnSetInfo *rsinfo, const char *type, const char *name, bool created, const char *note)
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};

	values[0] = CStringGetTextDatum(type);
	values[1] = CStringGetTextDatum(name);
	values[2] = BoolGetDatum(created);
	nulls[3] = note == NULL;
	values[3] = note ? CStringGetTextDatum(note) : (Datum) 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Querying the publisher
 */

static char *
publication_list(ArrayType *publications)
{
	StringInfoData list;
	Datum	   *names;
	bool	   *nulls;
	int			count;

	deconstruct_array_builtin(publications, TEXTOID, &names, &nulls, &count);
	initStringInfo(&list);
	for (int i = 0; i < count; i++)
		if (!nulls[i])
			appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "",
							 quote_literal_cstr(TextDatumGetCString(names[i])));
	if (list.len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no publication specified")));
	return list.data;
}

/* Returns the requested tables, in this database's encoding. */
static List *
ask_tables(WalReceiverConn *conn, ArrayType *publications)
{
	const char *purpose = "read the list of published tables from the publisher";
	char	   *names = publication_list(publications);
	List	   *tables = NIL;

	remote_command(conn, purpose, psprintf("SET client_encoding = %s",
										   quote_literal_cstr(GetDatabaseEncodingName())));
	foreach_ptr(RemoteValue, row,
				remote_query(conn, purpose, psprintf(TABLES_QUERY, names),
							 WALRCV_OK_TUPLES, 2).rows)
	{
		ObjectName *table = palloc0(sizeof(ObjectName));

		table->nspname = row[0];
		table->relname = row[1];
		tables = lappend(tables, table);
	}
	return tables;
}

static List *
published_tables(const char *conninfo, ArrayType *publications)
{
	WalReceiverConn *conn;
	char	   *error = NULL;
	List	   *tables = NIL;

	load_file("libpqwalreceiver", false);
	conn = walrcv_connect(conninfo, false, false, !superuser(), "weft_copy_schema", &error);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher: %s", error)));
	PG_TRY();
	{
		tables = ask_tables(conn, publications);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return tables;
}

/*
 * pg_dump
 */

/*
 * Quotes a name for a filter file.  Such a file cannot express a carriage return; "?",
 * which stands for any character, takes its place.
 */
static void
append_pattern(StringInfo text, const char *name)
{
	appendStringInfoChar(text, '"');
	for (const char *p = name; *p; p++)
	{
		if (*p == '\r')
			appendStringInfoString(text, "\"?\"");
		else if (*p == '\n')
			appendStringInfoString(text, "\\n");
		else if (*p == '\\')
			appendStringInfoString(text, "\\\\");
		else if (*p == '"')
			appendStringInfoString(text, "\"\"");
		else
			appendStringInfoChar(text, *p);
	}
	appendStringInfoChar(text, '"');
}

static char *
filter_file(List *tables)
{
	StringInfoData text;

	initStringInfo(&text);
	foreach_ptr(ObjectName, table, tables)
	{
		appendStringInfoString(&text, "include table ");
		append_pattern(&text, table->nspname);
		appendStringInfoChar(&text, '.');
		append_pattern(&text, table->relname);
		appendStringInfoChar(&text, '\n');
	}
	return text.data;
}

/* Returns pg_dump's script for these tables. */
static char *
dump(const char *conninfo, List *tables)
{
	PgDump		call = {
		.conninfo = conninfo,
		.must_use_password = !superuser(),
		.filter = filter_file(tables),
		.whose = "the publisher"
	};

	call.arguments = list_make5("--schema-only", "--no-owner", "--no-privileges",
								"--no-publications", "--no-subscriptions");
	call.arguments = lappend(call.arguments, "--no-security-labels");
	call.arguments = lappend(call.arguments, "--no-tablespaces");
	return pg_dump_run(&call);
}

/*
 * Running the script
 */

/* Runs a statement.  Returns the message of an error, or NULL. */
static char *
execute(const char *statement)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *problem = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		(void) SPI_execute(statement, false, 0);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		if (geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		problem = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return problem;
}

static bool
all_in(List *names, List *others)
{
	foreach_ptr(ObjectName, name, names)
	{
		if (!object_names_have(others, name))
			return false;
	}
	return true;
}

/*
 * Runs a statement if it may be run, and adds what it has created to "created".
 * "requested" holds all requested tables.
 */
static void
run_statement(ReturnSetInfo *rsinfo, const PgDumpStatement *text, List *requested,
			  List **created)
{
	const SchemaStatement *statement = schema_statement_read(text->tree);
	const char *problem = NULL;

	if (statement->use == STATEMENT_IGNORED)
		return;
	if (statement->use == STATEMENT_PARAMETER)
	{
		/* If this fails, then the table gets this server's default. */
		(void) execute(text->text);
		return;
	}

	if (statement->use == STATEMENT_SKIPPED ||
		(statement->is_table && !all_in(statement->creates, requested)))
		problem = "skipped";
	else if (!all_in(statement->needs, *created) || !all_in(statement->parents, requested))
		problem = "the object that it belongs to was not created";
	else
		problem = schema_trust_problem(text->tree);
	if (problem == NULL)
		problem = execute(text->text);
	if (problem == NULL)
		*created = list_concat(*created, statement->creates);
	put(rsinfo, statement->type, statement->name, problem == NULL, problem);
}

static void
run_script(ReturnSetInfo *rsinfo, const char *script, List *requested)
{
	List	   *created = NIL;

	foreach_ptr(PgDumpStatement, statement, pg_dump_script_statements(script))
	{
		CHECK_FOR_INTERRUPTS();
		run_statement(rsinfo, statement, requested, &created);
	}
}

/* Creates the schemas that are missing. */
static void
create_schemas(ReturnSetInfo *rsinfo, List *tables)
{
	foreach_ptr(ObjectName, table, tables)
	{
		char	   *problem;

		if (OidIsValid(get_namespace_oid(table->nspname, true)))
			continue;
		problem = execute(psprintf("CREATE SCHEMA %s", quote_identifier(table->nspname)));
		CommandCounterIncrement();
		put(rsinfo, "schema", table->nspname, problem == NULL, problem);
	}
}

/* Reports the tables that exist already; returns the others, except Weft's own. */
static List *
missing_tables(ReturnSetInfo *rsinfo, List *tables)
{
	List	   *missing = NIL;

	foreach_ptr(ObjectName, table, tables)
	{
		Oid			schema = get_namespace_oid(table->nspname, true);

		/* FOR ALL TABLES publishes those of extensions, too. */
		if (strcmp(table->nspname, "weft") == 0)
			continue;
		if (OidIsValid(schema) && OidIsValid(get_relname_relid(table->relname, schema)))
			put(rsinfo, "table", psprintf("%s.%s", table->nspname, table->relname),
				false, "already exists");
		else
			missing = lappend(missing, table);
	}
	return missing;
}

/*
 * weft.copy_schema(conninfo text, publications text[])
 *
 * Creates the tables of these publications that do not exist here, and the objects that
 * belong to them.  Returns a row for each object, which says whether it was created.  Fails
 * if the publisher cannot be reached, or if the caller may not run programs on this server.
 */
Datum
weft_copy_schema(PG_FUNCTION_ARGS)
{
	char	   *conninfo = text_to_cstring(PG_GETARG_TEXT_PP(0));
	ArrayType  *publications = PG_GETARG_ARRAYTYPE_P(1);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *requested;
	List	   *missing;
	char	   *script;
	int			nest_level;

	if (!has_privs_of_role(GetUserId(), ROLE_PG_EXECUTE_SERVER_PROGRAM))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to copy a schema"),
				 errdetail("Only roles with privileges of the \"%s\" role may run pg_dump on this server.",
						   "pg_execute_server_program")));
	result_rows_begin(fcinfo, COLUMNS);
	requested = published_tables(conninfo, publications);
	missing = missing_tables(rsinfo, requested);
	if (missing == NIL)
		return (Datum) 0;

	nest_level = NewGUCNestLevel();
	guc_publish_no_schema_changes();
	SPI_connect();
	create_schemas(rsinfo, missing);
	script = dump(conninfo, missing);
	pinned_settings_set_local();
	(void) set_config_option("client_min_messages", "warning", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	run_script(rsinfo, script, requested);
	SPI_finish();
	AtEOXact_GUC(false, nest_level);
	return (Datum) 0;
}
