-- Schema changes.

-- The schema changes that this server publishes, each in the transaction that has made it.  Only
-- Weft's C code inserts, below SQL: the subscriber executes a statement as the role that a row
-- names.  The trigger is for members of pg_write_all_data, and for mistakes of a superuser.
CREATE SEQUENCE weft.ddl_queue_id_seq;

CREATE TABLE weft.ddl_queue (
	id bigint NOT NULL,
	captured_at timestamptz NOT NULL,
	message json NOT NULL);

ALTER SEQUENCE weft.ddl_queue_id_seq OWNED BY weft.ddl_queue.id;
ALTER TABLE weft.ddl_queue REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.ddl_queue FROM PUBLIC;

CREATE FUNCTION weft.check_ddl_queue()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RAISE EXCEPTION 'table "weft.ddl_queue" cannot be changed'
		USING ERRCODE = 'insufficient_privilege',
			DETAIL = 'Its rows are schema changes, which subscribers execute.';
END $$;

REVOKE ALL ON FUNCTION weft.check_ddl_queue() FROM PUBLIC;

CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.ddl_queue
	FOR EACH STATEMENT EXECUTE FUNCTION weft.check_ddl_queue();
ALTER TABLE weft.ddl_queue ENABLE ALWAYS TRIGGER refuse;

COMMENT ON TABLE weft.ddl_queue IS
	'schema changes that were made here and are published';

CREATE TABLE weft.ddl_applied (
	applied_at timestamptz NOT NULL,
	subname name NOT NULL,
	id bigint NOT NULL,
	lsn pg_lsn NOT NULL,
	role text NOT NULL,
	tag text NOT NULL,
	statement text NOT NULL,
	result text NOT NULL);

ALTER TABLE weft.ddl_applied REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.ddl_applied FROM PUBLIC;

COMMENT ON TABLE weft.ddl_applied IS
	'schema changes of publishers that were applied here';

CREATE VIEW weft.ddl_history AS
	SELECT q.captured_at AS recorded_at,
		NULL::name AS subname,
		q.id,
		NULL::pg_lsn AS lsn,
		q.message->>'role' AS role,
		q.message->>'tag' AS tag,
		q.message->>'statement' AS statement,
		'captured'::text AS result
	FROM weft.ddl_queue q
	UNION ALL
	SELECT applied_at, subname, id, lsn, role, tag, statement, result
	FROM weft.ddl_applied
	UNION ALL
	SELECT c.stored_at, s.subname, c.id, c.lsn, c.message->>'role', c.message->>'tag',
		c.message->>'statement', c.state
	FROM weft.ddl_concurrent c JOIN pg_catalog.pg_subscription s ON s.oid = c.subid;

COMMENT ON VIEW weft.ddl_history IS
	'schema changes that were captured here for subscribers, and those of publishers that were applied here';
REVOKE ALL ON weft.ddl_history FROM PUBLIC;
