/*
 * copy.h
 *	  The initial copy of a table with several processes.
 */
#ifndef WEFT_COPY_H
#define WEFT_COPY_H

#include "copy/command.h"
#include "copy/progress.h"
#include "replication/walreceiver.h"
#include "storage/dsm.h"
#include "storage/shm_toc.h"
#include "utils/rel.h"

#define COPY_SNAPSHOT_LEN 64
#define COPY_IDENTITY_LEN 32
#define COPY_OID_LEN 16
#define COPY_USER_LEN (NAMEDATALEN + 32)

/* The server that tables are copied from, and for whom. */
typedef struct CopyPublisher
{
	Oid			subid;			/* InvalidOid if not for a subscription */
	const char *user;			/* who wants it, as messages say it */
	const char *appname;		/* of the helpers' connections */
	const char *conninfo;
	bool		must_use_password;	/* as walrcv_connect() wants it */
	bool		all_rows;		/* row security is an error, not a filter */
} CopyPublisher;

/* What the processes that copy one table share. */
typedef struct CopyTask
{
	/* Fixed before the first helper starts. */
	Oid			relid;
	RepOriginId origin;
	int			progress;		/* index of the table's CopyProgress */
	int			num_helpers;
	bool		binary;			/* format of what is copied */
	BlockNumber num_blocks;
	BlockNumber min_range;		/* blocks taken at once, at least */
	BlockNumber max_range;
	char		snapshot[COPY_SNAPSHOT_LEN];
	char		identity[COPY_IDENTITY_LEN];	/* of the publisher's server */
	char		source_relid[COPY_OID_LEN]; /* the table's OID there */

	/*
	 * Ranges of blocks are taken in order.  The last one has no end, so that
	 * all rows are copied whatever the size of the table was said to be.
	 */
	slock_t		mutex;
	BlockNumber next_block;
	bool		all_taken;
	int			ranges_taken;
	int			ranges_done;

	/* Fixed, too: a copy of CopyPublisher. */
	bool		must_use_password;
	bool		all_rows;
	char		user[COPY_USER_LEN];
	char		appname[NAMEDATALEN];
	Size		conninfo;		/* where it begins in "texts" */
	Size		leaves;			/* the same of CopyTarget's */
	char		texts[FLEXIBLE_ARRAY_MEMBER];	/* the COPY command; conninfo;
												 * leaves */
} CopyTask;

/* source.c: what the publisher has */
typedef struct CopySource
{
	char	   *snapshot;
	char	   *identity;
	BlockNumber num_blocks;		/* of the table or its largest partition */
	uint64		bytes;			/* with what is stored out of line */
	uint64		toast_bytes;	/* of this, stored out of line */
	bool		ranges;			/* may a range of blocks be asked for? */
	List	   *types;			/* OIDs of the command's columns */
	CopyTarget	target;
} CopySource;

extern bool copy_source_supported(WalReceiverConn *conn);
extern uint64 copy_source_size(WalReceiverConn *conn, const CopyCommand *command);
extern void copy_source_ask(WalReceiverConn *conn, const CopyCommand *command,
							CopySource *source);
extern void copy_source_keep_alive(WalReceiverConn *conn);
extern WalReceiverConn *copy_source_join(const CopyTask *task, const CopyCommand *command);
extern void copy_source_begin_ranges(WalReceiverConn *conn);
extern void copy_source_range(WalReceiverConn *conn, const CopyCommand *command,
							  const char *query, bool helper);
extern void copy_source_end_ranges(WalReceiverConn *conn);

/* local.c: what the subscriber has */
extern const char *copy_local_obstacle(Relation rel, const CopyCommand *command);
extern bool copy_local_empty(Relation rel);
extern bool copy_local_decoded(Relation rel);
extern bool copy_local_out_of_line(Relation rel);
extern bool copy_local_binary(Relation rel, const CopyCommand *command, List *types);

/* indexes.c */
extern List *copy_indexes_suspend(Relation rel);
extern void copy_indexes_build(Relation rel, List *indexes, CopyProgress *progress);

/* rows.c: ranges of rows from the publisher into the table */
extern void copy_rows(CopyTask *task, const CopyCommand *command, WalReceiverConn *conn,
					  bool helper);

/* helper.c */
extern PGDLLEXPORT void copy_helper_main(dsm_segment *segment, shm_toc *toc);
extern CopyTask *copy_helpers_run(const CopyTask *task, Size size, WalReceiverConn *conn);

/* table.c: one table, from its question to its indexes */
extern const char *copy_table_rows(const CopyPublisher *publisher, WalReceiverConn *conn,
								   Relation rel, const char *text);
extern bool copy_table_unfinished(void);
extern void copy_table_indexes(void);

/* slots.c: slots of table synchronisation workers on the publisher */
extern void copy_slot_unused(void);
extern void copy_slot_dropped(WalRcvExecResult *result);
extern void copy_slots_clean(WalReceiverConn *conn);
extern void copy_slots_check(void);

/* copy.c */
extern void copy_install(void);

#endif							/* WEFT_COPY_H */
