/*
 * script_rows.c
 *	  Rows that the scripts of extensions change.
 *
 * A subscriber that gets CREATE EXTENSION executes the script, too, so the rows that the script
 * stores on the publisher must not be stored there again.  capture.c has that for tables that the
 * script creates: their rows come between the statement and the message with which the tables
 * join the subscription, so they are ignored as those of any table that does not belong to
 * it.  Nothing of the kind is possible for other tables.  A script that changes rows of such
 * a table is refused, whether it does so with a query, COPY or TRUNCATE.  (The server checks the privileges
 * of COPY as those of a query.)
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "ddl/script_rows.h"
#include "ddl/touched.h"
#include "executor/executor.h"
#include "nodes/parsenodes.h"
#include "utils/lsyscache.h"

static ExecutorCheckPerms_hook_type previous_check_permissions = NULL;
static object_access_hook_type previous_object_access = NULL;

/* Is this process executing a statement about an extension that is published? */
static bool watching = false;

static void
refuse(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (relid < FirstNormalObjectId || touched_has_created(relid) ||
		(relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE) ||
		get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate that the script of an extension changes rows of table \"%s\"",
					get_rel_name(relid)),
			 errdetail("Subscribers execute the script, and would get the changes a second time."),
			 errhint("Set \"weft.ddl_replication\" to \"off\", execute the statement on each server, and make the rows the same.")));
}

static bool
check_permissions(List *rangeTable, List *permissions, bool ereport_on_violation)
{
	if (watching && creating_extension)
		foreach_node(RTEPermissionInfo, info, permissions)
			if (info->requiredPerms & (ACL_INSERT | ACL_UPDATE | ACL_DELETE))
			refuse(info->relid);
	return previous_check_permissions == NULL ||
		previous_check_permissions(rangeTable, permissions, ereport_on_violation);
}

static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (watching && creating_extension && access == OAT_TRUNCATE)
		refuse(object_id);
}

/* Begins to watch scripts; returns what is to be given to script_rows_end(). */
bool
script_rows_begin(void)
{
	bool		before = watching;

	watching = true;
	return before;
}

void
script_rows_end(bool before)
{
	watching = before;
}

/* Installs the hooks; called once, while the postmaster loads the library. */
void
script_rows_install(void)
{
	previous_check_permissions = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = check_permissions;
	previous_object_access = object_access_hook;
	object_access_hook = object_access;
}
