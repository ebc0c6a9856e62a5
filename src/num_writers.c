/*
 * num_writers.c
 *	  A subscription's own number of writers.
 *
 * It is stored as the subscription's security label of provider "weft".  So it
 * goes with the subscription when that is renamed or dropped, and pg_dump and
 * pg_upgrade carry it over, without a table of ours in any database.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_subscription.h"
#include "commands/seclabel.h"
#include "guc.h"
#include "num_writers.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define LABEL_PROVIDER "weft"
#define LABEL_PREFIX "num_writers="

static object_access_hook_type previous_object_access_hook = NULL;

/* Returns the number in a label, or NUM_WRITERS_DEFAULT if it is not one. */
static int
parse_label(const char *label)
{
	char	   *end;
	long		result;

	if (strncmp(label, LABEL_PREFIX, strlen(LABEL_PREFIX)) != 0)
		return NUM_WRITERS_DEFAULT;
	label += strlen(LABEL_PREFIX);
	if (*label < '0' || *label > '9')
		return NUM_WRITERS_DEFAULT;
	result = strtol(label, &end, 10);
	if (*end != '\0' || result > WEFT_MAX_WRITERS)
		return NUM_WRITERS_DEFAULT;
	return (int) result;
}

/*
 * Makes everybody who applies the subscription look at it again, once this
 * transaction has committed.
 */
static void
invalidate_subscription(Oid subid)
{
	Relation	catalog = table_open(SubscriptionRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));

	if (HeapTupleIsValid(tuple))
	{
		CacheInvalidateHeapTuple(catalog, tuple, NULL);
		ReleaseSysCache(tuple);
	}
	table_close(catalog, NoLock);
}

/* SECURITY LABEL FOR weft ...; this is what a restore says. */
static void
check_label(const ObjectAddress *object, const char *label)
{
	if (object->classId != SubscriptionRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("security labels of provider \"%s\" are for subscriptions only",
						LABEL_PROVIDER)));
	if (label != NULL && parse_label(label) == NUM_WRITERS_DEFAULT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid security label \"%s\"", label),
				 errhint("Use \"%s\" and a number from %d to %d.",
						 LABEL_PREFIX, 0, WEFT_MAX_WRITERS)));
	invalidate_subscription(object->objectId);
}

/* DROP SUBSCRIPTION leaves security labels behind; the OID may come back. */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, classId, objectId, subId, arg);
	if (access == OAT_DROP && classId == SubscriptionRelationId)
		DeleteSharedSecurityLabel(objectId, classId);
}

/* Registers the label provider; called once, while the postmaster loads us. */
void
num_writers_define(void)
{
	register_label_provider(LABEL_PROVIDER, check_label);
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
}

/*
 * Returns the number of writers stored for a subscription, or
 * NUM_WRITERS_DEFAULT.  Needs a transaction.
 */
int
num_writers_get(Oid subid)
{
	ObjectAddress object;
	char	   *label;

	ObjectAddressSet(object, SubscriptionRelationId, subid);
	label = GetSecurityLabel(&object, LABEL_PROVIDER);
	return label ? parse_label(label) : NUM_WRITERS_DEFAULT;
}

/*
 * Stores the number of writers for a subscription.  The caller has checked the
 * number and the user's right to change the subscription.
 */
void
num_writers_set(Oid subid, int num_writers)
{
	ObjectAddress object;

	ObjectAddressSet(object, SubscriptionRelationId, subid);
	SetSecurityLabel(&object, LABEL_PROVIDER,
					 psprintf("%s%d", LABEL_PREFIX, num_writers));
	invalidate_subscription(subid);
}
