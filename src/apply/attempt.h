/*
 * attempt.h
 *	  How far the attempt at hand has come: what an error in it means.
 */
#ifndef WEFT_ATTEMPT_H
#define WEFT_ATTEMPT_H

#include "access/xlogdefs.h"

/* In the order in which an attempt passes through them; see attempt.c. */
typedef enum AttemptStage
{
	ATTEMPT_SPECULATIVE,		/* earlier transactions are not committed */
	ATTEMPT_FINAL,				/* the oldest transaction: an error is its
								 * own, except one of the fast path */
	ATTEMPT_GENERAL,			/* the same, on the general path only */
	ATTEMPT_COMMITTED_TO,		/* the same, and cannot be applied again */
} AttemptStage;

/* Which transaction of the publisher is being applied, as messages name it. */
typedef struct AttemptSubject
{
	TransactionId xid;
	XLogRecPtr	final_lsn;		/* where it ended */
} AttemptSubject;

extern void attempt_begin(AttemptStage stage);
extern void attempt_become_final(void);
extern void attempt_commit_to(bool for_good);
extern bool attempt_may_begin_again(void);
extern void attempt_end(void);
extern AttemptStage attempt_stage(void);
extern void attempt_set_subject(TransactionId xid, XLogRecPtr final_lsn);
extern const AttemptSubject *attempt_subject(void);

#endif							/* WEFT_ATTEMPT_H */
