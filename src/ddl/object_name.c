/*
 * object_name.c
 *	  Objects as statements name them, whatever search_path is.
 */
#include "postgres.h"

#include "catalog/objectaddress.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "ddl/object_name.h"

/* Returns the words behind DROP, ALTER or COMMENT ON. */
char *
object_type(Oid class_id, Oid object_id)
{
	ObjectAddress address;
	char	   *result;

	switch (class_id)
	{
			/*
			 * Unlike FUNCTION, PROCEDURE and AGGREGATE, this is for all of
			 * them.
			 */
		case ProcedureRelationId:
			return pstrdup("ROUTINE");
		case StatisticExtRelationId:
			return pstrdup("STATISTICS");
		case ForeignDataWrapperRelationId:
			return pstrdup("FOREIGN DATA WRAPPER");
		default:
			ObjectAddressSet(address, class_id, object_id);
			result = getObjectTypeDescription(&address, false);
			for (char *each = result; *each != '\0'; each++)
				*each = pg_toupper((unsigned char) *each);
			return result;
	}
}

/* Returns its name with everything that belongs to it, such as the arguments of a function. */
char *
object_name(Oid class_id, Oid object_id)
{
	ObjectAddress address;

	ObjectAddressSet(address, class_id, object_id);
	return getObjectIdentity(&address, false);
}
