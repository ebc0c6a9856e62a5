/*
 * member.c
 *	  Which transaction of its group a writer is applying.
 *
 * Conflicts are decided, and times of rows collected (group_times.c), for the transaction that a
 * change belongs to.  That is the one that has begun last, except for a deferred change
 * (order.c).
 */
#include "postgres.h"

#include "apply/member.h"
#include "apply/writer.h"
#include "conflict/remote_transaction.h"
#include "group_times.h"

/* A global, since a writer makes one attempt at a time. */
static struct
{
	uint64		first;			/* of the group */
	uint64		seq;			/* whose changes come next */
	uint64		newest;			/* that has begun last */
	WireBegin	begins[WEFT_MAX_COMMIT_GROUP];
}			members;

/* An attempt begins; "several" says whether the group may have more than one member. */
void
member_group(uint64 first, bool several)
{
	members.first = members.seq = members.newest = first;
	group_times_begin(several);
}

/* The changes of a transaction come next, if it is not a streamed one. */
void
member_next(uint64 seq)
{
	Assert(seq - members.first < WEFT_MAX_COMMIT_GROUP);
	members.seq = seq;
}

/* It has begun. */
void
member_begun(const WireBegin *begin)
{
	members.newest = members.seq;
	members.begins[members.seq - members.first] = *begin;
	group_times_member(members.seq, begin->commit_time);
}

/* What is applied from here on belongs to a transaction that has begun before. */
void
member_resume(uint64 seq)
{
	const WireBegin *begin = &members.begins[seq - members.first];

	if (writer.detect_conflicts)
		conflict_resume(begin->commit_time, begin->xid, begin->final_lsn);
	group_times_resume(seq, begin->commit_time);
}

/* It belongs to the one that has begun last. */
void
member_resume_newest(void)
{
	member_resume(members.newest);
}
