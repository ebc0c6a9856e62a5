/*
 * subscription_options.c
 *	  Weft's options of CREATE and ALTER SUBSCRIPTION: num_writers, detect_conflicts and ddl.
 *
 * Weft takes its options out of the statement, lets the server execute the rest (which
 * also checks the user's rights), and then stores the options in the same transaction.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "api/subscription_options.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "compat.h"
#include "conflict/past_origin.h"
#include "guc.h"
#include "nodes/parsenodes.h"
#include "subscription_settings.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

static ProcessUtility_hook_type previous_process_utility = NULL;

/* Weft's options in a statement. */
typedef struct GivenOptions
{
	bool		num_writers_given;
	bool		detect_conflicts_given;
	bool		ddl_given;
	SubscriptionSettings settings;
	bool		two_phase;		/* set in the same statement */
} GivenOptions;

static int
read_num_writers(DefElem *option)
{
	if (option->arg == NULL || !IsA(option->arg, Integer) ||
		intVal(option->arg) < 0 || intVal(option->arg) > WEFT_MAX_WRITERS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for subscription parameter \"%s\": \"%s\"",
						option->defname, option->arg ? defGetString(option) : ""),
				 errhint("Use an integer between %d and %d; with zero, the server's own apply worker applies the subscription.",
						 0, WEFT_MAX_WRITERS)));
	return intVal(option->arg);
}

static SubscriptionDdl
read_ddl(DefElem *option)
{
	char	   *text = option->arg ? defGetString(option) : "";
	SubscriptionDdl result;

	if (!subscription_settings_parse_ddl(text, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for subscription parameter \"%s\": \"%s\"",
						option->defname, text),
				 errhint("Use \"on\", \"off\" or \"trust_owner\".")));
	return result;
}

static void
note_given(bool *given)
{
	if (*given)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("conflicting or redundant options")));
	*given = true;
}

/* Removes Weft's options from a list of options, and returns them. */
static GivenOptions
take_options(List **options)
{
	GivenOptions result = {0};
	List	   *others = NIL;
	ListCell   *cell;

	foreach(cell, *options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "num_writers") == 0)
		{
			note_given(&result.num_writers_given);
			result.settings.num_writers = read_num_writers(option);
		}
		else if (strcmp(option->defname, "detect_conflicts") == 0)
		{
			note_given(&result.detect_conflicts_given);
			result.settings.detect_conflicts = defGetBoolean(option);
		}
		else if (strcmp(option->defname, "ddl") == 0)
		{
			note_given(&result.ddl_given);
			result.settings.ddl = read_ddl(option);
		}
		else
		{
			others = lappend(others, option);
			if (strcmp(option->defname, "two_phase") == 0)
				result.two_phase = defGetBoolean(option);
		}
	}
	*options = others;
	return result;
}

/* Stores the options that were given, and keeps the others. */
static void
store(const char *subscription, const GivenOptions *given)
{
	Oid			subid = get_subscription_oid(subscription, false);
	SubscriptionSettings settings = subscription_settings_get(subid);

	if (given->num_writers_given)
		settings.num_writers = given->settings.num_writers;
	if (given->detect_conflicts_given)
		settings.detect_conflicts = given->settings.detect_conflicts;
	if (given->ddl_given)
		settings.ddl = given->settings.ddl;
	if (settings.detect_conflicts)
	{
		subscription_settings_check_detection(subscription);
		if (settings.num_writers == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" needs at least one writer", "detect_conflicts"),
					 errhint("Set \"%s\" to 1 or more.", "num_writers")));
	}
	subscription_settings_set(subid, settings);
}

/* Checks what can be checked before the statement is executed. */
static void
check_given(const char *subscription, const GivenOptions *given)
{
	if (!given->settings.detect_conflicts)
		return;
	if (given->two_phase)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("%s and %s are mutually exclusive options",
						"detect_conflicts = true", "two_phase = true")));
	subscription_settings_check_detection(subscription);
}

/*
 * Whatever a statement has changed, two_phase and detect_conflicts exclude each other: the
 * server's own code applies prepared transactions.
 */
static void
check_two_phase(const char *subscription)
{
	Oid			subid = get_subscription_oid(subscription, true);
	HeapTuple	tuple;
	char		state;

	if (!OidIsValid(subid))
		return;
	CommandCounterIncrement();
	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));
	if (!HeapTupleIsValid(tuple))
		return;
	state = ((Form_pg_subscription) GETSTRUCT(tuple))->subtwophasestate;
	ReleaseSysCache(tuple);
	if (state != LOGICALREP_TWOPHASE_STATE_DISABLED &&
		subscription_settings_get(subid).detect_conflicts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected because \"two_phase\" is enabled",
						subscription),
				 errhint("Create the subscription with \"%s\".", "two_phase = false")));
}

/* Returns the options of a statement, or NULL if it cannot have Weft's. */
static List **
find_options(Node *statement, char **subscription)
{
	if (IsA(statement, CreateSubscriptionStmt))
	{
		*subscription = ((CreateSubscriptionStmt *) statement)->subname;
		return &((CreateSubscriptionStmt *) statement)->options;
	}
	if (IsA(statement, AlterSubscriptionStmt) &&
		((AlterSubscriptionStmt *) statement)->kind == ALTER_SUBSCRIPTION_OPTIONS)
	{
		*subscription = ((AlterSubscriptionStmt *) statement)->subname;
		return &((AlterSubscriptionStmt *) statement)->options;
	}
	return NULL;
}

/* Does a table or a sequence belong to Weft?  The fence of a switch-over is in another schema. */
static bool
is_own(Oid relid, Oid extension)
{
	return getExtensionOfObject(RelationRelationId, relid) == extension ||
		(get_rel_relkind(relid) == RELKIND_SEQUENCE &&
		 get_rel_namespace(relid) == get_namespace_oid("weft_switch", true));
}

/*
 * FOR ALL TABLES also publishes the tables of extensions, and FOR ALL SEQUENCES their
 * sequences.  Weft's own describe the server that they are on, and must not be copied from
 * another one.
 */
static void
drop_own_relations(const char *subscription)
{
	Oid			subid = get_subscription_oid(subscription, true);
	Oid			extension = get_extension_oid("weft", true);
	List	   *relations;
	ListCell   *cell;

	if (!OidIsValid(subid) || !OidIsValid(extension))
		return;
	CommandCounterIncrement();
	relations = compat_subscription_relations(subid);
	foreach(cell, relations)
	{
		Oid			relid = ((SubscriptionRelState *) lfirst(cell))->relid;

		if (is_own(relid, extension))
			RemoveSubscriptionRel(subid, relid);
	}
}

/* Returns the subscription whose list of tables a statement may have changed, or NULL. */
static const char *
changed_tables(Node *statement)
{
	if (IsA(statement, CreateSubscriptionStmt))
		return ((CreateSubscriptionStmt *) statement)->subname;
	if (IsA(statement, AlterSubscriptionStmt))
		return ((AlterSubscriptionStmt *) statement)->subname;
	return NULL;
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
		previous_process_utility ? previous_process_utility : standard_ProcessUtility;
	GivenOptions given = {0};
	ConflictLegacy legacy = {0};
	char	   *subscription = NULL;

	if (IsA(pstmt->utilityStmt, DropSubscriptionStmt))
		legacy = conflict_legacy(((DropSubscriptionStmt *) pstmt->utilityStmt)->subname);
	if (find_options(pstmt->utilityStmt, &subscription) != NULL)
	{
		/* The statement may be in a plan cache. */
		if (readOnlyTree)
			pstmt = copyObject(pstmt);
		readOnlyTree = false;
		given = take_options(find_options(pstmt->utilityStmt, &subscription));
		check_given(subscription, &given);
	}

	next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	conflict_leave(legacy);
	if (given.num_writers_given || given.detect_conflicts_given || given.ddl_given)
		store(subscription, &given);
	if (subscription)
		check_two_phase(subscription);
	if (changed_tables(pstmt->utilityStmt))
		drop_own_relations(changed_tables(pstmt->utilityStmt));
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
subscription_options_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
