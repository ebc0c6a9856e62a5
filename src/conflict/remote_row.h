/*
 * remote_row.h
 *	  Makes rows from what the publisher has sent.
 */
#ifndef WEFT_REMOTE_ROW_H
#define WEFT_REMOTE_ROW_H

#include "conflict/conflict_types.h"

extern void remote_row_read(Target *target, TupleTableSlot *slot, LogicalRepTupleData *data);
extern bool remote_row_make(Target *target, TupleTableSlot *row, TupleTableSlot *base,
							const Remote *remote);
extern void remote_row_reset_unsent(Target *target, TupleTableSlot *row);
extern bool remote_row_lacks_values(const Remote *remote);

#endif							/* WEFT_REMOTE_ROW_H */
