/*
 * ddl_message.c
 *	  Writes and reads the message about a schema change.
 *
 * It is a JSON object:
 *
 *		version			DDL_MESSAGE_VERSION
 *		id				number, unique on the publisher
 *		tag				as a client would see it
 *		role			name of the role that has executed the statement
 *		powers			what that role may do to its server: some of "superuser",
 *						"pg_execute_server_program", ...
 *		session_role	optional: name of the role that the statement means by SESSION_USER
 *		statement		its text, without those before and behind it
 *		encoding		optional: that of the publisher's database
 *		server_version	optional: PG_VERSION_NUM of the server where a session has executed it
 *		concurrently	boolean
 *		explicitly		optional boolean: of weft.replicate_ddl_command()
 *		only_tables		optional boolean: the statement is not to be executed; only "tables",
 *						"entered" and "left" count
 *		publications	array of the names of those that publish it
 *		settings		object: parameters under which it was executed
 *		seen			object: what the publisher had applied of each other member of its
 *						group, as a position in that one's WAL; absent outside of groups
 *		copied			object: where in its WAL the publisher has copied a member, if it has applied
 *						nothing of it; absent otherwise
 *		made_at			position in the WAL at which a session of a group made it; not read here,
 *						but by unseen.c
 *		changes			array of {change, object, part}: what it has changed, as changes.c says;
 *						absent outside of groups
 *		tables			array of {publication, schema, name, others}: tables that it has created and
 *						that are published now, or under whose names rows are sent now;
 *						"others" is an optional array of the names of publications that send
 *						these as rows of a root
 *		source			"trigger": captured by an event trigger, not by Weft; otherwise missing
 *		levels			object, with "source" only: option "ddl" of each of the publications
 *		local			array of SCHEMA.TABLE, with "source" only, for GRANT and REVOKE: tables that are temporary
 *						or unlogged; names are not quoted, the schema of temporary ones is pg_temp
 *		entered			optional, like tables: older tables that are published because of the
 *						statement; with "source", "others" is as in left
 *		left			the same: tables that are no longer published; "others" in each is an array
 *						of the names of other publications that include the table
 *		attached		optional, like tables: partitioned tables as which rows of a table are sent that
 *						were sent under its own name before ATTACH PARTITION
 *		touched			array of the qualified names of the relations that it has touched,
 *						before and after; missing if that is not known
 *		values			array of {column, value, constant}: what ADD COLUMN has stored in existing
 *						rows, and whether that is what the default is
 *		names			array of {definition, name}: the indexes, sequences and constraints that it has
 *						created (created_names.c)
 *		may_be_gone		true: the index that is dropped may not exist (concurrent.c)
 *
 * A reader ignores keys that it does not know.  Whatever must not be ignored needs a new
 * version, which older readers refuse.
 */
#include "postgres.h"

#include "compat.h"
#include "ddl/ddl_message.h"
#include "mb/pg_wchar.h"
#include "nodes/miscnodes.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

static void
write_key(StringInfo json, const char *key)
{
	appendStringInfoChar(json, json->len == 1 ? ' ' : ',');
	escape_json(json, key);
	appendStringInfoChar(json, ':');
}

static void
write_text(StringInfo json, const char *key, const char *value)
{
	write_key(json, key);
	escape_json(json, value);
}

/* A boolean that is false if it is missing. */
static void
write_flag(StringInfo json, const char *key, bool value)
{
	if (!value)
		return;
	write_key(json, key);
	appendStringInfoString(json, "true");
}

static void
write_names(StringInfo json, const char *key, List *names)
{
	const char *separator = "";

	write_key(json, key);
	appendStringInfoChar(json, '[');
	foreach_ptr(char, name, names)
	{
		appendStringInfoString(json, separator);
		escape_json(json, name);
		separator = ",";
	}
	appendStringInfoChar(json, ']');
}

static void
write_settings(StringInfo json, const char *key, List *settings)
{
	const char *separator = "";

	write_key(json, key);
	appendStringInfoChar(json, '{');
	foreach_ptr(DdlSetting, setting, settings)
	{
		appendStringInfoString(json, separator);
		escape_json(json, setting->name);
		appendStringInfoChar(json, ':');
		escape_json(json, setting->value);
		separator = ",";
	}
	appendStringInfoChar(json, '}');
}

static void
write_tables(StringInfo json, const char *key, List *tables)
{
	const char *separator = "";

	write_key(json, key);
	appendStringInfoChar(json, '[');
	foreach_ptr(DdlTable, table, tables)
	{
		appendStringInfo(json, "%s{\"publication\":", separator);
		escape_json(json, table->publication);
		write_text(json, "schema", table->schema);
		write_text(json, "name", table->name);
		if (table->others != NIL)
			write_names(json, "others", table->others);
		appendStringInfoChar(json, '}');
		separator = ",";
	}
	appendStringInfoChar(json, ']');
}

static void
write_changes(StringInfo json, List *changes)
{
	const char *separator = "";

	write_key(json, "changes");
	appendStringInfoChar(json, '[');
	foreach_ptr(DdlChange, change, changes)
	{
		appendStringInfo(json, "%s{\"change\":", separator);
		escape_json(json, change->change);
		write_text(json, "object", change->object);
		write_text(json, "part", change->part);
		appendStringInfoChar(json, '}');
		separator = ",";
	}
	appendStringInfoChar(json, ']');
}

static void
write_values(StringInfo json, List *values)
{
	const char *separator = "";

	write_key(json, "values");
	appendStringInfoChar(json, '[');
	foreach_ptr(DdlValue, value, values)
	{
		appendStringInfo(json, "%s{\"column\":", separator);
		escape_json(json, value->column);
		appendStringInfoString(json, ",\"value\":");
		if (value->value)
			escape_json(json, value->value);
		else
			appendStringInfoString(json, "null");
		appendStringInfo(json, ",\"constant\":%s}", value->constant ? "true" : "false");
		separator = ",";
	}
	appendStringInfoChar(json, ']');
}

static void
write_created(StringInfo json, List *names)
{
	const char *separator = "";

	write_key(json, "names");
	appendStringInfoChar(json, '[');
	foreach_ptr(DdlName, name, names)
	{
		appendStringInfo(json, "%s{\"definition\":", separator);
		escape_json(json, name->definition);
		appendStringInfoString(json, ",\"name\":");
		escape_json(json, name->name);
		appendStringInfoChar(json, '}');
		separator = ",";
	}
	appendStringInfoChar(json, ']');
}

/* Returns a message as text. */
char *
ddl_message_write(const DdlMessage *message)
{
	StringInfoData json;

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	write_key(&json, "version");
	appendStringInfo(&json, "%d", DDL_MESSAGE_VERSION);
	write_key(&json, "id");
	appendStringInfo(&json, INT64_FORMAT, message->id);
	if (message->lock != 0)
	{
		write_key(&json, "lock");
		appendStringInfo(&json, INT64_FORMAT, message->lock);
	}
	write_text(&json, "tag", message->tag);
	write_text(&json, "role", message->role);
	write_names(&json, "powers", message->powers);
	if (message->session_role)
		write_text(&json, "session_role", message->session_role);
	write_text(&json, "statement", message->statement);
	write_text(&json, "encoding", message->encoding ? message->encoding : GetDatabaseEncodingName());
	write_key(&json, "server_version");
	appendStringInfo(&json, "%d", message->server_version ? message->server_version : compat_server_version);
	write_key(&json, "concurrently");
	appendStringInfoString(&json, message->concurrently ? "true" : "false");
	write_flag(&json, "explicitly", message->explicitly);
	write_flag(&json, "only_tables", message->only_tables);
	write_names(&json, "publications", message->publications);
	write_settings(&json, "settings", message->settings);
	if (message->seen != NIL)
		write_settings(&json, "seen", message->seen);
	if (message->copied != NIL)
		write_settings(&json, "copied", message->copied);
	if (!XLogRecPtrIsInvalid(message->made_at))
		write_text(&json, "made_at", psprintf("%X/%X", LSN_FORMAT_ARGS(message->made_at)));
	if (message->changes != NIL)
		write_changes(&json, message->changes);
	write_tables(&json, "tables", message->tables);
	if (message->entered != NIL)
		write_tables(&json, "entered", message->entered);
	if (message->left != NIL)
		write_tables(&json, "left", message->left);
	if (message->attached != NIL)
		write_tables(&json, "attached", message->attached);
	if (message->touched)
		write_names(&json, "touched", message->touched);
	if (message->values)
		write_values(&json, message->values);
	if (message->names)
		write_created(&json, message->names);
	if (message->may_be_gone)
	{
		write_key(&json, "may_be_gone");
		appendStringInfoString(&json, "true");
	}
	appendStringInfoChar(&json, '}');
	return json.data;
}

pg_noreturn static void
malformed(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("the message about a schema change is malformed: %s", problem)));
}

static bool
has_key(JsonbContainer *object, const char *key)
{
	return getKeyJsonValueFromContainer(object, key, strlen(key), NULL) != NULL;
}

/* Returns a value of an object, which must have that type. */
static JsonbValue *
find_value(JsonbContainer *object, const char *key, enum jbvType type)
{
	JsonbValue *value = getKeyJsonValueFromContainer(object, key, strlen(key), NULL);

	if (value == NULL)
		malformed(psprintf("\"%s\" is missing", key));
	if (value->type != type)
		malformed(psprintf("\"%s\" has another type", key));
	return value;
}

static char *
text_of(const JsonbValue *value)
{
	if (value->type != jbvString)
		malformed("a value is no text");
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static char *
read_text(JsonbContainer *object, const char *key)
{
	return text_of(find_value(object, key, jbvString));
}

static int64
read_number(JsonbContainer *object, const char *key)
{
	JsonbValue *value = find_value(object, key, jbvNumeric);
	char	   *text = numeric_normalize(value->val.numeric);
	char	   *end;
	int64		result;

	errno = 0;
	result = strtoi64(text, &end, 10);
	if (errno != 0 || *end != '\0')
		malformed(psprintf("\"%s\" is no integer", key));
	return result;
}

static bool
read_flag(JsonbContainer *object, const char *key)
{
	return has_key(object, key) && find_value(object, key, jbvBool)->val.boolean;
}

/* Returns the array or object under a key. */
static JsonbContainer *
read_container(JsonbContainer *object, const char *key, bool array)
{
	JsonbContainer *result = find_value(object, key, jbvBinary)->val.binary.data;

	if (array != JsonContainerIsArray(result))
		malformed(psprintf("\"%s\" has another type", key));
	return result;
}

static List *
read_names(JsonbContainer *object, const char *key)
{
	JsonbContainer *array = read_container(object, key, true);
	List	   *result = NIL;

	for (uint32 i = 0; i < JsonContainerSize(array); i++)
		result = lappend(result, text_of(getIthJsonbValueFromContainer(array, i)));
	return result;
}

/* Reads an object whose values are texts. */
static List *
read_settings(JsonbContainer *object, const char *key)
{
	JsonbIterator *iterator = JsonbIteratorInit(read_container(object, key, false));
	List	   *result = NIL;
	DdlSetting *setting = NULL;
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			setting = palloc0(sizeof(DdlSetting));
			setting->name = text_of(&value);
		}
		else if (token == WJB_VALUE)
		{
			setting->value = text_of(&value);
			result = lappend(result, setting);
		}
	}
	return result;
}

/* Reads an array of objects, each with a function. */
static List *
read_objects(JsonbContainer *object, const char *key, void *(*read) (JsonbContainer *element),
			 const char *problem)
{
	JsonbContainer *array = read_container(object, key, true);
	List	   *result = NIL;

	for (uint32 i = 0; i < JsonContainerSize(array); i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(array, i);

		if (value->type != jbvBinary || !JsonContainerIsObject(value->val.binary.data))
			malformed(problem);
		result = lappend(result, read(value->val.binary.data));
	}
	return result;
}

static void *
read_table(JsonbContainer *element)
{
	DdlTable   *table = palloc0(sizeof(DdlTable));

	table->publication = read_text(element, "publication");
	table->schema = read_text(element, "schema");
	table->name = read_text(element, "name");
	if (has_key(element, "others"))
		table->others = read_names(element, "others");
	return table;
}

static void *
read_change(JsonbContainer *element)
{
	DdlChange  *change = palloc(sizeof(DdlChange));

	change->change = read_text(element, "change");
	change->object = read_text(element, "object");
	change->part = read_text(element, "part");
	return change;
}

static void *
read_value(JsonbContainer *element)
{
	JsonbValue *value = getKeyJsonValueFromContainer(element, "value", strlen("value"), NULL);
	DdlValue   *own = palloc0(sizeof(DdlValue));

	if (value == NULL)
		malformed("\"value\" is missing");
	own->column = read_text(element, "column");
	if (value->type != jbvNull)
		own->value = text_of(value);
	own->constant = find_value(element, "constant", jbvBool)->val.boolean;
	return own;
}

static void *
read_name(JsonbContainer *element)
{
	DdlName    *name = palloc(sizeof(DdlName));

	name->definition = read_text(element, "definition");
	name->name = read_text(element, "name");
	return name;
}

static List *
read_tables(JsonbContainer *object, const char *key)
{
	return read_objects(object, key, read_table, "a table is no object");
}

static JsonbContainer *
parse(const char *json, int length)
{
	ErrorSaveContext problem = {T_ErrorSaveContext};
	Datum		result;

	if (!pg_verifymbstr(json, length, true))
		malformed("it is not valid in the encoding of the database");
	if (!DirectInputFunctionCallSafe(jsonb_in, pnstrdup(json, length), InvalidOid, -1,
									 (Node *) &problem, &result))
		malformed("it is no JSON");
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(result)))
		malformed("it is no object");
	return &DatumGetJsonbP(result)->root;
}

/* Reads a message; fails if it is malformed, or of a newer version. */
DdlMessage *
ddl_message_read(const char *json, int length)
{
	JsonbContainer *object = parse(json, length);
	DdlMessage *result = palloc0(sizeof(DdlMessage));
	int64		version = read_number(object, "version");

	if (version != DDL_MESSAGE_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the message about a schema change has version " INT64_FORMAT,
						version),
				 errdetail("This server knows version %d.", DDL_MESSAGE_VERSION),
				 errhint("Update Weft on this server.")));
	result->id = read_number(object, "id");
	if (has_key(object, "lock"))
		result->lock = read_number(object, "lock");
	result->tag = read_text(object, "tag");
	result->role = read_text(object, "role");
	result->powers = read_names(object, "powers");
	if (has_key(object, "session_role"))
		result->session_role = read_text(object, "session_role");
	result->statement = read_text(object, "statement");
	if (has_key(object, "encoding"))
		result->encoding = read_text(object, "encoding");
	if (has_key(object, "server_version"))
		result->server_version = (int) read_number(object, "server_version");
	result->concurrently = find_value(object, "concurrently", jbvBool)->val.boolean;
	result->explicitly = read_flag(object, "explicitly");
	result->only_tables = read_flag(object, "only_tables");
	result->publications = read_names(object, "publications");
	result->settings = read_settings(object, "settings");
	if (has_key(object, "seen"))
		result->seen = read_settings(object, "seen");
	if (has_key(object, "copied"))
		result->copied = read_settings(object, "copied");
	if (has_key(object, "changes"))
		result->changes = read_objects(object, "changes", read_change, "a change is no object");
	if (has_key(object, "source"))
	{
		result->of_trigger = strcmp(read_text(object, "source"), "trigger") == 0;
		if (result->of_trigger)
		{
			result->levels = read_settings(object, "levels");
			if (has_key(object, "local"))
				result->local = read_names(object, "local");
		}
	}
	result->tables = read_tables(object, "tables");
	if (has_key(object, "entered"))
		result->entered = read_tables(object, "entered");
	if (has_key(object, "left"))
		result->left = read_tables(object, "left");
	if (has_key(object, "attached"))
		result->attached = read_tables(object, "attached");
	if (has_key(object, "touched"))
		result->touched = read_names(object, "touched");
	if (has_key(object, "values"))
		result->values = read_objects(object, "values", read_value, "a value is no object");
	if (has_key(object, "names"))
		result->names = read_objects(object, "names", read_name, "a name is no object");
	result->may_be_gone = read_flag(object, "may_be_gone");
	return result;
}
