/*
 * guc.h
 *	  The configuration parameters weft.*
 */
#ifndef WEFT_GUC_H
#define WEFT_GUC_H

/* How many writers a subscription can have, whatever is configured. */
#define WEFT_MAX_WRITERS 64

/*
 * And how many stream writers.  A writer's number is less than WEFT_MAX_WRITERS, a
 * stream writer's is not.
 */
#define WEFT_MAX_STREAM_WRITERS 16
#define WEFT_MAX_PROCESSES (WEFT_MAX_WRITERS + WEFT_MAX_STREAM_WRITERS)

/* The same for helpers of one table's initial copy. */
#define WEFT_MAX_COPY_WORKERS 64

/* How many remote transactions can share a commit, whatever is configured. */
#define WEFT_MAX_COMMIT_GROUP 1000

/* How a subscriber asks for what it is sent. */
typedef enum Compression
{
	COMPRESSION_OFF,
	COMPRESSION_LZ4,
} Compression;

/* Which schema changes of a node group lock their tables. */
typedef enum DdlLock
{
	DDL_LOCK_AUTO,				/* those that need it */
	DDL_LOCK_NONE,
	DDL_LOCK_ALWAYS,
} DdlLock;

extern int	weft_commit_group_size;
extern int	weft_comparison_snapshot_age;	/* in seconds */
extern int	weft_compression;	/* a Compression */
extern int	weft_conflict_history_max_rows;
extern int	weft_conflict_history_retention;	/* in seconds */
extern char *weft_confirm_after_standby_slots;
extern char *weft_conflict_history_types;
extern int	weft_copy_workers_per_table;
extern int	weft_ddl_lock;		/* a DdlLock */
extern int	weft_ddl_lock_timeout;	/* in milliseconds */
extern int	weft_ddl_wait_timeout;	/* in milliseconds */
extern int	weft_decode_ahead;	/* in kB */
extern int	weft_flush_delay;	/* in milliseconds */
extern int	weft_max_copy_workers;
extern int	weft_max_stream_writers;
extern int	weft_max_writers_per_subscription;
extern int	weft_min_parallel_copy_size;	/* in kilobytes */
extern int	weft_ring_size;		/* in kilobytes */
extern int	weft_row_time_retention;	/* in seconds */
extern int	weft_tombstone_retention;	/* in seconds */
extern int	weft_ddl_history_retention; /* in seconds */
extern bool weft_ddl_replication;
extern bool weft_exact_commit_timestamps;
extern bool weft_tune_writers;
extern int	weft_writers_per_subscription;

extern void guc_define(void);
extern int	guc_max_commit_group(void);
extern void guc_reload_if_requested(void);
extern void guc_publish_no_schema_changes(void);

#endif							/* WEFT_GUC_H */
