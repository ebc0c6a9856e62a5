/*
 * sync_sequences.c
 *	  weft.sync_sequences().
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "result_rows.h"
#include "shmem.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
#include "verify/publisher.h"
#include "verify/sequences.h"

PG_FUNCTION_INFO_V1(weft_sync_sequences);

#define SYNC_SEQUENCES_COLUMNS 5

static void
put_state(ReturnSetInfo *info, const SequenceState *state)
{
	Datum		values[SYNC_SEQUENCES_COLUMNS];
	bool		nulls[SYNC_SEQUENCES_COLUMNS];

	values[0] = ObjectIdGetDatum(state->relid);
	nulls[0] = !OidIsValid(state->relid);
	values[1] = Int64GetDatum(state->publisher_value);
	nulls[1] = !state->has_publisher_value;
	values[2] = Int64GetDatum(state->before);
	values[3] = Int64GetDatum(state->after);
	nulls[2] = nulls[3] = !state->has_value;
	values[4] = state->problem ? CStringGetTextDatum(state->problem) : (Datum) 0;
	nulls[4] = state->problem == NULL;
	tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
}

/*
 * weft.sync_sequences(subscription name, margin bigint)
 *
 * See sql/10-verify.sql.  Fails if the caller does not own the subscription, if the publisher
 * cannot be reached, or if the margin is negative.
 */
Datum
weft_sync_sequences(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		margin = PG_GETARG_INT64(1);
	Subscription *subscription;
	WalReceiverConn *conn;
	ListCell   *lc;

	shmem_require();
	if (margin < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("margin must not be negative")));
	subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	result_rows_begin(fcinfo, SYNC_SEQUENCES_COLUMNS);
	conn = publisher_connect(subscription);
	PG_TRY();
	{
		List	   *states = sequences_sync(subscription, conn, margin, true, NULL);

		foreach(lc, states)
			put_state(info, lfirst(lc));
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return (Datum) 0;
}
