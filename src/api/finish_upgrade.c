/*
 * finish_upgrade.c
 *	  weft.finish_upgrade(), weft.note_origins()
 *
 * known_origin.c says what pg_upgrade loses, and why no leader that detects conflicts applies anything before
 * weft.finish_upgrade() has been called.  In this order:
 *
 * 1. Commit timestamps are restored for the whole server (conflict/commit_files.c), and a checkpoint makes that
 *	  durable.
 * 2. In one transaction, in this database:
 *	  - a transaction of the old server under origin O was one of the node of the subscription that had
 *		O there: weft.past_origin.  A transaction of the new server is later than that which has created
 *		the new origin with the same number.  A subscription without a node id is one of a plain subscriber: its
 *		changes stay its own, under the number that its origin has here.  Without that, each of its older rows would be
 *		a conflict with its next change;
 *	  - origins that stood for a node for good (verify/repair_origin.c) exist no longer: likewise;
 *	  - rows of weft.ddl_skip and weft.ddl_applied refer to the subscriptions of the same names; a leader sees
 *		to weft.ddl_concurrent (ddl/concurrent_row.c);
 *	  - the user mapping with connection strings belongs to the extension again (group/dsn.c);
 *	  - weft.known_origin is emptied of the old server, so that leaders go on.
 *
 * If the server crashes in between, the function is called again, and repeats the first step.  Then it
 * finds nothing to copy, or the same.  In another database of the server, the first step finds the times there.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_subscription.h"
#include "conflict/commit_files.h"
#include "conflict/settings.h"
#include "fmgr.h"
#include "group/dsn.h"
#include "known_origin.h"
#include "local_query.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "row_time.h"
#include "shmem.h"
#include "store.h"
#include "subscription_settings.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

/* The columns of weft.past_origin. */
#define PAST_ORIGIN 0
#define PAST_NODE 1
#define PAST_UNTIL 2
#define NUM_PAST_COLUMNS 3

PG_FUNCTION_INFO_V1(weft_note_origins);
PG_FUNCTION_INFO_V1(weft_finish_upgrade);

/*
 * weft.note_origins()
 */
Datum
weft_note_origins(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);

		if (form->subdbid == MyDatabaseId && subscription_settings_get(form->oid).detect_conflicts)
			known_origin_store(NameStr(form->subname), form->oid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* Restores commit timestamps; without a directory, warns of what that means. */
static void
restore_times(const char *directory, uint64 server)
{
	if (directory == NULL)
	{
		ereport(WARNING,
				(errmsg("rows that were changed before the upgrade are taken to be older than all changes of other nodes"),
				 errhint("Compare the tables with those of other nodes once everything has been applied.")));
		return;
	}
	commit_files_restore(directory, server);
	local_run("CHECKPOINT");
}

/* Returns a transaction of the new server that is later than all that used an origin's number on the old one. */
static FullTransactionId
first_use_here(RepOriginId origin)
{
	Relation	rel = table_open(ReplicationOriginRelationId, AccessShareLock);
	FullTransactionId result = ReadNextFullTransactionId();
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_replication_origin) GETSTRUCT(tuple))->roident == origin)
			result = FullTransactionIdFromU64(row_time_xid(HeapTupleHeaderGetRawXmin(tuple->t_data)));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

static void
store_past_origin(RepOriginId origin, int node, FullTransactionId until)
{
	Datum		values[NUM_PAST_COLUMNS];
	bool		nulls[NUM_PAST_COLUMNS] = {0};

	values[PAST_ORIGIN] = ObjectIdGetDatum(origin);
	values[PAST_NODE] = Int32GetDatum(node);
	values[PAST_UNTIL] = FullTransactionIdGetDatum(until);
	store_row(settings_tables()->past_origin, values, nulls);
}

static RepOriginId
origin_here(Oid subid)
{
	char		name[NAMEDATALEN];

	ReplicationOriginNameForLogicalRep(subid, InvalidOid, name, sizeof(name));
	return replorigin_by_name(name, true);
}

/*
 * Returns the node of a subscription as weft.past_origin has it.  A subscription without a node id stands for itself:
 * the number of the origin that it has here, negative.
 */
static int
source_here(const KnownOrigin *row)
{
	Oid			subid = get_subscription_oid(row->subname, true);
	RepOriginId origin = OidIsValid(subid) ? origin_here(subid) : InvalidRepOriginId;
	int			node = settings_subscription_node(origin);

	return node != 0 ? node : -(int) origin;
}

/* The same for what weft.past_origin has from an earlier upgrade; 0 if the subscription was dropped. */
static int
past_source_here(List *rows, int node)
{
	if (node >= 0)
		return node;
	foreach_ptr(KnownOrigin, row, rows)
		if (row->origin == -node && OidIsValid(get_subscription_oid(row->subname, true)))
		return source_here(row);
	return 0;
}

/*
 * Ends the time of origins that stood for a node for good, and replaces numbers of origins of the old server
 * that stand for subscriptions.
 */
static void
convert_past_origins(List *rows)
{
	Relation	rel = table_open(settings_tables()->past_origin, RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[NUM_PAST_COLUMNS];
		bool		nulls[NUM_PAST_COLUMNS];
		RepOriginId origin;
		int			node;
		FullTransactionId until;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		origin = DatumGetObjectId(values[PAST_ORIGIN]);
		node = DatumGetInt32(values[PAST_NODE]);
		until = DatumGetFullTransactionId(values[PAST_UNTIL]);
		if (U64FromFullTransactionId(until) == PG_UINT64_MAX)
			until = first_use_here(origin);
		else if (node >= 0)
			continue;
		store_remove(rel, tuple, snapshot);
		store_past_origin(origin, past_source_here(rows, node), until);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
}

/* Returns the OID that a subscription has here, or the given one if it is not known. */
static Oid
subscription_here(List *rows, Oid subid)
{
	foreach_ptr(KnownOrigin, row, rows)
	{
		Oid			result;

		if (row->subid != subid)
			continue;
		/* It may have had another name at times. */
		result = get_subscription_oid(row->subname, true);
		if (OidIsValid(result))
			return result;
	}
	return subid;
}

/* Replaces OIDs of subscriptions in a column of one of Weft's tables. */
static void
replace_subids(const char *table, AttrNumber column, List *rows)
{
	Oid			relid = get_relname_relid(table, get_namespace_oid("weft", false));
	Relation	rel = table_open(relid, RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	int			natts = RelationGetDescr(rel)->natts;
	Datum	   *values = palloc(natts * sizeof(Datum));
	bool	   *nulls = palloc(natts * sizeof(bool));
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			old;
		Oid			here;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		old = DatumGetObjectId(values[column - 1]);
		here = subscription_here(rows, old);
		if (here == old)
			continue;
		values[column - 1] = ObjectIdGetDatum(here);
		store_remove(rel, tuple, snapshot);
		store_row(relid, values, nulls);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/*
 * weft.finish_upgrade(old_data_directory text)
 */
Datum
weft_finish_upgrade(PG_FUNCTION_ARGS)
{
	char	   *directory = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));
	List	   *rows = NIL;

	shmem_require();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only a superuser may complete an upgrade"),
				 errdetail("It reads files of the server.")));
	foreach_ptr(KnownOrigin, row, known_origin_rows())
		if (!known_origin_is_here(row))
		rows = lappend(rows, row);
	if (rows == NIL)
	{
		ereport(NOTICE, (errmsg("there is nothing to complete in this database")));
		PG_RETURN_VOID();
	}
	restore_times(directory, ((KnownOrigin *) linitial(rows))->server);

	convert_past_origins(rows);
	foreach_ptr(KnownOrigin, row, rows)
		if (OidIsValid(get_subscription_oid(row->subname, true)))
		store_past_origin(row->origin, source_here(row), first_use_here(row->origin));
	replace_subids("ddl_skip", 1, rows);
	replace_subids("ddl_applied", 3, rows);
	dsn_adopt();
	foreach_ptr(KnownOrigin, row, rows)
		known_origin_remove(row);
	PG_RETURN_VOID();
}
