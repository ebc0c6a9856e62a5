/*
 * row_repair.h
 *	  Makes local rows equal to the publisher's.
 */
#ifndef WEFT_VERIFY_ROW_REPAIR_H
#define WEFT_VERIFY_ROW_REPAIR_H

#include "verify/repair_item.h"

/* What is done in a subtransaction. */
typedef void (*RowWork) (RowTable *table, void *arg);

extern ErrorData *row_repair_attempt(RowTable *table, RowWork work, void *arg);
extern void row_repair_failed(RepairItem *item, const ErrorData *error);
extern void row_repair_all(RowTable *table, List *items);

#endif							/* WEFT_VERIFY_ROW_REPAIR_H */
