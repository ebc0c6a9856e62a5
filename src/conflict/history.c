/*
 * history.c
 *	  weft.conflict_history: what was decided, and against what.
 *
 * The transaction that applies a decision also writes its row of the history.  Therefore
 * there is such a row if and only if the decision is in force.  It contains the whole
 * rows as jsonb, unless they are very large.
 *
 * The conversion to jsonb may fail, for example in a user's function, or because a json
 * value holds what jsonb does not allow.  That is no reason not to apply the change.
 * Therefore rows are converted in a subtransaction.  If that fails, each value is taken as
 * text, and if that fails, too, the row is omitted.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "compat.h"
#include "conflict/history.h"
#include "conflict/log_limit.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_json.h"
#include "conflict/settings.h"
#include "executor/executor.h"
#include "guc.h"
#include "replication/worker_internal.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#define HISTORY_COLUMNS 19

/* Does weft.conflict_history_types ask for this kind of conflict? */
static bool
is_recorded(ConflictKind kind)
{
	/* The value that was parsed last, since every conflict comes here. */
	static char *value = NULL;
	static uint32 kinds;

	if (value == NULL || strcmp(value, weft_conflict_history_types) != 0)
	{
		if (value)
			pfree(value);
		value = MemoryContextStrdup(TopMemoryContext, weft_conflict_history_types);
		(void) conflict_kinds_parse(value, &kinds);
	}
	return (kinds & ((uint32) 1 << kind)) != 0;
}

/* Returns the subscription that a version came by, "local", or NULL if it has been dropped. */
static const char *
origin_name(const RowVersion *version)
{
	char	   *name;
	Oid			subid;

	if (version->origin == InvalidRepOriginId ||
		(version->origin == UNKNOWN_ORIGIN && version->node == settings_own_node()))
		return "local";
	if (version->origin == UNKNOWN_ORIGIN)
		return settings_subscription_of(version->node);
	if (!replorigin_by_oid(version->origin, true, &name) ||
		sscanf(name, "pg_%u", &subid) != 1)
		return NULL;
	return get_subscription_name(subid, true);
}

static Datum
text_or_null(const char *value, bool *isnull)
{
	*isnull = value == NULL;
	return value ? CStringGetTextDatum(value) : (Datum) 0;
}

static char *
qualified_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
									  RelationGetRelationName(rel));
}

/* Converts a row, or its key if "target" is given.  Returns false if the row is too large. */
static bool
convert(Target *target, TupleTableSlot *row, bool as_text, Datum *result)
{
	if (as_text)
		*result = row_json_text(row, target ? target->key_index : InvalidOid);
	else if (target)
		*result = row_json_key(target, row);
	else
		return row_json(row, result);
	return true;
}

/*
 * May an error in a conversion be ignored?  Not if it comes from outside of the
 * conversion: a request to stop, a deadlock, or a lock timeout.
 */
static bool
may_ignore(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category != ERRCODE_OPERATOR_INTERVENTION &&
		category != ERRCODE_TRANSACTION_ROLLBACK && sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
}

/* Logs, at most once a minute, that a row could not be converted. */
static void
report_failure(const ErrorData *error)
{
	static TimestampTz reported = 0;

	if (!log_limit_passed(&reported))
		return;
	ereport(LOG,
			(errmsg("could not convert a conflicting row of subscription \"%s\" to jsonb",
					MySubscription->name),
			 errdetail_internal("%s", error->message)));
}

/* The same as convert(), but falls back to text, and returns false if that fails, too. */
static bool
try_convert(Target *target, TupleTableSlot *row, bool as_text, Datum *result)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	RepOriginId origin = replorigin_session_origin;
	ErrorData  *error = NULL;
	volatile bool done = false;

	slot_getallattrs(row);

	/* If an origin were set, then an abort would advance it. */
	replorigin_session_origin = InvalidRepOriginId;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		done = convert(target, row, as_text, result);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	replorigin_session_origin = origin;
	if (error && !may_ignore(error->sqlerrcode))
		ReThrowError(error);
	if (error && !as_text)
	{
		report_failure(error);
		return try_convert(target, row, true, result);
	}
	return done;
}

/* Returns the key of a row as a jsonb object, which is empty if it cannot be converted. */
Datum
history_key(Target *target, TupleTableSlot *key)
{
	Datum		result;
	CompatJsonbState state = COMPAT_JSONB_BEGIN;

	if (try_convert(target, key, false, &result))
		return result;
	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(compat_push_jsonb(&state, WJB_END_OBJECT, NULL)));
}

/*
 * Records a conflict.  "applied" tells whether the remote change was applied; "key" has at
 * least the key's columns.  If there is no local row, then "local" is NULL, or has no slot
 * if only a version is known.  "remote_row" is NULL for a DELETE.
 */
void
history_record(Target *target, ConflictKind kind, ConflictResolver resolver, bool applied,
			   TupleTableSlot *key, const LocalRow *local, TupleTableSlot *remote_row)
{
	const RowVersion *remote = &remote_transaction.version;
	const RowVersion *version = local ? &local->version : NULL;
	const ConflictTables *tables = settings_tables();
	Datum		values[HISTORY_COLUMNS] = {0};
	bool		nulls[HISTORY_COLUMNS] = {0};
	int			i = 0;

	if (!is_recorded(kind))
		return;

	values[i++] = Int64GetDatum(nextval_internal(tables->history_sequence, false));
	values[i++] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[i++] = DirectFunctionCall1(namein, CStringGetDatum(MySubscription->name));
	values[i++] = CStringGetTextDatum(qualified_name(target->rel));
	values[i++] = CStringGetTextDatum(conflict_kind_name(kind));
	values[i++] = CStringGetTextDatum(conflict_resolver_name(resolver));
	values[i++] = CStringGetTextDatum(applied ? "apply_remote" : "keep_local");
	values[i] = text_or_null(local && OidIsValid(local->index) ?
							 get_rel_name(local->index) : NULL, &nulls[i]);
	i++;
	values[i++] = history_key(target, key);
	nulls[i] = local == NULL || local->slot == NULL ||
		!try_convert(NULL, local->slot, false, &values[i]);
	i++;
	nulls[i] = version == NULL || !version->known;
	values[i] = nulls[i] ? (Datum) 0 : TimestampTzGetDatum(version->time);
	i++;
	values[i] = text_or_null(nulls[i - 1] ? NULL : origin_name(version), &nulls[i]);
	i++;
	nulls[i] = nulls[i - 2];
	values[i] = nulls[i] ? (Datum) 0 : Int32GetDatum(version->node);
	i++;
	nulls[i] = remote_row == NULL || !try_convert(NULL, remote_row, false, &values[i]);
	i++;
	values[i++] = TimestampTzGetDatum(remote->time);
	values[i] = text_or_null(origin_name(remote), &nulls[i]);
	i++;
	values[i++] = Int32GetDatum(remote->node);
	values[i++] = TransactionIdGetDatum(remote_transaction.xid);
	values[i++] = LSNGetDatum(remote_transaction.lsn);
	Assert(i == HISTORY_COLUMNS);
	store_row(tables->history, values, nulls);
}
