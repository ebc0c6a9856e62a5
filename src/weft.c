/*
 * weft.c
 *	  Entry point: installs everything while the postmaster loads the library.
 */
#include "postgres.h"

#include "api/publication_options.h"
#include "api/subscription_options.h"
#include "conflict/counter_name.h"
#include "copy/copy.h"
#include "copy/progress.h"
#include "ddl/capture.h"
#include "ddl/created_names.h"
#include "ddl/ddl_queue.h"
#include "ddl/filter.h"
#include "ddl/repeated_rows.h"
#include "ddl/script_rows.h"
#include "ddl/ddl_skip.h"
#include "ddl/touched.h"
#include "fmgr.h"
#include "gate.h"
#include "gate_shared.h"
#include "group/function_guard.h"
#include "group/gate_worker.h"
#include "group/group_lock.h"
#include "group/snowflake.h"
#include "guc.h"
#include "last_error.h"
#include "miscadmin.h"
#include "next_leader.h"
#include "publish/sent_commits.h"
#include "receive/leader.h"
#include "relation_stats.h"
#include "ring/broadcast.h"
#include "seam/seam.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "subscription_settings.h"
#include "totals.h"

PG_MODULE_MAGIC;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;

static void
request_shared_memory(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	shmem_request();
	relation_stats_request();
	broadcast_request();
	copy_progress_request();
	snowflake_request();
	last_error_request();
	gate_request();
	next_leader_request();
	totals_request();
	sent_commits_request();
}

static void
start_shared_memory(void)
{
	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();
	shmem_startup();
	relation_stats_startup();
	broadcast_startup();
	copy_progress_startup();
	snowflake_startup();
	last_error_startup();
	gate_startup();
	next_leader_startup();
	totals_startup();
	sent_commits_startup();
}

/* Called when the library is loaded. */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("weft must be loaded when the server starts"),
				 errhint("Add \"weft\" to \"shared_preload_libraries\" and restart the server.")));

	filter_define();
	guc_define();
	subscription_settings_define();
	subscription_options_install();
	publication_options_install();
	touched_install();
	script_rows_install();
	repeated_rows_install();
	created_names_install();
	ddl_queue_install();
	ddl_skip_install();
	capture_install();
	gate_install();
	gate_worker_install();
	group_lock_install();
	function_guard_install();
	counter_name_install();

	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_shared_memory;

	last_error_install();
	seam_install();
	leader_install();
	copy_install();
}
