/*
 * ranges.h
 *	  Copies ranges of rows from the publisher into the table.
 */
#ifndef WEFT_COPY_RANGES_H
#define WEFT_COPY_RANGES_H

#include "copy/command.h"
#include "copy/copy_task.h"
#include "replication/walreceiver.h"

extern void copy_ranges(CopyTask *task, const CopyCommand *command, WalReceiverConn *conn,
						bool helper);

#endif							/* WEFT_COPY_RANGES_H */
