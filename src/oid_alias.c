/*
 * oid_alias.c
 *	  Types whose values are OIDs of objects and whose text is their name.
 *
 * An object has different OIDs on different servers, so a value of such a type has the same
 * meaning on both only as text.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "oid_alias.h"

/* Is this regclass or a similar type? */
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
