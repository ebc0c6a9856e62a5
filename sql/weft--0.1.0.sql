-- The SQL objects of Weft.
\echo Use "CREATE EXTENSION weft" to load this file. \quit

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
	OUT general_rows bigint)
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
		g.inserts, g.updates, g.deletes, g.general_rows
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

CREATE FUNCTION weft.wait_for_subscription(subscription name, timeout interval)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_wait_for_subscription';

COMMENT ON FUNCTION weft.wait_for_subscription(name, interval) IS
	'waits until all tables are synchronized and what the publisher has now is applied';

GRANT USAGE ON SCHEMA weft TO PUBLIC;
GRANT SELECT ON weft.stat_subscription, weft.stat_writer, weft.stat_relation, weft.stat_stream
	TO PUBLIC;
