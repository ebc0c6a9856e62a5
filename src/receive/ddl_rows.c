/*
 * ddl_rows.c
 *	  Recognizes schema changes among the rows from the publisher.
 *
 * A schema change arrives as a row that is inserted into weft.ddl_queue on the publisher.  It
 * names the role as which it is to be executed, so it matters who can write there: Weft's
 * own code only (ddl/ddl_queue.c).  A name proves nothing.  In a database without the extension, every
 * role that may create schemas could create a table of that name.  Therefore the leader asks
 * the publisher's catalogs for the OID of the table that belongs to the extension, and to a
 * superuser, when a relation of that name is first announced.  The rows of any other relation
 * of that name are those of an ordinary table.
 *
 * Where Weft is not loaded, event triggers insert the rows (sql/16-ddl-capture.sql).  Their owner, and nobody
 * else, can write them, in any role's name.  Whether that owner is to be trusted only the
 * subscription can say ("ddl = trust_owner").  Then the owner must also be who owns the function of
 * the event triggers: only superusers, or those whom a managed service lets do so, create these, so a role
 * that may merely create schemas cannot pretend to be that owner.
 *
 * A row of weft.ddl_queue does not go to the table of the same name here.  The leader takes the
 * message out of the row.  It goes to the writers in place of a change, as the contents of
 * a logical replication message, which they never get otherwise, and runs alone, as
 * TRUNCATE does (transaction.c, streams.c).
 *
 * A table whose initial copy is in progress catches up with changes that were made before the
 * schema change, and needs its old schema for that.  Therefore the schema change waits until no
 * table is being copied.  Copies go on only while the server's apply loop has its turns, which it has
 * only between transactions.  At the end of a streamed transaction, the leader can wait.  But when
 * a schema change arrives in the middle of another transaction, the beginning of that is in
 * the ring.  Then the leader restarts, which rolls it back, and the next leader waits before it
 * (copy_wait.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "copy_wait.h"
#include "publisher_connection.h"
#include "receive/ddl_rows.h"
#include "receive/handover.h"
#include "receive/led_subscription.h"
#include "receive/pause.h"
#include "receive/table_sync.h"
#include "remote_query.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "wire.h"

/* How often the server's apply loop has a turn meanwhile. */
#define COPY_INTERVAL 50		/* ms */

static const char question[] =
"SELECT c.oid::pg_catalog.text"
" FROM pg_catalog.pg_class c"
" JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
" JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"
" AND d.objid OPERATOR(pg_catalog.=) c.oid AND d.deptype OPERATOR(pg_catalog.=) 'e'"
" AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
" JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid"
" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) e.extowner AND r.rolsuper"
" WHERE n.nspname OPERATOR(pg_catalog.=) 'weft' AND c.relname OPERATOR(pg_catalog.=) 'ddl_queue'"
" AND e.extname OPERATOR(pg_catalog.=) 'weft'";

/* The table of event triggers, if nobody but its owner can write or replace it. */
static const char question_for_owner[] =
"SELECT c.oid::pg_catalog.text"
" FROM pg_catalog.pg_class c"
" JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
" AND n.nspowner OPERATOR(pg_catalog.=) c.relowner"
" WHERE n.nspname OPERATOR(pg_catalog.=) 'weft' AND c.relname OPERATOR(pg_catalog.=) 'ddl_queue'"
" AND c.relkind OPERATOR(pg_catalog.=) 'r'"
" AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(c.relacl) a"
" WHERE a.grantee OPERATOR(pg_catalog.<>) c.relowner AND a.privilege_type OPERATOR(pg_catalog.<>) 'SELECT')"
" AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute b, LATERAL pg_catalog.aclexplode(b.attacl) a"
" WHERE b.attrelid OPERATOR(pg_catalog.=) c.oid AND a.privilege_type OPERATOR(pg_catalog.<>) 'SELECT')"
" AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a"
" WHERE a.grantee OPERATOR(pg_catalog.<>) n.nspowner AND a.privilege_type OPERATOR(pg_catalog.=) 'CREATE')"
" AND EXISTS (SELECT FROM pg_catalog.pg_event_trigger e"
" JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) e.evtfoid"
" WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proowner OPERATOR(pg_catalog.=) c.relowner"
" AND p.proname OPERATOR(pg_catalog.=) 'ddl_capture' AND e.evtevent OPERATOR(pg_catalog.=) 'ddl_command_end'"
" AND e.evtenabled OPERATOR(pg_catalog.=) 'A')";

/* The publisher's weft.ddl_queue, as far as this leader knows it. */
static struct
{
	LogicalRepRelId relid;		/* the genuine one; InvalidOid: none is known */
	LogicalRepRelId refused;	/* the latest one that is not */
	int			column;			/* its column "message", or -1 */
	int			natts;
}			queue;

static LogicalRepRelId
ask(WalReceiverConn *conn)
{
	RemoteValue *values = remote_query_row(conn, NULL, question, 1);

	if (!(values && values[0]) && led.ddl == SUBSCRIPTION_DDL_TRUST_OWNER)
		values = remote_query_row(conn, NULL, question_for_owner, 1);
	return values && values[0] ? (LogicalRepRelId) strtoul(values[0], NULL, 10) : InvalidOid;
}

/* Asks the publisher for the OID of its weft.ddl_queue, on a connection of its own. */
static LogicalRepRelId
ask_publisher(void)
{
	MemoryContext old = CurrentMemoryContext;
	bool		own_transaction = !IsTransactionState();
	WalReceiverConn *conn;
	LogicalRepRelId result;

	if (own_transaction)
		StartTransactionCommand();
	conn = publisher_connection_open(MySubscription, false);
	PG_TRY();
	{
		result = ask(conn);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	if (own_transaction)
		CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}

/* Is a relation of that name the genuine one? */
static bool
is_genuine(LogicalRepRelId relid)
{
	if (queue.relid == relid)
		return true;
	if (queue.refused == relid)
		return false;
	if (ask_publisher() == relid)
	{
		queue.relid = relid;
		return true;
	}
	queue.refused = relid;
	ereport(WARNING,
			(errmsg("rows of table \"%s\" of the publisher of subscription \"%s\" are not taken for schema changes",
					"weft.ddl_queue", MySubscription->name),
			 led.ddl == SUBSCRIPTION_DDL_TRUST_OWNER ?
			 errdetail("The table does not belong to the extension \"weft\" of a superuser there, nor is it written only by the owner of an event trigger's function.") :
			 errdetail("The table does not belong to the extension \"weft\" there, or the extension does not belong to a superuser."),
			 led.ddl == SUBSCRIPTION_DDL_TRUST_OWNER ? 0 :
			 errhint("If the script of weft.ddl_capture_script() has created it, and you trust its owner, use ALTER SUBSCRIPTION ... SET (ddl = trust_owner).")));
	return false;
}

/* Takes in a RELATION message. */
static const char *
read_relation(const char *payload, int payload_length, bool streamed, DdlRow *kind)
{
	WireRelation relation;
	const char *problem = wire_read_relation(payload, payload_length, streamed, &relation);

	if (problem || strcmp(relation.relname, "ddl_queue") != 0 ||
		strcmp(relation.nspname, "weft") != 0 || !is_genuine(relation.relid))
		return problem;
	*kind = DDL_ROW_IGNORED;
	queue.natts = relation.natts;
	queue.column = -1;
	for (int i = 0; i < relation.natts; i++)
	{
		WireAttribute attribute;

		wire_read_attribute(&relation.attributes, &attribute);
		if (strcmp(attribute.name, "message") == 0)
			queue.column = i;
	}
	return NULL;
}

/* Takes the message out of a row. */
static const char *
read_row(WireChange *change, const char **json, int *length)
{
	WireCursor	tuple = change->tuples;
	WireColumn	column;
	const char *problem = wire_check_tuples(change, queue.natts);

	if (problem)
		return problem;
	(void) wire_uint16(&tuple);
	for (int i = 0; i < queue.natts; i++)
	{
		(void) wire_column(&tuple, &column);
		if (i == queue.column && column.data != NULL)
		{
			*json = column.data;
			*length = column.length;
			return NULL;
		}
	}
	return "a schema change has no message";
}

/* The subscription's option "ddl" is off. */
static void
drop(void)
{
	static bool logged = false;

	if (!logged)
		ereport(LOG,
				(errmsg("schema changes of the publisher of subscription \"%s\" are ignored",
						MySubscription->name),
				 errdetail("The option \"%s\" of the subscription is \"%s\".", "ddl", "off")));
	logged = true;
}

/* Takes in an INSERT, UPDATE or DELETE. */
static const char *
read_change(const char *payload, int payload_length, bool streamed, DdlRow *kind,
			const char **json, int *length)
{
	WireChange	change;
	const char *problem;

	if (!OidIsValid(queue.relid))
		return NULL;
	problem = wire_read_change(payload, payload_length, streamed, &change);
	if (problem || change.relid != queue.relid)
		return problem;
	*kind = DDL_ROW_IGNORED;
	if (change.type != LOGICAL_REP_MSG_INSERT)
		return NULL;
	if (led.ddl == SUBSCRIPTION_DDL_OFF)
	{
		drop();
		return NULL;
	}
	*kind = DDL_ROW_STATEMENT;
	return read_row(&change, json, length);
}

/*
 * If tables are being copied, lets the server's apply loop, which sees to that, have a turn, and
 * returns true: the message is read again afterwards.  Called between transactions.
 */
bool
ddl_rows_wait(char *message, int length)
{
	if (!table_sync_copying())
		return false;
	pause_sleep_at_most(COPY_INTERVAL, PGINVALID_SOCKET, PG_UINT64_MAX, WEFT_WAIT_LEADER_DRAIN);
	handover_turn_before(message, length);
	return true;
}

/*
 * A schema change has arrived, of a transaction that is in the ring already.  If it must wait, the
 * leader restarts, and the next one waits before the transaction.
 */
void
ddl_rows_check_copies(XLogRecPtr final_lsn)
{
	if (!table_sync_copying())
		return;
	copy_wait_set(MySubscription->oid, final_lsn);
	led_restart("a schema change must wait until tables are copied");
}

/* The server's apply loop is to apply a schema change, which it would ignore. */
void
ddl_rows_refuse(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("schema changes for subscription \"%s\" cannot be applied without writers",
					MySubscription->name),
			 XLogRecPtrIsInvalid(MySubscription->skiplsn) ?
			 errhint("Set \"num_writers\" of the subscription to 1 or more.") :
			 errhint("The next transaction is not the one that ALTER SUBSCRIPTION ... SKIP names. Use SKIP (lsn = NONE).")));
}

/*
 * Says what a message of a transaction has to do with schema changes.  If it is one, it is at
 * *json, in the message.  Returns what is wrong with the message, or NULL.
 */
const char *
ddl_rows_read(const char *payload, int payload_length, bool streamed, DdlRow *kind,
			  const char **json, int *length)
{
	*kind = DDL_ROW_OTHER;
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_RELATION:
			return read_relation(payload, payload_length, streamed, kind);
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			return read_change(payload, payload_length, streamed, kind, json, length);
		default:
			return NULL;
	}
}
