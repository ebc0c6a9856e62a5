/*
 * compare_task.h
 *	  What the processes that compare at one cut share.
 */
#ifndef WEFT_VERIFY_COMPARE_TASK_H
#define WEFT_VERIFY_COMPARE_TASK_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/spin.h"
#include "verify/published_table.h"

#define COMPARE_SNAPSHOT_LEN 64
#define COMPARE_SUM_LEN 48
#define COMPARE_MESSAGE_LEN 256

/* The sum of a part on one side. */
typedef struct PartSum
{
	int64		count;
	char		sum[COMPARE_SUM_LEN];
} PartSum;

/* What became of a unit on one side. */
typedef struct UnitOutcome
{
	bool		done;			/* the sums are there */
	int			sqlstate;		/* of an error; else zero */
	char		message[COMPARE_MESSAGE_LEN];
} UnitOutcome;

/*
 * A query for each side, with the sums of one part, or of all parts of a table.  The two queries
 * are work for two processes.
 */
typedef struct CompareUnit
{
	int			table;			/* for the session only */
	int			first_part;		/* the same */
	Oid			relid;			/* the table here */
	bool		run_as_owner;	/* PublishedTable.run_as_owner */
	int			num_parts;
	bool		grouped;		/* the queries return the number of a part,
								 * too */
	Size		queries[2];		/* by CompareSide: offsets in the texts */
	int			first_sum;		/* of num_parts sums for each side */
	UnitOutcome outcomes[2];	/* written by the process that took the side */
} CompareUnit;

/* Rows that were read, to keep to a limit. */
typedef struct CompareRate
{
	int64		rows_per_second;	/* zero means no limit */
	TimestampTz start;
	uint64		rows[2];		/* by CompareSide, since then */
} CompareRate;

/* In memory that parallel workers share.  Units, sums and texts follow. */
typedef struct CompareTask
{
	/* Fixed before the first worker starts. */
	Oid			subid;
	int			progress;		/* index of the CompareProgress */
	TimestampTz deadline;		/* nothing new is taken after it */
	char		snapshot[COMPARE_SNAPSHOT_LEN]; /* the publisher's */
	int			num_units;
	Size		units;			/* offsets from here */
	Size		sums[2];		/* by CompareSide */
	Size		texts;

	/*
	 * The next unit whose query is taken, for each side.  Once "stop" is set,
	 * or the deadline is over, only the side that is behind goes on, up to
	 * where the other one is.
	 */
	slock_t		mutex;
	int			next[2];
	bool		stop;
	CompareRate rate;
} CompareTask;

/* A task that is being put together. */
typedef struct TaskBuilder
{
	List	   *units;			/* of CompareUnit */
	int			num_sums;
	StringInfoData texts;
} TaskBuilder;

extern void task_builder_init(TaskBuilder *builder);
extern void task_builder_add(TaskBuilder *builder, const PublishedTable *published, int table,
							 int first_part, int num_parts, bool grouped,
							 const char *publisher_query, const char *local_query);
extern Size task_size(const TaskBuilder *builder);
extern void task_fill(CompareTask *task, const TaskBuilder *builder);
extern CompareUnit *task_unit(CompareTask *task, int index);
extern PartSum *task_sums(CompareTask *task, const CompareUnit *unit, CompareSide side);
extern const char *task_query(CompareTask *task, const CompareUnit *unit, CompareSide side);
extern CompareUnit *task_take(CompareTask *task, CompareSide *side);
extern void task_stop(CompareTask *task);
extern void task_read(CompareTask *task, CompareSide side, uint64 rows);
extern int64 task_milliseconds_ahead(CompareTask *task, CompareSide side);

#endif							/* WEFT_VERIFY_COMPARE_TASK_H */
