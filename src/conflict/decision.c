/*
 * decision.c
 *	  Deciding conflicts, in the transaction's turn.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/decision.h"
#include "conflict/history.h"
#include "conflict/session.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "misspeculate.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

/* A resolver says "error". */
pg_noreturn static void
report(Target *target, ConflictKind kind, TupleTableSlot *key)
{
	Jsonb	   *json = DatumGetJsonbP(history_key(target, key));

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("conflict %s on relation \"%s.%s\"", conflict_kind_name(kind),
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("Key %s, changed by remote transaction %u, which finished at %X/%X.",
					   JsonbToCString(NULL, &json->root, VARSIZE(json)),
					   conflict_session.remote_xid, LSN_FORMAT_ARGS(conflict_session.lsn)),
			 errhint("Change the local row, or have another resolver with \"weft.alter_node_set_conflict_resolver\", or leave the transaction out with ALTER SUBSCRIPTION ... SKIP.")));
}

/*
 * There is a conflict: waits until all earlier transactions are committed.  Returns
 * whether that took a while, so that what is not locked must be looked at again.
 * Fails if somebody needs our locks meanwhile.
 */
bool
decision_wait_turn(void)
{
	if (conflict_session.final)
		return false;
	if (!conflict_session.wait_oldest())
		misspeculate("conflict in a speculative transaction");
	compat_injection_point("weft-conflict-turn");
	conflict_session.final = true;
	return true;
}

/*
 * Decides a conflict with something local that has a version: is the remote change
 * to be applied?
 */
bool
decision_make(Target *target, ConflictKind kind, TupleTableSlot *key, const RowVersion *local,
	   ConflictResolver *resolver)
{
	Assert(conflict_session.final);
	conflict_session.met[kind]++;
	*resolver = settings_resolver(kind);
	switch (*resolver)
	{
		case RESOLVER_LAST_UPDATE_WINS:
			return version_wins(&conflict_session.version, local);
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

/* Says, once in a while, that replica identity full is missing. */
void
decision_warn_incomplete(Target *target)
{
	static TimestampTz reported = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(reported, now, 60 * 1000))
		return;
	reported = now;
	ereport(WARNING,
			(errmsg("a conflict on relation \"%s.%s\" was decided without all values of the remote row",
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("Values stored out of line are not sent if they have not changed. Members may differ in them now."),
			 errhint("Set REPLICA IDENTITY FULL for the table on all members.")));
}
