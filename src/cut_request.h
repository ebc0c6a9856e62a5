/*
 * cut_request.h
 *	  The request for a cut, which a requester (verify/cut.c) and a leader (receive/hold.c)
 *	  share.
 *
 * A subscription has one request at a time; other requesters wait until it is free.
 *
 *	 state		who sets it		meaning
 *	 FREE		requester		no request
 *	 WANTED		requester		the leader should hold
 *	 HELD		leader			nothing new is applied; the requester should give a snapshot
 *	 GIVEN		requester		the leader applies what the snapshot sees, and reads ahead
 *	 STANDING	leader			both sides have the same transactions
 *	 PINNED		requester		the same, and the leader may not go on by itself
 *	 LOST		leader			the leader has gone on by itself, or has ended
 *
 * From GIVEN, the leader returns to HELD if the snapshot sees no prefix of the commit order.
 * The requester may set FREE at any time.  Every change of state is made under the mutex by
 * one who has checked there that the request is still the one it knows, and that the state
 * is the one it starts from.  Therefore the leader cannot go on (STANDING to LOST) once
 * the requester has pinned the request (STANDING to PINNED), and conversely.
 */
#ifndef WEFT_CUT_REQUEST_H
#define WEFT_CUT_REQUEST_H

#include "access/transam.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/procnumber.h"
#include "storage/spin.h"

/*
 * A snapshot may have up to this many transactions in progress.  More need a publisher with
 * more sessions that write at the same time.
 */
#define CUT_MAX_IN_PROGRESS 4096

typedef enum CutState
{
	CUT_FREE,
	CUT_WANTED,
	CUT_HELD,
	CUT_GIVEN,
	CUT_STANDING,
	CUT_PINNED,
	CUT_LOST,
} CutState;

/* Why a request is lost. */
typedef enum CutLoss
{
	CUT_LOSS_NONE,
	CUT_LOSS_STILL,				/* apply has stood still for too long */
	CUT_LOSS_DEADLINE,			/* the requester's time is over, before the
								 * leader stood */
	CUT_LOSS_MEMORY,			/* too much was sent meanwhile */
	CUT_LOSS_LEADER,			/* the leader has ended */
} CutLoss;

/* What a snapshot of the publisher sees. */
typedef struct CutSnapshot
{
	/*
	 * Everything that it sees ends at or before this position of the
	 * publisher's WAL, which the stream can reach.
	 */
	XLogRecPtr	lsn;
	FullTransactionId xmin;		/* sees all before this */
	FullTransactionId xmax;		/* sees none from here on */
	int			num_in_progress;
	TransactionId in_progress[CUT_MAX_IN_PROGRESS]; /* ascending from xmin */

	/* Might sessions there wait for synchronous replication? */
	bool		synchronous;
} CutSnapshot;

/* How long the leader may do what.  All in milliseconds. */
typedef struct CutLimits
{
	int			attempt;		/* apply stands still without a cut */
	int			stand;			/* at the cut */
} CutLimits;

typedef struct CutRequest
{
	slock_t		mutex;			/* protects what has no other rule */
	pg_atomic_uint32 state;		/* a CutState; written under the mutex */
	uint64		id;				/* changes with each request and each leader */
	CutLoss		loss;
	uint32		refused;		/* snapshots that were no prefix */
	TransactionId doubtful;		/* why the last one was refused: in progress
								 * there, but perhaps applied here before the
								 * leader began to remember; or invalid */

	/* Of the requester; set with WANTED. */
	ProcNumber	requester;
	TimestampTz deadline;		/* until the leader stands */
	CutLimits	limits;

	ProcNumber	leader;			/* INVALID_PROC_NUMBER: there is none */

	/*
	 * The requester writes it while the state is HELD.  The leader copies it
	 * while the state is GIVEN, and uses the copy if the state is GIVEN for
	 * the same request afterwards.  If the leader ends meanwhile, the next
	 * request waits until nobody writes.
	 */
	CutSnapshot snapshot;
	bool		writing;

	/* Statistics of this leader. */
	pg_atomic_uint64 cuts;		/* times that it stood */
	pg_atomic_uint64 attempts;	/* snapshots that it was given */
	pg_atomic_uint64 last_pause;	/* us that apply stood still for a cut */
	pg_atomic_uint64 longest_pause;
} CutRequest;

extern void cut_request_init(CutRequest *request);

/* The leader's side. */
extern void cut_request_lead(CutRequest *request);
extern void cut_request_abandon(CutRequest *request);
extern bool cut_request_hold(CutRequest *request, uint64 *id, TimestampTz *deadline,
							 CutLimits *limits);
extern bool cut_request_copy_snapshot(CutRequest *request, uint64 id, CutSnapshot *snapshot);
extern bool cut_request_refuse(CutRequest *request, uint64 id, TransactionId doubtful);
extern bool cut_request_stand(CutRequest *request, uint64 id);
extern bool cut_request_lose(CutRequest *request, uint64 id, CutLoss loss);
extern CutState cut_request_state(CutRequest *request, uint64 id);

/* The requester's side. */
extern bool cut_request_register(CutRequest *request, TimestampTz deadline,
								 const CutLimits *limits, uint64 *id);
extern bool cut_request_give(CutRequest *request, uint64 id, const CutSnapshot *snapshot);
extern bool cut_request_pin(CutRequest *request, uint64 id);
extern bool cut_request_release(CutRequest *request, uint64 id);

/* Is there anything for the leader to look at?  May be called often. */
static inline bool
cut_request_exists(CutRequest *request)
{
	return pg_atomic_read_u32(&request->state) != CUT_FREE;
}

#endif							/* WEFT_CUT_REQUEST_H */
