/*
 * history.c
 *	  weft.conflict_history: what was decided, and against what.
 *
 * A row is written in the transaction that applies the decision, so there is one
 * if and only if the decision is in force.  It has the whole rows, as jsonb, unless
 * they are very large.
 *
 * To convert them may fail, in functions of users, too: json values may have what jsonb
 * must not.  That is no reason not to apply the change.  So rows are converted in a
 * subtransaction; if that fails, each value is taken as text, and if that fails,
 * nothing is.
 */
#include "postgres.h"
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "conflict/history.h"
#include "conflict/row_json.h"
#include "conflict/session.h"
#include "conflict/settings.h"
#include "conflict/store.h"
#include "executor/executor.h"
#include "guc.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#define HISTORY_COLUMNS 19

/* Is a kind of conflict to be recorded? */
static bool
is_recorded(ConflictKind kind)
{
	static char *value = NULL;
	static uint32 types;

	if (value == NULL || strcmp(value, weft_conflict_history_types) != 0)
	{
		if (value)
			pfree(value);
		value = MemoryContextStrdup(TopMemoryContext, weft_conflict_history_types);
		(void) conflict_kinds_parse(value, &types);
	}
	return (types & ((uint32) 1 << kind)) != 0;
}

/* The subscription that an origin stands for, "local", or NULL if it is gone. */
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

/* Returns a row, or its key if "target" is given; false if it is too large. */
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

/* May an error be put aside, rather than what somebody wants of us? */
static bool
may_ignore(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category != ERRCODE_OPERATOR_INTERVENTION &&
		category != ERRCODE_TRANSACTION_ROLLBACK && sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
}

/* Says, once in a while, that a row could not be converted. */
static void
report_failure(const ErrorData *error)
{
	static TimestampTz reported = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(reported, now, 60 * 1000))
		return;
	reported = now;
	ereport(LOG,
			(errmsg("a row of a conflict of subscription \"%s\" could not be converted to jsonb",
					MySubscription->name),
			 errdetail_internal("%s", error->message)));
}

/* The same as convert(), but returns false if it fails. */
static bool
try_convert(Target *target, TupleTableSlot *row, bool as_text, Datum *result)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	RepOriginId origin = replorigin_session_origin;
	ErrorData  *error = NULL;
	volatile bool done = false;

	slot_getallattrs(row);

	/* To abort it would advance the origin. */
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

/* Returns the key of a row as an object, which is empty if it cannot be converted. */
Datum
history_key(Target *target, TupleTableSlot *key)
{
	Datum		result;
	JsonbParseState *state = NULL;

	if (try_convert(target, key, false, &result))
		return result;
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/*
 * Records a conflict.  "applied" tells whether the remote change was; "key" has at
 * least the key's columns; "local" is NULL, or without a slot where only a version
 * is known, if there is no row; "remote_row" is NULL for a DELETE.
 */
void
history_record(Target *target, ConflictKind kind, ConflictResolver resolver, bool applied,
			   TupleTableSlot *key, const LocalRow *local, TupleTableSlot *remote_row)
{
	const RowVersion *remote = &conflict_session.version;
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
	values[i++] = TransactionIdGetDatum(conflict_session.remote_xid);
	values[i++] = LSNGetDatum(conflict_session.lsn);
	Assert(i == HISTORY_COLUMNS);
	store_row(tables->history, values, nulls);
}
