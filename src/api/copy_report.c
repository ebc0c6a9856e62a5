/*
 * copy_report.c
 *	  Progress of initial copies: the function under the view weft.copy_progress, and the
 *	  same as text.
 */
#include "postgres.h"

#include "api/copy_report.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_subscription.h"
#include "copy/progress.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "result_rows.h"
#include "shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(weft_copy_get_progress);

#define COLUMNS 16

static const char *const phase_names[] = {
	[COPY_DELETING] = "deleting",
	[COPY_COPYING] = "copying",
	[COPY_INDEXING] = "indexing",
	[COPY_DONE] = "catching up",
	[COPY_FAILED] = "waiting",
};

/* An error's message may contain values from a table. */
static bool
may_see_errors(Oid subid)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		(SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid)) &&
		 object_ownercheck(SubscriptionRelationId, subid, GetUserId()));
}

/* Returns for how many seconds rows have been copied so far, or were copied. */
static double
seconds(CopyProgress *entry)
{
	TimestampTz end = pg_atomic_read_u64(&entry->copied_at);

	if (end == 0)
		end = GetCurrentTimestamp();
	return Max(end - entry->started_at, 1) / 1e6;
}

/* Estimates the final value of "done"; returns "otherwise" if it is too early for that. */
static uint64
estimate(CopyProgress *entry, uint64 done, uint64 otherwise)
{
	double		fraction = copy_progress_fraction(entry);

	return fraction > 0 ? (uint64) (done / fraction) : otherwise;
}

static void
put(ReturnSetInfo *rsinfo, CopyProgress *entry)
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	uint32		phase = pg_atomic_read_u32(&entry->phase);
	uint64		rows = pg_atomic_read_u64(&entry->rows);
	uint64		bytes = pg_atomic_read_u64(&entry->bytes);
	uint64		table_bytes = pg_atomic_read_u64(&entry->table_bytes);
	double		fraction = copy_progress_fraction(entry);
	Interval	left = {0};
	int			i = 0;

	values[i++] = ObjectIdGetDatum(entry->subid);
	values[i++] = ObjectIdGetDatum(entry->relid);
	nulls[i] = entry->pid == 0;
	values[i++] = Int32GetDatum(entry->pid);
	values[i++] = CStringGetTextDatum(phase_names[phase]);
	values[i++] = Int32GetDatum((int32) pg_atomic_read_u32(&entry->helpers));
	values[i++] = Int32GetDatum((int32) pg_atomic_read_u32(&entry->helpers_used));
	values[i++] = Int64GetDatum((int64) rows);
	nulls[i] = fraction == 0;
	values[i++] = Int64GetDatum((int64) estimate(entry, rows, 0));
	values[i++] = Int64GetDatum((int64) bytes);
	values[i++] = Int64GetDatum((int64) estimate(entry, bytes, table_bytes));
	values[i++] = Int64GetDatum((int64) (bytes / seconds(entry)));
	nulls[i] = phase != COPY_COPYING || fraction == 0;
	if (!nulls[i])
		left.time = (TimeOffset) (seconds(entry) * (1 - fraction) / fraction * 1e6);
	values[i++] = IntervalPGetDatum(&left);
	values[i++] = Int32GetDatum((int32) pg_atomic_read_u32(&entry->indexes));
	values[i++] = Int32GetDatum((int32) pg_atomic_read_u32(&entry->indexes_done));
	values[i++] = TimestampTzGetDatum(entry->started_at);
	nulls[i] = entry->last_error[0] == '\0' || !may_see_errors(entry->subid);
	values[i++] = CStringGetTextDatum(entry->last_error);
	Assert(i == COLUMNS);

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Returns a row for each table of this database that Weft copies, or has copied and still
 * remembers.
 */
Datum
weft_copy_get_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	CopyProgress *entries;
	int			count;

	shmem_require();
	result_rows_begin(fcinfo, COLUMNS);
	count = copy_progress_read(&entries);
	for (int i = 0; i < count; i++)
		put(rsinfo, &entries[i]);
	return (Datum) 0;
}

static void
describe(StringInfo text, CopyProgress *entry)
{
	uint32		phase = pg_atomic_read_u32(&entry->phase);
	char	   *schema = get_namespace_name(get_rel_namespace(entry->relid));
	char	   *name = get_rel_name(entry->relid);
	uint64		bytes = pg_atomic_read_u64(&entry->bytes);

	if (schema == NULL || name == NULL || phase == COPY_DONE)
		return;
	appendStringInfo(text, "\nTable \"%s.%s\": %s", schema, name, phase_names[phase]);
	if (phase == COPY_COPYING)
		appendStringInfo(text, ", %.0f %%, " UINT64_FORMAT " rows, " UINT64_FORMAT
						 " MB, %.1f MB/s, %u helpers",
						 copy_progress_fraction(entry) * 100,
						 pg_atomic_read_u64(&entry->rows), bytes >> 20,
						 bytes / seconds(entry) / (1024 * 1024),
						 pg_atomic_read_u32(&entry->helpers));
	else if (phase == COPY_INDEXING)
		appendStringInfo(text, ", %u of %u indexes done",
						 pg_atomic_read_u32(&entry->indexes_done),
						 pg_atomic_read_u32(&entry->indexes));
	if (entry->last_error[0] != '\0' && may_see_errors(entry->subid))
		appendStringInfo(text, ", last error: %s", entry->last_error);
	appendStringInfoChar(text, '.');
}

/* Returns a line of text for each table of a subscription whose copy is not done. */
char *
copy_report_describe(Oid subid)
{
	StringInfoData text;
	CopyProgress *entries;
	int			count = copy_progress_read(&entries);

	initStringInfo(&text);
	for (int i = 0; i < count; i++)
		if (entries[i].subid == subid)
			describe(&text, &entries[i]);
	return text.data;
}
