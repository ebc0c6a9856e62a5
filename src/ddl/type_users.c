/*
 * type_users.c
 *	  Relations with a column of a type, or of one that is made of it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_type.h"
#include "ddl/type_users.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

/* Adds the relations with a column of a type to a list, and the types that are made of it to another one. */
static void
add_direct(Oid type, List **relations, List **types)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(TypeRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(type));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->classid == TypeRelationId)
			*types = list_append_unique_oid(*types, form->objid);
		else if (form->classid != RelationRelationId || form->objsubid == 0)
			continue;
		else if (get_rel_relkind(form->objid) == RELKIND_COMPOSITE_TYPE)
			*types = list_append_unique_oid(*types, get_rel_type_id(form->objid));
		else
			*relations = list_append_unique_oid(*relations, form->objid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * Returns the OIDs of the relations with a column of a type, or of an array, a domain, a composite or range
 * type of it, and so on.
 */
List *
type_users(Oid type)
{
	List	   *relations = NIL;
	List	   *types = list_make1_oid(type);

	/* The list grows meanwhile. */
	for (int i = 0; i < list_length(types); i++)
		add_direct(list_nth_oid(types, i), &relations, &types);
	return relations;
}
