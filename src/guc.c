/*
 * guc.c
 *	  The configuration parameters weft.*
 */
#include "postgres.h"

#include <limits.h>

#include "access/commit_ts.h"
#include "conflict_kind.h"
#include "guc.h"
#include "postmaster/interrupt.h"
#include "standby_slots.h"
#include "utils/guc.h"

int			weft_commit_group_size = 256;
int			weft_comparison_snapshot_age = 5 * 60;
int			weft_compression = COMPRESSION_OFF;
char	   *weft_confirm_after_standby_slots = NULL;
int			weft_conflict_history_max_rows = 1000000;
int			weft_conflict_history_retention = 30 * 24 * 60 * 60;
char	   *weft_conflict_history_types = NULL;
int			weft_copy_workers_per_table = 2;
int			weft_ddl_history_retention = 30 * 24 * 60 * 60;
int			weft_ddl_lock = DDL_LOCK_AUTO;
int			weft_ddl_lock_timeout = 60 * 1000;
int			weft_ddl_wait_timeout = 60 * 1000;
int			weft_decode_ahead = 1024;
int			weft_flush_delay = 5;
int			weft_max_copy_workers = 8;
int			weft_max_stream_writers = 2;
int			weft_max_writers_per_subscription = 8;
int			weft_min_parallel_copy_size = 8 * 1024;
int			weft_ring_size = 16 * 1024;
int			weft_row_time_retention = 10 * 60;
int			weft_tombstone_retention = 7 * 24 * 60 * 60;
bool		weft_ddl_replication = true;
bool		weft_exact_commit_timestamps = false;
bool		weft_tune_writers = true;
int			weft_writers_per_subscription = 4;

/* Returns how many transactions may share a commit. */
int
guc_max_commit_group(void)
{
	return track_commit_timestamp && weft_exact_commit_timestamps ? 1 : weft_commit_group_size;
}

/*
 * A subscriber reads this list on the publisher, to learn which methods that knows
 * (receive/connection.c).
 */
static const struct config_enum_entry compression_methods[] = {
	{"off", COMPRESSION_OFF, false},
#ifdef WEFT_LZ4
	{"lz4", COMPRESSION_LZ4, false},
#endif
	{NULL, 0, false}
};

static const struct config_enum_entry ddl_locks[] = {
	{"auto", DDL_LOCK_AUTO, false},
	{"none", DDL_LOCK_NONE, false},
	{"always", DDL_LOCK_ALWAYS, false},
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

typedef struct IntegerParameter
{
	const char *name;
	const char *summary;
	const char *explanation;
	int		   *variable;
	int			minimum;
	int			maximum;
	GucContext	context;
	int			flags;
} IntegerParameter;

/* The values that the variables have above are the defaults. */
static const IntegerParameter integers[] = {
	{"weft.commit_group_size",
		"Sets the maximum number of consecutive remote transactions that share one local commit.",
		"Used only while transactions are waiting to be applied. 1 commits each transaction separately.",
	&weft_commit_group_size, 1, WEFT_MAX_COMMIT_GROUP, PGC_SIGHUP, 0},
	{"weft.comparison_snapshot_age",
		"Sets how long a comparison keeps a snapshot on both sides before it takes another one.",
		"While the snapshot is kept, vacuum cannot remove newer dead rows.",
	&weft_comparison_snapshot_age, 1, 24 * 60 * 60, PGC_USERSET, GUC_UNIT_S},
	{"weft.conflict_history_max_rows",
		"Sets the maximum number of rows in a database's weft.conflict_history.",
		"The oldest rows are removed.",
	&weft_conflict_history_max_rows, 0, INT_MAX, PGC_SIGHUP, 0},
	{"weft.conflict_history_retention",
		"Sets how long weft.conflict_history keeps its rows.",
		NULL,
	&weft_conflict_history_retention, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_S},
	{"weft.copy_workers_per_table",
		"Sets the number of helpers that take part in the initial copy of one table.",
		"Zero leaves the initial copy to the server's own code.",
	&weft_copy_workers_per_table, 0, WEFT_MAX_COPY_WORKERS, PGC_SIGHUP, 0},
	{"weft.ddl_history_retention",
		"Sets how long weft.ddl_history keeps its rows.",
		NULL,
	&weft_ddl_history_retention, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_S},
	{"weft.ddl_lock_timeout",
		"Sets how long a schema change of a node group may wait for its lock.",
		"A member that cannot ask for the outcome of a schema change opens the lock after this time.",
	&weft_ddl_lock_timeout, 1, INT_MAX, PGC_USERSET, GUC_UNIT_MS},
	{"weft.ddl_wait_timeout",
		"Sets how long rows of a node group wait for a schema change of another member.",
		"After that, they fail.",
	&weft_ddl_wait_timeout, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS},
	{"weft.decode_ahead",
		"Sets how much WAL a publisher decodes at once while it is far behind.",
		"Zero reads one record at a time. Used for slots with the output plugin \"weft\".",
	&weft_decode_ahead, 0, 64 * 1024, PGC_SIGHUP, GUC_UNIT_KB},
	{"weft.flush_delay",
		"Sets how long a subscription is idle before it flushes what it has applied.",
		"0 flushes as soon as nothing is in flight, -1 leaves that to the WAL writer. "
		"If the publisher is known to wait, the flush follows at once.",
	&weft_flush_delay, -1, 10000, PGC_SIGHUP, GUC_UNIT_MS},
	{"weft.max_copy_workers",
		"Sets the maximum number of helpers that copy tables at the same time.",
		"If no helper is available for a table, its table synchronization worker copies it alone.",
	&weft_max_copy_workers, 0, 1024, PGC_SIGHUP, 0},
	{"weft.max_stream_writers",
		"Sets the maximum number of a subscription's transactions that are applied while they are in progress.",
		"All other streamed transactions are kept in a file and applied when they end.",
	&weft_max_stream_writers, 0, WEFT_MAX_STREAM_WRITERS, PGC_SIGHUP, 0},
	{"weft.max_writers_per_subscription",
		"Sets the maximum number of writers that one subscription may use.",
		"Caps weft.writers_per_subscription and the subscription's num_writers.",
	&weft_max_writers_per_subscription, 1, WEFT_MAX_WRITERS, PGC_POSTMASTER, 0},
	{"weft.min_parallel_copy_size",
		"Sets the minimum size of a table whose initial copy uses helpers.",
		"This is the size of the publisher's table, including values stored out of line.",
	&weft_min_parallel_copy_size, 0, MAX_KILOBYTES, PGC_SIGHUP, GUC_UNIT_KB},
	{"weft.ring_size",
		"Sets the shared memory for changes that a subscription has received and not yet committed.",
		"Rounded up to a power of two. Takes effect when the apply worker starts.",
	&weft_ring_size, 64, 1024 * 1024, PGC_SIGHUP, GUC_UNIT_KB},
	{"weft.row_time_retention",
		"Sets how long at least the times of rows whose transactions share a commit are kept.",
		"They are kept longer while an older change may still arrive from another node, up to weft.tombstone_retention.",
	&weft_row_time_retention, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_S},
	{"weft.tombstone_retention",
		"Sets how long deleted rows are remembered.",
		"It must be longer than the longest time from a change to its application on all nodes.",
	&weft_tombstone_retention, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_S},
	{"weft.writers_per_subscription",
		"Sets the number of writers that apply a subscription's transactions.",
		"Zero leaves the subscription to the server's own apply worker. "
		"A subscription's num_writers overrides this.",
	&weft_writers_per_subscription, 0, WEFT_MAX_WRITERS, PGC_SIGHUP, 0},
};

/* Defines the parameters; called once, while the postmaster loads the library. */
void
guc_define(void)
{
	for (int i = 0; i < lengthof(integers); i++)
	{
		const IntegerParameter *parameter = &integers[i];

		DefineCustomIntVariable(parameter->name, parameter->summary, parameter->explanation,
								parameter->variable, *parameter->variable,
								parameter->minimum, parameter->maximum,
								parameter->context, parameter->flags, NULL, NULL, NULL);
	}

	DefineCustomEnumVariable("weft.compression",
							 "Sets the compression that publishers are asked to use.",
							 "Used if the subscription's slot has the output plugin \"weft\".",
							 &weft_compression,
							 COMPRESSION_OFF, compression_methods,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("weft.confirm_after_standby_slots",
							   "Sets the physical replication slots whose standbys must have received what this subscriber confirms.",
							   "A publisher keeps everything that the subscriber has not confirmed.",
							   &weft_confirm_after_standby_slots,
							   "",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   standby_slots_check, standby_slots_assign, NULL);

	DefineCustomStringVariable("weft.conflict_history_types",
							   "Sets which types of conflicts are recorded in weft.conflict_history.",
							   "\"all\", \"none\", or a list of types.",
							   &weft_conflict_history_types,
							   "all",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   check_history_types, NULL, NULL);

	DefineCustomEnumVariable("weft.ddl_lock",
							 "Sets which schema changes of a node group lock their tables on all members.",
							 "\"auto\" locks for those that do not fit old and new rows of all members.",
							 &weft_ddl_lock,
							 DDL_LOCK_AUTO, ddl_locks,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("weft.ddl_replication",
							 "Publishes the schema changes of this session.",
							 "They are published by publications with the option \"ddl\".",
							 &weft_ddl_replication,
							 true,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("weft.exact_commit_timestamps",
							 "Commits each remote transaction separately while commit timestamps are tracked.",
							 "If it is off, a row's exact time is that of weft.row_commit_timestamp.",
							 &weft_exact_commit_timestamps,
							 false,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("weft.tune_writers",
							 "Chooses by measurement how many of a subscription's writers are used.",
							 "Done while transactions arrive steadily. If it is off, all are used.",
							 &weft_tune_writers,
							 true,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("weft");
}

/* Reads the configuration again if a SIGHUP has requested that.  For the loops of processes. */
void
guc_reload_if_requested(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

/* Until the current GUC nest level ends, schema changes of this session are not published. */
void
guc_publish_no_schema_changes(void)
{
	(void) set_config_option("weft.ddl_replication", "off", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}
