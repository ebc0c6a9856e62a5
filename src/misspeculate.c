/*
 * misspeculate.c
 *	  Giving up an attempt that may have failed only because it was too early.
 *
 * While earlier transactions are not committed, a missing row or a conflict proves
 * nothing: one of them may still insert the row, or remove what is in conflict with it.
 * The error that is thrown here is never reported.  It ends the attempt;
 * the writer rolls back, waits until its transaction is the oldest, and applies it again.
 */
#include "postgres.h"

#include "misspeculate.h"

/* The reason, in lower case and without a full stop, is for the debug log only. */
void
misspeculate(const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg_internal("%s", reason)));
}
