/*
 * string_syntax.c
 *	  The setting under which the text of a statement was parsed.
 *
 * A function or a prepared statement is parsed once.  If standard_conforming_strings changes after that, the server goes on
 * using the tree, but the text, which is what subscribers get, has another meaning now.  Therefore the text is parsed
 * again here, and compared with the tree.  Its message contains the setting that makes it the same.
 *
 * Only texts with a backslash depend on the setting.  backslash_quote forbids some of them and changes the meaning of none, so it
 * is on where they are parsed again.
 */
#include "postgres.h"

#include "compat.h"
#include "ddl/statement_settings.h"
#include "ddl/string_syntax.h"
#include "nodes/parsenodes.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/memutils.h"

static const char parameter[] = "standard_conforming_strings";

static void
set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* Is an error one about the text that is parsed? */
static bool
is_about_text(const ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	/* The last is U&'...' without standard_conforming_strings. */
	return category == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION ||
		category == ERRCODE_DATA_EXCEPTION ||
		error->sqlerrcode == ERRCODE_FEATURE_NOT_SUPPORTED;
}

/*
 * Parses a text under a value of the parameter; returns NIL if it has no meaning under that.  The parser uses
 * nothing but memory, so an error leaves nothing behind.
 */
static List *
parse(const char *text, const char *value)
{
	MemoryContext context = CurrentMemoryContext;
	int			level = NewGUCNestLevel();
	List	   *volatile result = NIL;

	set(parameter, value);
	set("backslash_quote", "on");
	set("escape_string_warning", "off");
	PG_TRY();
	{
		result = raw_parser(text, RAW_PARSE_DEFAULT);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (!is_about_text(error))
		{
			/* Those who catch it may delete "context". */
			MemoryContextSwitchTo(ErrorContext);
			PG_RE_THROW();
		}
		FlushErrorState();
	}
	PG_END_TRY();
	AtEOXact_GUC(true, level);
	return result;
}

/*
 * Is what the parser has made of a text the statement?  The parse analysis has changed the query of CREATE MATERIALIZED VIEW.
 */
static bool
is_statement(List *trees, const char *text, Node *statement)
{
	RawStmt    *tree;

	if (list_length(trees) != 1)
		return false;
	tree = linitial_node(RawStmt, trees);
	if (!IsA(statement, CreateTableAsStmt) || !IsA(tree->stmt, CreateTableAsStmt))
		return equal(tree->stmt, statement);
	return equal(parse_analyze_fixedparams(copyObject(tree), text, NULL, 0, NULL)->utilityStmt,
				 statement);
}

/*
 * Parses the text of a statement, and changes the settings so that they fit it.  Fails if none does.  "settings" is NIL if
 * those in force fit: the statement is a publisher's, and its tree may have been changed since (ddl_apply.c).
 */
List *
string_syntax_parse(const char *text, Node *statement, List *settings)
{
	const char *current = compat_standard_conforming_strings ? "on" : "off";
	const char *other = compat_standard_conforming_strings ? "off" : "on";
	List	   *trees;
	List	   *others;

	if (compat_fixed_string_syntax || settings == NIL || strchr(text, '\\') == NULL)
		return pg_parse_query(text);
	statement_settings_change(settings, "backslash_quote", "on");
	trees = parse(text, current);
	others = parse(text, other);
	if (equal(trees, others) || is_statement(trees, text, statement))
		return trees;
	if (!IsA(statement, CreateTableAsStmt) && is_statement(others, text, statement))
	{
		statement_settings_change(settings, parameter, other);
		return others;
	}
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate %s because its text has another meaning now",
					CreateCommandName(statement)),
			 errdetail("It was parsed before \"%s\" was set to \"%s\".", parameter, current),
			 errhint("Use E'...' for strings that contain backslashes, or execute the statement in a new session.")));
}
