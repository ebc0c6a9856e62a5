/*
 * table.c
 *	  Copies one table with several processes.
 *
 * The caller has a local transaction, in which it has locked the table and checked what its
 * user may do, and a transaction on the publisher that has a snapshot:
 *
 *	 1. The publisher exports the snapshot of that transaction (source.c).
 *	 2. The indexes are suspended (indexes.c).
 *	 3. Helpers copy ranges of blocks, each on a connection of its own, within the caller's
 *		local transaction (helper.c, ranges.c).
 *	 4. The indexes are built.  The publisher is not needed for that, so the caller may end
 *		the transaction there first.
 *
 * If rows are replaced (replace.c), 2 and 4 are left out: readers need the indexes for the old
 * rows, and the lock under which indexes are built would keep them out.
 *
 * Any error of the copy is an error of the caller's transaction, and rolls everything back.
 * Therefore an interrupted copy starts from the beginning.
 *
 * Locks on the local table, in this order: the caller's, at least RowExclusiveLock;
 * ShareUpdateExclusiveLock while rows are copied, which lets other sessions read and write,
 * as they natively may; AccessExclusiveLock while the indexes are built, if it is available
 * without waiting in a queue (indexes.c).
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "compat.h"
#include "copy/command.h"
#include "copy/copy_task.h"
#include "copy/helper.h"
#include "copy/indexes.h"
#include "copy/progress.h"
#include "copy/ranges.h"
#include "copy/replace.h"
#include "copy/source.h"
#include "copy/table.h"
#include "copy/target_table.h"
#include "guc.h"
#include "replication/origin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Limits of the range that a helper takes at a time, in bytes on the publisher's disk. */
#define MIN_RANGE_BYTES (256 * 1024)
#define MAX_RANGE_BYTES (16 * 1024 * 1024)

/*
 * The table whose rows have been copied, and whose indexes are still to be built.  Static
 * because the server's code runs between the two.
 */
static CopyProgress *unfinished = NULL;
static List *suspended_indexes;

/* Logs that the server copies the table itself. */
static void
leave_to_server(int level, const CopyPublisher *publisher, Relation rel, const char *reason)
{
	ereport(level,
			(errmsg("table \"%s.%s\" of %s is copied by the server's own code: %s",
					get_namespace_name(RelationGetNamespace(rel)),
					RelationGetRelationName(rel), publisher->user, reason)));
}

/*
 * May helpers copy the table?  If not, logs the reason, at a low level if the table is just
 * small.  Asks the publisher what costs it more only about large tables.
 */
static bool
suitable(const CopyPublisher *publisher, WalReceiverConn *conn, Relation rel,
		 const CopyCommand *command)
{
	const char *reason = NULL;
	CopyVerdict verdict = copy_progress_verdict(publisher->subid, RelationGetRelid(rel));

	if (!copy_source_supported(conn))
		reason = "the publisher is older than PostgreSQL 14";
	else if (copy_source_size(conn, command) < (uint64) weft_min_parallel_copy_size * 1024)
	{
		leave_to_server(DEBUG1, publisher, rel, "it is smaller than \"weft.min_parallel_copy_size\"");
		return false;
	}
	else if (verdict == COPY_UNSAFE)
		reason = "it uses functions that are not safe in parallel workers";
	else if (verdict == COPY_UNINDEXED)
		reason = "its indexes could not be built in an earlier attempt";
	else if (!replace_in_progress() && !target_table_empty(rel))
		reason = "it is not empty";
	else
		reason = target_table_obstacle(rel, command, replace_in_progress());
	if (reason != NULL)
		leave_to_server(LOG, publisher, rel, reason);
	return reason == NULL;
}

static CopyTask *
make_task(const CopyPublisher *publisher, const char *text, Relation rel,
		  const CopyCommand *command, const CopySource *source, Size *size)
{
	CopyTask   *task;
	Size		text_size = strlen(text) + 1;
	Size		conninfo_size = strlen(publisher->conninfo) + 1;
	uint64		block_bytes = Max(source->bytes / Max(source->num_blocks, 1), 1);

	*size = offsetof(CopyTask, texts) + text_size + conninfo_size +
		strlen(source->target.leaves) + 1;
	task = palloc0(*size);
	task->relid = RelationGetRelid(rel);
	task->origin = replorigin_session_origin;
	task->binary = command->binary || target_table_binary(rel, command, source->types);
	task->num_blocks = source->ranges ? source->num_blocks : 0;
	task->min_range = Max(MIN_RANGE_BYTES / block_bytes, 1);
	task->max_range = Max(MAX_RANGE_BYTES / block_bytes, 1);
	strlcpy(task->snapshot, source->snapshot, COPY_SNAPSHOT_LEN);
	strlcpy(task->identity, source->identity, COPY_IDENTITY_LEN);
	strlcpy(task->source_relid, source->target.relid, COPY_OID_LEN);
	SpinLockInit(&task->mutex);
	task->must_use_password = publisher->must_use_password;
	task->all_rows = publisher->all_rows;
	strlcpy(task->user, publisher->user, COPY_USER_LEN);
	strlcpy(task->appname, publisher->appname, NAMEDATALEN);
	strcpy(task->texts, text);
	task->conninfo = text_size;
	strcpy(task->texts + task->conninfo, publisher->conninfo);
	task->leaves = text_size + conninfo_size;
	strcpy(task->texts + task->leaves, source->target.leaves);
	return task;
}

/*
 * Returns how many helpers to use.  None if the WAL may be decoded and values are stored
 * out of line: at each row of a transaction, decoding forgets the parts of all such values
 * of the transaction, since it expects them directly before the row that they belong to.
 */
static int
helpers_wanted(Relation rel, const CopySource *source, const CopyProgress *progress)
{
	if (!source->ranges || source->num_blocks == 0)
		return 0;
	if (target_table_decoded(rel) &&
		(progress->alone || source->toast_bytes > 0 || target_table_out_of_line(rel)))
		return 0;
	return weft_copy_workers_per_table;
}

/*
 * Values may be stored out of line here although none were on the publisher.  Decoding
 * could not read what several processes stored, so the transaction must not commit.
 */
static void
check_decoding(Relation rel, CopyProgress *progress)
{
	if (pg_atomic_read_u32(&progress->helpers_used) < 2 ||
		!target_table_decoded(rel) || !target_table_out_of_line(rel))
		return;
	copy_progress_set_alone(progress);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("values of table \"%s\" had to be stored out of line while several processes copied it",
					RelationGetRelationName(rel)),
			 errdetail("Logical decoding can read such values only if one process stored them."),
			 errhint("The next attempt copies the table with one process.")));
}

/*
 * A transaction that has suspended indexes and not built them must not commit.  If it is
 * rolled back, the indexes are in use again, and the next transaction of this process,
 * possibly the one that disables the subscription, has nothing to do with them.
 */
static void
check_finished(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		unfinished = NULL;
	else if (event == XACT_EVENT_PRE_COMMIT && unfinished != NULL)
		elog(ERROR, "indexes have not been built after an initial copy");
}

static void
report_rows(Relation rel, const CopyTask *task, CopyProgress *progress)
{
	uint32		processes = pg_atomic_read_u32(&progress->helpers_used);

	ereport(LOG,
			(errmsg_plural("table \"%s.%s\" of %s was copied by %u process",
						   "table \"%s.%s\" of %s was copied by %u processes",
						   processes,
						   get_namespace_name(RelationGetNamespace(rel)),
						   RelationGetRelationName(rel), task->user, processes),
			 errdetail("%llu rows, %llu bytes in %s format, %d ranges.",
					   (unsigned long long) pg_atomic_read_u64(&progress->rows),
					   (unsigned long long) pg_atomic_read_u64(&progress->bytes),
					   task->binary ? "binary" : "text", task->ranges_taken)));
}

static void
copy_with_helpers(CopyTask *task, Size size, Relation rel, const CopyCommand *command,
				  WalReceiverConn *conn, CopyProgress *progress)
{
	static bool registered = false;
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (!registered)
		RegisterXactCallback(check_finished, NULL);
	registered = true;
	unfinished = progress;
	suspended_indexes = replace_in_progress() ? NIL : copy_indexes_suspend(rel);
	MemoryContextSwitchTo(old);
	copy_source_keep_alive(conn);
	task->num_helpers = copy_progress_reserve(progress, task->num_helpers);
	if (task->num_helpers > 0)
		task = copy_helpers_run(task, size, conn);
	copy_progress_release_helpers(progress);
	if (!task->all_taken)
		copy_ranges(task, command, conn, false);
	CommandCounterIncrement();
	check_decoding(rel, progress);

	pg_atomic_write_u64(&progress->copied_at, GetCurrentTimestamp());
	report_rows(rel, task, progress);
}

/* Remembers an error for the view; the caller rethrows it. */
static void
remember_error(CopyProgress *progress, MemoryContext context)
{
	MemoryContextSwitchTo(context);
	copy_progress_failed(progress, CopyErrorData());
}

/*
 * Takes the server's command apart; returns false if it has another form.  Changes one that
 * does not say that the table has partitions.
 */
static bool
parse_command(WalReceiverConn *conn, Relation rel, const char **text, CopyCommand *command)
{
	char	   *nspname = get_namespace_name(RelationGetNamespace(rel));

	if (!copy_command_parse(*text, nspname, RelationGetRelationName(rel), command))
		return false;
	if (!copy_source_partitioned(conn, command))
		return true;
	*text = copy_command_partitioned(command);
	return copy_command_parse(*text, nspname, RelationGetRelationName(rel), command);
}

/*
 * Copies the rows of a table, if possible.
 *
 * "conn" has begun the transaction on the publisher, and "text" is the server's command for
 * the table.  Returns a command for no rows, to be used in its place, or NULL if the table
 * is small or something prevents the copy, which the log tells.  If rows have been copied,
 * the caller must then call copy_table_indexes().
 */
const char *
copy_table_rows(const CopyPublisher *publisher, WalReceiverConn *conn, Relation rel,
				const char *text)
{
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(old, "weft initial copy",
												  ALLOCSET_DEFAULT_SIZES);
	CopyCommand command;
	CopySource	source;
	const char *result = NULL;

	MemoryContextSwitchTo(context);
	if (!parse_command(conn, rel, &text, &command))
		leave_to_server(LOG, publisher, rel, "the server's COPY command has an unknown form");
	else if (suitable(publisher, conn, rel, &command))
	{
		CopyProgress *progress = copy_progress_claim(publisher->subid, RelationGetRelid(rel));
		CopyTask   *task;
		Size		size;

		copy_source_ask(conn, &command, &source);
		compat_injection_point("weft-copy-locked");
		task = make_task(publisher, text, rel, &command, &source, &size);
		task->progress = copy_progress_index(progress);
		task->num_helpers = helpers_wanted(rel, &source, progress);
		pg_atomic_write_u64(&progress->table_bytes, source.bytes);
		pg_atomic_write_u64(&progress->blocks, source.num_blocks);
		PG_TRY();
		{
			copy_with_helpers(task, size, rel, &command, conn, progress);
		}
		PG_CATCH();
		{
			remember_error(progress, context);
			PG_RE_THROW();
		}
		PG_END_TRY();
		result = MemoryContextStrdup(old, copy_command_nothing(&command));
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return result;
}

/* Have rows been copied, and indexes not been built yet? */
bool
copy_table_unfinished(void)
{
	return unfinished != NULL;
}

/* Builds the indexes of the table that has been copied. */
void
copy_table_indexes(void)
{
	MemoryContext context = CurrentMemoryContext;
	CopyProgress *progress = unfinished;
	Relation	rel = table_open(progress->relid, NoLock);

	compat_injection_point("weft-copy-indexes");
	PushActiveSnapshot(GetTransactionSnapshot());
	PG_TRY();
	{
		copy_indexes_build(rel, suspended_indexes, progress);
	}
	PG_CATCH();
	{
		remember_error(progress, context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PopActiveSnapshot();
	table_close(rel, NoLock);
	pg_atomic_write_u32(&progress->phase, COPY_DONE);
	unfinished = NULL;
}
