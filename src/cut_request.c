/*
 * cut_request.c
 *	  The request for a cut; its states are in the header.
 *
 * The requester and the leader wait on their latches, and each wakes the other one after
 * it has changed the state.  Both look at the state after resetting the latch, so no change
 * is missed.
 *
 * If the requester's process ends, it releases the request first (verify/cut.c).  If the
 * leader's process ends, it abandons the request first: the request is lost.  A new leader of
 * the same subscription may use another entry of the shared root; a requester knows by the
 * id that the request in an entry is not its own any more.
 */
#include "postgres.h"

#include "cut_request.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"

/* Called once for each entry of the shared root. */
void
cut_request_init(CutRequest *request)
{
	SpinLockInit(&request->mutex);
	pg_atomic_init_u32(&request->state, CUT_FREE);
	request->id = 0;
	request->writing = false;
	request->leader = INVALID_PROC_NUMBER;
	request->requester = INVALID_PROC_NUMBER;
	pg_atomic_init_u64(&request->cuts, 0);
	pg_atomic_init_u64(&request->attempts, 0);
	pg_atomic_init_u64(&request->last_pause, 0);
	pg_atomic_init_u64(&request->longest_pause, 0);
}

/* Wakes a process, or one that has taken its place, which does no harm. */
static void
wake(ProcNumber number)
{
	if (number != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(number)->procLatch);
}

static CutState
state_of(CutRequest *request)
{
	return pg_atomic_read_u32(&request->state);
}

/* Changes the state if it is one of two, of the same request. */
static bool
change(CutRequest *request, uint64 id, CutState from, CutState or_from, CutState to)
{
	bool		result;

	SpinLockAcquire(&request->mutex);
	result = request->id == id && (state_of(request) == from || state_of(request) == or_from);
	if (result)
		pg_atomic_write_u32(&request->state, to);
	SpinLockRelease(&request->mutex);
	return result;
}

/* The calling leader serves requests from now on. */
void
cut_request_lead(CutRequest *request)
{
	SpinLockAcquire(&request->mutex);
	request->id++;
	request->leader = MyProcNumber;
	pg_atomic_write_u32(&request->state, CUT_FREE);
	SpinLockRelease(&request->mutex);
	pg_atomic_write_u64(&request->cuts, 0);
	pg_atomic_write_u64(&request->attempts, 0);
	pg_atomic_write_u64(&request->last_pause, 0);
	pg_atomic_write_u64(&request->longest_pause, 0);
}

/* The calling leader ends. */
void
cut_request_abandon(CutRequest *request)
{
	ProcNumber	requester;

	SpinLockAcquire(&request->mutex);
	request->leader = INVALID_PROC_NUMBER;
	requester = state_of(request) == CUT_FREE ? INVALID_PROC_NUMBER : request->requester;
	request->loss = CUT_LOSS_LEADER;
	if (requester != INVALID_PROC_NUMBER)
		pg_atomic_write_u32(&request->state, CUT_LOST);
	SpinLockRelease(&request->mutex);
	wake(requester);
}

/* The leader holds, if that is wanted; says for which request, and for how long. */
bool
cut_request_hold(CutRequest *request, uint64 *id, TimestampTz *deadline, CutLimits *limits)
{
	ProcNumber	requester;

	SpinLockAcquire(&request->mutex);
	if (state_of(request) != CUT_WANTED)
	{
		SpinLockRelease(&request->mutex);
		return false;
	}
	*id = request->id;
	*deadline = request->deadline;
	*limits = request->limits;
	requester = request->requester;
	pg_atomic_write_u32(&request->state, CUT_HELD);
	SpinLockRelease(&request->mutex);
	wake(requester);
	return true;
}

/* Copies the snapshot that the requester has given; false if the request is over. */
bool
cut_request_copy_snapshot(CutRequest *request, uint64 id, CutSnapshot *snapshot)
{
	if (cut_request_state(request, id) != CUT_GIVEN)
		return false;
	/* A new request could overwrite it meanwhile, so the number is checked. */
	memcpy(snapshot, &request->snapshot, offsetof(CutSnapshot, in_progress));
	snapshot->num_in_progress = Min(snapshot->num_in_progress, CUT_MAX_IN_PROGRESS);
	memcpy(snapshot->in_progress, request->snapshot.in_progress,
		   snapshot->num_in_progress * sizeof(TransactionId));
	return cut_request_state(request, id) == CUT_GIVEN;
}

/* The snapshot sees no prefix: the leader asks for another one. */
bool
cut_request_refuse(CutRequest *request, uint64 id, TransactionId doubtful)
{
	ProcNumber	requester;
	bool		result;

	SpinLockAcquire(&request->mutex);
	result = request->id == id && state_of(request) == CUT_GIVEN;
	requester = request->requester;
	if (result)
	{
		request->refused++;
		request->doubtful = doubtful;
		pg_atomic_write_u32(&request->state, CUT_HELD);
	}
	SpinLockRelease(&request->mutex);
	if (result)
		wake(requester);
	return result;
}

/* The leader stands. */
bool
cut_request_stand(CutRequest *request, uint64 id)
{
	ProcNumber	requester = request->requester;

	if (!change(request, id, CUT_GIVEN, CUT_GIVEN, CUT_STANDING))
		return false;
	wake(requester);
	return true;
}

/*
 * The leader goes on by itself, unless the request is pinned; false if it is, or if it is over
 * anyway.
 */
bool
cut_request_lose(CutRequest *request, uint64 id, CutLoss loss)
{
	ProcNumber	requester;
	CutState	state;
	bool		result;

	SpinLockAcquire(&request->mutex);
	state = state_of(request);
	result = request->id == id && state >= CUT_HELD && state <= CUT_STANDING;
	requester = request->requester;
	if (result)
	{
		request->loss = loss;
		pg_atomic_write_u32(&request->state, CUT_LOST);
	}
	SpinLockRelease(&request->mutex);
	if (result)
		wake(requester);
	return result;
}

/* Returns the state of a request: CUT_FREE if it is over, CUT_LOST if its leader has ended. */
CutState
cut_request_state(CutRequest *request, uint64 id)
{
	CutState	result;

	SpinLockAcquire(&request->mutex);
	result = request->id == id ? state_of(request) : CUT_FREE;
	SpinLockRelease(&request->mutex);
	return result;
}

/*
 * Registers a request of this process, and wakes the leader.  Returns false if there is no
 * leader, or another request.
 */
bool
cut_request_register(CutRequest *request, TimestampTz deadline, const CutLimits *limits,
					 uint64 *id)
{
	ProcNumber	leader;
	bool		result;

	SpinLockAcquire(&request->mutex);
	leader = request->leader;
	result = leader != INVALID_PROC_NUMBER && state_of(request) == CUT_FREE && !request->writing;
	if (result)
	{
		*id = ++request->id;
		request->loss = CUT_LOSS_NONE;
		request->refused = 0;
		request->doubtful = InvalidTransactionId;
		request->requester = MyProcNumber;
		request->deadline = deadline;
		request->limits = *limits;
		pg_atomic_write_u32(&request->state, CUT_WANTED);
	}
	SpinLockRelease(&request->mutex);
	if (result)
		wake(leader);
	return result;
}

/* Gives a snapshot to the leader, which holds; false if it does so no longer. */
bool
cut_request_give(CutRequest *request, uint64 id, const CutSnapshot *snapshot)
{
	ProcNumber	leader;
	bool		result;

	SpinLockAcquire(&request->mutex);
	result = request->id == id && state_of(request) == CUT_HELD;
	request->writing |= result;
	SpinLockRelease(&request->mutex);
	if (!result)
		return false;

	memcpy(&request->snapshot, snapshot,
		   offsetof(CutSnapshot, in_progress) +
		   snapshot->num_in_progress * sizeof(TransactionId));

	SpinLockAcquire(&request->mutex);
	request->writing = false;
	leader = request->leader;
	result = request->id == id && state_of(request) == CUT_HELD;
	if (result)
		pg_atomic_write_u32(&request->state, CUT_GIVEN);
	SpinLockRelease(&request->mutex);
	if (result)
		wake(leader);
	return result;
}

/* Keeps the leader, which stands, from going on by itself; false if it has gone on. */
bool
cut_request_pin(CutRequest *request, uint64 id)
{
	return change(request, id, CUT_STANDING, CUT_PINNED, CUT_PINNED);
}

/* Ends the request.  Returns true if the leader stood until now. */
bool
cut_request_release(CutRequest *request, uint64 id)
{
	ProcNumber	leader;
	CutState	state;
	bool		own;

	SpinLockAcquire(&request->mutex);
	own = request->id == id;
	state = state_of(request);
	leader = request->leader;
	if (own)
		pg_atomic_write_u32(&request->state, CUT_FREE);
	SpinLockRelease(&request->mutex);
	if (own)
		wake(leader);
	return own && (state == CUT_STANDING || state == CUT_PINNED);
}
