/*
 * statistics.c
 *	  The functions under the views weft.stat_*.
 */
#include "postgres.h"

#include "conflict_kind.h"
#include "fmgr.h"
#include "funcapi.h"
#include "relation_stats.h"
#include "result_rows.h"
#include "shmem.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(weft_stat_get_subscription);
PG_FUNCTION_INFO_V1(weft_stat_get_writer);
PG_FUNCTION_INFO_V1(weft_stat_get_relation);
PG_FUNCTION_INFO_V1(weft_stat_get_stream);
PG_FUNCTION_INFO_V1(weft_stat_get_conflict);
PG_FUNCTION_INFO_V1(weft_stat_get_confirmation);
PG_FUNCTION_INFO_V1(weft_stat_get_cut);
PG_FUNCTION_INFO_V1(weft_stat_get_schema_wait);
PG_FUNCTION_INFO_V1(weft_library_version);

#define SUBSCRIPTION_COLUMNS 26
#define WRITER_COLUMNS 9
#define RELATION_COLUMNS 9
#define STREAM_COLUMNS 7
#define CONFLICT_COLUMNS 3
#define CONFIRMATION_COLUMNS 5
#define CUT_COLUMNS 5
#define SCHEMA_WAIT_COLUMNS 3

static const char *const activity_names[] = {
	[WRITER_STARTING] = "starting",
	[WRITER_IDLE] = "idle",
	[WRITER_APPLYING] = "applying",
	[WRITER_WAITING_FOR_DATA] = "waiting for data",
	[WRITER_WAITING_FOR_DEPENDENCY] = "waiting for dependency",
	[WRITER_WAITING_FOR_COMMIT_ORDER] = "waiting for commit order",
	[WRITER_RETRYING] = "waiting to retry",
	[WRITER_EXITED] = "exited",
};

static const char *const standby_problem_names[] = {
	[STANDBY_SLOT_BEHIND] = "behind",
	[STANDBY_SLOT_INACTIVE] = "inactive",
	[STANDBY_SLOT_INVALIDATED] = "invalidated",
	[STANDBY_SLOT_LOGICAL] = "logical",
	[STANDBY_SLOT_MISSING] = "missing",
};

static const char *const stream_state_names[] = {
	[STREAM_SPOOLED] = "spooled",
	[STREAM_APPLYING] = "applying",
	[STREAM_DISCARDED] = "rolling back",
	[STREAM_FINISHING] = "committing",
	[STREAM_COMMITTED] = "committed",
	[STREAM_FAILED] = "spooled",
};

/* The fields of an entry that its mutex protects. */
typedef struct EntryFields
{
	Oid			subid;
	int			leader_pid;
	int			num_writers;
	int			wanted_writers;
	bool		detect_conflicts;
	char		native_reason[NATIVE_REASON_LEN];
	Pace		pace;
} EntryFields;

static bool
read_entry(SubscriptionShared *entry, EntryFields *fields)
{
	SpinLockAcquire(&entry->mutex);
	fields->subid = entry->subid;
	fields->leader_pid = entry->leader_pid;
	fields->num_writers = entry->num_writers;
	fields->wanted_writers = entry->wanted_writers;
	fields->detect_conflicts = entry->detect_conflicts;
	memcpy(fields->native_reason, entry->native_reason, NATIVE_REASON_LEN);
	fields->pace = entry->pace;
	SpinLockRelease(&entry->mutex);
	return OidIsValid(fields->subid);
}

/*
 * The body of a set-returning function: calls "put" for each subscription that is being
 * applied on this server.
 */
static Datum
put_entries(FunctionCallInfo fcinfo, int num_columns,
			void (*put) (ReturnSetInfo *, SubscriptionShared *, const EntryFields *))
{
	shmem_require();
	result_rows_begin(fcinfo, num_columns);
	for (int i = 0; i < shmem_count(); i++)
	{
		SubscriptionShared *entry = shmem_get(i);
		EntryFields fields;

		if (read_entry(entry, &fields))
			put((ReturnSetInfo *) fcinfo->resultinfo, entry, &fields);
	}
	return (Datum) 0;
}

static Datum
lsn_or_null(uint64 lsn, bool *isnull)
{
	*isnull = lsn == InvalidXLogRecPtr;
	return LSNGetDatum(lsn);
}

static Datum
count(pg_atomic_uint64 *counter)
{
	return Int64GetDatum((int64) pg_atomic_read_u64(counter));
}

/* The sum of a counter over all writers. */
#define SUM_OF_WRITERS(entry, counter) \
	sum_of_writers(entry, offsetof(WriterShared, counter))

static int64
sum_of_writers(SubscriptionShared *entry, Size offset)
{
	int64		result = 0;

	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		result += pg_atomic_read_u64((pg_atomic_uint64 *)
									 ((char *) &entry->writers[i] + offset));
	return result;
}

static int
count_busy(SubscriptionShared *entry, int num_writers)
{
	int			result = 0;

	for (int i = 0; i < num_writers; i++)
	{
		uint32		activity = pg_atomic_read_u32(&entry->writers[i].activity);

		if (activity != WRITER_STARTING && activity != WRITER_IDLE &&
			activity != WRITER_EXITED)
			result++;
	}
	return result;
}

static const char *
output_plugin(SubscriptionShared *entry)
{
	if (pg_atomic_read_u32(&entry->batches) == 0)
		return "pgoutput";
	if (pg_atomic_read_u32(&entry->compression) == COMPRESSION_LZ4)
		return "weft (lz4)";
	return "weft";
}

static Datum
interval_of_seconds(double seconds)
{
	Interval   *result = palloc0(sizeof(Interval));

	/* A century is long enough to say "not soon". */
	result->time = Min(seconds, 100.0 * SECS_PER_YEAR) * USECS_PER_SEC;
	return IntervalPGetDatum(result);
}

static Datum
bytes_between(XLogRecPtr from, XLogRecPtr to, bool *isnull)
{
	*isnull = from == InvalidXLogRecPtr || to == InvalidXLogRecPtr;
	return Int64GetDatum(to > from ? to - from : 0);
}

/*
 * Stores the columns from received_lsn to catch_up_time; returns the number of the next one.
 * The leader's last sample may be old, so its averages are continued until now.
 */
static int
put_progress(SubscriptionShared *entry, const EntryFields *fields, int i,
			 Datum *values, bool *nulls)
{
	XLogRecPtr	received = pg_atomic_read_u64(&entry->received_lsn);
	TimestampTz applied_time = pg_atomic_read_u64(&entry->applied_time);
	PaceSample	now = {
		.transactions = shmem_transactions(entry),
		.applied = pg_atomic_read_u64(&entry->applied_lsn),
		.time = GetCurrentTimestamp(),
	};
	Pace		pace = fields->pace;
	XLogRecPtr	end;
	bool		late = now.applied < received && applied_time != 0;
	double		left;

	pace_sample(&pace, &now);
	end = pace.publisher_end = Max(Max(pace.publisher_end, received), now.applied);
	left = pace_seconds_left(&pace, now.applied);

	values[i] = lsn_or_null(received, &nulls[i]);
	i++;
	values[i] = lsn_or_null(now.applied, &nulls[i]);
	i++;
	values[i] = bytes_between(now.applied, received, &nulls[i]);
	i++;
	values[i] = lsn_or_null(end, &nulls[i]);
	i++;
	nulls[i] = pace.publisher_time == 0;
	values[i++] = TimestampTzGetDatum(pace.publisher_time);
	values[i] = bytes_between(now.applied, end, &nulls[i]);
	i++;
	values[i++] = interval_of_seconds(late ? Max(now.time - applied_time, 0) / 1e6 : 0);
	nulls[i] = pace_rate(&pace.transactions) < 0;
	values[i++] = Float8GetDatum(pace_rate(&pace.transactions));
	nulls[i] = pace_rate(&pace.bytes) < 0;
	values[i++] = Int64GetDatum((int64) pace_rate(&pace.bytes));
	nulls[i] = left < 0;
	values[i++] = interval_of_seconds(left);
	return i;
}

static void
put_subscription(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	Datum		values[SUBSCRIPTION_COLUMNS];
	bool		nulls[SUBSCRIPTION_COLUMNS] = {0};
	int			i = 0;

	values[i++] = ObjectIdGetDatum(fields->subid);
	values[i++] = Int32GetDatum(fields->leader_pid);
	values[i++] = Int32GetDatum(fields->num_writers);
	values[i++] = Int32GetDatum(fields->wanted_writers);
	values[i++] = Int32GetDatum(count_busy(entry, fields->num_writers));
	i = put_progress(entry, fields, i, values, nulls);
	values[i++] = Int64GetDatum(shmem_transactions(entry));
	values[i++] = count(&entry->native_transactions);
	values[i++] = Int64GetDatum(shmem_changes(entry));
	values[i++] = Int64GetDatum(SUM_OF_WRITERS(entry, dependency_waits));
	values[i++] = Int64GetDatum(SUM_OF_WRITERS(entry, order_waits));
	values[i++] = Int64GetDatum(SUM_OF_WRITERS(entry, misspeculations));
	values[i++] = count(&entry->barriers);
	values[i++] = count(&entry->ring_size);
	values[i++] = count(&entry->ring_used);
	values[i++] = CStringGetTextDatum(output_plugin(entry));
	nulls[i] = fields->native_reason[0] == '\0';
	values[i++] = CStringGetTextDatum(fields->native_reason);
	Assert(i == SUBSCRIPTION_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Returns a row for each subscription that is being applied on this server. */
Datum
weft_stat_get_subscription(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, SUBSCRIPTION_COLUMNS, put_subscription);
}

static void
put_schema_wait(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	char		what[SCHEMA_WAIT_LEN];
	TimestampTz since;
	Datum		values[SCHEMA_WAIT_COLUMNS];
	bool		nulls[SCHEMA_WAIT_COLUMNS] = {0};

	if (pg_atomic_read_u32(&entry->schema_waits) == 0)
		return;
	SpinLockAcquire(&entry->mutex);
	memcpy(what, entry->schema_wait, sizeof(what));
	since = entry->schema_wait_since;
	SpinLockRelease(&entry->mutex);
	values[0] = ObjectIdGetDatum(fields->subid);
	values[1] = CStringGetTextDatum(what);
	values[2] = TimestampTzGetDatum(since);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Returns a row for each subscription whose changes wait for a schema change. */
Datum
weft_stat_get_schema_wait(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, SCHEMA_WAIT_COLUMNS, put_schema_wait);
}

static void
put_writer(ReturnSetInfo *rsinfo, Oid subid, int number, SubscriptionShared *entry)
{
	WriterShared *writer = &entry->writers[number];
	uint64		seq = shmem_writer_seq(entry, number);
	Datum		values[WRITER_COLUMNS];
	bool		nulls[WRITER_COLUMNS] = {0};
	uint32		pid = pg_atomic_read_u32(&writer->pid);
	int			i = 0;

	values[i++] = ObjectIdGetDatum(subid);
	values[i++] = Int32GetDatum(number);
	nulls[i] = pid == 0;
	values[i++] = Int32GetDatum(pid);
	values[i++] = CStringGetTextDatum(activity_names[pg_atomic_read_u32(&writer->activity)]);
	nulls[i] = seq == PG_UINT64_MAX;
	values[i++] = Int64GetDatum(seq);
	values[i] = lsn_or_null(pg_atomic_read_u64(&writer->remote_lsn), &nulls[i]);
	i++;
	values[i++] = count(&writer->transactions);
	values[i++] = count(&writer->changes);
	values[i++] = count(&writer->misspeculations);
	Assert(i == WRITER_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Is this a stream writer that is running? */
static bool
is_stream_writer(WriterShared *writer, int number)
{
	return number >= WEFT_MAX_WRITERS && pg_atomic_read_u32(&writer->pid) != 0 &&
		pg_atomic_read_u32(&writer->activity) != WRITER_EXITED;
}

static void
put_writers(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		if (i < fields->num_writers || is_stream_writer(&entry->writers[i], i))
			put_writer(rsinfo, fields->subid, i, entry);
}

/* Returns a row for each writer on this server. */
Datum
weft_stat_get_writer(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, WRITER_COLUMNS, put_writers);
}

static void
put_relation(ReturnSetInfo *rsinfo, Oid subid, const RelationStats *relation)
{
	Datum		values[RELATION_COLUMNS];
	bool		nulls[RELATION_COLUMNS] = {0};
	int			i = 0;

	values[i++] = ObjectIdGetDatum(subid);
	values[i++] = ObjectIdGetDatum(relation->relid);
	values[i++] = CStringGetTextDatum(relation->general ? "general" : "fast");
	nulls[i] = relation->reason[0] == '\0';
	values[i++] = CStringGetTextDatum(relation->reason);
	values[i++] = Int64GetDatum((int64) relation->counts.inserts);
	values[i++] = Int64GetDatum((int64) relation->counts.updates);
	values[i++] = Int64GetDatum((int64) relation->counts.deletes);
	values[i++] = Int64GetDatum((int64) relation->counts.general_rows);
	values[i++] = Int64GetDatum((int64) relation->counts.coalesced_rows);
	Assert(i == RELATION_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Returns a row for each relation in this database to which a subscription's writers have
 * applied a change.
 */
Datum
weft_stat_get_relation(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	shmem_require();
	result_rows_begin(fcinfo, RELATION_COLUMNS);
	for (int i = 0; i < shmem_count(); i++)
	{
		Oid			subid;
		List	   *relations = relation_stats_read(shmem_get(i), &subid);

		foreach_ptr(RelationStats, relation, relations)
			put_relation(rsinfo, subid, relation);
	}
	return (Datum) 0;
}

static void
put_stream(ReturnSetInfo *rsinfo, Oid subid, StreamShared *stream, StreamState state)
{
	Datum		values[STREAM_COLUMNS];
	bool		nulls[STREAM_COLUMNS] = {0};
	int			i = 0;

	values[i++] = ObjectIdGetDatum(subid);
	values[i++] = TransactionIdGetDatum(pg_atomic_read_u32(&stream->xid));
	values[i++] = CStringGetTextDatum(stream_state_names[state]);
	nulls[i] = state == STREAM_SPOOLED || state == STREAM_FAILED;
	values[i++] = Int32GetDatum(pg_atomic_read_u32(&stream->writer));
	values[i++] = count(&stream->written);
	values[i++] = count(&stream->received_changes);
	values[i++] = count(&stream->applied_changes);
	Assert(i == STREAM_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_streams(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	for (int i = 0; i < NUM_STREAMS; i++)
	{
		StreamState state = pg_atomic_read_u32(&entry->streams[i].state);

		if (state != STREAM_FREE)
			put_stream(rsinfo, fields->subid, &entry->streams[i], state);
	}
}

/* Returns a row for each transaction that is being streamed to this server. */
Datum
weft_stat_get_stream(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, STREAM_COLUMNS, put_streams);
}

static void
put_conflicts(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	if (!fields->detect_conflicts)
		return;
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
	{
		Datum		values[CONFLICT_COLUMNS];
		bool		nulls[CONFLICT_COLUMNS] = {0};

		values[0] = ObjectIdGetDatum(fields->subid);
		values[1] = CStringGetTextDatum(conflict_kind_name(i));
		values[2] = count(&entry->conflicts[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
}

/*
 * Returns a row for each subscription on this server that detects conflicts, and each
 * conflict type.
 */
Datum
weft_stat_get_conflict(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, CONFLICT_COLUMNS, put_conflicts);
}

static void
put_confirmation(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	Datum		values[CONFIRMATION_COLUMNS];
	bool		nulls[CONFIRMATION_COLUMNS] = {0};
	ConfirmationStatus status;
	int			i = 0;

	SpinLockAcquire(&entry->mutex);
	status = entry->confirmation;
	SpinLockRelease(&entry->mutex);
	values[i++] = ObjectIdGetDatum(fields->subid);
	values[i] = lsn_or_null(status.confirmed, &nulls[i]);
	i++;
	nulls[i] = status.withheld_since == 0;
	values[i++] = TimestampTzGetDatum(status.withheld_since);
	nulls[i] = nulls[i + 1] = status.lack.slot[0] == '\0';
	values[i++] = CStringGetTextDatum(status.lack.slot);
	values[i++] = CStringGetTextDatum(standby_problem_names[status.lack.problem]);
	Assert(i == CONFIRMATION_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Returns a row for each subscription that is being applied on this server. */
Datum
weft_stat_get_confirmation(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, CONFIRMATION_COLUMNS, put_confirmation);
}

static void
put_cuts(ReturnSetInfo *rsinfo, SubscriptionShared *entry, const EntryFields *fields)
{
	Datum		values[CUT_COLUMNS];
	bool		nulls[CUT_COLUMNS] = {0};
	Interval	last = {0};
	Interval	longest = {0};
	int			i = 0;

	last.time = pg_atomic_read_u64(&entry->cut.last_pause);
	longest.time = pg_atomic_read_u64(&entry->cut.longest_pause);
	values[i++] = ObjectIdGetDatum(fields->subid);
	values[i++] = count(&entry->cut.cuts);
	values[i++] = count(&entry->cut.attempts);
	values[i++] = IntervalPGetDatum(&last);
	values[i++] = IntervalPGetDatum(&longest);
	Assert(i == CUT_COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Returns a row for each subscription that is being applied on this server. */
Datum
weft_stat_get_cut(PG_FUNCTION_ARGS)
{
	return put_entries(fcinfo, CUT_COLUMNS, put_cuts);
}

/* The version of the library that the server has loaded, which the extension's may differ from. */
Datum
weft_library_version(PG_FUNCTION_ARGS)
{
	shmem_require();
	PG_RETURN_TEXT_P(cstring_to_text(WEFT_VERSION));
}
