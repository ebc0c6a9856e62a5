/*
 * pending.c
 *	  Schema changes that are published when the statements that have caused them have succeeded.
 *
 * One may be published before that (capture.c).  If the subtransaction that has done it is
 * aborted, it is not published any more, and is published again.
 */
#include "postgres.h"

#include "ddl/ddl_queue.h"
#include "ddl/pending.h"
#include "publication_settings.h"

/* Makes a list of messages of the current subtransaction. */
List *
pending_make(List *messages)
{
	List	   *result = NIL;

	foreach_ptr(DdlMessage, message, messages)
	{
		Pending    *pending = palloc(sizeof(Pending));

		pending->transaction = GetCurrentSubTransactionId();
		pending->written = InvalidSubTransactionId;
		pending->message = message;
		result = lappend(result, pending);
	}
	return result;
}

/* Publishes those that have not been published. */
void
pending_write(List *pending)
{
	/* After DROP EXTENSION weft, there is no table for them. */
	if (!OidIsValid(publication_settings_queue()))
		return;
	foreach_ptr(Pending, each, pending)
	{
		if (each->written != InvalidSubTransactionId)
			continue;
		ddl_queue_insert(each->message);
		each->written = GetCurrentSubTransactionId();
	}
}

bool
pending_any_written(List *pending)
{
	foreach_ptr(Pending, each, pending)
		if (each->written != InvalidSubTransactionId)
		return true;
	return false;
}

static bool
same_tables(List *tables, List *others)
{
	ListCell   *cell;
	ListCell   *other_cell;

	if (list_length(tables) != list_length(others))
		return false;
	forboth(cell, tables, other_cell, others)
	{
		DdlTable   *table = lfirst(cell);
		DdlTable   *other = lfirst(other_cell);

		if (strcmp(table->publication, other->publication) != 0 ||
			strcmp(table->schema, other->schema) != 0 || strcmp(table->name, other->name) != 0)
			return false;
	}
	return true;
}

/* Are these the same schema changes, for the same publications and with the same new tables? */
bool
pending_same(List *pending, List *others)
{
	ListCell   *cell;
	ListCell   *other_cell;

	if (list_length(pending) != list_length(others))
		return false;
	forboth(cell, pending, other_cell, others)
	{
		DdlMessage *message = ((Pending *) lfirst(cell))->message;
		DdlMessage *other = ((Pending *) lfirst(other_cell))->message;

		if (strcmp(message->statement, other->statement) != 0 ||
			list_length(message->publications) != list_length(other->publications) ||
			!same_tables(message->tables, other->tables))
			return false;
	}
	return true;
}

/* A subtransaction has ended, which may have published some of them. */
void
pending_note_end(List *pending, SubXactEvent event, SubTransactionId transaction,
				 SubTransactionId parent)
{
	bool		committed = event == SUBXACT_EVENT_COMMIT_SUB;

	foreach_ptr(Pending, each, pending)
	{
		if (each->written == transaction)
			each->written = committed ? parent : InvalidSubTransactionId;
		if (each->transaction == transaction && committed)
			each->transaction = parent;
	}
}

/* Removes those that an aborted subtransaction has made. */
List *
pending_remove(List *pending, SubTransactionId transaction)
{
	foreach_ptr(Pending, each, pending)
		if (each->transaction == transaction)
		pending = foreach_delete_current(pending, each);
	return pending;
}
