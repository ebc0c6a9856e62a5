-- detect_conflicts, and the SQL functions about conflicts
-- what the server says of subscriptions that do not connect depends on its version
SET client_min_messages = error;
CREATE EXTENSION weft;

-- commit timestamps are required; the test server does not record them
CREATE SUBSCRIPTION s CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, detect_conflicts = on);
CREATE SUBSCRIPTION s CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = 3, detect_conflicts = off);
ALTER SUBSCRIPTION s SET (detect_conflicts);
ALTER SUBSCRIPTION s SET (detect_conflicts = maybe);
ALTER SUBSCRIPTION s SET (detect_conflicts = on, detect_conflicts = off);
CREATE SUBSCRIPTION t CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, detect_conflicts = on, two_phase = on);
SELECT label FROM pg_shseclabel WHERE provider = 'weft';

-- the label, as a restore sets it, is accepted in any case
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'num_writers=3, detect_conflicts=on';
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'detect_conflicts=on';
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'detect_conflicts=perhaps';
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'detect_conflicts=on, ';
SELECT label FROM pg_shseclabel WHERE provider = 'weft';
-- an option that is not named keeps its value
ALTER SUBSCRIPTION s SET (detect_conflicts = off);
SELECT count(*) FROM pg_shseclabel WHERE provider = 'weft';
ALTER SUBSCRIPTION s SET (num_writers = 4);
ALTER SUBSCRIPTION s SET (detect_conflicts = off);
SELECT label FROM pg_shseclabel WHERE provider = 'weft';

-- resolvers
SELECT weft.alter_node_set_conflict_resolver('', 'update_missing', 'skip');
SELECT weft.alter_node_set_conflict_resolver('s', 'update_missing', 'error');
SELECT weft.alter_node_set_conflict_resolver('', 'update_missing', 'keep_local');
SELECT * FROM weft.conflict_resolver ORDER BY 1;
SELECT weft.alter_node_set_conflict_resolver('', 'update_lost', 'skip');
SELECT weft.alter_node_set_conflict_resolver('', 'update_missing', 'guess');
SELECT weft.alter_node_set_conflict_resolver('nosuch', 'update_missing', 'skip');

-- delta columns
CREATE TABLE acc (id int PRIMARY KEY, n int NOT NULL, x numeric(10, 2) NOT NULL,
	t text NOT NULL, o bigint, g int GENERATED ALWAYS AS (n + 1) STORED NOT NULL);
SELECT weft.set_delta_columns('acc', '{n}');
ALTER TABLE acc REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('acc', '{n,x}');
SELECT * FROM weft.delta_column ORDER BY 2;
SELECT weft.set_delta_columns('acc', '{x,x}');
SELECT * FROM weft.delta_column ORDER BY 2;
SELECT weft.set_delta_columns('acc', '{id}');
SELECT weft.set_delta_columns('acc', '{t}');
SELECT weft.set_delta_columns('acc', '{o}');
SELECT weft.set_delta_columns('acc', '{g}');
SELECT weft.set_delta_columns('acc', '{nosuch}');
SELECT weft.set_delta_columns('acc', '{NULL}');
SELECT weft.set_delta_columns('pg_class', '{relpages}');
CREATE TABLE keyless (n int NOT NULL);
ALTER TABLE keyless REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('keyless', '{n}');
SELECT * FROM weft.delta_column ORDER BY 2;
SELECT weft.set_delta_columns('acc', '{}');
SELECT * FROM weft.delta_column ORDER BY 2;

-- deletes
SELECT weft.track_deletes('keyless');
SELECT weft.track_deletes('acc');
SELECT weft.track_deletes('acc');
INSERT INTO acc SELECT i, i, i, i FROM generate_series(1, 4) i;
UPDATE acc SET n = n + 1;
UPDATE acc SET id = id + 10 WHERE id > 2;
DELETE FROM acc WHERE id < 2;
SELECT relation::regclass, count(*), count(DISTINCT key), bool_and(commit_time IS NULL)
	FROM weft.tombstone GROUP BY 1;
-- equal keys have the same hash
DELETE FROM weft.tombstone;
CREATE TABLE num (a numeric, b text, PRIMARY KEY (b, a));
SELECT weft.track_deletes('num');
INSERT INTO num VALUES (1.0, 'x'), (2, 'x');
DELETE FROM num;
INSERT INTO num VALUES (1.00, 'x');
DELETE FROM num;
SELECT count(*), count(DISTINCT key) FROM weft.tombstone;
-- but not in a session that applies replicated changes
INSERT INTO num VALUES (3, 'x');
SET session_replication_role = replica;
DELETE FROM num;
RESET session_replication_role;
SELECT count(*) FROM weft.tombstone;
SELECT weft.track_deletes('num', false);
INSERT INTO num VALUES (3, 'x');
DELETE FROM num;
SELECT count(*) FROM weft.tombstone;
SELECT tgname FROM pg_trigger WHERE tgname LIKE 'weft%' ORDER BY 1;

-- these create triggers of the right kind
CREATE TRIGGER bad BEFORE DELETE ON num FOR EACH ROW EXECUTE FUNCTION weft.record_delete();
INSERT INTO num VALUES (4, 'x');
DELETE FROM num;
DROP TRIGGER bad ON num;
SELECT weft.record_delete();

-- ordinary users
CREATE ROLE regress_weft_user;
GRANT CREATE ON SCHEMA public TO regress_weft_user;
SET ROLE regress_weft_user;
SELECT weft.alter_node_set_conflict_resolver('', 'update_missing', 'skip');
SELECT weft.set_delta_columns('acc', '{n}');
SELECT weft.track_deletes('acc');
SELECT * FROM weft.conflict_history;
SELECT * FROM weft.tombstone;
SELECT * FROM weft.merged_row;
INSERT INTO weft.conflict_resolver VALUES ('', 'x', 'y');
SELECT * FROM weft.conflict_resolver ORDER BY 1;
SELECT * FROM weft.stat_conflict;
CREATE TABLE own (id int PRIMARY KEY, n int NOT NULL);
ALTER TABLE own REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('own', '{n}');
SELECT weft.track_deletes('own');
INSERT INTO own VALUES (1, 1);
DELETE FROM own;
SELECT * FROM weft.delta_column;
RESET ROLE;
GRANT EXECUTE ON FUNCTION weft.alter_node_set_conflict_resolver TO regress_weft_user;
GRANT SELECT ON weft.conflict_history TO regress_weft_user;
SET ROLE regress_weft_user;
SELECT weft.alter_node_set_conflict_resolver('', 'update_missing', 'skip');
SELECT weft.alter_node_set_conflict_resolver('s', 'update_missing', 'skip');
SELECT count(*) FROM weft.conflict_history;
RESET ROLE;
SELECT * FROM weft.conflict_resolver ORDER BY 1;

-- what is recorded
ALTER SYSTEM SET weft.conflict_history_types = 'insert_exists, update_lost';
ALTER SYSTEM SET weft.conflict_history_types = 'all, none';
ALTER SYSTEM SET weft.conflict_history_types = 'insert_exists, update_exists';
ALTER SYSTEM SET weft.conflict_history_types = 'none';
ALTER SYSTEM RESET weft.conflict_history_types;

ALTER SUBSCRIPTION s SET (slot_name = NONE);
DROP SUBSCRIPTION s;
DROP TABLE acc, keyless, num, own;
REVOKE ALL ON SCHEMA public FROM regress_weft_user;
DROP EXTENSION weft;
DROP ROLE regress_weft_user;
