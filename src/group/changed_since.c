/*
 * changed_since.c
 *	  Has this server changed tables since it was promoted?
 *
 * A physical copy of a member that is to become another node must not have rows of its own: no other member would
 * get them (sql/15-physical-copy.sql).  The statistics of tables do not tell: a session reports its rows seconds later,
 * or not at all, a crash loses them, TRUNCATE does not count, and what was rolled back does.  The WAL tells.  It is
 * read from where the copy has left the timeline of the member.  A record counts if its transaction has
 * committed.  Transactions in progress do not count: the caller locks the tables, or asks again when it has.
 *
 * A table is found under the file that it has now.  If that was made since, the table is new or was rewritten or
 * truncated; what came before is not found, so that counts as a change of its own.
 *
 * Checkpoints remove WAL.  If the first part of it is gone, the caller has to do without.
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/heapam_xlog.h"
#include "access/timeline.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "catalog/pg_type.h"
#include "catalog/storage_xlog.h"
#include "compat.h"
#include "fmgr.h"
#include "local_wal.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/relfilenumbermap.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_check_unchanged_since);

/* Is the WAL of a position still there?  Its segment is that of the newest timeline that has the whole segment. */
static bool
has_wal(XLogRecPtr position)
{
	XLogSegNo	segment;
	XLogRecPtr	end;
	TimeLineID	timeline = GetWALInsertionTimeLine();
	char		path[MAXPGPATH];
	struct stat found;

	XLByteToSeg(position, segment, wal_segment_size);
	XLogSegNoOffsetToRecPtr(segment + 1, 0, wal_segment_size, end);
	timeline = tliOfPointInHistory(end - 1, readTimeLineHistory(timeline));
	XLogFilePath(path, timeline, segment, wal_segment_size);
	return stat(path, &found) == 0;
}

static void
check_table(Oid relid, List *relations)
{
	/* One that has been dropped since the caller listed it is not missed. */
	if (list_member_oid(relations, relid) && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s was changed on this server since it was promoted",
						quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
												   get_rel_name(relid))),
				 errdetail("No other member would get these changes."),
				 errhint("Make a new copy, and let nobody write to it before it has joined.")));
}

/* A record about a row, or several, in the first of its blocks. */
static void
check_rows(XLogReaderState *reader, List *relations)
{
	RelFileLocator file;

	if (!XLogRecGetBlockTagExtended(reader, 0, &file, NULL, NULL, NULL) ||
		file.dbOid != MyDatabaseId || !TransactionIdDidCommit(XLogRecGetXid(reader)))
		return;
	check_table(RelidByRelfilenumber(file.spcOid, file.relNumber), relations);
}

static void
check_file(XLogReaderState *reader, List *relations)
{
	xl_smgr_create *create = (xl_smgr_create *) XLogRecGetData(reader);

	if (create->forkNum != MAIN_FORKNUM || create->rlocator.dbOid != MyDatabaseId ||
		!TransactionIdDidCommit(XLogRecGetXid(reader)))
		return;
	check_table(RelidByRelfilenumber(create->rlocator.spcOid, create->rlocator.relNumber), relations);
}

static void
check_truncate(XLogReaderState *reader, List *relations)
{
	xl_heap_truncate *truncate = (xl_heap_truncate *) XLogRecGetData(reader);

	if (truncate->dbId != MyDatabaseId || !TransactionIdDidCommit(XLogRecGetXid(reader)))
		return;
	for (uint32 i = 0; i < truncate->nrelids; i++)
		check_table(truncate->relids[i], relations);
}

/* Its rows are before the position. */
static void
check_prepared(XLogReaderState *reader)
{
	xl_xact_parsed_commit commit;

	ParseCommitRecord(XLogRecGetInfo(reader), (xl_xact_commit *) XLogRecGetData(reader), &commit);
	if (commit.dbId == MyDatabaseId || !OidIsValid(commit.dbId))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a prepared transaction was committed on this server since it was promoted"),
				 errdetail("It belongs to the node that was copied, from which this one gets its outcome."),
				 errhint("Make a new copy, and roll back prepared transactions there.")));
}

static void
check_record(XLogReaderState *reader, List *relations)
{
	uint8		info = XLogRecGetInfo(reader);

	if (XLogRecGetRmid(reader) == RM_XACT_ID)
	{
		if ((info & XLOG_XACT_OPMASK) == XLOG_XACT_COMMIT_PREPARED)
			check_prepared(reader);
	}
	else if (XLogRecGetRmid(reader) == RM_SMGR_ID)
	{
		if ((info & ~XLR_INFO_MASK) == XLOG_SMGR_CREATE)
			check_file(reader, relations);
	}
	else if (XLogRecGetRmid(reader) == RM_HEAP2_ID)
	{
		if ((info & XLOG_HEAP_OPMASK) == XLOG_HEAP2_MULTI_INSERT)
			check_rows(reader, relations);
	}
	else if (XLogRecGetRmid(reader) == RM_HEAP_ID)
		switch (info & XLOG_HEAP_OPMASK)
		{
			case XLOG_HEAP_INSERT:
			case XLOG_HEAP_DELETE:
			case XLOG_HEAP_UPDATE:
			case XLOG_HEAP_HOT_UPDATE:
				check_rows(reader, relations);
				break;
			case XLOG_HEAP_TRUNCATE:
				check_truncate(reader, relations);
				break;
		}
}

static void
check_records(XLogReaderState *reader, XLogRecPtr since, List *relations)
{
	ReadLocalXLogPageNoWaitPrivate *page = reader->private_data;
	char	   *problem;

	XLogBeginRead(reader, since);
	while (XLogReadRecord(reader, &problem) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		check_record(reader, relations);
	}
	if (!page->end_of_wal)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL at " compat_lsn_format ": %s", LSN_FORMAT_ARGS(reader->EndRecPtr),
						problem ? problem : "no record")));
}

static List *
oids_of_array(ArrayType *array)
{
	Datum	   *values;
	int			count;
	List	   *result = NIL;

	deconstruct_array_builtin(array, OIDOID, &values, NULL, &count);
	for (int i = 0; i < count; i++)
		result = lappend_oid(result, DatumGetObjectId(values[i]));
	return result;
}

/*
 * weft.check_unchanged_since(since pg_lsn, relations oid[]) returns boolean
 *
 * Fails if one of the tables was changed.  False if that is unknown.
 */
Datum
weft_check_unchanged_since(PG_FUNCTION_ARGS)
{
	XLogRecPtr	since = PG_GETARG_LSN(0);
	List	   *relations = oids_of_array(PG_GETARG_ARRAYTYPE_P(1));
	ReadLocalXLogPageNoWaitPrivate page = {0};
	XLogReaderState *reader;

	if (RecoveryInProgress() || !has_wal(since))
		PG_RETURN_BOOL(false);
	/* Unflushed WAL cannot be read. */
	XLogFlush(local_wal_end());
	reader = XLogReaderAllocate(wal_segment_size, NULL,
								XL_ROUTINE(.page_read = read_local_xlog_page_no_wait,
										   .segment_open = wal_segment_open,
										   .segment_close = wal_segment_close),
								&page);
	if (reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	PG_TRY();
	{
		check_records(reader, since, relations);
	}
	PG_FINALLY();
	{
		XLogReaderFree(reader);
	}
	PG_END_TRY();
	PG_RETURN_BOOL(true);
}
