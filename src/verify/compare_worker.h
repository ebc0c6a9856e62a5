/*
 * compare_worker.h
 *	  The processes that compute sums at one cut.
 */
#ifndef WEFT_VERIFY_COMPARE_WORKER_H
#define WEFT_VERIFY_COMPARE_WORKER_H

#include "storage/dsm.h"
#include "storage/shm_toc.h"
#include "verify/compare_progress.h"
#include "verify/compare_task.h"

/* What the session that compares has, and its workers have not. */
typedef struct CompareSession
{
	const Subscription *subscription;
	WalReceiverConn *conn;		/* in a transaction with the publisher's
								 * snapshot */
	const char *snapshot;		/* its name */
	CompareProgress *progress;
	int			jobs;
	TimestampTz deadline;
	CompareRate rate;
	void	   *watch_argument;

	/* Called about once a second; returns whether the cut should end. */
	bool		(*watch) (void *argument);
} CompareSession;

extern CompareTask *compare_workers_run(CompareSession *session, const TaskBuilder *builder);
extern bool compare_is_table_error(int sqlstate);
extern WalReceiverConn *compare_connect(const Subscription *subscription);
extern PGDLLEXPORT void compare_worker_main(dsm_segment *segment, shm_toc *toc);

#endif							/* WEFT_VERIFY_COMPARE_WORKER_H */
