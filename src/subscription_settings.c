/*
 * subscription_settings.c
 *	  What Weft stores for a subscription.
 *
 * It is stored as the subscription's security label of provider "weft".  Therefore it
 * follows the subscription when that is renamed or dropped, and pg_dump and pg_upgrade
 * transfer it, without a table of Weft's in any database.  The label is a list such as
 * "num_writers=8, detect_conflicts=on, ddl=off"; settings that are not in it have their defaults.  No
 * option of a statement sets until_lsn: weft.member_follow_until() writes the label while a
 * node parts.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_subscription.h"
#include "commands/extension.h"
#include "commands/seclabel.h"
#include "compat.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/miscnodes.h"
#include "publication_settings.h"
#include "subscription_settings.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define LABEL_PROVIDER "weft"
#define NUM_WRITERS "num_writers="
#define DETECT_CONFLICTS "detect_conflicts="
#define DDL "ddl="
#define UNTIL_LSN "until_lsn="

static const SubscriptionSettings defaults = {NUM_WRITERS_DEFAULT, false, SUBSCRIPTION_DDL_ON, NO_END};

static const char *const ddl_names[] = {
	[SUBSCRIPTION_DDL_OFF] = "off",
	[SUBSCRIPTION_DDL_ON] = "on",
	[SUBSCRIPTION_DDL_TRUST_OWNER] = "trust_owner",
};

static object_access_hook_type previous_object_access_hook = NULL;

static bool
parse_num_writers(const char *value, int *result)
{
	char	   *end;
	long		number;

	if (*value < '0' || *value > '9')
		return false;
	number = strtol(value, &end, 10);
	if (*end != '\0' || number > WEFT_MAX_WRITERS)
		return false;
	*result = (int) number;
	return true;
}

static bool
parse_lsn(const char *value, XLogRecPtr *result)
{
	ErrorSaveContext context = {T_ErrorSaveContext};
	Datum		datum;

	if (!DirectInputFunctionCallSafe(pg_lsn_in, unconstify(char *, value), InvalidOid, -1,
									 (Node *) &context, &datum))
		return false;
	*result = DatumGetLSN(datum);
	return true;
}

/* Parses a value of the option "ddl"; returns false if it is invalid. */
bool
subscription_settings_parse_ddl(const char *text, SubscriptionDdl *ddl)
{
	for (int i = 0; i < lengthof(ddl_names); i++)
	{
		if (strcmp(text, ddl_names[i]) == 0)
		{
			*ddl = i;
			return true;
		}
	}
	return false;
}

/* Parses one item of a label; returns false if it is invalid. */
static bool
parse_item(const char *item, SubscriptionSettings *settings)
{
	if (strncmp(item, NUM_WRITERS, strlen(NUM_WRITERS)) == 0)
		return parse_num_writers(item + strlen(NUM_WRITERS), &settings->num_writers);
	if (strncmp(item, DETECT_CONFLICTS, strlen(DETECT_CONFLICTS)) == 0)
		return parse_bool(item + strlen(DETECT_CONFLICTS), &settings->detect_conflicts);
	if (strncmp(item, DDL, strlen(DDL)) == 0)
		return subscription_settings_parse_ddl(item + strlen(DDL), &settings->ddl);
	if (strncmp(item, UNTIL_LSN, strlen(UNTIL_LSN)) == 0)
		return parse_lsn(item + strlen(UNTIL_LSN), &settings->until_lsn);
	return false;
}

/* Parses a label; returns false, with defaults, if it is invalid. */
static bool
parse_label(const char *label, SubscriptionSettings *settings)
{
	char	   *copy = pstrdup(label);
	char	   *item = copy;

	*settings = defaults;
	while (item != NULL)
	{
		char	   *next = strchr(item, ',');

		if (next)
			*next++ = '\0';
		while (next && *next == ' ')
			next++;
		if (!parse_item(item, settings))
		{
			*settings = defaults;
			return false;
		}
		item = next;
	}
	pfree(copy);
	return true;
}

/* Makes all processes that apply the subscription reread it once this transaction commits. */
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

/* Checks SECURITY LABEL FOR weft, the command with which a dump restores the settings. */
static void
check_label(const ObjectAddress *object, const char *label)
{
	SubscriptionSettings settings;

	if (object->classId == PublicationRelationId)
	{
		publication_settings_check_label(object->objectId, label);
		return;
	}
	if (object->classId != SubscriptionRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("security labels of provider \"%s\" are for publications and subscriptions only",
						LABEL_PROVIDER)));
	if (label != NULL && !parse_label(label, &settings))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid security label \"%s\"", label),
				 errhint("Use \"%s\" and a number from %d to %d, \"%son\", \"%s\" and one of \"off\", \"on\" and \"trust_owner\", or several of these, separated by commas.",
						 NUM_WRITERS, 0, WEFT_MAX_WRITERS, DETECT_CONFLICTS, DDL)));
	invalidate_subscription(object->objectId);
}

/* DROP SUBSCRIPTION leaves security labels behind, and the OID may be used again. */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, classId, objectId, subId, arg);
	if (access == OAT_DROP && classId == SubscriptionRelationId)
		DeleteSharedSecurityLabel(objectId, classId);
}

/* Registers the label provider; called once, while the postmaster loads Weft. */
void
subscription_settings_define(void)
{
	register_label_provider(LABEL_PROVIDER, check_label);
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
}

/* Returns what is stored for a subscription.  Needs a transaction. */
SubscriptionSettings
subscription_settings_get(Oid subid)
{
	SubscriptionSettings result = defaults;
	ObjectAddress object;
	char	   *label;

	ObjectAddressSet(object, SubscriptionRelationId, subid);
	label = GetSecurityLabel(&object, LABEL_PROVIDER);
	if (label)
		(void) parse_label(label, &result);
	return result;
}

/*
 * Stores settings for a subscription.  The caller has checked them, and that the user may
 * change the subscription.
 */
void
subscription_settings_set(Oid subid, SubscriptionSettings settings)
{
	ObjectAddress object;
	StringInfoData label;

	initStringInfo(&label);
	if (settings.num_writers != NUM_WRITERS_DEFAULT)
		appendStringInfo(&label, "%s%d", NUM_WRITERS, settings.num_writers);
	if (settings.detect_conflicts)
		appendStringInfo(&label, "%s%son", label.len > 0 ? ", " : "", DETECT_CONFLICTS);
	if (settings.ddl != defaults.ddl)
		appendStringInfo(&label, "%s%s%s", label.len > 0 ? ", " : "", DDL,
						 ddl_names[settings.ddl]);
	if (settings.until_lsn != NO_END)
		appendStringInfo(&label, "%s%s" compat_lsn_format, label.len > 0 ? ", " : "", UNTIL_LSN,
						 LSN_FORMAT_ARGS(settings.until_lsn));

	ObjectAddressSet(object, SubscriptionRelationId, subid);
	SetSecurityLabel(&object, LABEL_PROVIDER, label.len > 0 ? label.data : NULL);
	invalidate_subscription(subid);
}

/*
 * Throws an error if conflicts of a subscription of this database cannot be detected.  Needs
 * a transaction.
 */
void
subscription_settings_check_detection(const char *subscription)
{
	if (!track_commit_timestamp)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected because \"track_commit_timestamp\" is off",
						subscription),
				 errhint("Set \"track_commit_timestamp\" to \"on\" and restart the server.")));
	if (!OidIsValid(get_extension_oid("weft", true)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected because extension \"weft\" is not installed in its database",
						subscription),
				 errhint("Run CREATE EXTENSION weft.")));
}
