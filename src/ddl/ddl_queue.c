/*
 * ddl_queue.c
 *	  Weft's own tables about schema changes.
 *
 * weft.ddl_queue: a publisher's schema changes.  They travel as inserts into this table, so
 * they have their place among the rows, are rolled back to savepoints, and are filtered by
 * origin and publication as rows are.
 *
 * Who can insert there speaks for every role, because a row names the role that the subscriber
 * executes the statement as.  Therefore only this module inserts, below the level of SQL: no
 * role has a privilege on the table, and a trigger refuses whatever the superuser, or a member
 * of pg_write_all_data, tries.  The subscriber recognizes the table by its OID
 * (receive/ddl_rows.c).  A message of pg_logical_emit_message(), which anybody may call, means
 * nothing.
 *
 * weft.ddl_applied: the schema changes that were applied here.  Logical decoding ignores it.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "ddl/ddl_queue.h"
#include "publication_settings.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Has the current transaction inserted into weft.ddl_queue? */
static bool inserted;

/* The origin of the schema changes that this process publishes, if its transactions have none. */
static RepOriginId origin = InvalidRepOriginId;

static void
transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			if (inserted)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has replicated schema changes"),
						 errhint("Commit the transaction, or set \"weft.ddl_replication\" to \"off\" before the schema changes.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			inserted = false;
			break;
		default:
			break;
	}
}

/* Called once, while the postmaster loads the library. */
void
ddl_queue_install(void)
{
	RegisterXactCallback(transaction_event, NULL);
}

static void
insert_row(Oid relid, Datum *values, int options)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	bool	   *nulls = palloc0(RelationGetDescr(rel)->natts * sizeof(bool));
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);

	/*
	 * A long value is stored out of line, for which the server wants a
	 * snapshot.
	 */
	PushActiveSnapshot(GetTransactionSnapshot());
	heap_insert(rel, tuple, GetCurrentCommandId(true), options, NULL);
	PopActiveSnapshot();
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * From now on, this process publishes schema changes that come from elsewhere, in transactions that do
 * not: they do not advance the replication origin.
 */
void
ddl_queue_set_origin(RepOriginId own_origin)
{
	origin = own_origin;
}

/* An abort must not find an origin that was set for a row only: it would advance it. */
static void
insert_with_origin(Oid relid, Datum *values)
{
	RepOriginId session_origin = replorigin_session_origin;

	if (origin != InvalidRepOriginId)
		replorigin_session_origin = origin;
	PG_TRY();
	{
		insert_row(relid, values, 0);
	}
	PG_FINALLY();
	{
		replorigin_session_origin = session_origin;
	}
	PG_END_TRY();
}

/* Publishes a schema change; gives it its number. */
void
ddl_queue_insert(DdlMessage *message)
{
	Oid			weft = get_namespace_oid("weft", false);
	Datum		values[3];

	message->id = nextval_internal(get_relname_relid("ddl_queue_id_seq", weft), false);
	values[0] = Int64GetDatum(message->id);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[2] = CStringGetTextDatum(ddl_message_write(message));
	inserted = true;
	insert_with_origin(publication_settings_queue(), values);
}

/* Records a schema change that was applied here, or skipped. */
void
ddl_queue_record(const char *subscription, const DdlMessage *message, XLogRecPtr lsn,
				 const char *result)
{
	Oid			relid = get_relname_relid("ddl_applied", get_namespace_oid("weft", true));
	NameData	name;
	Datum		values[8];

	/* A subscriber need not have the extension. */
	if (!OidIsValid(publication_settings_queue()) || !OidIsValid(relid))
		return;
	namestrcpy(&name, subscription);
	values[0] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[1] = NameGetDatum(&name);
	values[2] = Int64GetDatum(message->id);
	values[3] = LSNGetDatum(lsn);
	values[4] = CStringGetTextDatum(message->role);
	values[5] = CStringGetTextDatum(message->tag);
	values[6] = CStringGetTextDatum(message->statement);
	values[7] = CStringGetTextDatum(result);
	insert_row(relid, values, HEAP_INSERT_NO_LOGICAL);
}
