/*
 * compare_task.c
 *	  What the processes that compare at one cut share.
 *
 * The session puts a task together and copies it into shared memory.  Each process, the session
 * included, takes a side of a unit, runs its query, and writes the outcome, which nobody reads
 * before all processes have ended.  Thus the publisher's query for a unit and the one here can run
 * at the same time, in two processes.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/timestamp.h"
#include "verify/compare_task.h"

void
task_builder_init(TaskBuilder *builder)
{
	builder->units = NIL;
	builder->num_sums = 0;
	initStringInfo(&builder->texts);
}

static Size
add_text(TaskBuilder *builder, const char *text)
{
	Size		offset = builder->texts.len;

	appendBinaryStringInfo(&builder->texts, text, strlen(text) + 1);
	return offset;
}

/* Adds a unit.  "table" and "first_part" are for the caller. */
void
task_builder_add(TaskBuilder *builder, const PublishedTable *published, int table, int first_part,
				 int num_parts, bool grouped, const char *publisher_query, const char *local_query)
{
	CompareUnit *unit = palloc0(sizeof(CompareUnit));

	unit->relid = published->relid;
	unit->run_as_owner = published->run_as_owner;
	unit->table = table;
	unit->first_part = first_part;
	unit->num_parts = num_parts;
	unit->grouped = grouped;
	unit->queries[SIDE_PUBLISHER] = add_text(builder, publisher_query);
	unit->queries[SIDE_LOCAL] = add_text(builder, local_query);
	unit->first_sum = builder->num_sums;
	builder->num_sums += num_parts;
	builder->units = lappend(builder->units, unit);
}

static Size
sums_size(const TaskBuilder *builder)
{
	return MAXALIGN(mul_size(builder->num_sums, sizeof(PartSum)));
}

/* The memory that a task takes. */
Size
task_size(const TaskBuilder *builder)
{
	Size		size = MAXALIGN(sizeof(CompareTask));

	size = add_size(size, MAXALIGN(mul_size(list_length(builder->units), sizeof(CompareUnit))));
	size = add_size(size, mul_size(2, sums_size(builder)));
	return add_size(size, builder->texts.len);
}

/* Copies what the builder has into memory of that size.  The caller sets the other fields. */
void
task_fill(CompareTask *task, const TaskBuilder *builder)
{
	memset(task, 0, task_size(builder));
	SpinLockInit(&task->mutex);
	task->num_units = list_length(builder->units);
	task->units = MAXALIGN(sizeof(CompareTask));
	task->sums[SIDE_PUBLISHER] = task->units + MAXALIGN(task->num_units * sizeof(CompareUnit));
	task->sums[SIDE_LOCAL] = task->sums[SIDE_PUBLISHER] + sums_size(builder);
	task->texts = task->sums[SIDE_LOCAL] + sums_size(builder);
	foreach_ptr(CompareUnit, unit, builder->units)
		* task_unit(task, foreach_current_index(unit)) = *unit;
	memcpy((char *) task + task->texts, builder->texts.data, builder->texts.len);
}

CompareUnit *
task_unit(CompareTask *task, int index)
{
	return (CompareUnit *) ((char *) task + task->units) + index;
}

/* The first of the unit's sums on that side. */
PartSum *
task_sums(CompareTask *task, const CompareUnit *unit, CompareSide side)
{
	return (PartSum *) ((char *) task + task->sums[side]) + unit->first_sum;
}

const char *
task_query(CompareTask *task, const CompareUnit *unit, CompareSide side)
{
	return (char *) task + task->texts + unit->queries[side];
}

/*
 * Takes one side of a unit: of the side that is behind, such that little is lost if the rest
 * is left to the next cut.  Returns NULL if nothing is left.
 */
CompareUnit *
task_take(CompareTask *task, CompareSide *side)
{
	bool		late = GetCurrentTimestamp() >= task->deadline;
	int			end;
	int			index;

	SpinLockAcquire(&task->mutex);
	*side = task->next[SIDE_LOCAL] < task->next[SIDE_PUBLISHER] ? SIDE_LOCAL : SIDE_PUBLISHER;
	end = task->num_units;
	/* A cut must compare something, however short its time is. */
	if (task->stop || (late && task->next[SIDE_PUBLISHER] > 0))
		end = Min(end, Max(task->next[SIDE_PUBLISHER], task->next[SIDE_LOCAL]));
	index = task->next[*side];
	if (index < end)
		task->next[*side]++;
	SpinLockRelease(&task->mutex);
	return index < end ? task_unit(task, index) : NULL;
}

/* Leaves the rest to another cut. */
void
task_stop(CompareTask *task)
{
	SpinLockAcquire(&task->mutex);
	task->stop = true;
	SpinLockRelease(&task->mutex);
}

/* Counts rows that were read on one side. */
void
task_read(CompareTask *task, CompareSide side, uint64 rows)
{
	SpinLockAcquire(&task->mutex);
	task->rate.rows[side] += rows;
	SpinLockRelease(&task->mutex);
}

/*
 * Returns by how many milliseconds reading is ahead of the limit.  Whoever reads on that side
 * should wait for that long.
 */
int64
task_milliseconds_ahead(CompareTask *task, CompareSide side)
{
	CompareRate rate;
	double		due;

	SpinLockAcquire(&task->mutex);
	rate = task->rate;
	SpinLockRelease(&task->mutex);
	if (rate.rows_per_second == 0)
		return 0;
	due = (double) rate.rows[side] / rate.rows_per_second * 1000;
	due -= (GetCurrentTimestamp() - rate.start) / 1000.0;
	return due > 0 ? (int64) due : 0;
}
