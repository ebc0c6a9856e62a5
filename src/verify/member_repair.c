/*
 * member_repair.c
 *	  Repairs rows that differ between two members of a group.
 *
 * A is the other member, B is this one, where rows are written.  The caller has read A's rows with
 * their versions at a cut of B's subscription to A.  Each item is decided with B's row locked:
 *
 *	 - By default the newer side wins, as in conflict detection (conflict/version.c).  A row has
 *	   the version of whoever wrote it, a missing row that of its tombstone.  If only one side's
 *	   version is known, then that side wins, because an unknown version is older than
 *	   everything: the row was copied.  If neither is known, or both are the same, or B has
 *	   forgotten when its row was written (version_is_forgotten()), nothing is written.
 *	 - If a winner is named, its row, or the lack of one, wins.
 *
 * If A wins, then B gets A's row with A's version, as if it had arrived by replication
 * (repair_origin.c): it is not sent to other members, and whatever arrives later is decided
 * against that version.  A row that A has deleted leaves a tombstone with A's version.  If B wins,
 * nothing is written here; A is to be repaired on A.
 *
 * Why that converges.  Each member ends with the newest version of a row that it has received.
 * By default B gets A's row only if it is newer than B's, so B ends as if it had received A's
 * version, by which no other member loses anything: B may still lack changes of a third member
 * that A has, and the other way round; each is decided when it arrives.  An older version is
 * written only if a winner is named.  Then B's row must be the one that was recorded when it was
 * compared: in the same version, or still missing, without a delete since.  compare_node.c has
 * shown that no change under way explains that one, so A will not get it any more.
 *
 * A transaction has one time and one origin.  Therefore a batch writes the rows of one version,
 * and the rest is left to the next batches.
 *
 * Not repaired:
 *
 *	 - tables with counters (weft.set_delta_columns).  A counter is a sum of changes, of
 *	   which A and B may have received different ones at any moment, and those that are
 *	   under way will be added to whatever is written.
 *	 - tables without a key, and partitioned tables as a whole, which have no versions.
 *	 - a row with a unique value that another row here holds, or that a newer row has held
 *	   (conflict/claim.c).  The other row is tried first if it differs, too.
 *
 * Waiting.  As in apply, nothing is written before this node's clock has passed the version's time.
 * A writer of a third member's subscription may be storing or deleting the same row.  If it is first,
 * then the row's lock or the key's index make this process wait, up to lock_timeout.  A delete that finds no row
 * leaves a tombstone, and is found, or finds this row (conflict/tombstone.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "compat.h"
#include "conflict/claim.h"
#include "conflict/clock.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_key.h"
#include "conflict/row_version.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/version.h"
#include "executor/tuptable.h"
#include "group_times.h"
#include "miscadmin.h"
#include "replication/logicalrelation.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/member_repair.h"
#include "verify/member_version.h"
#include "verify/repair_origin.h"
#include "verify/row_repair.h"
#include "verify/row_writer.h"

/* An item, and what is found of it here. */
typedef struct Look
{
	const MemberRepair *repair;
	RepairItem *item;
	Oid			key_index;
	pg_uuid_t	hash;			/* of the key */
	FoundRow   *found;			/* the row here, locked; NULL if there is none */
	bool		exists;			/* there is one */
	bool		forgotten;		/* nobody knows when it was written */
	RowVersion	version;		/* of the row here, or of its delete */
} Look;

/* Why no row of the table can be repaired; NULL if they can. */
static const char *
why_not(RowTable *table, Oid *key_index)
{
	Relation	index;
	int			columns = 0;
	int			count;

	if (table->rel->rd_rel->relkind != RELKIND_RELATION)
		return "rows of a partitioned table that is published as a whole have no versions";
	*key_index = GetRelationIdentityOrPK(table->rel);
	if (!OidIsValid(*key_index) || table->published->key == NIL)
		return "rows of a table without a key have no versions";
	if (conflict_has_delta_columns(RelationGetRelid(table->rel)))
		return "the table has counters (weft.set_delta_columns), which are sums of changes that may be under way";
	index = index_open(*key_index, AccessShareLock);
	count = IndexRelationGetNumberOfKeyAttributes(index);
	for (int i = 0; i < count; i++)
		for (int j = 0; j < table->count; j++)
			if (table->in_key[j] && table->columns[j]->attnum == index->rd_index->indkey.values[i])
				columns++;
	index_close(index, AccessShareLock);
	return columns == count && columns == list_length(table->published->key) ? NULL :
		"the table's key is not the one by which conflicts are detected";
}

/* Finds and locks the row here; called as the user of row_table_begin(). */
static void
look(RowTable *table, Look *result)
{
	TupleTableSlot *key = row_writer_key(table, result->item->identity);
	List	   *rows = row_table_find(table, result->item->identity, result->item->publisher);

	result->hash = row_key_hash(table->rel, result->key_index, key);
	result->found = rows == NIL ? NULL : linitial(rows);
	result->exists = result->found != NULL;
	result->forgotten = false;
	memset(&result->version, 0, sizeof(RowVersion));
	if (result->found != NULL)
	{
		TupleTableSlot *row;

		PushActiveSnapshot(GetTransactionSnapshot());
		row = row_writer_fetch(table, result->found);
		result->version = row_version_of(table->rel, result->key_index, row);
		result->forgotten = !result->version.known && version_is_forgotten(version_xmin(row));
		ExecDropSingleTupleTableSlot(row);
		PopActiveSnapshot();
	}
	else if (!tombstone_find_hash(table->rel, &result->hash, false, &result->version))
		result->version.known = false;
}

static bool
is_equal(const Look *at)
{
	if (at->item->publisher == NULL || at->found == NULL)
		return at->item->publisher == NULL && at->found == NULL;
	return at->found->equal;
}

/* Has the row here the values that were recorded?  It is locked. */
static bool
has_recorded_values(RowTable *table, const RepairItem *item)
{
	List	   *rows = row_table_find(table, item->identity, item->recorded);

	return rows != NIL && ((FoundRow *) linitial(rows))->equal;
}

/*
 * A time that was exact when it was recorded may be that of the row's group by now
 * (conflict/time_expiry.c).
 */
static bool
is_recorded_time(TimestampTz time, TimestampTz recorded)
{
	return time > recorded - 2 * GROUP_TIMES_SPAN && time < recorded + 2 * GROUP_TIMES_SPAN;
}

/* Is the row here, or the lack of one, still what was recorded? */
static bool
is_as_recorded(RowTable *table, const Look *at)
{
	const RepairItem *item = at->item;

	if (at->found == NULL)
		return item->recorded == NULL &&
			!repair_items_deleted_since(at->repair->comparison, RelationGetRelid(table->rel),
										&at->hash);
	return item->recorded != NULL && item->recorded_whole &&
		(!at->version.known || is_recorded_time(at->version.time, item->recorded_time)) &&
		has_recorded_values(table, item);
}

static void
keep(const MemberRepair *repair, RepairItem *item, const char *reason)
{
	item->outcome = REPAIR_KEPT;
	item->reason = MemoryContextStrdup(repair->context, reason);
}

/* Nobody has named the winner. */
static void
choose_newer(const Look *at)
{
	RepairItem *item = at->item;
	const RowVersion *there = &item->version;
	const RowVersion *here = &at->version;

	if (!there->known && !here->known)
		keep(at->repair, item, "neither node knows when the row was written or deleted: name a winner");
	else if (there->known && here->known &&
			 !version_newer(there, here) && !version_newer(here, there))
		keep(at->repair, item, psprintf("both nodes have the same version (%s) of the row, but not the same row: name a winner",
										member_version_show(here)));
	else if (at->forgotten)
		keep(at->repair, item, "this node does not know any more when the row was written: name a winner");
	else if (there->known && (!here->known || version_newer(there, here)))
		item->winner_there = true;
	else
		keep(at->repair, item, psprintf("this node has the newer version (%s): repair the other node",
										member_version_show(here)));
}

static void
choose(RowTable *table, const Look *at)
{
	RepairItem *item = at->item;

	item->winner_there = false;
	if (is_equal(at))
		item->outcome = REPAIR_VANISHED;
	else if (at->repair->winner == WINNER_NEWER)
		choose_newer(at);
	else if (at->repair->winner == WINNER_HERE)
		keep(at->repair, item, "this node is the winner: repair the other node");
	else if (is_as_recorded(table, at))
		item->winner_there = true;
	else
		keep(at->repair, item, "the row was changed here since it was compared: compare again");
}

/* Decides about an item. */
static void
decide(RowTable *table, void *arg)
{
	Look	   *at = arg;

	look(table, at);
	choose(table, at);
}

static void
delete_here(RowTable *table, const Look *at)
{
	TupleTableSlot *row = row_writer_fetch(table, at->found);

	if (at->item->version.known)
		tombstone_write_hash(table->rel, at->hash, &at->item->version);
	claim_release_tuple(table->rel, at->key_index, row, NULL);
	row_writer_delete(table, at->found);
	ExecDropSingleTupleTableSlot(row);
}

/* Fails if the row must not exist here, as far as conflict detection is concerned. */
static void
check_stored(RowTable *table, const Look *at, TupleTableSlot *row, TupleTableSlot *old)
{
	RowVersion	deleted;

	/* Waits for transactions that delete it. */
	if (old == NULL &&
		tombstone_find_hash(table->rel, unconstify(pg_uuid_t *, &at->hash), true, &deleted) &&
		(at->repair->winner == WINNER_NEWER ?
		 version_newer(&deleted, &at->item->version) : !is_as_recorded(table, at)))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the row was deleted meanwhile")));
	if (at->repair->winner == WINNER_NEWER &&
		claim_is_newer(table->rel, at->key_index, row, old, &at->item->version))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_INTEGRITY_CONSTRAINT_VIOLATION),
				 errmsg("a newer row has, or has had, a unique value of the row")));
}

static void
store_here(RowTable *table, const Look *at)
{
	TupleTableSlot *old = at->found ? row_writer_fetch(table, at->found) : NULL;
	TupleTableSlot *row;
	List	   *rows;

	if (old != NULL)
		row_writer_update(table, at->found, at->item->publisher);
	else
		row_writer_insert(table, at->item->publisher);
	rows = row_table_find(table, at->item->identity, at->item->publisher);
	if (list_length(rows) != 1 || !((FoundRow *) linitial(rows))->equal)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("the row still differed after it was written: a trigger has changed or suppressed it, or a column is generated in another way here")));
	PushActiveSnapshot(GetTransactionSnapshot());
	row = row_writer_fetch(table, linitial(rows));
	check_stored(table, at, row, old);
	if (old != NULL)
	{
		claim_release_tuple(table->rel, at->key_index, old, row);
		ExecDropSingleTupleTableSlot(old);
	}
	ExecDropSingleTupleTableSlot(row);
	PopActiveSnapshot();
}

/* Decides again, and writes.  The row is locked since decide(), unless it was missing. */
static void
write_row(RowTable *table, void *arg)
{
	Look	   *at = arg;

	look(table, at);
	choose(table, at);
	if (!at->item->winner_there)
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	if (at->item->publisher != NULL)
		store_here(table, at);
	else
		delete_here(table, at);
	PopActiveSnapshot();
	at->item->outcome = REPAIR_DONE;
}

/* Says what would be done. */
static void
plan(Look *at)
{
	RepairItem *item = at->item;

	if (item->winner_there && item->publisher != NULL)
		item->reason = psprintf("would be %s: the other node has the row of %s",
								at->exists ? "updated" : "inserted",
								member_version_show(&item->version));
	else if (item->winner_there)
		item->reason = psprintf("would be deleted: the other node has deleted it at %s",
								member_version_show(&item->version));
	else if (item->outcome == REPAIR_VANISHED)
		item->reason = "does not differ any more";
	item->outcome = REPAIR_PLANNED;
}

/* Runs decide() or write_row(). */
static void
attempt(Look *at, RowWork work)
{
	ErrorData  *error;

	CHECK_FOR_INTERRUPTS();
	error = row_repair_attempt(at->repair->table, work, at);
	if (error == NULL)
		return;
	at->item->winner_there = false;
	row_repair_failed(at->item, error);
}

/* The hashes of keys are computed with the rights of apply. */
typedef struct Hashes
{
	List	   *items;
	Oid			key_index;
	MemoryContext context;
	List	   *result;
} Hashes;

static void
compute_hashes(RowTable *table, void *arg)
{
	Hashes	   *hashes = arg;

	foreach_ptr(RepairItem, item, hashes->items)
	{
		TupleTableSlot *key = row_writer_key(table, item->identity);
		pg_uuid_t  *hash = MemoryContextAlloc(hashes->context, sizeof(pg_uuid_t));
		MemoryContext old;

		*hash = row_key_hash(table->rel, hashes->key_index, key);
		old = MemoryContextSwitchTo(hashes->context);
		hashes->result = lappend(hashes->result, hash);
		MemoryContextSwitchTo(old);
	}
}

/* Reads when rows that A does not have were deleted there. */
static void
read_deletes(const MemberRepair *repair, List *items, Oid key_index)
{
	Hashes		hashes = {NIL, key_index, CurrentMemoryContext, NIL};
	ErrorData  *error;
	List	   *versions;

	foreach_ptr(RepairItem, item, items)
		if (item->outcome == REPAIR_PENDING && item->publisher == NULL)
		hashes.items = lappend(hashes.items, item);
	if (hashes.items == NIL)
		return;
	error = row_repair_attempt(repair->table, compute_hashes, &hashes);
	if (error)
		ReThrowError(error);
	versions = member_version_deletes(repair->conn, published_table_name(repair->table->published),
									  hashes.result);
	foreach_ptr(RepairItem, item, hashes.items)
		item->version = member_version_parse(list_nth(versions, foreach_current_index(item)));
}

/* Waits until the clock has passed a version's time; returns false if that takes too long. */
static bool
wait_for_clock(const MemberRepair *repair, const RowVersion *version)
{
	if (!version->known)
		return true;
	if (version->time > TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													Min(repair->max_wait, 5000)))
		return false;
	clock_wait(version->time);
	return true;
}

static bool
same_version(const RowVersion *a, const RowVersion *b)
{
	return a->known == b->known && (!a->known || (a->time == b->time && a->node == b->node));
}

/* Writes all items that have won with one version. */
static void
write_version(const MemberRepair *repair, List *looks, const RowVersion *version)
{
	foreach_ptr(Look, at, looks)
	{
		if (!at->item->winner_there || !same_version(&at->item->version, version))
			continue;
		at->item->version = *version;
		attempt(at, write_row);
	}
}

/* Decides about all items that are pending.  Returns those that are to be written (Look). */
static List *
decide_all(const MemberRepair *repair, List *items, Oid key_index)
{
	List	   *result = NIL;

	foreach_ptr(RepairItem, item, items)
	{
		Look	   *at = palloc0(sizeof(Look));

		if (item->outcome != REPAIR_PENDING)
			continue;
		at->repair = repair;
		at->item = item;
		at->key_index = key_index;
		attempt(at, decide);
		if (repair->dry_run)
			plan(at);
		else if (item->winner_there)
			result = lappend(result, at);
	}
	return result;
}

/*
 * Repairs items (RepairItem) that are pending.  Those that are still pending afterwards have
 * another version than the ones that were written.  Returns false, and sets *node, if
 * repair_origin_create() must be called for this node first; then nothing has been written.
 */
bool
member_repair_all(const MemberRepair *repair, List *items, int *node)
{
	Oid			key_index = InvalidOid;
	const char *reason = why_not(repair->table, &key_index);
	List	   *looks;
	RowVersion	version;

	foreach_ptr(RepairItem, item, items)
		if (reason != NULL && item->outcome == REPAIR_PENDING)
		keep(repair, item, reason);
	if (reason != NULL)
		return true;
	read_deletes(repair, items, key_index);
	repair_items_read_recorded(repair->comparison, repair->table, items);
	looks = decide_all(repair, items, key_index);
	if (looks == NIL)
		return true;
	version = ((Look *) linitial(looks))->item->version;
	*node = version.node;
	if (!repair_origin_use_version(&version))
		return false;
	if (wait_for_clock(repair, &version))
	{
		conflict_import(&version);
		compat_injection_point("weft-repair-version");
		write_version(repair, looks, &version);
	}
	else
		foreach_ptr(Look, at, looks)
		if (same_version(&at->item->version, &version))
		keep(repair, at->item, "this node's clock is behind the time at which the row was written");
	return true;
}
