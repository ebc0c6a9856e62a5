/*
 * copy_schema.c
 *	  weft.copy_schema(): create the published tables that are missing here.
 *
 * pg_dump, of this server's version, writes down what the publisher has, and the
 * statements are run here one by one, each in a subtransaction.  Tables come with
 * their indexes and keys: the initial copy leaves them alone until the rows are
 * there.  Triggers, rules, policies and foreign keys are left out.
 *
 * pg_dump finds the publisher in a service file that only this server's user can
 * read, since a password in its arguments would be seen by everybody on the machine.
 * What it is to dump is in a file, too, so that no name meets a shell.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pg_dump.h"
#include "query_result.h"
#include "replication/walreceiver.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/formatting.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(weft_copy_schema);

#define COLUMNS 4
#define SERVICE "weft_copy_schema"

/* Files of one call. */
typedef struct Files
{
	char	   *service;		/* how to connect */
	char	   *filter;			/* what to dump */
	char	   *errors;
} Files;

typedef struct PublishedTable
{
	char	   *nspname;
	char	   *relname;
	bool		partitioned;
} PublishedTable;

/* A statement of the dump, or several for one object. */
typedef struct Section
{
	char	   *type;
	char	   *nspname;
	char	   *name;
	char	   *statements;
} Section;

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
 * Asking the publisher
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
				 errmsg("no publication is named")));
	return list.data;
}

static List *
ask_tables(WalReceiverConn *conn, ArrayType *publications)
{
	Oid			types[3] = {TEXTOID, TEXTOID, TEXTOID};
	char	   *names = publication_list(publications);
	WalRcvExecResult *result;
	List	   *tables = NIL;
	ListCell   *cell;

	result = walrcv_exec(conn,
						 psprintf("SELECT DISTINCT n.nspname::pg_catalog.text, c.relname::pg_catalog.text,"
								  " (c.relkind = 'p')::pg_catalog.text"
								  " FROM pg_catalog.pg_publication_tables p"
								  " JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname"
								  " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename"
								  " WHERE p.pubname IN (%s) ORDER BY 1, 2", names),
						 3, types);
	if (result->status != WALRCV_OK_TUPLES)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not ask the publisher for its published tables: %s",
						result->err ? result->err : "unexpected answer")));
	foreach(cell, query_result_rows(result, 3))
	{
		char	  **row = lfirst(cell);
		PublishedTable *table = palloc(sizeof(PublishedTable));

		table->nspname = row[0];
		table->relname = row[1];
		table->partitioned = strcmp(row[2], "true") == 0;
		tables = lappend(tables, table);
	}
	walrcv_clear_result(result);
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
 * Files and pg_dump
 */

/* The connection string's options, as a service file has them. */
static char *
service_file(const char *conninfo)
{
	StringInfoData text;
	char	   *error = NULL;
	PQconninfoOption *options = PQconninfoParse(conninfo, &error);

	if (options == NULL)
	{
		char	   *message = pstrdup(error ? error : "out of memory");

		PQfreemem(error);
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string syntax: %s", message)));
	}
	initStringInfo(&text);
	appendStringInfoString(&text, "[" SERVICE "]\n");
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
		if (option->val != NULL && strpbrk(option->val, "\r\n") == NULL)
			appendStringInfo(&text, "%s=%s\n", option->keyword, option->val);
	PQconninfoFree(options);
	return text.data;
}

/* What to dump; names are quoted as patterns are. */
static char *
filter_file(List *tables)
{
	StringInfoData text;

	initStringInfo(&text);
	foreach_ptr(PublishedTable, table, tables)
	{
		appendStringInfoString(&text, table->partitioned ?
							   "include table_and_children " : "include table ");
		for (int part = 0; part < 2; part++)
		{
			appendStringInfoString(&text, part == 0 ? "\"" : ".\"");
			for (const char *p = part == 0 ? table->nspname : table->relname; *p; p++)
			{
				if (*p == '"')
					appendStringInfoChar(&text, '"');
				if (*p == '\n')
					appendStringInfoString(&text, "\\n");
				else
					appendStringInfoChar(&text, *p);
			}
			appendStringInfoChar(&text, '"');
		}
		appendStringInfoChar(&text, '\n');
	}
	return text.data;
}

static char *
run_pg_dump(const Files *files)
{
	char	   *command;
	char	   *result;
	char	   *errors;
	int			status;

	command = psprintf("PGSERVICEFILE=\"%s\" \"%s\" --dbname=service=" SERVICE
					   " --schema-only --no-owner --no-privileges --no-publications"
					   " --no-subscriptions --no-security-labels --filter=\"%s\""
					   " 2>\"%s\" </dev/null",
					   files->service, pg_dump_path(), files->filter, files->errors);
	result = pg_dump_run(command, &status);
	if (status == 0)
		return result;

	errors = pg_dump_read_file(files->errors);
	ereport(ERROR,
			(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 errmsg("pg_dump could not write down the publisher's tables"),
			 errors[0] ? errdetail_internal("%s", errors) : 0));
}

/* Returns what pg_dump says of these tables. */
static char *
dump(const char *conninfo, List *tables)
{
	Files		files = {pg_dump_file_name("service"), pg_dump_file_name("filter"),
	pg_dump_file_name("errors")};
	char	   *result = NULL;

	PG_TRY();
	{
		pg_dump_write_file(files.service, service_file(conninfo));
		pg_dump_write_file(files.filter, filter_file(tables));
		pg_dump_write_file(files.errors, "");
		result = run_pg_dump(&files);
	}
	PG_FINALLY();
	{
		unlink(files.service);
		unlink(files.filter);
		unlink(files.errors);
	}
	PG_END_TRY();
	return result;
}

/*
 * Running the dump
 */

/* Where a text stands for the last time, or NULL. */
static char *
find_last(char *line, const char *text)
{
	char	   *result = NULL;

	for (char *p = line; (p = strstr(p, text)) != NULL; p++)
		result = p;
	return result;
}

/*
 * Reads the head of an object; returns NULL if it is none.  It is read from its end,
 * since the name may hold anything.
 */
static Section *
read_head(char *line)
{
	static const char *const keys[] = {"; Owner: ", "; Schema: ", "; Type: "};
	Section    *section = palloc0(sizeof(Section));
	char	   *values[lengthof(keys)];

	if (strncmp(line, "-- Name: ", strlen("-- Name: ")) != 0)
		return NULL;
	for (int i = 0; i < lengthof(keys); i++)
	{
		char	   *key = find_last(line, keys[i]);

		if (key == NULL)
			return NULL;
		values[i] = key + strlen(keys[i]);
		*key = '\0';
	}
	section->name = line + strlen("-- Name: ");
	section->nspname = values[1];
	section->type = values[2];
	return section;
}

/*
 * Splits the dump.  Each object has a head of three comment lines, of which the
 * middle one is "-- Name: ...; Type: ...; Schema: ...; Owner: ...", and what stands before the
 * first one are settings.
 */
static List *
split(char *text)
{
	List	   *sections = NIL;
	Section    *section = palloc0(sizeof(Section));
	StringInfoData statements;
	bool		after_dashes = false;

	initStringInfo(&statements);
	section->type = "SETTINGS";
	while (*text)
	{
		size_t		length = strcspn(text, "\n");
		char	   *line = pnstrdup(text, length);
		Section    *next = after_dashes ? read_head(pnstrdup(text, length)) : NULL;

		if (next)
		{
			section->statements = pstrdup(statements.data);
			sections = lappend(sections, section);
			resetStringInfo(&statements);
			section = next;
		}
		else
			appendStringInfo(&statements, "%s\n", line);
		after_dashes = strcmp(line, "--") == 0;
		text	  +=length + (text[length] ? 1 : 0);
	}
	section->statements = pstrdup(statements.data);
	return lappend(sections, section);
}

/* Runs statements; returns an error's message, or NULL. */
static char *
execute(const char *statements)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *problem = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		(void) SPI_execute(statements, false, 0);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

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
is_left_out(const char *type)
{
	static const char *const types[] = {
		"TRIGGER", "FK CONSTRAINT", "RULE", "POLICY", "ROW SECURITY", "EVENT TRIGGER",
	};

	for (int i = 0; i < lengthof(types); i++)
		if (strcmp(type, types[i]) == 0)
			return true;
	return false;
}

static void
run_section(ReturnSetInfo *rsinfo, const Section *section)
{
	char	   *type = asc_tolower(section->type, strlen(section->type));
	char	   *name;
	char	   *problem;

	if (section->name == NULL)
	{
		(void) execute(section->statements);
		return;
	}
	name = psprintf("%s.%s", section->nspname, section->name);
	if (is_left_out(section->type))
	{
		put(rsinfo, type, name, false, "left out");
		return;
	}
	problem = execute(section->statements);
	put(rsinfo, type, name, problem == NULL, problem);
}

/* Creates the schemas that are missing. */
static void
create_schemas(ReturnSetInfo *rsinfo, List *tables)
{
	foreach_ptr(PublishedTable, table, tables)
	{
		char	   *problem;

		if (OidIsValid(get_namespace_oid(table->nspname, true)))
			continue;
		problem = execute(psprintf("CREATE SCHEMA %s", quote_identifier(table->nspname)));
		CommandCounterIncrement();
		put(rsinfo, "schema", table->nspname, problem == NULL, problem);
	}
}

/* Tells those that are here already; returns the others. */
static List *
missing_tables(ReturnSetInfo *rsinfo, List *tables)
{
	List	   *missing = NIL;

	foreach_ptr(PublishedTable, table, tables)
	{
		RangeVar   *name = makeRangeVar(table->nspname, table->relname, -1);

		if (OidIsValid(RangeVarGetRelid(name, NoLock, true)))
			put(rsinfo, "table", psprintf("%s.%s", table->nspname, table->relname),
				false, "exists already");
		else
			missing = lappend(missing, table);
	}
	return missing;
}

/*
 * weft.copy_schema(conninfo text, publications text[])
 *
 * Creates the tables of these publications that do not exist here, with what
 * belongs to them; returns a row for each object, with what has become of it.  Fails
 * if the publisher cannot be reached, and if the caller may not run programs on
 * this server.
 */
Datum
weft_copy_schema(PG_FUNCTION_ARGS)
{
	char	   *conninfo = text_to_cstring(PG_GETARG_TEXT_PP(0));
	ArrayType  *publications = PG_GETARG_ARRAYTYPE_P(1);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *tables;
	int			nest_level;

	if (!has_privs_of_role(GetUserId(), ROLE_PG_EXECUTE_SERVER_PROGRAM))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to copy a schema"),
				 errdetail("Only roles with privileges of the \"%s\" role may run pg_dump on this server.",
						   "pg_execute_server_program")));
	InitMaterializedSRF(fcinfo, 0);
	tables = missing_tables(rsinfo, published_tables(conninfo, publications));
	if (tables == NIL)
		return (Datum) 0;

	nest_level = NewGUCNestLevel();
	SPI_connect();
	create_schemas(rsinfo, tables);
	foreach_ptr(Section, section, split(dump(conninfo, tables)))
		run_section(rsinfo, section);
	SPI_finish();
	AtEOXact_GUC(false, nest_level);
	return (Datum) 0;
}
