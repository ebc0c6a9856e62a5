-- Who sees which schema changes in the history, and who may say that one was applied by hand.
CREATE EXTENSION weft;
CREATE ROLE regress_ddl_owner;
CREATE ROLE regress_ddl_monitor IN ROLE pg_monitor;
CREATE ROLE regress_ddl_nobody;
SET client_min_messages = error;	-- the subscriptions are not connected
CREATE SUBSCRIPTION regress_ddl_one CONNECTION 'dbname=nosuch password=x' PUBLICATION p WITH (connect = false, slot_name = NONE);
CREATE SUBSCRIPTION regress_ddl_two CONNECTION 'dbname=nosuch' PUBLICATION p WITH (connect = false, slot_name = NONE);
RESET client_min_messages;
GRANT pg_create_subscription TO regress_ddl_owner;
DO $$
BEGIN
	EXECUTE format('GRANT CREATE ON DATABASE %I TO regress_ddl_owner', current_database());
END $$;
ALTER SUBSCRIPTION regress_ddl_one OWNER TO regress_ddl_owner;

-- what only C code does otherwise
INSERT INTO weft.ddl_applied
	SELECT v.at::timestamptz, s.subname, s.oid, v.id, v.lsn::pg_lsn, 'r', 'CREATE TABLE', v.statement, v.result, v.detail
	FROM (VALUES
		('2026-01-01 00:00', 'regress_ddl_one', 1, '0/1', 'CREATE TABLE one ()', 'applied', NULL),
		('2026-01-01 00:01', 'regress_ddl_one', 2, '0/2', 'CREATE TABLE two ()', 'failed', 'why'),
		('2026-01-01 00:02', 'regress_ddl_one', 3, '0/3', 'CREATE TABLE three ()', 'failed', 'why'),
		('2026-01-01 00:03', 'regress_ddl_one', 3, '0/3', 'CREATE TABLE three ()', 'applied', NULL),
		('2026-01-01 00:04', 'regress_ddl_two', 2, '0/2', 'CREATE TABLE secret ()', 'failed', 'why'))
		v (at, name, id, lsn, statement, result, detail) JOIN pg_subscription s ON s.subname = v.name
	ORDER BY v.at;
-- of another subscription, which had the name before
INSERT INTO weft.ddl_applied VALUES
	('2026-01-01 00:05', 'regress_ddl_one', 0, 4, '0/4', 'r', 'CREATE TABLE', 'CREATE TABLE former ()', 'applied', NULL);

CREATE FUNCTION pg_temp.leak(statement text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
BEGIN
	RAISE NOTICE 'saw %', statement;
	RETURN true;
END $$;
GRANT EXECUTE ON FUNCTION pg_temp.leak(text) TO PUBLIC;

SET ROLE regress_ddl_monitor;
SELECT subname, id, result, detail FROM weft.ddl_history ORDER BY recorded_at;
SELECT FROM weft.ddl_applied;
SELECT weft.skip_ddl('regress_ddl_one', 2);
SET ROLE regress_ddl_owner;
SELECT subname, id, statement FROM weft.ddl_history WHERE pg_temp.leak(statement) ORDER BY recorded_at;
SET ROLE regress_ddl_nobody;
SELECT subname, id, statement FROM weft.ddl_history WHERE pg_temp.leak(statement);
SELECT weft.skip_ddl('regress_ddl_one', 2);

-- only what has failed
SET ROLE regress_ddl_owner;
SELECT weft.skip_ddl('regress_ddl_one', 1);
SELECT weft.skip_ddl('regress_ddl_one', 3);
SELECT weft.skip_ddl('regress_ddl_one', 4);
SELECT weft.skip_ddl('regress_ddl_two', 2);
SELECT weft.skip_ddl('regress_ddl_three', 2);
SELECT weft.skip_ddl(NULL, 2);
SELECT weft.skip_ddl('regress_ddl_one', 2);
SELECT weft.skip_ddl('regress_ddl_one', 2);
SELECT * FROM weft.ddl_skip;
RESET ROLE;
SELECT weft.skip_ddl('regress_ddl_two', 2);
SELECT s.subname, k.id, k.requested_by = current_user AS by_me
	FROM weft.ddl_skip k JOIN pg_subscription s ON s.oid = k.subid ORDER BY 1;

-- requests are dropped with their subscription
DROP SUBSCRIPTION regress_ddl_one;
SELECT s.subname, k.id FROM weft.ddl_skip k LEFT JOIN pg_subscription s ON s.oid = k.subid;
DROP SUBSCRIPTION regress_ddl_two;
SELECT count(*) FROM weft.ddl_skip;

DO $$
BEGIN
	EXECUTE format('REVOKE CREATE ON DATABASE %I FROM regress_ddl_owner', current_database());
END $$;
DROP FUNCTION pg_temp.leak(text);
DROP ROLE regress_ddl_owner, regress_ddl_monitor, regress_ddl_nobody;
DROP EXTENSION weft;
