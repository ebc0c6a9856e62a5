/*
 * subscription_options.c
 *	  Options of CREATE and ALTER SUBSCRIPTION that are ours: num_writers.
 *
 * They are taken out of the statement, the server carries it out (and checks
 * the user's rights), and then they are stored, in the same transaction.
 */
#include "postgres.h"

#include "api/subscription_options.h"
#include "commands/defrem.h"
#include "commands/subscriptioncmds.h"
#include "guc.h"
#include "nodes/parsenodes.h"
#include "num_writers.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"

static ProcessUtility_hook_type previous_process_utility = NULL;

static int
read_num_writers(DefElem *option)
{
	if (option->arg == NULL || !IsA(option->arg, Integer) ||
		intVal(option->arg) < 0 || intVal(option->arg) > WEFT_MAX_WRITERS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for subscription parameter \"%s\": \"%s\"",
						option->defname, option->arg ? defGetString(option) : ""),
				 errhint("Use an integer in the range %d .. %d; zero leaves the subscription to the server's own apply worker.",
						 0, WEFT_MAX_WRITERS)));
	return intVal(option->arg);
}

/*
 * Removes num_writers from a list of options; returns its value, or
 * NUM_WRITERS_DEFAULT if it is not there.
 */
static int
take_num_writers(List **options)
{
	List	   *others = NIL;
	ListCell   *cell;
	int			result = NUM_WRITERS_DEFAULT;

	foreach(cell, *options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "num_writers") != 0)
		{
			others = lappend(others, option);
			continue;
		}
		if (result != NUM_WRITERS_DEFAULT)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options")));
		result = read_num_writers(option);
	}
	*options = others;
	return result;
}

/* Our options in a statement, or NULL if it cannot have any. */
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

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
		previous_process_utility ? previous_process_utility : standard_ProcessUtility;
	int			num_writers = NUM_WRITERS_DEFAULT;
	char	   *subscription = NULL;

	if (find_options(pstmt->utilityStmt, &subscription) != NULL)
	{
		/* The statement may be in a plan cache. */
		if (readOnlyTree)
			pstmt = copyObject(pstmt);
		readOnlyTree = false;
		num_writers = take_num_writers(find_options(pstmt->utilityStmt, &subscription));
	}

	next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (num_writers != NUM_WRITERS_DEFAULT)
		num_writers_set(get_subscription_oid(subscription, false), num_writers);
}

/* Takes part in utility statements; called once, while the postmaster loads us. */
void
subscription_options_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
