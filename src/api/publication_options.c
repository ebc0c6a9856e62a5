/*
 * publication_options.c
 *	  Weft's option of CREATE and ALTER PUBLICATION: ddl.
 *
 * Weft takes its option out of the statement, lets the server execute the rest, which also
 * checks the user's rights, and then stores the option in the same transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/publication_options.h"
#include "catalog/namespace.h"
#include "catalog/pg_publication.h"
#include "commands/defrem.h"
#include "compat.h"
#include "ddl/membership.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "miscadmin.h"

static ProcessUtility_hook_type previous_process_utility = NULL;

/* The option in a statement. */
typedef struct GivenLevel
{
	bool		given;
	DdlLevel	level;
} GivenLevel;

static DdlLevel
read_level(DefElem *option)
{
	char	   *text = option->arg ? defGetString(option) : "";
	DdlLevel	level;

	if (!publication_settings_parse_level(text, &level))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for publication parameter \"%s\": \"%s\"",
						option->defname, text),
				 errhint("Use \"none\", \"table\" or \"all\".")));
	return level;
}

/* Removes Weft's option from a list of options, and returns it. */
static GivenLevel
take_option(List **options)
{
	GivenLevel	result = {false, DDL_LEVEL_NONE};
	List	   *others = NIL;

	foreach_ptr(DefElem, option, *options)
	{
		if (strcmp(option->defname, "ddl") != 0)
		{
			others = lappend(others, option);
			continue;
		}
		if (result.given)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options")));
		result.given = true;
		result.level = read_level(option);
	}
	*options = others;
	return result;
}

/* Returns the name of the publication that a statement creates or alters, or NULL. */
static char *
find_publication(Node *statement, List ***options)
{
	if (IsA(statement, CreatePublicationStmt))
	{
		*options = &((CreatePublicationStmt *) statement)->options;
		return ((CreatePublicationStmt *) statement)->pubname;
	}
	if (IsA(statement, AlterPublicationStmt))
	{
		*options = &((AlterPublicationStmt *) statement)->options;
		return ((AlterPublicationStmt *) statement)->pubname;
	}
	return NULL;
}

/*
 * The publication's label has added weft.ddl_queue, and a dump that restores both adds it once more: takes it
 * out of the statement.  Returns false if nothing else is added.
 */
static bool
forget_queue(AlterPublicationStmt *statement)
{
	Oid			queue = publication_settings_queue();
	Oid			publication = get_publication_oid(statement->pubname, true);
	ListCell   *cell;

	/* ALTER PUBLICATION ... SET (options) has that action, too. */
	if (statement->action != AP_AddObjects || statement->pubobjects == NIL || !OidIsValid(queue) ||
		!list_member_oid(compat_relation_publications(queue), publication))
		return true;
	foreach(cell, statement->pubobjects)
	{
		PublicationObjSpec *object = lfirst(cell);

		if (object->pubobjtype == PUBLICATIONOBJ_TABLE &&
			RangeVarGetRelid(object->pubtable->relation, NoLock, true) == queue)
			statement->pubobjects = foreach_delete_current(statement->pubobjects, cell);
	}
	return statement->pubobjects != NIL;
}

/* Nothing is left for the server to do, so it does not check the user's rights. */
static void
check_owner(const char *publication)
{
	Oid			oid = get_publication_oid(publication, false);

	if (!object_ownercheck(PublicationRelationId, oid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_PUBLICATION, publication);
}

static void
store(const char *publication, GivenLevel given)
{
	Oid			oid = get_publication_oid(publication, true);

	if (!OidIsValid(oid))
		return;
	CommandCounterIncrement();
	if (given.given)
	{
		publication_settings_check(oid, given.level);
		publication_settings_set(oid, given.level);
	}
	else
	{
		publication_settings_check(oid, publication_settings_get(oid) == DDL_LEVEL_NONE ?
								   DDL_LEVEL_NONE : DDL_LEVEL_TABLE);
		publication_settings_complete(oid);
	}
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
		previous_process_utility ? previous_process_utility : standard_ProcessUtility;
	List	  **options;
	GivenLevel	given;
	char	   *publication = find_publication(pstmt->utilityStmt, &options);
	bool		had_options;
	bool		via_root;
	bool		nothing;
	List	   *members;

	if (publication == NULL)
	{
		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		return;
	}

	/* The statement may be in a plan cache. */
	if (readOnlyTree)
		pstmt = copyObject(pstmt);
	publication = find_publication(pstmt->utilityStmt, &options);
	had_options = *options != NIL;
	given = take_option(options);
	members = membership_of_publication(publication);
	via_root = membership_is_via_root(publication);

	nothing = IsA(pstmt->utilityStmt, AlterPublicationStmt) &&
		((had_options && *options == NIL) ||
		 !forget_queue((AlterPublicationStmt *) pstmt->utilityStmt));
	if (nothing)
		check_owner(publication);
	else
		next(pstmt, queryString, false, context, params, queryEnv, dest, qc);
	store(publication, given);
	membership_announce(publication, members, via_root, pstmt, queryString);
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
publication_options_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
