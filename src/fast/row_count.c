/*
 * row_count.c
 *	  Counting rows, for weft.stat_relation.
 *
 * A row is counted right where it was applied, in a plain field of its relation:
 * nothing else may be done for each row.  What goes beyond is done when an attempt
 * touches a relation first: what the relation has counted before is kept, so that
 * it can be restored if the attempt is rolled back, and the relation is listed, to
 * be reported.
 *
 * Reports go into shared memory (relation_stats.c) between transactions, once a
 * second at most, as those of the server do.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fast/fast.h"
#include "apply/writer.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

/* So often at most a writer reports, in milliseconds. */
#define REPORT_INTERVAL 1000

/* The relations with something to report. */
static slist_head unreported = SLIST_STATIC_INIT(unreported);

static uint64 attempt = 0;		/* counts them */
static bool pending = false;	/* something may have been counted since the
								 * last report */

/* An attempt begins to apply transactions. */
void
fast_count_begin(void)
{
	attempt++;
}

/* Called before anything is counted for a relation in an attempt. */
void
fast_count_touch(FastRelation *relation)
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
fast_count_undo(void)
{
	slist_iter	iter;

	slist_foreach(iter, &unreported)
	{
		FastRelation *relation = slist_container(FastRelation, unreported_node, iter.cur);

		if (relation->attempt == attempt)
			relation->counts = relation->counts_before;
	}
}

/* The server's own code has applied a change. */
void
fast_count_general(LogicalRepRelId relid, char type)
{
	FastRelation *relation = fast_look_up(relid);

	if (relation == NULL)
		return;
	fast_count_touch(relation);
	relation->counts.general_rows++;
	switch (type)
	{
		case LOGICAL_REP_MSG_INSERT:
			relation->counts.inserts++;
			break;
		case LOGICAL_REP_MSG_UPDATE:
			relation->counts.updates++;
			break;
		case LOGICAL_REP_MSG_DELETE:
			relation->counts.deletes++;
			break;
	}
}

/* An UPDATE is left out because a later one makes it needless. */
void
fast_count_needless(const char *message, int length)
{
	WireChange	change;
	FastRelation *relation;

	if (wire_read_change(message, length, false, &change) != NULL)
		return;
	relation = fast_find_relation(change.relid);
	fast_count_touch(relation);
	relation->counts.updates++;
	relation->counts.coalesced_rows++;
}

/* Says which path the relation's changes take, and why. */
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

/* Returns false if that has to be tried again. */
static bool
report(FastRelation *relation)
{
	RelationStats stats = {0};

	stats.relid = relation->local_relid;
	stats.counts = relation->counts;

	/* There may be nothing but what was rolled back. */
	if (stats.counts.inserts + stats.counts.updates + stats.counts.deletes == 0)
		return true;
	describe_path(relation, &stats);

	/*
	 * A writer that has not met a change of the table yet knows less than
	 * others.
	 */
	return relation_stats_add(writer.subscription, &stats, relation->valid);
}

/*
 * Reports what was counted, between transactions; unless forced, only if the last
 * report was long ago.  Returns whether something is left that should be reported
 * soon.
 */
bool
fast_count_report(bool force)
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

		/* What is left is tried with the next one. */
		if (!report(relation))
			break;
		memset(&relation->counts, 0, sizeof(relation->counts));
		relation->unreported = false;
		slist_pop_head_node(&unreported);
	}
	return false;
}
