/*
 * version_record.h
 *	  Versions that are stored by key: the rows of weft.tombstone and weft.merged_row.
 */
#ifndef WEFT_VERSION_RECORD_H
#define WEFT_VERSION_RECORD_H

#include "access/genam.h"
#include "conflict/conflict_types.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

extern SysScanDesc version_record_scan(Relation rel, Oid index, Oid relid, pg_uuid_t *hash,
									   TransactionId xid, Snapshot snapshot);
extern RowVersion version_record_read(Relation rel, HeapTuple tuple);
extern void version_record_complete(Relation rel, HeapTuple tuple, const RowVersion *version);
extern void version_record_write(Oid table, Relation rel, pg_uuid_t hash,
								 const RowVersion *version, TransactionId xid);

#endif							/* WEFT_VERSION_RECORD_H */
