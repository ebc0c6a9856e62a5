/*
 * conflict_apply.h
 *	  Applies a row change of a subscription that detects conflicts.
 */
#ifndef WEFT_CONFLICT_APPLY_H
#define WEFT_CONFLICT_APPLY_H

#include "row_change.h"

extern bool conflict_apply(const RowChange *change, bool final);

#endif							/* WEFT_CONFLICT_APPLY_H */
