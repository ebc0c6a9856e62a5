/*
 * schema_lock.c
 *	  Keeps the schema of a member of a node group as it is for a while.
 *
 * Two things must not happen while the schema of member M changes:
 *	 - Node J takes a snapshot of M, and copies M's schema (group/snapshot.c).  A schema change is
 *	   either in the copy, or arrives through M's slot for J.  pg_dump asks functions that know
 *	   the current schema only, so the schema must stay as it is in the snapshot until
 *	   pg_dump has ended.
 *	 - M subscribes to another member (group_tables.c).  Its new subscription must have every
 *	   table, those of transactions that are in progress as well.
 *
 * Transaction T, which makes a schema change that is replicated in a group, takes this lock
 * before that, and keeps it until it ends; any number of such transactions may.  Process K, which
 * keeps the schema as it is, waits until all of them have ended; then they wait for K.
 *
 * Possible deadlocks:
 *	 1. T waits for K; K does not wait for T, but K's client J waits for somebody who does: M's
 *		slot is not ready before T has ended, and pg_dump waits for T's locks on tables.  Both of
 *		these waits have a timeout.  J lets go of K then.
 *	 2. K waits for T, and T for something else.  Nobody but new schema changes waits for K
 *		meanwhile, and K's wait has a timeout.
 */
#include "postgres.h"

#include "ddl/schema_lock.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"

PG_FUNCTION_INFO_V1(weft_member_keep_schema);

/* The key of an advisory lock that no SQL function can take. */
#define KEY1 0x77656674
#define KEY2 0x73636865
#define CLASS 3

static void
take(LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, KEY1, KEY2, CLASS);
	(void) LockAcquire(&tag, mode, false, false);
}

/* This transaction is going to change the schema. */
void
schema_lock_change(void)
{
	take(RowExclusiveLock);
}

/* Until this transaction ends, no other one changes the schema. */
void
schema_lock_keep(void)
{
	take(ShareLock);
}

/*
 * weft.member_keep_schema()
 *
 * Waits until all transactions that have changed the schema of this member have ended, and
 * lets no other one do so until the caller's transaction ends.
 */
Datum
weft_member_keep_schema(PG_FUNCTION_ARGS)
{
	schema_lock_keep();
	PG_RETURN_VOID();
}
