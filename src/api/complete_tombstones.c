/*
 * complete_tombstones.c
 *	  weft.complete_tombstones(): all tombstones of sessions get their time, and this node's number.
 */
#include "postgres.h"

#include "conflict/tombstone.h"
#include "fmgr.h"
#include "shmem.h"

PG_FUNCTION_INFO_V1(weft_complete_tombstones);

/*
 * weft.complete_tombstones()
 *
 * Writers do the same, but some time later; then this node may have another number, if it is a copy
 * that becomes a node of its own (sql/15-physical-copy.sql).
 */
Datum
weft_complete_tombstones(PG_FUNCTION_ARGS)
{
	shmem_require();
	(void) tombstone_add_times(PG_INT32_MAX);
	PG_RETURN_VOID();
}
