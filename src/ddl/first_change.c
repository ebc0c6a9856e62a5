/*
 * first_change.c
 *	  Does a transaction publish a schema change in its node group before any row?
 *
 * On another member, a writer takes the locks of the group over (gate.c) at the first schema change of a
 * transaction, and keeps them until the transaction ends.  Therefore it can store rows behind that, even in
 * tables that a later statement of the same transaction locks in the group (group/group_lock.c).  If
 * such a row came first, the writer would wait for the member's gate worker, which waits for the schema change
 * behind the row.
 *
 * A transaction without an identifier has not stored anything.
 */
#include "postgres.h"

#include "access/xact.h"
#include "ddl/first_change.h"
#include "publication_settings.h"
#include "storage/proc.h"

/* The transaction that the following is about. */
static LocalTransactionId transaction = InvalidLocalTransactionId;

/* It had not stored anything when the current statement began. */
static bool possible;

/* The subtransaction that has published the first schema change, if that came before any row. */
static SubTransactionId published_in;

static void
subtransaction_event(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	if (published_in != id)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		published_in = parent;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		published_in = InvalidSubTransactionId;
}

/* Called once, while the postmaster loads the library. */
void
first_change_install(void)
{
	RegisterSubXactCallback(subtransaction_event, NULL);
}

/* A statement that may be published is about to be executed, and is not part of another one. */
void
first_change_begin(void)
{
	if (transaction != MyProc->vxid.lxid)
		published_in = InvalidSubTransactionId;
	transaction = MyProc->vxid.lxid;
	possible = !TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/* The statement is published. */
void
first_change_published(const List *publications)
{
	if (!possible || transaction != MyProc->vxid.lxid)
		return;
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		foreach_ptr(char, name, publications)
		if (publication->group && strcmp(name, publication->name) == 0)
		published_in = GetCurrentSubTransactionId();
}

/* Has the current transaction published a schema change in its group before any row? */
bool
first_change_made(void)
{
	return transaction == MyProc->vxid.lxid && published_in != InvalidSubTransactionId;
}
