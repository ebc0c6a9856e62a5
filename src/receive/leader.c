/*
 * leader.c
 *	  The leader: the server's apply worker, once Weft receives for it.
 *
 * The server's apply loop asks for a message through leader_receive().  What
 * can be applied in parallel never reaches it: we put those transactions into
 * the ring, and go on receiving.  Everything else is returned to the loop as
 * if it came straight from the publisher, and so is applied by the server's
 * own code, with all it does around it: prepared and streamed transactions,
 * transactions while ALTER SUBSCRIPTION ... SKIP is waiting for its LSN, and
 * every transaction if there are no writers.
 *
 * The loop and the writers never work at the same time.  Whatever it is
 * given, "nothing yet" included, it is given only when no transaction is in
 * flight ("drained").  What it does then - apply, report the flush position,
 * synchronise tables, read its configuration and its subscription again, wait
 * for the socket - is right as it stands, provided it knows how far we are: so
 * before anything else it gets a keepalive of our own making with the end of
 * what we have received, and the position of the last local commit through
 * store_flush_position().  (The blocks of streamed transactions, which are
 * only written to a file, are the exception: they do not wait.)
 *
 * While transactions are in flight we do ourselves what may not wait: answer
 * keepalives, report progress, notice time-outs, signals and invalidations.
 *
 * With streaming = parallel, the server's parallel apply workers hold locks for
 * transactions that go on and on, and its leader takes part in deadlock
 * detection with them.  While there is such a transaction, everything is given
 * to the loop.
 *
 * The publisher may send several messages in one (publish/batch_format.h); they are
 * looked at one by one, as if they had come so, and stay where they lie until
 * the last of them is done.
 *
 * Waiting: the leader waits for the socket, for space in the ring, and for
 * transactions to commit; each time also for its latch, which writers and
 * signals set.  In full flow it takes a nap instead of waiting for the socket.
 * Before any pause it sees to it that somebody takes what is in the ring.  It
 * never waits for a lock on a table (relations.c), and not for a user.  Writers
 * wait for the leader only to get more of a transaction.
 *
 * If we die, all writers end (writers.c), and the next leader asks for
 * everything behind the origin's position again.  The writers commit in order,
 * with that position in their commit records: nothing is lost or doubled.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "postmaster/walwriter.h"
#include "receive/batch.h"
#include "receive/connection.h"
#include "receive/feedback.h"
#include "receive/leader.h"
#include "receive/messages.h"
#include "receive/relations.h"
#include "receive/streams.h"
#include "receive/writers.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "ring/wait.h"
#include "seam/seam.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "wire.h"

/* 'k', end of WAL, time, reply requested. */
#define KEEPALIVE_LENGTH (1 + 8 + 8 + 1)

/* A broadcast log of this size is begun anew. */
#define BROADCAST_LIMIT (64 * 1024 * 1024)

/*
 * If at least so many transactions, or changes of streamed ones, have come since the last pause, the next one
 * is a nap of so many microseconds.
 */
#define FULL_FLOW 4
#define NAP 250

/*
 * So long the leader pauses, in milliseconds, if what is in the ring should have
 * been taken by then.
 */
#define SHORT_PAUSE 1L

Leader		leader;

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	leader.subscription_valid = false;
}

static void
table_state_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	leader.tables_valid = false;
}

/*
 * The server would release the origin late: after its place as the subscription's worker
 * is given up, and after the ring is unmapped and spool files are deleted, which takes time.
 * The next leader would find it in use.
 */
static void
leader_exit(int code, Datum arg)
{
	writers_stop();
	replorigin_session_reset();
	shmem_release(leader.shared);
}

/* First call: become a leader. */
static void
leader_start(WalReceiverConn *conn)
{
	SubscriptionShared *shared = shmem_claim(MySubscription->oid);

	if (shared == NULL)
		elog(ERROR, "no free entry for subscription %u", MySubscription->oid);

	leader.context = AllocSetContextCreate(TopMemoryContext, "weft leader",
										   ALLOCSET_DEFAULT_SIZES);
	leader.message_context = AllocSetContextCreate(leader.context, "weft message",
												   ALLOCSET_DEFAULT_SIZES);
	leader.shared = shared;
	leader.conn = conn;
	pg_atomic_write_u32(&shared->batches, leader.batches);
	pg_atomic_write_u32(&shared->compression, leader.compression);
	leader.position = BETWEEN_TRANSACTIONS;
	leader.handover = HANDOVER_NOTHING;
	leader.socket = PGINVALID_SOCKET;
	leader.received_time = leader.last_turn = GetCurrentTimestamp();
	before_shmem_exit(leader_exit, (Datum) 0);
	relations_init(leader.context);
	streams_init();
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, table_state_changed, (Datum) 0);

	leader.subscription_valid = true;
	leader.configured = weft_writers_per_subscription;
	leader.wanted_writers = writers_wanted();
	writers_start(leader.wanted_writers);
}

/* Is there a transaction that is not committed? */
bool
leader_in_flight(void)
{
	return leader.producer.ring != NULL &&
		(leader.producer.open ||
		 ring_committed(leader.producer.ring) != leader.producer.seq);
}

/* Takes into account what the writers have committed. */
void
leader_collect(void)
{
	Ring	   *ring = leader.producer.ring;
	RingTransaction *transaction = NULL;
	uint64		committed;

	if (ring == NULL)
		return;
	committed = ring_committed(ring);
	pg_read_barrier();
	while (leader.collected < committed)
	{
		transaction = ring_transaction(ring, ++leader.collected);
		feedback_committed(transaction->end_lsn, transaction->local_end);
	}
	streams_collect();
	if (transaction)
	{
		pg_atomic_write_u64(&leader.shared->applied_lsn, transaction->end_lsn);
		pg_atomic_write_u64(&leader.shared->applied_time, transaction->commit_time);
		pg_atomic_write_u64(&leader.shared->ring_used, ring_used(&leader.producer));
	}
}

/*
 * Is no transaction in flight, and all that is committed in our accounts?  Only then
 * the server's apply loop may go on: it takes whatever it is not told of for flushed.
 */
bool
leader_drained(void)
{
	compat_injection_point("weft-leader-drained");
	if (leader_in_flight())
		return false;
	leader_collect();
	return true;
}

/* As the server does, asks for a sign of life, and ends if there is none. */
static void
check_timeout(void)
{
	TimestampTz now;
	bool		ping;

	if (wal_receiver_timeout <= 0)
		return;
	now = GetCurrentTimestamp();
	if (TimestampDifferenceExceeds(leader.received_time, now, wal_receiver_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("terminating logical replication worker due to timeout")));
	ping = !leader.ping_sent &&
		TimestampDifferenceExceeds(leader.received_time, now, wal_receiver_timeout / 2);
	if (ping)
	{
		feedback_send(leader.conn, leader.received_lsn, true, true);
		leader.ping_sent = true;
	}
}

/*
 * What is done before every pause: nobody must wait for us meanwhile.  Returns true
 * if the pause should be short.
 */
static bool
prepare_to_pause(void)
{
	leader_collect();
	writers_check();
	streams_flush();
	feedback_send(leader.conn, leader.received_lsn, false, false);
	pg_atomic_write_u64(&leader.shared->received_lsn, leader.received_lsn);
	pg_atomic_write_u64(&leader.shared->ring_used, ring_used(&leader.producer));
	leader.begun_since_pause = 0;
	return ring_wake_before_sleep(leader.producer.ring, &leader.progress);
}

/*
 * Waits for the latch, for the socket if one is given, or for the timeout.
 * Returns what has occurred.
 */
static int
wait_for_events(pgsocket socket, long timeout, uint32 wait_event)
{
	static WaitEventSet *set = NULL;
	WaitEvent	occurred;

	if (socket == PGINVALID_SOCKET)
		return WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, wait_event);

	/* Kept, since to make one costs more than to wait. */
	if (set == NULL)
	{
		set = CreateWaitEventSet(NULL, 3);
		AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(set, WL_SOCKET_READABLE, socket, NULL, NULL);
	}
	if (WaitEventSetWait(set, timeout, &occurred, 1, wait_event) == 0)
		return WL_TIMEOUT;
	return occurred.events;
}

/*
 * Sleeps until the socket, if one is given, can be read, or a transaction is
 * committed, or it is time to do something else.  Does what may not wait.
 */
void
leader_sleep(pgsocket socket, uint64 awaited_seq, WeftWaitEvent event)
{
	Ring	   *ring = leader.producer.ring;
	bool		short_pause = prepare_to_pause();
	int			occurred;

	ring_await_commit(ring, awaited_seq);
	if (ring_committed(ring) < awaited_seq)
	{
		occurred = wait_for_events(socket,
								   short_pause ? SHORT_PAUSE :
								   feedback_flush_pending() ? WalWriterDelay : 1000L,
								   wait_event_id(event));
		if (occurred & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (short_pause)
			occurred &= ~WL_TIMEOUT;
		if (socket == PGINVALID_SOCKET)
		{
			/*
			 * We are not listening, so silence means nothing.  The publisher
			 * may be waiting for an answer that it cannot even ask for.
			 */
			leader.received_time = GetCurrentTimestamp();
			if (occurred & WL_TIMEOUT)
				feedback_send(leader.conn, leader.received_lsn, true, false);
		}
		else if (occurred & WL_TIMEOUT)
			check_timeout();
	}
	ring_await_commit(ring, 0);

	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	leader_collect();
	writers_check();
}

/*
 * Has the publisher sent so much since the last pause that more will be here
 * soon?
 */
static bool
in_full_flow(void)
{
	return leader.num_writers > 0 && leader.begun_since_pause >= FULL_FLOW &&
		leader.handover == HANDOVER_NOTHING;
}

/*
 * Pauses though the socket may be readable at once: in full flow, to be woken
 * for each message costs the publisher's process and us more than to read.
 */
static void
nap(void)
{
	(void) prepare_to_pause();
	pgstat_report_wait_start(wait_event_id(WEFT_WAIT_LEADER_MAIN));
	pg_usleep(NAP);
	pgstat_report_wait_end();
}

/* Waits until a transaction, and so all before it, is committed. */
void
leader_drain(uint64 seq)
{
	while (ring_committed(leader.producer.ring) < seq)
		leader_sleep(PGINVALID_SOCKET, seq, WEFT_WAIT_LEADER_DRAIN);
	leader_collect();
}

/*
 * Ends with an error because of a damaged message, after what came before its
 * transaction has been applied: else a publisher that sends the same again
 * would keep us from getting even there.
 */
void
leader_damage(const char *message, const char *problem)
{
	if (leader.producer.ring)
		leader_drain(leader.producer.seq - (leader.producer.open ? 1 : 0));

	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("invalid logical replication message for subscription \"%s\"",
					MySubscription->name),
			 errdetail("Message \"%s\" at LSN %X/%X: %s.",
					   message ? logicalrep_message_type((LogicalRepMsgType) (uint8) message[0]) : "",
					   LSN_FORMAT_ARGS(leader.message_lsn), problem),
			 errhint("Nothing of this transaction has been applied. Check the publisher and what lies between it and this server.")));
}

/* Ends, as for a parameter of the subscription; the next leader asks anew. */
static void
restart_for_compression(void)
{
	ereport(LOG,
			(errmsg("logical replication worker for subscription \"%s\" will restart because \"%s\" has changed",
					MySubscription->name, "weft.compression")));
	ApplyLauncherForgetWorkerStartTime(MyLogicalRepWorker->subid);
	proc_exit(0);
}

/*
 * Acts on what has changed around us.  Called between transactions.
 */
void
leader_look_around(void)
{
	MemoryContext old = CurrentMemoryContext;

	AcceptInvalidationMessages();
	maybe_reread_subscription();

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (leader.batches && leader.compression_wanted != weft_compression)
		restart_for_compression();
	if (!leader.tables_valid)
	{
		leader.tables_valid = true;
		StartTransactionCommand();
		leader.tables_syncing =
			GetSubscriptionRelations(MySubscription->oid, true) != NIL ||
			MySubscription->twophasestate == LOGICALREP_TWOPHASE_STATE_PENDING;
		CommitTransactionCommand();
	}
	if (!leader.subscription_valid || leader.configured != weft_writers_per_subscription)
	{
		leader.subscription_valid = true;
		leader.configured = weft_writers_per_subscription;
		leader.wanted_writers = writers_wanted();
	}
	if (leader.wanted_writers != leader.started_for || writers_to_be_changed() ||
		(leader.num_writers > 0 && leader.broadcast.bytes > BROADCAST_LIMIT))
		writers_renew(leader.wanted_writers);
	MemoryContextSwitchTo(old);
}

/*
 * Ends because all that the subscription is to apply, up to until_lsn, has arrived.
 * Once that is committed, the replication origin says so: it goes to until_lsn, behind
 * the last transaction.
 */
void
leader_finish(void)
{
	if (leader.producer.ring)
		leader_drain(leader.producer.seq);
	replorigin_session_advance(leader.until_lsn, InvalidXLogRecPtr);
	ereport(LOG,
			(errmsg("subscription \"%s\" has applied everything up to LSN %X/%X, where it ends",
					MySubscription->name, LSN_FORMAT_ARGS(leader.until_lsn))));
	proc_exit(0);
}

void
leader_hand_over(HandoverKind kind, char *message, int length)
{
	leader.handover = kind;
	leader.message = message;
	leader.message_length = length;
	leader.message_end_lsn = InvalidXLogRecPtr;
	leader.message_commit_time = 0;
}

/* The same for a message that ends a transaction, or WAL without one. */
void
leader_hand_over_end(char *message, int length, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	leader_hand_over(HANDOVER_MESSAGE, message, length);
	leader.message_end_lsn = end_lsn;
	leader.message_commit_time = commit_time;
}

/* Keeps one more, which ends a transaction, to be given right behind. */
void
leader_hand_over_second(char *message, int length, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	leader.second_message = message;
	leader.second_length = length;
	leader.message_end_lsn = end_lsn;
	leader.message_commit_time = commit_time;
}

/* The server's apply loop asks for more, so it is through with the last. */
static void
account_for_native(void)
{
	if (XLogRecPtrIsInvalid(leader.native_lsn))
		return;
	if (leader.native_lsn > pg_atomic_read_u64(&leader.shared->applied_lsn))
		pg_atomic_write_u64(&leader.shared->applied_lsn, leader.native_lsn);
	if (leader.native_commit_time != 0)
	{
		pg_atomic_write_u64(&leader.shared->applied_time, leader.native_commit_time);
		pg_atomic_fetch_add_u64(&leader.shared->native_transactions, 1);
		feedback_native_committed();
	}
	leader.native_lsn = InvalidXLogRecPtr;
	leader.native_commit_time = 0;
}

/* Tells the server's apply loop, by a keepalive, how far we are. */
static int
make_keepalive(char **buffer)
{
	static char memory[KEEPALIVE_LENGTH];
	MessageBuilder keepalive;

	Assert(leader.producer.ring == NULL || leader.collected == leader.producer.seq);
	feedback_synchronize_native(leader.tables_syncing || !leader.tables_valid);
	message_start(&keepalive, memory, sizeof(memory), 'k');
	message_uint64(&keepalive, leader.settled_lsn);
	message_uint64(&keepalive, leader.sent_time);
	message_byte(&keepalive, false);	/* no reply requested */
	*buffer = keepalive.data;
	leader.native_is_behind = false;
	leader.native_lsn = leader.settled_lsn;
	return keepalive.length;
}

/* Gives the server's apply loop what is kept for it. */
static int
deliver(char **buffer, pgsocket *wait_fd)
{
	HandoverKind kind = leader.handover;
	int			length;

	if (leader.native_is_behind)
		return make_keepalive(buffer);

	leader.handover = HANDOVER_NOTHING;
	switch (kind)
	{
		case HANDOVER_MESSAGE:
			*buffer = leader.message;
			length = leader.message_length;
			if (leader.second_message != NULL)
			{
				leader_hand_over_end(leader.second_message, leader.second_length,
									 leader.message_end_lsn, leader.message_commit_time);
				leader.second_message = NULL;
				return length;
			}
			leader.message = NULL;
			leader.native_lsn = leader.message_end_lsn;
			leader.native_commit_time = leader.message_commit_time;
			return length;
		case HANDOVER_TURN:
			/* It must not sleep: there is more, and we have it. */
			SetLatch(MyLatch);
			leader.last_turn = GetCurrentTimestamp();
			*wait_fd = leader.socket;
			return 0;
		case HANDOVER_END:
			return -1;
		case HANDOVER_NOTHING:
			break;
	}
	pg_unreachable();
}

/* The stream has ended in the middle of a transaction. */
static void
drop_open_transaction(void)
{
	leader_drain(leader.producer.seq - 1);
	writers_stop();
}

/*
 * Takes the next message from the publisher.  Returns false if there is none
 * and the server's apply loop may wait for one.
 */
static bool
next_message(void)
{
	char	   *message;
	int			length;

	if (leader.message != NULL)
	{
		/* One that we have looked at before the loop had its turn. */
		message = leader.message;
		length = leader.message_length;
		leader.message = NULL;
	}
	else if ((length = batch_next(&message)) == 0)
	{
		length = (seam_native->walrcv_receive) (leader.conn, &message, &leader.socket);
		if (length > 0)
		{
			leader.received_time = GetCurrentTimestamp();
			leader.ping_sent = false;
			if (batch_open(message, length))
				return true;
		}
	}

	if (length > 0)
	{
		MemoryContextReset(leader.message_context);
		if (message[0] == 'w')
			message_data(message, length);
		else if (message[0] == 'k')
			message_keepalive(message, length);
		/* Others are ignored, as the server does. */
	}
	else if (length < 0)
	{
		if (leader.producer.open)
			drop_open_transaction();
		leader_hand_over(HANDOVER_END, NULL, 0);
	}
	else if (in_full_flow())
		nap();
	else if (leader_drained() && !streams_in_block())
	{
		leader.begun_since_pause = 0;
		if (leader.num_writers > 0)
			tuning_interrupt(&leader.tuning, leader.producer.seq, true);
		if (leader.position != BETWEEN_TRANSACTIONS)
			return false;
		leader_look_around();
		leader.last_turn = GetCurrentTimestamp();
		return false;
	}
	else
	{
		if (leader.num_writers > 0)
			tuning_interrupt(&leader.tuning, leader.producer.seq, false);
		leader_sleep(leader.socket, leader.collected + 1, WEFT_WAIT_LEADER_MAIN);
	}
	return true;
}

/*
 * Called by the server's apply loop in place of walrcv_receive, and with the
 * same meaning: returns the length of a message, which is in *buffer until the
 * next call; 0 if there is none and *wait_fd is to be waited for; -1 at the
 * end of the stream.
 */
static int
leader_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	MemoryContext old = CurrentMemoryContext;
	int			result;

	if (leader.shared == NULL)
		leader_start(conn);
	MemoryContextSwitchTo(leader.message_context);
	account_for_native();

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (leader.position == BETWEEN_TRANSACTIONS)
		{
			leader_collect();
			writers_check();
		}

		if (leader.handover != HANDOVER_NOTHING)
		{
			if (leader_drained())
			{
				result = deliver(buffer, wait_fd);
				break;
			}
			leader_sleep(PGINVALID_SOCKET, leader.producer.seq, WEFT_WAIT_LEADER_DRAIN);
		}
		else if (!next_message())
		{
			result = leader.native_is_behind ? make_keepalive(buffer) : 0;
			*wait_fd = leader.socket;
			break;
		}
	}
	MemoryContextSwitchTo(old);
	return result;
}

/* Registers the leader's steps; called once, while the postmaster loads Weft. */
void
leader_install(void)
{
	const SeamSteps steps = {
		.create_slot = connection_create_slot,
		.leader_start_streaming = connection_start_streaming,
		.leader_receive = leader_receive,
		.leader_send = feedback_forward,
	};

	seam_register(&steps);
}
