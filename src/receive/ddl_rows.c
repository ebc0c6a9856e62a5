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
 * If the publisher's extension is dropped, rows of its table may still be on their way.  They cannot be told from those of a
 * namesake any more, so they are not executed, but they must not get lost without a word either.  A publication's label
 * outlives the extension, and only the extension lets the owner of the publication set it.  If there is one that says that schema
 * changes are published, then the first row that is not genuine is an error, in its turn (ddl_apply.c).  Whoever may create
 * schemas in a database whose extension was dropped can stop the subscription like that, but not have anything
 * executed; and no schema change is captured in such a database, so the promise of the label is broken in any case.  While
 * the extension exists, nobody else can make a table of that name.  Without a label, a warning is enough.
 *
 * A row of weft.ddl_queue does not go to the table of the same name here.  The leader takes the
 * message out of the row.  It goes to the writers in place of a change, as the contents of
 * a logical replication message, which they never get otherwise, and runs alone, as
 * TRUNCATE does (transaction.c, streams.c).
 *
 * A table whose initial copy is in progress catches up with changes that were made before the
 * schema change, and needs its old schema for that.  Therefore the schema change waits until the
 * tables that are being copied when its transaction arrives are done.  Copies go on only while the
 * server's apply loop has its turns, which it has only between transactions.  At the end of a streamed
 * transaction, the leader can wait.  But when a schema change arrives in the middle of another
 * transaction, the beginning of that is in the ring, or applied.  Then the leader restarts, which rolls
 * it back, and the next leader waits before it (next_leader.c).
 *
 * A copy that begins before the schema change is applied here, but is of rows as they were after it
 * on the publisher, is as bad: the schema change would convert its rows once more.  Therefore no copy
 * begins while the schema change waits: the loop is told that it may have no table synchronization
 * workers.  (If it must start one for a copy that was interrupted, it may start others, which are waited for,
 * too.)  A copy that has begun after the schema change was made, and before it has arrived,
 * is found when the schema change is applied (ddl/newer_copy.c).
 *
 * Transactions that the server's apply loop applies: the loop would store the row of weft.ddl_queue
 * like any other.  It does not get it.  The leader executes the schema change itself, between two
 * messages of the loop, in the transaction that the loop applies.  Nothing is in flight then
 * (handover.c), no table is open, and the loop looks relations up again after the invalidations.
 * Three cases differ:
 *
 *	 - The loop skips the transaction, because ALTER SUBSCRIPTION ... SKIP names it: so does the leader.
 *	   Both decide by what the subscription says when the transaction begins.
 *	 - The transaction is streamed: the loop keeps it in a file, or one of the server's parallel apply
 *	   workers has it, and the leader has no part in it.  Then the leader restarts, and the next one
 *	   does not ask the publisher for transactions in progress.
 *	 - The transaction is to be prepared.  It would keep the locks of the schema change, on the
 *	   subscription among others, until it is committed.  Weft's publishers refuse that, and so does
 *	   the leader.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "ddl/ddl_apply.h"
#include "ddl/ddl_failure.h"
#include "last_error.h"
#include "lib/stringinfo.h"
#include "next_leader.h"
#include "nodes/value.h"
#include "publisher_connection.h"
#include "receive/ddl_rows.h"
#include "receive/handover.h"
#include "receive/led_subscription.h"
#include "receive/pause.h"
#include "receive/table_sync.h"
#include "remote_query.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
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

/* The names of the subscription's publications follow. */
static const char question_for_label[] =
"SELECT 1 FROM pg_catalog.pg_seclabel l"
" JOIN pg_catalog.pg_publication p ON l.objoid OPERATOR(pg_catalog.=) p.oid"
" AND l.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_publication'::pg_catalog.regclass"
" WHERE l.provider OPERATOR(pg_catalog.=) 'weft' AND l.label OPERATOR(pg_catalog.~) '^ddl=(table|all)$'"
" AND (false";

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

/* A table weft.ddl_queue of the publisher. */
typedef struct Queue
{
	LogicalRepRelId relid;		/* InvalidOid: none is known */
	int			column;			/* its column "message", or -1 */
	int			natts;
} Queue;

/* The genuine one, as far as this leader knows it. */
static Queue queue;

/* The latest one that is not, and whether its rows may be schema changes that are lost. */
static Queue refused;
static bool lost;

/* The transaction that waits, or has waited, for tables to be copied. */
static XLogRecPtr waiting;

/* Until this transaction has passed, the server's apply loop begins no copies.  Invalid: none. */
static XLogRecPtr awaited = InvalidXLogRecPtr;

/* But it must start workers: the one of a table that is waited for ends with the previous leader. */
static bool interrupted = false;

/* max_sync_workers_per_subscription, while the loop takes it for zero; or -1. */
static int	kept_sync_workers = -1;

/*
 * Returns the answer's first row, or NULL if it has none.  A publisher that does not answer has not said that its table
 * is another one: then this is an error, and the next leader asks again.
 */
static RemoteValue *
ask_for_row(WalReceiverConn *conn, const char *query)
{
	char	   *purpose = psprintf("ask the publisher of subscription \"%s\" about its table \"%s\"",
								   MySubscription->name, "weft.ddl_queue");
	RemoteAnswer answer = remote_query(conn, purpose, query, WALRCV_OK_TUPLES, 1);

	return answer.rows == NIL ? NULL : linitial(answer.rows);
}

static LogicalRepRelId
ask(WalReceiverConn *conn)
{
	RemoteValue *values = ask_for_row(conn, question);

	if (!(values && values[0]) && led.ddl == SUBSCRIPTION_DDL_TRUST_OWNER)
		values = ask_for_row(conn, question_for_owner);
	return values && values[0] ? (LogicalRepRelId) strtoul(values[0], NULL, 10) : InvalidOid;
}

/* Does a publication of the subscription publish schema changes, according to its label on the publisher? */
static bool
ask_for_label(WalReceiverConn *conn)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, question_for_label);
	foreach_node(String, name, MySubscription->publications)
		appendStringInfo(&text, " OR p.pubname OPERATOR(pg_catalog.=) %s",
						 quote_literal_cstr(strVal(name)));
	appendStringInfoString(&text, ") LIMIT 1");
	return ask_for_row(conn, text.data) != NULL;
}

/*
 * Asks the publisher for the OID of its weft.ddl_queue, on a connection of its own.  Sets *labelled if it is another
 * one, and the publisher has promised schema changes.
 */
static LogicalRepRelId
ask_publisher(LogicalRepRelId relid, bool *labelled)
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
		*labelled = result != relid && ask_for_label(conn);
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

static bool
is_named_queue(const WireRelation *relation)
{
	return strcmp(relation->relname, "ddl_queue") == 0 && strcmp(relation->nspname, "weft") == 0;
}

/*
 * Will ddl_rows_read() ask the publisher about a message?  It does so in a transaction, at the end of
 * which the server closes temporary files, such as an open spool.
 */
bool
ddl_rows_will_ask(const char *payload, int payload_length, bool streamed)
{
	WireRelation relation;

	return payload[0] == LOGICAL_REP_MSG_RELATION &&
		wire_read_relation(payload, payload_length, streamed, &relation) == NULL &&
		is_named_queue(&relation) &&
		relation.relid != queue.relid && relation.relid != refused.relid;
}

/* Is a relation of that name the genuine one? */
static bool
is_genuine(LogicalRepRelId relid)
{
	bool		labelled;

	if (queue.relid == relid)
		return true;
	if (refused.relid == relid)
		return false;
	if (ask_publisher(relid, &labelled) == relid)
	{
		queue.relid = relid;
		return true;
	}
	refused.relid = relid;
	lost = labelled;
	if (lost)
		return false;
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
	Queue	   *named;

	if (problem || !is_named_queue(&relation))
		return problem;
	named = is_genuine(relation.relid) ? &queue : &refused;
	if (named == &refused && !lost)
		return NULL;
	*kind = DDL_ROW_IGNORED;
	named->natts = relation.natts;
	named->column = -1;
	for (int i = 0; i < relation.natts; i++)
	{
		WireAttribute attribute;

		wire_read_attribute(&relation.attributes, &attribute);
		if (strcmp(attribute.name, "message") == 0)
			named->column = i;
	}
	return NULL;
}

/* Takes the message out of a row. */
static const char *
read_row(const Queue *named, WireChange *change, const char **json, int *length)
{
	WireCursor	tuple = change->tuples;
	WireColumn	column;
	const char *problem = wire_check_tuples(change, named->natts);

	if (problem)
		return problem;
	(void) wire_uint16(&tuple);
	for (int i = 0; i < named->natts; i++)
	{
		(void) wire_column(&tuple, &column);
		if (i == named->column && column.data != NULL)
		{
			*json = column.data;
			*length = column.length;
			return NULL;
		}
	}
	return "a schema change has no message";
}

/* Marks a message as one that must not be executed.  It is used before the next one is read. */
static void
mark_lost(const char **json, int *length)
{
	static StringInfoData marked;

	if (marked.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&marked);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&marked);
	appendStringInfoChar(&marked, DDL_APPLY_LOST);
	appendBinaryStringInfo(&marked, *json, *length);
	*json = marked.data;
	*length = marked.len;
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
	bool		genuine;

	if (!OidIsValid(queue.relid) && !lost)
		return NULL;
	problem = wire_read_change(payload, payload_length, streamed, &change);
	if (problem)
		return problem;
	genuine = change.relid == queue.relid;
	if (!genuine && !(lost && change.relid == refused.relid))
		return NULL;
	*kind = DDL_ROW_IGNORED;
	if (change.type != LOGICAL_REP_MSG_INSERT)
		return NULL;
	if (led.ddl == SUBSCRIPTION_DDL_OFF)
	{
		drop();
		return NULL;
	}
	problem = read_row(genuine ? &queue : &refused, &change, json, length);
	*kind = DDL_ROW_STATEMENT;
	if (genuine)
		return problem;
	if (problem)
		*kind = DDL_ROW_IGNORED;
	else
		mark_lost(json, length);
	return NULL;
}

/*
 * A transaction that changes the schema is about to begin, or, if it is streamed, about to be
 * committed.  If tables are being copied, lets the server's apply loop, which sees to that, have a
 * turn, and returns true: the message is read again afterwards.  Called between transactions.
 */
bool
ddl_rows_wait(XLogRecPtr final_lsn, char *message, int length)
{
	waiting = final_lsn;
	if (!table_sync_copying(&interrupted))
		return false;
	awaited = final_lsn;
	pause_sleep_at_most(COPY_INTERVAL, PGINVALID_SOCKET, PG_UINT64_MAX, WEFT_WAIT_LEADER_DRAIN);
	handover_turn_before(message, length);
	return true;
}

/* Called once in a leader, with what the subscription has applied. */
void
ddl_rows_start(XLogRecPtr progress)
{
	awaited = next_leader_wait(MySubscription->oid);
	if (awaited <= progress)
		awaited = InvalidXLogRecPtr;
}

/* All transactions that end before this position have arrived. */
void
ddl_rows_passed(XLogRecPtr lsn)
{
	if (lsn > awaited)
		awaited = InvalidXLogRecPtr;
}

/* The server's apply loop is about to run: may it begin copies? */
void
ddl_rows_enter_loop(void)
{
	if (XLogRecPtrIsInvalid(awaited) || interrupted)
		return;
	kept_sync_workers = max_sync_workers_per_subscription;
	max_sync_workers_per_subscription = 0;
}

/* It has run.  If it has read the configuration again, that is in force. */
void
ddl_rows_leave_loop(void)
{
	if (kept_sync_workers >= 0 && max_sync_workers_per_subscription == 0)
		max_sync_workers_per_subscription = kept_sync_workers;
	kept_sync_workers = -1;
}

/* Rolls back what the server's apply loop has applied of a transaction. */
static void
roll_back(void)
{
	/* An abort would advance the origin. */
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	AbortOutOfAnyTransaction();
}

/*
 * A schema change has arrived, of a transaction that is in the ring, or being applied, already.  If
 * it must wait, the leader restarts, and the next one waits before the transaction.
 */
void
ddl_rows_check_copies(XLogRecPtr final_lsn)
{
	if (waiting == final_lsn || !table_sync_copying(&interrupted))
		return;
	roll_back();
	next_leader_tell_wait(MySubscription->oid, final_lsn);
	led_restart("a schema change must wait until tables are copied");
}

/* A transaction that the server's apply loop gets while it is in progress changes the schema. */
void
ddl_rows_stop_streaming(void)
{
	roll_back();
	next_leader_tell_unstreamed(MySubscription->oid);
	led_restart("a streamed transaction changes the schema, and there were no writers when it began");
}

/* A prepared transaction changes the schema. */
void
ddl_rows_refuse_prepared(XLogRecPtr final_lsn)
{
	last_error_set_subject(final_lsn);
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("a prepared transaction for subscription \"%s\" changes the schema",
					MySubscription->name),
			 errhint("Use a subscription without \"two_phase\", or skip the transaction with ALTER SUBSCRIPTION %s SKIP (lsn = '" compat_lsn_format "').",
					 quote_identifier(MySubscription->name), LSN_FORMAT_ARGS(final_lsn))));
}

/* As for the messages that the server's apply loop applies. */
static void
native_context(void *arg)
{
	errcontext("processing remote data for subscription \"%s\" in the transaction finished at " compat_lsn_format,
			   MySubscription->name, LSN_FORMAT_ARGS(*(XLogRecPtr *) arg));
}

/* Executes a schema change in the transaction that the server's apply loop applies. */
void
ddl_rows_apply(const char *json, int length, XLogRecPtr final_lsn)
{
	MemoryContext old = CurrentMemoryContext;
	ErrorContextCallback callback = {
		.callback = native_context,
		.arg = &final_lsn,
		.previous = error_context_stack,
	};

	error_context_stack = &callback;
	PG_TRY();
	{
		if (!IsTransactionState())
		{
			SetCurrentStatementStartTimestamp();
			StartTransactionCommand();
			maybe_reread_subscription();
		}
		MemoryContextSwitchTo(old);
		ddl_apply(json, length, final_lsn);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(led.context);
		error = CopyErrorData();
		FlushErrorState();
		error_context_stack = callback.previous;
		roll_back();
		ddl_failure_record();
		ReThrowError(error);
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(old);
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
