/*
 * failure.h
 *	  Carries an error from the writer that met it to the leader.
 */
#ifndef WEFT_FAILURE_H
#define WEFT_FAILURE_H

#include "access/xlogdefs.h"
#include "compat.h"
#include "port/atomics.h"
#include "utils/elog.h"

/* Longer texts are truncated. */
#define FAILURE_TEXT_LEN 2048

typedef struct Failure
{
	/*
	 * Set last.  Only the writer of the oldest transaction reports a failure,
	 * and then it ends, so there is never more than one.
	 */
	pg_atomic_uint32 reported;
	int			sqlerrcode;
	XLogRecPtr	lsn;			/* for last_error_set_subject() */
	char		message[FAILURE_TEXT_LEN];
	char		detail[FAILURE_TEXT_LEN];
	char		hint[FAILURE_TEXT_LEN];
	char		context[FAILURE_TEXT_LEN];
} Failure;

extern void failure_init(Failure *failure);
extern void failure_report(Failure *failure, const ErrorData *error, XLogRecPtr lsn);
extern bool failure_reported(Failure *failure);
pg_noreturn extern void failure_throw(Failure *failure);

#endif							/* WEFT_FAILURE_H */
