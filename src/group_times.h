/*
 * group_times.h
 *	  The times of the rows that a writer changes in one local transaction.
 */
#ifndef WEFT_GROUP_TIMES_H
#define WEFT_GROUP_TIMES_H

#include "row_time.h"

/* A row, and the transaction that has changed it last. */
typedef struct GroupTime
{
	uint64		hash;
	TimestampTz time;
	uint64		seq;
	uint32		slot;			/* where the hash table refers to it */
} GroupTime;

/*
 * Times of a group differ by less than this, in microseconds, from its first one's.  Where a
 * group would reach further, there are so few transactions that sharing gains little.
 */
#define GROUP_TIMES_SPAN (INT64CONST(5) * 1000000)

extern void group_times_begin(bool several);
extern void group_times_member(uint64 seq, TimestampTz time);
extern void group_times_resume(uint64 seq, TimestampTz time);
extern void group_times_row(const RowTimeKey *key, TupleTableSlot *row);
extern void group_times_changed(Relation rel, TupleTableSlot *row);
extern void group_times_unknown(Oid relid);
extern void group_times_end_here(void);
extern bool group_times_may_go_on(TimestampTz next);
extern bool group_times_find(Relation rel, TupleTableSlot *row, TimestampTz *time);
extern const GroupTime *group_times_list(int *count, uint64 *seed);

#endif							/* WEFT_GROUP_TIMES_H */
