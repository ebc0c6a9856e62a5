/*
 * table_version.h
 *	  Whether tables were altered, truncated or dropped since a snapshot was taken.
 */
#ifndef WEFT_VERIFY_TABLE_VERSION_H
#define WEFT_VERIFY_TABLE_VERSION_H

#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

/* What a table is made of, as text that is only good for being compared. */
typedef struct TableVersion
{
	Oid			relid;
	const char *text;
} TableVersion;

extern List *table_versions_local(Oid subid, const List *relids);
extern List *table_versions_publisher(WalReceiverConn *conn, const List *relids);
extern const char *table_version_find(const List *versions, Oid relid);
extern bool table_version_equal(const List *old, const List *new, Oid relid);
extern bool table_locks_wanted_local(const List *relids);
extern bool table_locks_wanted_publisher(WalReceiverConn *conn, const List *relids);

#endif							/* WEFT_VERIFY_TABLE_VERSION_H */
