/*
 * settings.c
 *	  What the tables of schema weft say about conflicts, as this process knows it.
 *
 * A process reads the resolvers, node ids and delta columns when it first needs them, and
 * again after one of their tables, or a subscription, has changed: a trigger on each of
 * the tables invalidates its relation cache entry (api/table_changed.c), of which every
 * process learns before its next change.
 *
 * A resolver of the subscription takes precedence over one of the node, which is stored
 * under the empty name.
 *
 * The members of the node's group are read, too, for the names of the slots through which they
 * follow this node.  Their subscriptions have origin = none (group/node_functions.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "compat.h"
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

/* A dropped subscription: before transaction "until", its origin stood for the node. */
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

/*
 * What this process has read.  A global, because the callbacks for invalidations cannot
 * be given anything else.
 */
static struct
{
	bool		valid;
	bool		changed;		/* something has, since they were last read */
	MemoryContext context;		/* of the lists */
	ConflictTables tables;
	Oid			resolver_table;
	Oid			node_table;
	Oid			delta_table;
	Oid			member_table;
	Oid			group_table;
	ConflictResolver resolvers[NUM_CONFLICT_KINDS];
	bool		of_subscription[NUM_CONFLICT_KINDS];	/* the resolver is this
														 * subscription's */
	int			own_node;
	List	   *sources;		/* of Source */
	List	   *past_origins;	/* of PastOrigin */
	List	   *deltas;			/* of DeltaColumn */
	NameData	group;			/* empty outside of a group */
	NameData	own_name;
	List	   *members;		/* their names, without this node's */
	List	   *member_slots;	/* names of slots */
}			known;

static void
relation_changed(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == known.resolver_table || relid == known.node_table ||
		relid == known.delta_table || relid == known.tables.past_origin ||
		relid == known.member_table)
	{
		known.valid = false;
		known.changed = true;
	}
}

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	known.valid = false;
	known.changed = true;
}

static void
init(void)
{
	known.context = AllocSetContextCreate(TopMemoryContext, "weft conflict settings",
										  ALLOCSET_SMALL_SIZES);
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
}

/*
 * Finds a relation of the extension.  A table of the same name that does not belong to
 * the extension could have any columns.
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
	known.tables.history = find_relation("conflict_history", true);
	known.tables.history_key = find_relation("conflict_history_pkey", false);
	known.tables.history_time_index = find_relation("conflict_history_time_index", false);
	known.tables.history_sequence = find_relation("conflict_history_id_seq", true);
	known.tables.tombstone = find_relation("tombstone", true);
	known.tables.tombstone_key = find_relation("tombstone_key_index", false);
	known.tables.tombstone_time_index = find_relation("tombstone_time_index", false);
	known.tables.merged_row = find_relation("merged_row", true);
	known.tables.merged_row_key = find_relation("merged_row_key_index", false);
	known.tables.merged_row_time_index = find_relation("merged_row_time_index", false);
	known.resolver_table = find_relation("conflict_resolver", true);
	known.node_table = find_relation("conflict_node", true);
	known.tables.deleted_counter = find_relation("deleted_counter", true);
	known.tables.deleted_counter_key = find_relation("deleted_counter_key_index", false);
	known.tables.deleted_counter_time_index = find_relation("deleted_counter_time_index", false);
	known.tables.tombstone_open_index = find_relation("tombstone_open_index", false);
	known.tables.past_origin = find_relation("past_origin", true);
	known.tables.row_time = find_relation("row_time", true);
	known.tables.row_time_time_index = find_relation("row_time_time_index", false);
	known.delta_table = find_relation("delta_column", true);
	known.member_table = find_relation("node_entry", true);
	known.group_table = find_relation("node_group_entry", true);
}

/* Calls "read" with the values of each row of a table; it knows which may be null. */
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

static void
read_resolver(Datum *values)
{
	const char *subname = NameStr(*DatumGetName(values[0]));
	bool		of_subscription = subname[0] != '\0';
	ConflictKind kind;
	ConflictResolver resolver;

	if (of_subscription && (MySubscription == NULL || strcmp(subname, MySubscription->name) != 0))
		return;
	if (!conflict_kind_parse(TextDatumGetCString(values[1]), &kind) ||
		!conflict_resolver_parse(TextDatumGetCString(values[2]), &resolver) ||
		(known.of_subscription[kind] && !of_subscription))
		return;
	known.resolvers[kind] = resolver;
	known.of_subscription[kind] = of_subscription;
}

static void
read_node(Datum *values)
{
	const char *subname = NameStr(*DatumGetName(values[0]));
	int			id = DatumGetInt32(values[1]);
	ListCell   *cell;

	if (subname[0] == '\0')
		known.own_node = id;
	foreach(cell, known.sources)
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
		known.sources = lappend(known.sources, source);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * Returns the name of the origin that stands for a node for good, because rows of it have been
 * repaired here (verify/repair_origin.c).
 */
char *
settings_repair_origin_name(int node)
{
	return psprintf("weft_repair_%u_%d", MyDatabaseId, node);
}

/* Has the origin that stood for a node for good been dropped?  Its number may be another's now. */
static bool
is_dropped(const PastOrigin *past)
{
	char	   *name;

	return U64FromFullTransactionId(past->until) == PG_UINT64_MAX &&
		!(replorigin_by_oid(past->origin, true, &name) &&
		  strcmp(name, settings_repair_origin_name(past->node)) == 0);
}

static void
read_past_origin(Datum *values)
{
	PastOrigin *past = palloc(sizeof(PastOrigin));

	past->origin = DatumGetObjectId(values[0]);
	past->node = DatumGetInt32(values[1]);
	past->until = DatumGetFullTransactionId(values[2]);
	if (!is_dropped(past))
		known.past_origins = lappend(known.past_origins, past);
}

static void
read_delta(Datum *values)
{
	DeltaColumn *delta = palloc(sizeof(DeltaColumn));

	delta->relid = DatumGetObjectId(values[0]);
	delta->name = *DatumGetName(values[1]);
	known.deltas = lappend(known.deltas, delta);
}

static void
read_group(Datum *values)
{
	known.group = *DatumGetName(values[0]);
}

static void
read_member(Datum *values)
{
	NameData   *name;

	if (DatumGetBool(values[3]))
	{
		known.own_name = *DatumGetName(values[0]);
		return;
	}
	name = palloc(sizeof(NameData));
	*name = *DatumGetName(values[0]);
	known.members = lappend(known.members, name);
}

/*
 * Finds the names of the slots for other members, as weft.subscription_name() has them; members
 * are only accepted if these fit into a name.
 */
static void
find_member_slots(void)
{
	scan(known.group_table, read_group);
	scan(known.member_table, read_member);
	if (NameStr(known.group)[0] == '\0' || NameStr(known.own_name)[0] == '\0')
		return;
	foreach_ptr(NameData, member, known.members)
	{
		known.member_slots = lappend(known.member_slots,
									 psprintf("weft_%s_%s_%s", NameStr(known.group),
											  NameStr(known.own_name), NameStr(*member)));
	}
}

/* Reads all tables again if one of them has changed.  Needs a transaction. */
static void
read_settings(void)
{
	MemoryContext old;

	if (known.valid)
		return;
	if (known.context == NULL)
		init();
	MemoryContextReset(known.context);
	old = MemoryContextSwitchTo(known.context);
	known.sources = known.deltas = known.past_origins = NIL;
	known.members = known.member_slots = NIL;
	memset(&known.group, 0, sizeof(NameData));
	memset(&known.own_name, 0, sizeof(NameData));
	known.own_node = 0;
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
		known.resolvers[i] = RESOLVER_LAST_UPDATE_WINS;
	memset(known.of_subscription, false, sizeof(known.of_subscription));

	/*
	 * An invalidation that arrives while the tables are read sets this.  An
	 * error leaves the settings invalid.
	 */
	known.changed = false;
	find_relations();
	scan(known.resolver_table, read_resolver);
	find_sources();
	scan(known.node_table, read_node);
	scan(known.tables.past_origin, read_past_origin);
	scan(known.delta_table, read_delta);
	find_member_slots();
	known.valid = !known.changed;
	MemoryContextSwitchTo(old);
}

ConflictResolver
settings_resolver(ConflictKind kind)
{
	read_settings();
	return known.resolvers[kind];
}

/* Returns the id of this node. */
int
settings_own_node(void)
{
	read_settings();
	return known.own_node;
}

/*
 * Finds the id of the node that a replication origin stands for, which is 0 if the node
 * has none.  Returns false if the origin stands for no node at all.
 */
bool
settings_find_node(RepOriginId origin, int *node)
{
	ListCell   *cell;

	read_settings();
	if (origin == InvalidRepOriginId)
	{
		*node = known.own_node;
		return true;
	}
	foreach(cell, known.sources)
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
 * Finds the node that a replication origin stood for when a transaction was applied.
 * Returns false if the origin's subscription has not been dropped since.
 */
bool
settings_find_past_node(RepOriginId origin, TransactionId xid, int *node)
{
	const PastOrigin *found = NULL;
	FullTransactionId full = InvalidFullTransactionId;
	ListCell   *cell;

	read_settings();
	foreach(cell, known.past_origins)
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
		/* Several subscriptions may have had this origin, one after another. */
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
	foreach(cell, known.sources)
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
	return &known.tables;
}

/*
 * Returns the names of the slots through which the other members of the group follow this node.
 * Outside of a transaction, what was last read is returned, or none if that is out of date.
 */
List *
settings_member_slots(void)
{
	if (IsTransactionState())
		read_settings();
	return known.valid ? known.member_slots : NIL;
}

/* Does a local table have columns that are counters?  Needs a transaction. */
bool
conflict_has_delta_columns(Oid relid)
{
	ListCell   *cell;

	read_settings();
	foreach(cell, known.deltas)
		if (((DeltaColumn *) lfirst(cell))->relid == relid)
		return true;
	return false;
}

/* Returns the columns of a table that are counters, numbered from 0. */
Bitmapset *
settings_delta_columns(Relation rel)
{
	Bitmapset  *result = NULL;
	ListCell   *cell;

	read_settings();
	foreach(cell, known.deltas)
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
