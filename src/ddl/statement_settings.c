/*
 * statement_settings.c
 *	  Parameters on which the meaning of a schema change depends.
 */
#include "postgres.h"

#include "ddl/ddl_message.h"
#include "ddl/statement_settings.h"
#include "utils/builtins.h"
#include "utils/guc.h"

/* Every role may set all of them. */
static const char *const names[] = {
	"array_nulls",
	"backslash_quote",
	"bytea_output",
	"DateStyle",
	"default_table_access_method",
	"default_text_search_config",
	"default_toast_compression",
	"extra_float_digits",
	"IntervalStyle",
	"lc_monetary",
	"lc_numeric",
	"lc_time",
	"quote_all_identifiers",
	"search_path",
	"standard_conforming_strings",
	"TimeZone",
	"transform_null_equals",
	"xmlbinary",
	"xmloption",
};

/* Is a parameter one of them? */
bool
statement_settings_include(const char *name)
{
	for (int i = 0; i < lengthof(names); i++)
		if (pg_strcasecmp(names[i], name) == 0)
			return true;
	return false;
}

/* Returns their values in this session, as a list of DdlSetting. */
List *
statement_settings_get(void)
{
	List	   *result = NIL;

	for (int i = 0; i < lengthof(names); i++)
	{
		DdlSetting *setting = palloc(sizeof(DdlSetting));

		setting->name = pstrdup(names[i]);
		setting->value = pstrdup(GetConfigOption(names[i], false, false));
		result = lappend(result, setting);
	}
	return result;
}

/* Returns a copy, in the current memory context. */
List *
statement_settings_copy(List *settings)
{
	List	   *result = NIL;

	foreach_ptr(DdlSetting, setting, settings)
	{
		DdlSetting *copy = palloc(sizeof(DdlSetting));

		copy->name = pstrdup(setting->name);
		copy->value = pstrdup(setting->value);
		result = lappend(result, copy);
	}
	return result;
}

/*
 * Locales have other names on other systems.  One that is not known here stays as it is: it matters to literals
 * of type money only.
 */
static void
set(const char *name, const char *value, GucAction action)
{
	bool		locale = strncmp(name, "lc_", strlen("lc_")) == 0;

	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, action, true, locale ? DEBUG1 : 0, false);
}

/*
 * Sets them, as far as this server knows them.  Tablespaces are not replicated.  The publisher has
 * checked the bodies of functions, which may use what is not replicated, such as temporary tables.
 */
static void
set_all(List *settings, GucAction action)
{
	foreach_ptr(DdlSetting, setting, settings)
		for (int i = 0; i < lengthof(names); i++)
		if (strcmp(setting->name, names[i]) == 0)
			set(setting->name, setting->value, action);
	set("check_function_bodies", "off", action);
	set("default_tablespace", "", action);
}

/* Sets them for the caller's GUC nest level. */
void
statement_settings_set(List *settings)
{
	set_all(settings, GUC_ACTION_SAVE);
}

/* Sets them for the session, once the transaction has committed. */
void
statement_settings_set_session(List *settings)
{
	set_all(settings, GUC_ACTION_SET);
}

/*
 * Makes a schema the only one in the search_path of a message.  If it does not exist on the
 * subscriber, nothing must be created in another one.
 */
void
statement_settings_set_schema(List *settings, const char *schema)
{
	foreach_ptr(DdlSetting, setting, settings)
		if (strcmp(setting->name, "search_path") == 0)
		setting->value = pstrdup(quote_identifier(schema));
}
