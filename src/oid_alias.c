/*
 * oid_alias.c
 *	  Types whose values are OIDs of objects and whose text is their name.
 *
 * The same object has another OID on another server, so such a value means the same
 * on both only as text.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "oid_alias.h"

/* Is it regclass or one of its kind? */
bool
oid_alias_type(Oid type)
{
	switch (type)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGCLASSOID:
		case REGCOLLATIONOID:
		case REGTYPEOID:
		case REGROLEOID:
		case REGNAMESPACEOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
			return true;
		default:
			return false;
	}
}
