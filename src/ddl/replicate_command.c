/*
 * replicate_command.c
 *	  weft.replicate_ddl_command().
 *
 * It executes a statement here, as the role that calls it, and publishes it by the publications
 * that it names, even if they would not get it otherwise.  Others that want the statement get it
 * as well: nobody can hide a schema change from them with this.
 *
 * Who may do that?  Subscribers execute the statement as the same role, with no more than its
 * rights there (ddl_apply.c).  But its text, and the time that it takes, are imposed on everybody
 * who subscribes.  The owner of a publication decides what it publishes, so the caller must have
 * the owner's privileges, besides EXECUTE on the function, which nobody is granted.
 *
 * Which statements?  Those that are replicated at any level, and some that never are by
 * themselves (ddl_kind.c).  None that changes rows, since these are replicated in addition, nor
 * any that leaves something in the session, since there is none on the subscriber.
 */
#include "postgres.h"

#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "ddl/capture.h"
#include "ddl/ddl_kind.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "shmem.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "varatt.h"

PG_FUNCTION_INFO_V1(weft_replicate_ddl_command);

/* Fails unless the text is one statement that may be replicated. */
static void
check_text(const char *text)
{
	List	   *trees = pg_parse_query(text);
	Node	   *statement;

	if (list_length(trees) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the command must be one statement")));
	statement = linitial_node(RawStmt, trees)->stmt;
	if (ddl_kind(statement) == DDL_NEVER && !ddl_is_for_command(statement))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate %s", CreateCommandName(statement)),
				 errdetail("It is no schema change, it contains a password, or it is about replication, databases or tablespaces.")));
}

/* Returns the OID of a publication that may be used. */
static Oid
find_publication(const char *name)
{
	Oid			oid = get_publication_oid(name, false);

	if (!object_ownercheck(PublicationRelationId, oid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_PUBLICATION, name);
	if (publication_settings_get(oid) == DDL_LEVEL_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publication \"%s\" does not publish schema changes", name),
				 errhint("Use ALTER PUBLICATION ... SET (ddl = table).")));
	return oid;
}

static List *
find_publications(ArrayType *names)
{
	Datum	   *values;
	bool	   *nulls;
	int			count;
	List	   *result = NIL;

	deconstruct_array_builtin(names, TEXTOID, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("the name of a publication must not be null")));
		result = list_append_unique_oid(result, find_publication(TextDatumGetCString(values[i])));
	}
	if (result == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no publication is given")));
	return result;
}

static void
execute(const char *text, List *publications)
{
	bool		seen;
	int			result;

	SPI_connect();
	(void) capture_request(publications);
	PG_TRY();
	{
		result = SPI_execute(text, false, 0);
	}
	PG_FINALLY();
	{
		seen = capture_request(NIL);
	}
	PG_END_TRY();
	if (result < 0 || !seen)
		elog(ERROR, "statement was not replicated: %s", SPI_result_code_string(result));
	SPI_finish();
}

/*
 * weft.replicate_ddl_command(command text, publications text[])
 *
 * See sql/14-ddl-api.sql.
 */
Datum
weft_replicate_ddl_command(PG_FUNCTION_ARGS)
{
	char	   *command;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("command and publications must not be null")));
	shmem_require();
	if (creating_extension)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a command of the script of an extension"),
				 errdetail("Subscribers execute the script.")));
	command = text_to_cstring(PG_GETARG_TEXT_PP(0));
	check_text(command);
	execute(command, find_publications(PG_GETARG_ARRAYTYPE_P(1)));
	PG_RETURN_VOID();
}
