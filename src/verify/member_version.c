/*
 * member_version.c
 *	  Versions of rows and deletes on another member of a group.
 *
 * The other member tells them as its conflict detection sees them (conflict/version.c), with
 * the ids of nodes, which are the same on all members.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "compat.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/version.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "remote_query.h"
#include "replication/origin.h"
#include "row_time.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/member_version.h"

PG_FUNCTION_INFO_V1(weft_member_row_version);
PG_FUNCTION_INFO_V1(weft_member_delete_version);

static Datum
return_version(FunctionCallInfo fcinfo, const RowVersion *version)
{
	if (!version->known)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(psprintf(INT64_FORMAT " %d", version->time, version->node)));
}

/* Returns the version of a row; transactions that share a commit are told apart. */
static RowVersion
read_version(Relation rel, TupleTableSlot *row)
{
	TransactionId xid = version_xmin(row);
	RowVersion	result = version_of_xid(xid);

	if (result.known && !result.own && result.origin != InvalidRepOriginId)
		(void) row_time_find(rel, row, xid, GetActiveSnapshot(), &result.time);
	return result;
}

/*
 * weft.member_row_version(relation oid, row_id tid) returns text
 *
 * Returns the version of the row at a place in a table (its ctid).  Merged counters do not count.
 */
Datum
weft_member_row_version(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	TupleTableSlot *row = table_slot_create(rel, NULL);
	RowVersion	version = {0};

	if (row_time_fetch(rel, PG_GETARG_ITEMPOINTER(1), row))
		version = read_version(rel, row);
	ExecDropSingleTupleTableSlot(row);
	table_close(rel, AccessShareLock);
	return return_version(fcinfo, &version);
}

/*
 * weft.member_delete_version(relation regclass, row_key uuid) returns text
 *
 * Returns the version of the newest delete of a row, whose key is given as a hash.
 */
Datum
weft_member_delete_version(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	RowVersion	version = {0};

	(void) tombstone_find_hash(rel, PG_GETARG_UUID_P(1), false, &version);
	table_close(rel, AccessShareLock);
	return return_version(fcinfo, &version);
}

/* Returns the version that a text stands for; NULL stands for an unknown one. */
RowVersion
member_version_parse(const char *text)
{
	RowVersion	result = {.origin = UNKNOWN_ORIGIN};
	char	   *end;

	if (text == NULL)
		return result;
	result.time = strtoll(text, &end, 10);
	if (end == text ||*end != ' ')
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid version of a row")));
	result.node = pg_strtoint32(end + 1);
	result.known = true;
	return result;
}

/* Returns a version for people, in the current memory context. */
char *
member_version_show(const RowVersion *version)
{
	char	   *name;

	if (!version->known)
		return "an unknown time";
	name = pstrdup(timestamptz_to_str(version->time));
	return psprintf("%s by node %d", name, version->node);
}

/*
 * Returns the version of the newest delete for each hash of a key (pg_uuid_t), as text or
 * NULL, in the transaction that the connection is in.  "table" is the quoted name.
 */
List *
member_version_deletes(WalReceiverConn *conn, const char *table, List *hashes)
{
	char	   *purpose = psprintf("read deletes of table %s from the other node", table);
	StringInfoData query;
	RemoteAnswer answer;
	List	   *result = NIL;

	initStringInfo(&query);
	appendStringInfo(&query, "SELECT weft.member_delete_version(%s::pg_catalog.regclass, h.key)"
					 " FROM pg_catalog.unnest('{", quote_literal_cstr(table));
	foreach_ptr(pg_uuid_t, hash, hashes)
		appendStringInfo(&query, "%s%s", foreach_current_index(hash) > 0 ? "," : "",
						 DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(hash))));
	appendStringInfoString(&query, "}'::pg_catalog.uuid[]) WITH ORDINALITY h (key, place)"
						   " ORDER BY h.place");
	answer = remote_query(conn, purpose, query.data, WALRCV_OK_TUPLES, 1);
	if (answer.problem != NULL || list_length(answer.rows) != list_length(hashes))
		ereport(ERROR,
				(errcode(answer.sqlstate != 0 ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not %s: %s", purpose,
						answer.problem ? answer.problem : "unexpected answer")));
	foreach_ptr(RemoteValue, row, answer.rows)
		result = lappend(result, row[0]);
	return result;
}
