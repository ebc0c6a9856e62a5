/*
 * extension_version.c
 *	  The version of the extension in a database, next to that of the library.
 *
 * The library of a new version works with the functions and views of an older one, until ALTER EXTENSION weft
 * UPDATE has been executed in each database: subscriptions are applied, and groups replicate.  Joining
 * a group calls functions that are new on both nodes, and has to wait.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_extension.h"
#include "extension_version.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

/* Returns the version of the extension in this database, or NULL without one. */
static char *
version_here(void)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *result = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("weft"));
	scan = systable_beginscan(catalog, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		version = heap_getattr(tuple, Anum_pg_extension_extversion,
										   RelationGetDescr(catalog), &isnull);

		if (!isnull)
			result = TextDatumGetCString(version);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

static bool
differs(const char *version)
{
	return version != NULL && strcmp(version, WEFT_VERSION) != 0;
}

static int
hint(void)
{
	return errhint("Execute ALTER EXTENSION weft UPDATE; or, if the server has loaded an older version than is installed, restart it.");
}

/* Logs it if the versions differ; outside of a transaction. */
void
extension_version_report(void)
{
	char	   *version;

	StartTransactionCommand();
	version = version_here();
	if (differs(version))
		ereport(LOG,
				(errmsg("extension \"weft\" has version %s in this database, and the server has loaded version %s",
						version, WEFT_VERSION),
				 hint()));
	CommitTransactionCommand();
}

/* Fails if the versions differ. */
void
extension_version_require(void)
{
	char	   *version = version_here();

	if (differs(version))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"weft\" has version %s, and the server has loaded version %s",
						version, WEFT_VERSION),
				 hint()));
}
