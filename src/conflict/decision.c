/*
 * decision.c
 *	  Decides conflicts, once all earlier transactions are committed.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/decision.h"
#include "conflict/history.h"
#include "conflict/log_limit.h"
#include "conflict/remote_transaction.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "misspeculate.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Raises the error that the resolver "error" asks for. */
pg_noreturn static void
report(Target *target, ConflictKind kind, TupleTableSlot *key)
{
	Jsonb	   *json = DatumGetJsonbP(history_key(target, key));

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("conflict %s on relation \"%s.%s\"", conflict_kind_name(kind),
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("Key %s, changed by remote transaction %u, which finished at " compat_lsn_format ".",
					   JsonbToCString(NULL, &json->root, VARSIZE(json)),
					   remote_transaction.xid, LSN_FORMAT_ARGS(remote_transaction.lsn)),
			 errhint("Change the local row, or set another resolver with \"weft.alter_node_set_conflict_resolver\", or skip the transaction with ALTER SUBSCRIPTION ... SKIP.")));
}

/*
 * Called when there is a conflict: waits until all earlier transactions are committed.
 * Returns false if that was known already; if it returns true, then the caller must
 * recheck whatever it has not locked.  Misspeculates if another process needs the
 * writer's locks meanwhile.
 */
bool
decision_wait_turn(void)
{
	if (remote_transaction.final)
		return false;
	if (!remote_transaction.wait_oldest())
		misspeculate("conflict in a speculative transaction");
	compat_injection_point("weft-conflict-turn");
	remote_transaction.final = true;
	return true;
}

/*
 * Decides a conflict with a local row or tombstone of the given version.  Returns whether
 * the remote change is to be applied, and in *resolver what has decided that.
 */
bool
decision_make(Target *target, ConflictKind kind, TupleTableSlot *key, const RowVersion *local,
			  ConflictResolver *resolver)
{
	Assert(remote_transaction.final);
	remote_transaction.met[kind]++;
	*resolver = settings_resolver(kind);
	switch (*resolver)
	{
		case RESOLVER_LAST_UPDATE_WINS:
			return version_wins(&remote_transaction.version, local);
		case RESOLVER_APPLY_REMOTE:
			return true;
		case RESOLVER_KEEP_LOCAL:
		case RESOLVER_SKIP:
			return false;
		case RESOLVER_ERROR:
			report(target, kind, key);
	}
	return false;				/* keep compiler quiet */
}

/* Warns, at most once a minute, that a table lacks REPLICA IDENTITY FULL. */
void
decision_warn_incomplete(Target *target)
{
	static TimestampTz reported = 0;

	if (!log_limit_passed(&reported))
		return;
	ereport(WARNING,
			(errmsg("a conflict on relation \"%s.%s\" was decided without all values of the remote row",
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("A publisher does not send a value stored out of line if it has not changed. Members may now hold different values."),
			 errhint("Set REPLICA IDENTITY FULL for the table on all members.")));
}
