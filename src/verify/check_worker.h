/*
 * check_worker.h
 *	  The background worker that compares both sides for a switch-over.
 */
#ifndef WEFT_VERIFY_CHECK_WORKER_H
#define WEFT_VERIFY_CHECK_WORKER_H

#include "datatype/timestamp.h"
#include "verify/rest_check.h"

typedef enum CheckKind
{
	CHECK_COMPARE,				/* at cuts, as weft.compare_subscription() */
	CHECK_MARK_AND_COMPARE,		/* after rest_check_mark() */
	CHECK_RECENT,				/* rest_check_recent() */
	CHECK_ALL,					/* rest_check_all() */
} CheckKind;

/* What is to be done, and what has come of it. */
typedef struct CheckOrder
{
	CheckKind	kind;
	Oid			subid;
	RestCheckMark mark;			/* set by CHECK_MARK_AND_COMPARE, used by
								 * CHECK_RECENT */
	int64		comparison;		/* its number */
	RestCheckResult result;		/* not of comparisons */
} CheckOrder;

/*
 * Checks a subscription that the current user owns.  Fails if both sides are not the same, if a table of the
 * subscription could not be compared, or at the deadline.  "ping" is called several times a
 * second; it may throw, which ends the check.
 *
 * What a comparison has found is committed before this fails.
 */
extern void check_worker_run(CheckOrder *order, TimestampTz deadline, void (*ping) (void));
extern PGDLLEXPORT void check_worker_main(Datum main_arg);

#endif							/* WEFT_VERIFY_CHECK_WORKER_H */
