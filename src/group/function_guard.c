/*
 * function_guard.c
 *	  Runs functions of other roles with their owners' rights, in the worker that joins a
 *	  node.
 *
 * The worker has the rights of the role that joins, often a superuser.  While it restores
 * the schema of another member, functions of that member's owners may be called: by a
 * generated column or the bound of a partition, which the server evaluates for CREATE TABLE,
 * or by a domain, wherever one of its values is read.  Here such a function runs as its
 * owner, in a restricted context, and can do only what the owner can do.  Functions of
 * superusers and of the role itself run as usual, and so do all functions while the worker
 * acts as another role, such as the owner of a table that it copies.
 *
 * This uses the server's hooks of the function manager, which also prevent such functions
 * from being inlined.  A function with SECURITY DEFINER runs as its owner in any case.
 * Parameters that a function sets are reset after each statement (schema.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "group/function_guard.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* What is restored when a call ends. */
typedef struct GuardedCall
{
	bool		switched;
	Oid			user;
	int			context;
} GuardedCall;

/* The role that joins; static because the hooks have no argument for it. */
static Oid	own_role;

/* Returns the owner as whom a function must run, or InvalidOid if it runs as usual. */
static Oid
untrusted_owner(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	Oid			result = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	if (!form->prosecdef && form->proowner != own_role && !superuser_arg(form->proowner))
		result = form->proowner;
	ReleaseSysCache(tuple);
	return result;
}

static bool
guard_needed(Oid function)
{
	return OidIsValid(untrusted_owner(function));
}

static void
guard_call(FmgrHookEventType event, FmgrInfo *flinfo, Datum *state)
{
	GuardedCall *call = (GuardedCall *) DatumGetPointer(*state);
	Oid			owner;

	if (call == NULL)
	{
		call = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(GuardedCall));
		*state = PointerGetDatum(call);
	}
	if (event != FHET_START)
	{
		/* After an error, the end of the (sub)transaction does that. */
		if (call->switched && event == FHET_END)
			SetUserIdAndSecContext(call->user, call->context);
		call->switched = false;
		return;
	}

	owner = untrusted_owner(flinfo->fn_oid);
	GetUserIdAndSecContext(&call->user, &call->context);
	call->switched = OidIsValid(owner) && call->user == own_role;
	if (call->switched)
		SetUserIdAndSecContext(owner, call->context | SECURITY_LOCAL_USERID_CHANGE |
							   SECURITY_RESTRICTED_OPERATION);
}

/* Called once, in the worker that joins a node. */
void
function_guard_install(void)
{
	own_role = GetUserId();

	/*
	 * The server keeps one state per call, and two users of the hook would
	 * need it.
	 */
	if (needs_fmgr_hook != NULL || fmgr_hook != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a node cannot join while another library hooks function calls")));
	needs_fmgr_hook = guard_needed;
	fmgr_hook = guard_call;
}
