/*
 * stream_writer.h
 *	  Applying transactions that were streamed.
 *
 * Shared by the files of apply/ only.
 */
#ifndef WEFT_STREAM_WRITER_H
#define WEFT_STREAM_WRITER_H

#include "shmem.h"

extern StreamShared *stream_of_ring(void);
extern bool stream_apply_in_turn(StreamShared *stream);
extern bool stream_work(void);
extern void stream_report(const ErrorData *error);

#endif							/* WEFT_STREAM_WRITER_H */
