/*
 * cut_probe.c
 *	  weft_test_cut(): makes a cut, and shows what both sides are there.
 *
 * This is for TAP tests.  It is a requester like any other: only its copy of the modules is
 * its own, and shmem_startup() attaches that to the shared root of the server.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "shmem.h"
#include "last_error.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "verify/cut.h"
#include "verify/publisher.h"

PG_FUNCTION_INFO_V1(weft_test_cut);
PG_FUNCTION_INFO_V1(weft_test_cut_write);

static void
attach(void)
{
	static bool attached = false;

	if (attached)
		return;
	shmem_startup();
	last_error_startup();
	attached = true;
}

/* Returns the first column of the first row of a query here. */
static Datum
ask_here(const char *query, bool read_only, bool *isnull)
{
	char	   *value;
	char	   *copy;

	*isnull = true;
	if (SPI_execute(query, read_only, 0) < 0)
		elog(ERROR, "could not execute \"%s\"", query);
	if (SPI_tuptable == NULL || SPI_processed == 0)
		return (Datum) 0;
	value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (value == NULL)
		return (Datum) 0;
	*isnull = false;
	copy = SPI_palloc(strlen(value) + VARHDRSZ);
	SET_VARSIZE(copy, strlen(value) + VARHDRSZ);
	memcpy(VARDATA(copy), value, strlen(value));
	return PointerGetDatum(copy);
}

static CutOptions
options_of(FunctionCallInfo fcinfo, int timeout, int stand)
{
	CutOptions	options = {0};

	options.timeout = PG_GETARG_INT32(timeout);
	options.stand = PG_GETARG_INT32(stand);
	return options;
}

/*
 * weft_test_cut(subscription name, query text, timeout int, stand int, standing bool,
 *	OUT here text, OUT there text, OUT held bool, OUT attempts int)
 *
 * Runs the query on both sides; "standing": here while the leader stands.
 */
Datum
weft_test_cut(PG_FUNCTION_ARGS)
{
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(1));
	CutOptions	options = options_of(fcinfo, 2, 3);
	Subscription *subscription;
	WalReceiverConn *conn;
	TupleDesc	desc;
	Cut		   *cut;
	Datum		values[4];
	bool		nulls[4] = {0};
	RemoteValue *row;
	bool		standing = PG_GETARG_BOOL(4);

	attach();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "not called for a row");
	subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	cut = cut_begin(subscription, &options);
	PushActiveSnapshot(GetLatestSnapshot());
	if (!standing)
		values[2] = BoolGetDatum(cut_release(cut));
	SPI_connect();
	values[0] = ask_here(query, true, &nulls[0]);
	SPI_finish();
	if (standing)
		values[2] = BoolGetDatum(cut_release(cut));
	PopActiveSnapshot();

	conn = publisher_connect(subscription);
	publisher_import(conn, subscription, cut_snapshot(cut));
	row = remote_query_row(conn, "ask the publisher", query, 1);
	nulls[1] = row[0] == NULL;
	values[1] = nulls[1] ? (Datum) 0 : CStringGetTextDatum(row[0]);
	walrcv_disconnect(conn);
	values[3] = Int32GetDatum(cut_attempts(cut));
	cut_end(cut);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * weft_test_cut_write(subscription name, command text, timeout int, stand int) returns bool
 *
 * Runs the command at a cut, and pins the cut until the end of the transaction; returns
 * false if apply has gone on.
 */
Datum
weft_test_cut_write(PG_FUNCTION_ARGS)
{
	CutOptions	options = options_of(fcinfo, 2, 3);
	Cut		   *cut;
	bool		isnull;

	attach();
	cut = cut_begin(publisher_subscription(NameStr(*PG_GETARG_NAME(0))), &options);
	SPI_connect();
	(void) ask_here(text_to_cstring(PG_GETARG_TEXT_PP(1)), false, &isnull);
	SPI_finish();
	PG_RETURN_BOOL(cut_pin(cut));
}
