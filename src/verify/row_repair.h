/*
 * row_repair.h
 *	  Makes local rows equal to the publisher's.
 */
#ifndef WEFT_VERIFY_ROW_REPAIR_H
#define WEFT_VERIFY_ROW_REPAIR_H

#include "verify/repair_item.h"

extern void row_repair_all(RowTable *table, List *items);

#endif							/* WEFT_VERIFY_ROW_REPAIR_H */
