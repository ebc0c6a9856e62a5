/*
 * local_table.c
 *	  A subscriber's table: its triggers, the rights on it, and executor state for it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "compat.h"
#include "executor/executor.h"
#include "local_table.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_relation.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"

/*
 * Opens an ordinary table.  Fails if the caller lacks a right, and does so before it queues
 * for the lock.
 */
Relation
local_table_open(Oid relid, AclMode mode, LOCKMODE lock)
{
	AclResult	result = pg_class_aclcheck(relid, GetUserId(), mode);
	Relation	rel;

	if (result != ACLCHECK_OK)
		aclcheck_error(result, OBJECT_TABLE, get_rel_name(relid));
	rel = table_open(relid, lock);
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an ordinary table", RelationGetRelationName(rel))));
	return rel;
}

/* Does a trigger in this state fire while the session is a replica? */
bool
local_table_trigger_is_on(char enabled)
{
	return enabled == TRIGGER_FIRES_ALWAYS || enabled == TRIGGER_FIRES_ON_REPLICA;
}

static bool
fires_triggers(Relation rel, bool of_statements)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if ((of_statements || TRIGGER_FOR_ROW(trigger->tgtype)) &&
			local_table_trigger_is_on(trigger->tgenabled))
			return true;
	}
	return false;
}

/*
 * Does a row that is replicated into an open table fire a trigger?  Neither the server nor
 * Weft fires triggers of statements for it.
 */
bool
local_table_fires_row_triggers(Relation rel)
{
	return fires_triggers(rel, false);
}

/* The same, as the catalog says: the table is not locked. */
static bool
catalog_fires_row_triggers(Relation triggers, Oid relid)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		result = false;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);

		result = TRIGGER_FOR_ROW(trigger->tgtype) && local_table_trigger_is_on(trigger->tgenabled);
	}
	systable_endscan(scan);
	return result;
}

static bool
has_triggers(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result = HeapTupleIsValid(tuple) &&
		((Form_pg_class) GETSTRUCT(tuple))->relhastriggers;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return result;
}

/* Does a row that is replicated into one of these tables fire a trigger?  They need not be locked, and are not. */
bool
local_table_any_fires_row_triggers(const List *relids)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	bool		result = false;

	foreach_oid(relid, relids)
		result = result || (has_triggers(relid) && catalog_fires_row_triggers(triggers, relid));
	table_close(triggers, AccessShareLock);
	return result;
}

/* Does COPY into an open table fire a trigger while the session is a replica? */
bool
local_table_fires_triggers(Relation rel)
{
	return fires_triggers(rel, true);
}

/*
 * Fails, as the server's apply worker does, if the current user lacks the right "mode" on an
 * open table, or row-level security applies to it.
 */
void
local_table_check_rights(Relation rel, AclMode mode)
{
	Oid			relid = RelationGetRelid(rel);

	if (pg_class_aclmask(relid, GetUserId(), mode, ACLMASK_ALL) != mode)
		aclcheck_error(ACLCHECK_NO_PRIV, get_relkind_objtype(rel->rd_rel->relkind),
					   RelationGetRelationName(rel));
	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("user \"%s\" cannot replicate into relation with row-level security enabled: \"%s\"",
						GetUserNameFromId(GetUserId(), true),
						RelationGetRelationName(rel))));
}

/*
 * Sets up what the executor's functions need for an open table: returns their state, and in
 * *info the table with its indexes open.  "columns" maps the columns that are sent;
 * "speculative" says whether unique indexes will be probed before a row is stored.
 * Allocates in the current memory context; the caller closes everything.
 */
EState *
local_table_prepare(Relation rel, const AttrMap *columns, bool speculative,
					ResultRelInfo **info)
{
	EState	   *estate = CreateExecutorState();
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *perminfos = NIL;
	RTEPermissionInfo *perminfo;

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
	perminfo = addRTEPermissionInfo(&perminfos, rte);
	for (int i = 0; i < columns->maplen; i++)
		if (columns->attnums[i] >= 0)
			perminfo->updatedCols =
				bms_add_member(perminfo->updatedCols,
							   i + 1 - FirstLowInvalidHeapAttributeNumber);
	compat_init_range_table(estate, rte, perminfos);

	*info = makeNode(ResultRelInfo);
	InitResultRelInfo(*info, rel, 1, NULL, 0);
	ExecOpenIndices(*info, speculative);
	return estate;
}
