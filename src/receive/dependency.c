/*
 * dependency.c
 *	  Which earlier transaction has touched the same row.
 *
 * last_seq[] has for each hash value of a relation's name and a row's key the
 * newest transaction that touched such a row.  What is found there is what a
 * change depends on, and its own seq takes its place.  Two rows with the same
 * hash only make one transaction wait without need; a dependency is never
 * lost, for a newer seq stands for all older ones: transactions commit in
 * order.  So there is nothing to clean up and nothing to allocate.
 *
 * A writer that applies several transactions before it commits cannot wait for
 * its own ones.  If what is found is one of these, the writer knows whether it
 * has applied that, and with it whatever that depended on: all earlier touches of
 * the same entry of last_seq[].  But a change may touch two entries, and of what
 * is found there only the newer is told: it stands for the other only as a
 * position in the commit order.  RING_SEVERAL says so.
 *
 * Keys are compared as they come, as bytes.  Rows that are the same on the subscriber
 * may have come with other bytes, and then one change does not depend on the other
 * here.  Nothing is lost by that: the rows themselves tell (fast/key_order.c).
 *
 * With replica identity full the key is the whole row.  If a value was not
 * sent because it is unchanged (TOAST), the row cannot be found again by its
 * hash: such a "wide" change depends on all earlier ones of its table, and all
 * later ones depend on it.  It is applied in its place (RING_IN_PLACE).
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "receive/dependency.h"

#define LAST_SEQ_SIZE 65536		/* a power of two */

static uint64 last_seq[LAST_SEQ_SIZE];

/* Forgets everything: there is a new ring. */
void
dependency_reset(void)
{
	memset(last_seq, 0, sizeof(last_seq));
}

/* Adds one more that a change depends on. */
static void
depend_on(Dependency *dependency, uint64 seq)
{
	if (seq == 0 || seq == dependency->seq)
		return;
	if (dependency->seq != 0)
		dependency->flags |= RING_SEVERAL;
	dependency->seq = Max(dependency->seq, seq);
}

/* Notes that transaction seq touches a row, and who did before in *dependency. */
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
 * Reads a tuple and hashes its key into *hash.  A key column that was not sent
 * makes it wide.  Returns what is wrong with the tuple, or NULL.
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

/* Touches the rows of a change; reads it to its end. */
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
 * Returns what a change depends on, and notes the change as one of transaction
 * seq.  Reads the whole change; if that is damaged, *problem says how, else it
 * is NULL.
 */
Dependency
dependency_of_change(LeaderRelation *relation, WireChange *change, uint64 seq,
					 const char **problem)
{
	Dependency	result = {0};
	bool		wide;

	/*
	 * Without a replica identity, only rows that are inserted can be told
	 * apart.
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
		 * A wide change of our own has waited for all that this could wait
		 * for.
		 */
		result.seq = 0;
	else if (relation->last_wide > result.seq)

		/*
		 * And one of another transaction, for all that touched the table
		 * before it.
		 */
		result.seq = relation->last_wide;
	return result;
}
