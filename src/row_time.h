/*
 * row_time.h
 *	  When a stored row was changed, if its transaction shared a commit with others.
 */
#ifndef WEFT_ROW_TIME_H
#define WEFT_ROW_TIME_H

#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* The columns of a table's key, numbered from 0, in the order of the index. */
typedef struct RowTimeKey
{
	Oid			relid;
	int			count;			/* 0: the table has no key */
	int			columns[INDEX_MAX_KEYS];
} RowTimeKey;

/* One row of a group whose own time is not the group's; weft.row_time has these as bytes. */
typedef struct RowTimeEntry
{
	uint32		hash[2];		/* of its table and key; two halves, since
								 * nothing here is aligned to 8 bytes */
	int32		offset;			/* own time minus the group's, in microseconds */
} RowTimeEntry;

StaticAssertDecl(sizeof(RowTimeEntry) == 12, "entries are stored without gaps");

/* Columns of weft.row_time. */
enum
{
	ROW_TIME_XID = 1,
	ROW_TIME_PART,
	ROW_TIME_COMMITTED,
	ROW_TIME_SEED,
	ROW_TIME_RECORDED,
	ROW_TIME_ENTRIES,
	ROW_TIME_COLUMNS = ROW_TIME_ENTRIES
};

extern Oid	row_time_table(void);
extern int64 row_time_xid(TransactionId xid);
extern void row_time_key(Relation rel, RowTimeKey *key);
extern uint64 row_time_hash(const RowTimeKey *key, TupleTableSlot *row, uint64 seed);
extern bool row_time_fetch(Relation rel, ItemPointer place, TupleTableSlot *row);
extern bool row_time_find_at(Oid relid, ItemPointer place, TransactionId xid, TimestampTz *time);
extern bool row_time_find(Relation rel, TupleTableSlot *row, TransactionId xid, Snapshot snapshot,
						  TimestampTz *time);

#endif							/* WEFT_ROW_TIME_H */
