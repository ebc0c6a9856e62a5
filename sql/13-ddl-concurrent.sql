-- Schema changes of publishers that are executed outside of the stream.

-- Statements that cannot run in a transaction block, such as CREATE INDEX CONCURRENTLY, until they
-- have been executed.  Only Weft's C code writes this table, below SQL: a row names the role as
-- which its statement is executed.  The trigger is for members of pg_write_all_data, and for
-- mistakes of a superuser.
CREATE TABLE weft.ddl_concurrent (
	subid oid NOT NULL,
	subname name NOT NULL,
	id bigint NOT NULL,
	lsn pg_lsn NOT NULL,
	stored_at timestamptz NOT NULL,
	state text NOT NULL,
	attempts int NOT NULL,
	retry_at timestamptz NOT NULL,
	last_error text,
	made oid NOT NULL,
	message json NOT NULL);

ALTER TABLE weft.ddl_concurrent REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.ddl_concurrent FROM PUBLIC;

CREATE FUNCTION weft.check_ddl_concurrent()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RAISE EXCEPTION 'table "weft.ddl_concurrent" cannot be changed'
		USING ERRCODE = 'insufficient_privilege',
			DETAIL = 'Its rows are schema changes, which will be executed.';
END $$;

REVOKE ALL ON FUNCTION weft.check_ddl_concurrent() FROM PUBLIC;

CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.ddl_concurrent
	FOR EACH STATEMENT EXECUTE FUNCTION weft.check_ddl_concurrent();
ALTER TABLE weft.ddl_concurrent ENABLE ALWAYS TRIGGER refuse;

COMMENT ON TABLE weft.ddl_concurrent IS
	'schema changes of publishers that are executed outside of a transaction: those that wait, and those that have failed';
