/*
 * shmem.h
 *	  The shared root: one entry for every subscription that is being applied.
 *
 * An entry is claimed by a subscription's leader when it starts and given up
 * when it ends.  Statistics are read from here by anybody, without a lock:
 * they are atomics, and a reader that meets a change of leader sees a mixture
 * of old and new at worst.
 */
#ifndef WEFT_SHMEM_H
#define WEFT_SHMEM_H

#include "access/xlogdefs.h"
#include "conflict_kind.h"
#include "datatype/timestamp.h"
#include "guc.h"
#include "lib/dshash.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/spin.h"
#include "utils/dsa.h"

/* What a writer is doing, as weft.stat_writer shows it. */
typedef enum WriterActivity
{
	WRITER_STARTING,
	WRITER_IDLE,
	WRITER_APPLYING,
	WRITER_WAITING_FOR_DATA,
	WRITER_WAITING_FOR_DEPENDENCY,
	WRITER_WAITING_FOR_COMMIT_ORDER,
	WRITER_RETRYING,
	WRITER_EXITED,
} WriterActivity;

typedef struct WriterShared
{
	/* Zero until the writer has attached; written by the writer alone. */
	pg_atomic_uint32 pid;
	pg_atomic_uint32 activity;	/* a WriterActivity */

	/*
	 * Position in the commit order of the current or last transaction, the
	 * first one if several share a commit.  That of a stream writer is its
	 * stream's: see shmem_writer_seq().
	 */
	pg_atomic_uint64 seq;
	pg_atomic_uint64 remote_lsn;	/* end of what was committed last, there */

	/* Counted since the leader started. */
	pg_atomic_uint64 transactions;
	pg_atomic_uint64 changes;
	pg_atomic_uint64 dependency_waits;
	pg_atomic_uint64 order_waits;
	pg_atomic_uint64 misspeculations;

	/*
	 * For a stream writer: the index of the transaction that it is to apply,
	 * from 1.  The leader sets it where it is zero, the writer sets it back,
	 * or to STREAM_WRITER_LEAVES before it ends.
	 */
	pg_atomic_uint32 stream;
} WriterShared;

#define STREAM_WRITER_LEAVES PG_UINT32_MAX

/*
 * How far a streamed transaction has come, in the order of its life.  While it is
 * STREAM_APPLYING, the writer of its own may fail, and whoever wants it to do
 * something else takes it from there by compare-and-exchange; apply/stream_writer.c tells
 * the protocol.
 */
typedef enum StreamState
{
	STREAM_FREE,				/* no transaction */
	STREAM_SPOOLED,				/* nobody applies it before it ends */
	STREAM_APPLYING,			/* a writer of its own does */
	STREAM_DISCARDED,			/* that is to roll it back */
	STREAM_FINISHING,			/* or to commit it */
	STREAM_COMMITTED,			/* it has; local_end is valid */
	STREAM_FAILED,				/* it has rolled it back */
} StreamState;

/* A streamed transaction that the writers know of. */
typedef struct StreamShared
{
	pg_atomic_uint32 state;		/* a StreamState */
	pg_atomic_uint32 xid;		/* on the publisher */
	pg_atomic_uint64 written;	/* bytes of the spool that can be read */
	pg_atomic_uint32 data_awaited;	/* the writer sleeps until more is */
	pg_atomic_uint32 writer;	/* its number, valid from STREAM_APPLYING on */
	pg_atomic_uint64 received_changes;
	pg_atomic_uint64 applied_changes;

	/*
	 * Set by the leader when the transaction has ended; before that, seq is
	 * zero. The other fields are valid once it is not.
	 */
	pg_atomic_uint64 seq;
	uint32		number;			/* of the spool; valid at any time */
	uint64		base;			/* what SPOOL_AFTER asks for before this
								 * position is committed; valid at any time */
	uint32		num_void;		/* ranges of it, right behind "written" */
	bool		prepare;		/* to be prepared, not committed */
	bool		alone;			/* nobody may have applied it before its turn */
	XLogRecPtr	final_lsn;		/* on the publisher */

	/* Set by whoever asks for STREAM_FINISHING or STREAM_DISCARDED. */
	int			waiter_procno;
	XLogRecPtr	end_lsn;		/* on the publisher; to finish */
	TimestampTz end_time;		/* on the publisher; the same */

	XLogRecPtr	local_end;		/* end of the commit record */
} StreamShared;

/* So many streamed transactions are taken care of at a time. */
#define NUM_STREAMS 64

#define NATIVE_REASON_LEN 160

typedef struct SubscriptionShared
{
	/*
	 * Protects the plain fields.  They are written by the leader only, so the
	 * leader reads them without it.
	 */
	slock_t		mutex;

	Oid			subid;			/* InvalidOid while the entry is free */
	Oid			dbid;
	Oid			userid;			/* owner of the subscription */
	int			leader_pid;
	uint32		generation;		/* counts the sets of writers started here */
	int			num_writers;	/* how many run now */
	dsm_handle	ring;
	RepOriginId origin;
	bool		detect_conflicts;

	/*
	 * Of relation_stats.c; valid, once they are set, until the entry is given
	 * up.
	 */
	dsa_handle	statistics_area;
	dshash_table_handle statistics_table;

	/* Why the server's own path is in use; empty while it is not. */
	char		native_reason[NATIVE_REASON_LEN];

	/* How many writers of the current set have ended. */
	pg_atomic_uint32 writers_gone;

	pg_atomic_uint32 batches;	/* does the publisher send some? */
	pg_atomic_uint32 compression;	/* a Compression: which they may have */

	pg_atomic_uint64 received_lsn;
	pg_atomic_uint64 applied_lsn;
	pg_atomic_uint64 applied_time;	/* commit time on the publisher */
	pg_atomic_uint64 native_transactions;	/* applied by the leader itself */
	pg_atomic_uint64 barriers;
	pg_atomic_uint64 conflicts[NUM_CONFLICT_KINDS];
	pg_atomic_uint64 ring_size; /* in bytes; zero without a ring */
	pg_atomic_uint64 ring_used;

	/* Ordinary writers, and behind them stream writers. */
	WriterShared writers[WEFT_MAX_PROCESSES];
	StreamShared streams[NUM_STREAMS];
} SubscriptionShared;

/* Fails with an ERROR and a hint where Weft was not preloaded. */
extern void shmem_require(void);

extern void shmem_request(void);
extern void shmem_startup(void);

extern int	shmem_broadcast_tranche(void);
extern int	shmem_statistics_tranche(void);
extern SubscriptionShared *shmem_claim(Oid subid);
extern void shmem_release(SubscriptionShared *entry);
extern void shmem_keep_entries(void);
extern void shmem_let_entries_go(void);
extern int	shmem_count(void);
extern SubscriptionShared *shmem_get(int index);
extern int	shmem_index(const SubscriptionShared *entry);
extern SubscriptionShared *shmem_find(Oid subid);
extern uint64 shmem_writer_seq(SubscriptionShared *entry, int number);
extern void shmem_reset_writer(WriterShared *writer);
extern void shmem_reset_writers(SubscriptionShared *entry);

#endif							/* WEFT_SHMEM_H */
