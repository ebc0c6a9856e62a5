/*
 * guc.c
 *	  The configuration parameters weft.*, in alphabetical order.
 */
#include "postgres.h"

#include <limits.h>

#include "access/commit_ts.h"
#include "conflict_kind.h"
#include "guc.h"
#include "utils/guc.h"

int			weft_commit_group_size = 256;
int			weft_compression = COMPRESSION_OFF;
int			weft_conflict_history_max_rows = 1000000;
int			weft_conflict_history_retention = 30 * 24 * 60 * 60;
char	   *weft_conflict_history_types = NULL;
int			weft_copy_workers_per_table = 2;
int			weft_max_copy_workers = 8;
int			weft_max_stream_writers = 2;
int			weft_max_writers_per_subscription = 8;
int			weft_min_parallel_copy_size = 8 * 1024;
int			weft_ring_size = 16 * 1024;
int			weft_tombstone_retention = 7 * 24 * 60 * 60;
bool		weft_tune_writers = true;
int			weft_writers_per_subscription = 4;

/*
 * How many transactions may share a commit at most.  If somebody looks at commit
 * times, each has its own.
 */
int
guc_max_commit_group(void)
{
	return track_commit_timestamp ? 1 : weft_commit_group_size;
}

/* A publisher's list tells subscribers what it knows (receive/connection.c). */
static const struct config_enum_entry compression_methods[] = {
	{"off", COMPRESSION_OFF, false},
#ifdef WEFT_LZ4
	{"lz4", COMPRESSION_LZ4, false},
#endif
	{NULL, 0, false}
};

static bool
check_history_types(char **value, void **extra, GucSource source)
{
	uint32		types;

	if (conflict_kinds_parse(*value, &types))
		return true;
	GUC_check_errdetail("It must be \"all\", \"none\", or a list of types of conflicts.");
	return false;
}

/* Defines the parameters; called once, while the postmaster loads us. */
void
guc_define(void)
{
	DefineCustomIntVariable("weft.commit_group_size",
							"Sets how many consecutive remote transactions may share one local commit.",
							"Used only while transactions are waiting to be applied. 1 commits each on its own.",
							&weft_commit_group_size,
							256, 1, WEFT_MAX_COMMIT_GROUP,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("weft.compression",
							 "Sets how publishers with Weft are asked to compress what they send.",
							 "Used where a subscription's slot has the output plugin \"weft\".",
							 &weft_compression,
							 COMPRESSION_OFF, compression_methods,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("weft.conflict_history_max_rows",
							"Sets how many rows weft.conflict_history keeps in a database.",
							"The oldest ones are removed.",
							&weft_conflict_history_max_rows,
							1000000, 0, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.conflict_history_retention",
							"Sets how long weft.conflict_history keeps its rows.",
							NULL,
							&weft_conflict_history_retention,
							30 * 24 * 60 * 60, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomStringVariable("weft.conflict_history_types",
							   "Sets which types of conflicts are recorded in weft.conflict_history.",
							   "\"all\", \"none\", or a list of types.",
							   &weft_conflict_history_types,
							   "all",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   check_history_types, NULL, NULL);

	DefineCustomIntVariable("weft.copy_workers_per_table",
							"Sets the number of helpers that copy one table initially.",
							"Zero leaves the initial copy to the server's own code.",
							&weft_copy_workers_per_table,
							2, 0, WEFT_MAX_COPY_WORKERS,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.max_copy_workers",
							"Sets the maximum number of helpers that copy tables at the same time.",
							"A table for which none is left is copied by its worker alone.",
							&weft_max_copy_workers,
							8, 0, 1024,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.max_stream_writers",
							"Sets how many transactions of a subscription are applied while they are still in progress.",
							"Further ones, and all if it is 0, are kept in a file and applied when they end.",
							&weft_max_stream_writers,
							2, 0, WEFT_MAX_STREAM_WRITERS,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.max_writers_per_subscription",
							"Sets the maximum number of writers that one subscription may use.",
							"Caps weft.writers_per_subscription and the subscription's num_writers.",
							&weft_max_writers_per_subscription,
							8, 1, WEFT_MAX_WRITERS,
							PGC_POSTMASTER, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.min_parallel_copy_size",
							"Sets the size from which on a table is copied initially with helpers.",
							"That of the publisher's table, with what is stored out of line.",
							&weft_min_parallel_copy_size,
							8 * 1024, 0, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.ring_size",
							"Sets the shared memory that holds a subscription's received, not yet committed changes.",
							"Rounded up to a power of two. Takes effect when the apply worker starts.",
							&weft_ring_size,
							16 * 1024, 64, 1024 * 1024,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("weft.tombstone_retention",
							"Sets how long it is remembered that a row was deleted.",
							"It must be longer than a change can be on its way.",
							&weft_tombstone_retention,
							7 * 24 * 60 * 60, 1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("weft.tune_writers",
							 "Chooses by measuring how many of a subscription's writers are used.",
							 "Done while transactions come in a steady flow. If it is off, all are used.",
							 &weft_tune_writers,
							 true,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("weft.writers_per_subscription",
							"Sets the number of writers that apply a subscription's transactions.",
							"Zero leaves the subscription to the server's own apply worker. "
							"A subscription's num_writers overrides this.",
							&weft_writers_per_subscription,
							4, 0, WEFT_MAX_WRITERS,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	MarkGUCPrefixReserved("weft");
}
