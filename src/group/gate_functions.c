/*
 * gate_functions.c
 *	  SQL functions about gates, for sql/18-ddl-lock.sql.
 */
#include "postgres.h"

#include "applied_position.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "gate_shared.h"
#include "group/gate_worker.h"
#include "miscadmin.h"
#include "result_rows.h"
#include "shmem.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(weft_ddl_gate_open);
PG_FUNCTION_INFO_V1(weft_ddl_gate_closed);
PG_FUNCTION_INFO_V1(weft_ddl_gate_confirm);
PG_FUNCTION_INFO_V1(weft_ddl_gate_is_open);
PG_FUNCTION_INFO_V1(weft_ddl_gate_any);
PG_FUNCTION_INFO_V1(weft_ddl_gates);
PG_FUNCTION_INFO_V1(weft_applied_position);

/* of weft.ddl_gates */
#define COLUMNS 6

/* weft.ddl_gate_open(lock bigint, requester name, request integer, tables oid[], timeout integer) returns boolean */
Datum
weft_ddl_gate_open(PG_FUNCTION_ARGS)
{
	int64		lock = PG_GETARG_INT64(0);
	Datum	   *values;
	bool	   *nulls;
	int			count;
	List	   *tables = NIL;
	GateTurn	turn;

	shmem_require();
	deconstruct_array_builtin(PG_GETARG_ARRAYTYPE_P(3), OIDOID, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
		if (!nulls[i])
			tables = list_append_unique_oid(tables, DatumGetObjectId(values[i]));
	if (lock == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a lock must not be zero")));
	turn = gate_open(lock, NameStr(*PG_GETARG_NAME(1)), PG_GETARG_INT32(2), tables,
					 PG_GETARG_INT32(4));
	if (turn == GATE_NOW)
	{
		PG_TRY();
		{
			gate_worker_start(lock);
		}
		PG_CATCH();
		{
			gate_remove(lock);
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	PG_RETURN_BOOL(turn != GATE_NOT_YET);
}

/* weft.ddl_gate_closed(lock bigint, timeout integer) returns bigint; NULL: not yet */
Datum
weft_ddl_gate_closed(PG_FUNCTION_ARGS)
{
	uint32		round;

	shmem_require();
	if (!gate_wait_closed(PG_GETARG_INT64(0), PG_GETARG_INT32(1), &round))
		PG_RETURN_NULL();
	PG_RETURN_INT64(round);
}

/* weft.ddl_gate_confirm(lock bigint, round bigint, local_node name) returns boolean */
Datum
weft_ddl_gate_confirm(PG_FUNCTION_ARGS)
{
	shmem_require();
	PG_RETURN_BOOL(gate_confirm(PG_GETARG_INT64(0), PG_GETARG_INT64(1),
								NameStr(*PG_GETARG_NAME(2))));
}

/* weft.ddl_gate_is_open(lock bigint) returns boolean */
Datum
weft_ddl_gate_is_open(PG_FUNCTION_ARGS)
{
	shmem_require();
	PG_RETURN_BOOL(gate_is_open(PG_GETARG_INT64(0)));
}

/* weft.ddl_gate_any() returns boolean */
Datum
weft_ddl_gate_any(PG_FUNCTION_ARGS)
{
	shmem_require();
	PG_RETURN_BOOL(gate_any());
}

static const char *
state_name(const GateStatus *status)
{
	bool		given = false;

	if (status->state == GATE_WAITING)
		return "waiting";
	if (status->state == GATE_ENDING)
		return "ending";
	for (int i = 0; i < status->num_tables; i++)
	{
		if (status->tables[i].state == TABLE_WANTED ||
			status->tables[i].state == TABLE_WITHDRAWN)
			return "closing";
		given = given || (status->tables[i].state == TABLE_GIVEN &&
						  (status->taken || !status->tables[i].own));
	}
	return given ? "executing" : status->confirmed ? "confirmed" : "closed";
}

/* weft.ddl_gates(), one row for each gate of this database */
Datum
weft_ddl_gates(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	shmem_require();
	result_rows_begin(fcinfo, COLUMNS);
	foreach_ptr(GateStatus, status, gate_list())
	{
		Datum	   *tables = palloc(Max(status->num_tables, 1) * sizeof(Datum));
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {false};

		for (int i = 0; i < status->num_tables; i++)
			tables[i] = ObjectIdGetDatum(status->tables[i].relid);
		values[0] = Int64GetDatum(status->lock);
		values[1] = NameGetDatum(&status->requester);
		values[2] = PointerGetDatum(construct_array_builtin(tables, status->num_tables, OIDOID));
		values[3] = CStringGetTextDatum(state_name(status));
		values[4] = TimestampTzGetDatum(status->since);
		values[5] = Int32GetDatum(status->worker_pid);
		nulls[5] = status->worker_pid == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* weft.applied_position(subscription oid) returns pg_lsn */
Datum
weft_applied_position(PG_FUNCTION_ARGS)
{
	shmem_require();
	PG_RETURN_LSN(applied_position(PG_GETARG_OID(0)));
}
