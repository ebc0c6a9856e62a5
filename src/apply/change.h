/*
 * change.h
 *	  Routes one change of a transaction to whoever can apply it.
 */
#ifndef WEFT_CHANGE_H
#define WEFT_CHANGE_H

#include "row_change.h"

extern void change_apply(const RowChange *change);
extern void change_rest(void);

#endif							/* WEFT_CHANGE_H */
