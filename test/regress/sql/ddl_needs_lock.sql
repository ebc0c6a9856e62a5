-- Which schema changes need a lock on their tables in a node group.
CREATE EXTENSION weft;
CREATE TABLE t (id int PRIMARY KEY, v varchar(5), w varchar, n numeric(5, 2), o text, i int);
CREATE INDEX t_o ON t (o);
CREATE UNIQUE INDEX t_v ON t (v);
CREATE TABLE whole (id int, v varchar(5) COLLATE "C");
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE parent (id int, v int);
CREATE TABLE child (x int) INHERITS (parent);
ALTER TABLE child REPLICA IDENTITY FULL;
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE TABLE parts_with_default (id int) PARTITION BY RANGE (id);
CREATE TABLE parts_default PARTITION OF parts_with_default DEFAULT;
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE mood AS ENUM ('sad');
CREATE TYPE pair AS (a int, b int);
CREATE VIEW view AS SELECT id FROM t;
CREATE MATERIALIZED VIEW stored AS SELECT id FROM t;
CREATE SEQUENCE s;

CREATE TEMPORARY TABLE statement (number int GENERATED ALWAYS AS IDENTITY, needs_lock boolean, statement text);

-- fit old and new rows of all members
INSERT INTO statement (needs_lock, statement) SELECT false, unnest(ARRAY[
	'ALTER TABLE t ADD COLUMN x int',
	'ALTER TABLE t ADD x int NULL',
	'ALTER TABLE t ADD x int DEFAULT NULL',
	'ALTER TABLE t ADD x int DEFAULT 3',
	'ALTER TABLE t ADD x int NOT NULL DEFAULT 3',
	'ALTER TABLE t ADD x int DEFAULT -3 NOT NULL',
	'ALTER TABLE t ADD x text DEFAULT ''a''::text COLLATE "C"',
	'ALTER TABLE t ADD x boolean DEFAULT true',
	'ALTER TABLE t ADD x date DEFAULT ''2026-01-01''',
	'ALTER TABLE t ADD COLUMN IF NOT EXISTS x mood, ADD COLUMN y pair',
	'ALTER TABLE IF EXISTS ONLY t ADD x int',
	'ALTER TABLE whole ADD x int',
	'ALTER TABLE parent ADD y int',
	'ALTER TABLE t ALTER i DROP NOT NULL',
	'ALTER TABLE t ALTER v TYPE varchar(6)',
	'ALTER TABLE t ALTER v TYPE varchar(5)',
	'ALTER TABLE t ALTER v TYPE varchar',
	'ALTER TABLE t ALTER v TYPE text',
	'ALTER TABLE t ALTER w TYPE varchar, ALTER w SET STATISTICS 1000',
	'ALTER TABLE t SET (fillfactor = 50), ALTER o SET STORAGE external, ALTER o SET COMPRESSION pglz',
	'ALTER INDEX t_o SET (fillfactor = 50)',
	'ALTER VIEW view SET (security_barrier)',
	'CREATE TABLE u (id serial PRIMARY KEY, v int UNIQUE CHECK (v > 0), t int REFERENCES t)',
	'CREATE TABLE IF NOT EXISTS u (LIKE t)',
	'CREATE TABLE u () INHERITS (parent)',
	'CREATE TABLE u (id int) PARTITION BY LIST (id)',
	'CREATE TABLE p PARTITION OF parts FOR VALUES FROM (0) TO (1)',
	'CREATE TABLE u AS SELECT * FROM t',
	'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
	'CREATE INDEX ON t (i)',
	'CREATE INDEX CONCURRENTLY IF NOT EXISTS x ON t USING hash (i)',
	'CREATE INDEX ON t (i DESC) INCLUDE (o) WHERE v IS NOT NULL AND i > 3 AND o LIKE ''a%''',
	'CREATE INDEX ON t (lower(o), (upper(v)), coalesce(o, v))',
	'CREATE INDEX ON t (i) WHERE v IN (''a'', ''b'') OR i BETWEEN 1 AND 2 OR NOT (i = 3)',
	'DROP INDEX t_o',
	'DROP INDEX CONCURRENTLY t_o',
	'DROP VIEW view',
	'DROP FUNCTION IF EXISTS f(int)',
	'ALTER TYPE mood ADD VALUE ''happy'' BEFORE ''sad''',
	'CREATE TYPE x AS ENUM (''a'')',
	'CREATE TYPE x AS (a int)',
	'CREATE DOMAIN x AS int CHECK (VALUE > 0)',
	'CREATE SEQUENCE x',
	'CREATE SCHEMA x CREATE TABLE u (id int) CREATE VIEW y AS SELECT 1',
	'CREATE EXTENSION amcheck',
	'CREATE OR REPLACE FUNCTION f(int) RETURNS int LANGUAGE sql RETURN 1',
	'CREATE PROCEDURE f(int) LANGUAGE sql BEGIN ATOMIC SELECT 1; END',
	'ALTER FUNCTION f(int) STRICT',
	'CREATE OR REPLACE VIEW view AS SELECT 1',
	'COMMENT ON COLUMN t.id IS ''key''',
	'GRANT SELECT ON t TO public',
	'REVOKE ALL ON SCHEMA public FROM public',
	'ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO public',
	'CREATE STATISTICS ON id, v FROM t']);

-- do not, or may not
INSERT INTO statement (needs_lock, statement) SELECT true, unnest(ARRAY[
	'ALTER TABLE t ADD x int NOT NULL',
	'ALTER TABLE t ADD x int NOT NULL DEFAULT NULL',
	'ALTER TABLE t ADD x int DEFAULT random()',
	'ALTER TABLE t ADD x timestamptz DEFAULT now()',
	'ALTER TABLE t ADD x timestamptz DEFAULT CURRENT_TIMESTAMP',
	'ALTER TABLE t ADD x date DEFAULT '' Today ''',
	'ALTER TABLE t ADD x timestamptz DEFAULT ''now''::timestamptz',
	'ALTER TABLE t ADD x int DEFAULT 1 + 1',
	'ALTER TABLE t ADD x int UNIQUE',
	'ALTER TABLE t ADD x int PRIMARY KEY',
	'ALTER TABLE t ADD x int CHECK (x > 0)',
	'ALTER TABLE t ADD x int REFERENCES t',
	'ALTER TABLE t ADD x serial',
	'ALTER TABLE t ADD x int GENERATED ALWAYS AS IDENTITY',
	'ALTER TABLE t ADD x int GENERATED ALWAYS AS (id * 2) STORED',
	'ALTER TABLE t ADD x positive',
	'ALTER TABLE t ADD x missing_type',
	'ALTER TABLE t ADD x int, DROP v',
	'ALTER TABLE whole ADD x int DEFAULT 3',
	'ALTER TABLE parent ADD y int DEFAULT 3',
	'ALTER TABLE missing ADD x int',
	'ALTER TABLE t DROP v',
	'ALTER TABLE t ALTER i SET NOT NULL',
	'ALTER TABLE t ALTER i SET DEFAULT 3',
	'ALTER TABLE t ALTER i DROP DEFAULT',
	'ALTER TABLE t ALTER v TYPE varchar(4)',
	'ALTER TABLE t ALTER w TYPE varchar(5)',
	'ALTER TABLE t ALTER v TYPE varchar(9) USING v || ''x''',
	'ALTER TABLE t ALTER v TYPE varchar(9) COLLATE "C"',
	'ALTER TABLE whole ALTER v TYPE varchar(9)',
	'ALTER TABLE t ALTER v TYPE char(9)',
	'ALTER TABLE t ALTER n TYPE numeric(9, 2)',
	'ALTER TABLE t ALTER i TYPE bigint',
	'ALTER TABLE t ALTER missing TYPE varchar(9)',
	'ALTER TABLE t ADD UNIQUE (i)',
	'ALTER TABLE t ADD CHECK (i > 0)',
	'ALTER TABLE t ADD FOREIGN KEY (i) REFERENCES t',
	'ALTER TABLE t DROP CONSTRAINT t_pkey',
	'ALTER TABLE t REPLICA IDENTITY FULL',
	'ALTER TABLE t ENABLE ROW LEVEL SECURITY',
	'ALTER TABLE t DISABLE TRIGGER ALL',
	'ALTER TABLE t OWNER TO CURRENT_USER',
	'ALTER TABLE t SET UNLOGGED',
	'ALTER TABLE t RENAME v TO x',
	'ALTER TABLE t RENAME TO x',
	'ALTER TABLE t SET SCHEMA pg_catalog',
	'ALTER TABLE parts ATTACH PARTITION t FOR VALUES FROM (0) TO (1)',
	'ALTER TABLE parts_with_default DETACH PARTITION parts_default',
	'ALTER TYPE pair ADD ATTRIBUTE c int',
	'ALTER TYPE mood RENAME VALUE ''sad'' TO ''happy''',
	'ALTER DOMAIN positive DROP CONSTRAINT x',
	'ALTER SEQUENCE s INCREMENT 2',
	'CREATE TABLE p PARTITION OF parts DEFAULT',
	'CREATE TABLE p PARTITION OF parts_with_default FOR VALUES FROM (0) TO (1)',
	'CREATE TABLE p PARTITION OF missing FOR VALUES FROM (0) TO (1)',
	'CREATE UNIQUE INDEX ON t (i)',
	'CREATE UNIQUE INDEX CONCURRENTLY ON t (i)',
	'CREATE INDEX ON t ((1 / i))',
	'CREATE INDEX ON t (f(i))',
	'CREATE INDEX ON t (other.lower(o))',
	'CREATE INDEX ON t (i) WHERE 1 / i > 3',
	'CREATE INDEX ON t ((o::int))',
	'CREATE INDEX ON t (i) WHERE o < ''now''',
	'DROP INDEX t_v',
	'DROP INDEX t_o, t_v',
	'DROP INDEX missing',
	'DROP INDEX t_o CASCADE',
	'DROP VIEW view CASCADE',
	'DROP TABLE t',
	'DROP TYPE pair',
	'DROP SCHEMA public CASCADE',
	'DROP EXTENSION amcheck',
	'TRUNCATE t',
	'CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()',
	'CREATE RULE x AS ON INSERT TO t DO NOTHING',
	'CREATE POLICY x ON t',
	'CREATE SCHEMA x CREATE TABLE u (id int) CREATE TRIGGER x BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION f()',
	'ALTER EXTENSION weft UPDATE']);

-- none is mistaken
SELECT statement, needs_lock AS expected FROM statement
	WHERE weft.ddl_needs_lock(statement) IS DISTINCT FROM needs_lock
	ORDER BY number;

SELECT weft.ddl_needs_lock('DROP VIEW view; DROP TABLE t');
SELECT weft.ddl_needs_lock('');

DROP EXTENSION weft;
DROP TABLE t, whole, parent, child, parts, parts_with_default CASCADE;
DROP DOMAIN positive;
DROP TYPE mood, pair;
DROP SEQUENCE s;
