/*
 * ddl_queue.c
 *	  Weft's own tables about schema changes.
 *
 * weft.ddl_queue: a publisher's schema changes.  They travel as inserts into this table, so
 * they have their place among the rows, are rolled back to savepoints, and are filtered by
 * origin and publication as rows are.
 *
 * Who can insert there speaks for every role, because a row names the role that the subscriber
 * executes the statement as.  Therefore only this module inserts, below the level of SQL: no
 * role has a privilege on the table, and a trigger refuses whatever the superuser, or a member
 * of pg_write_all_data, tries.  The subscriber recognizes the table by its OID
 * (receive/ddl_rows.c).  A message of pg_logical_emit_message(), which anybody may call, means
 * nothing.
 *
 * weft.ddl_applied: what has become of publishers' schema changes here.  Logical decoding ignores
 * it.
 *
 * Both are kept for weft.ddl_history_retention.  Whoever inserts a row removes some of the old ones,
 * without waiting for anybody (store.c), in the same transaction.  Logical decoding reads the WAL,
 * not the table, so a row may go before it is sent.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "compat.h"
#include "ddl/ddl_queue.h"
#include "ddl/first_change.h"
#include "guc.h"
#include "miscadmin.h"
#include "publication_settings.h"
#include "replication/origin.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Up to this many old rows are removed at a time. */
#define REMOVED_ROWS 100

/* The columns of weft.ddl_applied. */
enum
{
	APPLIED_AT,
	APPLIED_SUBNAME,
	APPLIED_SUBID,
	APPLIED_ID,
	APPLIED_LSN,
	APPLIED_ROLE,
	APPLIED_TAG,
	APPLIED_STATEMENT,
	APPLIED_RESULT,
	APPLIED_DETAIL,
	APPLIED_MESSAGE,			/* in a node group */
	APPLIED_COLUMNS
};

/*
 * The subtransaction in which this transaction has inserted into weft.ddl_queue first, or
 * invalid.
 */
static SubTransactionId inserted = InvalidSubTransactionId;

/* The origin of the schema changes that this process publishes, if its transactions have none. */
static RepOriginId origin = InvalidRepOriginId;

static void
transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			if (inserted != InvalidSubTransactionId)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has replicated schema changes"),
						 errhint("Commit the transaction, or set \"weft.ddl_replication\" to \"off\" before the schema changes.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			inserted = InvalidSubTransactionId;
			break;
		default:
			break;
	}
}

/* What was rolled back to a savepoint was not inserted. */
static void
subtransaction_event(SubXactEvent event, SubTransactionId transaction,
					 SubTransactionId parent, void *arg)
{
	if (inserted != transaction)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		inserted = parent;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		inserted = InvalidSubTransactionId;
}

/* Called once, while the postmaster loads the library. */
void
ddl_queue_install(void)
{
	RegisterXactCallback(transaction_event, NULL);
	RegisterSubXactCallback(subtransaction_event, NULL);
}

/* Returns a relation of Weft's, or InvalidOid if the extension is not installed here. */
static Oid
find_relation(const char *name)
{
	if (!OidIsValid(publication_settings_queue()))
		return InvalidOid;
	return get_relname_relid(name, get_namespace_oid("weft", true));
}

static void
remove_old(Oid relid, const char *time_index)
{
	Oid			index = find_relation(time_index);
	TimestampTz before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 -1000 * (int64) weft_ddl_history_retention);

	if (OidIsValid(index))
		(void) store_remove_old(relid, index, before, REMOVED_ROWS, NULL, NULL);
}

static void
insert_row(Oid relid, const Datum *values)
{
	const bool	nulls[3] = {0};

	/*
	 * A long value is stored out of line, for which the server wants a
	 * snapshot.
	 */
	PushActiveSnapshot(GetTransactionSnapshot());
	store_row_decoded(relid, values, nulls);
	if (inserted == InvalidSubTransactionId)
	{
		inserted = GetCurrentSubTransactionId();
		remove_old(relid, "ddl_queue_time_index");
	}
	PopActiveSnapshot();
	CommandCounterIncrement();
}

/*
 * From now on, this process publishes schema changes that come from elsewhere, in transactions that do
 * not: they do not advance the replication origin.
 */
void
ddl_queue_set_origin(RepOriginId own_origin)
{
	origin = own_origin;
}

/* Do the schema changes that this process publishes come from a publisher? */
bool
ddl_queue_has_origin(void)
{
	return origin != InvalidRepOriginId || replorigin_session_origin != InvalidRepOriginId;
}

/* An abort must not find an origin that was set for a row only: it would advance it. */
static void
insert_with_origin(Oid relid, const Datum *values)
{
	RepOriginId session_origin = replorigin_session_origin;

	if (origin != InvalidRepOriginId)
		replorigin_session_origin = origin;
	PG_TRY();
	{
		insert_row(relid, values);
	}
	PG_FINALLY();
	{
		replorigin_session_origin = session_origin;
	}
	PG_END_TRY();
}

/* Returns the last number of a sequence, or 0 if there is none yet. */
static int64
last_number(Oid sequence)
{
	LOCAL_FCINFO(call, 1);
	Datum		result;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(sequence);
	call->args[0].isnull = false;
	result = pg_sequence_last_value(call);
	return call->isnull ? 0 : DatumGetInt64(result);
}

/*
 * Returns the next number of a schema change.  nextval() would change what lastval() returns to the
 * user, setval() does not.  The lock makes the two steps one.  It is held for these steps only, and
 * both of them take no lock with which it conflicts.
 */
static int64
next_number(void)
{
	Oid			sequence = find_relation("ddl_queue_id_seq");
	Oid			user;
	int			security;
	int64		result;

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_LOCAL_USERID_CHANGE);
	LockRelationOid(sequence, ShareUpdateExclusiveLock);
	result = last_number(sequence) + 1;
	(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence), Int64GetDatum(result));
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
	SetUserIdAndSecContext(user, security);
	return result;
}

/* Publishes a schema change; gives it its number. */
void
ddl_queue_insert(DdlMessage *message)
{
	Datum		values[3];

	message->id = next_number();
	values[0] = Int64GetDatum(message->id);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[2] = CStringGetTextDatum(ddl_message_write(message));
	insert_with_origin(publication_settings_queue(), values);
	first_change_published(message->publications);
}

/* Records what has become of a schema change; "detail" may be NULL. */
static void
record(Oid relid, const char *subscription, const DdlMessage *message, XLogRecPtr lsn,
	   const char *result, const char *detail)
{
	NameData	name;
	Datum		values[APPLIED_COLUMNS];
	bool		nulls[APPLIED_COLUMNS] = {0};

	namestrcpy(&name, subscription);
	values[APPLIED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[APPLIED_SUBNAME] = NameGetDatum(&name);
	values[APPLIED_SUBID] = ObjectIdGetDatum(get_subscription_oid(subscription, true));
	values[APPLIED_ID] = Int64GetDatum(message->id);
	values[APPLIED_LSN] = LSNGetDatum(lsn);
	values[APPLIED_ROLE] = CStringGetTextDatum(message->role);
	values[APPLIED_TAG] = CStringGetTextDatum(message->tag);
	values[APPLIED_STATEMENT] = CStringGetTextDatum(message->statement);
	values[APPLIED_RESULT] = CStringGetTextDatum(result);
	nulls[APPLIED_DETAIL] = detail == NULL;
	if (detail)
		values[APPLIED_DETAIL] = CStringGetTextDatum(detail);
	nulls[APPLIED_MESSAGE] = message->changes == NIL;
	if (message->changes != NIL)
		values[APPLIED_MESSAGE] = CStringGetTextDatum(ddl_message_write(message));
	PushActiveSnapshot(GetTransactionSnapshot());
	store_row(relid, values, nulls);
	remove_old(relid, "ddl_applied_time_index");
	PopActiveSnapshot();
	CommandCounterIncrement();
}

/* Records what has become of a schema change here; "detail" may be NULL. */
void
ddl_queue_record_with(const char *subscription, const DdlMessage *message, XLogRecPtr lsn,
					  const char *result, const char *detail)
{
	Oid			relid = find_relation("ddl_applied");

	/* A subscriber need not have the extension. */
	if (OidIsValid(relid))
		record(relid, subscription, message, lsn, result, detail);
}

/* Records one that a user has applied by hand. */
void
ddl_queue_record_skipped(const char *subscription, const DdlMessage *message, XLogRecPtr lsn,
						 const char *user)
{
	record(find_relation("ddl_applied"), subscription, message, lsn, "skipped",
		   psprintf("applied by hand, by role \"%s\"", user));
}

static char *
column_text(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column + 1, desc, &isnull);

	return isnull ? "" : TextDatumGetCString(value);
}

/*
 * Returns the newest row about a schema change, with its result and detail, in the current
 * memory context; false if there is none.
 */
static bool
find_latest(Relation rel, const char *subscription, int64 id, char **result, char **detail)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	TimestampTz latest = DT_NOBEGIN;
	NameData	name;

	namestrcpy(&name, subscription);
	ScanKeyInit(&keys[0], APPLIED_SUBNAME + 1, BTEqualStrategyNumber, F_NAMEEQ,
				NameGetDatum(&name));
	ScanKeyInit(&keys[1], APPLIED_ID + 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, lengthof(keys), keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TupleDesc	desc = RelationGetDescr(rel);
		bool		isnull;
		TimestampTz time = DatumGetTimestampTz(heap_getattr(tuple, APPLIED_AT + 1, desc, &isnull));

		if (time < latest)
			continue;
		latest = time;
		*result = column_text(tuple, desc, APPLIED_RESULT);
		*detail = column_text(tuple, desc, APPLIED_DETAIL);
	}
	systable_endscan(scan);
	return latest != DT_NOBEGIN;
}

/*
 * Records that a schema change could not be applied, unless that has been recorded as the latest
 * about it: the subscription tries again and again.  Waits for nobody who has locked the table.
 */
void
ddl_queue_record_failure(const char *subscription, const DdlMessage *message, XLogRecPtr lsn,
						 const char *problem)
{
	Oid			relid = find_relation("ddl_applied");
	Relation	rel;
	char	   *result;
	char	   *detail;

	if (!OidIsValid(relid) || !ConditionalLockRelationOid(relid, RowExclusiveLock))
		return;
	rel = table_open(relid, NoLock);
	if (!find_latest(rel, subscription, message->id, &result, &detail) ||
		strcmp(result, "failed") != 0 || strcmp(detail, problem) != 0)
		record(relid, subscription, message, lsn, "failed", problem);
	table_close(rel, NoLock);
}

/* Is the latest that was recorded about a schema change that it has failed? */
bool
ddl_queue_has_failed(const char *subscription, int64 id)
{
	Oid			relid = find_relation("ddl_applied");
	Relation	rel;
	char	   *result;
	char	   *detail;
	bool		failed;

	if (!OidIsValid(relid))
		return false;
	rel = table_open(relid, AccessShareLock);
	failed = find_latest(rel, subscription, id, &result, &detail) &&
		strcmp(result, "failed") == 0;
	table_close(rel, AccessShareLock);
	return failed;
}

/* Returns the statements of one kind that were skipped, of these subscriptions. */
List *
ddl_queue_skipped(const List *subids, const char *tag)
{
	Oid			relid = find_relation("ddl_applied");
	List	   *result = NIL;
	Relation	rel;
	TupleDesc	desc;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return NIL;
	rel = table_open(relid, AccessShareLock);
	desc = RelationGetDescr(rel);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		subid = heap_getattr(tuple, APPLIED_SUBID + 1, desc, &isnull);

		if (list_member_oid(subids, DatumGetObjectId(subid)) &&
			strcmp(column_text(tuple, desc, APPLIED_RESULT), "skipped") == 0 &&
			strcmp(column_text(tuple, desc, APPLIED_TAG), tag) == 0)
			result = lappend(result, column_text(tuple, desc, APPLIED_STATEMENT));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}
