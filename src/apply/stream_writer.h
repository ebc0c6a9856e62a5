/*
 * stream_writer.h
 *	  Applies transactions that were streamed.
 */
#ifndef WEFT_STREAM_WRITER_H
#define WEFT_STREAM_WRITER_H

#include "ring/ring.h"
#include "shmem.h"

extern bool stream_writer_work(void);
extern StreamShared *stream_writer_stream(const RingTransaction *transaction);
extern TransactionId stream_writer_prepare_xid(StreamShared *stream);
extern bool stream_writer_apply_in_turn(const RingTransaction *transaction);

#endif							/* WEFT_STREAM_WRITER_H */
