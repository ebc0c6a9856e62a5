/*
 * stream.h
 *	  Applying transactions that were streamed.
 *
 * Shared by the files of apply/ only.
 */
#ifndef WEFT_APPLY_STREAM_H
#define WEFT_APPLY_STREAM_H

#include "shmem.h"

extern StreamShared *stream_of_ring(void);
extern bool stream_apply_in_turn(StreamShared *stream);
extern bool stream_work(void);
extern void stream_report(const ErrorData *error);

#endif							/* WEFT_APPLY_STREAM_H */
