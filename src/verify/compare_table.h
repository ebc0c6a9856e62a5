/*
 * compare_table.h
 *	  How far a comparison has come with one table.
 */
#ifndef WEFT_VERIFY_COMPARE_TABLE_H
#define WEFT_VERIFY_COMPARE_TABLE_H

#include "verify/compare_task.h"
#include "verify/comparison.h"
#include "verify/key_range.h"

typedef struct ComparePart
{
	bool		done;
	int64		rows[2];		/* by CompareSide, as of the last cut with it */
} ComparePart;

typedef struct CompareTable
{
	TableResult result;
	int			attempts;		/* how often it was started over */

	/*
	 * Valid while the table is being compared.  "hash.table" is what the
	 * catalogs said at the current cut, and the same as at the first one:
	 * else it is started over.
	 */
	MemoryContext context;
	RowHash		hash;
	char	   *signature;
	KeyRanges  *ranges;			/* NULL before the first cut with the table */
	ComparePart *parts;
	int			parts_left;

	/* Of the current cut. */
	List	   *differing;		/* parts whose sums differ */
	bool		limited;		/* there are more differences than may be
								 * stored */
	bool		in_cut;			/* it takes part, without an error so far */
	bool		stale;			/* it was started over, so its differences
								 * must go */
} CompareTable;

extern CompareTable *compare_table_create(const PublishedTable *published);
extern bool compare_table_open(const CompareTable *table);
extern void compare_table_skip(CompareTable *table, const char *status, const char *reason);
extern void compare_table_start_over(CompareTable *table, const char *reason);
extern void compare_table_error(CompareTable *table, int sqlstate, const char *message);
extern char *compare_table_signature(const PublishedTable *published, bool convert);
extern void compare_table_prepare(CompareTable *table, PublishedTable *published, bool convert,
								  int64 max_rows_per_second);
extern void compare_table_add_units(CompareTable *table, int index, TaskBuilder *builder,
									int max_units);
extern void compare_table_collect(CompareTable *table, CompareTask *task, const CompareUnit *unit);
extern void compare_table_part_done(CompareTable *table, int part);
extern void compare_table_finish(CompareTable *table, int limit);

#endif							/* WEFT_VERIFY_COMPARE_TABLE_H */
