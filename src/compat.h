/*
 * compat.h
 *	  Everything that differs between the server versions Weft supports.
 */
#ifndef WEFT_COMPAT_H
#define WEFT_COMPAT_H

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 200000
#error "Weft supports PostgreSQL 17, 18 and 19"
#endif

#include "utils/injection_point.h"
#include "utils/jsonb.h"

/* 18 has another way to say that a function does not return. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/*
 * From 18 on the server reports and counts conflicts while it applies
 * (replication/conflict.h); before, only the debug log knew of them.
 */
#define HAVE_APPLY_CONFLICTS (PG_VERSION_NUM >= 180000)

/*
 * The strategy of equality for a column of an index that is a table's key.  From 18 on that may be of another access
 * method than btree: a temporal constraint has a GiST index.
 */
#if PG_VERSION_NUM < 180000
#define compat_equality_strategy(index, i) ((StrategyNumber) BTEqualStrategyNumber)
#else
#define compat_equality_strategy(index, i) \
	IndexAmTranslateCompareType(COMPARE_EQ, (index)->rd_rel->relam, (index)->rd_opfamily[i], false)
#endif

/*
 * From 19 on a subscription may have dead rows retained, and the server tells an update of a
 * deleted row from one of a row that has never been there.
 */
#define HAVE_DEAD_TUPLE_RETENTION (PG_VERSION_NUM >= 190000)
#if HAVE_DEAD_TUPLE_RETENTION
#define compat_retains_dead_tuples(subscription) ((subscription)->retaindeadtuples)
#else
#define compat_retains_dead_tuples(subscription) false
#endif

/* From 19 on, what goes into commit records is in one structure, and types have other names. */
#if PG_VERSION_NUM >= 190000
#define RepOriginId ReplOriginId
#define InvalidRepOriginId InvalidReplOriginId
#define replorigin_session_origin replorigin_xact_state.origin
#define replorigin_session_origin_lsn replorigin_xact_state.origin_lsn
#define replorigin_session_origin_timestamp replorigin_xact_state.origin_timestamp
#endif

/*
 * From 19 on an origin counts the processes that use it.  The one that has acquired it must not
 * reset it before the others, and nobody can acquire it while it has users.
 */
#define COMPAT_ORIGIN_COUNTS_USERS (PG_VERSION_NUM >= 190000)
#if PG_VERSION_NUM < 190000
#define compat_running_workers(subid) NIL
#else
#define compat_running_workers(subid) logicalrep_workers_find(subid, true, true)
#endif

/* The running workers of a subscription; the caller holds LogicalRepWorkerLock. */
#if PG_VERSION_NUM < 180000
#define compat_workers_find(subid) logicalrep_workers_find(subid, true)
#else
#define compat_workers_find(subid) logicalrep_workers_find(subid, true, false)
#endif

#if PG_VERSION_NUM < 190000
#define compat_is_tablesync(worker) isTablesyncWorker(worker)
#else
#define compat_is_tablesync(worker) isTableSyncWorker(worker)
#endif

/* Apply and table synchronization workers; from 19 on, functions take the type of a worker. */
#if PG_VERSION_NUM < 190000
#define compat_worker_find(subid, relid, only_running) \
	logicalrep_worker_find(subid, relid, only_running)
#define compat_worker_stop(subid, relid) logicalrep_worker_stop(subid, relid)
#else
#define compat_worker_type(relid) \
	(OidIsValid(relid) ? WORKERTYPE_TABLESYNC : WORKERTYPE_APPLY)
#define compat_worker_find(subid, relid, only_running) \
	logicalrep_worker_find(compat_worker_type(relid), subid, relid, only_running)
#define compat_worker_stop(subid, relid) \
	logicalrep_worker_stop(compat_worker_type(relid), subid, relid)
#endif

/*
 * The tables of a subscription, its sequences, and both: lists of SubscriptionRelState.  Before
 * 19, there are no sequences.
 */
#if PG_VERSION_NUM < 190000
#define compat_subscription_tables(subid, not_ready) GetSubscriptionRelations(subid, not_ready)
#define compat_subscription_sequences(subid, not_ready) NIL
#define compat_subscription_relations(subid) GetSubscriptionRelations(subid, false)
#else
#define compat_subscription_tables(subid, not_ready) \
	GetSubscriptionRelations(subid, true, false, not_ready)
#define compat_subscription_sequences(subid, not_ready) \
	GetSubscriptionRelations(subid, false, true, not_ready)
#define compat_subscription_relations(subid) GetSubscriptionRelations(subid, true, true, false)
#endif

/*
 * The connection string of a subscription.  From 19 on, one may connect through a foreign server;
 * that its owner may use it is checked, and the string is made.
 */
#if PG_VERSION_NUM < 190000
#define COMPAT_CONNINFO_IS_MADE false
#define compat_conninfo(subscription) ((subscription)->conninfo)
#define compat_free_subscription(subscription) FreeSubscription(subscription)
#else
#define COMPAT_CONNINFO_IS_MADE true
#define compat_conninfo(subscription) \
	SubscriptionConninfo((Subscription *) (subscription))
#define compat_free_subscription(subscription) MemoryContextDelete((subscription)->cxt)
#endif

/*
 * From 19 on, the server's apply code needs what only InitializeLogRepWorker() keeps: the
 * connection string with which the worker has started.
 */
#define COMPAT_WORKER_KEEPS_CONNINFO (PG_VERSION_NUM >= 190000)

/* From 19 on, a table may be in a publication as an exception, which is no publication of it. */
#if PG_VERSION_NUM < 190000
#define compat_relation_publications(relid) GetRelationPublications(relid)
#define compat_publication_relations(publication, partitions) \
	GetPublicationRelations(publication, partitions)
#define compat_publication_add_relation(publication, relation, if_not_exists) \
	publication_add_relation(publication, relation, if_not_exists)
#define compat_all_publication_tables(publication, via_root) \
	GetAllTablesPublicationRelations(via_root)
#else
#define compat_relation_publications(relid) GetRelationIncludedPublications(relid)
#define compat_publication_relations(publication, partitions) \
	GetIncludedPublicationRelations(publication, partitions)
#define compat_publication_add_relation(publication, relation, if_not_exists) \
	publication_add_relation(publication, relation, if_not_exists, NULL)
#define compat_all_publication_tables(publication, via_root) \
	GetAllPublicationRelations(get_publication_oid(publication, false), RELKIND_RELATION, via_root)
#endif

/* Does a process use a replication slot?  The caller holds its mutex. */
#if PG_VERSION_NUM < 190000
#define compat_slot_is_active(slot) ((slot)->active_pid != 0)
#else
#define compat_slot_is_active(slot) ((slot)->active_proc != INVALID_PROC_NUMBER)
#endif

/* The version of this server as data, for messages to servers of other versions. */
#define compat_server_version PG_VERSION_NUM

/* How the server writes an LSN in messages, for LSN_FORMAT_ARGS(). */
#if PG_VERSION_NUM < 190000
#define compat_lsn_format "%X/%X"
#else
#define compat_lsn_format "%X/%08X"
#endif

/* From 19 on, backslashes in ordinary string constants are always literal. */
#if PG_VERSION_NUM < 190000
#define compat_fixed_string_syntax false
#define compat_standard_conforming_strings standard_conforming_strings
#else
#define compat_fixed_string_syntax true
#define compat_standard_conforming_strings true
#endif

/* CLUSTER is a form of REPACK from 19 on. */
#if PG_VERSION_NUM < 190000
#define COMPAT_CLUSTER_STATEMENT T_ClusterStmt
#else
#define COMPAT_CLUSTER_STATEMENT T_RepackStmt
#endif

/* The options of a REPACK, which is new in 19; none for other statements. */
#if PG_VERSION_NUM < 190000
#define compat_repack_options(statement) NIL
#else
#define compat_repack_options(statement) \
	(IsA(statement, RepackStmt) ? ((RepackStmt *) (statement))->params : NIL)
#endif

/* What a handler of signals passes on. */
#if PG_VERSION_NUM < 190000
#define COMPAT_SIGNAL_ARGUMENTS postgres_signal_arg
#else
#define COMPAT_SIGNAL_ARGUMENTS postgres_signal_arg, pg_siginfo
#endif

/*
 * Finds a row by an index, and locks it.  From 19 on, the caller says whether the index alone
 * identifies a row.
 */
#if PG_VERSION_NUM < 190000
#define compat_find_by_index(table, index, lock_mode, key, row) \
	RelationFindReplTupleByIndex(table, index, lock_mode, key, row)
#else
#define compat_find_by_index(table, index, lock_mode, key, row) \
	RelationFindReplTupleByIndex(table, index, GetRelationIdentityOrPK(table) == (index), \
								 lock_mode, key, row)
#endif

/* Changing rows and their index entries: from 19 on, options are in one argument. */
#if PG_VERSION_NUM < 190000
#define compat_table_beginscan(table, snapshot) table_beginscan(table, snapshot, 0, NULL)
#define compat_table_tuple_update(table, tid, slot, cid, snapshot, failure, lock_mode, update_indexes) \
	table_tuple_update(table, tid, slot, cid, snapshot, InvalidSnapshot, true, \
					   failure, lock_mode, update_indexes)
#define compat_table_tuple_delete(table, tid, cid, snapshot, wait, failure) \
	table_tuple_delete(table, tid, cid, snapshot, InvalidSnapshot, wait, failure, false)
#define compat_insert_index_entries(info, slot, estate) \
	((void) ExecInsertIndexTuples(info, slot, estate, false, false, NULL, NIL, false))
#define compat_update_index_entries(info, slot, estate, only_summarizing) \
	((void) ExecInsertIndexTuples(info, slot, estate, true, false, NULL, NIL, only_summarizing))
#else
#define compat_table_beginscan(table, snapshot) table_beginscan(table, snapshot, 0, NULL, SO_NONE)
#define compat_table_tuple_update(table, tid, slot, cid, snapshot, failure, lock_mode, update_indexes) \
	table_tuple_update(table, tid, slot, cid, 0, snapshot, InvalidSnapshot, true, \
					   failure, lock_mode, update_indexes)
#define compat_table_tuple_delete(table, tid, cid, snapshot, wait, failure) \
	table_tuple_delete(table, tid, cid, 0, snapshot, InvalidSnapshot, wait, failure)
#define compat_insert_index_entries(info, slot, estate) \
	((void) ExecInsertIndexTuples(info, estate, 0, slot, NIL, NULL))
#define compat_update_index_entries(info, slot, estate, only_summarizing) \
	((void) ExecInsertIndexTuples(info, estate, EIIT_IS_UPDATE | \
								  ((only_summarizing) ? EIIT_ONLY_SUMMARIZING : 0), \
								  slot, NIL, NULL))
#endif

/*
 * Prunes a page that is going to be changed.  From 19 on, pruning may pin a page of the visibility
 * map.
 */
#if PG_VERSION_NUM < 190000
#define compat_prune_page(table, buffer) heap_page_prune_opt(table, buffer)
#else
#define compat_prune_page(table, buffer) \
	do { \
		Buffer		map_buffer = InvalidBuffer; \
		heap_page_prune_opt(table, buffer, &map_buffer, false); \
		if (BufferIsValid(map_buffer)) \
			ReleaseBuffer(map_buffer); \
	} while (0)
#endif

/* The usage count of a buffer, given its descriptor. */
#if PG_VERSION_NUM < 190000
#define compat_buffer_usage(descriptor) \
	BUF_STATE_GET_USAGECOUNT(pg_atomic_read_u32(&(descriptor)->state))
#else
#define compat_buffer_usage(descriptor) \
	BUF_STATE_GET_USAGECOUNT(pg_atomic_read_u64(&(descriptor)->state))
#endif

/* The place of a process in the queue of a lock that it waits for. */
#if PG_VERSION_NUM < 190000
#define COMPAT_WAIT_LINK links
#else
#define COMPAT_WAIT_LINK waitLink
#endif

/* From 19 on, a tranche has its name from the beginning. */
#if PG_VERSION_NUM < 190000
#define compat_new_tranche(name) LWLockNewTrancheId()
#define compat_register_tranche(number, name) LWLockRegisterTranche(number, name)
#else
#define compat_new_tranche(name) LWLockNewTrancheId(name)
#define compat_register_tranche(number, name) ((void) 0)
#endif

/* What initializes a named segment of dynamic shared memory takes an argument from 19 on. */
#if PG_VERSION_NUM < 190000
#define COMPAT_SEGMENT_ARGUMENTS void *pointer
#define compat_named_segment(name, size, initialize, found) \
	GetNamedDSMSegment(name, size, initialize, found)
#else
#define COMPAT_SEGMENT_ARGUMENTS void *pointer, void *arg
#define compat_named_segment(name, size, initialize, found) \
	GetNamedDSMSegment(name, size, initialize, found, NULL)
#endif

#if PG_VERSION_NUM < 190000
#define compat_domain_has_constraints(type) DomainHasConstraints(type)
#else
#define compat_domain_has_constraints(type) DomainHasConstraints(type, NULL)
#endif

/* Building a jsonb value; compat_push_jsonb() returns the value when it is complete. */
#if PG_VERSION_NUM < 190000
typedef JsonbParseState *CompatJsonbState;
#define COMPAT_JSONB_BEGIN NULL
#define compat_push_jsonb(state, token, value) pushJsonbValue(state, token, value)
#else
typedef JsonbInState CompatJsonbState;
#define COMPAT_JSONB_BEGIN {0}
static inline JsonbValue *
compat_push_jsonb(CompatJsonbState *state, JsonbIteratorToken token, JsonbValue *value)
{
	pushJsonbValue(state, token, value);
	return state->result;
}
#endif

/* These have more arguments from 18 on. */
#if PG_VERSION_NUM < 180000
#define compat_injection_point(name) INJECTION_POINT(name)
#define COMPAT_INJECTION_ARGUMENTS const char *name, const void *data
#define compat_init_range_table(estate, rte, perminfos) \
	ExecInitRangeTable(estate, list_make1(rte), perminfos)
#define compat_check_index_constraints(info, slot, estate, conflict, own, indexes) \
	((void) (own), ExecCheckIndexConstraints(info, slot, estate, conflict, indexes))
#define compat_foreign_key_enforced(key) true
#define compat_replication_slot_acquire(name) ReplicationSlotAcquire(name, true)
#else
#define compat_injection_point(name) INJECTION_POINT(name, NULL)
#define COMPAT_INJECTION_ARGUMENTS const char *name, const void *data, void *arg
#define compat_init_range_table(estate, rte, perminfos) \
	ExecInitRangeTable(estate, list_make1(rte), perminfos, bms_make_singleton(1))
#define compat_check_index_constraints(info, slot, estate, conflict, own, indexes) \
	ExecCheckIndexConstraints(info, slot, estate, conflict, own, indexes)
#define compat_foreign_key_enforced(key) ((key)->conenforced)
#define compat_replication_slot_acquire(name) ReplicationSlotAcquire(name, true, true)
#endif

/* From 18 on a constraint may be one that is not enforced. */
#if PG_VERSION_NUM < 180000
#define compat_enforce_constraint(constraint) ((void) (constraint))
#else
#define compat_enforce_constraint(constraint) ((constraint)->is_enforced = true)
#endif

/* Does a process belong to a client? */
#if PG_VERSION_NUM < 180000
#define compat_is_session(process) (!(process)->isBackgroundWorker)
#elif PG_VERSION_NUM < 190000
#define compat_is_session(process) ((process)->isRegularBackend)
#else
#define compat_is_session(process) ((process)->backendType == B_BACKEND)
#endif

/* The hook of ExecutorRun() has one argument less from 18 on. */
#if PG_VERSION_NUM < 180000
#define COMPAT_EXECUTOR_RUN_PARAMETERS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool execute_once
#define COMPAT_EXECUTOR_RUN_ARGUMENTS queryDesc, direction, count, execute_once
#else
#define COMPAT_EXECUTOR_RUN_PARAMETERS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define COMPAT_EXECUTOR_RUN_ARGUMENTS queryDesc, direction, count
#endif

#if PG_VERSION_NUM < 180000
#define compat_index_beginscan(table, index, snapshot, num_keys) \
	index_beginscan(table, index, snapshot, num_keys, 0)
#elif PG_VERSION_NUM < 190000
#define compat_index_beginscan(table, index, snapshot, num_keys) \
	index_beginscan(table, index, snapshot, NULL, num_keys, 0)
#else
#define compat_index_beginscan(table, index, snapshot, num_keys) \
	index_beginscan(table, index, snapshot, NULL, num_keys, 0, SO_NONE)
#endif

/* From 18 on pgoutput has an invalidation of its own. */
#if PG_VERSION_NUM < 180000
#define compat_register_relsync_callback(function, arg) ((void) 0)
#else
#define compat_register_relsync_callback(function, arg) \
	CacheRegisterRelSyncCallback(function, arg)
#endif

/*
 * The name under which the server finds a prepared transaction of a subscription
 * again; version 17 keeps the function to itself.
 */
#if PG_VERSION_NUM < 180000
#define compat_two_phase_gid(subid, xid, gid, size) \
	snprintf(gid, size, "pg_gid_%u_%u", subid, xid)
#else
#define compat_two_phase_gid(subid, xid, gid, size) \
	TwoPhaseTransactionGid(subid, xid, gid, size)
#endif

/* From 18 on the caller may say that it has locked the catalog. */
#if PG_VERSION_NUM < 180000
#define compat_update_subscription_rel(subid, relid, state, lsn) \
	UpdateSubscriptionRelState(subid, relid, state, lsn)
#else
#define compat_update_subscription_rel(subid, relid, state, lsn) \
	UpdateSubscriptionRelState(subid, relid, state, lsn, false)
#endif

/* Is no value of the column null?  From 18 on, a constraint may be NOT VALID. */
#if PG_VERSION_NUM < 180000
#define compat_not_null(desc, attnum) (TupleDescAttr(desc, (attnum) - 1)->attnotnull)
#else
#define compat_not_null(desc, attnum) \
	(TupleDescCompactAttr(desc, (attnum) - 1)->attnullability == ATTNULLABLE_VALID)
#endif

/* Does the collation compare bytes?  The caller includes the header of locales. */
#if PG_VERSION_NUM < 180000
#define compat_collation_is_c(collation) lc_collate_is_c(collation)
#else
#define compat_collation_is_c(collation) \
	(pg_newlocale_from_collation(collation)->collate_is_c)
#endif

#endif							/* WEFT_COMPAT_H */
