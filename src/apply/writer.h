/*
 * writer.h
 *	  Who this writer is: its number, its subscription, its ring.
 */
#ifndef WEFT_WRITER_H
#define WEFT_WRITER_H

#include "ring/ring.h"
#include "shmem.h"

typedef struct Writer
{
	int			number;
	SubscriptionShared *subscription;
	WriterShared *shared;		/* of this writer, in *subscription */
	Ring	   *ring;
	bool		detect_conflicts;
} Writer;

extern Writer writer;

extern void writer_attach(Datum main_arg);
extern void writer_watch_subscription(void);
extern void writer_reread_subscription(void);
extern bool writer_is_for_streams(void);

static inline void
writer_set_activity(WriterActivity activity)
{
	pg_atomic_write_u32(&writer.shared->activity, activity);
}

#endif							/* WEFT_WRITER_H */
