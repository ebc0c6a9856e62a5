/*
 * transaction.h
 *	  Putting a transaction into the ring.
 */
#ifndef WEFT_TRANSACTION_H
#define WEFT_TRANSACTION_H

#include "ring/ring.h"
#include "shmem.h"

extern void transaction_begin(const char *message, int length);
extern void transaction_change(const char *message, int length);
extern void transaction_relation(const char *message, int length);
extern void transaction_truncate(const char *message, int length);
extern void transaction_commit(XLogRecPtr end_lsn, TimestampTz commit_time);
extern void transaction_record(RingRecordKind kind, uint16 flags, uint64 number,
							const char *data, Size length);
extern void transaction_barrier(void);
extern void transaction_stream(StreamShared *stream, XLogRecPtr end_lsn,
							TimestampTz commit_time);

#endif							/* WEFT_TRANSACTION_H */
