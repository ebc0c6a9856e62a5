-- What has become of schema changes.

-- Schema changes that failed, and that users have applied by hand, until the subscription comes to
-- them.  C code inserts and deletes, below SQL.
CREATE TABLE weft.ddl_skip (
	subid oid NOT NULL,
	id bigint NOT NULL,
	requested_by name NOT NULL,
	requested_at timestamptz NOT NULL);

ALTER TABLE weft.ddl_skip REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.ddl_skip FROM PUBLIC;

COMMENT ON TABLE weft.ddl_skip IS
	'schema changes of publishers that failed and were then applied by hand';

-- Everybody may execute it: it checks that the caller owns the subscription.
CREATE FUNCTION weft.skip_ddl(subscription name, id bigint)
RETURNS void AS 'MODULE_PATHNAME', 'weft_skip_ddl'
LANGUAGE C STRICT VOLATILE;

COMMENT ON FUNCTION weft.skip_ddl(name, bigint) IS
	'a schema change that has failed counts as applied by hand';

-- Everybody may execute it, for the same reason.
CREATE FUNCTION weft.retry_ddl(subscription name, id bigint)
RETURNS void AS 'MODULE_PATHNAME', 'weft_retry_ddl'
LANGUAGE C STRICT VOLATILE;

COMMENT ON FUNCTION weft.retry_ddl(name, bigint) IS
	'executes again a schema change with CONCURRENTLY that has failed';

-- Statements may contain what is nobody else's business.  Whoever may see the statements of all
-- sessions (pg_read_all_stats, and with it pg_monitor) may see these.  Owners of subscriptions must
-- find out what has failed; but another subscription may have had the same name before.
CREATE VIEW weft.ddl_history WITH (security_barrier) AS
	SELECT h.recorded_at, h.subname, h.id, h.lsn, h.role, h.tag, h.statement, h.result, h.detail
	FROM (
		SELECT q.captured_at AS recorded_at,
			NULL::name AS subname,
			NULL::oid AS subid,
			q.id,
			NULL::pg_lsn AS lsn,
			q.message->>'role' AS role,
			q.message->>'tag' AS tag,
			q.message->>'statement' AS statement,
			'captured'::text AS result,
			NULL::text AS detail
		FROM weft.ddl_queue q
		UNION ALL
		SELECT applied_at, subname, subid, id, lsn, role, tag, statement, result, detail
		FROM weft.ddl_applied
		UNION ALL
		SELECT c.stored_at, s.subname, c.subid, c.id, c.lsn, c.message->>'role', c.message->>'tag',
			c.message->>'statement', c.state, c.last_error
		FROM weft.ddl_concurrent c JOIN pg_catalog.pg_subscription s ON s.oid = c.subid) h
	WHERE pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
		OR h.subid IN (
			SELECT s.oid
			FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_database d ON d.oid = s.subdbid
			WHERE d.datname = pg_catalog.current_database()
				AND pg_catalog.pg_has_role(s.subowner, 'USAGE'));

COMMENT ON VIEW weft.ddl_history IS
	'schema changes that were captured here for subscribers, and what has become of those of publishers';
GRANT SELECT ON weft.ddl_history TO PUBLIC;
