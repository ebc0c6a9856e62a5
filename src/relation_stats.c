/*
 * relation_stats.c
 *	  Rows that were applied, and how, by subscription and relation.
 *
 * Each subscription has a hash table in dynamic shared memory, with an entry for each
 * local table.  The leader creates it before its first writers start; writers add what
 * they have counted; a session that reads weft.stat_relation attaches to it for the time of
 * its query.
 *
 * The hash table is not pinned: it is removed with the last process that detaches, so
 * nothing is left behind by a leader that ended or a subscription that was dropped.  After
 * a crash the postmaster removes it.  It grows with the number of tables that have had
 * changes since the leader started.
 *
 * A reader R must not attach while the hash table is being removed.  Therefore R attaches
 * while no entry of the shared root can be released: as long as the handles are there, the
 * leader is attached.
 *
 * Deadlocks: none, because locks are taken in this order: the shared root's (readers only),
 * one of the hash table's partitions (all of them, one after the other, when it grows),
 * those of the area, the server's for dynamic shared memory.  A process that holds one of
 * them waits for nothing but the next.
 *
 * Statistics must not disturb what they count.  An error here, such as a lack of memory, is
 * logged once in each process, and what was to be added is added later, or never.  Nothing
 * is rolled back after such an error, so the locks are released here; writers and leaders
 * hold no others when they call these functions.  The area and the hash table are intact
 * then: the server's code takes care of that, because a rollback would do no more.
 */
#include "postgres.h"

#include "lock_tranche.h"
#include "miscadmin.h"
#include "relation_stats.h"
#include "replication/worker_internal.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#define TRANCHE "WeftStatistics"

/* Of the locks in all tables; set once, when the process gets the shared memory. */
static int	tranche;

/* What a leader or writer is attached to for as long as it lives. */
static dsa_area *own_area = NULL;
static dshash_table *own_table = NULL;

void
relation_stats_request(void)
{
	lock_tranche_request(TRANCHE);
}

void
relation_stats_startup(void)
{
	tranche = lock_tranche_startup(TRANCHE);
}

static const dshash_parameters *
table_parameters(void)
{
	static dshash_parameters parameters = {
		sizeof(Oid),
		sizeof(RelationStats),
		dshash_memcmp,
		dshash_memhash,
		dshash_memcpy,
	};

	parameters.tranche_id = tranche;
	return &parameters;
}

/*
 * Does something to the table of a subscription that is being applied by this
 * process.  Returns false if that was not possible.
 */
static bool
tolerate(void (*action) (SubscriptionShared *, const RelationStats *, bool),
		 SubscriptionShared *shared, const RelationStats *stats, bool up_to_date)
{
	static bool logged = false;
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *error = NULL;

	PG_TRY();
	{
		/* The server's code allocates what lasts in the current context. */
		MemoryContextSwitchTo(TopMemoryContext);
		action(shared, stats, up_to_date);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		CurrentResourceOwner = owner;
		MemoryContextSwitchTo(old);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(old);
	if (error == NULL)
		return true;
	if (!logged)
		ereport(LOG,
				(errmsg("statistics of relations are incomplete for subscription \"%s\": %s",
						MySubscription->name, error->message),
				 errhint("Provide more shared memory.")));
	logged = true;
	FreeErrorData(error);
	return false;
}

static void
create(SubscriptionShared *shared, const RelationStats *stats, bool up_to_date)
{
	const dshash_parameters *parameters = table_parameters();

	if (own_area == NULL)
	{
		own_area = dsa_create_ext(parameters->tranche_id, DSA_MIN_SEGMENT_SIZE,
								  DSA_MAX_SEGMENT_SIZE);
		dsa_pin_mapping(own_area);
	}
	own_table = dshash_create(own_area, parameters, NULL);

	SpinLockAcquire(&shared->mutex);
	shared->statistics_area = dsa_get_handle(own_area);
	shared->statistics_table = dshash_get_hash_table_handle(own_table);
	SpinLockRelease(&shared->mutex);
}

/* Called in the leader before writers start. */
void
relation_stats_create(SubscriptionShared *shared)
{
	if (own_table == NULL)
		(void) tolerate(create, shared, NULL, false);
}

static void
attach(SubscriptionShared *shared)
{
	const dshash_parameters *parameters = table_parameters();

	if (own_area == NULL)
	{
		own_area = dsa_attach(shared->statistics_area);
		dsa_pin_mapping(own_area);
	}
	own_table = dshash_attach(own_area, parameters, shared->statistics_table, NULL);
}

static void
add(SubscriptionShared *shared, const RelationStats *stats, bool up_to_date)
{
	RelationStats *entry;
	bool		found;

	if (own_table == NULL)
		attach(shared);
	entry = dshash_find_or_insert(own_table, &stats->relid, &found);
	if (!found)
		memset(&entry->counts, 0, sizeof(entry->counts));
	if (!found || up_to_date)
	{
		entry->general = stats->general;
		memcpy(entry->reason, stats->reason, sizeof(entry->reason));
	}
	entry->counts.inserts += stats->counts.inserts;
	entry->counts.updates += stats->counts.updates;
	entry->counts.deletes += stats->counts.deletes;
	entry->counts.general_rows += stats->counts.general_rows;
	entry->counts.coalesced_rows += stats->counts.coalesced_rows;
	dshash_release_lock(own_table, entry);
}

/*
 * Adds what a writer has counted.  How the rows were applied is taken over if it
 * is up to date, or nothing is known yet.  Returns false if it should be tried
 * again later.
 */
bool
relation_stats_add(SubscriptionShared *shared, const RelationStats *stats, bool up_to_date)
{
	/* The leader has written it before it started us. */
	if (shared->statistics_area == DSA_HANDLE_INVALID)
		return true;
	return tolerate(add, shared, stats, up_to_date);
}

/* Copies all entries, in the current memory context. */
static List *
copy_entries(dshash_table *table)
{
	List	   *result = NIL;
	dshash_seq_status scan;
	RelationStats *entry;

	dshash_seq_init(&scan, table, false);
	while ((entry = dshash_seq_next(&scan)) != NULL)
	{
		RelationStats *copy = palloc(sizeof(RelationStats));

		memcpy(copy, entry, sizeof(RelationStats));
		result = lappend(result, copy);
	}
	dshash_seq_term(&scan);
	return result;
}

/*
 * Returns what is known of the relations in this database of the subscription
 * that has the entry of the shared root, as a list of RelationStats.
 */
List *
relation_stats_read(SubscriptionShared *shared, Oid *subid)
{
	List	   *result;
	dsa_area   *area;
	dsa_handle	area_handle = DSA_HANDLE_INVALID;
	dshash_table_handle table_handle;
	const dshash_parameters *parameters;
	dshash_table *table;

	shmem_keep_entries();
	SpinLockAcquire(&shared->mutex);
	*subid = shared->subid;
	if (OidIsValid(shared->subid) && shared->dbid == MyDatabaseId)
		area_handle = shared->statistics_area;
	table_handle = shared->statistics_table;
	SpinLockRelease(&shared->mutex);

	if (area_handle == DSA_HANDLE_INVALID)
	{
		shmem_let_entries_go();
		return NIL;
	}
	parameters = table_parameters();

	/* A trigger in a writer may ask, and a process cannot attach twice. */
	if (own_area != NULL && dsa_get_handle(own_area) == area_handle)
		area = own_area;
	else
		area = dsa_attach(area_handle);
	shmem_let_entries_go();

	table = dshash_attach(area, parameters, table_handle, NULL);
	result = copy_entries(table);
	dshash_detach(table);
	if (area != own_area)
		dsa_detach(area);
	return result;
}
