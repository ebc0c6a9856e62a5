/*
 * switch_functions.c
 *	  What the procedures that switch over need of C.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "shmem.h"
#include "switch/switch_over.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(weft_switch_begin);
PG_FUNCTION_INFO_V1(weft_switch_step);

/* Milliseconds in an interval that must be positive, and no longer than about 20 days. */
static int
positive_milliseconds(Interval *interval, const char *name)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;
	int64		result = days * SECS_PER_DAY * 1000 + interval->time / 1000;

	if (result <= 0 || result > PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be positive and at most 20 days", name)));
	return (int) result;
}

static SwitchCommand
command_by_name(const char *name)
{
	if (strcmp(name, "over") == 0)
		return SWITCH_OVER;
	return strcmp(name, "back") == 0 ? SWITCH_BACK : SWITCH_CANCEL;
}

static void
check_verify(const char *verify, SwitchCommand command)
{
	if (strcmp(verify, "recent") == 0 && command == SWITCH_BACK)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("verify => '%s' is not supported for the way back", verify),
				 errdetail("Rows cannot be compared under load there, because the other server applies them."),
				 errhint("Use \"full\" or \"counts\".")));
	if (strcmp(verify, "none") == 0 || strcmp(verify, "counts") == 0 ||
		strcmp(verify, "recent") == 0 || strcmp(verify, "full") == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for \"verify\": \"%s\"", verify),
			 errhint("Use \"none\", \"counts\", \"recent\" or \"full\".")));
}

/*
 * weft.switch_begin(subscription name, direction text, reverse_connection text,
 *					 publisher_connection text, verify text, timeout interval,
 *					 max_pause interval, lock_timeout interval, sequence_margin bigint)
 *
 * See switch_over_begin().  The connection strings may be NULL, the others may not.
 */
Datum
weft_switch_begin(PG_FUNCTION_ARGS)
{
	SwitchOptions options = {0};
	SwitchCommand command;

	shmem_require();
	if (IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("a switch-over cannot run inside a transaction block"),
				 errhint("It commits after each of its steps.  Call it outside of BEGIN and COMMIT, and alone.")));
	for (int i = 0; i < PG_NARGS(); i++)
		if (PG_ARGISNULL(i) && i != 2 && i != 3)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("only connection strings may be null")));
	if (!PG_ARGISNULL(2))
		options.reverse = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (!PG_ARGISNULL(3))
		options.connection = text_to_cstring(PG_GETARG_TEXT_PP(3));
	options.verify = text_to_cstring(PG_GETARG_TEXT_PP(4));
	command = command_by_name(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	check_verify(options.verify, command);
	options.max_pause = positive_milliseconds(PG_GETARG_INTERVAL_P(6), "max_pause");
	options.lock_timeout = positive_milliseconds(PG_GETARG_INTERVAL_P(7), "lock_timeout");
	options.margin = PG_GETARG_INT64(8);
	if (options.margin < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"sequence_margin\" must not be negative")));
	switch_over_begin(NameStr(*PG_GETARG_NAME(0)), command, &options,
					  positive_milliseconds(PG_GETARG_INTERVAL_P(5), "timeout"));
	PG_RETURN_VOID();
}

/*
 * weft.switch_step() returns boolean
 *
 * See switch_over_step().
 */
Datum
weft_switch_step(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(switch_over_step());
}
