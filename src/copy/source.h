/*
 * source.h
 *	  The publisher's table, and its snapshot.
 */
#ifndef WEFT_COPY_SOURCE_H
#define WEFT_COPY_SOURCE_H

#include "copy/command.h"
#include "copy/copy_task.h"
#include "replication/walreceiver.h"
#include "utils/rel.h"

typedef struct CopySource
{
	char	   *snapshot;
	char	   *identity;
	BlockNumber num_blocks;		/* of the table or its largest partition */
	uint64		bytes;			/* with what is stored out of line */
	uint64		toast_bytes;	/* the part stored out of line */
	bool		ranges;			/* can ranges of blocks be copied? */
	List	   *types;			/* OIDs of the command's columns */
	CopyTarget	target;
} CopySource;

extern bool copy_source_supported(WalReceiverConn *conn);
extern bool copy_source_partitioned(WalReceiverConn *conn, const CopyCommand *command);
extern uint64 copy_source_size(WalReceiverConn *conn, const CopyCommand *command);
extern void copy_source_ask(WalReceiverConn *conn, const CopyCommand *command,
							CopySource *source);
extern void copy_source_check(WalReceiverConn *conn, Relation rel);
extern void copy_source_keep_alive(WalReceiverConn *conn);
extern WalReceiverConn *copy_source_join(const CopyTask *task, const CopyCommand *command);
extern void copy_source_begin_ranges(WalReceiverConn *conn);
extern void copy_source_range(WalReceiverConn *conn, const CopyCommand *command,
							  const char *query, bool helper);
extern void copy_source_end_ranges(WalReceiverConn *conn);

#endif							/* WEFT_COPY_SOURCE_H */
