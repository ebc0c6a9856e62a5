/*
 * fast_session.h
 *	  The fast path within the writer's local transaction.
 */
#ifndef WEFT_FAST_SESSION_H
#define WEFT_FAST_SESSION_H

#include "replication/logicalproto.h"

typedef struct FastSession
{
	LogicalRepRelId in_progress;	/* relation of the change that is being
									 * applied by the fast path, or InvalidOid */
	bool		has_snapshot;	/* Weft's snapshot is active, and new enough */
} FastSession;

/*
 * A global because an error may leave any function of the fast path, and the handler
 * must know where it was.
 */
extern FastSession fast_session;

extern void fast_session_take_snapshot(void);
extern void fast_session_drop_snapshot(void);

/* From here to fast_session_leave(), an error is one of the fast path, at that relation. */
static inline void
fast_session_enter(LogicalRepRelId relid)
{
	fast_session.in_progress = relid;
}

static inline void
fast_session_leave(void)
{
	fast_session.in_progress = InvalidOid;
}

/* Makes sure that there is a local transaction with a snapshot that is new enough. */
static inline void
fast_session_prepare(void)
{
	if (!fast_session.has_snapshot)
		fast_session_take_snapshot();
}

#endif							/* WEFT_FAST_SESSION_H */
