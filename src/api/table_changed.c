/*
 * table_changed.c
 *	  The trigger that tells all processes that a table of schema weft has changed.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/inval.h"

PG_FUNCTION_INFO_V1(weft_table_changed);

/*
 * weft.table_changed()
 *
 * A statement trigger on tables that processes cache (conflict/settings.c,
 * group/snowflake.c): makes every process read them again.
 */
Datum
weft_table_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" must be called as a trigger", "weft.table_changed")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}
