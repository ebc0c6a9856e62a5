/*
 * settings.c
 *	  What tables of schema weft say about conflicts, as a writer knows it.
 *
 * Resolvers, node ids and delta columns are read when they are needed first, and
 * again after one of their tables, or a subscription, has changed: a trigger on each
 * of them invalidates its relation cache entry (api/table_changed.c), which every process
 * hears of at its next change.
 *
 * A resolver of the subscription goes before that of the node, which has the
 * empty name.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "conflict/settings.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/xid8.h"

/* A subscription of this database. */
typedef struct Source
{
	RepOriginId origin;
	NameData	subname;
	int			node;
} Source;

/* A subscription that was dropped: its origin stands for a node up to a transaction. */
typedef struct PastOrigin
{
	RepOriginId origin;
	int			node;
	FullTransactionId until;
} PastOrigin;

typedef struct DeltaColumn
{
	Oid			relid;
	NameData	name;
} DeltaColumn;

static bool valid = false;
static MemoryContext context;	/* of all that follows */
static ConflictTables tables;
static Oid	resolver_table;
static Oid	node_table;
static Oid	delta_table;
static ConflictResolver resolvers[NUM_CONFLICT_KINDS];
static int	own_node;
static List *sources;			/* of Source */
static List *past_origins;		/* of PastOrigin */
static List *deltas;			/* of DeltaColumn */

static void
relation_changed(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == resolver_table || relid == node_table ||
		relid == delta_table || relid == tables.past_origin)
		valid = false;
}

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	valid = false;
}

static void
init(void)
{
	context = AllocSetContextCreate(TopMemoryContext, "weft conflict settings",
									ALLOCSET_SMALL_SIZES);
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
}

/*
 * Finds a relation of the extension.  One with its name that is somebody else's
 * could have any columns.
 */
static Oid
find_relation(const char *name, bool is_table)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid("weft", true));
	Oid			extension = get_extension_oid("weft", true);

	if (!OidIsValid(relid) || !OidIsValid(extension) ||
		(is_table && getExtensionOfObject(RelationRelationId, relid) != extension))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("relation \"weft.%s\" of extension \"weft\" is missing", name),
				 errhint("Run CREATE EXTENSION weft.")));
	return relid;
}

static void
find_relations(void)
{
	tables.history = find_relation("conflict_history", true);
	tables.history_key = find_relation("conflict_history_pkey", false);
	tables.history_time_index = find_relation("conflict_history_time_index", false);
	tables.history_sequence = find_relation("conflict_history_id_seq", true);
	tables.tombstone = find_relation("tombstone", true);
	tables.tombstone_key = find_relation("tombstone_key_index", false);
	tables.tombstone_time_index = find_relation("tombstone_time_index", false);
	tables.merged_row = find_relation("merged_row", true);
	tables.merged_row_key = find_relation("merged_row_key_index", false);
	tables.merged_row_time_index = find_relation("merged_row_time_index", false);
	resolver_table = find_relation("conflict_resolver", true);
	node_table = find_relation("conflict_node", true);
	tables.deleted_counter = find_relation("deleted_counter", true);
	tables.deleted_counter_key = find_relation("deleted_counter_key_index", false);
	tables.deleted_counter_time_index = find_relation("deleted_counter_time_index", false);
	tables.tombstone_open_index = find_relation("tombstone_open_index", false);
	tables.past_origin = find_relation("past_origin", true);
	delta_table = find_relation("delta_column", true);
}

/* Calls "read" with the values of each row of a table; none of them is null. */
static void
scan(Oid relid, void (*read) (Datum *values))
{
	Relation	rel = table_open(relid, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	int			natts = RelationGetDescr(rel)->natts;
	Datum	   *values = palloc(natts * sizeof(Datum));
	bool	   *nulls = palloc(natts * sizeof(bool));
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		read(values);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* Which kinds have a resolver of this subscription. */
static bool resolver_is_ours[NUM_CONFLICT_KINDS];

static void
read_resolver(Datum *values)
{
	const char *subname = NameStr(*DatumGetName(values[0]));
	bool		ours = subname[0] != '\0';
	ConflictKind kind;
	ConflictResolver resolver;

	if (ours && (MySubscription == NULL || strcmp(subname, MySubscription->name) != 0))
		return;
	if (!conflict_kind_parse(TextDatumGetCString(values[1]), &kind) ||
		!conflict_resolver_parse(TextDatumGetCString(values[2]), &resolver) ||
		(resolver_is_ours[kind] && !ours))
		return;
	resolvers[kind] = resolver;
	resolver_is_ours[kind] = ours;
}

static void
read_node(Datum *values)
{
	const char *subname = NameStr(*DatumGetName(values[0]));
	int			id = DatumGetInt32(values[1]);
	ListCell   *cell;

	if (subname[0] == '\0')
		own_node = id;
	foreach(cell, sources)
	{
		Source	   *source = lfirst(cell);

		if (strcmp(NameStr(source->subname), subname) == 0)
			source->node = id;
	}
}

/* Finds all subscriptions of this database. */
static void
find_sources(void)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		char		origin_name[NAMEDATALEN];
		Source	   *source;

		if (form->subdbid != MyDatabaseId)
			continue;
		ReplicationOriginNameForLogicalRep(form->oid, InvalidOid, origin_name,
										   sizeof(origin_name));
		source = palloc0(sizeof(Source));
		source->subname = form->subname;
		source->origin = replorigin_by_name(origin_name, true);
		sources = lappend(sources, source);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static void
read_past_origin(Datum *values)
{
	PastOrigin *past = palloc(sizeof(PastOrigin));

	past->origin = DatumGetObjectId(values[0]);
	past->node = DatumGetInt32(values[1]);
	past->until = DatumGetFullTransactionId(values[2]);
	past_origins = lappend(past_origins, past);
}

static void
read_delta(Datum *values)
{
	DeltaColumn *delta = palloc(sizeof(DeltaColumn));

	delta->relid = DatumGetObjectId(values[0]);
	delta->name = *DatumGetName(values[1]);
	deltas = lappend(deltas, delta);
}

/* Reads all of it, if that has changed.  Needs a transaction. */
static void
read_settings(void)
{
	MemoryContext old;

	if (valid)
		return;
	if (context == NULL)
		init();
	MemoryContextReset(context);
	old = MemoryContextSwitchTo(context);
	sources = deltas = past_origins = NIL;
	own_node = 0;
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
		resolvers[i] = RESOLVER_LAST_UPDATE_WINS;
	memset(resolver_is_ours, false, sizeof(resolver_is_ours));

	/* An invalidation that arrives meanwhile takes this back. */
	valid = true;
	find_relations();
	scan(resolver_table, read_resolver);
	find_sources();
	scan(node_table, read_node);
	scan(tables.past_origin, read_past_origin);
	scan(delta_table, read_delta);
	MemoryContextSwitchTo(old);
}

ConflictResolver
settings_resolver(ConflictKind kind)
{
	read_settings();
	return resolvers[kind];
}

/* Returns the id of this node. */
int
settings_own_node(void)
{
	read_settings();
	return own_node;
}

/*
 * Finds the id of the node that a replication origin stands for, 0 if it has none.
 * Returns false if it stands for no node at all.
 */
bool
settings_find_node(RepOriginId origin, int *node)
{
	ListCell   *cell;

	read_settings();
	if (origin == InvalidRepOriginId)
	{
		*node = own_node;
		return true;
	}
	foreach(cell, sources)
	{
		Source	   *source = lfirst(cell);

		if (source->origin == origin)
		{
			*node = source->node;
			return true;
		}
	}
	return false;
}

/* Returns the id of a subscription's node, 0 if it has none. */
int
settings_subscription_node(RepOriginId origin)
{
	int			node;

	return origin != InvalidRepOriginId && settings_find_node(origin, &node) ? node : 0;
}

/*
 * Finds the node that a replication origin stood for when a transaction was applied,
 * if its subscription is dropped.
 */
bool
settings_find_past_node(RepOriginId origin, TransactionId xid, int *node)
{
	const PastOrigin *found = NULL;
	FullTransactionId full = InvalidFullTransactionId;
	ListCell   *cell;

	read_settings();
	foreach(cell, past_origins)
	{
		const PastOrigin *past = lfirst(cell);

		if (past->origin != origin)
			continue;
		if (!FullTransactionIdIsValid(full))
		{
			FullTransactionId next = ReadNextFullTransactionId();
			uint32		epoch = EpochFromFullTransactionId(next);

			if (xid > XidFromFullTransactionId(next))
				epoch--;
			full = FullTransactionIdFromEpochAndXid(epoch, xid);
		}
		/* It may have been another one's before. */
		if (FullTransactionIdPrecedes(full, past->until) &&
			(found == NULL || FullTransactionIdPrecedes(past->until, found->until)))
			found = past;
	}
	if (found)
		*node = found->node;
	return found != NULL;
}

/* Returns the subscription that follows a node, or NULL. */
const char *
settings_subscription_of(int node)
{
	ListCell   *cell;

	read_settings();
	foreach(cell, sources)
	{
		Source	   *source = lfirst(cell);

		if (source->node == node && node != 0)
			return NameStr(source->subname);
	}
	return NULL;
}

const ConflictTables *
settings_tables(void)
{
	read_settings();
	return &tables;
}

/* Are some columns of the local table counters?  Needs a transaction. */
bool
conflict_has_delta_columns(Oid relid)
{
	ListCell   *cell;

	read_settings();
	foreach(cell, deltas)
		if (((DeltaColumn *) lfirst(cell))->relid == relid)
		return true;
	return false;
}

/* Returns the columns of a table that are counters, from 0. */
Bitmapset *
settings_delta_columns(Relation rel)
{
	Bitmapset  *result = NULL;
	ListCell   *cell;

	read_settings();
	foreach(cell, deltas)
	{
		DeltaColumn *delta = lfirst(cell);
		AttrNumber	number;

		if (delta->relid != RelationGetRelid(rel))
			continue;
		number = get_attnum(delta->relid, NameStr(delta->name));
		if (number > 0)
			result = bms_add_member(result, number - 1);
	}
	return result;
}
