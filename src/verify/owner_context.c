/*
 * owner_context.c
 *	  Reads tables of this database as the owner of a subscription.
 *
 * Output functions, and functions of views and indexes, may belong to anybody.  Therefore the
 * operation is restricted as for maintenance commands, names are looked up in pg_catalog only,
 * and values have the text that pinned_settings.c gives them.  Row-level security is an error.
 *
 * That does not keep such a function from using the rights of whoever reads: even the planner calls
 * functions, those in the predicates of indexes.  Therefore queries for the rows of
 * a table run as the role as whom apply changes it: as its owner, or, with run_as_owner, as the
 * subscription's.
 *
 * A wait for a lock is short, because a snapshot of the publisher waits, too; and a query must not
 * start parallel workers of its own, because the caller decides how many processes read.
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "verify/owner_context.h"

static const char *const settings[][2] = {
	{"jit", "off"},
	{"lock_timeout", "10s"},
	{"max_parallel_workers_per_gather", "0"},
	{"row_security", "off"},
};

/* Acts as the owner until owner_context_leave(), or the end of the transaction. */
void
owner_context_enter(OwnerContext *context, Oid owner)
{
	GetUserIdAndSecContext(&context->user, &context->security);
	SetUserIdAndSecContext(owner, context->security | SECURITY_RESTRICTED_OPERATION);
	context->level = NewGUCNestLevel();
	pinned_settings_set_local();
	RestrictSearchPath();
	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
}

void
owner_context_leave(const OwnerContext *context)
{
	AtEOXact_GUC(false, context->level);
	SetUserIdAndSecContext(context->user, context->security);
}

/*
 * Locks a table until the end of the transaction, and acts as the role as whom apply changes it,
 * until owner_context_leave_table() or the end of the subtransaction.  Called as the
 * subscription's owner.  Fails if the table does not exist, or if the subscription's owner
 * may not act as the table's; then apply cannot change it either.
 */
void
owner_context_enter_table(UserContext *context, Oid relid, bool run_as_owner)
{
	Relation	rel = try_table_open(relid, AccessShareLock);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the table has been dropped")));
	if (!run_as_owner)
		SwitchToUntrustedUser(rel->rd_rel->relowner, context);
	table_close(rel, NoLock);
}

void
owner_context_leave_table(UserContext *context, bool run_as_owner)
{
	if (!run_as_owner)
		RestoreUserContext(context);
}
