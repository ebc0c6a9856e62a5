/*
 * gate_shared.c
 *	  The gates of this server, in shared memory.  gate.c has the protocol.
 *
 * A gate that cannot be active yet waits in shared memory, too, so that everybody can see it.  All
 * of a gate but its counter is protected by one lightweight lock, under which nothing is waited for.
 */
#include "postgres.h"

#include "gate_file.h"
#include "gate_shared.h"
#include "guc.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/* Milliseconds between two looks of a process that waits for a gate to be closed. */
#define LOOK_INTERVAL 5

/*
 * Milliseconds after which a waiting function returns and is called again.  It has a snapshot, for which CREATE INDEX
 * CONCURRENTLY waits, and the gate may have to wait for that.
 */
#define WAIT_SLICE 500

Gates	   *gates = NULL;

/* The unconfirmed gate that ends with this backend. */
static int64 served = 0;

/* Wakes a process, or one that has taken its place, which does no harm. */
void
gate_wake(ProcNumber number)
{
	if (number != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(number)->procLatch);
}

/* Sleeps until the latch is set, or for a while. */
void
gate_nap(long milliseconds)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, milliseconds,
					 wait_event_id(WEFT_WAIT_GATE));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Returns a gate of this database, or NULL.  Another database may be a member of the same group.
 * The caller has the lightweight lock.
 */
Gate *
gate_find(int64 lock)
{
	for (int i = 0; i < GATE_COUNT; i++)
		if (gates->entries[i].status.state != GATE_FREE &&
			gates->entries[i].status.dbid == MyDatabaseId && gates->entries[i].status.lock == lock)
			return &gates->entries[i];
	return NULL;
}

/* Returns the gate of this database that is active or ending, or NULL. */
Gate *
gate_find_active(void)
{
	for (int i = 0; i < GATE_COUNT; i++)
		if (gates->entries[i].status.state >= GATE_ACTIVE &&
			gates->entries[i].status.dbid == MyDatabaseId)
			return &gates->entries[i];
	return NULL;
}

/* Returns a table of a gate, or NULL. */
GateTable *
gate_find_table(Gate *gate, Oid relid)
{
	for (int i = 0; i < gate->status.num_tables; i++)
		if (gate->status.tables[i].relid == relid)
			return &gate->status.tables[i];
	return NULL;
}

/* Has no database a gate? */
bool
gate_none(void)
{
	return gates == NULL || pg_atomic_read_u32(&gates->count) == 0;
}

/* Stores the confirmed gates; the caller has the lightweight lock. */
static void
store(void)
{
	GateStatus *copies = palloc0(GATE_COUNT * sizeof(GateStatus));
	int			count = 0;

	for (int i = 0; i < GATE_COUNT; i++)
		if (gates->entries[i].status.state == GATE_ACTIVE && gates->entries[i].status.durable)
			copies[count++] = gates->entries[i].status;
	gate_file_write(copies, count);
	pfree(copies);
}

/* The connection of the requester is lost: what it has not confirmed ends. */
static void
end_served(int code, Datum arg)
{
	Gate	   *gate;

	if (served == 0)
		return;
	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(served);
	if (gate != NULL && gate->status.state == GATE_WAITING)
	{
		/* It has no worker that would remove it. */
		gate->status.state = GATE_FREE;
		pg_atomic_fetch_sub_u32(&gates->count, 1);
	}
	else if (gate != NULL && !gate->status.confirmed)
	{
		gate->status.state = GATE_ENDING;
		gate_wake(gate->status.worker);
	}
	LWLockRelease(gates->lock);
}

void
gate_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(Gates)));
	RequestNamedLWLockTranche("weft_gate", 1);
}

/* Restores the gates that were confirmed before a crash; nobody holds their locks yet. */
static void
restore(void)
{
	GateStatus *copies = palloc0(GATE_COUNT * sizeof(GateStatus));
	int			count = gate_file_read(copies);

	for (int i = 0; i < count; i++)
	{
		GateStatus *status = &gates->entries[i].status;

		*status = copies[i];
		status->worker = INVALID_PROC_NUMBER;
		status->worker_pid = 0;
		status->taker = INVALID_PROC_NUMBER;
		status->offered = status->taken = false;
		for (int j = 0; j < status->num_tables; j++)
			status->tables[j].state = TABLE_WANTED;
	}
	pg_atomic_write_u32(&gates->count, count);
	pfree(copies);
}

void
gate_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	gates = ShmemInitStruct("weft gates", sizeof(Gates), &found);
	if (!found)
	{
		memset(gates, 0, sizeof(Gates));
		gates->lock = &GetNamedLWLockTranche("weft_gate")->lock;
		pg_atomic_init_u32(&gates->count, 0);
		ConditionVariableInit(&gates->changed);
		for (int i = 0; i < GATE_COUNT; i++)
		{
			pg_atomic_init_u32(&gates->entries[i].passing, 0);
			pg_atomic_init_u32(&gates->entries[i].failures, 0);
		}
		restore();
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Makes an entry that waits for its turn. */
static void
enter(int64 lock, const char *requester, int timeout)
{
	Gate	   *gate = NULL;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	for (int i = 0; i < GATE_COUNT && gate == NULL; i++)
		if (gates->entries[i].status.state == GATE_FREE)
			gate = &gates->entries[i];
	if (gate == NULL)
	{
		LWLockRelease(gates->lock);
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many schema changes wait for a lock of their node group")));
	}
	memset(&gate->status, 0, sizeof(GateStatus));
	gate->status.state = GATE_WAITING;
	gate->status.lock = lock;
	gate->status.dbid = MyDatabaseId;
	namestrcpy(&gate->status.requester, requester);
	gate->status.ticket = gates->next_ticket++;

	/* The requester may wait for a shorter time at this member. */
	gate->status.timeout = Max(timeout, weft_ddl_lock_timeout);
	gate->status.worker = INVALID_PROC_NUMBER;
	gate->status.taker = INVALID_PROC_NUMBER;
	gate->status.since = GetCurrentTimestamp();
	pg_atomic_fetch_add_u32(&gates->count, 1);
	LWLockRelease(gates->lock);
}

/*
 * Fails, and releases the lightweight lock, which the caller has, if a gate would have too many tables
 * with these.
 */
static void
check_count(Gate *gate, List *tables)
{
	int			count = gate->status.num_tables;

	foreach_oid(relid, tables)
		if (gate_find_table(gate, relid) == NULL)
		count++;
	if (count <= GATE_TABLES)
		return;
	LWLockRelease(gates->lock);
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the schema changes of a transaction can lock at most %d tables", GATE_TABLES)));
}

/* Adds tables to a gate, for its current request.  The caller has the lightweight lock. */
static void
add_tables(Gate *gate, List *tables, bool own)
{
	foreach_oid(relid, tables)
	{
		GateTable  *table;

		if (gate_find_table(gate, relid) != NULL)
			continue;
		table = &gate->status.tables[gate->status.num_tables++];
		table->relid = relid;
		table->state = own ? TABLE_GIVEN : TABLE_WANTED;
		table->own = own;
		table->confirmed = false;
		table->request = gate->status.request;
	}
	gate_wake(gate->status.worker);
}

/* Makes the gate active if it is its turn; otherwise copies the one that it waits for. */
static GateTurn
try_activate(int64 lock, int request, List *tables, NameData *other)
{
	Gate	   *own;
	GateTurn	result;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	own = gate_find(lock);
	if (own == NULL || own->status.state == GATE_ENDING)
	{
		LWLockRelease(gates->lock);
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("the lock of the node group has ended")));
	}
	check_count(own, tables);
	result = own->status.state == GATE_WAITING ? GATE_NOW : GATE_BEFORE;
	for (int i = 0; i < GATE_COUNT && result != GATE_BEFORE; i++)
	{
		GateStatus *each = &gates->entries[i].status;

		if (each->dbid == MyDatabaseId && each != &own->status &&
			(each->state >= GATE_ACTIVE ||
			 (each->state == GATE_WAITING && each->ticket < own->status.ticket)))
		{
			result = GATE_NOT_YET;
			*other = each->requester;
		}
	}
	if (result != GATE_NOT_YET)
	{
		own->status.state = GATE_ACTIVE;
		own->status.request = request;
		add_tables(own, tables, false);
	}
	LWLockRelease(gates->lock);
	return result;
}

static GateTurn
wait_for_turn(int64 lock, int request, List *tables, int timeout)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(timeout, WAIT_SLICE));
	NameData	other;
	GateTurn	result;

	while ((result = try_activate(lock, request, tables, &other)) == GATE_NOT_YET)
	{
		if (GetCurrentTimestamp() > end)
		{
			if (timeout > WAIT_SLICE)
				break;
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("timed out waiting for a schema change of node \"%s\"",
							NameStr(other)),
					 errhint("View \"weft.ddl_lock_status\" shows the lock.")));
		}
		(void) ConditionVariableTimedSleep(&gates->changed, 100,
										   wait_event_id(WEFT_WAIT_GATE));
	}
	ConditionVariableCancelSleep();
	return result;
}

/* Removes a gate that has not become active. */
static void
leave(int64 lock)
{
	GateStatus	status;

	if (gate_look(lock, &status) && status.state == GATE_WAITING)
		gate_remove(lock);
}

/*
 * Opens a gate for the schema change of another node, which ends with this session until it is
 * confirmed; or adds tables to it.  Waits until no other gate of this database is active, for a slice of the timeout.
 * When the gate has become active, the caller starts the gate worker.
 */
GateTurn
gate_open(int64 lock, const char *requester, int request, List *tables, int timeout)
{
	static bool registered = false;
	bool		exists;
	volatile GateTurn result = GATE_NOT_YET;

	if (!registered)
		before_shmem_exit(end_served, (Datum) 0);
	registered = true;
	LWLockAcquire(gates->lock, LW_SHARED);
	exists = gate_find(lock) != NULL;
	LWLockRelease(gates->lock);
	if (!exists)
		enter(lock, requester, timeout);
	served = lock;
	PG_TRY();
	{
		result = wait_for_turn(lock, request, tables, timeout);
	}
	PG_CATCH();
	{
		ConditionVariableCancelSleep();
		leave(lock);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return result;
}

/* Adds tables that the requester's transaction, the caller's, has locked itself.  The gate is active. */
void
gate_add_own(int64 lock, List *tables)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	if (gate != NULL)
	{
		check_count(gate, tables);
		add_tables(gate, tables, true);
	}
	LWLockRelease(gates->lock);
}

/* Another gate was open for a moment, after this one was confirmed: what has slipped through there must pass here. */
static void
forget_confirmation(int64 lock)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	for (int i = 0; gate != NULL && i < gate->status.num_tables; i++)
		if (gate->status.tables[i].request == gate->status.request)
			gate->status.tables[i].confirmed = false;
	LWLockRelease(gates->lock);
}

/* Waits until the gate is closed, for a slice of the timeout; returns false if it is not. */
bool
gate_wait_closed(int64 lock, int timeout, uint32 *round)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(timeout, WAIT_SLICE));

	forget_confirmation(lock);
	for (;;)
	{
		GateStatus	status;
		bool		closed = true;

		if (!gate_look(lock, &status) || status.state == GATE_ENDING)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
							errmsg("the lock of the node group has ended")));
		for (int i = 0; i < status.num_tables; i++)
			closed = closed && (status.tables[i].state == TABLE_HELD ||
								(status.tables[i].state == TABLE_GIVEN &&
								 (status.tables[i].own || status.taker_lock == lock)));
		if (closed)
		{
			*round = status.round;
			return true;
		}
		if (GetCurrentTimestamp() > end)
		{
			if (timeout > WAIT_SLICE)
				return false;
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("timed out waiting for transactions that have changed the tables"),
					 errhint("pg_blocking_pids(%d) returns their sessions.", status.worker_pid)));
		}
		gate_nap(LOOK_INTERVAL);
	}
}

/*
 * Confirms the gate, unless it was open after that round, and stores it.  The requester's own node need not
 * store it: no crash there leaves the schema change in progress.
 */
bool
gate_confirm(int64 lock, uint32 round, const char *local_node)
{
	Gate	   *gate;
	bool		result;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	result = gate != NULL && gate->status.state == GATE_ACTIVE && gate->status.round == round;
	for (int i = 0; result && i < gate->status.num_tables; i++)
		result = gate->status.tables[i].state == TABLE_HELD ||
			gate->status.tables[i].state == TABLE_GIVEN;
	if (result)
		gate->status.confirmed = true;
	if (result && strcmp(NameStr(gate->status.requester), local_node) != 0)
	{
		gate->status.durable = true;
		for (int i = 0; i < gate->status.num_tables; i++)
			gate->status.tables[i].confirmed = true;
		if (gate->status.num_tables > 0)
			store();
	}
	LWLockRelease(gates->lock);
	return result;
}

/* The requester, or its outcome, ends the gate. */
void
gate_end(int64 lock)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	if (gate != NULL)
	{
		gate->status.state = GATE_ENDING;
		gate_wake(gate->status.worker);
	}
	LWLockRelease(gates->lock);
}

/* Is the schema change still in progress, as far as this server knows? */
bool
gate_is_open(int64 lock)
{
	GateStatus	status;

	return gate_look(lock, &status) && status.state != GATE_ENDING;
}

/* Has this database a gate for tables? */
bool
gate_any(void)
{
	Gate	   *gate;
	bool		result;

	if (gate_none())
		return false;
	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find_active();
	result = gate != NULL && gate->status.num_tables > 0;
	LWLockRelease(gates->lock);
	return result;
}

/* Returns copies of this database's gates. */
List *
gate_list(void)
{
	GateStatus *copies = palloc(GATE_COUNT * sizeof(GateStatus));
	List	   *result = NIL;

	LWLockAcquire(gates->lock, LW_SHARED);
	for (int i = 0; i < GATE_COUNT; i++)
		copies[i] = gates->entries[i].status;
	LWLockRelease(gates->lock);
	for (int i = 0; i < GATE_COUNT; i++)
		if (copies[i].state != GATE_FREE && copies[i].dbid == MyDatabaseId)
			result = lappend(result, &copies[i]);
	return result;
}

/* The calling gate worker serves the gate; returns false if there is none, or another one does. */
bool
gate_attach(int64 lock)
{
	Gate	   *gate;
	bool		result;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	result = gate != NULL && gate->status.worker_pid == 0;
	if (result)
	{
		gate->status.worker = MyProcNumber;
		gate->status.worker_pid = MyProcPid;
	}
	LWLockRelease(gates->lock);
	return result;
}

/* The gate worker ends without having removed its gate: its locks are about to go. */
void
gate_detach(void)
{
	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	for (int i = 0; i < GATE_COUNT; i++)
	{
		GateStatus *status = &gates->entries[i].status;

		if (status->state == GATE_FREE || status->worker_pid != MyProcPid)
			continue;
		pg_atomic_fetch_add_u32(&gates->entries[i].failures, 1);
		status->worker_pid = 0;
		status->worker = INVALID_PROC_NUMBER;
		status->round++;
		for (int j = 0; j < status->num_tables; j++)
			if (status->tables[j].state != TABLE_GIVEN)
				status->tables[j].state = TABLE_WANTED;
	}
	LWLockRelease(gates->lock);
}

/* Copies a gate; returns false if there is none. */
bool
gate_look(int64 lock, GateStatus *status)
{
	Gate	   *gate = NULL;

	if (gate_none())
		return false;
	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find(lock);
	if (gate != NULL)
		*status = gate->status;
	LWLockRelease(gates->lock);
	return gate != NULL;
}

/* Changes the state of all tables in one state, or of one of them. */
void
gate_set_tables(int64 lock, GateTableState from, GateTableState to, Oid relid)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	for (int i = 0; gate != NULL && i < gate->status.num_tables; i++)
	{
		GateTable  *table = &gate->status.tables[i];

		if (table->state == from && (!OidIsValid(relid) || table->relid == relid))
			table->state = to;
	}
	LWLockRelease(gates->lock);
}

/*
 * The gate worker withdraws from the tables of the current request that are not confirmed, or from all; returns
 * whether there are any.
 */
bool
gate_withdraw(int64 lock, bool all)
{
	Gate	   *gate;
	bool		result = false;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	for (int i = 0; gate != NULL && i < gate->status.num_tables; i++)
	{
		GateTable  *table = &gate->status.tables[i];

		if (table->state != TABLE_HELD ||
			(!all && (table->confirmed || table->request != gate->status.request)))
			continue;
		table->state = TABLE_WITHDRAWN;
		result = true;
	}
	if (result)
		gate->status.round++;
	LWLockRelease(gates->lock);
	return result;
}

/*
 * If no writer that has passed is left, nothing has to be kept for them of the tables that the gate worker has
 * withdrawn from.  Whoever passes another table after that does not pass these.  Returns whether it is so.
 */
bool
gate_finish_withdrawal(int64 lock)
{
	Gate	   *gate;
	bool		result;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	result = gate != NULL && pg_atomic_read_u32(&gate->passing) == 0;
	for (int i = 0; result && i < gate->status.num_tables; i++)
		if (gate->status.tables[i].state == TABLE_WITHDRAWN)
			gate->status.tables[i].state = TABLE_WANTED;
	LWLockRelease(gates->lock);
	return result;
}

void
gate_offer(int64 lock)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	if (gate != NULL)
	{
		gate->status.offered = true;
		gate_wake(gate->status.taker);
	}
	LWLockRelease(gates->lock);
}

/* Returns how many transactions of writers have passed the gate and are not over. */
int
gate_passing(int64 lock)
{
	Gate	   *gate;
	int			result = 0;

	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find(lock);
	if (gate != NULL)
		result = pg_atomic_read_u32(&gate->passing);
	LWLockRelease(gates->lock);
	return result;
}

/* Frees the entry. */
void
gate_remove(int64 lock)
{
	Gate	   *gate;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(lock);
	if (gate != NULL)
	{
		bool		stored = gate->status.durable && gate->status.num_tables > 0;

		gate->status.state = GATE_FREE;
		pg_atomic_fetch_sub_u32(&gates->count, 1);
		if (stored)
			store();
	}
	LWLockRelease(gates->lock);
	ConditionVariableBroadcast(&gates->changed);
}
