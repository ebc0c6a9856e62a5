/*
 * member_version.h
 *	  Versions of rows and deletes on another member of a group.
 *
 * As text, a version is the commit time in microseconds since 2000, a space, and the id of the
 * node that committed.  An unknown version is null.
 */
#ifndef WEFT_VERIFY_MEMBER_VERSION_H
#define WEFT_VERIFY_MEMBER_VERSION_H

#include "conflict/conflict_types.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"
#include "utils/uuid.h"

extern RowVersion member_version_parse(const char *text);
extern char *member_version_show(const RowVersion *version);
extern List *member_version_deletes(WalReceiverConn *conn, const char *table, List *hashes);

#endif							/* WEFT_VERIFY_MEMBER_VERSION_H */
