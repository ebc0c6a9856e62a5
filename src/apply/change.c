/*
 * change.c
 *	  Applying one message, through the server's own apply code.
 *
 * That code is made for a process that ends after an error.  We go on, so what
 * an error leaves behind there is put in order by change_repair():
 *	 - the relation map has a relation marked as open; taking in its RELATION
 *	   message again makes the entry new;
 *	 - the error context still names relation and column of the message, and
 *	   could be asked for a column that the next relation does not have; the
 *	   handler of an empty transaction's COMMIT clears it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/writer.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "conflict/conflict_apply.h"
#include "conflict/remote_transaction.h"
#include "fast/fast.h"
#include "mb/pg_wchar.h"
#include "message_builder.h"
#include "misspeculate.h"
#include "pgstat.h"
#include "replication/worker_internal.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "row_change.h"
#include "wire.h"

#if HAVE_APPLY_CONFLICTS
#include "replication/conflict.h"
#include "utils/pgstat_internal.h"
#endif

/* The newest RELATION message of a relation; it stays in the broadcast log. */
typedef struct RelationMessage
{
	LogicalRepRelId relid;		/* hash key */
	const char *message;
	int			length;
} RelationMessage;

static HTAB *relation_messages;

/* The relations of which a streamed transaction has brought its own message. */
static List *own_relations = NIL;

/* The change that the server's code is working on, or failed at; no message: none. */
static RowChange current;

/* It is ours that is working on the message. */
static bool detecting = false;

bool
change_in_progress(void)
{
	return current.message != NULL && !detecting;
}

/*
 * Gives back, while we sleep between two changes, the buffer pins and snapshots that
 * VACUUM, CREATE INDEX CONCURRENTLY and others wait for.  Tables are opened again by
 * the next change; their locks are kept.
 */
void
change_rest(void)
{
	if (current.message != NULL || !IsTransactionState())
		return;
	fast_close();
	InvalidateCatalogSnapshotConditionally();
}

static void
dispatch(const RowChange *change)
{
	StringInfoData buffer;
	MemoryContext old = MemoryContextSwitchTo(ApplyMessageContext);

	current = *change;
	initReadOnlyStringInfo(&buffer, change->message, change->length);
	apply_dispatch(&buffer);
	current.message = NULL;
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
}

/* Passes a message that is no row's change. */
static void
dispatch_message(const char *message, int length)
{
	RowChange	change = row_change_read(message, length);

	dispatch(&change);
}

/*
 * Applies a row with conflicts being detected.  Returns false if that is not
 * possible.
 */
static bool
detect(const RowChange *change)
{
	MemoryContext old = MemoryContextSwitchTo(ApplyMessageContext);
	bool		result;

	current = *change;
	detecting = true;
	result = conflict_apply(change, writer.final);
	detecting = false;
	current.message = NULL;
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
	return result;
}

/*
 * The server logs some conflicts and goes on; above all, that there is no row to be
 * updated or deleted.  If we are too early, there may be no conflict at all: then nothing
 * is logged, and the attempt counts as misspeculated.
 *
 * From version 18 on the server counts them, too.  That tells of them whatever is logged,
 * and goes back to what it was before the attempt.  Version 17 tells by a message for
 * debugging only; so that is asked for, and what nobody else has asked for is dropped.
 */
#if HAVE_APPLY_CONFLICTS
#define CONFLICT_MESSAGE "conflict detected on relation"
#else
#define CONFLICT_MESSAGE "logical replication did not find row"
#endif

static emit_log_hook_type previous_emit_log_hook;
static bool conflict_met;
static int	configured_log_level;	/* while we listen */
static bool listening = false;

/* Is a message of a level to be logged, as configured?  The server's rule. */
static bool
is_logged(int level)
{
	if (level == LOG || level == LOG_SERVER_ONLY)
		return configured_log_level == LOG || configured_log_level <= ERROR;
	return level >= (configured_log_level == LOG ? FATAL : configured_log_level);
}

static void
emit_log(ErrorData *error)
{
	if (!writer.final && current.message != NULL && error->message_id != NULL &&
		strncmp(error->message_id, CONFLICT_MESSAGE, strlen(CONFLICT_MESSAGE)) == 0)
	{
		conflict_met = true;
		error->output_to_server = false;
	}
	if (listening && !is_logged(error->elevel))
		error->output_to_server = false;
	if (previous_emit_log_hook && error->output_to_server)
		previous_emit_log_hook(error);
}

/* From here on, the server's code is to tell of conflicts. */
static void
listen_to_server(void)
{
#if !HAVE_APPLY_CONFLICTS
	if (writer.final)
		return;
	configured_log_level = log_min_messages;
	log_min_messages = Min(log_min_messages, DEBUG1);
	listening = true;
#endif
}

/* The server's code has returned, or failed. */
static void
stop_listening(void)
{
	if (listening)
		log_min_messages = configured_log_level;
	listening = false;
}

#if HAVE_APPLY_CONFLICTS

static PgStat_Counter kept_conflicts[CONFLICT_NUM_TYPES];

static PgStat_Counter *
pending_conflicts(void)
{
	PgStat_EntryRef *entry = pgstat_fetch_pending_entry(PGSTAT_KIND_SUBSCRIPTION,
														InvalidOid, MySubscription->oid);

	return entry ? ((PgStat_BackendSubEntry *) entry->pending)->conflict_count : NULL;
}

/* Before an attempt. */
void
change_keep_conflicts(void)
{
	PgStat_Counter *pending = pending_conflicts();

	conflict_met = false;
	if (pending)
		memcpy(kept_conflicts, pending, sizeof(kept_conflicts));
	else
		memset(kept_conflicts, 0, sizeof(kept_conflicts));
}

/* After an attempt that was rolled back. */
void
change_forget_conflicts(void)
{
	PgStat_Counter *pending = pending_conflicts();

	if (pending && !writer.final)
		memcpy(pending, kept_conflicts, sizeof(kept_conflicts));
}

static bool
conflict_counted(void)
{
	PgStat_Counter *pending = pending_conflicts();

	return !writer.final && pending != NULL &&
		memcmp(pending, kept_conflicts, sizeof(kept_conflicts)) != 0;
}

#else

void
change_keep_conflicts(void)
{
	conflict_met = false;
}

void
change_forget_conflicts(void)
{
}

static bool
conflict_counted(void)
{
	return false;
}

#endif

static void
check_conflict(void)
{
	stop_listening();
	if (conflict_met || conflict_counted())
		misspeculate("conflict in a speculative transaction");
}

/* Called once in a writer. */
void
change_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(RelationMessage);
	info.hcxt = ApplyContext;
	relation_messages = hash_create("weft relation messages", 64, &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
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
change_relation(const char *message, int length)
{
	WireRelation relation;
	RelationMessage *entry;
	const char *problem = wire_read_relation(message, length, false, &relation);

	if (problem)
		elog(ERROR, "broken broadcast log: %s", problem);
	entry = hash_search(relation_messages, &relation.relid, HASH_ENTER, NULL);
	entry->message = message;
	entry->length = length;
	fast_relation_changed(relation.relid);
	dispatch_message(message, length);
}

/* Reads the newest RELATION message of a relation that is not a streamed transaction's. */
bool
change_find_relation(LogicalRepRelId relid, WireRelation *relation)
{
	RelationMessage *entry = hash_search(relation_messages, &relid, HASH_FIND, NULL);

	return entry != NULL &&
		wire_read_relation(entry->message, entry->length, false, relation) == NULL;
}

/*
 * Takes in a RELATION message of a streamed transaction.
 */
void
change_own_relation(const char *message, int length)
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
 * The streamed transaction is over: what holds for others holds again.  A table may
 * still be open.
 */
void
change_forget_own_relations(void)
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

/* The server takes text as it comes; what is not valid would be stored. */
static void
check_text(const RowChange *change)
{
	int			column = wire_invalid_text(row_change_tuples(change));

	if (column != 0)
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("invalid logical replication message for subscription \"%s\"",
						MySubscription->name),
				 errdetail("Message \"%s\" at LSN %X/%X: the value of column %d is not valid in encoding \"%s\".",
						   logicalrep_message_type((LogicalRepMsgType) (uint8) change->type),
						   LSN_FORMAT_ARGS(writer.final_lsn), column,
						   GetDatabaseEncodingName()),
				 errhint("Nothing of this transaction has been applied. Check the publisher's data and encoding.")));
}

/* Is the local table of a relation READY?  Locks it for a change. */
static bool
lock_ready(LogicalRepRelId relid)
{
	LogicalRepRelMapEntry *entry;
	bool		result;

	PushActiveSnapshot(GetTransactionSnapshot());
	entry = logicalrep_rel_open(relid, RowExclusiveLock);
	result = entry->state == SUBREL_STATE_READY;
	logicalrep_rel_close(entry, NoLock);
	PopActiveSnapshot();
	return result;
}

/*
 * Whether changes of a table that is being synchronized are to be applied depends on
 * where the transaction ends, which a stream writer does not know.
 */
static void
check_ready(const RowChange *change)
{
	if (writer.stream != NULL && !lock_ready(change->relid))
		misspeculate("a table is being synchronized");
}

/* The server's code has applied an INSERT, UPDATE or DELETE message. */
static void
count_row(const RowChange *change)
{
	MemoryContext old = MemoryContextSwitchTo(ApplyMessageContext);

	/*
	 * The relation is looked up, so after an error there is as much to
	 * repair.
	 */
	current = *change;
	fast_count_general(change, writer.final_lsn);
	current.message = NULL;
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
}

/* Applies a message of a transaction. */
void
change_apply(const RowChange *change)
{
	WireBegin	begin;

	switch (change->type)
	{
		case LOGICAL_REP_MSG_BEGIN:
			wire_read_begin(change->message, change->length, &begin);
			writer.remote_xid = begin.xid;
			writer.final_lsn = begin.final_lsn;
			if (writer.detect_conflicts)
				conflict_begin(begin.commit_time, begin.xid, begin.final_lsn);
			break;
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
			if (!writer.careful && !writer.committed_to && 
				fast_apply(change, writer.final))
				return;
			fast_store_all();
			check_text(change);
			if (writer.detect_conflicts && detect(change))
			{
				count_row(change);
				return;
			}
			check_ready(change);
			break;
		case LOGICAL_REP_MSG_TRUNCATE:
			/* No table may be open then. */
			fast_close();
			pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
			break;
	}
	listen_to_server();
	dispatch(change);
	check_conflict();
	if (change->is_row)
		count_row(change);
}

/* Clears the server's error context. */
static void
clear_error_context(void)
{
	char		memory[1 + 1 + 8 + 8 + 8];
	MessageBuilder commit;

	message_start(&commit, memory, sizeof(memory), LOGICAL_REP_MSG_COMMIT);
	message_byte(&commit, 0);	/* flags */
	message_uint64(&commit, writer.final_lsn);
	message_uint64(&commit, InvalidXLogRecPtr); /* its end */
	message_uint64(&commit, 0); /* its time */

	/* The apply worker would look after tables to synchronise; we must not. */
	MyLogicalRepWorker->type = WORKERTYPE_PARALLEL_APPLY;
	dispatch_message(commit.data, commit.length);
	MyLogicalRepWorker->type = WORKERTYPE_APPLY;
}

/* Puts the server's apply code in order after a transaction was rolled back. */
void
change_repair(void)
{
	RowChange	failed = current;
	LogicalRepRelId fast_relid = fast_after_abort();
	WireCursor	relids;
	int			count;

	current.message = NULL;
	detecting = false;
	stop_listening();
	MemoryContextReset(ApplyMessageContext);
	change_forget_own_relations();
	if (OidIsValid(fast_relid))
		renew_relation(fast_relid);
	if (failed.message == NULL)
		return;

	if (failed.is_row)
		renew_relation(failed.relid);
	else if (failed.type == LOGICAL_REP_MSG_TRUNCATE &&
			 wire_read_truncate(failed.message, failed.length, false, &count, &relids) == NULL)
		for (int i = 0; i < count; i++)
			renew_relation(wire_uint32(&relids));
	clear_error_context();
}
