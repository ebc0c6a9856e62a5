-- Schema changes of publishers without Weft: the part of the script that creates the table and chooses the
-- publications.  16-ddl-capture.sql says how all of it works.

CREATE FUNCTION weft.schema_capture_objects()
RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN $script$-- Publishes schema changes of this database to subscribers that have Weft, though Weft is not
-- loaded here (PostgreSQL 15 or later).  Run it with
--     psql -v ON_ERROR_STOP=1 -d DATABASE -f FILE
-- as a role that may create event triggers and schemas, and that owns the publications: a
-- superuser, or the administrator that a managed service gave you.  It may be run again.
-- Then, on the subscriber:
--     ALTER SUBSCRIPTION ... SET (ddl = trust_owner)

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on;

-- Objects that somebody else has put into the schema would run with the rights of this role.
DO $$
DECLARE
	stranger text;
BEGIN
	IF current_setting('server_version_num')::integer < 150000 THEN
		RAISE EXCEPTION 'PostgreSQL 15 or later is needed';
	END IF;
	IF EXISTS (SELECT FROM pg_extension WHERE extname = 'weft') THEN
		RAISE EXCEPTION 'extension "weft" is installed in this database'
			USING HINT = 'Use ALTER PUBLICATION ... SET (ddl = ...).';
	END IF;
	SELECT pg_get_userbyid(owner) INTO stranger FROM (
		SELECT nspowner FROM pg_namespace WHERE nspname = 'weft'
		UNION ALL SELECT a.grantee FROM pg_namespace n, aclexplode(n.nspacl) a
			WHERE n.nspname = 'weft' AND a.privilege_type = 'CREATE'
		UNION ALL SELECT c.relowner FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'weft'
		UNION ALL SELECT p.proowner FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
			WHERE n.nspname = 'weft'
		UNION ALL SELECT t.typowner FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
			WHERE n.nspname = 'weft'
		UNION ALL SELECT o.oprowner FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace
			WHERE n.nspname = 'weft') owners (owner)
		WHERE pg_get_userbyid(owner) <> current_user LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'schema "weft" is not only that of role "%"', current_user
			USING DETAIL = format('Role "%s" owns it or an object in it, or may create objects there.', stranger),
				HINT = 'Run this script as that role, or drop the schema.';
	END IF;
END $$;

DROP EVENT TRIGGER IF EXISTS "!weft_ddl_start";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_rewrite_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_rewrite_b";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_drop_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_drop_b";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_end_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_end_b";

CREATE SCHEMA IF NOT EXISTS weft;
REVOKE ALL ON SCHEMA weft FROM PUBLIC;

-- Schema changes, in the transactions that have made them.
CREATE TABLE IF NOT EXISTS weft.ddl_queue (
	id bigint PRIMARY KEY,
	captured_at timestamptz NOT NULL,
	message json NOT NULL);
REVOKE ALL ON weft.ddl_queue FROM PUBLIC;
CREATE SEQUENCE IF NOT EXISTS weft.ddl_queue_id_seq;

-- Its value is a secret: with it, the event triggers recognize what they have stored in a setting.
-- A table would be published by FOR ALL TABLES.
CREATE SEQUENCE IF NOT EXISTS weft.ddl_secret_seq;
REVOKE ALL ON weft.ddl_secret_seq FROM PUBLIC;
DO $$
BEGIN
	IF NOT (SELECT is_called FROM weft.ddl_secret_seq) THEN
		PERFORM setval('weft.ddl_secret_seq',
			('x' || left(md5(gen_random_uuid()::text || gen_random_uuid()::text), 15))::bit(60)::bigint + 1);
	END IF;
END $$;

-- For members of pg_write_all_data, and against mistakes.
CREATE OR REPLACE FUNCTION weft.check_ddl_queue()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF TG_OP = 'TRUNCATE' OR
		current_user <> (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = TG_RELID)
	THEN
		RAISE EXCEPTION 'table "weft.ddl_queue" cannot be changed'
			USING ERRCODE = 'insufficient_privilege',
				DETAIL = 'Its rows are schema changes, which subscribers execute.',
				HINT = 'Its owner may delete old rows.';
	END IF;
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.ddl_queue
	FOR EACH STATEMENT EXECUTE FUNCTION weft.check_ddl_queue();
ALTER TABLE weft.ddl_queue ENABLE ALWAYS TRIGGER refuse;

-- The publications that get schema changes.  A view, which weft.install_ddl_capture() defines
-- anew: a table would be published by FOR ALL TABLES, and subscribers have none of this name.
CREATE OR REPLACE FUNCTION weft.ddl_store_publications(chosen jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	lines text;
BEGIN
	SELECT string_agg(format(', (%s::oid, %L::name, %L::name, %L::text)',
			e.pubid, e.pubname, e.owner, e.level), '' ORDER BY e.pubname) INTO lines
		FROM jsonb_to_recordset(chosen) e (pubid oid, pubname name, owner name, level text);
	EXECUTE 'CREATE OR REPLACE VIEW weft.ddl_choice AS'
		' SELECT * FROM (VALUES (0::oid, ''''::name, ''''::name, ''''::text)' || coalesce(lines, '') ||
		') choice (pubid, pubname, owner, level) WHERE pubid <> 0';
END $$;

DO $$
BEGIN
	IF to_regclass('weft.ddl_choice') IS NULL THEN
		PERFORM weft.ddl_store_publications('[]');
	END IF;
END $$;
REVOKE ALL ON weft.ddl_choice FROM PUBLIC;

-- By name and owner: pg_upgrade gives publications other OIDs.
CREATE OR REPLACE VIEW weft.ddl_publications AS
	SELECT p.oid AS pubid, p.pubname, c.level, p.puballtables AS all_tables, p.pubviaroot AS via_root
	FROM weft.ddl_choice c
		JOIN pg_publication p ON p.pubname = c.pubname AND pg_get_userbyid(p.pubowner) = c.owner;
REVOKE ALL ON weft.ddl_publications FROM PUBLIC;

-- A publication of some tables must include weft.ddl_queue.
CREATE OR REPLACE FUNCTION weft.ddl_set_membership(publication name, member boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	is_member boolean := EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
		WHERE p.pubname = publication AND r.prrelid = 'weft.ddl_queue'::regclass);
BEGIN
	IF member AND NOT is_member THEN
		EXECUTE format('ALTER PUBLICATION %I ADD TABLE weft.ddl_queue', publication);
	ELSIF is_member AND NOT member THEN
		EXECUTE format('ALTER PUBLICATION %I DROP TABLE weft.ddl_queue', publication);
	END IF;
END $$;

-- Chooses which schema changes a publication publishes.
CREATE OR REPLACE FUNCTION weft.install_ddl_capture(publication name, ddl text DEFAULT 'table')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	existing pg_publication;
	chosen jsonb;
BEGIN
	SELECT p.* INTO existing FROM pg_publication p WHERE p.pubname = publication;
	IF existing.oid IS NULL THEN
		RAISE EXCEPTION 'publication "%" does not exist', publication
			USING ERRCODE = 'undefined_object';
	ELSIF ddl <> ALL ('{none,table,all}') THEN
		RAISE EXCEPTION 'invalid value for publication parameter "ddl": "%"', ddl
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use "none", "table" or "all".';
	ELSIF ddl <> 'none' AND NOT existing.pubinsert THEN
		RAISE EXCEPTION 'publication "%" cannot publish schema changes because it does not publish inserts',
				publication
			USING ERRCODE = 'object_not_in_prerequisite_state';
	ELSIF ddl = 'all' AND NOT existing.puballtables THEN
		RAISE EXCEPTION 'publication "%" cannot publish all schema changes because it is not FOR ALL TABLES',
				publication
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Use "table".';
	END IF;
	SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') INTO chosen FROM weft.ddl_choice c
		WHERE c.pubname <> publication;
	IF ddl <> 'none' THEN
		chosen := chosen || jsonb_build_array(jsonb_build_object('pubid', existing.oid::text,
			'pubname', publication, 'owner', pg_get_userbyid(existing.pubowner), 'level', ddl));
	END IF;
	PERFORM weft.ddl_store_publications(chosen);
	IF NOT existing.puballtables THEN
		PERFORM weft.ddl_set_membership(publication, ddl <> 'none');
	END IF;
END $$;

-- A publication was altered or dropped: follows it.
CREATE OR REPLACE FUNCTION weft.ddl_follow_publications()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	chosen jsonb;
BEGIN
	SELECT coalesce(jsonb_agg(jsonb_build_object('pubid', p.oid::text, 'pubname', p.pubname,
			'owner', pg_get_userbyid(p.pubowner), 'level', c.level)), '[]') INTO chosen
		FROM weft.ddl_choice c
			JOIN pg_publication p ON p.oid = c.pubid
				OR p.pubname = c.pubname AND pg_get_userbyid(p.pubowner) = c.owner
					AND NOT EXISTS (SELECT FROM pg_publication q WHERE q.oid = c.pubid);
	IF (SELECT count(*) FROM weft.ddl_choice) <> (SELECT count(*) FROM weft.ddl_publications) THEN
		PERFORM weft.ddl_store_publications(chosen);
	END IF;
END $$;

-- What belongs to a publication of tables or schemas, as CATALOG/OID: its tables with their
-- partitions, indexes, sequences, and types of columns.
CREATE OR REPLACE FUNCTION weft.ddl_keys(publication oid)
RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH RECURSIVE member (oid) AS (
		SELECT prrelid FROM pg_publication_rel
			WHERE prpubid = publication AND prrelid <> 'weft.ddl_queue'::regclass
		UNION
		SELECT c.oid FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
			WHERE n.pnpubid = publication
		UNION
		SELECT c.oid FROM member m JOIN pg_inherits i ON i.inhparent = m.oid
			JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition),
	used_type (oid) AS (
		SELECT atttypid FROM pg_attribute JOIN member m ON attrelid = m.oid
			WHERE attnum > 0 AND NOT attisdropped
		UNION
		SELECT t.oid FROM pg_publication_namespace n JOIN pg_type t ON t.typnamespace = n.pnnspid
			WHERE n.pnpubid = publication)
	SELECT array_agg(key) FROM (
		SELECT 'pg_class'::regclass::oid || '/' || oid FROM member
		UNION
		SELECT 'pg_class'::regclass::oid || '/' || indexrelid
			FROM pg_index JOIN member m ON indrelid = m.oid
		UNION
		SELECT 'pg_class'::regclass::oid || '/' || objid FROM pg_depend JOIN member m ON refobjid = m.oid
			WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass
				AND deptype IN ('a', 'i')
		UNION
		SELECT 'pg_type'::regclass::oid || '/' || oid FROM used_type
		UNION
		SELECT 'pg_type'::regclass::oid || '/' || t.typelem
			FROM used_type JOIN pg_type t USING (oid) WHERE t.typelem <> 0) keys (key)
$$;

$script$;
REVOKE ALL ON FUNCTION weft.schema_capture_objects() FROM PUBLIC;
