/*
 * version.h
 *	  When and where something was written, and which of two versions is newer.
 */
#ifndef WEFT_VERSION_H
#define WEFT_VERSION_H

#include "conflict/conflict_types.h"
#include "nodes/pg_list.h"

extern RowVersion version_of_xid(TransactionId xid);
extern bool version_is_forgotten(TransactionId xid);
extern bool version_newer(const RowVersion *version, const RowVersion *than);
extern bool version_wins(const RowVersion *remote, const RowVersion *local);
extern bool version_differs(const RowVersion *local);
extern RowVersion version_newest(List *rows);
extern TransactionId version_xmin(TupleTableSlot *row);
extern bool conflict_origin_differs(TupleTableSlot *row);

#endif							/* WEFT_VERSION_H */
