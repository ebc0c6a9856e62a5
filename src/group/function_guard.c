/*
 * function_guard.c
 *	  Runs functions of other roles with their owners' rights.
 *
 * Two kinds of process have the rights of a role, often a superuser, and work with what others
 * have defined.  Where they would call such a function, it runs as its owner, in a restricted
 * context, and can do only what the owner can do.  Functions of superusers and of the role itself run as
 * usual, and so do all functions while the process acts as another role, such as the owner of a table.
 *
 * The worker that joins a node has the rights of the role that joins.  While it restores
 * the schema of another member, functions of that member's owners may be called: by a
 * generated column or the bound of a partition, which the server evaluates for CREATE TABLE,
 * or by a domain, wherever one of its values is read.  Parameters that a function sets are reset after
 * each statement (schema.c).
 *
 * A process that applies changes has the rights of the subscription's owner.  It acts as the owner of
 * a table before it stores a row there.  But whoever is the first to look at the expressions of an
 * index simplifies them, which executes immutable functions with constant arguments: the
 * server of version 17 does so when it looks for an index of a table with REPLICA IDENTITY FULL, before it has changed
 * its role.  With replicated schema changes, a role that has never been on this server could have
 * defined the index.  Therefore immutable functions are guarded there; unless run_as_owner is set, when all code
 * of tables runs as the subscription's owner.
 *
 * This uses the server's hooks of the function manager, which also prevent such functions
 * from being inlined.  A function with SECURITY DEFINER runs as its owner in any case.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "group/function_guard.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* What is restored when a call ends.  The server calls the hook for functions that are not guarded, too. */
typedef struct GuardedCall
{
	bool		switched;
	Oid			user;
	int			context;
} GuardedCall;

/* The role that joins, or InvalidOid; static because the hooks have no argument for it. */
static Oid	joining_role = InvalidOid;

/* Returns the role of this process that functions must not get the rights of, or InvalidOid. */
static Oid
guarded_role(void)
{
	if (OidIsValid(joining_role))
		return joining_role;
	if (MySubscription != NULL && !MySubscription->runasowner)
		return MySubscription->owner;
	return InvalidOid;
}

/* Returns the owner as whom a function must run, or InvalidOid if it runs as usual. */
static Oid
untrusted_owner(Oid function)
{
	Oid			role = guarded_role();
	HeapTuple	tuple;
	Form_pg_proc form;
	Oid			result = InvalidOid;

	if (!OidIsValid(role))
		return InvalidOid;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	if (!form->prosecdef && form->proowner != role && !superuser_arg(form->proowner) &&
		(OidIsValid(joining_role) || form->provolatile == PROVOLATILE_IMMUTABLE))
		result = form->proowner;
	ReleaseSysCache(tuple);
	return result;
}

/* Those that are looked up by another role are not called by the guarded one later. */
static bool
guard_needed(Oid function)
{
	return (OidIsValid(joining_role) || GetUserId() == guarded_role()) &&
		OidIsValid(untrusted_owner(function));
}

static void
guard_call(FmgrHookEventType event, FmgrInfo *flinfo, Datum *state)
{
	GuardedCall *call = (GuardedCall *) DatumGetPointer(*state);
	Oid			owner;

	if (event != FHET_START)
	{
		/* After an error, the end of the (sub)transaction does that. */
		if (call != NULL && call->switched && event == FHET_END)
			SetUserIdAndSecContext(call->user, call->context);
		if (call != NULL)
			call->switched = false;
		return;
	}

	owner = untrusted_owner(flinfo->fn_oid);
	if (!OidIsValid(owner) || GetUserId() != guarded_role())
		return;
	if (call == NULL)
	{
		call = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(GuardedCall));
		*state = PointerGetDatum(call);
	}
	GetUserIdAndSecContext(&call->user, &call->context);
	call->switched = true;
	SetUserIdAndSecContext(owner, call->context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
}

/*
 * Installs the hooks; called once, while the postmaster loads the library.  The server keeps one
 * state per call, and two users of the hooks would need it: another library that is there already keeps them.
 */
void
function_guard_install(void)
{
	if (needs_fmgr_hook != NULL || fmgr_hook != NULL)
		return;
	needs_fmgr_hook = guard_needed;
	fmgr_hook = guard_call;
}

/* Called once, in the worker that joins a node. */
void
function_guard_join(void)
{
	if (needs_fmgr_hook != guard_needed || fmgr_hook != guard_call)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a node cannot join while another library hooks function calls")));
	joining_role = GetUserId();
}
