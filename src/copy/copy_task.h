/*
 * copy_task.h
 *	  What the processes that copy one table share.
 */
#ifndef WEFT_COPY_TASK_H
#define WEFT_COPY_TASK_H

#include "access/xlogdefs.h"
#include "compat.h"
#include "storage/block.h"
#include "storage/spin.h"

#define COPY_SNAPSHOT_LEN 64
#define COPY_IDENTITY_LEN 32
#define COPY_OID_LEN 16
#define COPY_USER_LEN (NAMEDATALEN + 32)

/* The server from which tables are copied, and for whom. */
typedef struct CopyPublisher
{
	Oid			subid;			/* InvalidOid if not for a subscription */
	const char *user;			/* subscription or node, for messages */
	const char *appname;		/* of the helpers' connections */
	const char *conninfo;
	bool		must_use_password;	/* as walrcv_connect() wants it */
	bool		all_rows;		/* row security is an error, not a filter */
} CopyPublisher;

/* Shared by the processes that copy one table. */
typedef struct CopyTask
{
	/* Fixed before the first helper starts. */
	Oid			relid;
	RepOriginId origin;
	int			progress;		/* index of the table's CopyProgress */
	int			num_helpers;
	bool		binary;			/* format of what is copied */
	BlockNumber num_blocks;
	BlockNumber min_range;		/* limits of the blocks taken at a time */
	BlockNumber max_range;
	char		snapshot[COPY_SNAPSHOT_LEN];
	char		identity[COPY_IDENTITY_LEN];	/* of the publisher's server */
	char		source_relid[COPY_OID_LEN]; /* the table's OID there */

	/*
	 * Ranges of blocks are taken in order.  The last one has no end, so that
	 * all rows are copied even if the table is larger than it was said to be.
	 */
	slock_t		mutex;
	BlockNumber next_block;
	bool		all_taken;
	int			ranges_taken;
	int			ranges_done;

	/* Also fixed: a copy of CopyPublisher. */
	bool		must_use_password;
	bool		all_rows;
	char		user[COPY_USER_LEN];
	char		appname[NAMEDATALEN];
	Size		conninfo;		/* its offset in "texts" */
	Size		leaves;			/* the same for CopyTarget's */
	char		texts[FLEXIBLE_ARRAY_MEMBER];	/* the COPY command; conninfo;
												 * leaves */
} CopyTask;

#endif							/* WEFT_COPY_TASK_H */
