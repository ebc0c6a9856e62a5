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

CREATE INDEX ddl_queue_time_index ON weft.ddl_queue (captured_at);
CREATE INDEX ddl_queue_made_index ON weft.ddl_queue (((message->>'made_at')::pg_lsn));

CREATE TABLE weft.ddl_applied (
	applied_at timestamptz NOT NULL,
	subname name NOT NULL,
	subid oid NOT NULL,
	id bigint NOT NULL,
	lsn pg_lsn NOT NULL,
	role text NOT NULL,
	tag text NOT NULL,
	statement text NOT NULL,
	result text NOT NULL,
	detail text,
	message json);

CREATE INDEX ddl_applied_time_index ON weft.ddl_applied (applied_at);
CREATE INDEX ddl_applied_lsn_index ON weft.ddl_applied (subname, lsn);
ALTER TABLE weft.ddl_applied REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.ddl_applied FROM PUBLIC;

COMMENT ON TABLE weft.ddl_applied IS
	'what has become of the schema changes of publishers here';

