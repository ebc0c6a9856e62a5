/*
 * schema_wait.c
 *	  Waiting for a schema change that another member of the group has still to bring.
 *
 * Actors: members A, B and C; on B, writers WA of the subscription to A, and WC of that to C; T, a
 * transaction of C's.
 *
 * A executes a schema change D that takes no lock.  C applies D, and commits T, which needs D: T has
 * a row with the new column, a row of the new table, a new value of an enum, or it is
 * itself a schema change.  B gets T from C before it gets D from A.  WC then waits until WA has
 * executed D.
 *
 * That ends.  D was committed on A before T was on C, so D does not depend on T, nor on anything
 * that C committed after T.  Everything that A committed before D, and that needs a schema change D'
 * of C's, was committed after D' was applied on A; so if D' came after T, then D would come before D'
 * on C, and D' before D on A, where the schema change of the other has been applied first in
 * both cases.  (If A is unreachable, there is nothing to wait for: see the time-out.)
 *
 * WA needs locks on tables.  Therefore WC must have none while it waits.  There are two places
 * where WC notices that T needs D:
 *	 - Before a record that must run alone.  A RELATION message whose description has changed is one,
 *	   and so is a row of a table that does not exist here.  WC looks whether the schema has
 *	   what the message names, before it commits itself to T.  If not, the attempt ends.
 *	 - After an error, if T can be applied again (attempt.c).  The error may have come of a schema that
 *	   is not here yet.  If it was about a relation of which something is missing here, WC
 *	   waits until that is here; otherwise WC tries again at intervals.
 * In both cases WC has rolled back, T is the oldest transaction, and WC waits without any lock.
 * Later transactions of C's may hold locks meanwhile; their writers yield these to whoever wants
 * them (turn.c), as if T waited for a lock.
 *
 * The opposite: a row carries a column that A has dropped, as B knows (weft.dropped_column), and C
 * does not yet.  WC applies the row without the column (column_filter.c).  But A may have added the column again, by a
 * schema change that is not here yet.  So if the column was dropped longer ago than the time-out, WC waits for it
 * first.
 *
 * The same for a table that A has dropped.  But the table may have been created again, by a schema
 * change that is not here yet, and rows must not get lost.  Therefore WC ignores rows of a table that was
 * dropped here only after the time-out.  From then on, it ignores those of this relation at once, until there is a
 * table of that name again.
 *
 * If WC is committed to T for good, it cannot roll back: T is longer than the ring, or something of
 * it was exclusive.  WC then waits where it is, before the rows of the relation.  Its locks are
 * on other tables than those that D needs, unless schema changes before D need them, too.  So WC waits only
 * as long as nobody waits for its locks.  Then T fails, the leader restarts, and the next attempt
 * begins with T.
 *
 * After weft.ddl_wait_timeout, counted from the first wait of T, T is applied without waiting and
 * fails as it would have failed at once.  The leader restarts, and so does the wait.  What has
 * nothing to do with the schema of another member fails later than it could have.  In a group of two members
 * there is no A, so WC waits after no error.
 *
 * The leader's own apply loop does not wait.  It applies rows of a group's subscription only if ALTER
 * SUBSCRIPTION ... SKIP names their transaction, which it skips.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/column_filter.h"
#include "apply/schema_wait.h"
#include "apply/server_apply.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "catalog/namespace.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_type.h"
#include "ddl/dropped_column.h"
#include "guc.h"
#include "mb/pg_wchar.h"
#include "node_identity.h"
#include "publication_settings.h"
#include "replication/worker_internal.h"
#include "ring/wait.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/* How often the writer looks whether the schema has come, in milliseconds. */
#define LOOK_INTERVAL 20

/*
 * After how long it tries again, if it does not know what is missing: twice as long each time, since
 * what is missing usually comes at once, and up to this.
 */
#define RETRY_INTERVAL 320

/* What a writer waits for; a global, since a writer applies one transaction at a time. */
static struct
{
	uint64		seq;			/* the transaction that is being applied */
	TimestampTz since;			/* of its first wait; zero if it has not
								 * waited */
	int			retry_after;	/* in milliseconds */
	bool		pending;		/* the attempt has ended in order to wait */
	MemoryContext context;		/* of the rest */
	char	   *message;		/* the RELATION message of what must come, or
								 * NULL */
	int			length;
	char	   *what;			/* what is missing, or the error */
	uint64		asked_seq;		/* for which transaction "in_group" is known */
	bool		in_group;
	uint64		found_seq;		/* in which transaction this relation was */
	LogicalRepRelId found;		/* found to be here */
}			waiting;

/* Relations whose rows are ignored, because their table was dropped here. */
static List *ignored = NIL;

/* The relation that the change was about in which an error was thrown; invalid if unknown. */
static LogicalRepRelId failed_relid;

/* Forgets what was waited for. */
static void
forget(void)
{
	if (waiting.context == NULL)
		waiting.context = AllocSetContextCreate(ApplyContext, "weft schema wait",
												ALLOCSET_SMALL_SIZES);
	MemoryContextReset(waiting.context);
	waiting.pending = false;
	waiting.message = NULL;
	waiting.what = NULL;
}

/* The writer begins to apply a transaction, perhaps once more. */
void
schema_wait_begin(uint64 seq)
{
	failed_relid = InvalidOid;
	if (waiting.seq == seq)
		return;
	waiting.seq = seq;
	waiting.since = 0;
	waiting.retry_after = LOOK_INTERVAL;
}

/*
 * Is the subscription one of a group that replicates schema changes?  Asks once for each
 * transaction.
 */
static bool
is_in_group(void)
{
	if (waiting.asked_seq == waiting.seq)
		return waiting.in_group;
	waiting.in_group = publication_settings_of_group() && node_identity_for(MySubscription->name) != NULL;
	waiting.asked_seq = waiting.seq;
	return waiting.in_group;
}

/* Does the group have a member other than this one and that of the subscription? */
static bool
has_third_member(void)
{
	foreach_ptr(NodeMember, member, node_identity_members())
		if (strcmp(member->subscription, MySubscription->name) != 0)
		return true;
	return false;
}

/* Is the time over in which the schema may come? */
static bool
too_late(void)
{
	return waiting.since != 0 &&
		TimestampDifferenceExceeds(waiting.since, GetCurrentTimestamp(), weft_ddl_wait_timeout);
}

/* Does a varchar hold less here than it does there? */
static bool
is_narrower(Oid relid, AttrNumber column, const WireAttribute *remote)
{
	HeapTuple	tuple;
	Form_pg_attribute form;
	bool		result;

	if (remote->type != VARCHAROID)
		return false;
	tuple = SearchSysCacheAttNum(relid, column);
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_attribute) GETSTRUCT(tuple);
	result = form->atttypid == VARCHAROID && form->atttypmod >= 0 &&
		(remote->typmod < 0 || remote->typmod > form->atttypmod);
	ReleaseSysCache(tuple);
	return result;
}

/* Is a column that is missing here one that was dropped, so that it need not be waited for? */
static bool
is_dropped(const char *schema, const char *table, const char *column)
{
	TimestampTz at = dropped_column_time(schema, table, column);

	return at != 0 &&
		(too_late() ||
		 !TimestampDifferenceExceeds(at, GetCurrentTimestamp(), weft_ddl_wait_timeout));
}

/*
 * Returns what the local schema lacks of a relation, for users, or NULL; and in *dropped, the columns
 * that it lacks because they were dropped here.  Needs a transaction.
 */
static char *
find_missing(const char *message, int length, Bitmapset **dropped)
{
	WireRelation relation;
	WireCursor	attributes;
	const char *schema;
	Oid			relid;

	if (wire_read_relation(message, length, false, &relation) != NULL)
		return NULL;			/* the leader has checked it */
	schema = relation.nspname[0] ? relation.nspname : "pg_catalog";
	AcceptInvalidationMessages();
	relid = get_relname_relid(relation.relname, get_namespace_oid(schema, true));
	if (!OidIsValid(relid))
		return psprintf("table %s", quote_qualified_identifier(schema, relation.relname));
	attributes = relation.attributes;
	for (int i = 0; i < relation.natts; i++)
	{
		WireAttribute attribute;
		AttrNumber	column;
		const char *what = NULL;

		wire_read_attribute(&attributes, &attribute);
		column = get_attnum(relid, attribute.name);
		if (column == InvalidAttrNumber && !attribute.is_key &&
			is_dropped(schema, relation.relname, attribute.name))
			*dropped = bms_add_member(*dropped, i);
		else if (column == InvalidAttrNumber)
			what = "column";
		else if (is_narrower(relid, column, &attribute))
			what = "wider column";
		if (what != NULL)
			return psprintf("%s %s of table %s", what, quote_identifier(attribute.name),
							quote_qualified_identifier(schema, relation.relname));
	}
	return NULL;
}

/*
 * The same in any state; the result is in the context of what is waited for.  Plans the removal of
 * dropped columns, and sets *planned if it was not planned before.
 */
static char *
look(const char *message, int length, bool *planned)
{
	bool		own_transaction = !IsTransactionState();
	MemoryContext old = CurrentMemoryContext;
	Bitmapset  *dropped = NULL;
	char	   *result;

	*planned = false;
	if (own_transaction)
		StartTransactionCommand();
	result = is_in_group() ? find_missing(message, length, &dropped) : NULL;
	if (result)
		result = MemoryContextStrdup(waiting.context, result);
	else if (dropped)
		*planned = column_filter_plan(message, length, dropped);
	if (own_transaction)
		CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * Called at the beginning of an attempt: rows are no longer applied without columns that have been added here again.
 */
void
schema_wait_check_filters(void)
{
	MemoryContext old = CurrentMemoryContext;

	foreach_oid(relid, column_filter_to_check())
	{
		Bitmapset  *dropped = NULL;
		int			length;
		const char *message = server_apply_relation_message(relid, &length);
		char	   *missing;

		if (message == NULL)
			continue;
		StartTransactionCommand();
		missing = find_missing(message, length, &dropped);
		CommitTransactionCommand();
		MemoryContextSwitchTo(old);
		if (missing != NULL || dropped != NULL)
			continue;
		column_filter_end(relid);
		server_apply_relation(message, length);
	}
}

/* Was the table of a relation dropped here? */
static bool
table_was_dropped(const char *message, int length)
{
	bool		own_transaction = !IsTransactionState();
	MemoryContext old = CurrentMemoryContext;
	WireRelation relation;
	Oid			schema;
	bool		result;

	if (wire_read_relation(message, length, false, &relation) != NULL)
		return false;
	if (own_transaction)
		StartTransactionCommand();
	AcceptInvalidationMessages();
	schema = get_namespace_oid(relation.nspname, true);
	result = is_in_group() && !OidIsValid(get_relname_relid(relation.relname, schema)) &&
		dropped_column_find(relation.nspname, relation.relname, "");
	if (own_transaction)
		CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * The time is over in which a relation's table may come: ignores its rows if the table was dropped
 * here.  Returns whether it does.
 */
static bool
ignore_if_dropped(LogicalRepRelId relid, const char *message, int length)
{
	MemoryContext old;

	if (!table_was_dropped(message, length))
		return false;
	ereport(WARNING,
			(errmsg("rows of a table that was dropped here are ignored for subscription \"%s\"",
					MySubscription->name),
			 errdetail("Another member still writes to the table.")));
	old = MemoryContextSwitchTo(ApplyContext);
	ignored = list_append_unique_oid(ignored, relid);
	MemoryContextSwitchTo(old);
	return true;
}

/* Are the rows of a relation ignored, now that its table has been looked for? */
static bool
still_ignored(LogicalRepRelId relid, const char *message, int length)
{
	if (!list_member_oid(ignored, relid))
		return false;
	if (table_was_dropped(message, length))
		return true;
	ignored = list_delete_oid(ignored, relid);
	return false;
}

/* Is a change to be ignored? */
bool
schema_wait_ignores(const RowChange *change)
{
	WireCursor	relids;
	int			count;

	if (ignored == NIL)
		return false;
	if (change->is_row)
		return list_member_oid(ignored, change->relid);
	if (change->type != LOGICAL_REP_MSG_TRUNCATE ||
		wire_read_truncate(change->message, change->length, false, &count, &relids) != NULL)
		return false;
	for (int i = 0; i < count; i++)
		if (!list_member_oid(ignored, wire_uint32(&relids)))
			return false;
	return true;
}

/* Shows others what is waited for. */
static void
show(const char *what)
{
	SubscriptionShared *shared = writer.subscription;
	int			length = what ? pg_mbcliplen(what, strlen(what), SCHEMA_WAIT_LEN - 1) : 0;

	SpinLockAcquire(&shared->mutex);
	if (length > 0)
		memcpy(shared->schema_wait, what, length);
	shared->schema_wait[length] = '\0';
	shared->schema_wait_since = GetCurrentTimestamp();
	SpinLockRelease(&shared->mutex);
	pg_atomic_write_u32(&shared->schema_waits, what ? 1 : 0);
}

/* The wait for "what" begins, unless the transaction has waited before. */
static void
begin_wait(const char *what)
{
	/* An error may quote values, which not every role may see. */
	show(waiting.pending && waiting.message == NULL ? "the end of an error" : what);
	if (waiting.since != 0)
		return;
	waiting.since = GetCurrentTimestamp();
	ereport(LOG,
			(errmsg("changes for subscription \"%s\" wait for a schema change of another member",
					MySubscription->name),
			 waiting.pending && waiting.message == NULL ?
			 errdetail("They have failed: %s.", what) :
			 errdetail("There is no %s here.", what)));
}

/* The transaction cannot be rolled back: waits where it is. */
static void
wait_in_place(const char *message, int length)
{
	bool		planned;
	char	   *what = look(message, length, &planned);

	if (what == NULL)
		return;
	begin_wait(what);
	turn_waiter()->rest();
	while (what != NULL && !too_late() && !turn_blocks_others())
	{
		(void) ring_writer_sleep(LOOK_INTERVAL, wait_event_id(WEFT_WAIT_SCHEMA));
		what = look(message, length, &planned);
	}
	show(NULL);
	forget();
}

/* Remembers what must come before the transaction is applied again. */
static void
remember(const char *message, int length, const char *what)
{
	waiting.pending = true;
	waiting.what = MemoryContextStrdup(waiting.context, what);
	waiting.length = length;
	if (message != NULL)
	{
		waiting.message = MemoryContextAlloc(waiting.context, length);
		memcpy(waiting.message, message, length);
	}
}

/*
 * A RELATION message, or a row of its relation, comes next, and the writer is going to commit
 * itself to the transaction, or has done so.  Returns false if the attempt is to end, since the schema
 * lacks something of the relation.
 */
bool
schema_wait_relation(const char *message, int length)
{
	char	   *what;
	bool		planned;

	/* Members of a group detect conflicts. */
	if (!writer.detect_conflicts)
		return true;
	if (too_late())
	{
		(void) look(message, length, &planned);
		return true;
	}
	forget();
	if (!attempt_may_begin_again())
	{
		wait_in_place(message, length);
		return true;
	}
	what = look(message, length, &planned);
	if (what == NULL)
		return true;
	remember(message, length, what);
	return false;
}

/* The same for a relation that is known. */
static bool
wait_known_relation(LogicalRepRelId relid)
{
	const char *relation;
	int			length;

	if (waiting.found_seq == waiting.seq && waiting.found == relid)
		return true;
	relation = server_apply_relation_message(relid, &length);
	if (relation != NULL && !still_ignored(relid, relation, length))
	{
		if (!schema_wait_relation(relation, length))
			return false;
		if (too_late())
			(void) ignore_if_dropped(relid, relation, length);
	}
	waiting.found_seq = waiting.seq;
	waiting.found = relid;
	return true;
}

static bool
wait_truncated(const char *message, int length)
{
	WireCursor	relids;
	int			count;

	/* The message may have come in pieces. */
	if (wire_read_truncate(message, length, false, &count, &relids) != NULL)
		return true;
	for (int i = 0; i < count; i++)
		if (!wait_known_relation(wire_uint32(&relids)))
			return false;
	return true;
}

/* The same for a row or a TRUNCATE, or for the beginning of its message. */
bool
schema_wait_change(const char *message, int length)
{
	LogicalRepRelId relid;

	if (!writer.detect_conflicts)
		return true;
	if (message[0] == LOGICAL_REP_MSG_TRUNCATE)
		return wait_truncated(message, length);
	if ((message[0] != LOGICAL_REP_MSG_INSERT && message[0] != LOGICAL_REP_MSG_UPDATE &&
		 message[0] != LOGICAL_REP_MSG_DELETE) || length < 1 + (int) sizeof(relid))
		return true;
	memcpy(&relid, message + 1, sizeof(relid));
	return wait_known_relation(pg_ntoh32(relid));
}

/* An error was thrown; nothing has been rolled back yet. */
void
schema_wait_note_failed(void)
{
	failed_relid = server_apply_failed_relid();
}

/* May an error have come of a schema change that has not been applied here yet? */
static bool
is_about_schema(int sqlerrcode)
{
	switch (sqlerrcode)
	{
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:	/* a table or column */
		case ERRCODE_UNDEFINED_COLUMN:
		case ERRCODE_UNDEFINED_FUNCTION:
		case ERRCODE_UNDEFINED_OBJECT:
		case ERRCODE_UNDEFINED_SCHEMA:
		case ERRCODE_UNDEFINED_TABLE:
		case ERRCODE_INVALID_TEXT_REPRESENTATION:	/* a new value of an enum */
		case ERRCODE_INVALID_BINARY_REPRESENTATION:
		case ERRCODE_STRING_DATA_RIGHT_TRUNCATION:	/* a longer type */
		case ERRCODE_NOT_NULL_VIOLATION:
		case ERRCODE_CHECK_VIOLATION:
			return true;
		default:
			return false;
	}
}

/*
 * The oldest transaction has failed, and has been rolled back.  Returns whether to apply it again
 * after waiting.
 */
bool
schema_wait_after_error(const ErrorData *error)
{
	const char *message = NULL;
	int			length = 0;
	char	   *what = NULL;
	bool		planned = false;

	if (!writer.detect_conflicts || !attempt_may_begin_again() || !is_about_schema(error->sqlerrcode))
		return false;
	forget();
	if (OidIsValid(failed_relid))
		message = server_apply_relation_message(failed_relid, &length);
	if (message != NULL)
		what = look(message, length, &planned);
	if (too_late() && !planned)
		return message != NULL && !list_member_oid(ignored, failed_relid) &&
			ignore_if_dropped(failed_relid, message, length);
	if (what != NULL)
	{
		remember(message, length, what);
		return true;
	}
	if (planned)
	{
		server_apply_relation(message, length);
		return true;
	}

	StartTransactionCommand();
	waiting.pending = is_in_group() && has_third_member();
	CommitTransactionCommand();
	if (waiting.pending)
		remember(NULL, 0, error->message);
	return waiting.pending;
}

/* Has come what was waited for, or is it time to try again? */
static bool
may_have_come(int slept)
{
	bool		planned;

	return waiting.message ? look(waiting.message, waiting.length, &planned) == NULL :
		slept >= waiting.retry_after;
}

/*
 * Called when the attempt has been rolled back, in the transaction's turn.  If it has ended for
 * that reason, waits for the schema.
 */
void
schema_wait(void)
{
	if (!waiting.pending)
		return;
	begin_wait(waiting.what);
	for (int slept = 0; !too_late() && !may_have_come(slept); slept += LOOK_INTERVAL)
	{
		guc_reload_if_requested();
		(void) ring_writer_sleep(LOOK_INTERVAL, wait_event_id(WEFT_WAIT_SCHEMA));
	}
	waiting.retry_after = Min(2 * waiting.retry_after, RETRY_INTERVAL);
	show(NULL);
	forget();
}
