/*
 * recent_commits.h
 *	  The publisher's transactions that were applied here, and perhaps are not visible there.
 */
#ifndef WEFT_RECENT_COMMITS_H
#define WEFT_RECENT_COMMITS_H

#include "cut_request.h"
#include "replication/walreceiver.h"

typedef enum RecentCommits
{
	RECENT_ALL_VISIBLE,			/* the snapshot sees all that was applied here */
	RECENT_NOT_VISIBLE,
	RECENT_DOUBTFUL,			/* nobody knows */
} RecentCommits;

extern void recent_commits_start(WalReceiverConn *conn);
extern void recent_commits_add(TransactionId xid);
extern RecentCommits recent_commits_check(const CutSnapshot *snapshot, TransactionId *doubtful);
extern bool recent_commits_sees(const CutSnapshot *snapshot, TransactionId xid);

#endif							/* WEFT_RECENT_COMMITS_H */
