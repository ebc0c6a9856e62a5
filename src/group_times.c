/*
 * group_times.c
 *	  The times of the rows that a writer changes in one local transaction.
 *
 * row_time.c says what they are good for.  Here they are collected, in memory, for the
 * attempt at hand: for each row the transaction that has changed it last.  The last
 * change of a row counts, as in the table; changes of one row are applied in their order
 * (apply/order.c), even if others are applied in between.
 *
 * Not everything can be collected.  Then the transaction at hand must be the last one
 * of its group, since rows that are not listed have the time of the last one:
 *	 - The server's own code has changed a row, and does not say which.  If a row of that
 *	   table is listed for an earlier transaction, then it may be the one: the attempt is
 *	   given up, and its transactions are applied one by one.
 *	 - A trigger fires, and may change rows of any table: the same, for all tables.
 *	 - There are too many rows.  Those that are listed already are kept up to date.
 *	 - A counter was merged into a row that is newer (conflict/row_version.c), which is
 *	   kept by the local transaction's ID: a later member must not write that row.
 * Deferred changes of earlier members may still come after that, at the end of the group.
 * If one of them cannot be collected, the attempt is given up, too.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "catalog/pg_class.h"
#include "common/pg_prng.h"
#include "group_times.h"
#include "misspeculate.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* At most this many rows are collected. */
#define MAX_ROWS 4096

/* Slots of the hash table; a power of two. */
#define NUM_SLOTS (4 * MAX_ROWS)

/* Tables of which it is known whether a row is listed; with more, all are taken to be. */
#define MAX_TABLES 64

/*
 * A global, since a writer makes one attempt at a time, and both ways to apply a row add to it.
 * A slot of the hash table is in use if the row that it refers to refers to it;
 * therefore it need not be cleared.
 */
static struct
{
	bool		collecting;
	bool		must_end;		/* the newest member is the last one */
	uint64		seed;
	uint64		first;			/* member, 0 if there is none yet */
	TimestampTz first_time;
	uint64		newest;			/* member that has begun last */
	uint64		current;		/* member that changes rows now */
	TimestampTz time;			/* its commit time */
	int			num_tables;		/* more than MAX_TABLES: unknown */
	Oid			tables[MAX_TABLES];
	int			num_rows;
	GroupTime	rows[MAX_ROWS];
	uint16		slots[NUM_SLOTS];
}			times;

/* An attempt begins.  "several" says that transactions may share its commit. */
void
group_times_begin(bool several)
{
	times.collecting = several && track_commit_timestamp;
	times.must_end = false;
	times.first = 0;
	times.num_tables = times.num_rows = 0;
	times.seed = times.collecting ? pg_prng_uint64(&pg_global_prng_state) : 0;
}

/* A transaction of the group begins. */
void
group_times_member(uint64 seq, TimestampTz time)
{
	if (times.first == 0)
	{
		times.first = seq;
		times.first_time = time;
	}
	times.newest = seq;
	group_times_resume(seq, time);
}

/* What is applied from here on belongs to this transaction of the group. */
void
group_times_resume(uint64 seq, TimestampTz time)
{
	times.current = seq;
	times.time = time;
}

/* The group ends with the transaction at hand. */
void
group_times_end_here(void)
{
	if (!times.collecting)
		return;
	if (times.current != times.newest)
		misspeculate("a deferred change must be the last of its group");
	times.must_end = true;
}

/* May a transaction with this commit time be added? */
bool
group_times_may_go_on(TimestampTz next)
{
	if (!times.collecting)
		return !track_commit_timestamp;
	return !times.must_end && next - times.first_time < GROUP_TIMES_SPAN &&
		times.first_time - next < GROUP_TIMES_SPAN;
}

static bool
is_listed(Oid relid)
{
	for (int i = 0; i < times.num_tables; i++)
		if (i == MAX_TABLES || times.tables[i] == relid)
			return true;
	return false;
}

static void
list_table(Oid relid)
{
	if (is_listed(relid))
		return;
	if (times.num_tables < MAX_TABLES)
		times.tables[times.num_tables] = relid;
	times.num_tables++;
}

/* Finds the slot of a hash: either that of its row, or an empty one. */
static uint32
find_slot(uint64 hash, GroupTime **row)
{
	uint32		slot = hash & (NUM_SLOTS - 1);

	for (;; slot = (slot + 1) & (NUM_SLOTS - 1))
	{
		uint16		number = times.slots[slot];

		*row = NULL;
		if (number >= times.num_rows || times.rows[number].slot != slot)
			return slot;
		*row = &times.rows[number];
		if ((*row)->hash == hash)
			return slot;
	}
}

/* The current transaction has changed a row of a table with a key. */
void
group_times_row(const RowTimeKey *key, TupleTableSlot *row)
{
	GroupTime  *found;
	uint64		hash;
	uint32		slot;

	if (!times.collecting)
		return;
	hash = row_time_hash(key, row, times.seed);
	slot = find_slot(hash, &found);
	if (found == NULL)
	{
		if (times.num_rows == MAX_ROWS)
		{
			group_times_end_here();
			return;
		}
		list_table(key->relid);
		times.slots[slot] = times.num_rows;
		found = &times.rows[times.num_rows++];
		found->hash = hash;
		found->slot = slot;
	}
	found->time = times.time;
	found->seq = times.current;
}

/* The same, for a caller that does not know the key. */
void
group_times_changed(Relation rel, TupleTableSlot *row)
{
	RowTimeKey	key;

	if (!times.collecting)
		return;
	row_time_key(rel, &key);
	if (key.count > 0)
		group_times_row(&key, row);
}

static bool
has_listed_partition(void)
{
	if (times.num_tables > MAX_TABLES)
		return true;
	for (int i = 0; i < times.num_tables; i++)
		if (get_rel_relispartition(times.tables[i]))
			return true;
	return false;
}

/*
 * The current transaction has changed a row of a table, and it is not known which; "relid"
 * may be InvalidOid.
 */
void
group_times_unknown(Oid relid)
{
	if (!times.collecting)
		return;
	group_times_end_here();
	if (times.newest == times.first || times.num_tables == 0)
		return;
	if (!OidIsValid(relid) || is_listed(relid) ||
		(get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE && has_listed_partition()))
		misspeculate("a row of a group was changed by the server's own code");
}

/*
 * A row was written by the local transaction at hand.  Returns true, with the time, if that
 * was for an earlier transaction of the group.
 */
bool
group_times_find(Relation rel, TupleTableSlot *row, TimestampTz *time)
{
	RowTimeKey	key;
	GroupTime  *found;

	if (!times.collecting || times.num_rows == 0)
		return false;
	row_time_key(rel, &key);
	if (key.count == 0)
		return false;
	(void) find_slot(row_time_hash(&key, row, times.seed), &found);
	if (found == NULL || found->seq == times.current)
		return false;
	*time = found->time;
	return true;
}

/* Returns what has been collected. */
const GroupTime *
group_times_list(int *count, uint64 *seed)
{
	*count = times.collecting ? times.num_rows : 0;
	*seed = times.seed;
	return times.rows;
}
