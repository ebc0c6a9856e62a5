/*
 * failure.c
 *	  Carries an error from the writer that met it to the leader.
 *
 * The leader throws it as its own.  Therefore everything that the server does about an
 * apply error (statistics, disable_on_error, the pause before the restart) happens as
 * without Weft.
 */
#include "postgres.h"

#include "last_error.h"
#include "mb/pg_wchar.h"
#include "ring/failure.h"

void
failure_init(Failure *failure)
{
	pg_atomic_init_u32(&failure->reported, 0);
}

static void
copy_text(char *target, const char *source)
{
	int			length = source ? strlen(source) : 0;

	if (length >= FAILURE_TEXT_LEN)
		length = pg_mbcliplen(source, length, FAILURE_TEXT_LEN - 1);
	if (length > 0)
		memcpy(target, source, length);
	target[length] = '\0';
}

/* Stores a writer's error for the leader, and which remote transaction it is about, if any. */
void
failure_report(Failure *failure, const ErrorData *error, XLogRecPtr lsn)
{
	failure->lsn = lsn;
	failure->sqlerrcode = error->sqlerrcode;
	copy_text(failure->message, error->message);
	copy_text(failure->detail, error->detail);
	copy_text(failure->hint, error->hint);
	copy_text(failure->context, error->context);
	pg_write_barrier();
	pg_atomic_write_u32(&failure->reported, 1);
}

bool
failure_reported(Failure *failure)
{
	return pg_atomic_read_u32(&failure->reported) != 0;
}

/* In the leader: throws the error that a writer has reported. */
void
failure_throw(Failure *failure)
{
	pg_read_barrier();
	last_error_set_subject(failure->lsn);
	ereport(ERROR,
			(errcode(failure->sqlerrcode),
			 errmsg_internal("%s", failure->message),
			 failure->detail[0] ? errdetail_internal("%s", failure->detail) : 0,
			 failure->hint[0] ? errhint("%s", failure->hint) : 0,
			 failure->context[0] ? errcontext("%s", failure->context) : 0));
}
