/*
 * row_repair.c
 *	  Makes local rows equal to the publisher's.
 *
 * The caller has read the publisher's rows at a cut, at which apply stands.  Each item is
 * compared again, with local rows that are locked first, and written in a subtransaction of its own.
 * Therefore an item that fails leaves nothing behind, and the others are not affected:
 * because a session has locked the row for longer than lock_timeout, or because of a
 * deadlock, a constraint, a right or a trigger.
 *
 * An item that would violate a unique constraint is blocked, and is tried again once another
 * item has been written, which may have released the value.  If rows exchange
 * unique values, then none of them can be first.  Therefore what remains blocked is deleted together, and
 * then inserted; for these rows, triggers fire for DELETE and INSERT instead of UPDATE.
 *
 * After it has been written, a row is read again, since a trigger can change or suppress
 * what is written, and a column can be generated in another way.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "verify/repair_origin.h"
#include "verify/row_repair.h"
#include "verify/row_writer.h"

/*
 * Returns the local rows of an item that are published, locked, and compared with "wanted" unless
 * that is NULL.
 */
static List *
find_published(RowTable *table, const RepairItem *item, RowValues wanted)
{
	List	   *result = NIL;

	foreach_ptr(FoundRow, found, row_table_find(table, item->identity, wanted))
		if (found->published)
		result = lappend(result, found);
	return result;
}

/*
 * Returns the local row that should become the publisher's: one that is equal, or any one
 * with the key, whether it is published or not.  NULL if there is none.
 */
static FoundRow *
choose(RowTable *table, const RepairItem *item)
{
	FoundRow   *result = NULL;

	foreach_ptr(FoundRow, found, row_table_find(table, item->identity, item->publisher))
		if (result == NULL || found->equal)
		result = found;
	return result;
}

/* Does the table contain the publisher's rows, and no others? */
static bool
is_repaired(RowTable *table, const RepairItem *item)
{
	List	   *rows = find_published(table, item, item->publisher);

	if (list_length(rows) != item->publisher_count)
		return false;
	foreach_ptr(FoundRow, found, rows)
		if (!found->equal)
		return false;
	return true;
}

static void
delete_row(RowTable *table, const FoundRow *found)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	row_writer_delete(table, found);
	PopActiveSnapshot();
}

static void
insert_row(RowTable *table, RowValues row)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	row_writer_insert(table, row);
	PopActiveSnapshot();
}

static void
update_row(RowTable *table, const FoundRow *found, RowValues row)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	row_writer_update(table, found, row);
	PopActiveSnapshot();
}

/* Deletes all published local rows of an item but one, which may be NULL. */
static void
delete_others(RowTable *table, const RepairItem *item, const FoundRow *kept)
{
	foreach_ptr(FoundRow, found, find_published(table, item, NULL))
		if (kept == NULL || found->relid != kept->relid ||
			!ItemPointerEquals(&found->place, unconstify(ItemPointerData *, &kept->place)))
		delete_row(table, found);
}

/* Makes the number of equal rows in a table without a key that of the publisher. */
static void
repair_count(RowTable *table, const RepairItem *item)
{
	List	   *rows = find_published(table, item, NULL);
	int64		count = list_length(rows);

	for (int64 i = item->publisher_count; i < count; i++)
		delete_row(table, list_nth(rows, i));
	for (int64 i = count; i < item->publisher_count; i++)
		insert_row(table, item->publisher);
}

static void
write_row(RowTable *table, const RepairItem *item)
{
	FoundRow   *own;

	if (table->published->key == NIL)
	{
		repair_count(table, item);
		return;
	}
	own = item->publisher ? choose(table, item) : NULL;
	delete_others(table, item, own);
	if (own != NULL)
		update_row(table, own, item->publisher);
	else if (item->publisher != NULL)
		insert_row(table, item->publisher);
}

/* Fails if an item that has been written is not equal. */
static void
check_repaired(RowTable *table, const RepairItem *item)
{
	if (!is_repaired(table, item))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("the row still differed after it was written: a trigger has changed or suppressed it, or a column is generated in another way here")));
}

/* Repairs one item. */
static void
repair_one(RowTable *table, void *arg)
{
	RepairItem *item = arg;
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context;

	if (is_repaired(table, item))
	{
		item->outcome = REPAIR_VANISHED;
		return;
	}
	context = AllocSetContextCreate(old, "weft row that is written", ALLOCSET_DEFAULT_SIZES);

	/*
	 * The new row can be large, and is not needed any more when it is
	 * checked.
	 */
	MemoryContextSwitchTo(context);
	write_row(table, item);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	check_repaired(table, item);
	item->outcome = REPAIR_DONE;
}

/* Repairs items whose rows exchange unique values. */
static void
repair_together(RowTable *table, void *arg)
{
	List	   *items = arg;
	List	   *lifted = NIL;
	ListCell   *cell;

	foreach_ptr(RepairItem, item, items)
	{
		FoundRow   *own = item->publisher ? choose(table, item) : NULL;

		delete_others(table, item, own);
		PushActiveSnapshot(GetTransactionSnapshot());
		lifted = lappend(lifted, own ? row_writer_lift(table, own, item->publisher) : NULL);
		PopActiveSnapshot();
	}
	foreach(cell, items)
	{
		RepairItem *item = lfirst(cell);
		TupleTableSlot *row = list_nth(lifted, foreach_current_index(cell));

		PushActiveSnapshot(GetTransactionSnapshot());
		if (row != NULL)
			row_writer_put(table, row);
		else if (item->publisher != NULL)
			row_writer_insert(table, item->publisher);
		PopActiveSnapshot();
	}
	foreach_ptr(RepairItem, item, items)
		check_repaired(table, item);
	foreach_ptr(RepairItem, item, items)
		item->outcome = REPAIR_DONE;
}

static void
do_work(RowTable *table, RowWork work, void *arg)
{
	UserContext user;
	bool		switched = row_table_begin(table, &user);

	work(table, arg);
	if (switched)
		RestoreUserContext(&user);
}

/* Records why an item has failed, in the current memory context. */
void
row_repair_failed(RepairItem *item, const ErrorData *error)
{
	bool		unique = error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION ||
		error->sqlerrcode == ERRCODE_EXCLUSION_VIOLATION;

	item->outcome = unique ? REPAIR_BLOCKED : REPAIR_FAILED;
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		item->reason = "another session has locked the row, or the table";
	else if (error->detail)
		item->reason = psprintf("%s (%s)", error->message, error->detail);
	else
		item->reason = pstrdup(error->message);
}

/* Throws an error again that is not about a row: the process is told to stop. */
static void
check_error(const ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
		error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
		error->sqlerrcode == ERRCODE_OUT_OF_MEMORY)
		ReThrowError(unconstify(ErrorData *, error));
}

/*
 * Does something with rows in a subtransaction, as the user as whom apply writes.  Returns
 * the error if there is one; nothing is left of what has been done then.
 */
ErrorData *
row_repair_attempt(RowTable *table, RowWork work, void *arg)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext context = AllocSetContextCreate(caller, "weft row repair",
												  ALLOCSET_DEFAULT_SIZES);
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		do_work(table, work, arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();

		/* An abort would write the origin, too. */
		repair_origin_clear();
		RollbackAndReleaseCurrentSubTransaction();
		repair_origin_resume();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	MemoryContextDelete(context);
	if (error)
		check_error(error);
	return error;
}

/* Tries each item that is pending or blocked.  Returns whether one is written. */
static bool
try_each(RowTable *table, List *items)
{
	bool		written = false;

	foreach_ptr(RepairItem, item, items)
	{
		ErrorData  *error;

		if (item->outcome != REPAIR_PENDING && item->outcome != REPAIR_BLOCKED)
			continue;
		CHECK_FOR_INTERRUPTS();
		error = row_repair_attempt(table, repair_one, item);
		if (error)
			row_repair_failed(item, error);
		else if (item->outcome == REPAIR_DONE)
			written = true;
	}
	return written;
}

static List *
blocked_items(List *items)
{
	List	   *result = NIL;

	foreach_ptr(RepairItem, item, items)
		if (item->outcome == REPAIR_BLOCKED)
		result = lappend(result, item);
	return result;
}

/* Items without a row there come first, since they only release values. */
static List *
in_order(List *items)
{
	List	   *first = NIL;
	List	   *second = NIL;

	foreach_ptr(RepairItem, item, items)
		if (item->publisher == NULL)
		first = lappend(first, item);
	else
		second = lappend(second, item);
	return list_concat(first, second);
}

/*
 * Repairs items (RepairItem) that are pending, and sets what becomes of each.  All local rows
 * that it has looked at stay locked until the transaction ends.
 */
void
row_repair_all(RowTable *table, List *items)
{
	List	   *rest;

	items = in_order(items);
	while (try_each(table, items) && blocked_items(items) != NIL)
		CHECK_FOR_INTERRUPTS();
	rest = blocked_items(items);
	if (list_length(rest) > 1)
	{
		ErrorData  *error = row_repair_attempt(table, repair_together, rest);

		foreach_ptr(RepairItem, item, rest)
			if (error)
			item->outcome = REPAIR_BLOCKED;
	}
}
