/*
 * stored_times.c
 *	  Stores the times of rows whose transactions share a commit (row_time.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "conflict/stored_times.h"
#include "group_times.h"
#include "row_time.h"
#include "store.h"
#include "utils/timestamp.h"
#include "varatt.h"

/* So many entries fit into one row, which is not compressed or stored out of line. */
#define PART_ENTRIES 640

static void
store_part(TimestampTz committed, int part, uint64 seed, bytea *list)
{
	Datum		values[ROW_TIME_COLUMNS];
	bool		nulls[ROW_TIME_COLUMNS] = {0};

	values[ROW_TIME_XID - 1] = Int64GetDatum((int64) U64FromFullTransactionId(GetTopFullTransactionId()));
	values[ROW_TIME_PART - 1] = Int32GetDatum(part);
	values[ROW_TIME_COMMITTED - 1] = TimestampTzGetDatum(committed);
	values[ROW_TIME_SEED - 1] = Int64GetDatum((int64) seed);
	values[ROW_TIME_RECORDED - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[ROW_TIME_ENTRIES - 1] = PointerGetDatum(list);
	store_row(row_time_table(), values, nulls);
}

/*
 * Called before the local transaction of a group commits: stores the own times of rows for
 * which that is not "committed", the group's.
 */
void
conflict_store_times(TimestampTz committed)
{
	int			count;
	uint64		seed;
	const GroupTime *rows = group_times_list(&count, &seed);
	bytea	   *list = NULL;
	int			num = 0;
	int			part = 0;

	for (int i = 0; i < count; i++)
	{
		RowTimeEntry entry;
		int64		offset = rows[i].time - committed;

		/*
		 * More than any group spans: the publisher has sent different times
		 * with BEGIN and COMMIT.
		 */
		if (offset == 0 || offset < PG_INT32_MIN || offset > PG_INT32_MAX)
			continue;
		if (list == NULL)
			list = palloc(VARHDRSZ + PART_ENTRIES * sizeof(RowTimeEntry));
		memcpy(entry.hash, &rows[i].hash, sizeof(entry.hash));
		entry.offset = (int32) offset;
		memcpy(VARDATA(list) + num++ * sizeof(RowTimeEntry), &entry, sizeof(entry));
		if (num < PART_ENTRIES)
			continue;
		SET_VARSIZE(list, VARHDRSZ + num * sizeof(RowTimeEntry));
		store_part(committed, part++, seed, list);
		num = 0;
	}
	if (num > 0)
	{
		SET_VARSIZE(list, VARHDRSZ + num * sizeof(RowTimeEntry));
		store_part(committed, part, seed, list);
	}
	if (list)
		pfree(list);
}
