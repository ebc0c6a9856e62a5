/*
 * server_copy.c
 *	  Physical copies of a member of a node group.
 *
 * A base backup or a standby of member S that is promoted takes itself for S: it has S's name, identity and
 * subscriptions.  If its leaders used S's slots, S would lose changes.  If the copy replaces S, which is gone, they
 * must; if the copy is to become another node, they must not (sql/15-physical-copy.sql).  Therefore S notes, before the
 * copy is complete, that the next copy is to become node J.  What says whether a server with this note is S itself is
 * not copied:
 *
 *	 - S has a slot for J, which was made before the note.  A base backup and a standby do not have it.
 *	 - S writes the timeline of the note.  A promoted copy writes another one, even if all files were copied,
 *	   with their slots.
 *
 * The note does not count any more once J is no longer joining.  If S is lost meanwhile and a standby replaces it, J
 * must be parted first.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/timeline.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "node_identity.h"
#include "replication/slot.h"
#include "server_copy.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/uuid.h"

/* Columns of weft.prepared_copy and weft.node_entry. */
#define COPY_NODE 1
#define COPY_IDENTITY 2
#define COPY_TIMELINE 3
#define COPY_SLOT 4
#define NODE_STATE 3
#define NODE_IS_LOCAL 4
#define NODE_IDENTITY 5

PG_FUNCTION_INFO_V1(weft_server_timeline);
PG_FUNCTION_INFO_V1(weft_timeline_end);

static Datum
value_of(Relation rel, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;

	return heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
}

/* Is another node with this identity joining? */
static bool
is_joining(pg_uuid_t *identity)
{
	Relation	rel = node_identity_table("node_entry");
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	if (rel == NULL)
		return false;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		char	   *state = TextDatumGetCString(value_of(rel, tuple, NODE_STATE));

		if (!DatumGetBool(value_of(rel, tuple, NODE_IS_LOCAL)) && strcmp(state, "joining") == 0 &&
			memcmp(DatumGetUUIDP(value_of(rel, tuple, NODE_IDENTITY)), identity, UUID_LEN) == 0)
			result = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * If this server is a copy that is to become another node, returns the name of that node, else
 * NULL.  Needs a transaction.
 */
char *
server_copy_next_node(void)
{
	Relation	rel = node_identity_table("prepared_copy");
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *result = NULL;

	/* An older version of the extension has no such table. */
	if (rel == NULL)
		return NULL;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		is_source =
			DatumGetInt32(value_of(rel, tuple, COPY_TIMELINE)) == (int32) GetWALInsertionTimeLine() &&
			SearchNamedReplicationSlot(NameStr(*DatumGetName(value_of(rel, tuple, COPY_SLOT))), true) != NULL;

		if (!is_source && is_joining(DatumGetUUIDP(value_of(rel, tuple, COPY_IDENTITY))))
			result = pstrdup(NameStr(*DatumGetName(value_of(rel, tuple, COPY_NODE))));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

static TimeLineID
current_timeline(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("A standby does not write a timeline.")));
	return GetWALInsertionTimeLine();
}

/* weft.server_timeline() returns integer */
Datum
weft_server_timeline(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) current_timeline());
}

/*
 * weft.timeline_end(timeline integer) returns pg_lsn
 *
 * Everything that this server has of an earlier timeline is before that position; its own WAL
 * begins there.  Null if the timeline is the current one, or not in this server's history.
 */
Datum
weft_timeline_end(PG_FUNCTION_ARGS)
{
	TimeLineID	timeline = (TimeLineID) PG_GETARG_INT32(0);
	ListCell   *cell;

	foreach(cell, readTimeLineHistory(current_timeline()))
	{
		TimeLineHistoryEntry *entry = lfirst(cell);

		if (entry->tli == timeline && !XLogRecPtrIsInvalid(entry->end))
			PG_RETURN_LSN(entry->end);
	}
	PG_RETURN_NULL();
}
