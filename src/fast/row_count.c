/*
 * row_count.c
 *	  The fast path: counting rows, for weft.stat_relation.
 *
 * A row is counted where it is applied, in a plain field of its relation, since nothing
 * more is affordable for each row.  Everything else happens when an attempt first
 * touches a relation: the counts so far are saved, to be restored if the attempt is
 * rolled back, and the relation is added to the list of those to report.
 *
 * The writer reports into shared memory (relation_stats.c) between transactions, once a
 * second at most, like the server's statistics.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fast/fast_context.h"
#include "fast/row_count.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

/* A writer reports at most once in this time, in milliseconds. */
#define REPORT_INTERVAL 1000

/* The relations with something to report; a global, as is what it lists. */
static slist_head unreported = SLIST_STATIC_INIT(unreported);

static uint64 attempt = 0;		/* number of the current attempt */
static bool pending = false;	/* something may have been counted since the
								 * last report */

/* An attempt begins. */
void
row_count_begin(void)
{
	attempt++;
}

/* Called before anything is counted for a relation in an attempt. */
void
row_count_touch(FastRelation *relation)
{
	if (relation->attempt == attempt)
		return;
	relation->attempt = attempt;
	relation->counts_before = relation->counts;
	if (!relation->unreported)
		slist_push_head(&unreported, &relation->unreported_node);
	relation->unreported = pending = true;
}

/* The attempt was rolled back. */
void
row_count_undo(void)
{
	slist_iter	iter;

	slist_foreach(iter, &unreported)
	{
		FastRelation *relation = slist_container(FastRelation, unreported_node, iter.cur);

		if (relation->attempt == attempt)
			relation->counts = relation->counts_before;
	}
}

/* Describes which path the relation's changes take, and why. */
static void
describe_path(const FastRelation *relation, RelationStats *stats)
{
	const char *insert = relation->insert_reason;
	const char *key = relation->key_reason;

	stats->general = relation->reason != NULL || (insert != NULL && key != NULL);
	if (relation->reason)
		strlcpy(stats->reason, relation->reason, RELATION_REASON_LEN);
	else
		snprintf(stats->reason, RELATION_REASON_LEN, "%s%s%s%s%s",
				 insert ? "INSERT: " : "", insert ? insert : "",
				 insert && key ? "; " : "",
				 key ? "UPDATE and DELETE: " : "", key ? key : "");
}

/* Reports a relation's counts.  Returns false if that has to be repeated later. */
static bool
report(FastRelation *relation)
{
	RelationStats stats = {0};

	stats.relid = relation->local_relid;
	stats.counts = relation->counts;

	/* There is nothing to report if all of it was rolled back. */
	if (stats.counts.inserts + stats.counts.updates + stats.counts.deletes == 0)
		return true;
	describe_path(relation, &stats);

	/*
	 * A writer that has not met a change of the table since it was altered
	 * knows less than others.
	 */
	return relation_stats_add(fast_context.subscription, &stats, relation->valid);
}

/*
 * Reports the counts, between transactions.  Unless forced, it does nothing within
 * REPORT_INTERVAL of the last report.  Returns whether counts are left to be reported
 * soon.
 */
bool
row_count_report(bool force)
{
	static TimestampTz reported = 0;
	TimestampTz now;

	if (!pending)
		return false;
	now = GetCurrentTransactionStopTimestamp();
	if (!force && !TimestampDifferenceExceeds(reported, now, REPORT_INTERVAL))
		return true;
	reported = now;
	pending = false;

	AcceptInvalidationMessages();
	while (!slist_is_empty(&unreported))
	{
		FastRelation *relation = slist_head_element(FastRelation, unreported_node,
													&unreported);

		/* The rest is reported with the next report. */
		if (!report(relation))
			break;
		memset(&relation->counts, 0, sizeof(relation->counts));
		relation->unreported = false;
		slist_pop_head_node(&unreported);
	}
	return false;
}
