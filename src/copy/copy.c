/*
 * copy.c
 *	  The initial copy of a table with several processes.
 *
 * The server's table synchronisation worker does what it always does: it creates
 * the slot, sets the replication origin, checks privileges, copies, and catches up.
 * But before it sends the publisher the COPY command for the table, and if the local
 * table is empty, the table is copied here:
 *
 *	 1. The publisher exports the snapshot of that transaction (source.c).
 *	 2. The indexes are set aside (indexes.c).
 *	 3. Helpers copy ranges of blocks, each on a connection of its own, within the
 *		server's transaction on this side (helper.c, rows.c).
 *
 * What is then sent is the same command without any row, and the server's own code
 * takes that in.  It ends its transaction on the publisher next, and when that is
 * done, so that nothing is held there any longer,
 *
 *	 4. the indexes are built here,
 *
 * before the server commits on this side.  Whatever the copy meets is an error of the server's
 * transaction, and everything is rolled back; so a copy that has been cut off starts
 * from the beginning, with the next table synchronisation worker.
 *
 * Locks on the local table, in this order: the server's RowExclusiveLock;
 * ShareUpdateExclusiveLock while rows are copied, which lets others read and write,
 * as they natively may; AccessExclusiveLock while the indexes are built.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "copy/copy.h"
#include "guc.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* What one helper takes at once, in bytes on the publisher's disk. */
#define MIN_RANGE_BYTES (256 * 1024)
#define MAX_RANGE_BYTES (16 * 1024 * 1024)

static WalReceiverFunctionsType *native;
static WalReceiverFunctionsType functions;

/* The table whose rows are there, and whose indexes are to be built. */
static CopyProgress *unfinished = NULL;
static List *suspended_indexes;

/* The server copies the table itself. */
static void
leave_to_server(int level, Relation rel, const char *reason)
{
	ereport(level,
			(errmsg("table \"%s.%s\" of subscription \"%s\" is copied by the server's own code: %s",
					get_namespace_name(RelationGetNamespace(rel)),
					RelationGetRelationName(rel), MySubscription->name, reason)));
}

/*
 * May the table be copied here?  Says why not, unless it is just small.  What the
 * publisher can tell is asked last, and what costs it more only of large tables.
 */
static bool
suitable(WalReceiverConn *conn, Relation rel, const CopyCommand *command)
{
	const char *reason = NULL;

	if (!copy_source_supported(conn))
		reason = "the publisher is older than PostgreSQL 14";
	else if (copy_source_size(conn, command) < (uint64) weft_min_parallel_copy_size * 1024)
	{
		leave_to_server(DEBUG1, rel, "it is small");
		return false;
	}
	else if (copy_progress_unsafe(MySubscription->oid, RelationGetRelid(rel)))
		reason = "functions that it uses are not safe in parallel workers";
	else if (!copy_local_empty(rel))
		reason = "it is not empty";
	else
		reason = copy_local_obstacle(rel, command);
	if (reason != NULL)
		leave_to_server(LOG, rel, reason);
	return reason == NULL;
}

static CopyTask *
make_task(const char *text, Relation rel, const CopyCommand *command,
		  const CopySource *source, Size *size)
{
	CopyTask   *task;
	uint64		block_bytes = Max(source->bytes / Max(source->num_blocks, 1), 1);

	*size = offsetof(CopyTask, command) + strlen(text) + 1;
	task = palloc0(*size);
	task->subid = MySubscription->oid;
	task->relid = RelationGetRelid(rel);
	task->origin = replorigin_session_origin;
	task->binary = command->binary || copy_local_binary(rel, command, source->types);
	task->num_blocks = source->ranges ? source->num_blocks : 0;
	task->min_range = Max(MIN_RANGE_BYTES / block_bytes, 1);
	task->max_range = Max(MAX_RANGE_BYTES / block_bytes, 1);
	strlcpy(task->snapshot, source->snapshot, COPY_SNAPSHOT_LEN);
	strlcpy(task->identity, source->identity, COPY_IDENTITY_LEN);
	strcpy(task->command, text);
	SpinLockInit(&task->mutex);
	return task;
}

/*
 * How many helpers would be good?  If the WAL may be decoded, and values are stored out
 * of line, none: decoding forgets the parts of all such values of a transaction at each
 * of its rows, since it expects them right in front of the row that they belong to.
 */
static int
helpers_wanted(Relation rel, const CopySource *source, const CopyProgress *progress)
{
	if (!source->ranges || source->num_blocks == 0)
		return 0;
	if (copy_local_decoded(rel) &&
		(progress->alone || source->toast_bytes > 0 || copy_local_out_of_line(rel)))
		return 0;
	return weft_copy_workers_per_table;
}

/* What was not to be expected: values that are stored out of line only here. */
static void
check_decoding(Relation rel, CopyProgress *progress)
{
	if (pg_atomic_read_u32(&progress->helpers_used) < 2 ||
		!copy_local_decoded(rel) || !copy_local_out_of_line(rel))
		return;
	copy_progress_set_alone(progress);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("values of table \"%s\" had to be stored out of line while several processes copied it",
					RelationGetRelationName(rel)),
			 errdetail("Logical decoding could not read this."),
			 errhint("It will be copied by one process the next time.")));
}

/* No transaction may commit that has set indexes aside, and has not built them. */
static void
check_finished(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && unfinished != NULL)
		elog(ERROR, "indexes have not been built after an initial copy");
}

static void
report_rows(Relation rel, const CopyTask *task, CopyProgress *progress)
{
	uint32		processes = pg_atomic_read_u32(&progress->helpers_used);

	ereport(LOG,
			(errmsg_plural("table \"%s.%s\" of subscription \"%s\" was copied by %u process",
						   "table \"%s.%s\" of subscription \"%s\" was copied by %u processes",
						   processes,
						   get_namespace_name(RelationGetNamespace(rel)),
						   RelationGetRelationName(rel), MySubscription->name, processes),
			 errdetail("%llu rows, %llu bytes in %s format, %d ranges.",
					   (unsigned long long) pg_atomic_read_u64(&progress->rows),
					   (unsigned long long) pg_atomic_read_u64(&progress->bytes),
					   task->binary ? "binary" : "text", task->ranges_taken)));
}

static void
copy_table(CopyTask *task, Size size, Relation rel, const CopyCommand *command,
		   WalReceiverConn *conn, CopyProgress *progress)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	RegisterXactCallback(check_finished, NULL);
	unfinished = progress;
	suspended_indexes = copy_indexes_suspend(rel);
	MemoryContextSwitchTo(old);
	copy_source_keep_alive(conn);
	task->num_helpers = copy_progress_reserve(progress, task->num_helpers);
	if (task->num_helpers > 0)
		task = copy_helpers_run(task, size, conn);
	copy_progress_release_helpers(progress);
	if (!task->all_taken)
		copy_rows(task, command, conn);
	CommandCounterIncrement();
	check_decoding(rel, progress);

	pg_atomic_write_u64(&progress->copied_at, GetCurrentTimestamp());
	report_rows(rel, task, progress);
}

/* Remembers an error for the view, and goes on with it. */
static void
remember_error(CopyProgress *progress, MemoryContext context)
{
	MemoryContextSwitchTo(context);
	copy_progress_failed(progress, CopyErrorData());
}

/*
 * The server is about to send the command that copies the table.  Copies the table,
 * if that can be done here, and returns what the server is to send.
 */
static const char *
before_copy(WalReceiverConn *conn, const char *text)
{
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(old, "weft initial copy",
												  ALLOCSET_DEFAULT_SIZES);
	Relation	rel = table_open(MyLogicalRepWorker->relid, NoLock);
	CopyCommand command;
	CopySource	source;
	const char *result = text;

	MemoryContextSwitchTo(context);
	if (!copy_command_parse(text, get_namespace_name(RelationGetNamespace(rel)),
							RelationGetRelationName(rel), &command))
		leave_to_server(LOG, rel, "its command is not understood");
	else if (suitable(conn, rel, &command))
	{
		CopyProgress *progress = copy_progress_claim(MySubscription->oid,
													 RelationGetRelid(rel));
		CopyTask   *task;
		Size		size;

		copy_source_ask(conn, &command, &source);
		task = make_task(text, rel, &command, &source, &size);
		task->progress = copy_progress_index(progress);
		task->num_helpers = helpers_wanted(rel, &source, progress);
		pg_atomic_write_u64(&progress->table_bytes, source.bytes);
		pg_atomic_write_u64(&progress->blocks, source.num_blocks);
		PG_TRY();
		{
			copy_table(task, size, rel, &command, conn, progress);
		}
		PG_CATCH();
		{
			remember_error(progress, context);
			PG_RE_THROW();
		}
		PG_END_TRY();
		result = MemoryContextStrdup(old, copy_command_nothing(&command));
	}
	table_close(rel, NoLock);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return result;
}

/* The server has ended its transaction on the publisher. */
static void
after_copy(void)
{
	MemoryContext context = CurrentMemoryContext;
	CopyProgress *progress = unfinished;
	Relation	rel = table_open(MyLogicalRepWorker->relid, NoLock);

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

static bool
begins_with(const char *query, const char *word)
{
	return strncmp(query, word, strlen(word)) == 0;
}

/*
 * In place of walrcv_exec.  The server drops a table's slot in the transaction that
 * says that the table is in step, and commits that as a rule without waiting for the
 * disk.  After a crash it could ask for that slot again, for ever; so this one waits.
 */
static WalRcvExecResult *
copy_exec(WalReceiverConn *conn, const char *query, const int num_types, const Oid *types)
{
	static bool copying = false;
	WalRcvExecResult *result;

	if (MyLogicalRepWorker == NULL || !am_tablesync_worker() ||
		conn != LogRepWorkerWalRcvConn || copying)
		return (native->walrcv_exec) (conn, query, num_types, types);

	if (begins_with(query, "COPY ") && weft_copy_workers_per_table > 0)
	{
		/* An error ends the process. */
		copying = true;
		query = before_copy(conn, query);
		copying = false;
	}
	else if (begins_with(query, "DROP_REPLICATION_SLOT "))
		ForceSyncCommit();
	result = (native->walrcv_exec) (conn, query, num_types, types);

	if (unfinished && strcmp(query, "COMMIT") == 0 && result->status == WALRCV_OK_COMMAND)
		after_copy();
	return result;
}

/*
 * Puts us between the server and its COPY; called once, while the postmaster loads
 * us, behind seam_install().
 */
void
copy_install(void)
{
	native = WalReceiverFunctions;
	functions = *native;
	functions.walrcv_exec = copy_exec;
	WalReceiverFunctions = &functions;
}
