/*
 * unit.c
 *	  Runs unit tests, each in a subtransaction and a memory context of its own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "unit.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(weft_test);

static const Unit *const units[] = {
	&broadcast_unit,
	&dependency_unit,
	&key_prefix_unit,
	&lookup_unit,
	&order_unit,
	&pace_unit,
	&relations_unit,
	&ring_unit,
	&spool_unit,
	&spool_transactions_unit,
	&transaction_unit,
	&tuning_trial_unit,
	&tuning_unit,
	&wire_unit,
};

/* The same numbers in every run: a failure can be repeated. */
static pg_prng_state random_state;

static const char *
base_name(const char *file)
{
	const char *slash = strrchr(file, '/');

	return slash ? slash + 1 : file;
}

void
check_failed(const char *file, int line, const char *condition)
{
	elog(ERROR, "%s, line %d: not so: %s", base_name(file), line, condition);
}

void
check_equal(const char *file, int line, const char *what, int64 actual, int64 expected)
{
	if (actual != expected)
		elog(ERROR, "%s, line %d: %s is " INT64_FORMAT ", not " INT64_FORMAT,
			 base_name(file), line, what, actual, expected);
}

void
check_text(const char *file, int line, const char *what,
		   const char *actual, const char *expected)
{
	if (strcmp(actual ? actual : "NULL", expected ? expected : "NULL") != 0)
		elog(ERROR, "%s, line %d: %s is \"%s\", not \"%s\"", base_name(file), line, what,
			 actual ? actual : "NULL", expected ? expected : "NULL");
}

/* Makes a ring in this process's own memory, and the leader's end of it. */
Ring *
unit_ring(RingProducer *producer, uint64 bytes, int writers)
{
	Ring	   *ring = MemoryContextAllocExtended(CurrentMemoryContext, ring_shmem_size(bytes),
												  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);

	ring_init(ring, bytes, writers);
	memset(producer, 0, sizeof(RingProducer));
	producer->ring = ring;
	return ring;
}

/* A number from 0 to limit - 1. */
int
unit_random(int limit)
{
	return (int) pg_prng_uint64_range(&random_state, 0, limit - 1);
}

/* Returns "ok", or the message of the error that has ended the test. */
static char *
run_test(const UnitTest *test)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext context = AllocSetContextCreate(caller, "weft unit test",
												  ALLOCSET_DEFAULT_SIZES);
	char	   *result = "ok";

	pg_prng_seed(&random_state, 20261122);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		test->run();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		result = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	MemoryContextDelete(context);
	return result;
}

static const Unit *
find_unit(const char *name)
{
	for (int i = 0; i < lengthof(units); i++)
		if (strcmp(units[i]->name, name) == 0)
			return units[i];
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("unit \"%s\" does not exist", name)));
}

Datum
weft_test(PG_FUNCTION_ARGS)
{
	const Unit *unit = find_unit(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (const UnitTest *test = unit->tests; test->name != NULL; test++)
	{
		Datum		values[2] = {CStringGetTextDatum(test->name),
		CStringGetTextDatum(run_test(test))};
		bool		nulls[2] = {false, false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
