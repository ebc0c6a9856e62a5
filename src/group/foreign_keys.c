/*
 * foreign_keys.c
 *	  Foreign keys of a schema that is copied with its rows.
 *
 * All members may have rows without a parent: one member has deleted the parent while
 * another inserted a child.  On the members the constraint is valid nevertheless, because
 * apply does not check it.  If a join checked it, every later join would fail, after
 * everything has been copied.  The check would also plan queries on the tables, which runs
 * code of their owners.
 *
 * Therefore the constraint becomes what it is on the member that was copied: it is added
 * without checking rows, and then marked as valid.  Neither planning nor the triggers of the
 * constraint rely on its having been checked.  If the table is partitioned, version 17
 * cannot add a constraint that way, and the server checks the rows.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "group/foreign_keys.h"
#include "local_query.h"
#include "nodes/parsenodes.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* If a statement only adds a foreign key that would be checked, returns it, else NULL. */
static Constraint *
added_foreign_key(Node *statement)
{
	AlterTableStmt *alter = (AlterTableStmt *) statement;
	AlterTableCmd *command;
	Constraint *constraint;

	if (!IsA(statement, AlterTableStmt) || list_length(alter->cmds) != 1)
		return NULL;
	command = linitial_node(AlterTableCmd, alter->cmds);
	if (command->subtype != AT_AddConstraint)
		return NULL;
	constraint = castNode(Constraint, command->def);
	if (constraint->contype != CONSTR_FOREIGN || constraint->conname == NULL ||
		constraint->skip_validation)
		return NULL;
	return constraint;
}

static void
mark_valid(Oid relid, const char *name)
{
	Relation	catalog = table_open(ConstraintRelationId, RowExclusiveLock);
	Oid			oid = get_relation_constraint_oid(relid, name, false);
	HeapTuple	tuple = SearchSysCacheCopy1(CONSTROID, ObjectIdGetDatum(oid));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for constraint %u", oid);
	((Form_pg_constraint) GETSTRUCT(tuple))->convalidated = true;
	PushActiveSnapshot(GetTransactionSnapshot());
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	PopActiveSnapshot();
	heap_freetuple(tuple);
	table_close(catalog, RowExclusiveLock);
	CacheInvalidateRelcacheByRelid(relid);
	CommandCounterIncrement();
}

/* Runs a statement if it adds a foreign key; else returns false. */
bool
foreign_keys_run(Node *statement, const char *text)
{
	Constraint *constraint = added_foreign_key(statement);
	Oid			relid;

	if (constraint == NULL)
		return false;
	relid = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, false);
	if (get_rel_relkind(relid) != RELKIND_RELATION)
		return false;
	local_run(psprintf("%s\nNOT VALID", text));
	mark_valid(relid, constraint->conname);
	return true;
}
