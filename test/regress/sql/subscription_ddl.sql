-- The option "ddl" of CREATE and ALTER SUBSCRIPTION
CREATE EXTENSION weft;
CREATE TEMPORARY VIEW labels AS
	SELECT s.subname, l.label
	FROM pg_shseclabel l JOIN pg_subscription s ON s.oid = l.objoid
	WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
	ORDER BY 1;

SET client_min_messages = error;	-- the subscriptions are not connected
CREATE SUBSCRIPTION plain CONNECTION 'dbname=nosuch' PUBLICATION p WITH (connect = false, ddl = on);
CREATE SUBSCRIPTION ignores CONNECTION 'dbname=nosuch' PUBLICATION p WITH (connect = false, ddl = off);
CREATE SUBSCRIPTION trusts CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = 3, ddl = trust_owner);
SELECT * FROM labels;

-- other options leave it as it is
ALTER SUBSCRIPTION trusts SET (num_writers = 4, binary = true);
ALTER SUBSCRIPTION plain SET (ddl = 'trust_owner', num_writers = 2);
ALTER SUBSCRIPTION ignores SET (ddl = on);
SELECT * FROM labels;

-- bad values
ALTER SUBSCRIPTION plain SET (ddl);
ALTER SUBSCRIPTION plain SET (ddl = all);
ALTER SUBSCRIPTION plain SET (ddl = 1);
ALTER SUBSCRIPTION plain SET (ddl = on, ddl = off);
SELECT * FROM labels;

-- the statement that a restore executes
SECURITY LABEL FOR weft ON SUBSCRIPTION ignores IS 'num_writers=2, ddl=off';
SECURITY LABEL FOR weft ON SUBSCRIPTION plain IS 'ddl=trust_owner';
SECURITY LABEL FOR weft ON SUBSCRIPTION plain IS 'ddl=all';
SECURITY LABEL FOR weft ON SUBSCRIPTION plain IS 'ddl=';
SELECT * FROM labels;

-- only the owner
CREATE ROLE regress_ddl_other;
SET ROLE regress_ddl_other;
ALTER SUBSCRIPTION plain SET (ddl = on);
SECURITY LABEL FOR weft ON SUBSCRIPTION plain IS 'ddl=on';
RESET ROLE;
DROP ROLE regress_ddl_other;
SELECT * FROM labels;

ALTER SUBSCRIPTION plain SET (slot_name = NONE);
ALTER SUBSCRIPTION ignores SET (slot_name = NONE);
ALTER SUBSCRIPTION trusts SET (slot_name = NONE);
DROP SUBSCRIPTION plain;
DROP SUBSCRIPTION ignores;
DROP SUBSCRIPTION trusts;
SELECT * FROM labels;
DROP VIEW labels;
DROP EXTENSION weft;
