/*
 * ddl_failure.c
 *	  Remembers a schema change that has failed until that can be recorded.
 *
 * Its transaction is rolled back, with everything that it has stored.  Therefore the failure is
 * recorded in a transaction of its own after that.  The caller has taken the replication origin
 * away: nothing was applied.  If that fails as well, the log still has the error, which is the one
 * to be reported.
 */
#include "postgres.h"

#include "access/xact.h"
#include "ddl/ddl_failure.h"
#include "ddl/ddl_queue.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"

/* The latest failure.  A global, since whoever rolls back does not know of it. */
static struct
{
	MemoryContext context;		/* of the rest; NULL: there is none */
	DdlMessage	message;		/* what the history shows of it */
	XLogRecPtr	lsn;
	char	   *problem;
}			failure;

/* A schema change has failed: keeps a copy of what is to be recorded. */
void
ddl_failure_note(const DdlMessage *message, XLogRecPtr lsn, const char *problem)
{
	MemoryContext old;

	ddl_failure_forget();
	failure.context = AllocSetContextCreate(TopMemoryContext, "weft failed schema change",
											ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(failure.context);
	memset(&failure.message, 0, sizeof(failure.message));
	failure.message.id = message->id;
	failure.message.tag = pstrdup(message->tag);
	failure.message.role = pstrdup(message->role);
	failure.message.statement = pstrdup(message->statement);
	failure.lsn = lsn;
	failure.problem = pstrdup(problem);
	MemoryContextSwitchTo(old);
}

/* Whatever has failed so far is of no importance: it is tried again. */
void
ddl_failure_forget(void)
{
	if (failure.context == NULL)
		return;
	MemoryContextDelete(failure.context);
	failure.context = NULL;
}

/* Records the latest failure, if there is one.  Called outside of transactions. */
void
ddl_failure_record(void)
{
	MemoryContext old = CurrentMemoryContext;

	if (failure.context == NULL)
		return;
	PG_TRY();
	{
		StartTransactionCommand();
		ddl_queue_record_failure(MySubscription->name, &failure.message, failure.lsn,
								 failure.problem);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(old);
		FlushErrorState();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	ddl_failure_forget();
}
