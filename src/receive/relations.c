/*
 * relations.c
 *	  What the leader knows of the publisher's relations.
 *
 * A RELATION message says which columns make up a row's key, for dependencies,
 * and is handed on to the writers through the broadcast log: each record of a
 * transaction stands behind the version of the log that it needs.
 *
 * A message that changes what is known of a relation must not meet a writer
 * that goes back to the beginning of its transaction, to changes of the old
 * form.  Its record in the ring is therefore exclusive: behind it, the
 * transaction is not applied again.
 *
 * Whether changes of a relation may run beside others depends on the local
 * table and is found out when it is needed.  The leader must never wait for a
 * lock on a table: a user waiting for a writer may stand before us in the
 * queue, and writers wait for us.  So the lock is taken only if it is free;
 * else the change is exclusive, which is always right.
 *
 * Changes of a table whose initial copy is not over are not applied, as natively:
 * its table synchronisation worker does that.  They are not even handed on, since a
 * writer would wait for its lock on the table until the copy lets go of it, and
 * everybody else for the writer.  The copy must not end while such a change is in
 * flight, or it would be lost; and it cannot: its worker waits for the server's apply
 * loop, which has the word only with nothing in flight, to let it catch up.  Unless an
 * earlier leader has done that; so the worker's state is looked at, each time.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "common/hashfn.h"
#include "local_table.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "receive/leader.h"
#include "receive/relations.h"
#include "receive/transaction.h"
#include "replication/worker_internal.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "wire.h"

static HTAB *relations;

/* The local table, or all of them, has changed. */
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

/* The synchronisation state of some table has changed. */
static void
table_state_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	relation_changed(arg, InvalidOid);
	leader.tables_valid = false;
}

/* Prepares for the first message; called once in a leader. */
void
relations_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(LeaderRelation);
	info.hcxt = leader.context;
	relations = hash_create("weft relations", 64, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, table_state_changed, (Datum) 0);
}

/* Returns what is known of a relation, or NULL. */
LeaderRelation *
relations_find(LogicalRepRelId relid)
{
	static LeaderRelation *latest = NULL;

	/* Entries are never removed, so the pointer stays good. */
	if (latest == NULL || latest->relid != relid)
		latest = hash_search(relations, &relid, HASH_FIND, NULL);
	return latest;
}

static uint64
hash_name(const char *name)
{
	return hash_bytes_extended((const unsigned char *) name, strlen(name), 0);
}

/* Fills in what the message says; the message has been read without problem. */
static void
describe(LeaderRelation *relation, WireRelation *wire)
{
	relation->natts = wire->natts;
	relation->full = wire->replident == REPLICA_IDENTITY_FULL;
	relation->seed = hash_combine64(hash_name(wire->nspname), hash_name(wire->relname));
	relation->num_keys = 0;
	relation->keys = MemoryContextAlloc(leader.context,
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
 * Takes in a RELATION message.  In a transaction that goes into the ring, its
 * writer is told to take it in at this place.
 */
void
relations_message(const char *message, int length)
{
	WireRelation wire;
	LeaderRelation *relation;
	const char *problem;
	bool		known;
	bool		changed;
	bool		open = leader.producer.open;

	problem = wire_read_relation(message, length, false, &wire);
	if (problem)
		leader_damage(message, problem);

	relation = hash_search(relations, &wire.relid, HASH_ENTER, &known);
	changed = known && (relation->message_length != length ||
						memcmp(relation->message, message, length) != 0);
	if (!known || changed)
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
		relation->message = MemoryContextAlloc(leader.context, length);
		memcpy(relation->message, message, length);
		relation->message_length = length;
		describe(relation, &wire);
	}
	relation->version++;
	relation->floor = leader.producer.seq - (open ? 1 : 0);
	relation->class = RELATION_UNKNOWN;
	relation->localreloid = InvalidOid;
	relation->partitioned = false;

	/*
	 * One that is not new is sent on, too: the server's code then forgets
	 * what it knows of the local table, for instance that it is READY.
	 */
	if (leader.num_writers > 0)
	{
		uint64		version = broadcast_append(&leader.broadcast, message, length);

		if (open)
			transaction_record(RING_BROADCAST, changed ? RING_EXCLUSIVE : 0, version, NULL, 0);
	}
}

/* Tells the server's own relation map in this process, too. */
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

/* Tells new writers all that is known. */
void
relations_broadcast_all(void)
{
	HASH_SEQ_STATUS scan;
	LeaderRelation *relation;

	hash_seq_init(&scan, relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
	{
		broadcast_append(&leader.broadcast, relation->message, relation->message_length);
		relation->floor = 0;
		relation->last_any = 0;
		relation->last_other = 0;
		relation->last_wide = 0;
	}
}

/* Is there a column that the publisher does not fill, with a volatile default? */
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
 * Classifies one local table; *known is cleared if it could not be looked at.
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
	if (local_table_fires_triggers(rel) || has_volatile_default(relation, rel))
		result = RELATION_EXCLUSIVE;
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relation->partitioned = true;
	relation_close(rel, AccessShareLock);
	return result;
}

/*
 * Is a table's initial copy not over, and can it not be over before we allow it?
 * The worker is looked at first: if it is gone, its last state is seen.
 */
static bool
being_copied(Oid relid)
{
	LogicalRepWorker *worker;
	XLogRecPtr	lsn;
	char		state = SUBREL_STATE_UNKNOWN;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	worker = logicalrep_worker_find(MySubscription->oid, relid, false);
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
 * Classifies a relation.  Whatever is wrong with it is for a writer to report,
 * at its time; here it makes the change exclusive.
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

/* May changes of a relation run beside others? */
RelationClass
relations_class(LeaderRelation *relation)
{
	MemoryContext old = CurrentMemoryContext;
	RelationClass result;
	bool		known = true;

	if (relation->class != RELATION_UNKNOWN)
		return relation->class;

	StartTransactionCommand();
	/* An invalidation that arrives meanwhile sets this back again. */
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
