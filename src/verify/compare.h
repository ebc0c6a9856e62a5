/*
 * compare.h
 *	  Compares tables with those of a publisher; the common part of the procedures that do.
 */
#ifndef WEFT_VERIFY_COMPARE_H
#define WEFT_VERIFY_COMPARE_H

#include "fmgr.h"
#include "verify/compare_cut.h"

/*
 * In this order, each once.  The procedure sets "comparison", "subscription" and "memory" before
 * compare_start(), which commits, as compare_cuts_run() does in between; compare_report() needs
 * a transaction.
 */
extern void compare_require_own_transaction(FunctionCallInfo fcinfo, const char *procedure);
extern void compare_get_arguments(FunctionCallInfo fcinfo, const char *first,
								  Comparison *comparison);
extern void compare_start(CompareState *state, int64 resume);
extern void compare_report(CompareState *state);
extern void compare_run(CompareState *state, int64 resume);
extern void compare_clean_up(CompareState *state);
extern Datum compare_make_result(FunctionCallInfo fcinfo, int64 id);

#endif							/* WEFT_VERIFY_COMPARE_H */
