/*
 * ddl_tables.c
 *	  Which tables belong to the subscription after a schema change.
 *
 * All of a new table's rows come after the statement, so it is READY at once.  So is one whose rows are sent under
 * another name from then on, unless they are being copied (renamed_tables.c).  A table that had
 * rows when it entered a publication has to be copied.  That needs an empty table here; for any
 * other, the log says what to do, and its changes are not applied until then, as those of any table
 * that does not belong to the subscription.  A dropped table leaves the subscription by itself.
 *
 * Rights.  Names decide which table here is the one on the publisher.  A role there may give a
 * table the name of one that is somebody else's here: with CREATE TABLE IF NOT EXISTS, the statement
 * then succeeds.  Its rows would be applied with the rights of that somebody.  Therefore a table joins
 * only if the role could become its owner.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "ddl/ddl_tables.h"
#include "ddl/partition_tree.h"
#include "ddl/renamed_tables.h"
#include "executor/tuptable.h"
#include "nodes/value.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* Is this one of the subscription's publications? */
bool
ddl_tables_is_subscribed(const char *publication)
{
	foreach_node(String, name, MySubscription->publications)
		if (strcmp(strVal(name), publication) == 0)
		return true;
	return false;
}

/* Is one of these a publication of the subscription? */
bool
ddl_tables_any_subscribed(const List *publications)
{
	foreach_ptr(char, publication, publications)
		if (ddl_tables_is_subscribed(publication))
		return true;
	return false;
}

/* Could a role become the owner of a table? */
static bool
may_write(Oid role, Oid relid)
{
	HeapTuple	tuple;
	Oid			owner;

	if (!OidIsValid(role))
		return false;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return has_privs_of_role(role, owner) || member_can_set_role(role, owner);
}

/* Returns the local table of that name, or InvalidOid. */
static Oid
find_table(const DdlTable *table)
{
	Oid			relid = get_relname_relid(table->name, get_namespace_oid(table->schema, true));
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';

	return relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE ? relid : InvalidOid;
}

static char
state_of(Oid relid)
{
	XLogRecPtr	lsn;

	return GetSubscriptionRelState(MySubscription->oid, relid, &lsn);
}

/* Says why a table does not join the subscription. */
static void
advise(const DdlTable *table, const char *reason)
{
	ereport(WARNING,
			(errmsg("changes of table \"%s.%s\" are not applied for subscription \"%s\"",
					table->schema, table->name, MySubscription->name),
			 errdetail_internal("%s", reason),
			 errhint("If they are to be applied, see to that, and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION, which copies the table's rows.",
					 quote_identifier(MySubscription->name))));
}

/* May a table join the subscription?  If not, the log says why. */
static bool
may_join(const DdlTable *table, Oid relid, const char *role, bool by_hand)
{
	/* Whoever has executed the statement by hand answers for the table. */
	if (by_hand || may_write(get_role_oid(role, true), relid))
		return true;
	advise(table, psprintf("Role \"%s\", which has published the table, does not own the table that exists here.",
						   role));
	return false;
}

static bool
has_rows(Oid relid)
{
	LockRelationOid(relid, AccessShareLock);
	foreach_oid(each, partition_tree(relid, AccessShareLock))
	{
		Relation	rel = table_open(each, NoLock);
		bool		found = false;

		if (rel->rd_rel->relkind == RELKIND_RELATION)
		{
			Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
			TableScanDesc scan = compat_table_beginscan(rel, snapshot);
			TupleTableSlot *slot = table_slot_create(rel, NULL);

			found = table_scan_getnextslot(scan, ForwardScanDirection, slot);
			ExecDropSingleTupleTableSlot(slot);
			table_endscan(scan);
			UnregisterSnapshot(snapshot);
		}
		table_close(rel, NoLock);
		if (found)
			return true;
	}
	return false;
}

static void
join(Oid relid, char state, XLogRecPtr lsn)
{
	AddSubscriptionRelState(MySubscription->oid, relid, state, lsn, false);
	CommandCounterIncrement();
}

/*
 * A statement on the publisher has created a table, but has not done so here.  If the schema is
 * missing, an unqualified name has led to another one of the search_path.
 */
static void
refuse_missing(const DdlTable *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("table \"%s.%s\" does not exist after the schema change",
					table->schema, table->name),
			 OidIsValid(get_namespace_oid(table->schema, true)) ? 0 :
			 errhint("Create the schema \"%s\".", table->schema)));
}

/*
 * Does a statement change the name under which rows of the table are sent?  Not if they are sent as those of its
 * root because of another publication.
 */
static bool
is_renamed(const DdlTable *table, const DdlMessage *message)
{
	return message->only_tables && !ddl_tables_any_subscribed(table->others);
}

/* A new table joins, or the new name of one.  *done is that of renamed_tables_settle(). */
static void
join_new(const DdlTable *table, const DdlMessage *message, bool by_hand, XLogRecPtr final_lsn,
		 List **done)
{
	Oid			relid = find_table(table);
	bool		known;

	/* An event trigger's statement may have been left out. */
	if (!OidIsValid(relid) && !by_hand && !message->only_tables && !message->of_trigger)
		refuse_missing(table);
	if (!OidIsValid(relid))
		return;
	known = state_of(relid) != SUBREL_STATE_UNKNOWN;
	if (!known && !may_join(table, relid, message->role, by_hand))
		return;
	if (is_renamed(table, message) && renamed_tables_settle(relid, final_lsn, done))
		return;
	if (!known)
		join(relid, SUBREL_STATE_READY, final_lsn);
}

/* Do rows of a table that a publication includes from now on arrive as those of its root?  Event triggers do not tell. */
static bool
is_sent_as_root(const DdlTable *table, const DdlMessage *message)
{
	return !message->of_trigger && ddl_tables_any_subscribed(table->others);
}

/*
 * A table that had rows before joins, to be copied.  Its partitions that are to be copied are part of it from now on: *done
 * is that of renamed_tables_settle().
 */
static void
join_old(const DdlTable *table, const DdlMessage *message, bool by_hand, XLogRecPtr final_lsn,
		 List **done)
{
	Oid			relid = find_table(table);

	if (!OidIsValid(relid))
	{
		advise(table, "It does not exist here.");
		return;
	}
	if (state_of(relid) != SUBREL_STATE_UNKNOWN || is_sent_as_root(table, message) ||
		!may_join(table, relid, message->role, by_hand))
		return;
	if (has_rows(relid))
	{
		advise(table, "It has rows here already.");
		return;
	}
	if (renamed_tables_settle(relid, final_lsn, done))
		return;
	join(relid, SUBREL_STATE_INIT, InvalidXLogRecPtr);
	ereport(LOG,
			(errmsg("table \"%s.%s\" belongs to subscription \"%s\" from now on, and is copied",
					table->schema, table->name, MySubscription->name)));
}

/* A table leaves, unless another one of the subscription's publications includes it. */
static void
leave(const DdlTable *table)
{
	Oid			relid = find_table(table);
	char		state = OidIsValid(relid) ? state_of(relid) : SUBREL_STATE_UNKNOWN;

	if (state == SUBREL_STATE_UNKNOWN || ddl_tables_any_subscribed(table->others))
		return;

	/*
	 * Whatever its copy has or will have: changes that follow are not sent,
	 * so it must be copied if it comes back.
	 */
	renamed_tables_leave(relid);
	RemoveSubscriptionRel(MySubscription->oid, relid);
	CommandCounterIncrement();
	ereport(LOG,
			(errmsg("table \"%s.%s\" no longer belongs to subscription \"%s\"",
					table->schema, table->name, MySubscription->name),
			 errdetail("Publication \"%s\" does not include it any more.", table->publication)));
}

/*
 * Called before a schema change: returns the OIDs of its tables that are parts of one that is being
 * copied.
 */
List *
ddl_tables_parts(const DdlMessage *message, XLogRecPtr final_lsn)
{
	List	   *result = NIL;

	foreach_ptr(DdlTable, table, message->tables)
	{
		Oid			relid = find_table(table);

		if (OidIsValid(relid) && ddl_tables_is_subscribed(table->publication) &&
			renamed_tables_is_part(relid, final_lsn))
			result = lappend_oid(result, relid);
	}
	return result;
}

/* Sees to what is copied because of a partition that was attached or detached. */
static void
settle_parts(const DdlMessage *message, XLogRecPtr final_lsn, List *parts, List **done)
{
	foreach_oid(relid, parts)
		if (state_of(relid) != SUBREL_STATE_UNKNOWN && !get_rel_relispartition(relid))
		renamed_tables_separate(relid);
	foreach_ptr(DdlTable, table, message->attached)
	{
		Oid			relid = find_table(table);

		if (OidIsValid(relid) && ddl_tables_is_subscribed(table->publication) &&
			state_of(relid) != SUBREL_STATE_UNKNOWN)
			(void) renamed_tables_settle(relid, final_lsn, done);
	}
}

/*
 * Called after a schema change; "by_hand": a user has executed it.  "parts" is from
 * ddl_tables_parts().
 */
void
ddl_tables_settle(const DdlMessage *message, XLogRecPtr final_lsn, bool by_hand, List *parts)
{
	List	   *done = NIL;

	foreach_ptr(DdlTable, table, message->tables)
		if (ddl_tables_is_subscribed(table->publication))
		join_new(table, message, by_hand, final_lsn, &done);
	settle_parts(message, final_lsn, parts, &done);
	renamed_tables_finish(done);
	foreach_ptr(DdlTable, table, message->left)
		if (ddl_tables_is_subscribed(table->publication))
		leave(table);
	done = NIL;
	foreach_ptr(DdlTable, table, message->entered)
		if (ddl_tables_is_subscribed(table->publication))
		join_old(table, message, by_hand, final_lsn, &done);
	renamed_tables_finish(done);
}
