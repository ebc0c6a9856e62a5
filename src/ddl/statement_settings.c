/*
 * statement_settings.c
 *	  Parameters on which the meaning of a schema change depends.
 */
#include "postgres.h"

#include "ddl/ddl_message.h"
#include "ddl/statement_settings.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"

static const char access_method[] = "default_table_access_method";
static const char text_search[] = "default_text_search_config";

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
 * A value may name something that does not exist here.  Locales have other names on other systems; one that is
 * not known here stays as it is: it matters to literals of type money only.  The method of compression matters to no
 * value.  See statement_settings_check() for the others.
 */
static void
set(const char *name, const char *value, GucAction action)
{
	bool		optional = strncmp(name, "lc_", strlen("lc_")) == 0 ||
		strcmp(name, access_method) == 0 || strcmp(name, text_search) == 0 ||
		strcmp(name, "default_toast_compression") == 0;

	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, action, true, optional ? DEBUG1 : 0, false);
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

/* May a constraint be evaluated for rows when it is created? */
static bool
any_is_evaluated(List *constraints)
{
	foreach_ptr(Node, constraint, constraints)
		if (IsA(constraint, Constraint) &&
			(((Constraint *) constraint)->contype == CONSTR_CHECK ||
			 ((Constraint *) constraint)->contype == CONSTR_DEFAULT))
		return true;
	return false;
}

/* May a part of ALTER TABLE evaluate an expression for rows? */
static bool
evaluates(AlterTableCmd *command)
{
	switch (command->subtype)
	{
		case AT_AddColumn:
			return any_is_evaluated(((ColumnDef *) command->def)->constraints);
		case AT_AddConstraint:
			return any_is_evaluated(list_make1(command->def));
		case AT_AlterColumnType:
		case AT_ValidateConstraint:
			return true;
		default:
			return false;
	}
}

/* Does a function get a parameter's value in this session? */
static bool
takes_value(List *options, const char *name)
{
	foreach_node(DefElem, option, options)
		if (strcmp(option->defname, "set") == 0 &&
			((VariableSetStmt *) option->arg)->kind == VAR_SET_CURRENT &&
			pg_strcasecmp(((VariableSetStmt *) option->arg)->name, name) == 0)
		return true;
	return false;
}

/*
 * May a statement evaluate expressions, and so functions that depend on the parameters of the session?  Those in
 * indexes do not, and those of generated columns do not either.
 */
static bool
may_search_text(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
				if (evaluates(command))
				return true;
			return false;
		case T_CreateFunctionStmt:
			return takes_value(((CreateFunctionStmt *) statement)->options, text_search);
		case T_AlterFunctionStmt:
			return takes_value(((AlterFunctionStmt *) statement)->actions, text_search);
		case T_AlterDomainStmt:
		case T_AlterExtensionStmt:
		case T_CreateExtensionStmt:
		case T_CreateTableAsStmt:
		case T_RefreshMatViewStmt:
			return true;
		default:
			return false;
	}
}

/* May a statement create a table without naming an access method? */
static bool
may_choose_access_method(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			return ((CreateStmt *) statement)->accessMethod == NULL &&
				((CreateStmt *) statement)->partspec == NULL;
		case T_CreateTableAsStmt:
			return ((CreateTableAsStmt *) statement)->into->accessMethod == NULL;
		case T_CreateSchemaStmt:
			foreach_ptr(Node, element, ((CreateSchemaStmt *) statement)->schemaElts)
				if (may_choose_access_method(element))
				return true;
			return false;
		case T_AlterTableStmt:
			foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
				if (command->subtype == AT_SetAccessMethod && command->name == NULL)
				return true;
			return false;
		case T_AlterExtensionStmt:
		case T_CreateExtensionStmt:
			return true;
		default:
			return false;
	}
}

/*
 * Fails if a statement may depend on a setting that this server does not know.  statement_settings_set() was called
 * before: the statement is parsed under the settings.
 */
void
statement_settings_check(List *settings, Node *statement)
{
	foreach_ptr(DdlSetting, setting, settings)
		if ((strcmp(setting->name, access_method) == 0 && may_choose_access_method(statement)) ||
			(strcmp(setting->name, text_search) == 0 && may_search_text(statement)))
		(void) set_config_option(setting->name, setting->value, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

/* Changes the value of one of them. */
void
statement_settings_change(List *settings, const char *name, const char *value)
{
	foreach_ptr(DdlSetting, setting, settings)
		if (strcmp(setting->name, name) == 0)
		setting->value = pstrdup(value);
}

/*
 * Makes a schema the only one in the search_path of a message.  If it does not exist on the
 * subscriber, nothing must be created in another one.
 */
void
statement_settings_set_schema(List *settings, const char *schema)
{
	statement_settings_change(settings, "search_path", quote_identifier(schema));
}
