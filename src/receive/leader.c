/*
 * leader.c
 *	  The leader: the server's apply worker, once Weft receives for it.
 *
 * Actors: the leader, one process for each subscription, in which both Weft's code and the
 * server's apply loop run; the writers, which apply transactions from the ring, and stream
 * writers; the publisher.
 *
 * The server's apply loop asks for its next message through leader_receive().  The leader
 * then receives messages from the publisher, and puts the transactions that can be applied
 * in parallel into the ring, or into a spool while they are in progress; the loop
 * never sees these.  Everything else is returned to the loop as if it came straight from
 * the publisher, and is applied by the server's own code in this process, with
 * everything that this code does around it.  messages.c lists what that is.
 *
 * The loop and the writers never work at the same time: the loop gets something, "nothing
 * yet" included, only when nothing is in flight and all commits are collected
 * (pause.c), and first of all it gets a keepalive that tells it how far the subscription is
 * (handover.c).  While transactions are in flight, the leader itself does what may
 * not wait: it answers keepalives, reports progress, and notices time-outs, signals and
 * invalidations.
 *
 * The publisher may send several messages as one batch (publish/batch_format.h).  The
 * leader takes them out one by one, as if each had arrived on its own.  They stay where
 * they are in memory until the last of them is done.
 *
 * If the leader ends, all its writers end before it does (writers.c), and the next leader
 * asks the publisher for everything after the replication origin's position.  Writers
 * commit in order, with the position on the publisher in each commit record.  Therefore
 * what is committed is a prefix of the publisher's transactions, and the origin says where
 * it ends: no transaction is lost or applied twice.
 *
 * The modules of receive/, each of which uses only those before it:
 *
 *	 led_subscription, reception, table_sync		state
 *	 recent_commits									what was begun to be applied
 *	 connection, feedback							the publisher's side
 *	 tuning, relations, dependency, leader_ring		the ring's side
 *	 stream_spool, stream_set						streamed transactions, kept
 *	 writers										processes
 *	 publisher_end, sampler							figures about progress
 *	 pause											waiting for all of these
 *	 damage, batch									checks
 *	 handover										the server's apply loop's side
 *	 housekeeping									changes around the leader
 *	 transaction, streams, messages					where each message goes
 *	 hold											cuts
 *	 leader											the loop
 */
#include "postgres.h"

#include "miscadmin.h"
#include "node_copy.h"
#include "receive/concurrent_start.h"
#include "receive/connection.h"
#include "receive/ddl_rows.h"
#include "receive/feedback.h"
#include "receive/handover.h"
#include "receive/hold.h"
#include "receive/housekeeping.h"
#include "receive/leader.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/messages.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/relations.h"
#include "receive/sampler.h"
#include "receive/stream_set.h"
#include "receive/writers.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/*
 * The leader is in full flow if at least this many transactions, or changes of streamed
 * ones, have arrived since the last pause.  Then it naps instead of waiting.
 */
#define FULL_FLOW 4

/* While standbys are waited for, the server's apply loop gets its turn this often. */
#define TURN_INTERVAL 1000		/* ms */

/* With nothing to receive, the leader waits until this part of what is in flight is committed. */
#define WAKE_SHARE 64			/* one 64th */

/*
 * Do other processes use the leader's origin?  The writers have ended, but parallel apply workers
 * of the server and processes that repair rows may not.
 */
static bool
origin_is_shared(void)
{
	if (shmem_origin_shared())
		return true;
	foreach_ptr(LogicalRepWorker, worker, compat_running_workers(MyLogicalRepWorker->subid))
	{
		if (isParallelApplyWorker(worker))
			return true;
	}
	return false;
}

/*
 * The server would release the origin later: after it has given up this process's place
 * as the subscription's worker, and after the ring has been unmapped and spools have been
 * deleted, which takes time.  The next leader would find the origin in use.  From 19 on, it
 * does so anyway while others use the origin.
 */
static void
leader_exit(int code, Datum arg)
{
	housekeeping_stop_writers();
	sampler_stop();
	if (!COMPAT_ORIGIN_COUNTS_USERS || !origin_is_shared())
		replorigin_session_reset();
	node_copy_leave(led.shared->subid, Max(reception.told_lsn, reception.received_lsn));
	shmem_release(led.shared);
}

/* In place of walrcv_startstreaming. */
static bool
leader_start_streaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	feedback_start();
	return connection_start_streaming(conn, options);
}

/*
 * The publisher sends nothing before the position that it knows to be flushed.  The server's apply
 * loop believes to be at that of its origin, which may be older.  If it synchronized a table up to
 * there, the changes in between would come to nobody: it has skipped them before, because the
 * table was being copied, and this leader is not sent them again.
 */
static void
begin_where_sent(void)
{
	if (connection_confirmed() > replorigin_session_get_progress(false))
		handover_settled(connection_confirmed());
}

/* All processes of the last leader have ended, so what the origin counts can be seen. */
static void
begin_where_applied(void)
{
	pg_atomic_write_u64(&led.shared->applied_lsn, replorigin_session_get_progress(false));
}

/* First call: become a leader. */
static void
leader_start(WalReceiverConn *conn)
{
	led_claim();
	SetConfigOption("application_name", MySubscription->name, PGC_USERSET, PGC_S_SESSION);
	pg_atomic_write_u32(&led.shared->batches, connection_sends_batches());
	pg_atomic_write_u32(&led.shared->compression, connection_compression());
	reception_start(conn);
	handover_start();
	begin_where_applied();
	begin_where_sent();
	sampler_start();
	ddl_rows_start(replorigin_session_get_progress(false));
	before_shmem_exit(leader_exit, (Datum) 0);
	relations_init(led.context);
	stream_set_init();
	housekeeping_start();
}

/* Has the publisher sent so much since the last pause that more will be here soon? */
static bool
in_full_flow(void)
{
	return writers_count() > 0 && reception.begun_since_pause >= FULL_FLOW &&
		!handover_waiting();
}

/* A pause begins: measurements of tuning are interrupted. */
static void
interrupt_tuning(bool all_committed)
{
	if (writers_count() > 0)
		tuning_interrupt(&leader_ring.tuning, GetCurrentTimestamp(),
						 leader_ring.producer.seq, all_committed);
}

/*
 * Returns the transaction that is to wake the leader: the next one, or, if many are in flight,
 * one that is some of them later.  To be woken and to report by each costs writers, leader and
 * walsender more than the commit.
 */
static uint64
part_in_flight(void)
{
	return leader_ring.collected + 1 +
		(leader_ring.producer.seq - leader_ring.collected) / WAKE_SHARE;
}

/* The stream has ended.  If it did so within a transaction, that one is rolled back. */
static void
stream_ended(void)
{
	if (leader_ring.producer.open)
	{
		pause_drain(leader_ring.producer.seq - 1);
		housekeeping_stop_writers();
	}
	handover_stream_end();
}

/*
 * Nothing is in flight, and there is nothing to do for the server's apply loop.  Sleeps if something
 * is to be flushed or confirmed soon, and returns true; but the loop gets its turn now and then, and
 * must not sleep in it.
 */
static bool
sleep_when_idle(void)
{
	long		delay;
	WeftWaitEvent event = WEFT_WAIT_LEADER_MAIN;

	if (!feedback_flush_when_idle(&delay))
	{
		if (!feedback_withheld(reception.conn, &delay))
			return false;
		if (TimestampDifferenceExceeds(handover_last_turn(), GetCurrentTimestamp(), TURN_INTERVAL))
		{
			SetLatch(MyLatch);
			return false;
		}
		event = WEFT_WAIT_STANDBY;
	}
	if (!messages_between_transactions())
		return false;
	pause_sleep_at_most(delay, reception.socket, leader_ring.collected + 1, event);
	return true;
}

/*
 * Nothing has arrived.  Returns false if nothing is in flight either: the server's apply
 * loop then waits for the socket, and does its housekeeping.
 */
static bool
wait_for_message(void)
{
	if (hold_active())
	{
		interrupt_tuning(false);
		return hold_wait();
	}
	if (in_full_flow())
		pause_nap();
	else if (pause_drained() && !stream_set_in_block())
	{
		interrupt_tuning(true);
		sampler_idle(GetCurrentTimestamp());
		if (sleep_when_idle())
			return true;
		reception.begun_since_pause = 0;
		if (messages_between_transactions())
		{
			housekeeping_between_transactions();
			handover_turn_taken();
		}
		return false;
	}
	else
	{
		interrupt_tuning(false);
		if (messages_between_transactions())
			concurrent_start_turn();
		pause_sleep(reception.socket, part_in_flight(), WEFT_WAIT_LEADER_MAIN);
	}
	return true;
}

/*
 * Processes the next message from the publisher.  Returns false if there is none and the
 * server's apply loop may wait for one.
 */
static bool
next_message(void)
{
	char	   *message;
	int			length = handover_take_back(&message);

	if (length == 0)
		length = hold_receive(&message);
	if (length == 0)
		return wait_for_message();
	if (length < 0)
	{
		stream_ended();
		return true;
	}

	MemoryContextReset(led.message_context);
	if (message[0] == 'w')
		messages_data(message, length);
	else if (message[0] == 'k')
		messages_keepalive(message, length);
	else if (message[0] == STATUS_MESSAGE)
		messages_status(message, length);
	/* Others are ignored, as in the server's apply loop. */
	return true;
}

/*
 * In place of walrcv_receive, and with the same meaning: returns the length of a message,
 * which is in *buffer until the next call; 0 if there is none and the caller should wait
 * for *wait_fd; -1 at the end of the stream.
 */
static int
leader_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	MemoryContext old = CurrentMemoryContext;
	int			result;

	if (led.shared == NULL)
		leader_start(conn);
	MemoryContextSwitchTo(led.message_context);
	ddl_rows_leave_loop();
	handover_account();
	/* The server's apply loop may have been busy with a message for long. */
	sampler_now(GetCurrentTimestamp());

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (messages_between_transactions())
		{
			pause_collect();
			writers_check();
			sampler_tick(reception.received_time);
		}

		if (handover_waiting())
		{
			if (pause_drained())
			{
				result = handover_deliver(buffer, wait_fd);
				break;
			}
			concurrent_start_turn();
			pause_sleep(PGINVALID_SOCKET, leader_ring.producer.seq, WEFT_WAIT_LEADER_DRAIN);
		}
		else if (!next_message())
		{
			result = handover_deliver_nothing(buffer, wait_fd);
			if (result == 0)
				hold_turn_taken();
			break;
		}
	}
	ddl_rows_enter_loop();
	MemoryContextSwitchTo(old);
	return result;
}

/* Registers the leader's steps; called once, while the postmaster loads Weft. */
void
leader_install(void)
{
	const SeamSteps steps = {
		.create_slot = connection_create_slot,
		.leader_start_streaming = leader_start_streaming,
		.leader_receive = leader_receive,
		.leader_send = feedback_forward,
	};

	seam_register(&steps);
}
