/*
 * result_rows.h
 *	  The rows that a function of the extension returns.
 */
#ifndef WEFT_RESULT_ROWS_H
#define WEFT_RESULT_ROWS_H

#include "fmgr.h"

extern void result_rows_begin(FunctionCallInfo fcinfo, int num_columns);

#endif							/* WEFT_RESULT_ROWS_H */
