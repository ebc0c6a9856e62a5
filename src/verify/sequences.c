/*
 * sequences.c
 *	  Sets the subscriber's sequences at or beyond the publisher's.
 *
 * Logical replication does not replicate sequences.  Those concerned are: sequences owned by
 * columns of published tables, those that defaults of their columns use, and all others in
 * the schemas of published tables.
 *
 * A sequence here is moved forward only, while no other session can take numbers from it:
 * nextval() needs RowExclusiveLock, and keeps it until the end of its transaction.  Locks are
 * tried, not waited for, so there is no deadlock; if one is not available after a while, then
 * that is the sequence's problem.  The lock is released as soon as the sequence is set.
 *
 * setval() does not reach numbers that other sessions have cached here, which may be numbers
 * that the publisher has used since.  Sessions discard them if the sequence has a new file.
 * A sequence with CACHE is given one, and stays locked exclusively until the end of the
 * transaction.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "verify/sequence_position.h"
#include "verify/sequences.h"
#include "wait_event.h"

/* How long to try to lock sequences, all together, and time between two tries; in ms. */
#define LOCK_TIMEOUT 2000
#define LOCK_INTERVAL 10

/* Values of so many sequences are read with one query. */
#define SEQUENCES_PER_QUERY 100

#define SEQUENCE_COLUMNS 9

typedef struct RemoteSequence
{
	char	   *oid;			/* on the publisher */
	bool		readable;
	char	   *read_problem;
	SequenceNumbers there;
	SequenceState *state;
} RemoteSequence;

typedef struct SyncRun
{
	int64		margin;
	bool		set;
	char	   *owner;			/* of the subscription, for messages */
	TimestampTz lock_until;
	List	   *snowflakes;		/* OIDs of sequences of
								 * weft.snowflake_nextval() */
} SyncRun;

/* Follows a list of publications, as WITH publication(name) AS (...). */
static const char sequences_query[] =
", published AS ("
" SELECT DISTINCT r.relid FROM pg_catalog.pg_publication_tables t"
" JOIN publication USING (pubname)"
" JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname"
" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename,"
" LATERAL (SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)"
"  UNION SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)) r(relid)"
"), schema AS ("
" SELECT c.relnamespace AS oid FROM published JOIN pg_catalog.pg_class c ON c.oid = relid"
" UNION SELECT n.pnnspid FROM pg_catalog.pg_publication_namespace n"
" JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid JOIN publication USING (pubname)"
" UNION SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname <> 'information_schema'"
" AND n.nspname NOT IN ('weft', 'weft_switch') AND n.nspname !~ '^pg_' AND EXISTS"
" (SELECT FROM pg_catalog.pg_publication p JOIN publication USING (pubname) WHERE p.puballtables)"
"), used AS ("
" SELECT d.objid FROM published JOIN pg_catalog.pg_depend d"
" ON d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = relid"
" AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype IN ('a', 'i')"
" UNION SELECT d.refobjid FROM published JOIN pg_catalog.pg_attrdef a ON a.adrelid = relid"
" JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass"
" AND d.objid = a.oid AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass"
")"
" SELECT c.oid::pg_catalog.text, n.nspname::pg_catalog.text, c.relname::pg_catalog.text,"
" (pg_catalog.has_sequence_privilege(c.oid, 'SELECT')"
"  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'))::pg_catalog.text,"
" s.seqincrement::pg_catalog.text, s.seqmin::pg_catalog.text, s.seqmax::pg_catalog.text,"
" s.seqcache::pg_catalog.text, s.seqcycle::pg_catalog.text"
" FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid"
" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
" WHERE c.relpersistence <> 't' AND n.nspname NOT IN ('weft', 'weft_switch')"
" AND (c.oid IN (SELECT objid FROM used) OR n.oid IN (SELECT oid FROM schema)"
" AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.deptype = 'e'"
"  AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid))"
" ORDER BY n.nspname COLLATE \"C\", c.relname COLLATE \"C\"";

/* Sequences from which a default takes snowflake numbers. */
static const char snowflakes_query[] =
"SELECT d.refobjid FROM pg_depend f JOIN pg_depend d ON d.classid = f.classid AND d.objid = f.objid"
" WHERE f.refclassid = 'pg_proc'::regclass"
" AND f.refobjid = to_regprocedure('weft.snowflake_nextval(regclass)')"
" AND f.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass";

static char *
list_query(Subscription *subscription)
{
	StringInfoData query;
	ListCell   *lc;
	const char *separator = "";

	initStringInfo(&query);
	appendStringInfoString(&query, "WITH publication(pubname) AS (VALUES ");
	foreach(lc, subscription->publications)
	{
		appendStringInfo(&query, "%s(%s::pg_catalog.name)", separator,
						 quote_literal_cstr(strVal(lfirst(lc))));
		separator = ", ";
	}
	appendStringInfo(&query, ")%s", sequences_query);
	return query.data;
}

static int64
to_int64(const char *text)
{
	return text ? pg_strtoint64(text) : 0;
}

static RemoteSequence *
make_remote_sequence(RemoteValue *row)
{
	RemoteSequence *sequence = palloc0(sizeof(RemoteSequence));

	sequence->oid = row[0];
	sequence->readable = row[3] && strcmp(row[3], "true") == 0;
	sequence->there.increment = to_int64(row[4]);
	sequence->there.min = to_int64(row[5]);
	sequence->there.max = to_int64(row[6]);
	sequence->there.cache = Max(to_int64(row[7]), 1);
	sequence->there.cycle = row[8] && strcmp(row[8], "true") == 0;
	sequence->state = palloc0(sizeof(SequenceState));
	sequence->state->schema = row[1];
	sequence->state->name = row[2];
	if (row[0] == NULL || row[1] == NULL || row[2] == NULL || sequence->there.increment == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected answer from the publisher")));
	return sequence;
}

static void
append_value_query(StringInfo query, RemoteSequence *sequence)
{
	appendStringInfo(query, "%sSELECT %s, last_value::pg_catalog.text, is_called::pg_catalog.text FROM %s",
					 query->len > 0 ? " UNION ALL " : "", quote_literal_cstr(sequence->oid),
					 quote_qualified_identifier(sequence->state->schema, sequence->state->name));
}

/* Runs such a query; returns the publisher's message if it fails. */
static const char *
read_value_query(WalReceiverConn *conn, const char *query, List *sequences)
{
	RemoteAnswer answer = remote_query(conn, NULL, query, WALRCV_OK_TUPLES, 3);
	ListCell   *lc;
	ListCell   *next = list_head(sequences);

	if (answer.problem)
		return answer.problem;
	foreach(lc, answer.rows)
	{
		RemoteValue *row = lfirst(lc);

		/* They come in the order of the query, which need not be so. */
		for (int i = 0; i < list_length(sequences); i++)
		{
			RemoteSequence *sequence;

			if (next == NULL)
				next = list_head(sequences);
			sequence = lfirst(next);
			next = lnext(sequences, next);
			if (row[0] == NULL || row[1] == NULL || strcmp(sequence->oid, row[0]) != 0)
				continue;
			sequence->there.last_value = to_int64(row[1]);
			sequence->there.is_called = row[2] && strcmp(row[2], "true") == 0;
			sequence->state->publisher_value = sequence->there.last_value;
			sequence->state->has_publisher_value = true;
			break;
		}
	}
	return NULL;
}

/* Reads the values of some sequences; if one of them has vanished, then one by one. */
static void
read_values(WalReceiverConn *conn, List *sequences)
{
	StringInfoData query;
	ListCell   *lc;

	if (sequences == NIL)
		return;
	initStringInfo(&query);
	foreach(lc, sequences)
		append_value_query(&query, lfirst(lc));
	if (read_value_query(conn, query.data, sequences) == NULL)
		return;
	foreach(lc, sequences)
	{
		RemoteSequence *sequence = lfirst(lc);
		const char *problem;

		resetStringInfo(&query);
		append_value_query(&query, sequence);
		problem = read_value_query(conn, query.data, list_make1(sequence));
		if (problem)
			sequence->read_problem = pstrdup(problem);
	}
}

/* Reads all sequences of the publisher that are concerned. */
static List *
read_publisher(WalReceiverConn *conn, Subscription *subscription)
{
	char	   *purpose = psprintf("read the sequences of the publisher of subscription \"%s\"",
								   subscription->name);
	RemoteAnswer answer = remote_query(conn, purpose, list_query(subscription),
									   WALRCV_OK_TUPLES, SEQUENCE_COLUMNS);
	List	   *sequences = NIL;
	List	   *batch = NIL;
	ListCell   *lc;

	foreach(lc, answer.rows)
	{
		RemoteSequence *sequence = make_remote_sequence(lfirst(lc));

		sequences = lappend(sequences, sequence);
		if (sequence->readable)
			batch = lappend(batch, sequence);
		if (list_length(batch) == SEQUENCES_PER_QUERY)
		{
			read_values(conn, batch);
			batch = NIL;
		}
	}
	read_values(conn, batch);
	return sequences;
}

static List *
find_snowflakes(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result = NIL;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute(snowflakes_query, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute failed");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		Datum		oid = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);
		MemoryContext old = MemoryContextSwitchTo(context);

		result = lappend_oid(result, DatumGetObjectId(oid));
		MemoryContextSwitchTo(old);
	}
	PopActiveSnapshot();
	SPI_finish();
	return result;
}

/* Reads the sequence here.  False if it does not exist any more. */
static bool
read_here(Oid relid, SequenceNumbers *here)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	HeapTuple	tuple;
	Form_pg_sequence form;
	Form_pg_sequence_data data;
	HeapTupleHeader header;
	Buffer		buffer;

	if (rel == NULL)
		return false;
	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
	{
		relation_close(rel, AccessShareLock);
		return false;
	}
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	here->increment = form->seqincrement;
	here->min = form->seqmin;
	here->max = form->seqmax;
	here->cache = form->seqcache;
	here->cycle = form->seqcycle;
	ReleaseSysCache(tuple);

	/* A sequence has one page with one row. */
	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	header = (HeapTupleHeader) PageGetItem(BufferGetPage(buffer),
										   PageGetItemId(BufferGetPage(buffer), FirstOffsetNumber));
	data = (Form_pg_sequence_data) ((char *) header + header->t_hoff);
	here->last_value = data->last_value;
	here->is_called = data->is_called;
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);
	return true;
}

/* Tries to lock a sequence until the time of the run is over. */
static bool
lock_sequence(SyncRun *run, Oid relid, LOCKMODE mode)
{
	while (!ConditionalLockRelationOid(relid, mode))
	{
		if (GetCurrentTimestamp() >= run->lock_until)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOCK_INTERVAL, wait_event_id(WEFT_WAIT_SEQUENCE));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/* Sets the problem of a sequence after which it may return used values. */
static void
behind(SequenceState *state, const char *problem, const char *remedy)
{
	state->behind = true;
	state->problem = problem;
	state->remedy = remedy;
}

static const char *
create_command(const char *name, const SequenceNumbers *there)
{
	return psprintf("CREATE SEQUENCE %s INCREMENT " INT64_FORMAT " MINVALUE " INT64_FORMAT
					" MAXVALUE " INT64_FORMAT " CACHE " INT64_FORMAT "%s;", name, there->increment,
					there->min, there->max, there->cache, there->cycle ? " CYCLE" : "");
}

/* Finds the sequence here; false if there is none that can be used. */
static bool
find_here(SyncRun *run, RemoteSequence *sequence, SequenceNumbers *here)
{
	SequenceState *state = sequence->state;
	char	   *name = quote_qualified_identifier(state->schema, state->name);
	const char *create = create_command(name, &sequence->there);
	Oid			nspid = get_namespace_oid(state->schema, true);
	Oid			relid = OidIsValid(nspid) ? get_relname_relid(state->name, nspid) : InvalidOid;

	if (!OidIsValid(relid))
		behind(state, psprintf("sequence %s does not exist here", name), create);
	else if (get_rel_relkind(relid) != RELKIND_SEQUENCE)
		behind(state, psprintf("relation %s is not a sequence here", name),
			   psprintf("Rename it, then: %s", create));
	else
	{
		state->relid = relid;
		state->has_value = read_here(relid, here);
		state->before = state->after = here->last_value;
		if (!state->has_value)
			behind(state, psprintf("sequence %s does not exist here", name), create);
		else if (pg_class_aclcheck(relid, GetUserId(), ACL_UPDATE) != ACLCHECK_OK)
			behind(state, psprintf("role \"%s\" lacks the right UPDATE on sequence %s here",
								   run->owner, name),
				   psprintf("GRANT UPDATE ON SEQUENCE %s TO %s;", name, quote_identifier(run->owner)));
		return state->has_value && !state->behind;
	}
	return false;
}

/* Notes what is wrong with a sequence, or returns true if there is nothing to say. */
static bool
judge(RemoteSequence *sequence, SequencePlace place)
{
	SequenceState *state = sequence->state;
	const SequenceNumbers *there = &sequence->there;
	char	   *name = quote_qualified_identifier(state->schema, state->name);

	switch (place)
	{
		case SEQUENCE_BEYOND:
		case SEQUENCE_BEHIND:
			return true;
		case SEQUENCE_BEHIND_NO_MARGIN:
			state->problem = "the sequence ends before the margin does, and is set without margin";
			return true;
		case SEQUENCE_TOO_SHORT:
			behind(state, psprintf("the sequence ends here before the publisher's value " INT64_FORMAT,
								   there->last_value),
				   psprintf("ALTER SEQUENCE %s %s " INT64_FORMAT ";", name,
							there->increment > 0 ? "MAXVALUE" : "MINVALUE",
							there->increment > 0 ? there->max : there->min));
			break;
		case SEQUENCE_OTHER_WAY:
			behind(state, "the increments have different signs here and on the publisher",
				   psprintf("ALTER SEQUENCE %s INCREMENT " INT64_FORMAT ";", name, there->increment));
			break;
		case SEQUENCE_CYCLED:
			behind(state, "the sequence cycles, and is far ahead here: the publisher's has probably begun anew",
				   psprintf("SELECT pg_catalog.setval(%s, " INT64_FORMAT ");", quote_literal_cstr(name),
							there->last_value));
			break;
	}
	return false;
}

/*
 * Sets one sequence, whose lock is held.  Other sessions have taken numbers until now, so
 * look again.
 */
static void
set_locked(SyncRun *run, RemoteSequence *sequence, bool new_file)
{
	SequenceState *state = sequence->state;
	SequenceNumbers here;
	SequencePlace place;
	bool		is_called = true;

	AcceptInvalidationMessages();
	state->problem = NULL;
	if (!find_here(run, sequence, &here))
		return;
	place = sequence_position(&sequence->there, &here, run->margin, &state->after);
	if (!judge(sequence, place))
		return;
	if (place == SEQUENCE_BEYOND)
	{
		if (!new_file)
			return;
		is_called = here.is_called;
	}
	if (new_file)
		ResetSequence(state->relid);
	DirectFunctionCall3(setval3_oid, ObjectIdGetDatum(state->relid),
						Int64GetDatum(state->after), BoolGetDatum(is_called));
}

static void
sync_one(SyncRun *run, RemoteSequence *sequence)
{
	SequenceState *state = sequence->state;
	SequenceNumbers here;
	SequencePlace place;
	int64		value;
	bool		new_file;
	LOCKMODE	mode;

	if (!find_here(run, sequence, &here) || list_member_oid(run->snowflakes, state->relid))
		return;
	if (!state->has_publisher_value)
	{
		if (sequence->readable)
			behind(state, psprintf("the publisher's value could not be read: %s",
								   sequence->read_problem ? sequence->read_problem : "no row"), NULL);
		else
			behind(state, "the role that connects to the publisher lacks the right SELECT on the sequence, or USAGE on its schema, there",
				   psprintf("GRANT USAGE ON SCHEMA %s TO ...; GRANT SELECT ON SEQUENCE %s TO ...; -- on the publisher",
							quote_identifier(state->schema),
							quote_qualified_identifier(state->schema, state->name)));
		return;
	}
	place = sequence_position(&sequence->there, &here, run->margin, &value);
	if (!judge(sequence, place))
		return;
	if (!run->set)
	{
		state->problem = NULL;
		state->behind = state->settable = place != SEQUENCE_BEYOND;
		if (state->behind)
			state->problem = "the sequence is behind the publisher's";
		return;
	}

	/* Any session may have cached numbers since the first one was taken. */
	new_file = here.cache > 1 && here.is_called;
	if (place == SEQUENCE_BEYOND && !new_file)
		return;
	mode = new_file ? AccessExclusiveLock : ShareRowExclusiveLock;
	if (!lock_sequence(run, state->relid, mode))
	{
		behind(state, "the sequence is in use here by a transaction that has not ended",
			   "End the transaction.");
		return;
	}
	set_locked(run, sequence, new_file);
	if (!new_file)
		UnlockRelationOid(state->relid, mode);
}

List *
sequences_sync(Subscription *subscription, WalReceiverConn *conn,
			   int64 margin, bool set, bool *safe)
{
	SyncRun		run = {.margin = margin,.set = set};
	List	   *sequences = read_publisher(conn, subscription);
	List	   *result = NIL;
	ListCell   *lc;
	Oid			user;
	int			context;
	int			nest_level;

	if (set)
		PreventCommandIfReadOnly("weft.sync_sequences()");
	run.owner = GetUserNameFromId(subscription->owner, false);
	run.lock_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOCK_TIMEOUT);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(subscription->owner, context | SECURITY_RESTRICTED_OPERATION);
	nest_level = NewGUCNestLevel();
	RestrictSearchPath();

	run.snowflakes = find_snowflakes();
	if (safe)
		*safe = true;
	foreach(lc, sequences)
	{
		RemoteSequence *sequence = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		sync_one(&run, sequence);
		result = lappend(result, sequence->state);
		if (safe && sequence->state->behind)
			*safe = false;
	}

	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	return result;
}
