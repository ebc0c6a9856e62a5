/*
 * statement_settings.c
 *	  Parameters on which the meaning of a schema change depends.
 */
#include "postgres.h"

#include "ddl/ddl_message.h"
#include "ddl/statement_settings.h"
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

static void
set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

/*
 * Sets them for the caller's GUC nest level, as far as this server knows them.  Tablespaces are
 * not replicated.  The publisher has checked the bodies of functions, which may use what is not
 * replicated, such as temporary tables.
 */
void
statement_settings_set(List *settings)
{
	foreach_ptr(DdlSetting, setting, settings)
		for (int i = 0; i < lengthof(names); i++)
		if (strcmp(setting->name, names[i]) == 0)
			set(setting->name, setting->value);
	set("check_function_bodies", "off");
	set("default_tablespace", "");
}
