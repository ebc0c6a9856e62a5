/*
 * pinned_settings.c
 *	  Settings on which the text of a value, and the meaning of a text, depend.
 *
 * Members of a group exchange values as text: keys, times, names of tables.  Settings of a
 * member's server or database, or of the role that connects, must not influence these texts.
 * Therefore every connection between members sets these parameters, and so does the worker
 * that joins a node.
 *
 * It also sets parameters that could end or refuse the work of a join.  A lock_timeout stays
 * as it is.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "pinned_settings.h"
#include "utils/builtins.h"
#include "utils/guc.h"

typedef struct PinnedSetting
{
	const char *name;
	const char *value;
} PinnedSetting;

/* Every role may set each of these. */
static const PinnedSetting settings[] = {
	{"array_nulls", "on"},
	{"bytea_output", "hex"},
	{"datestyle", "ISO, MDY"},
	{"extra_float_digits", "3"},
	{"intervalstyle", "postgres"},
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},
	{"quote_all_identifiers", "off"},
	{"search_path", ""},
	{"standard_conforming_strings", "on"},
	/* The only name that needs no time zone database. */
	{"timezone", "GMT"},
	{"transform_null_equals", "off"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"}
};

static const PinnedSetting session_settings[] = {
	{"default_transaction_deferrable", "off"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"idle_in_transaction_session_timeout", "0"},
	{"statement_timeout", "0"},
	{"transaction_timeout", "0"}
};

static void
append_setting(StringInfo command, const char *name, const char *value)
{
	appendStringInfo(command, "SET %s = %s; ", name, quote_literal_cstr(value));
}

/* Returns the first commands of a connection between members. */
char *
pinned_settings_command(void)
{
	StringInfoData command;

	initStringInfo(&command);
	append_setting(&command, "client_encoding", GetDatabaseEncodingName());
	for (int i = 0; i < lengthof(settings); i++)
		append_setting(&command, settings[i].name, settings[i].value);
	for (int i = 0; i < lengthof(session_settings); i++)
		append_setting(&command, session_settings[i].name, session_settings[i].value);
	return command.data;
}

static void
append_value(StringInfo query, const char *name, const char *value)
{
	appendStringInfo(query, "%s(%s, %s)", strchr(query->data, '\'') ? ", " : "",
					 quote_literal_cstr(name), quote_literal_cstr(value));
}

/*
 * The same as a query with one column, for servers that may lack some of the parameters: a
 * publisher may be older.
 */
char *
pinned_settings_query(void)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT pg_catalog.count(pg_catalog.set_config(s.name, v.value, false))"
						   " FROM (VALUES ");
	append_value(&query, "client_encoding", GetDatabaseEncodingName());
	for (int i = 0; i < lengthof(settings); i++)
		append_value(&query, settings[i].name, settings[i].value);
	for (int i = 0; i < lengthof(session_settings); i++)
		append_value(&query, session_settings[i].name, session_settings[i].value);
	appendStringInfoString(&query, ") v(name, value) JOIN pg_catalog.pg_settings s"
						   " ON pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) v.name");
	return query.data;
}

/*
 * Sets them in this process permanently; RESET returns to these values.  COPY decodes the
 * data of another member in the client's encoding, even though there is no client.
 */
void
pinned_settings_set(void)
{
	SetConfigOption("client_encoding", GetDatabaseEncodingName(), PGC_SUSET, PGC_S_OVERRIDE);
	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i].name, settings[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	for (int i = 0; i < lengthof(session_settings); i++)
		SetConfigOption(session_settings[i].name, session_settings[i].value,
						PGC_SUSET, PGC_S_OVERRIDE);
}

/* Sets them until the end of the current GUC nest level. */
void
pinned_settings_set_local(void)
{
	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i].name, settings[i].value, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}
