/*
 * plan_replication.c
 *	  Checks of a switch-over: the subscription, and what the way back needs.
 */
#include "postgres.h"

#include "switch/plan_replication.h"

static const PlanCheck checks[] = {
	{
		.name = "subscription",
		.here =
		"SELECT quote_ident(name), 'error', 'the subscription is disabled',"
		" format('ALTER SUBSCRIPTION %I ENABLE;', name) FROM subscription WHERE NOT subenabled"
		" UNION ALL SELECT quote_ident(name), 'error', 'the subscription has no slot',"
		" format('ALTER SUBSCRIPTION %I SET (slot_name = ...);', name)"
		" FROM subscription WHERE subslotname IS NULL"
		" UNION ALL SELECT quote_ident(name), 'error', format('a transaction is to be skipped, at LSN %s', subskiplsn),"
		" format('ALTER SUBSCRIPTION %I SKIP (lsn = NONE);', name)"
		" FROM subscription WHERE subskiplsn <> '0/0'"
		" UNION ALL SELECT quote_ident(name), 'error', 'no apply worker is running for the subscription',"
		" 'See the server log, and SELECT * FROM weft.stat_subscription;' FROM subscription WHERE subenabled"
		" AND NOT EXISTS (SELECT FROM pg_stat_get_subscription(oid) w WHERE w.worker_type = 'apply' AND w.pid IS NOT NULL)"
	},
	{
		.name = "tables_ready",
		.here =
		"SELECT format('%I.%I', nspname, relname), 'error', 'the initial copy of the table is not complete',"
		" 'Wait: SELECT weft.wait_for_subscription(' || quote_literal(name) || ', ''1 h'');'"
		" FROM replicated, subscription WHERE srsubstate <> 'r' ORDER BY 1"
	},
	{
		.name = "tables_subscribed",
		.there = "SELECT nspname, relname FROM published",
		.columns = "nsp, rel",
		.here =
		"SELECT format('%I.%I', nsp, rel), 'error', 'the table is published, but the subscription does not know it',"
		" format('ALTER SUBSCRIPTION %I REFRESH PUBLICATION;', name) FROM there, subscription"
		" WHERE NOT EXISTS (SELECT FROM replicated WHERE nspname = nsp AND relname = rel)"
		" UNION ALL SELECT format('%I.%I', nspname, relname), 'error', 'the table is not published any more',"
		" format('ALTER SUBSCRIPTION %I REFRESH PUBLICATION;', name) FROM replicated, subscription"
		" WHERE NOT EXISTS (SELECT FROM there WHERE nspname = nsp AND relname = rel) ORDER BY 1"
	},
	{
		.name = "slot",
		.there =
		"SELECT quote_ident(slot), 'error', 'the replication slot does not exist on the publisher',"
		" 'Create the subscription anew.' FROM subscription"
		" WHERE slot IS NOT NULL AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = slot)"
		" UNION ALL SELECT quote_ident(slot), 'error', 'the slot has been invalidated: WAL that it needs was removed',"
		" 'Create the subscription anew.' FROM subscription JOIN pg_replication_slots ON slot_name = slot"
		" WHERE wal_status = 'lost'"
		" UNION ALL SELECT quote_ident(slot), 'warning', 'WAL that the slot needs will soon be removed',"
		" 'ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf(); -- on the publisher'"
		" FROM subscription JOIN pg_replication_slots ON slot_name = slot WHERE wal_status = 'unreserved'"
		" UNION ALL SELECT quote_ident(slot), 'error', 'the subscription is not connected to the slot',"
		" 'See the log of both servers.' FROM subscription JOIN pg_replication_slots ON slot_name = slot"
		" WHERE NOT active AND wal_status <> 'lost'"
	},
	{
		.name = "lag",
		.there =
		"SELECT quote_ident(slot), 'warning', format('the subscription is %s behind',"
		" pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn))),"
		" NULL"
		" FROM subscription JOIN pg_replication_slots ON slot_name = slot"
		" WHERE pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) > 64 * 1024 * 1024",
		.remedy = "Wait until it has caught up, or end the load that it does not keep up with."
	},
	{
		.name = "two_phase",
		.here =
		"SELECT quote_ident(name), 'warning', 'two_phase is on, but will not be on the way back',"
		" 'Do not prepare transactions until the switch-over is over.'"
		" FROM subscription WHERE subtwophasestate <> 'd'"
	},
	{
		.name = "prepared_transactions",
		.there =
		"SELECT quote_literal(gid), 'error', 'a prepared transaction holds its locks, and cannot be fenced',"
		" format('COMMIT PREPARED %L; -- or ROLLBACK PREPARED, on the publisher', gid)"
		" FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1"
	},
	{
		.name = "prepared_transactions_here",
		.here =
		"SELECT quote_literal(gid), 'error', 'a prepared transaction holds its locks here',"
		" CASE WHEN gid ~ '^pg_gid_' THEN 'End the transaction on the publisher.'"
		" ELSE format('COMMIT PREPARED %L; -- or ROLLBACK PREPARED, here', gid) END"
		" FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1"
	},
	{
		.name = "publish_operations",
		.there =
		"SELECT quote_ident(p.pubname), CASE WHEN pubinsert AND pubupdate AND pubdelete THEN 'warning' ELSE 'error' END,"
		" 'the publication does not publish every INSERT, UPDATE, DELETE and TRUNCATE',"
		" format('ALTER PUBLICATION %I SET (publish = ''insert, update, delete, truncate''); -- on the publisher', p.pubname)"
		" FROM pg_publication p JOIN publication USING (pubname)"
		" WHERE NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate)"
		" UNION ALL SELECT quote_ident(pubname), 'error', 'the publication does not exist on the publisher',"
		" format('ALTER SUBSCRIPTION %I DROP PUBLICATION %I;', name, pubname) FROM publication, subscription"
		" WHERE NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = publication.pubname) ORDER BY 1"
	},
	{
		.name = "wal_level",
		.for_reverse = true,
		/* From 19 on, a slot makes the server log what decoding needs. */
		.here =
		"SELECT NULL, 'error', format('wal_level is %s here', setting),"
		" 'ALTER SYSTEM SET wal_level = logical; -- here, then restart the server'"
		" FROM pg_settings WHERE name = 'wal_level' AND setting <> 'logical'"
		" AND (setting = 'minimal' OR current_setting('effective_wal_level', true) IS NULL)"
	},
	{
		.name = "slots_here",
		.for_reverse = true,
		.here =
		"SELECT NULL, 'error', format('all %s replication slots are in use here', s.setting),"
		" format('ALTER SYSTEM SET max_replication_slots = %s; -- here, then restart the server', s.setting::int + 5)"
		" FROM (SELECT current_setting('max_replication_slots')) s(setting) WHERE s.setting::int <= (SELECT count(*) FROM pg_replication_slots)"
		" UNION ALL SELECT NULL, 'warning', format('%s is %s: the slot of the old publisher may be invalidated', s.name, s.setting),"
		" format('ALTER SYSTEM RESET %I; SELECT pg_reload_conf();', s.name) FROM pg_settings s"
		" WHERE s.name = 'max_slot_wal_keep_size' AND s.setting <> '-1'"
		" OR s.name = 'idle_replication_slot_timeout' AND s.setting <> '0'"
	},
	{
		.name = "wal_senders_here",
		.for_reverse = true,
		.here =
		"SELECT NULL, 'error', format('all %s WAL senders are in use here', s.setting),"
		" format('ALTER SYSTEM SET max_wal_senders = %s; -- here, then restart the server', s.setting::int + 5)"
		" FROM (SELECT current_setting('max_wal_senders')) s(setting) WHERE s.setting::int <= (SELECT count(*) FROM pg_stat_get_wal_senders())"
	},
	{
		.name = "origins_there",
		.for_reverse = true,
		.there =
		"SELECT NULL, 'error', format('all %s replication origins are in use on the publisher', s.setting),"
		" format('ALTER SYSTEM SET %I = %s; -- on the publisher, then restart it', s.name, s.setting::int + 5)"
		" FROM (SELECT CASE WHEN current_setting('server_version_num')::int >= 180000"
		" THEN 'max_active_replication_origins' ELSE 'max_replication_slots' END) n(name)"
		", LATERAL (SELECT n.name, current_setting(n.name)) s(name, setting) WHERE s.setting::int <= (SELECT count(*) FROM pg_replication_origin)"
	},
	{
		.name = "workers_there",
		.for_reverse = true,
		.there =
		"SELECT NULL, 'error', format('all %s logical replication workers are in use on the publisher', s.setting),"
		" format('ALTER SYSTEM SET max_logical_replication_workers = %s; -- on the publisher, then restart it', s.setting::int + 4)"
		" FROM (SELECT current_setting('max_logical_replication_workers')) s(setting) WHERE s.setting::int <= (SELECT count(*) FROM pg_subscription WHERE subenabled)"
		" UNION ALL SELECT NULL, 'error', format('all %s worker processes are in use on the publisher', s.setting),"
		" format('ALTER SYSTEM SET max_worker_processes = %s; -- on the publisher, then restart it', s.setting::int + 4)"
		" FROM (SELECT current_setting('max_worker_processes')) s(setting) WHERE s.setting::int <= (SELECT 1 + count(*) FROM pg_subscription WHERE subenabled)"
	},
	{
		.name = "versions",
		.there = "SELECT current_setting('server_version_num'), current_setting('server_version')",
		.columns = "num, version",
		.here =
		"SELECT version, 'warning', format('the publisher (%s) is of a later major version than this server (%s)',"
		" version, current_setting('server_version')), 'Switch over to a server that is not older.'"
		" FROM there WHERE num::int / 10000 > current_setting('server_version_num')::int / 10000"
		" UNION ALL SELECT version, 'warning', 'the way back to PostgreSQL 15 cannot tell where changes came from:"
		" origin = none needs 16', 'Upgrade the publisher, or let nothing else subscribe to it.'"
		" FROM there WHERE $3 AND num::int < 160000 AND EXISTS (SELECT FROM pg_subscription s, subscription t"
		"  WHERE s.subdbid = (SELECT d.oid FROM pg_database d WHERE datname = current_database()) AND s.oid <> t.oid)"
	},
	{
		.name = "subscriptions_here",
		.here =
		"SELECT quote_ident(s.subname), 'warning', 'this database has another subscription, whose changes will not reach the old publisher',"
		" NULL FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
		" WHERE d.datname = current_database() AND s.oid <> $1 ORDER BY 1"
	},
	{
		.name = "same_publisher",
		.there =
		"SELECT slot_name FROM pg_replication_slots WHERE database = current_database()",
		.columns = "other_slot",
		.here =
		"SELECT quote_ident(s.subname), 'error', 'another subscription replicates from the same database, and could not be switched over afterwards',"
		" format('DROP SUBSCRIPTION %I; -- and add its publications to %I', s.subname, t.name)"
		" FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid, subscription t"
		" WHERE d.datname = current_database() AND s.oid <> $1"
		" AND EXISTS (SELECT FROM there WHERE other_slot = s.subslotname) ORDER BY 1"
	},
	{
		.name = "subscriptions_there",
		.there =
		"SELECT quote_ident(s.subname), 'warning', 'the publisher has a subscription itself; its changes will not reach this server'"
		" || CASE WHEN subenabled THEN '' ELSE ' (disabled)' END,"
		" NULL FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
		" WHERE d.datname = current_database() ORDER BY 1",
		.remedy = "Create this subscription here, too."
	},
	{
		.name = "slots_there",
		.there =
		"SELECT quote_ident(slot_name), 'warning', format('the %s slot of the publisher stays behind, with who reads from it', slot_type),"
		" NULL"
		" FROM pg_replication_slots, subscription WHERE NOT temporary AND (database = current_database() OR database IS NULL)"
		" AND slot_name IS DISTINCT FROM slot AND slot_name !~ '^pg_[0-9]+_sync_' ORDER BY 1",
		.remedy = "Let it read from this server after the switch-over."
	}
};

void
plan_replication_run(PlanRun *run)
{
	plan_query_run(run, checks, lengthof(checks));
}
