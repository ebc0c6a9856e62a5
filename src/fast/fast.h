/*
 * fast.h
 *	  The fast path: rows of ordinary tables, straight through the table's access method.
 *
 * This is what a writer calls; besides, order.c calls coalesce.h and look_ahead.c
 * prefetch.h.  All other headers of this folder are its own.
 */
#ifndef WEFT_FAST_H
#define WEFT_FAST_H

#include "fast/fast_context.h"
#include "row_change.h"

/*
 * What may be done with a change whose turn it is while earlier ones are deferred.
 */
typedef enum FastOrder
{
	FAST_ORDER_STRICT,			/* nothing: they come first */
	FAST_ORDER_OF_TABLE,		/* it may be applied, if none is of its table */
	FAST_ORDER_OF_ROW,			/* the same, if none is of its row; it may be
								 * deferred itself */
} FastOrder;

extern void fast_init(const FastContext *context);
extern void fast_relation_changed(LogicalRepRelId relid);

extern void fast_begin(void);
extern bool fast_apply(const RowChange *change, bool final);
extern FastOrder fast_order(const RowChange *change);
extern Oid	fast_local_table(LogicalRepRelId relid);
extern void fast_store_all(void);
extern void fast_make_way(LogicalRepRelId relid);
extern void fast_renew_snapshot(void);
extern void fast_close(void);
extern bool fast_in_progress(void);
extern void fast_after_subabort(void);
extern LogicalRepRelId fast_after_abort(void);

extern void fast_count_general(const RowChange *change, XLogRecPtr final_lsn);
extern bool fast_report(bool force);

#endif							/* WEFT_FAST_H */
