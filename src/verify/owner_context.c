/*
 * owner_context.c
 *	  Reads tables of this database as the owner of a subscription.
 *
 * Output functions, and functions of views and indexes, may belong to anybody.  Therefore the
 * operation is restricted as for maintenance commands, names are looked up in pg_catalog only,
 * and values have the text that pinned_settings.c gives them.  Row-level security is an error.
 *
 * A wait for a lock is short, because a snapshot of the publisher waits, too; and a query must not
 * start parallel workers of its own, because the caller decides how many processes read.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pinned_settings.h"
#include "utils/guc.h"
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
