/*
 * filter.c
 *	  weft.ddl_filter: which schema changes are not published.
 *
 * The parameter is a list of kinds of statements, and of schemas:
 *
 *		weft.ddl_filter = 'materialized view, grant, scratch.*, "My Schema".*'
 *
 * The kind of a statement is its command tag without CREATE, ALTER or DROP.  A schema excludes the
 * objects in it, and itself; a statement is published if it touches anything else.
 */
#include "postgres.h"

#include "ddl/filter.h"
#include "nodes/pg_list.h"
#include "parser/scansup.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

static const char *const kinds[] = {
	"access method",
	"aggregate",
	"cast",
	"collation",
	"comment",
	"conversion",
	"default privileges",
	"domain",
	"event trigger",
	"extension",
	"foreign data wrapper",
	"foreign table",
	"function",
	"grant",
	"index",
	"language",
	"materialized view",
	"operator",
	"operator class",
	"operator family",
	"owned",
	"policy",
	"procedure",
	"routine",
	"rule",
	"schema",
	"security label",
	"sequence",
	"server",
	"statistics",
	"table",
	"text search configuration",
	"text search dictionary",
	"text search parser",
	"text search template",
	"transform",
	"trigger",
	"type",
	"view",
};

/* Command tags whose kind has another name. */
static const struct
{
	const char *tag;
	const char *kind;
}			renamed[] = {
	{"CREATE TABLE AS", "table"},
	{"IMPORT FOREIGN SCHEMA", "foreign table"},
	{"REVOKE", "grant"},
	{"SELECT INTO", "table"},
};

/* One item of the list: one of the two. */
typedef struct FilterItem
{
	const char *kind;
	char	   *schema;
} FilterItem;

static char *filter = NULL;		/* the parameter */

static void
skip_spaces(const char **text)
{
	while (scanner_isspace(**text))
		(*text) ++;
}

static const char *
find_kind(const char *name)
{
	for (int i = 0; i < lengthof(kinds); i++)
		if (pg_strcasecmp(kinds[i], name) == 0)
			return kinds[i];
	return NULL;
}

/* Reads an identifier in quotes; returns NULL if its end is missing. */
static char *
read_quoted(const char **text)
{
	StringInfoData name;

	initStringInfo(&name);
	for ((*text) ++; **text !='\0'; (*text) ++)
	{
		if (**text == '"' && *++(*text) !='"')
			return name.data;
		appendStringInfoChar(&name, **text);
	}
	return NULL;
}

/* Reads an identifier without quotes. */
static char *
read_plain(const char **text)
{
	const char *start = *text;

	while (**text == '_' || **text == '$' || IS_HIGHBIT_SET(**text) ||
		   isalnum((unsigned char) **text))
		(*text) ++;
	if (*text == start || *start == '$' || isdigit((unsigned char) *start))
		return NULL;
	return downcase_identifier(start, *text -start, false, false);
}

/* Reads a schema and ".*", and what may follow; returns NULL if this is something else. */
static char *
read_schema(const char **text)
{
	char	   *result = **text == '"' ? read_quoted(text) : read_plain(text);

	if (result == NULL || *result == '\0' || strlen(result) >= NAMEDATALEN ||
		strncmp(*text, ".*", 2) != 0)
		return NULL;
	*text +=2;
	skip_spaces(text);
	return **text == '\0' || **text == ',' ? result : NULL;
}

/* Reads a kind up to the next comma. */
static const char *
read_kind(const char **text)
{
	int			length = strcspn(*text, ",");
	char	   *name = pnstrdup(*text, length);

	*text +=length;
	while (length > 0 && scanner_isspace(name[length - 1]))
		name[--length] = '\0';
	return find_kind(name);
}

/* Parses the parameter; returns false, and the item where reading it failed, if it is wrong. */
static bool
parse(const char *value, List **items, const char **wrong)
{
	const char *text = value;

	*items = NIL;
	skip_spaces(&text);
	if (*text == '\0')
		return true;
	for (;;)
	{
		FilterItem *item = palloc0(sizeof(FilterItem));

		skip_spaces(&text);
		*wrong = text;

		item->schema = read_schema(&text);
		if (item->schema == NULL)
		{
			text = *wrong;

			item->kind = read_kind(&text);
			if (item->kind == NULL)
				return false;
		}
		*items = lappend(*items, item);
		if (*text == '\0')
			return true;
		text	  ++;
	}
}

static bool
check(char **value, void **extra, GucSource source)
{
	List	   *items;
	const char *wrong;

	if (parse(*value, &items, &wrong))
		return true;
	GUC_check_errdetail("There is neither a kind of schema changes nor a schema in \"%s\".",
						pnstrdup(wrong, strcspn(wrong, ",")));
	GUC_check_errhint("List kinds such as %s, and schemas such as %s.",
					  "\"materialized view\"", "\"scratch.*\"");
	return false;
}

static List *
get_items(void)
{
	List	   *items;
	const char *wrong;

	if (filter == NULL || *filter == '\0' || !parse(filter, &items, &wrong))
		return NIL;
	return items;
}

static const char *
kind_of(const char *tag)
{
	static const char *const verbs[] = {"CREATE ", "ALTER ", "DROP ", "REASSIGN "};

	for (int i = 0; i < lengthof(renamed); i++)
		if (strcmp(tag, renamed[i].tag) == 0)
			return renamed[i].kind;
	for (int i = 0; i < lengthof(verbs); i++)
		if (strncmp(tag, verbs[i], strlen(verbs[i])) == 0)
			return find_kind(tag + strlen(verbs[i]));
	return find_kind(tag);
}

/* Is a statement of a kind that is not published? */
bool
filter_excludes_kind(Node *statement)
{
	List	   *items = get_items();
	const char *kind = items == NIL ? NULL : kind_of(CreateCommandName(statement));

	foreach_ptr(FilterItem, item, items)
		if (item->kind != NULL && item->kind == kind)
		return true;
	return false;
}

/* Are changes of what is in a schema not published? */
bool
filter_excludes_schema(Oid schema)
{
	List	   *items = get_items();
	char	   *name = items == NIL ? NULL : get_namespace_name(schema);

	if (name == NULL)
		return false;
	foreach_ptr(FilterItem, item, items)
		if (item->schema != NULL && strcmp(item->schema, name) == 0)
		return true;
	return false;
}

/* Defines the parameter; called once, while the postmaster loads the library. */
void
filter_define(void)
{
	DefineCustomStringVariable("weft.ddl_filter",
							   "Sets which schema changes are not published.",
							   "A list of kinds, such as \"view\", and of schemas, such as \"scratch.*\".",
							   &filter,
							   "",
							   PGC_SUSET, GUC_LIST_INPUT,
							   check, NULL, NULL);
}
