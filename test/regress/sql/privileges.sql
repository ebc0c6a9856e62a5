-- Privileges
-- what the server says of subscriptions that do not connect depends on its version
SET client_min_messages = error;
CREATE EXTENSION weft;
CREATE ROLE regress_weft_owner LOGIN;
CREATE ROLE regress_weft_other LOGIN;
GRANT pg_create_subscription TO regress_weft_owner;
GRANT CREATE ON DATABASE :"DBNAME" TO regress_weft_owner;

SET ROLE regress_weft_owner;
CREATE SUBSCRIPTION s CONNECTION 'dbname=nosuch password=secret' PUBLICATION p
	WITH (connect = false, num_writers = 2);
RESET ROLE;

-- only the owner can change the subscription or wait for it
SET ROLE regress_weft_other;
ALTER SUBSCRIPTION s SET (num_writers = 3);
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'num_writers=3';
SELECT weft.wait_for_subscription('s', '1 s');
SELECT weft.resync_table('s', 'pg_class');
SELECT weft.cancel_resync('s', 'pg_class');
-- everybody can read the views; they contain no connection strings
SELECT subname, leader_pid, num_writers FROM weft.stat_subscription;
SELECT count(*) FROM weft.stat_writer;
SELECT count(*) FROM weft.stat_relation;
SELECT count(*) FROM weft.stat_stream;
SELECT subname, relation, phase FROM weft.copy_progress;
SELECT weft.copy_schema('dbname=nosuch password=secret', '{p}');
SELECT string_agg(v::text, '') ~ 'secret' AS secret_shown FROM weft.stat_subscription v;
RESET ROLE;

SET ROLE regress_weft_owner;
ALTER SUBSCRIPTION s SET (num_writers = 3);
SECURITY LABEL FOR weft ON SUBSCRIPTION s IS 'num_writers=4';
RESET ROLE;
SELECT label FROM pg_shseclabel WHERE provider = 'weft';

-- null and unknown
SELECT weft.wait_for_subscription(NULL, '1 s') IS NULL AS nothing;
SELECT weft.wait_for_subscription('nosuch', '1 s');

ALTER SUBSCRIPTION s SET (slot_name = NONE);
DROP SUBSCRIPTION s;
REVOKE CREATE ON DATABASE :"DBNAME" FROM regress_weft_owner;
DROP ROLE regress_weft_owner, regress_weft_other;
DROP EXTENSION weft;
