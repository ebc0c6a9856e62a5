/*
 * stream_set.h
 *	  The streamed transactions that the leader keeps.
 */
#ifndef WEFT_STREAM_SET_H
#define WEFT_STREAM_SET_H

#include "receive/stream_spool.h"

extern void stream_set_init(void);
extern Stream *stream_set_find(TransactionId xid);
extern Stream *stream_set_add(TransactionId xid, bool native);
extern void stream_set_remove(Stream *stream);

extern bool stream_set_visible(const Stream *stream);
extern void stream_set_show_open(Stream *stream);
extern bool stream_set_show_ended(Stream *stream);
extern Stream *stream_set_oldest_ended(void);

extern bool stream_set_in_use(void);
extern bool stream_set_has_parallel(void);
extern void stream_set_discard(Stream *stream);
extern void stream_set_discard_all(void);
extern void stream_set_renew(void);
extern void stream_set_collect(void);
extern void stream_set_remove_files(void);

extern void stream_set_enter_block(Stream *stream);
extern Stream *stream_set_block(void);
extern void stream_set_leave_block(void);
extern bool stream_set_in_block(void);
extern void stream_set_flush(void);

#endif							/* WEFT_STREAM_SET_H */
