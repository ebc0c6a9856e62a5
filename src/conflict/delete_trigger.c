/*
 * delete_trigger.c
 *	  The trigger by which a table remembers what sessions delete (weft.track_deletes).
 *
 * It does not fire in writers, which are replicas to triggers and leave tombstones and
 * claims themselves.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "conflict/claim.h"
#include "conflict/cleanup.h"
#include "conflict/deleted_counter.h"
#include "conflict/row_key.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(weft_record_delete);

static TupleTableSlot *
slot_of(Relation rel, HeapTuple tuple)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	return ExecStoreHeapTuple(tuple, row, false);
}

/* Records that a session has deleted a row, or updated it if "new" is not NULL. */
static void
record(Relation rel, Oid index, TupleTableSlot *old, TupleTableSlot *new)
{
	pg_uuid_t	hash = row_key_hash(rel, index, old);
	pg_uuid_t	new_hash = {0};

	if (new)
		new_hash = row_key_hash(rel, index, new);
	if (new == NULL || memcmp(&hash, &new_hash, sizeof(hash)) != 0)
	{
		tombstone_write_hash(rel, hash, NULL);
		deleted_counter_keep(rel, index, settings_delta_columns(rel), old);
	}
	claim_release_tuple(rel, index, old, new);
}

/*
 * weft.record_delete()
 *
 * A row trigger: remembers the old row's key and unique values, unless the new row has
 * them.  Fails if it is not called as an AFTER DELETE OR UPDATE row trigger.  Does nothing
 * for a table without a key.
 */
Datum
weft_record_delete(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Relation	rel;
	Oid			index;
	TupleTableSlot *old;
	TupleTableSlot *new = NULL;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(data->tg_event) ||
		!TRIGGER_FIRED_AFTER(data->tg_event) || TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" must be fired by an AFTER DELETE OR UPDATE row trigger",
						"weft.record_delete")));

	rel = data->tg_relation;
	index = GetRelationIdentityOrPK(rel);
	if (!OidIsValid(index))
		return PointerGetDatum(NULL);
	old = slot_of(rel, data->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		new = slot_of(rel, data->tg_newtuple);
	record(rel, index, old, new);
	ExecDropSingleTupleTableSlot(old);
	if (new)
		ExecDropSingleTupleTableSlot(new);
	cleanup_sometimes();
	return PointerGetDatum(NULL);
}
