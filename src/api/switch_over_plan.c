/*
 * switch_over_plan.c
 *	  weft.switch_over_plan().
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "result_rows.h"
#include "shmem.h"
#include "switch/plan.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
#include "verify/publisher.h"

PG_FUNCTION_INFO_V1(weft_switch_over_plan);

#define SWITCH_OVER_PLAN_COLUMNS 5

static const char *const severities[] = {
	[PLAN_OK] = "ok",
	[PLAN_WARNING] = "warning",
	[PLAN_ERROR] = "error",
};

static void
put_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL;
	values[column] = text ? CStringGetTextDatum(text) : (Datum) 0;
}

static void
put_finding(ReturnSetInfo *info, const PlanFinding *finding)
{
	Datum		values[SWITCH_OVER_PLAN_COLUMNS];
	bool		nulls[SWITCH_OVER_PLAN_COLUMNS];

	put_text(values, nulls, 0, finding->check);
	put_text(values, nulls, 1, finding->object);
	put_text(values, nulls, 2, severities[finding->severity]);
	put_text(values, nulls, 3, finding->problem);
	put_text(values, nulls, 4, finding->remedy);
	tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
}

/*
 * weft.switch_over_plan(subscription name, reverse boolean, publisher_connection text)
 *
 * See sql/11-switch.sql.  Fails if the caller does not own the subscription, or if the
 * publisher cannot be reached.
 */
Datum
weft_switch_over_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	Subscription *subscription;
	WalReceiverConn *conn;
	ListCell   *lc;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("subscription and reverse must not be null")));
	shmem_require();
	subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	result_rows_begin(fcinfo, SWITCH_OVER_PLAN_COLUMNS);
	conn = PG_ARGISNULL(2) ? publisher_connect(subscription) :
		publisher_connect_by(subscription, text_to_cstring(PG_GETARG_TEXT_PP(2)));
	PG_TRY();
	{
		foreach(lc, plan_check(subscription, conn, PG_GETARG_BOOL(1)))
			put_finding(info, lfirst(lc));
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return (Datum) 0;
}
