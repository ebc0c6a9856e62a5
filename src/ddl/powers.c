/*
 * powers.c
 *	  What a role may do to its server.
 *
 * A role is the same on two servers if it has the same name.  Whoever may create roles on a
 * publisher could create one whose name belongs to a superuser on the subscriber only.
 * Therefore a schema change says what its role may do to the publisher's server, beyond what
 * is inside of databases, and the subscriber refuses a role that may do more here.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "ddl/powers.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

/* Predefined roles that can become as powerful as a superuser. */
static const struct
{
	const char *name;
	Oid			role;
}			predefined[] = {
	{"pg_execute_server_program", ROLE_PG_EXECUTE_SERVER_PROGRAM},
	{"pg_read_server_files", ROLE_PG_READ_SERVER_FILES},
	{"pg_write_server_files", ROLE_PG_WRITE_SERVER_FILES},
};

/*
 * Is a role a superuser, or a member of one?  A member may give its functions to that role, or become
 * it.
 */
static bool
is_superuser(Oid role)
{
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	if (superuser_arg(role))
		return true;
	catalog = table_open(AuthIdRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_authid form = (Form_pg_authid) GETSTRUCT(tuple);

		result = form->rolsuper && is_member_of_role(role, form->oid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/* Returns the names of a role's powers; those of roles that it is a member of are among them. */
List *
powers_of(Oid role)
{
	List	   *result = NIL;

	if (is_superuser(role))
		result = lappend(result, "superuser");
	for (int i = 0; i < lengthof(predefined); i++)
		if (is_member_of_role(role, predefined[i].role))
			result = lappend(result, unconstify(char *, predefined[i].name));
	return result;
}

static bool
includes(List *powers, const char *power)
{
	foreach_ptr(char, each, powers)
		if (strcmp(each, power) == 0)
		return true;
	return false;
}

/* Fails if a role has a power that it does not have on the publisher. */
void
powers_check(Oid role, const char *name, List *powers)
{
	foreach_ptr(char, power, powers_of(role))
	{
		if (includes(powers, power) || includes(powers, "superuser"))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" has more privileges here than on the publisher", name),
				 errdetail("Here, it has the privileges of \"%s\".", power)));
	}
}
