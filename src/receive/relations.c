/*
 * relations.c
 *	  What the leader knows about the publisher's relations.
 *
 * A RELATION message tells the leader which columns make up the key of a row, for
 * dependencies.  The writers need the same messages in order to apply changes.  This
 * module keeps the messages and says what is new in one; its caller passes them to
 * the writers, in the broadcast log (ring/broadcast.c).
 *
 * A message that changes the description of a known relation needs care: if writer W1
 * went back to the beginning of its transaction T1 after it had read such a message, it
 * would read changes of the old form with the new description.  Therefore
 * relations_take_in() says that the description has changed, and the caller makes
 * the message's record in the ring exclusive: once W1 has read it, T1 is not applied
 * again.
 *
 * Whether changes of a relation may run beside others depends on the local table,
 * and is determined when it is first needed.  The leader must never wait for a lock on
 * a table.
 *
 * 1. Possible deadlock: user U waits for a lock on the table that writer W1 holds,
 *	  the leader would queue behind U, and W1 waits for more of its transaction from
 *	  the leader.  Therefore the leader takes the lock only if it is available at once.
 *	  Otherwise the change is exclusive, which is always correct.
 *
 * 2. Possible deadlock: W1 applies a change of a table whose initial copy is in
 *	  progress.  It would wait for the lock of the table synchronization worker until
 *	  the copy ends, all writers with later transactions would wait for W1, and the
 *	  leader, which lets the copy catch up, for the writers.  Therefore the leader
 *	  drops such changes, as the server's apply worker does: the table synchronization
 *	  worker applies them.
 *
 * The copy of 2. must not end while such a change is in flight: the change would be
 * lost.  It cannot end: its worker waits until the server's apply loop, which runs only
 * when nothing is in flight, lets it catch up.  An earlier leader may have done so
 * already.  Therefore the leader reads the worker's state for each such change.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "common/hashfn.h"
#include "compat.h"
#include "local_table.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "receive/relations.h"
#include "replication/worker_internal.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "wire.h"

/*
 * One map for each process, as the invalidation callbacks, which cannot be
 * unregistered, must find it.
 */
static HTAB *relations;
static MemoryContext relations_context;

/* A local table has changed, or all of them have. */
static void
relation_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	LeaderRelation *relation;

	hash_seq_init(&scan, relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
		if (relid == InvalidOid || relation->partitioned ||
			relation->localreloid == relid || relation->localreloid == InvalidOid)
			relation->class = RELATION_UNKNOWN;
}

/* The synchronization state of some table has changed. */
static void
table_state_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	relation_changed(arg, InvalidOid);
}

/* Prepares for the first message; called once in a leader. */
void
relations_init(MemoryContext context)
{
	HASHCTL		info;

	relations_context = context;
	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(LeaderRelation);
	info.hcxt = context;
	relations = hash_create("weft relations", 64, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, table_state_changed, (Datum) 0);
}

/* Returns what is known about a relation, or NULL. */
LeaderRelation *
relations_find(LogicalRepRelId relid)
{
	static LeaderRelation *latest = NULL;

	/* Entries are never removed, so the pointer stays valid. */
	if (latest == NULL || latest->relid != relid)
		latest = hash_search(relations, &relid, HASH_FIND, NULL);
	return latest;
}

static uint64
hash_name(const char *name)
{
	return hash_bytes_extended((const unsigned char *) name, strlen(name), 0);
}

/* Fills in a relation's description from a message that has been checked. */
static void
describe(LeaderRelation *relation, WireRelation *wire)
{
	relation->natts = wire->natts;
	relation->full = wire->replident == REPLICA_IDENTITY_FULL;
	relation->seed = hash_combine64(hash_name(wire->nspname), hash_name(wire->relname));
	relation->num_keys = 0;
	relation->keys = MemoryContextAlloc(relations_context,
										Max(wire->natts, 1) * sizeof(int16));
	for (int i = 0; i < wire->natts; i++)
	{
		WireAttribute attribute;

		wire_read_attribute(&wire->attributes, &attribute);
		if (attribute.is_key || relation->full)
			relation->keys[relation->num_keys++] = i;
	}
}

/*
 * Takes in a RELATION message.  Later changes of the relation depend on transaction
 * "floor".  Sets *changed if the relation was known by another description.  Returns
 * what is wrong with the message, or NULL.
 *
 * The writers need the message even if it says nothing new: the server's code then
 * forgets what it knows about the local table, for instance that it is READY.
 */
const char *
relations_take_in(const char *message, int length, uint64 floor, bool *changed)
{
	WireRelation wire;
	LeaderRelation *relation;
	const char *problem;
	bool		known;

	problem = wire_read_relation(message, length, false, &wire);
	if (problem)
		return problem;

	relation = hash_search(relations, &wire.relid, HASH_ENTER, &known);
	*changed = known && (relation->message_length != length ||
						 memcmp(relation->message, message, length) != 0);
	if (!known || *changed)
	{
		if (known)
		{
			pfree(relation->message);
			pfree(relation->keys);
		}
		else
			relation->version = 0;
		relation->last_any = 0;
		relation->last_other = 0;
		relation->last_wide = 0;
		relation->message = MemoryContextAlloc(relations_context, length);
		memcpy(relation->message, message, length);
		relation->message_length = length;
		describe(relation, &wire);
	}
	relation->version++;
	relation->floor = floor;
	relation->class = RELATION_UNKNOWN;
	relation->localreloid = InvalidOid;
	relation->partitioned = false;
	return NULL;
}

/* Passes a RELATION message to the server's own relation map in this process. */
void
relations_tell_server(const char *message, int length)
{
	MemoryContext old = MemoryContextSwitchTo(ApplyMessageContext);
	StringInfoData relation;

	initReadOnlyStringInfo(&relation, unconstify(char *, message), length);
	apply_dispatch(&relation);
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
}

/*
 * Puts all known relations into the log of a new ring, and forgets the transactions of
 * the earlier one.
 */
void
relations_renew(BroadcastLog *log)
{
	HASH_SEQ_STATUS scan;
	LeaderRelation *relation;

	hash_seq_init(&scan, relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
	{
		broadcast_append(log, relation->message, relation->message_length);
		relation->floor = 0;
		relation->last_any = 0;
		relation->last_other = 0;
		relation->last_wide = 0;
	}
}

/* Does a column that the publisher does not fill have a volatile default? */
static bool
has_volatile_default(LeaderRelation *relation, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	LogicalRepRelation *remote;
	StringInfoData message;
	bool		result = false;

	initReadOnlyStringInfo(&message, relation->message + 1, relation->message_length - 1);
	remote = logicalrep_read_rel(&message);

	for (int i = 0; i < desc->natts && !result; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		bool		filled = false;
		Node	   *value;

		if (attribute->attisdropped || attribute->attgenerated)
			continue;
		for (int j = 0; j < remote->natts && !filled; j++)
			filled = strcmp(remote->attnames[j], NameStr(attribute->attname)) == 0;
		if (filled)
			continue;
		value = build_column_default(rel, i + 1);
		result = value != NULL && contain_volatile_functions(value);
	}
	return result;
}

/*
 * Classifies one local table.  Clears *known if its lock was not available, or
 * the table is gone.
 */
static RelationClass
classify_local(LeaderRelation *relation, Oid relid, bool *known)
{
	Relation	rel;
	RelationClass result = RELATION_PARALLEL;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
	{
		*known = false;
		return RELATION_EXCLUSIVE;
	}
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		*known = false;
		return RELATION_EXCLUSIVE;
	}
	if (local_table_fires_row_triggers(rel) || has_volatile_default(relation, rel))
		result = RELATION_EXCLUSIVE;
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relation->partitioned = true;
	relation_close(rel, AccessShareLock);
	return result;
}

/*
 * Is a table's initial copy in progress, and unable to end before this process allows
 * it?  Reads the worker's state before the catalog: if the worker has ended in between,
 * its last state is in the catalog.
 */
static bool
being_copied(Oid relid)
{
	LogicalRepWorker *worker;
	XLogRecPtr	lsn;
	char		state = SUBREL_STATE_UNKNOWN;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	worker = compat_worker_find(MySubscription->oid, relid, false);
	if (worker)
	{
		SpinLockAcquire(&worker->relmutex);
		state = worker->relstate;
		SpinLockRelease(&worker->relmutex);
	}
	LWLockRelease(LogicalRepWorkerLock);
	if (state == SUBREL_STATE_CATCHUP || state == SUBREL_STATE_SYNCDONE)
		return false;

	AcceptInvalidationMessages();
	state = GetSubscriptionRelState(MySubscription->oid, relid, &lsn);
	return state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC ||
		state == SUBREL_STATE_FINISHEDCOPY;
}

/*
 * Classifies a relation.  An error about the relation makes its changes exclusive
 * here; a writer reports it in its turn.
 */
static RelationClass
classify(LeaderRelation *relation, bool *known)
{
	WireRelation wire;
	RangeVar   *name;
	XLogRecPtr	state_lsn;
	RelationClass result;
	List	   *relids;
	ListCell   *cell;

	wire_read_relation(relation->message, relation->message_length, false, &wire);
	name = makeRangeVar(pstrdup(wire.nspname[0] ? wire.nspname : "pg_catalog"),
						pstrdup(wire.relname), -1);
	relation->partitioned = false;
	relation->localreloid = RangeVarGetRelid(name, NoLock, true);
	if (!OidIsValid(relation->localreloid))
		return RELATION_EXCLUSIVE;
	if (being_copied(relation->localreloid))
	{
		*known = false;
		return RELATION_BEING_COPIED;
	}
	if (GetSubscriptionRelState(MySubscription->oid, relation->localreloid,
								&state_lsn) != SUBREL_STATE_READY)
		return RELATION_EXCLUSIVE;

	result = classify_local(relation, relation->localreloid, known);
	if (!relation->partitioned || result != RELATION_PARALLEL)
		return result;

	relids = find_all_inheritors(relation->localreloid, NoLock, NULL);
	foreach(cell, relids)
	{
		if (lfirst_oid(cell) != relation->localreloid &&
			classify_local(relation, lfirst_oid(cell), known) != RELATION_PARALLEL)
			result = RELATION_EXCLUSIVE;
	}
	relation->partitioned = true;
	return result;
}

/* Says how changes of a relation may run. */
RelationClass
relations_class(LeaderRelation *relation)
{
	MemoryContext old = CurrentMemoryContext;
	RelationClass result;
	bool		known = true;

	if (relation->class != RELATION_UNKNOWN)
		return relation->class;

	StartTransactionCommand();
	/* An invalidation that arrives meanwhile resets the class to UNKNOWN. */
	relation->class = RELATION_EXCLUSIVE;
	result = classify(relation, &known);
	if (relation->class == RELATION_EXCLUSIVE && known)
		relation->class = result;
	else
		relation->class = RELATION_UNKNOWN;
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);

	if (result == RELATION_EXCLUSIVE)
		ereport(DEBUG1,
				(errmsg_internal("changes of remote relation %u run alone for subscription \"%s\"",
								 relation->relid, MySubscription->name)));
	return result;
}
