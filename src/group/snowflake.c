/*
 * snowflake.c
 *	  Numbers that are unique in a node group, made without asking other nodes.
 *
 * From the highest bit on: the sign, which is 0; 41 bits of milliseconds since 2024-01-01
 * UTC, enough until 2093; 10 bits with the node's number; 12 bits that count within the
 * millisecond.
 *
 * Milliseconds and count are one number in shared memory, which only grows: each call takes
 * the time, or the last number plus one if that is greater.  Therefore a server never makes
 * the same number twice while it runs, whatever the sequence.  If a server makes more than
 * 4096 numbers in a millisecond, or if its clock is set back, the number is ahead of the
 * clock for a while.
 *
 * If a server's clock is set back while it is restarted, the server could start below
 * numbers that it has made before.  The sequence prevents that: it contains a time up to
 * which numbers have been reserved, about a second ahead, and no session makes a number
 * beyond that time without advancing it first.  Like every change of a sequence, that is in
 * the WAL before any later commit.  The value of the sequence is the time, shifted by 20
 * bits, and a random number that this run of the server has drawn.  A session that finds the
 * number of another run there makes shared memory continue from that time.
 *
 * Deadlocks: a session locks the sequence first, as nextval() does, then takes the
 * lightweight lock, which it holds while it reads and advances the sequence, so that the
 * sequence never goes back.  A session that holds the lightweight lock waits for nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "group/snowflake.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define COUNT_BITS 12
#define NODE_BITS 10
#define RUN_BITS 20
#define RESERVED_MS 1000

/* 2024-01-01, as a TimestampTz. */
#define EPOCH INT64CONST(757382400000000)

typedef struct SnowflakeShared
{
	LWLock	   *lock;			/* held while a sequence is moved on */
	int64		run;			/* which run of the server this is */
	pg_atomic_uint64 last;		/* milliseconds and count that were used last */
} SnowflakeShared;

/* What this session knows of a sequence. */
typedef struct KnownSequence
{
	Oid			relid;			/* must be first */
	int64		reserved;		/* numbers before this time are reserved */
} KnownSequence;

static SnowflakeShared *shared = NULL;
static HTAB *known_sequences = NULL;
static Oid	node_table = InvalidOid;
static int	node_id = 0;		/* 0: not known */

PG_FUNCTION_INFO_V1(weft_snowflake_nextval);

/* Requests space in the main shared memory. */
void
snowflake_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(SnowflakeShared)));
	RequestNamedLWLockTranche("weft_snowflake", 1);
}

/* Creates the shared state, or attaches to it. */
void
snowflake_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("weft snowflake", sizeof(SnowflakeShared), &found);
	if (!found)
	{
		shared->lock = &GetNamedLWLockTranche("weft_snowflake")->lock;
		shared->run = pg_prng_uint64_range(&pg_global_prng_state, 0, (1 << RUN_BITS) - 1);
		pg_atomic_init_u64(&shared->last, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Forgets the node's number when the table of nodes, or every table, changes. */
static void
forget_node(Datum arg, Oid relid)
{
	if (relid == node_table || !OidIsValid(relid))
		node_id = 0;
}

/* Reads this node's number, whether or not the user may read the table. */
static int
read_node_id(void)
{
	Relation	table = table_open(node_table, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(table);
	AttrNumber	id_column = get_attnum(node_table, "node_id");
	AttrNumber	local_column = get_attnum(node_table, "is_local");
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;
	int			result = 0;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		bool		no_id;
		Datum		id = heap_getattr(tuple, id_column, desc, &no_id);

		if (DatumGetBool(heap_getattr(tuple, local_column, desc, &isnull)) && !no_id)
			result = DatumGetInt32(id);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
	return result;
}

static int
get_node_id(void)
{
	static bool registered = false;

	AcceptInvalidationMessages();
	if (node_id != 0)
		return node_id;
	if (!registered)
		CacheRegisterRelcacheCallback(forget_node, (Datum) 0);
	registered = true;

	/* In this order, so that an invalidation during the read is not lost. */
	node_table = get_relname_relid("node_entry", get_namespace_oid("weft", false));
	if (OidIsValid(node_table))
		node_id = read_node_id();
	if (node_id == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a member of a node group"),
				 errhint("Use weft.create_node_group or weft.join_node_group first.")));
	return node_id;
}

static int64
now_ms(void)
{
	return Max((GetCurrentTimestamp() - EPOCH) / 1000, 1);
}

/* Raises "last" to at least this value. */
static void
raise_last(uint64 value)
{
	uint64		last = pg_atomic_read_u64(&shared->last);

	while (last < value &&
		   !pg_atomic_compare_exchange_u64(&shared->last, &last, value))
		;
}

static uint64
take_next(void)
{
	uint64		clock = (uint64) now_ms() << COUNT_BITS;
	uint64		last = pg_atomic_read_u64(&shared->last);
	uint64		next;

	do
		next = Max(last + 1, clock);
	while (!pg_atomic_compare_exchange_u64(&shared->last, &last, next));
	return next;
}

/*
 * Makes sure that numbers up to a time are reserved in the sequence, and returns up to what
 * time they are.  Acts as the sequence's owner, because USAGE suffices to take a number.
 */
static int64
reserve(Relation sequence, int64 ms)
{
	Oid			relid = RelationGetRelid(sequence);
	Oid			user;
	int			context;
	int64		reserved;
	Datum		value;

	LOCAL_FCINFO(call, 1);
	FmgrInfo	flinfo;

	LockRelationOid(relid, RowExclusiveLock);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(sequence->rd_rel->relowner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);

	fmgr_info(F_PG_SEQUENCE_LAST_VALUE, &flinfo);
	InitFunctionCallInfoData(*call, &flinfo, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(relid);
	call->args[0].isnull = false;
	value = FunctionCallInvoke(call);
	reserved = call->isnull ? 0 : DatumGetInt64(value) >> RUN_BITS;
	if (!call->isnull && (DatumGetInt64(value) & ((1 << RUN_BITS) - 1)) != shared->run)
	{
		/* The other run may have used all of it. */
		raise_last((uint64) reserved << COUNT_BITS);
		ms = Max(ms, reserved);
	}
	if (ms >= reserved)
	{
		reserved = ms + RESERVED_MS;
		(void) OidFunctionCall2(F_SETVAL_REGCLASS_INT8, ObjectIdGetDatum(relid),
								Int64GetDatum(reserved << RUN_BITS | shared->run));
	}

	LWLockRelease(shared->lock);
	SetUserIdAndSecContext(user, context);
	return reserved;
}

static KnownSequence *
known_sequence(Oid relid)
{
	KnownSequence *result;
	bool		found;

	if (known_sequences == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(KnownSequence)};

		known_sequences = hash_create("weft snowflake sequences", 16, &control,
									  HASH_ELEM | HASH_BLOBS);
	}
	result = hash_search(known_sequences, &relid, HASH_ENTER, &found);
	if (!found)
		result->reserved = 0;
	return result;
}

/* Opens a sequence that the user may take numbers from. */
static Relation
open_sequence(Oid relid)
{
	Relation	sequence = relation_open(relid, AccessShareLock);

	if (sequence->rd_rel->relkind != RELKIND_SEQUENCE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sequence", RelationGetRelationName(sequence))));
	if (pg_class_aclcheck(relid, GetUserId(), ACL_USAGE | ACL_UPDATE) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for sequence %s",
						RelationGetRelationName(sequence))));
	return sequence;
}

/*
 * weft.snowflake_nextval(sequence regclass) returns bigint
 *
 * A number that no member of the group makes a second time for this sequence.
 * Needs USAGE or UPDATE on the sequence, which must be one of type bigint, and of
 * no other use.  Fails outside of a group.
 */
Datum
weft_snowflake_nextval(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int64		node;
	uint64		next;
	Relation	sequence;
	KnownSequence *known;

	shmem_require();
	PreventCommandIfReadOnly("snowflake_nextval()");
	sequence = open_sequence(relid);
	node = get_node_id();
	known = known_sequence(relid);

	/*
	 * A number that turns out not to be reserved is dropped, because the
	 * sequence may have shown that an earlier run used more.
	 */
	while ((next = take_next()) >> COUNT_BITS >= (uint64) known->reserved)
	{
		CHECK_FOR_INTERRUPTS();
		known->reserved = reserve(sequence, next >> COUNT_BITS);
	}
	relation_close(sequence, NoLock);

	next = (next >> COUNT_BITS) << (NODE_BITS + COUNT_BITS) |
		(uint64) node << COUNT_BITS | (next & ((1 << COUNT_BITS) - 1));
	PG_RETURN_INT64((int64) next);
}
