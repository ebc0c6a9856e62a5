/*
 * leader.h
 *	  The leader: the server's apply worker, once Weft receives for it.
 */
#ifndef WEFT_LEADER_H
#define WEFT_LEADER_H

#include "compat.h"
#include "postmaster/bgworker.h"
#include "receive/tuning.h"
#include "replication/walreceiver.h"
#include "ring/broadcast.h"
#include "ring/ring.h"
#include "ring/wake.h"
#include "shmem.h"
#include "utils/hsearch.h"
#include "wait_event.h"
#include "wire.h"

/* Where in the publisher's stream we are. */
typedef enum StreamPosition
{
	BETWEEN_TRANSACTIONS,
	IN_TRANSACTION,				/* which goes into the ring */
	IN_NATIVE_TRANSACTION,		/* which the server's apply loop applies */
	IN_PREPARED_TRANSACTION,	/* the same, up to PREPARE */
	IN_STREAM_BLOCK,			/* between STREAM START and STREAM STOP */
} StreamPosition;

/* What is to be given to the server's apply loop once nothing is in flight. */
typedef enum HandoverKind
{
	HANDOVER_NOTHING,
	HANDOVER_MESSAGE,
	HANDOVER_TURN,				/* let it do its housekeeping */
	HANDOVER_END,				/* the stream has ended */
} HandoverKind;

typedef struct Leader
{
	WalReceiverConn *conn;
	MemoryContext context;		/* lives as long as we do */
	MemoryContext message_context;	/* reset for each message */
	SubscriptionShared *shared;
	int			wanted_writers; /* as configured when last looked at */
	int			started_for;	/* wanted_writers when they were started */
	int			configured;		/* weft.writers_per_subscription then */
	bool		detect_conflicts;	/* as stored for the subscription */
	XLogRecPtr	until_lsn;		/* the same; never changed while we apply */

	/*
	 * Valid while writers run, that is while num_writers > 0; while they
	 * start or end, "segment" tells whether there may be any.
	 */
	int			num_writers;
	bool		short_of_places;	/* fewer than there should be */
	BackgroundWorkerHandle *writers[WEFT_MAX_PROCESSES];	/* NULL: not there */
	bool		all_attached;	/* every writer has said that it is there */
	dsm_segment *segment;
	RingProducer producer;
	BroadcastLog broadcast;
	uint64		collected;		/* all up to this seq is in our accounts */

	Tuning		tuning;			/* valid while writers run */
	int			begun_since_pause;	/* transactions, and changes of streamed
									 * ones */
	RingProgress progress;		/* as seen at pauses */

	/* No transaction may be begun before this seq is committed. */
	uint64		barrier;

	StreamPosition position;
	XLogRecPtr	message_lsn;	/* of the message at hand */
	XLogRecPtr	final_lsn;		/* of the current transaction */
	bool		changes_seen;	/* in the current transaction */
	XLogRecPtr	received_lsn;	/* end of what has arrived */

	/*
	 * Before this, all that has arrived is in the ring or was given to the
	 * server's apply loop.  A message that is kept is behind it.
	 */
	XLogRecPtr	settled_lsn;
	TimestampTz received_time;	/* when something last did, on our clock */
	TimestampTz sent_time;		/* when it was sent, on the publisher's */
	bool		ping_sent;

	/*
	 * Streamed transactions that the server's own parallel apply workers have
	 * begun and not finished.
	 */
	int			parallel_streams;

	/* What is left of a batch; it stays where it is (batch.c). */
	bool		batches;		/* we have asked for some */
	Compression compression;	/* which they may have */
	int			compression_wanted; /* weft.compression when we asked */
	WireCursor	batch;
	char	   *buffer;			/* for compressed ones */
	int			buffer_size;
	TimestampTz batch_time;
	bool		publisher_holds;	/* keepalives tell more than has been sent */

	/* A message kept until nothing is in flight; it stays where it is, too. */
	HandoverKind handover;
	char	   *message;
	int			message_length;
	char	   *second_message; /* to be given right behind it, or NULL */
	int			second_length;
	pgsocket	socket;			/* once the publisher has kept us waiting */

	/*
	 * The end of the transaction, or of WAL without one, that is over with
	 * the message that is kept; and of what the loop was given last, which it
	 * is through with when it asks for more.  No commit time: no transaction.
	 */
	XLogRecPtr	message_end_lsn;
	TimestampTz message_commit_time;
	XLogRecPtr	native_lsn;
	TimestampTz native_commit_time;

	/*
	 * What is known to the server's apply loop is older than what we have
	 * received: it gets a keepalive first.
	 */
	bool		native_is_behind;
	TimestampTz last_turn;		/* when its housekeeping was last done */
	bool		tables_syncing; /* so its housekeeping is urgent */
	bool		tables_valid;	/* tables_syncing is up to date */
	bool		subscription_valid; /* wanted_writers is up to date */
} Leader;

extern Leader leader;

extern void leader_install(void);
extern bool leader_in_flight(void);
extern bool leader_drained(void);
extern void leader_drain(uint64 seq);
extern void leader_collect(void);
extern void leader_sleep(pgsocket socket, uint64 awaited_seq, WeftWaitEvent event);
extern void leader_look_around(void);
pg_noreturn extern void leader_finish(void);
extern void leader_hand_over(HandoverKind kind, char *message, int length);
extern void leader_hand_over_end(char *message, int length, XLogRecPtr end_lsn,
								 TimestampTz commit_time);
extern void leader_hand_over_second(char *message, int length, XLogRecPtr end_lsn,
									TimestampTz commit_time);
pg_noreturn extern void leader_damage(const char *message, const char *problem);

#endif							/* WEFT_LEADER_H */
