/*
 * newer_copy.c
 *	  Tables whose initial copy is newer than a schema change.
 *
 * A table synchronization worker may take its snapshot after a schema change was made on the
 * publisher, and before it has arrived here.  If the copy succeeds in spite of the older schema of the
 * table here, then its rows are those after the schema change.  Changes of such a table are
 * ignored up to the copy's position; but to execute the schema change converts the rows once more, or
 * loses a column that was dropped and added again.  Most schema changes do nothing to the rows, so
 * each is executed.  If it turns out that it has changed what the rows look like, the table is emptied,
 * and copied again.  So it is if it has lost a partition: the copy may have stored there what belongs
 * to one that has got the range later.  So it is before it gets one besides a default partition, where the copy may have
 * stored what belongs there.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/tablecmds.h"
#include "compat.h"
#include "ddl/newer_copy.h"
#include "ddl/partition_tree.h"
#include "lib/stringinfo.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* A table that was copied. */
typedef struct Copy
{
	Oid			relid;
	char	   *form;			/* of its rows, before the schema change;
								 * NULL: there is nothing to compare */
	List	   *parts;			/* its partitions then */
} Copy;

/* Describes what the rows of a table look like, and where they are; NULL if it does not exist. */
static char *
form_of(Oid relid)
{
	Relation	rel = try_table_open(relid, AccessShareLock);
	StringInfoData result;

	if (rel == NULL)
		return NULL;
	initStringInfo(&result);
	appendStringInfo(&result, "%u %s.%s", rel->rd_rel->relfilenode,
					 get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel));
	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), i);

		appendStringInfo(&result, " %s %d", NameStr(attribute->attname), attribute->attisdropped);
	}
	table_close(rel, AccessShareLock);
	return result.data;
}

/* Returns the tables that were copied after the transaction with a schema change was committed. */
List *
newer_copy_find(XLogRecPtr final_lsn)
{
	List	   *result = NIL;

	foreach_ptr(SubscriptionRelState, table,
				compat_subscription_tables(MySubscription->oid, true))
	{
		Copy	   *copy;

		if (table->state != SUBREL_STATE_SYNCDONE || table->lsn <= final_lsn)
			continue;
		copy = palloc(sizeof(Copy));
		copy->relid = table->relid;
		copy->form = form_of(table->relid);
		copy->parts = partition_tree(table->relid, NoLock);
		result = lappend(result, copy);
	}
	return result;
}

/* Fails if a table may have rows that another subscription has brought: the copy would not bring them again. */
static void
refuse_shared(Oid relid)
{
	Relation	catalog = table_open(SubscriptionRelRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		Oid			subid = ((Form_pg_subscription_rel) GETSTRUCT(tuple))->srsubid;

		if (subid != MySubscription->oid)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("table \"%s\" cannot be emptied and copied again for subscription \"%s\"",
							get_rel_name(relid), MySubscription->name),
					 errdetail("It belongs to subscription \"%s\", too.",
							   get_subscription_name(subid, false))));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/* Empties a table with its partitions.  Whatever refers to its rows finds them again when they are copied. */
void
newer_copy_empty(Oid relid)
{
	ReindexParams params = {0};

	LockRelationOid(relid, AccessExclusiveLock);
	foreach_oid(each, partition_tree(relid, AccessExclusiveLock))
	{
		Relation	rel = table_open(each, NoLock);
		Oid			toast = rel->rd_rel->reltoastrelid;

		refuse_shared(each);
		if (rel->rd_rel->relkind != RELKIND_RELATION)
		{
			table_close(rel, NoLock);
			continue;
		}
		CheckTableNotInUse(rel, "TRUNCATE");
		RelationSetNewRelfilenumber(rel, rel->rd_rel->relpersistence);
		table_close(rel, NoLock);
		if (OidIsValid(toast))
		{
			Relation	toast_rel = relation_open(toast, AccessExclusiveLock);

			RelationSetNewRelfilenumber(toast_rel, toast_rel->rd_rel->relpersistence);
			table_close(toast_rel, NoLock);
		}
		reindex_relation(NULL, each, REINDEX_REL_PROCESS_TOAST, &params);
	}
}

/* Has a schema change changed the rows of a table?  A dropped one is not missed. */
static bool
has_changed(const Copy *copy)
{
	char	   *form = form_of(copy->relid);

	if (form == NULL || copy->form == NULL)
		return false;
	return strcmp(form, copy->form) != 0 ||
		list_difference_oid(copy->parts, partition_tree(copy->relid, NoLock)) != NIL;
}

static void
copy_again(const Copy *copy)
{
	newer_copy_empty(copy->relid);
	compat_update_subscription_rel(MySubscription->oid, copy->relid, SUBREL_STATE_INIT,
								   InvalidXLogRecPtr);
	CommandCounterIncrement();
	ereport(LOG,
			(errmsg("table \"%s\" of subscription \"%s\" is copied again",
					get_rel_name(copy->relid), MySubscription->name),
			 errdetail("It was copied after a schema change was made on the publisher, and before that has arrived here.")));
}

/*
 * Called before a schema change that gives a table another partition: if the copy may have stored rows of that in the
 * default partition, which refuses the new one then, the table is copied again.
 */
void
newer_copy_before_partition(List *copies, Oid parent)
{
	List	   *roots;

	if (!OidIsValid(parent) || !OidIsValid(get_default_partition_oid(parent)))
		return;
	roots = lcons_oid(parent, partition_ancestors(parent));
	foreach_ptr(Copy, copy, copies)
	{
		if (copy->form == NULL || !list_member_oid(roots, copy->relid))
			continue;
		copy_again(copy);
		copy->form = NULL;
	}
}

/* Called after the schema change: those whose rows it has changed are copied again. */
void
newer_copy_settle(List *copies)
{
	foreach_ptr(Copy, copy, copies)
		if (has_changed(copy))
		copy_again(copy);
}
