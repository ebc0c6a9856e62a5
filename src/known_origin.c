/*
 * known_origin.c
 *	  Which server this is, and which replication origins subscriptions have on it.
 *
 * pg_upgrade (up to 18) makes a new server of an old one's files, and loses what conflict detection needs:
 *	 - the commit timestamps of all transactions, and with them when rows were changed.  A row of
 *	   unknown time is older than every change that arrives (conflict/version.c).  A change of another
 *	   node that is older than the row would win here, and lose everywhere else;
 *	 - the numbers of replication origins, which commit timestamps contain.  The subscriptions are created
 *	   again, and their origins may get other numbers;
 *	 - the OIDs of subscriptions, by which rows of some of Weft's tables refer to them.
 *	 - Weft's file about locks for schema changes (gate_file.c), which the administrator copies.
 * It keeps transaction IDs, the OIDs of tables and databases, the rows themselves, replication slots, how far each
 * subscription has applied, and the position in the WAL, which goes on behind that of the old server.
 *
 * Therefore a leader that detects conflicts stores in weft.known_origin, before it asks for the first
 * change, which origin its subscription has, and the system identifier of the server.  The new
 * server has another one.  A leader that finds a subscription under another server's identifier fails, until
 * weft.finish_upgrade() has restored the commit timestamps from the old server's files
 * (api/finish_upgrade.c).  Nothing can be applied before that.  What local sessions write
 * meanwhile is newer than everything that they find, as ever.
 *
 * The table is not part of a dump: a restored database is another node.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "known_origin.h"
#include "local_query.h"
#include "replication/worker_internal.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* The columns of weft.known_origin. */
enum
{
	COLUMN_SUBNAME,
	COLUMN_SUBID,
	COLUMN_ORIGIN,
	COLUMN_SYSTEM_IDENTIFIER,
	NUM_COLUMNS
};

/* Returns the table, or InvalidOid without it: the extension may be older. */
static Oid
find_table(void)
{
	Oid			relid = get_relname_relid("known_origin", get_namespace_oid("weft", true));
	Oid			extension = get_extension_oid("weft", true);

	if (!OidIsValid(relid) || !OidIsValid(extension) ||
		getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

/* Returns all rows, as a list of KnownOrigin.  Needs a transaction. */
List *
known_origin_rows(void)
{
	Oid			relid = find_table();
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *result = NIL;

	if (!OidIsValid(relid))
		return NIL;
	rel = table_open(relid, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		KnownOrigin *row = palloc(sizeof(KnownOrigin));
		Datum		values[NUM_COLUMNS];
		bool		nulls[NUM_COLUMNS];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		row->place = tuple->t_self;
		row->subname = pstrdup(NameStr(*DatumGetName(values[COLUMN_SUBNAME])));
		row->subid = DatumGetObjectId(values[COLUMN_SUBID]);
		row->origin = (RepOriginId) DatumGetObjectId(values[COLUMN_ORIGIN]);
		row->server = (uint64) DatumGetInt64(values[COLUMN_SYSTEM_IDENTIFIER]);
		result = lappend(result, row);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Is a row about this server? */
bool
known_origin_is_here(const KnownOrigin *row)
{
	return row->server == GetSystemIdentifier();
}

static RepOriginId
origin_of(Oid subid)
{
	char		name[NAMEDATALEN];

	ReplicationOriginNameForLogicalRep(subid, InvalidOid, name, sizeof(name));
	return replorigin_by_name(name, true);
}

/* Stores the origin that a subscription has here. */
void
known_origin_store(const char *subname, Oid subid)
{
	Datum		values[NUM_COLUMNS];
	bool		nulls[NUM_COLUMNS] = {0};
	Oid			relid = find_table();
	NameData	name;

	if (!OidIsValid(relid))
		return;
	namestrcpy(&name, subname);
	values[COLUMN_SUBNAME] = NameGetDatum(&name);
	values[COLUMN_SUBID] = ObjectIdGetDatum(subid);
	values[COLUMN_ORIGIN] = ObjectIdGetDatum(origin_of(subid));
	values[COLUMN_SYSTEM_IDENTIFIER] = Int64GetDatum((int64) GetSystemIdentifier());
	store_row(relid, values, nulls);
}

void
known_origin_remove(const KnownOrigin *row)
{
	Relation	rel = table_open(find_table(), RowExclusiveLock);
	HeapTupleData tuple = {.t_self = row->place};
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	store_remove(rel, &tuple, snapshot);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/* Does this server have rows that subscriptions have applied on another one, of which it does not know everything? */
bool
known_origin_outdated(void)
{
	foreach_ptr(KnownOrigin, row, known_origin_rows())
		if (!known_origin_is_here(row))
		return true;
	return false;
}

static void
fail_upgraded(const char *subname)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" cannot resolve conflicts before weft.finish_upgrade() has been called",
					subname),
			 errdetail("Changes of subscriptions were applied on another server, whose commit times are not known here."),
			 errhint("If this server was made with pg_upgrade, call weft.finish_upgrade() in this database, with the data directory of the old server.")));
}

/* Checks what is stored for a subscription; stores it if that is missing or outdated. */
static void
check(const char *subname, Oid subid)
{
	bool		found = false;

	foreach_ptr(KnownOrigin, row, known_origin_rows())
	{
		bool		same_name = strcmp(row->subname, subname) == 0;

		/*
		 * Of any subscription: one that is new here, or has another name now,
		 * finds rows without their times, too.
		 */
		if (!known_origin_is_here(row))
			fail_upgraded(subname);
		if (!same_name && row->subid != subid)
			continue;
		if (same_name && row->subid == subid && row->origin == origin_of(subid))
			found = true;
		else
			known_origin_remove(row);
	}
	if (!found)
		known_origin_store(subname, subid);
}

/*
 * Called by a leader that detects conflicts, outside of transactions, before it asks for changes.  The transaction
 * is this server's own.
 */
void
known_origin_note(void)
{
	RepOriginId origin = replorigin_session_origin;

	replorigin_session_origin = InvalidRepOriginId;
	local_start_writing();
	check(MySubscription->name, MySubscription->oid);
	CommitTransactionCommand();
	replorigin_session_origin = origin;
}
