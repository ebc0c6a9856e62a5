/*
 * shmem.h
 *	  The shared root: one entry for every subscription that is being applied.
 *
 * A subscription's leader claims an entry when it starts, and releases it when it ends.
 * Any process may read statistics here without a lock: they are atomics, and a reader that
 * meets a change of leader sees a mixture of old and new at worst.
 */
#ifndef WEFT_SHMEM_H
#define WEFT_SHMEM_H

#include "access/xlogdefs.h"
#include "compat.h"
#include "conflict_kind.h"
#include "confirmation.h"
#include "cut_request.h"
#include "datatype/timestamp.h"
#include "guc.h"
#include "lib/dshash.h"
#include "pace.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/spin.h"
#include "stream_shared.h"
#include "utils/dsa.h"
#include "writer_shared.h"

#define NATIVE_REASON_LEN 160
#define SCHEMA_WAIT_LEN 200

typedef struct SubscriptionShared
{
	/*
	 * Protects the plain fields.  Only the leader writes them, so the leader
	 * reads them without it, unless it says otherwise there.
	 */
	slock_t		mutex;

	Oid			subid;			/* InvalidOid while the entry is free */
	Oid			dbid;
	Oid			userid;			/* owner of the subscription */
	int			leader_pid;
	uint32		generation;		/* how many sets of writers were started here */
	int			num_writers;	/* how many run now */
	int			wanted_writers; /* how many should */
	dsm_handle	ring;
	RepOriginId origin;
	bool		detect_conflicts;

	/*
	 * Owned by relation_stats.c.  Once set, they are valid until the entry is
	 * released.
	 */
	dsa_handle	statistics_area;
	dshash_table_handle statistics_table;

	/* Why the native path is in use; empty while it is not. */
	char		native_reason[NATIVE_REASON_LEN];

	/*
	 * What the writer of the oldest transaction waits for, which schema
	 * changes of another member are to create (apply/schema_wait.c); empty
	 * while it does not wait.  Written by that writer.
	 */
	char		schema_wait[SCHEMA_WAIT_LEN];
	TimestampTz schema_wait_since;
	pg_atomic_uint32 schema_waits;	/* does it wait? */

	/* Number of writers of the current set that have ended. */
	pg_atomic_uint32 writers_gone;

	pg_atomic_uint32 batches;	/* does the publisher send batches? */
	pg_atomic_uint32 compression;	/* a Compression: what they may use */

	/*
	 * Has a schema change been stored for a worker of its own
	 * (ddl/concurrent.c) since the leader looked last?
	 */
	pg_atomic_uint32 concurrent_ddl;

	pg_atomic_uint64 received_lsn;
	pg_atomic_uint64 applied_lsn;
	pg_atomic_uint64 applied_time;	/* commit time on the publisher */

	/*
	 * The publisher's clock when its WAL was flushed up to "asked_lsn"; zero
	 * if it was not asked.  Written by conflict/passed_time.c, under the
	 * mutex.
	 */
	TimestampTz asked_time;
	XLogRecPtr	asked_lsn;

	Pace		pace;			/* protected by the mutex */

	ConfirmationStatus confirmation;	/* protected by the mutex */

	pg_atomic_uint64 native_transactions;	/* applied by the leader itself */
	pg_atomic_uint64 barriers;
	pg_atomic_uint64 conflicts[NUM_CONFLICT_KINDS];
	pg_atomic_uint64 ring_size; /* in bytes; zero without a ring */
	pg_atomic_uint64 ring_used;

	CutRequest	cut;

	/* Ordinary writers, and behind them stream writers. */
	WriterShared writers[WEFT_MAX_PROCESSES];
	StreamShared streams[NUM_STREAMS];
} SubscriptionShared;

/* Throws an error with a hint if Weft was not preloaded. */
extern void shmem_require(void);

extern void shmem_request(void);
extern void shmem_startup(void);

extern SubscriptionShared *shmem_claim(Oid subid);
extern void shmem_release(SubscriptionShared *entry);
extern void shmem_keep_entries(void);
extern void shmem_let_entries_go(void);
extern int	shmem_count(void);
extern SubscriptionShared *shmem_get(int index);
extern int	shmem_index(const SubscriptionShared *entry);
extern SubscriptionShared *shmem_find(Oid subid);
extern uint64 shmem_transactions(SubscriptionShared *entry);
extern uint64 shmem_changes(SubscriptionShared *entry);
extern uint64 shmem_writer_seq(SubscriptionShared *entry, int number);
extern void shmem_reset_writers(SubscriptionShared *entry);
extern void shmem_share_origin(void);
extern bool shmem_origin_shared(void);

#endif							/* WEFT_SHMEM_H */
