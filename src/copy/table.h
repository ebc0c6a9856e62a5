/*
 * table.h
 *	  Copies one table with several processes.
 */
#ifndef WEFT_COPY_TABLE_H
#define WEFT_COPY_TABLE_H

#include "copy/copy_task.h"
#include "replication/walreceiver.h"
#include "utils/rel.h"

extern const char *copy_table_rows(const CopyPublisher *publisher, WalReceiverConn *conn,
								   Relation rel, const char *text);
extern bool copy_table_unfinished(void);
extern void copy_table_indexes(void);

#endif							/* WEFT_COPY_TABLE_H */
