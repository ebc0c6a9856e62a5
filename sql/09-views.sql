-- Views, and the functions under them.

-- Subscriptions.

CREATE FUNCTION weft.stat_get_subscription(
	OUT subid oid,
	OUT leader_pid integer,
	OUT num_writers integer,
	OUT wanted_writers integer,
	OUT busy_writers integer,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT apply_lag_bytes bigint,
	OUT publisher_lsn pg_lsn,
	OUT publisher_lsn_time timestamptz,
	OUT publisher_lag_bytes bigint,
	OUT lag_time interval,
	OUT apply_rate double precision,
	OUT apply_rate_bytes bigint,
	OUT catch_up_time interval,
	OUT transactions bigint,
	OUT native_transactions bigint,
	OUT changes bigint,
	OUT dependency_waits bigint,
	OUT order_waits bigint,
	OUT misspeculations bigint,
	OUT barriers bigint,
	OUT ring_size bigint,
	OUT ring_used bigint,
	OUT output_plugin text,
	OUT native_reason text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_subscription';

CREATE FUNCTION weft.stat_get_last_error(
	OUT subid oid,
	OUT last_error_time timestamptz,
	OUT last_error_lsn pg_lsn,
	OUT last_error text,
	OUT repeats integer,
	OUT overcome boolean)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_last_error';

COMMENT ON FUNCTION weft.stat_get_last_error() IS
	'the last error of every apply worker since the server started, for roles that may see it';

CREATE FUNCTION weft.stat_get_totals(
	OUT subid oid,
	OUT total_transactions bigint,
	OUT total_changes bigint,
	OUT worker_starts bigint,
	OUT errors bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_totals';

COMMENT ON FUNCTION weft.stat_get_totals() IS
	'counters of subscriptions over all of their apply workers';

CREATE VIEW weft.stat_subscription AS
	SELECT s.oid AS subid, s.subname,
		g.leader_pid, g.num_writers, g.busy_writers,
		g.received_lsn, g.applied_lsn, g.apply_lag_bytes,
		g.publisher_lsn, g.publisher_lsn_time, g.publisher_lag_bytes,
		g.lag_time, g.apply_rate, g.apply_rate_bytes, g.catch_up_time,
		g.transactions, g.native_transactions, g.changes,
		g.dependency_waits, g.order_waits, g.misspeculations, g.barriers,
		g.ring_size, g.ring_used, g.output_plugin, g.native_reason,
		e.last_error, e.last_error_time, e.last_error_lsn,
		coalesce(t.total_transactions, 0) AS total_transactions,
		coalesce(t.total_changes, 0) AS total_changes,
		coalesce(t.worker_starts, 0) AS worker_starts, coalesce(t.errors, 0) AS errors
	FROM pg_catalog.pg_subscription s
		LEFT JOIN weft.stat_get_subscription() g ON g.subid = s.oid
		LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid
		LEFT JOIN weft.stat_get_totals() t ON t.subid = s.oid;

COMMENT ON VIEW weft.stat_subscription IS
	'progress and counters of every subscription, since its apply worker started';
GRANT SELECT ON weft.stat_subscription TO PUBLIC;

-- Cuts: moments at which apply stood still, and both sides had the same transactions.
-- "snapshots": snapshots of the publisher that were tried for them.  The pauses are the longest
-- time without a break in which apply stood still for one request, whether or not it became a cut.
CREATE FUNCTION weft.stat_get_cut(
	OUT subid oid,
	OUT cuts bigint,
	OUT snapshots bigint,
	OUT last_pause interval,
	OUT longest_pause interval)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_cut';

CREATE VIEW weft.stat_cut AS
	SELECT g.subid, s.subname, g.cuts, g.snapshots, g.last_pause, g.longest_pause
	FROM weft.stat_get_cut() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_cut IS
	'for how long apply has paused for comparisons and repairs, since the apply worker started';
GRANT SELECT ON weft.stat_cut TO PUBLIC;

CREATE FUNCTION weft.stat_get_writer(
	OUT subid oid,
	OUT writer integer,
	OUT pid integer,
	OUT state text,
	OUT seq bigint,
	OUT remote_lsn pg_lsn,
	OUT transactions bigint,
	OUT changes bigint,
	OUT misspeculations bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_writer';

CREATE VIEW weft.stat_writer AS
	SELECT g.subid, s.subname, g.writer, g.pid, g.state, g.seq, g.remote_lsn,
		g.transactions, g.changes, g.misspeculations
	FROM weft.stat_get_writer() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_writer IS
	'state of every writer, and its counters since the apply worker started';
GRANT SELECT ON weft.stat_writer TO PUBLIC;

CREATE FUNCTION weft.stat_get_relation(
	OUT subid oid,
	OUT relation regclass,
	OUT path text,
	OUT reason text,
	OUT inserts bigint,
	OUT updates bigint,
	OUT deletes bigint,
	OUT general_rows bigint,
	OUT coalesced_rows bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_relation';

CREATE VIEW weft.stat_relation AS
	SELECT g.subid, s.subname, g.relation, g.path, g.reason,
		g.inserts, g.updates, g.deletes, g.general_rows, g.coalesced_rows
	FROM weft.stat_get_relation() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid
		JOIN pg_catalog.pg_class c ON c.oid = g.relation;

COMMENT ON VIEW weft.stat_relation IS
	'how writers apply rows of every relation, and how many they have applied since the apply worker started';
GRANT SELECT ON weft.stat_relation TO PUBLIC;

CREATE FUNCTION weft.stat_get_stream(
	OUT subid oid,
	OUT remote_xid xid,
	OUT state text,
	OUT writer integer,
	OUT spool_bytes bigint,
	OUT received_changes bigint,
	OUT applied_changes bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_stream';

CREATE VIEW weft.stat_stream AS
	SELECT g.subid, s.subname, g.remote_xid, g.state, g.writer,
		g.spool_bytes, g.received_changes, g.applied_changes
	FROM weft.stat_get_stream() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_stream IS
	'transactions that the publisher streams while they are in progress, or that wait for commit';
GRANT SELECT ON weft.stat_stream TO PUBLIC;

CREATE FUNCTION weft.stat_get_conflict(
	OUT subid oid,
	OUT conflict_type text,
	OUT conflicts bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_conflict';

CREATE VIEW weft.stat_conflict AS
	SELECT g.subid, s.subname, g.conflict_type, g.conflicts
	FROM weft.stat_get_conflict() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_conflict IS
	'number of conflicts of each type resolved since the apply worker started';
GRANT SELECT ON weft.stat_conflict TO PUBLIC;

CREATE FUNCTION weft.copy_get_progress(
	OUT subid oid,
	OUT relation regclass,
	OUT pid integer,
	OUT phase text,
	OUT helpers integer,
	OUT helpers_used integer,
	OUT rows_done bigint,
	OUT rows_estimated bigint,
	OUT bytes_done bigint,
	OUT bytes_estimated bigint,
	OUT bytes_per_second bigint,
	OUT time_left interval,
	OUT indexes integer,
	OUT indexes_done integer,
	OUT started_at timestamp with time zone,
	OUT last_error text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_copy_get_progress';

CREATE VIEW weft.copy_progress AS
	SELECT r.srsubid AS subid, s.subname, r.srrelid::pg_catalog.regclass AS relation,
		CASE
			-- With a position, the copy of weft.resync_table is not finished.
			WHEN r.srsubstate = 's' OR r.srsubstate = 'f' AND r.srsublsn IS NULL THEN 'catching up'
			WHEN g.pid IS NOT NULL THEN g.phase
			WHEN w.pid IS NOT NULL AND r.srsubstate = 'd' THEN 'copying'
			ELSE 'waiting'
		END AS phase,
		coalesce(g.helpers, 0) AS helpers,
		coalesce(nullif(g.rows_done, 0), p.tuples_processed, g.rows_done) AS rows_done,
		g.rows_estimated,
		coalesce(nullif(g.bytes_done, 0), p.bytes_processed, g.bytes_done) AS bytes_done,
		g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM pg_catalog.pg_subscription_rel r
		-- from 19 on, there may be sequences
		JOIN pg_catalog.pg_class t ON t.oid = r.srrelid AND t.relkind <> 'S'
		JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
		LEFT JOIN weft.copy_get_progress() g
			ON g.subid = r.srsubid AND g.relation = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_subscription w
			ON w.subid = r.srsubid AND w.relid = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = w.pid
	WHERE r.srsubstate <> 'r'
	UNION ALL
	SELECT NULL, NULL, g.relation, g.phase, g.helpers, g.rows_done, g.rows_estimated,
		g.bytes_done, g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM weft.copy_get_progress() g
	WHERE g.subid = 0 AND g.pid IS NOT NULL AND g.phase IN ('copying', 'indexing');

COMMENT ON VIEW weft.copy_progress IS
	'progress of the initial copy of every table that is not synchronized yet, or that this node copies to join a group';
GRANT SELECT ON weft.copy_progress TO PUBLIC;

-- Node groups.

CREATE VIEW weft.node AS
	SELECT n.node_name, n.node_id, n.state, n.is_local, g.node_group_name
	FROM weft.node_entry n LEFT JOIN weft.node_group_entry g ON true;

COMMENT ON VIEW weft.node IS
	'the members of the node group of this database';
GRANT SELECT ON weft.node TO PUBLIC;

-- An error may quote values of rows, so not every role may see it.
CREATE VIEW weft.node_group AS
	SELECT g.node_group_name, g.num_writers,
		(SELECT count(*) FROM weft.node_entry) AS members,
		j.step AS join_step,
		CASE WHEN has_table_privilege('weft.join_entry', 'SELECT')
			OR pg_has_role('pg_read_all_stats', 'USAGE') THEN j.error END AS join_error,
		g.failover
	FROM weft.node_group_entry g LEFT JOIN weft.join_entry j ON true;

COMMENT ON VIEW weft.node_group IS
	'the node group of this database';
GRANT SELECT ON weft.node_group TO PUBLIC;

-- Schema changes of members (src/apply/schema_wait.c).
CREATE FUNCTION weft.stat_get_schema_wait(OUT subid oid, OUT waiting_for text, OUT since timestamptz)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_schema_wait';

COMMENT ON FUNCTION weft.stat_get_schema_wait() IS
	'what changes wait for that a schema change of another member brings';

CREATE VIEW weft.node_replication AS
	SELECT n.node_name AS from_node, l.node_name AS to_node, s.subname AS subscription,
		CASE WHEN s.subname IS NULL THEN 'missing'
			WHEN NOT s.subenabled THEN 'disabled'
			WHEN w.leader_pid IS NULL THEN 'down'
			WHEN coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) > 0 THEN 'catching up'
			ELSE 'streaming' END AS state,
		coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) AS lag_bytes,
		w.lag_time, w.num_writers, w.last_error_time, w.last_error,
		(SELECT c.waiting_for FROM weft.stat_get_schema_wait() c WHERE c.subid = s.oid) AS waiting_for
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN (pg_catalog.pg_subscription s
			JOIN pg_catalog.pg_database d ON d.oid = s.subdbid AND d.datname = pg_catalog.current_database()
			JOIN weft.stat_subscription w ON w.subid = s.oid)
			ON s.subname = weft.subscription_name(g.node_group_name, n.node_name, l.node_name)
	UNION ALL
	SELECT l.node_name, n.node_name, t.slot_name,
		CASE WHEN t.slot_name IS NULL THEN 'missing'
			WHEN t.wal_status = 'lost' THEN 'lost'
			WHEN NOT t.active THEN 'down'
			WHEN r.state = 'catchup' THEN 'catching up'
			ELSE coalesce(r.state, 'starting') END,
		pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
				THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END,
			t.confirmed_flush_lsn)::bigint,
		r.replay_lag, NULL, NULL, NULL, NULL
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN pg_catalog.pg_replication_slots t
			ON t.slot_name = weft.subscription_name(g.node_group_name, l.node_name, n.node_name)
				AND t.database = pg_catalog.current_database()
		LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = t.active_pid;

COMMENT ON VIEW weft.node_replication IS
	'replication between this node and every other member, in both directions';
GRANT SELECT ON weft.node_replication TO PUBLIC;

CREATE FUNCTION weft.node_group_replication()
RETURNS SETOF weft.node_replication LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
BEGIN
	FOR member IN SELECT * FROM weft.member ORDER BY node_id LOOP
		BEGIN
			RETURN QUERY SELECT r.* FROM jsonb_populate_recordset(NULL::weft.node_replication,
				weft.node_query(member.dsn, member.node_name,
					format('SELECT jsonb_agg(r) FROM weft.node_replication r WHERE to_node = %L',
						member.node_name))::jsonb) r;
		EXCEPTION WHEN connection_failure THEN
			RETURN QUERY SELECT n.node_name, member.node_name,
				weft.subscription_name(weft.local_group(), n.node_name, member.node_name),
				'unreachable', NULL::bigint, NULL::interval, NULL::integer, clock_timestamp(), SQLERRM, NULL::text
				FROM weft.node_entry n WHERE n.node_name <> member.node_name;
		END;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.node_group_replication() IS
	'replication between all members, as each of them reports it';
REVOKE ALL ON FUNCTION weft.node_group_replication() FROM PUBLIC;
