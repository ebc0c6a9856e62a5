-- The SQL objects of Weft.
\echo Use "CREATE EXTENSION weft" to load this file. \quit

-- What this script names without a schema is the server's own.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Whoever else may create something in the schema could have functions and operators
-- there that are called in place of Weft's.
DO $$
DECLARE
	found record;
BEGIN
	SELECT n.oid, r.rolname, r.rolsuper OR r.rolname = current_user AS is_trusted,
			EXISTS (SELECT FROM aclexplode(n.nspacl) a
				WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS is_open,
			EXISTS (SELECT FROM pg_depend d
				WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
					AND d.classid <> 'pg_extension'::regclass) AS has_objects
		INTO STRICT found
		FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'weft';
	IF NOT found.is_trusted THEN
		RAISE EXCEPTION 'schema "weft" belongs to role "%"', found.rolname
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Its owner could run code with the rights of those who use the extension.',
				HINT = 'Drop or rename the schema; CREATE EXTENSION makes a new one.';
	ELSIF found.is_open THEN
		RAISE EXCEPTION 'others than its owner may create objects in schema "weft"'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Revoke the privilege CREATE on the schema.';
	ELSIF found.has_objects THEN
		RAISE EXCEPTION 'schema "weft" is not empty'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Drop or rename the schema; CREATE EXTENSION makes a new one.';
	END IF;
END $$;

CREATE FUNCTION weft.stat_get_subscription(
	OUT subid oid,
	OUT leader_pid integer,
	OUT num_writers integer,
	OUT busy_writers integer,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT lag_bytes bigint,
	OUT lag_time interval,
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

CREATE VIEW weft.stat_subscription AS
	SELECT s.oid AS subid, s.subname,
		g.leader_pid, g.num_writers, g.busy_writers,
		g.received_lsn, g.applied_lsn, g.lag_bytes, g.lag_time,
		g.transactions, g.native_transactions, g.changes,
		g.dependency_waits, g.order_waits, g.misspeculations, g.barriers,
		g.ring_size, g.ring_used, g.output_plugin, g.native_reason
	FROM pg_catalog.pg_subscription s
		LEFT JOIN weft.stat_get_subscription() g ON g.subid = s.oid;

COMMENT ON VIEW weft.stat_subscription IS
	'progress and counters of every subscription, since its apply worker started';

CREATE VIEW weft.stat_writer AS
	SELECT g.subid, s.subname, g.writer, g.pid, g.state, g.seq, g.remote_lsn,
		g.transactions, g.changes, g.misspeculations
	FROM weft.stat_get_writer() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_writer IS
	'what every writer is doing, and its counters since the apply worker started';

CREATE VIEW weft.stat_relation AS
	SELECT g.subid, s.subname, g.relation, g.path, g.reason,
		g.inserts, g.updates, g.deletes, g.general_rows, g.coalesced_rows
	FROM weft.stat_get_relation() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid
		JOIN pg_catalog.pg_class c ON c.oid = g.relation;

COMMENT ON VIEW weft.stat_relation IS
	'how rows of every relation are applied by writers, and how many were since the apply worker started';

CREATE VIEW weft.stat_stream AS
	SELECT g.subid, s.subname, g.remote_xid, g.state, g.writer,
		g.spool_bytes, g.received_changes, g.applied_changes
	FROM weft.stat_get_stream() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_stream IS
	'transactions that are being received while the publisher has them in progress, or that wait to be committed';

CREATE VIEW weft.copy_progress AS
	SELECT r.srsubid AS subid, s.subname, r.srrelid::pg_catalog.regclass AS relation,
		CASE
			WHEN r.srsubstate IN ('f', 's') THEN 'catching up'
			WHEN g.pid IS NOT NULL THEN g.phase
			WHEN w.pid IS NOT NULL AND r.srsubstate = 'd' THEN 'copying'
			ELSE 'waiting'
		END AS phase,
		coalesce(g.helpers, 0) AS helpers,
		coalesce(g.rows_done, p.tuples_processed) AS rows_done,
		g.rows_estimated,
		coalesce(g.bytes_done, p.bytes_processed) AS bytes_done,
		g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM pg_catalog.pg_subscription_rel r
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
	'how far the initial copy is of every table that is not synchronized yet, or that this node copies to join a group';

CREATE FUNCTION weft.copy_schema(
	conninfo text,
	publications text[],
	OUT object_type text,
	OUT object text,
	OUT created boolean,
	OUT note text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_copy_schema';

COMMENT ON FUNCTION weft.copy_schema(text, text[]) IS
	'creates the tables of a publisher''s publications that are missing here';

REVOKE ALL ON FUNCTION weft.copy_schema(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.copy_schema(text, text[]) TO pg_execute_server_program;

CREATE FUNCTION weft.wait_for_subscription(subscription name, timeout interval)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_wait_for_subscription';

COMMENT ON FUNCTION weft.wait_for_subscription(name, interval) IS
	'waits until all tables are synchronized and what the publisher has now is applied';

GRANT USAGE ON SCHEMA weft TO PUBLIC;
GRANT SELECT ON weft.stat_subscription, weft.stat_writer, weft.stat_relation, weft.stat_stream,
	weft.copy_progress TO PUBLIC;

