/*
 * server_apply.c
 *	  Drives the server's own apply code, and repairs it after an error.
 *
 * That code is made for a process that ends after an error.  A writer goes on.  Therefore
 * server_apply_repair() mends what an error leaves behind there:
 *	 - The relation map has a relation marked as open.  To take in its RELATION message
 *	   again makes the entry new.
 *	 - The error context still names relation and column of the message, and could be
 *	   asked for a column that the next relation does not have.  The handler of an empty
 *	   transaction's COMMIT clears it.
 *
 * The server's code goes on if there is no row to be updated or deleted; 18 does so
 * after some other conflicts, too, and logs and counts them.  While transaction T1 is
 * speculative, an earlier transaction may still store the row that T1 misses.  Therefore
 * the writer has to find out about such an end, and misspeculate.
 *
 * It does not rely on what the server says, but on what the server has counted:
 *	 - 18: the counters of conflicts in the subscription's pending statistics, which the
 *	   server's code increments before it logs a conflict, whatever the settings are.  If a
 *	   counter has changed since the attempt began, the message about the conflict is not
 *	   logged: the attempt is rolled back.
 *	   Afterwards the counters are set back to what they were before the attempt.
 *	 - 17: the rows that the local transaction has stored in the change's table or its
 *	   partitions, or removed there.  The table's access method counts each of them in the
 *	   pending statistics, and the sum grows with every UPDATE and DELETE that has found
 *	   its row.  Without a row, the server's code looks for it and does nothing else: it
 *	   fires no trigger, and an unsuccessful search stores nothing.  If the sum has not
 *	   grown, the row is taken for missing.  That is a mistake if a trigger has suppressed
 *	   the change, if the table is not READY, if its access method does not count, or if
 *	   track_counts is off.  Then the writer applies the transaction again when it is the
 *	   oldest, which is right as well; and the leader makes transactions run alone in
 *	   the first two cases.  The opposite mistake would lose a change.  Therefore other
 *	   tables do not count: a function may store rows there while the message is read,
 *	   in the CHECK constraint of a domain for example.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/column_filter.h"
#include "apply/server_apply.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "compat.h"
#include "fast/fast.h"
#include "message_builder.h"
#include "misspeculate.h"
#include "replication/worker_internal.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pgstat_internal.h"

#if HAVE_APPLY_CONFLICTS
#include "replication/conflict.h"
#endif

/* The newest RELATION message of a relation; it stays in the broadcast log. */
typedef struct RelationMessage
{
	LogicalRepRelId relid;		/* hash key */
	const char *original;		/* as it was sent */
	int			original_length;
	const char *message;		/* as it is applied (column_filter.c) */
	int			length;
} RelationMessage;

static HTAB *relation_messages;

/* The relations of which a streamed transaction has brought its own message. */
static List *own_relations = NIL;

typedef struct CurrentChange
{
	RowChange	change;			/* without a message: none */
	bool		by_server;		/* its error context names the message */
	MemoryContext caller;
} CurrentChange;

/* The change that is being applied, or that an error has interrupted. */
static CurrentChange current;

/*
 * Begins to apply a message by something that looks relations up in the server's map:
 * if an error is thrown before server_apply_leave(), there is something to repair.
 */
void
server_apply_enter(const RowChange *change)
{
	current.caller = MemoryContextSwitchTo(ApplyMessageContext);
	current.change = *change;
	current.by_server = false;
}

void
server_apply_leave(void)
{
	current.change.message = NULL;
	MemoryContextSwitchTo(current.caller);
	MemoryContextReset(ApplyMessageContext);
}

/* Is a message being applied? */
bool
server_apply_busy(void)
{
	return current.change.message != NULL;
}

/* Does the server's code say, in the context of an error, which message it is about? */
bool
server_apply_names_message(void)
{
	return current.change.message != NULL && current.by_server;
}

#if HAVE_DEAD_TUPLE_RETENTION

/*
 * The server's code finds out whether a missing row was deleted, among the dead rows that the
 * leader has retained.  It takes this process for the leader, and asks its entry how far back
 * they are complete.  The copy has what was true when this writer was started.
 */
static void
renew_retention(void)
{
	LogicalRepWorker *leader;
	TransactionId oldest = InvalidTransactionId;

	if (!compat_retains_dead_tuples(MySubscription))
		return;
	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	leader = compat_worker_find(MySubscription->oid, InvalidOid, true);
	if (leader)
	{
		SpinLockAcquire(&leader->relmutex);
		oldest = leader->oldest_nonremovable_xid;
		SpinLockRelease(&leader->relmutex);
	}
	LWLockRelease(LogicalRepWorkerLock);
	MyLogicalRepWorker->oldest_nonremovable_xid = oldest;
}

#else

static void
renew_retention(void)
{
}

#endif

/* Has the server's code apply a message. */
static void
dispatch(const RowChange *change)
{
	StringInfoData buffer;

	if (change->type == LOGICAL_REP_MSG_UPDATE)
		renew_retention();
	server_apply_enter(change);
	current.by_server = true;
	initReadOnlyStringInfo(&buffer, change->message, change->length);
	apply_dispatch(&buffer);
	server_apply_leave();
}

/* The same for a message that is no row's change. */
static void
dispatch_message(const char *message, int length)
{
	RowChange	change = row_change_read(message, length);

	dispatch(&change);
}

#if HAVE_APPLY_CONFLICTS

/* What the server has counted before the attempt. */
static PgStat_Counter kept_conflicts[CONFLICT_NUM_TYPES];

static emit_log_hook_type previous_emit_log_hook;

static PgStat_Counter *
pending_conflicts(void)
{
	PgStat_EntryRef *entry = pgstat_fetch_pending_entry(PGSTAT_KIND_SUBSCRIPTION,
														InvalidOid, MySubscription->oid);

	return entry ? ((PgStat_BackendSubEntry *) entry->pending)->conflict_count : NULL;
}

static void
keep_conflicts(void)
{
	PgStat_Counter *pending = pending_conflicts();

	if (pending)
		memcpy(kept_conflicts, pending, sizeof(kept_conflicts));
	else
		memset(kept_conflicts, 0, sizeof(kept_conflicts));
}

static void
restore_conflicts(void)
{
	PgStat_Counter *pending = pending_conflicts();

	if (pending && attempt_stage() == ATTEMPT_SPECULATIVE)
		memcpy(pending, kept_conflicts, sizeof(kept_conflicts));
}

static bool
conflict_counted(void)
{
	PgStat_Counter *pending = pending_conflicts();

	return pending != NULL && memcmp(pending, kept_conflicts, sizeof(kept_conflicts)) != 0;
}

/*
 * Leaves out of the log what is said about a conflict that may be none.  Looking at the
 * counters can take locks and memory, so that is not done for any other message.
 */
static void
emit_log(ErrorData *error)
{
	if (error->elevel == LOG && error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE &&
		server_apply_names_message() &&
		attempt_stage() == ATTEMPT_SPECULATIVE && conflict_counted())
		error->output_to_server = false;
	if (previous_emit_log_hook && error->output_to_server)
		previous_emit_log_hook(error);
}

static void
install_callbacks(void)
{
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
}

/* Applies a message; returns whether that has, or may have, met a conflict. */
static bool
apply_meets_conflict(const RowChange *change)
{
	dispatch(change);
	return conflict_counted();
}

#else

static void
keep_conflicts(void)
{
}

static void
restore_conflicts(void)
{
}

/* Entries for pairs of tables; a power of two. */
#define NUM_MEMBERS 1024

/* Is a table a partition, of any level, of a table that changes are applied to? */
typedef struct Member
{
	Oid			table;			/* invalid: nothing is known */
	Oid			target;
	bool		is_partition;
} Member;

/* What has been looked up; a global for the invalidation callback. */
static Member members[NUM_MEMBERS];

/* A table may have been attached or detached. */
static void
forget_members(Datum arg, Oid relid)
{
	memset(members, 0, sizeof(members));
}

static void
install_callbacks(void)
{
	CacheRegisterRelcacheCallback(forget_members, (Datum) 0);
}

static bool
is_partition_of(Oid table, Oid target)
{
	Member	   *member = &members[hash_combine(murmurhash32(table), target) & (NUM_MEMBERS - 1)];

	if (member->table != table || member->target != target)
	{
		List	   *ancestors = get_partition_ancestors(table);
		bool		found = list_member_oid(ancestors, target);

		list_free(ancestors);
		*member = (Member)
		{
			table, target, found
		};
	}
	return member->is_partition;
}

static PgStat_Counter
num_stored(const PgStat_TableXactStatus *table)
{
	return table->tuples_inserted + table->tuples_updated + table->tuples_deleted;
}

/* How many rows has the local transaction stored in a table, or removed there? */
static PgStat_Counter
rows_stored_in(Oid target)
{
	PgStat_EntryRef *entry = pgstat_fetch_pending_entry(PGSTAT_KIND_RELATION,
														MyDatabaseId, target);
	PgStat_Counter result = 0;

	if (entry == NULL)
		return 0;
	for (const PgStat_TableXactStatus *level = ((PgStat_TableStatus *) entry->pending)->trans;
		 level != NULL; level = level->upper)
		result += num_stored(level);
	return result;
}

/* The same for a table's partitions, at the transaction's current level. */
static PgStat_Counter
rows_stored_in_partitions(Oid target)
{
	PgStat_Counter result = 0;

	for (const PgStat_TableXactStatus *table =
		 pgstat_get_xact_stack_level(GetCurrentTransactionNestLevel())->first;
		 table != NULL; table = table->next)
		if (is_partition_of(table->parent->id, target))
			result += num_stored(table);
	return result;
}

static PgStat_Counter
rows_stored(Oid target)
{
	/* If there is no transaction yet, the message begins one. */
	if (!IsTransactionState())
		return 0;
	return get_rel_relkind(target) == RELKIND_PARTITIONED_TABLE ?
		rows_stored_in_partitions(target) : rows_stored_in(target);
}

/* Applies a message; returns whether that has, or may have, met a conflict. */
static bool
apply_meets_conflict(const RowChange *change)
{
	Oid			target;
	PgStat_Counter before;

	if (change->type != LOGICAL_REP_MSG_UPDATE && change->type != LOGICAL_REP_MSG_DELETE)
	{
		dispatch(change);
		return false;
	}
	target = fast_local_table(change->relid);
	before = rows_stored(target);
	dispatch(change);
	return rows_stored(target) <= before;
}

#endif

/* An attempt begins. */
void
server_apply_attempt(void)
{
	keep_conflicts();
}

/*
 * Applies a message of a transaction.  Fails if that meets a conflict which may only be
 * due to the transaction's being too early.
 */
void
server_apply_change(const RowChange *change)
{
	if (attempt_stage() != ATTEMPT_SPECULATIVE)
		dispatch(change);
	else if (apply_meets_conflict(change))
		misspeculate("conflict in a speculative transaction");
}

/* Called once in a writer. */
void
server_apply_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(RelationMessage);
	info.hcxt = ApplyContext;
	relation_messages = hash_create("weft relation messages", 64, &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	install_callbacks();
}

/* Takes in the newest RELATION message of a relation again. */
static void
renew_relation(LogicalRepRelId relid)
{
	RelationMessage *entry = hash_search(relation_messages, &relid, HASH_FIND, NULL);

	if (entry)
		dispatch_message(entry->message, entry->length);
}

/* Takes in a RELATION message from the broadcast log. */
void
server_apply_relation(const char *message, int length)
{
	WireRelation relation;
	RelationMessage *entry;
	const char *problem = wire_read_relation(message, length, false, &relation);

	if (problem)
		elog(ERROR, "broken broadcast log: %s", problem);
	entry = hash_search(relation_messages, &relation.relid, HASH_ENTER, NULL);
	entry->original = message;
	entry->original_length = length;
	entry->message = column_filter_relation(relation.relid, message, &length);
	entry->length = length;
	fast_relation_changed(relation.relid);
	dispatch_message(entry->message, entry->length);
}

/* Takes in a RELATION message of a streamed transaction, which holds until that is over. */
void
server_apply_own_relation(const char *message, int length)
{
	WireRelation relation;
	const char *problem = wire_read_relation(message, length, false, &relation);
	MemoryContext old = MemoryContextSwitchTo(ApplyContext);

	if (problem)
		elog(ERROR, "broken spool: %s", problem);
	own_relations = list_append_unique_oid(own_relations, relation.relid);
	MemoryContextSwitchTo(old);
	fast_relation_changed(relation.relid);
	dispatch_message(message, length);
}

/*
 * The streamed transaction is over: the messages of the broadcast log hold again.  A table
 * may still be open.
 */
void
server_apply_forget_own_relations(void)
{
	ListCell   *cell;

	foreach(cell, own_relations)
	{
		fast_relation_changed(lfirst_oid(cell));
		renew_relation(lfirst_oid(cell));
	}
	list_free(own_relations);
	own_relations = NIL;
}

/* Returns that message, as it was sent, or NULL. */
const char *
server_apply_relation_message(LogicalRepRelId relid, int *length)
{
	RelationMessage *entry = hash_search(relation_messages, &relid, HASH_FIND, NULL);

	if (entry == NULL)
		return NULL;
	*length = entry->original_length;
	return entry->original;
}

/* Returns the relation of the row that an error has interrupted, or InvalidOid. */
LogicalRepRelId
server_apply_failed_relid(void)
{
	return current.change.message != NULL && current.change.is_row ?
		current.change.relid : InvalidOid;
}

/* Reads the newest RELATION message of a relation that is not a streamed transaction's. */
bool
server_apply_find_relation(LogicalRepRelId relid, WireRelation *relation)
{
	RelationMessage *entry = hash_search(relation_messages, &relid, HASH_FIND, NULL);

	return entry != NULL &&
		wire_read_relation(entry->message, entry->length, false, relation) == NULL;
}

/*
 * Takes in again the relations that a change is about.  Its message may be gone, since that
 * of a streamed transaction lives in memory of the local transaction.
 */
static void
renew_relations_of(const RowChange *change)
{
	HASH_SEQ_STATUS scan;
	RelationMessage *entry;

	if (change->is_row)
		renew_relation(change->relid);
	if (change->type != LOGICAL_REP_MSG_TRUNCATE)
		return;

	/* It is not known which ones it was about. */
	hash_seq_init(&scan, relation_messages);
	while ((entry = hash_seq_search(&scan)) != NULL)
		dispatch_message(entry->message, entry->length);
}

/* Clears the server's error context, by an empty transaction's COMMIT. */
static void
clear_error_context(void)
{
	char		memory[1 + 1 + 8 + 8 + 8];
	MessageBuilder commit;

	message_start(&commit, memory, sizeof(memory), LOGICAL_REP_MSG_COMMIT);
	message_byte(&commit, 0);	/* flags */
	message_uint64(&commit, attempt_subject()->final_lsn);
	message_uint64(&commit, InvalidXLogRecPtr); /* its end */
	message_uint64(&commit, 0); /* its time */

	/*
	 * The apply worker would look after tables to synchronize; a writer must
	 * not.
	 */
	MyLogicalRepWorker->type = WORKERTYPE_PARALLEL_APPLY;
	dispatch_message(commit.data, commit.length);
	MyLogicalRepWorker->type = WORKERTYPE_APPLY;
}

/* Puts the server's code in order after a transaction was rolled back. */
void
server_apply_repair(void)
{
	RowChange	failed = current.change;
	LogicalRepRelId fast_relid = fast_after_abort();

	current.change.message = NULL;
	MemoryContextReset(ApplyMessageContext);
	server_apply_forget_own_relations();
	if (OidIsValid(fast_relid))
		renew_relation(fast_relid);
	if (failed.message != NULL)
	{
		renew_relations_of(&failed);
		clear_error_context();
	}
	restore_conflicts();
}
