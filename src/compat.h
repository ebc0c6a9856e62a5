/*
 * compat.h
 *	  Everything that differs between the server versions Weft supports.
 */
#ifndef WEFT_COMPAT_H
#define WEFT_COMPAT_H

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 190000
#error "Weft supports PostgreSQL 17 and 18"
#endif

#include "utils/injection_point.h"

/* 18 has another way to say that a function does not return. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/*
 * From 18 on the server reports and counts conflicts while it applies
 * (replication/conflict.h); before, only the debug log knew of them.
 */
#define HAVE_APPLY_CONFLICTS (PG_VERSION_NUM >= 180000)

/* These have more arguments from 18 on. */
#if PG_VERSION_NUM < 180000
#define compat_injection_point(name) INJECTION_POINT(name)
#define COMPAT_INJECTION_ARGUMENTS const char *name, const void *data
#define compat_init_range_table(estate, rte, perminfos) \
	ExecInitRangeTable(estate, list_make1(rte), perminfos)
#define compat_check_index_constraints(info, slot, estate, conflict, own, indexes) \
	((void) (own), ExecCheckIndexConstraints(info, slot, estate, conflict, indexes))
#define compat_index_beginscan(table, index, snapshot, num_keys) \
	index_beginscan(table, index, snapshot, num_keys, 0)
#define compat_foreign_key_enforced(key) true
#define compat_replication_slot_acquire(name) ReplicationSlotAcquire(name, true)
#else
#define compat_injection_point(name) INJECTION_POINT(name, NULL)
#define COMPAT_INJECTION_ARGUMENTS const char *name, const void *data, void *arg
#define compat_init_range_table(estate, rte, perminfos) \
	ExecInitRangeTable(estate, list_make1(rte), perminfos, bms_make_singleton(1))
#define compat_check_index_constraints(info, slot, estate, conflict, own, indexes) \
	ExecCheckIndexConstraints(info, slot, estate, conflict, own, indexes)
#define compat_index_beginscan(table, index, snapshot, num_keys) \
	index_beginscan(table, index, snapshot, NULL, num_keys, 0)
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
#else
#define compat_is_session(process) ((process)->isRegularBackend)
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
