-- The option "ddl" of publications: where it is stored, and what it refuses.
CREATE EXTENSION weft;
CREATE ROLE regress_ddl_owner;

CREATE TEMPORARY VIEW labels AS
	SELECT p.pubname, l.label FROM pg_seclabel l JOIN pg_publication p ON p.oid = l.objoid
	WHERE l.provider = 'weft' AND l.classoid = 'pg_publication'::regclass
	ORDER BY p.pubname;
CREATE TEMPORARY VIEW members AS
	SELECT p.pubname, r.prrelid::regclass AS relation
	FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
	ORDER BY p.pubname, r.prrelid::regclass::text COLLATE "C";

SET client_min_messages = error;	-- wal_level may be too low
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p_all FOR ALL TABLES WITH (ddl = all);
CREATE PUBLICATION p_table FOR TABLE t WITH (ddl = table, publish = 'insert');
CREATE PUBLICATION p_none FOR TABLE t WITH (ddl = none);
CREATE PUBLICATION p_plain FOR TABLE t;
SELECT * FROM labels;
SELECT * FROM members;

-- other options and tables leave it as it is
ALTER PUBLICATION p_table SET (publish = 'insert, delete');
ALTER PUBLICATION p_table SET TABLE t;
ALTER PUBLICATION p_table RENAME TO p_renamed;
SELECT * FROM labels;
SELECT * FROM members;
ALTER PUBLICATION p_plain SET (ddl = table, publish = 'insert');
ALTER PUBLICATION p_all SET (ddl = none);
ALTER PUBLICATION p_renamed SET (ddl = none);
SELECT * FROM labels;
SELECT * FROM members;

-- rollback restores the old value
BEGIN;
ALTER PUBLICATION p_plain SET (ddl = none);
SELECT * FROM labels;
ROLLBACK;
SELECT * FROM labels;

-- bad values
ALTER PUBLICATION p_plain SET (ddl = some);
ALTER PUBLICATION p_plain SET (ddl);
ALTER PUBLICATION p_plain SET (ddl = all, ddl = table);
ALTER PUBLICATION p_plain SET (publish = 'update');
ALTER PUBLICATION p_plain SET (publish = 'update', ddl = none);
ALTER PUBLICATION p_plain SET (ddl = table);
ALTER PUBLICATION p_missing SET (ddl = table);
SELECT * FROM labels;

-- the statement that a restore executes
SECURITY LABEL FOR weft ON PUBLICATION p_renamed IS 'ddl=table';
SECURITY LABEL FOR weft ON PUBLICATION p_none IS 'ddl=';
SECURITY LABEL FOR weft ON PUBLICATION p_none IS 'num_writers=3';
SELECT * FROM labels;
SELECT * FROM members;
SECURITY LABEL FOR weft ON PUBLICATION p_renamed IS NULL;
SELECT * FROM labels;
SELECT * FROM members;

-- an ordinary role
ALTER TABLE t OWNER TO regress_ddl_owner;
ALTER PUBLICATION p_renamed OWNER TO regress_ddl_owner;
SET ROLE regress_ddl_owner;
ALTER PUBLICATION p_renamed SET (ddl = all);
ALTER PUBLICATION p_plain SET (ddl = table);
SECURITY LABEL FOR weft ON PUBLICATION p_renamed IS 'ddl=all';
ALTER PUBLICATION p_renamed SET (ddl = table);
RESET ROLE;
SELECT * FROM labels;

-- the same statement executed repeatedly, as PL/pgSQL does it
DO $$
BEGIN
	FOR i IN 1..2 LOOP
		ALTER PUBLICATION p_none SET (ddl = table);
	END LOOP;
END
$$;
SELECT * FROM labels;

-- what is captured: the statement alone, and who wants it
CREATE TABLE first (a int); ALTER TABLE t ADD COLUMN v text; CREATE /* and */ INDEX i ON t (v) -- so on
;
SELECT message->>'tag' AS tag, message->>'statement' AS statement, message->>'publications' AS publications
	FROM weft.ddl_queue ORDER BY id;
BEGIN;
ALTER TABLE t ADD COLUMN w int;
SAVEPOINT s;
ALTER TABLE t DROP COLUMN w;
ROLLBACK TO s;
COMMIT;
SELECT message->>'statement' AS statement FROM weft.ddl_queue ORDER BY id DESC LIMIT 1;

-- without the extension
DROP PUBLICATION p_all, p_renamed, p_none, p_plain;
DROP VIEW labels, members;
DROP EXTENSION weft;
CREATE PUBLICATION p FOR ALL TABLES WITH (ddl = table);
CREATE PUBLICATION p FOR ALL TABLES WITH (ddl = none);
DROP PUBLICATION p;
DROP TABLE t, first;
DROP ROLE regress_ddl_owner;
