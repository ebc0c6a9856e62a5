/*
 * compare.c
 *	  weft.compare_subscription(): compares a subscription's tables with the publisher's.
 */
#include "postgres.h"

#include "fmgr.h"
#include "nodes/parsenodes.h"

PG_FUNCTION_INFO_V1(weft_compare_subscription);

Datum
weft_compare_subscription(PG_FUNCTION_ARGS)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("comparing is not supported yet")));
}
