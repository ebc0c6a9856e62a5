/*
 * copied_tables.c
 *	  Did something on the member that is copied take rows or values from the copy?
 *
 * The tables are read one after the other, in one snapshot, and what sessions change there after
 * it is applied later.  That is not true of everything:
 *
 * - ALTER TABLE may have rewritten a table before it was read.  An older snapshot sees no row in
 *	 the new file.
 * - The table may have got a file with other versions of its rows: copies, which were inserted after the snapshot.  Extensions
 *	 such as pg_repack do that, and REPACK (CONCURRENTLY) of PostgreSQL 19.
 * - A column may have been renamed before it was read.  The new node has the snapshot's names, and
 *	 reads by them what they mean now.
 *
 * VACUUM FULL, CLUSTER and TRUNCATE give a table another file, too, and do no harm: the first two
 * keep the row versions with their transactions, and the last is replicated.  Therefore a table
 * counts that has another file now than in the snapshot, in which the snapshot sees no row, and
 * of which one of these is true:
 *
 * - its definition has changed in the catalog;
 * - it has rows that a session of that member had inserted before the table got its file, which is when
 *	 its row in pg_class was changed last: in a transaction that had begun before, or in the same one, by an earlier
 *	 command.
 *
 * The last point is a guess, since nothing says which command has given a table its file.  It misses copies of rows that
 * were made before the snapshot, which sees some of them; that were inserted in a subtransaction of the one that exchanges
 * the files, or in one that got its number later; and rows of which all copies have been updated since.  An update of the
 * row in pg_class that was rolled back leaves its own command number there.  On the other hand, the join fails for
 * nothing if a table that the snapshot sees empty, or that was truncated, has got rows, and its row in
 * pg_class was then changed, also by VACUUM FULL; or if the subtransaction that has truncated it is not the one that has
 * inserted rows.
 *
 * All tables that are copied are locked, so that none of this can happen after a table was read.  The
 * connection that has locked them also looks into them: another one could wait for a lock behind a
 * session that waits for those locks, which would never end, since the server does not know that the
 * two connections belong together.  The functions that tell a table's file know the current one;
 * a new session has read none before.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "compat.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "group/copied_tables.h"
#include "local_table.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_member_has_older_rows);

/* What any ALTER TABLE changes that rewrites the table "c": the versions of its columns' rows in the catalog, and more. */
#define DEFINITION \
	"pg_catalog.concat_ws(' ', c.relpersistence, c.relam, (SELECT pg_catalog.string_agg(" \
	"pg_catalog.concat_ws(':', a.attnum, a.xmin), ' ' ORDER BY a.attnum)" \
	" FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))"

/* The names of its columns. */
#define COLUMN_NAMES \
	"(SELECT pg_catalog.json_object_agg(a.attnum, a.attname) FROM pg_catalog.pg_attribute a" \
	" WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"

/* What of the published tables "r" the other member has now, as a JSON object with OIDs as keys. */
static char *
remember_tables(Remote *now, const char *what)
{
	return remote_value(now,
						psprintf("SELECT coalesce(pg_catalog.json_object_agg(c.oid, %s), '{}')"
								 " FROM weft.published_tables() r JOIN pg_catalog.pg_class c ON c.oid = r",
								 what));
}

/*
 * Which published tables of the snapshot fulfil a condition, where "now" is that JSON object?  Returns this
 * aggregate of them, NULL if none does.
 */
static char *
tables_where(Remote *remote, const char *aggregate, const char *condition, const char *now)
{
	return remote_value(remote,
						psprintf("SELECT %s FROM weft.published_tables() r JOIN pg_catalog.pg_class c ON c.oid = r,"
								 " (SELECT %s::pg_catalog.jsonb) n (now) WHERE %s",
								 aggregate, quote_literal_cstr(now), condition));
}

/* Which of these tables, an array of OIDs, have rows that are older than their files?  NULL if none has. */
static char *
with_older_rows(Remote *source, const char *oids)
{
	/* A member with an older version of Weft does not tell. */
	if (remote_value(source, "SELECT pg_catalog.to_regprocedure('weft.member_has_older_rows(regclass)')") == NULL)
		return NULL;
	return remote_value(source,
						psprintf("SELECT pg_catalog.string_agg(t::pg_catalog.regclass::text, ', ')"
								 " FROM pg_catalog.unnest(%s::oid[]) t WHERE weft.member_has_older_rows(t)",
								 quote_literal_cstr(oids)));
}

static void
rewritten(const char *node, const char *tables)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables were rewritten by schema changes on node \"%s\" while they were copied: %s",
					node, tables),
			 errhint("Join again, and change no column's type meanwhile.")));
}

static void
exchanged(const char *node, const char *tables)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("tables got other files on node \"%s\" while they were copied: %s", node, tables),
			 errdetail("Some of their rows are older than the files, but were not there when the copy began."),
			 errhint("Join again. Meanwhile, run no extension that exchanges the files of tables.")));
}

/*
 * Fails if rows or values are missing in what was read, through "source", in a snapshot.  "dsn" is for a second
 * connection to the same member.
 */
void
copied_tables_check(Remote *source, const char *dsn, const char *snapshot)
{
	const char *list = "pg_catalog.string_agg(c.oid::pg_catalog.regclass::text, ', ')";
	Remote	   *now = remote_connect(dsn, source->node, false);
	char	   *definitions = remember_tables(now, DEFINITION);
	char	   *columns = remember_tables(now, COLUMN_NAMES);
	char	   *unseen;
	char	   *tables;

	remote_run(now, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
	remote_run(now, psprintf("SET TRANSACTION SNAPSHOT %s", quote_literal_cstr(snapshot)));
	unseen = tables_where(now, "coalesce(pg_catalog.array_agg(c.oid), '{}')",
						  "pg_catalog.pg_relation_filenode(c.oid) <> c.relfilenode", definitions);
	unseen = remote_value(source,
						  psprintf("SELECT coalesce(pg_catalog.array_agg(t), '{}') FROM pg_catalog.unnest(%s::oid[]) t"
								   " WHERE weft.is_empty(t)", quote_literal_cstr(unseen)));

	tables = tables_where(now, list,
						  psprintf("c.oid = ANY (%s) AND " DEFINITION " IS DISTINCT FROM now ->> c.oid::text",
								   quote_literal_cstr(unseen)), definitions);
	if (tables != NULL)
		rewritten(source->node, tables);
	tables = with_older_rows(source, unseen);
	if (tables != NULL)
		exchanged(source->node, tables);
	tables = tables_where(now, list,
						  "EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid"
						  " AND a.attnum > 0 AND NOT a.attisdropped"
						  " AND now -> c.oid::text ->> a.attnum::text <> a.attname)", columns);
	if (tables != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("columns were renamed on node \"%s\" while tables were copied: %s",
						source->node, tables),
				 errhint("Join again, and rename no column meanwhile.")));

	remote_run(now, "COMMIT");
	remote_close(now);
}

/* When a row version was made: in which transaction, frozen or not, and by which of its commands. */
typedef struct Moment
{
	TransactionId xid;
	CommandId	command;
} Moment;

/* Was this row version inserted here, not for another node, and before another one? */
static bool
is_older(TupleTableSlot *slot, Moment than)
{
	bool		isnull;
	TransactionId xid = DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber,
															  &isnull));
	CommandId	command = DatumGetCommandId(slot_getsysattr(slot, MinCommandIdAttributeNumber, &isnull));
	TimestampTz time;
	RepOriginId origin;

	if (xid == than.xid ? command > than.command :
		!TransactionIdIsNormal(xid) || !TransactionIdPrecedes(xid, than.xid))
		return false;
	return TransactionIdGetCommitTsData(xid, &time, &origin) && origin == InvalidRepOriginId;
}

/* When the table's row in the catalog was changed last. */
static Moment
last_change(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Moment		result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	result.xid = HeapTupleHeaderGetRawXmin(tuple->t_data);
	result.command = HeapTupleHeaderGetRawCommandId(tuple->t_data);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * weft.member_has_older_rows(relation regclass)
 *
 * Has the table, without its partitions, rows that a session of this server has inserted before the table's row
 * in pg_class was changed last?  Asked by a joining node, in a transaction with an old
 * snapshot.  Needs track_commit_timestamp, as all members do.  No query is planned, because planning could run
 * code of the table's owner.
 */
Datum
weft_member_has_older_rows(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel = local_table_open(relid, ACL_SELECT, AccessShareLock);
	Moment		changed = last_change(relid);
	bool		result = false;

	if (rel->rd_rel->relkind == RELKIND_RELATION)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		TupleTableSlot *slot = table_slot_create(rel, NULL);
		TableScanDesc scan = compat_table_beginscan(rel, snapshot);

		while (!result && table_scan_getnextslot(scan, ForwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();
			result = is_older(slot, changed);
		}
		table_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
		UnregisterSnapshot(snapshot);
	}
	table_close(rel, AccessShareLock);
	PG_RETURN_BOOL(result);
}
