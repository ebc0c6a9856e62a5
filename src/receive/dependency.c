/*
 * dependency.c
 *	  Which earlier transaction has touched the same row.
 *
 * For each hash value of a relation's name and a row's key, last_seq[] holds the newest
 * transaction that touched such a row.  A change by transaction T2 depends on the
 * transaction that it finds there, and replaces it by T2.  Two rows with the same hash
 * value only make one transaction wait without need.  No dependency is lost: as
 * transactions commit in order, a newer seq stands for all older ones.  Therefore
 * nothing has to be cleaned up, and nothing allocated.
 *
 * A writer W1 that applies transactions T1 and T2 as one group cannot wait for T1 to
 * commit before it applies T2.  If a change of T2 depends on T1, W1 knows whether it has
 * applied the changes of T1, and thereby everything that these depend on: all earlier
 * touches of the same entry of last_seq[].  But a change may touch two entries (its old
 * and its new key), and only the newer of the two transactions found there is passed on.
 * That one stands for the other only as a position in the commit order, not as a
 * change that has been applied.  RING_SEVERAL tells the writers so.
 *
 * Keys are compared as bytes, as they arrive.  Values that are equal on the subscriber
 * may arrive as different bytes; a dependency between such changes is not found here.
 * No harm is done: the writers notice it by the rows themselves (fast/key_order.c).
 *
 * With replica identity full the key is the whole row.  If a value is missing because
 * the publisher did not change it (TOAST), the hash does not identify the row.  The same
 * holds for an UPDATE or DELETE of a relation without a replica identity.  Such a "wide"
 * change depends on all earlier changes of its relation, and all later ones depend on
 * it.  RING_IN_PLACE keeps the writers from applying it in another place of its group.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "receive/dependency.h"
#include "ring/layout.h"

/*
 * Number of entries, a power of two.  Enough to make collisions rare among the up to
 * RING_TRANSACTIONS transactions in flight; older entries do no harm.
 */
#define LAST_SEQ_SIZE 65536

/*
 * One table for each process, as a process leads at most one subscription.  Static,
 * so that looking up an entry needs no pointer to the table.
 */
static uint64 last_seq[LAST_SEQ_SIZE];

/* Forgets all transactions: there is a new ring. */
void
dependency_reset(void)
{
	memset(last_seq, 0, sizeof(last_seq));
}

/* Adds a transaction that a change depends on; zero means none. */
static void
depend_on(Dependency *dependency, uint64 seq)
{
	if (seq == 0 || seq == dependency->seq)
		return;
	if (dependency->seq != 0)
		dependency->flags |= RING_SEVERAL;
	dependency->seq = Max(dependency->seq, seq);
}

/* Notes that transaction seq touches a row, and adds the one that did before. */
static void
touch(uint64 hash, uint64 seq, Dependency *dependency)
{
	uint64	   *entry = &last_seq[hash & (LAST_SEQ_SIZE - 1)];

	if (*entry == seq)
		dependency->flags |= RING_ROW_AGAIN;
	else
		depend_on(dependency, *entry);
	*entry = seq;
}

/*
 * Reads a tuple and hashes its key into *hash.  Sets *wide if a key column was not
 * sent.  Returns what is wrong with the tuple, or NULL.
 */
static const char *
hash_tuple(LeaderRelation *relation, WireCursor *cursor, uint64 *hash, bool *wide)
{
	int			next_key = 0;
	int			natts = wire_uint16(cursor);

	if (!cursor->failed && natts != relation->natts)
		return "the number of columns is not the relation's";

	*hash = relation->seed;
	for (int i = 0; i < natts; i++)
	{
		WireColumn	column;

		if (!wire_column(cursor, &column))
			return cursor->failed ? "a column is longer than the message" :
				"the kind of a column is unknown";
		if (next_key < relation->num_keys && relation->keys[next_key] == i)
		{
			next_key++;
			if (column.status == LOGICALREP_COLUMN_UNCHANGED)
				*wide = true;
			else
				*hash = hash_combine64(*hash,
									   column.data == NULL ? 0 :
									   hash_bytes_extended((const unsigned char *) column.data,
														   column.length, 0));
		}
	}
	return cursor->failed ? "the message ends too early" : NULL;
}

/*
 * Touches the rows of a change.  Reads the change to its end; returns what is wrong with
 * it, or NULL.
 */
static const char *
touch_rows(LeaderRelation *relation, WireChange *change, uint64 seq,
		   Dependency *dependency, bool *wide)
{
	const char *problem;
	uint64		hash;

	if (change->old_kind != 0)
	{
		problem = hash_tuple(relation, &change->tuples, &hash, wide);
		if (problem)
			return problem;
		touch(hash, seq, dependency);
		if (change->type == LOGICAL_REP_MSG_UPDATE && wire_uint8(&change->tuples) != 'N')
			return "the new tuple is missing";
	}

	if (change->type != LOGICAL_REP_MSG_DELETE)
	{
		problem = hash_tuple(relation, &change->tuples, &hash, wide);
		if (problem)
			return problem;
		if (relation->num_keys > 0)
			touch(hash, seq, dependency);
	}
	return change->tuples.next == change->tuples.end ? NULL :
		"there are bytes behind the end of the message";
}

/*
 * Returns what a change of transaction seq depends on, and notes the change, which must get a
 * record in the ring: a writer takes it for applied if nothing of its transaction is
 * deferred.  Reads the change to its end.  Sets *problem to what is wrong with the change, or
 * to NULL.
 */
Dependency
dependency_of_change(LeaderRelation *relation, WireChange *change, uint64 seq,
					 const char **problem)
{
	Dependency	result = {0};
	bool		wide;

	/*
	 * Without a replica identity, only an INSERT is known to touch no row of
	 * an earlier transaction.
	 */
	wide = relation->num_keys == 0 && change->type != LOGICAL_REP_MSG_INSERT;
	*problem = touch_rows(relation, change, seq, &result, &wide);
	if (*problem)
		return result;

	if (relation->floor > result.seq)
		depend_on(&result, relation->floor);
	if (relation->last_any != seq)
	{
		relation->last_other = relation->last_any;
		relation->last_any = seq;
	}
	if (wide)
	{
		relation->last_wide = seq;
		depend_on(&result, relation->last_other);
		result.flags |= RING_SEVERAL | RING_IN_PLACE;
	}
	else if (relation->last_wide == seq)

		/*
		 * An earlier wide change of this transaction waits for every
		 * transaction that this change could depend on.
		 */
		result.seq = 0;
	else if (relation->last_wide > result.seq)

		/*
		 * A wide change of another transaction waits for every earlier one
		 * that touched the relation, so it stands for these.
		 */
		result.seq = relation->last_wide;
	return result;
}
