-- The SQL objects of Weft: where they are created.
--
-- The parts of this script are put together in the order of their numbers.  What PUBLIC may
-- do with an object is said right after its definition.
\echo Use "CREATE EXTENSION weft" to load this file. \quit

-- What this script names without a schema is the server's own.
SET LOCAL search_path = pg_catalog, pg_temp;

-- A role that may create objects in the schema could put functions and operators there
-- that are called in place of Weft's.
DO $$
DECLARE
	found record;
BEGIN
	SELECT n.oid, r.rolname, r.rolsuper OR r.rolname = current_user AS is_trusted,
			EXISTS (SELECT FROM aclexplode(n.nspacl) a
				WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS is_open,
			EXISTS (SELECT FROM pg_depend d
				WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
					AND d.classid <> 'pg_extension'::regclass) AS has_objects
		INTO STRICT found
		FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'weft';
	IF NOT found.is_trusted THEN
		RAISE EXCEPTION 'schema "weft" belongs to role "%"', found.rolname
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Its owner could run code with the rights of those who use the extension.',
				HINT = 'Drop or rename the schema; CREATE EXTENSION creates a new one.';
	ELSIF found.is_open THEN
		RAISE EXCEPTION 'roles other than its owner may create objects in schema "weft"'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Revoke the privilege CREATE on the schema.';
	ELSIF found.has_objects THEN
		RAISE EXCEPTION 'schema "weft" is not empty'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Drop or rename the schema; CREATE EXTENSION creates a new one.';
	END IF;
END $$;

GRANT USAGE ON SCHEMA weft TO PUBLIC;
-- Tables, with their indexes and triggers.
--
-- The triggers fire ALWAYS: a writer, and the worker that joins a node, are replicas to
-- triggers.  A table without a key has a replica identity all the same, since it can be
-- published FOR ALL TABLES: NOTHING, where Weft writes it below SQL and logical decoding
-- ignores it; FULL, where SQL writes it.

CREATE FUNCTION weft.table_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_table_changed';

-- Conflicts.

CREATE TABLE weft.conflict_resolver (
	subname name NOT NULL,
	conflict_type text NOT NULL,
	conflict_resolver text NOT NULL,
	PRIMARY KEY (subname, conflict_type));

CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_resolver
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
ALTER TABLE weft.conflict_resolver ENABLE ALWAYS TRIGGER conflict_settings_changed;
SELECT pg_catalog.pg_extension_config_dump('weft.conflict_resolver', '');

COMMENT ON TABLE weft.conflict_resolver IS
	'how this node resolves conflicts; an empty name stands for all subscriptions';
GRANT SELECT ON weft.conflict_resolver TO PUBLIC;

CREATE TABLE weft.conflict_node (
	subname name PRIMARY KEY,
	node_id integer NOT NULL);

CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_node
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
ALTER TABLE weft.conflict_node ENABLE ALWAYS TRIGGER conflict_settings_changed;
SELECT pg_catalog.pg_extension_config_dump('weft.conflict_node', '');

COMMENT ON TABLE weft.conflict_node IS
	'the id of the node behind each subscription, which decides between changes with the same commit time; an empty name stands for this node';
GRANT SELECT ON weft.conflict_node TO PUBLIC;

CREATE TABLE weft.delta_column (
	relation regclass NOT NULL,
	column_name name NOT NULL,
	PRIMARY KEY (relation, column_name));

CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.delta_column
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
ALTER TABLE weft.delta_column ENABLE ALWAYS TRIGGER conflict_settings_changed;
SELECT pg_catalog.pg_extension_config_dump('weft.delta_column', '');

COMMENT ON TABLE weft.delta_column IS
	'columns to which an update adds the difference between its new and old value';
GRANT SELECT ON weft.delta_column TO PUBLIC;

CREATE SEQUENCE weft.conflict_history_id_seq;

CREATE TABLE weft.conflict_history (
	id bigint PRIMARY KEY DEFAULT pg_catalog.nextval('weft.conflict_history_id_seq'),
	recorded_at timestamptz NOT NULL,
	subname name NOT NULL,
	relation text NOT NULL,
	conflict_type text NOT NULL,
	resolver text NOT NULL,
	resolution text NOT NULL,
	index_name text,
	key jsonb NOT NULL,
	local_row jsonb,
	local_commit_time timestamptz,
	local_origin text,
	local_node integer,
	remote_row jsonb,
	remote_commit_time timestamptz NOT NULL,
	remote_origin text,
	remote_node integer NOT NULL,
	remote_xid xid NOT NULL,
	remote_lsn pg_lsn NOT NULL);

CREATE INDEX conflict_history_time_index ON weft.conflict_history (recorded_at);
ALTER SEQUENCE weft.conflict_history_id_seq OWNED BY weft.conflict_history.id;
ALTER TABLE weft.conflict_history REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.conflict_history IS
	'conflicts that were resolved here, with the rows involved';

CREATE TABLE weft.tombstone (
	relation oid NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz,
	node_id integer,
	recorded_at timestamptz NOT NULL);

CREATE INDEX tombstone_key_index ON weft.tombstone (relation, key);
CREATE INDEX tombstone_time_index ON weft.tombstone (recorded_at);
CREATE INDEX tombstone_open_index ON weft.tombstone (recorded_at) WHERE commit_time IS NULL;
ALTER TABLE weft.tombstone REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.tombstone IS
	'hashes of the keys of deleted rows, and of unique values that rows have had';

CREATE TABLE weft.merged_row (
	relation oid NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz,
	node_id integer,
	recorded_at timestamptz NOT NULL,
	written_by bigint NOT NULL);

-- A hot row has many entries, and one of them is looked for.  The type xid has no order.
CREATE INDEX merged_row_key_index ON weft.merged_row (relation, key, written_by);
CREATE INDEX merged_row_time_index ON weft.merged_row (recorded_at);
ALTER TABLE weft.merged_row REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.merged_row IS
	'versions of rows whose last write changed delta columns only';

CREATE TABLE weft.row_time (
	xid bigint NOT NULL,
	part integer NOT NULL,
	commit_time timestamptz NOT NULL,
	seed bigint NOT NULL,
	recorded_at timestamptz NOT NULL,
	entries bytea STORAGE PLAIN NOT NULL,
	CONSTRAINT row_time_pkey PRIMARY KEY (xid, part));

CREATE INDEX row_time_time_index ON weft.row_time (recorded_at);
ALTER TABLE weft.row_time REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.row_time IS
	'commit times of rows whose transactions share a commit';

CREATE TABLE weft.deleted_counter (
	relation oid NOT NULL,
	key uuid NOT NULL,
	column_name name NOT NULL,
	value numeric NOT NULL,
	recorded_at timestamptz NOT NULL);

CREATE INDEX deleted_counter_key_index ON weft.deleted_counter (relation, key);
CREATE INDEX deleted_counter_time_index ON weft.deleted_counter (recorded_at);
ALTER TABLE weft.deleted_counter REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.deleted_counter IS
	'values of delta columns of deleted rows, including what was added to them since';

-- The table is about OIDs and transactions of this server, so a dump does not contain it.
CREATE TABLE weft.past_origin (
	origin oid NOT NULL,
	node_id integer NOT NULL,
	until xid8 NOT NULL);

ALTER TABLE weft.past_origin REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.past_origin IS
	'the node whose rows were written under an origin in transactions before "until": of a dropped subscription, or of weft.repair()';

-- Node groups.  Every member keeps the same list of members.  No table here is part of
-- a dump (pg_extension_config_dump): a database restored from one is not a member.

CREATE TABLE weft.node_group_entry (
	node_group_name name PRIMARY KEY,
	num_writers integer CHECK (num_writers BETWEEN 1 AND 64),
	next_node_id integer NOT NULL
);

REVOKE ALL ON weft.node_group_entry FROM PUBLIC;

CREATE FUNCTION weft.forget_dsn()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.set_node_dsn(OLD.node_name, NULL);
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.forget_dsn() IS
	'removes the connection string of a member that is removed';
REVOKE ALL ON FUNCTION weft.forget_dsn() FROM PUBLIC;

CREATE TABLE weft.node_entry (
	node_name name PRIMARY KEY,
	node_id integer UNIQUE CHECK (node_id BETWEEN 1 AND 1023),
	state text NOT NULL CHECK (state IN ('created', 'joining', 'active', 'parting', 'leaving')),
	is_local boolean NOT NULL DEFAULT false,
	identity uuid NOT NULL DEFAULT gen_random_uuid(),
	start_lsn pg_lsn,
	cut_lsn pg_lsn
);

-- One node at a time joins or parts.
CREATE UNIQUE INDEX node_entry_changing ON weft.node_entry ((true))
	WHERE state IN ('joining', 'parting', 'leaving');
CREATE UNIQUE INDEX node_entry_local ON weft.node_entry ((true)) WHERE is_local;

CREATE TRIGGER node_entry_changed AFTER INSERT OR UPDATE OR DELETE ON weft.node_entry
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_changed;

CREATE TRIGGER node_entry_deleted AFTER DELETE ON weft.node_entry
	FOR EACH ROW EXECUTE FUNCTION weft.forget_dsn();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_deleted;

COMMENT ON TABLE weft.node_entry IS
	'the members of the node group; "identity" distinguishes nodes of the same name';
REVOKE ALL ON weft.node_entry FROM PUBLIC;

-- A joining node registers itself on a member here.  An unlogged table is neither written
-- to the WAL nor published, so the connection string is in neither.
CREATE UNLOGGED TABLE weft.arriving_node (
	node_name name NOT NULL,
	node_id integer NOT NULL,
	identity uuid NOT NULL,
	dsn text NOT NULL
);

COMMENT ON TABLE weft.arriving_node IS
	'a joining node, until it is entered into the list of members';
REVOKE ALL ON weft.arriving_node FROM PUBLIC;

CREATE TABLE weft.join_entry (
	node_group_name name NOT NULL,
	target_node name NOT NULL,
	copy_schema boolean NOT NULL,
	copied boolean NOT NULL DEFAULT false,
	recent_since timestamptz,
	step text NOT NULL DEFAULT 'start',
	error text
);

CREATE UNIQUE INDEX join_entry_one ON weft.join_entry ((true));
ALTER TABLE weft.join_entry REPLICA IDENTITY FULL;

COMMENT ON TABLE weft.join_entry IS
	'the progress of this node in joining a group';
REVOKE ALL ON weft.join_entry FROM PUBLIC;

-- Rows that were changed recently on the node that is copied (src/group/recent.c).
CREATE TABLE weft.join_recent (
	relation oid NOT NULL,
	row_key text[] NOT NULL,
	changed timestamptz NOT NULL,
	node_name name NOT NULL
);

CREATE INDEX join_recent_changed ON weft.join_recent (changed, node_name);
ALTER TABLE weft.join_recent REPLICA IDENTITY FULL;

COMMENT ON TABLE weft.join_recent IS
	'rows that are still to get the time and the origin of their last change';
REVOKE ALL ON weft.join_recent FROM PUBLIC;

-- The contents of weft.tombstone and weft.merged_row there, without the OIDs and
-- transaction ids, which mean something else here.
CREATE TABLE weft.join_tombstone (
	relation text NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz NOT NULL,
	node_id integer NOT NULL
);

ALTER TABLE weft.join_tombstone REPLICA IDENTITY FULL;

COMMENT ON TABLE weft.join_tombstone IS
	'rows that were deleted recently on the node that is copied';
REVOKE ALL ON weft.join_tombstone FROM PUBLIC;

CREATE TABLE weft.join_merged_row (
	relation text NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz NOT NULL,
	node_id integer NOT NULL,
	changed timestamptz NOT NULL,
	node_name name NOT NULL
);

CREATE INDEX join_merged_row_changed ON weft.join_merged_row (changed, node_name);
ALTER TABLE weft.join_merged_row REPLICA IDENTITY FULL;

COMMENT ON TABLE weft.join_merged_row IS
	'rows into which counters were merged recently on the node that is copied';
REVOKE ALL ON weft.join_merged_row FROM PUBLIC;
-- Members of a node group: connections to them, and what this node has of each.
--
-- A function whose name begins with member_ does one member's share of something.  Another
-- member calls it through a connection of its own.

-- Connection strings contain passwords, and are in no table (src/group/dsn.c).
CREATE FOREIGN DATA WRAPPER weft_node;
CREATE SERVER weft_node FOREIGN DATA WRAPPER weft_node;

CREATE FUNCTION weft.create_dsn_store()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_create_dsn_store';

SELECT weft.create_dsn_store();
DROP FUNCTION weft.create_dsn_store();

CREATE FUNCTION weft.node_dsn(node text)
RETURNS text
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_get_node_dsn';

COMMENT ON FUNCTION weft.node_dsn(text) IS
	'the connection string of a member, or of the "join target"';
REVOKE ALL ON FUNCTION weft.node_dsn(text) FROM PUBLIC;

CREATE FUNCTION weft.set_node_dsn(node text, dsn text)
RETURNS void
LANGUAGE C VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'weft_set_node_dsn';

COMMENT ON FUNCTION weft.set_node_dsn(text, text) IS
	'stores the connection string of a member; null removes it';
REVOKE ALL ON FUNCTION weft.set_node_dsn(text, text) FROM PUBLIC;

CREATE VIEW weft.member AS
	SELECT node_name, node_id, state, is_local, identity, weft.node_dsn(node_name) AS dsn
	FROM weft.node_entry;

COMMENT ON VIEW weft.member IS
	'the members of the node group, with their connection strings';
REVOKE ALL ON weft.member FROM PUBLIC;

CREATE FUNCTION weft.node_query(dsn text, node text, query text, is_command boolean DEFAULT false)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_query';

COMMENT ON FUNCTION weft.node_query(text, text, text, boolean) IS
	'runs a query on another member and returns its single value';
REVOKE ALL ON FUNCTION weft.node_query(text, text, text, boolean) FROM PUBLIC;

CREATE FUNCTION weft.node_send(dsn text, node text, copy text, line text, query text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_send';

COMMENT ON FUNCTION weft.node_send(text, text, text, text, text) IS
	'copies a line to another member and runs a query there in the same transaction';
REVOKE ALL ON FUNCTION weft.node_send(text, text, text, text, text) FROM PUBLIC;

CREATE FUNCTION weft.node_query_all(dsns text[], nodes text[], query text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_query_all';

COMMENT ON FUNCTION weft.node_query_all(text[], text[], text) IS
	'runs a query on several members, or, if it fails on one, on none';
REVOKE ALL ON FUNCTION weft.node_query_all(text[], text[], text) FROM PUBLIC;

-- This node.

-- Every role may see these names, as in weft.node.
CREATE FUNCTION weft.local_node()
RETURNS name LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT node_name FROM weft.node_entry WHERE is_local $$;

COMMENT ON FUNCTION weft.local_node() IS
	'the name of this node, if it is one';

CREATE FUNCTION weft.local_group()
RETURNS name LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT node_group_name FROM weft.node_group_entry $$;

COMMENT ON FUNCTION weft.local_group() IS
	'the group that this node is in';

CREATE FUNCTION weft.local_subscription(from_node name)
RETURNS oid LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT s.oid FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
	WHERE d.datname = current_database()
		AND s.subname = weft.subscription_name(weft.local_group(), from_node, weft.local_node())
$$;

COMMENT ON FUNCTION weft.local_subscription(name) IS
	'the subscription of this node to another one, if there is one';

CREATE FUNCTION weft.subscription_name(node_group name, from_node name, to_node name)
RETURNS name LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
	SELECT ('weft_' || node_group || '_' || from_node || '_' || to_node)::name;
END;

COMMENT ON FUNCTION weft.subscription_name(name, name, name) IS
	'the name of a subscription of a node group, and of its slot';

CREATE FUNCTION weft.member_info()
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_build_object(
		'node', (SELECT node_name FROM weft.node_entry WHERE is_local),
		'state', (SELECT state FROM weft.node_entry WHERE is_local),
		'group', (SELECT node_group_name FROM weft.node_group_entry),
		'num_writers', (SELECT num_writers FROM weft.node_group_entry),
		'next_node_id', (SELECT next_node_id FROM weft.node_group_entry),
		'changing', (SELECT node_name FROM weft.node_entry WHERE state IN ('joining', 'parting', 'leaving')),
		'identity', (SELECT identity FROM weft.node_entry WHERE is_local),
		'changing_identity', (SELECT identity FROM weft.node_entry WHERE state IN ('joining', 'parting', 'leaving')),
		'database', system_identifier || '/' || d.oid,
		'started', extract(epoch FROM pg_postmaster_start_time()),
		'wal_level', current_setting('wal_level'),
		'track_commit_timestamp', current_setting('track_commit_timestamp'),
		'max_replication_slots', weft.count_free('max_replication_slots'),
		'max_wal_senders', weft.count_free('max_wal_senders'),
		'max_logical_replication_workers', weft.count_free('max_logical_replication_workers'),
		'max_active_replication_origins', weft.count_free('max_active_replication_origins'),
		'equal', jsonb_build_object(
			'major version', current_setting('server_version_num')::integer / 10000,
			'version of the extension', (SELECT extversion FROM pg_extension WHERE extname = 'weft'),
			'encoding', pg_encoding_to_char(d.encoding),
			'collation', concat_ws(' ', d.datlocprovider, d.datcollate, d.datctype, d.datlocale)))
	FROM pg_control_system(), pg_database d
	WHERE d.datname = current_database()
$$;

COMMENT ON FUNCTION weft.member_info() IS
	'properties of this node that other nodes check';
REVOKE ALL ON FUNCTION weft.member_info() FROM PUBLIC;

CREATE FUNCTION weft.member_list()
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_agg(jsonb_build_object('name', node_name, 'id', node_id,
		'identity', identity, 'state', state, 'dsn', dsn) ORDER BY node_id)
	FROM weft.member
$$;

COMMENT ON FUNCTION weft.member_list() IS
	'the members of the group, with their connection strings';
REVOKE ALL ON FUNCTION weft.member_list() FROM PUBLIC;

CREATE FUNCTION weft.count_free(of_what text)
RETURNS integer LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN CASE of_what
		WHEN 'max_replication_slots' THEN current_setting('max_replication_slots')::integer
			- (SELECT count(*) FROM pg_replication_slots)
		WHEN 'max_wal_senders' THEN current_setting('max_wal_senders')::integer
			- (SELECT count(*) FROM pg_stat_get_wal_senders())
		WHEN 'max_logical_replication_workers' THEN current_setting('max_logical_replication_workers')::integer
			- (SELECT count(*) FROM pg_subscription WHERE subenabled)
		WHEN 'max_active_replication_origins' THEN coalesce(
			current_setting('max_active_replication_origins', true),
			current_setting('max_replication_slots'))::integer
			- (SELECT count(*) FROM pg_replication_origin)
		END;
END $$;

COMMENT ON FUNCTION weft.count_free(text) IS
	'how much of what a parameter limits is still available';

CREATE FUNCTION weft.member_settings()
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_build_object(
		'resolvers', (SELECT coalesce(jsonb_agg(jsonb_build_array(conflict_type, conflict_resolver)), '[]')
			FROM weft.conflict_resolver WHERE subname = ''),
		'deltas', (SELECT coalesce(jsonb_agg(jsonb_build_array(relation::text, columns)), '[]')
			FROM (SELECT d.relation, jsonb_agg(d.column_name) AS columns
				FROM weft.delta_column d JOIN pg_class c ON c.oid = d.relation GROUP BY 1) deltas))
$$;

COMMENT ON FUNCTION weft.member_settings() IS
	'how this node resolves conflicts, for a joining node';
REVOKE ALL ON FUNCTION weft.member_settings() FROM PUBLIC;

CREATE FUNCTION weft.check_identity(node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM weft.node_entry n WHERE n.node_name = node AND n.identity = node_identity) THEN
		RAISE EXCEPTION 'node "%" knows no node "%", or another one of that name', weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_identity(name, uuid) IS
	'fails unless the member of that name is the node that the caller means';
REVOKE ALL ON FUNCTION weft.check_identity(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.refuse_namesake(node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF EXISTS (SELECT FROM weft.node_entry n WHERE n.node_name = node) THEN
		PERFORM weft.check_identity(node, node_identity);
	END IF;
END $$;

COMMENT ON FUNCTION weft.refuse_namesake(name, uuid) IS
	'fails if a member has that name, but is not the node that the caller means';
REVOKE ALL ON FUNCTION weft.refuse_namesake(name, uuid) FROM PUBLIC;

-- What there is to replicate.

CREATE FUNCTION weft.is_group_schema(schema name)
RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
	SELECT schema NOT IN ('weft', 'information_schema') AND schema !~ '^pg_';
END;

COMMENT ON FUNCTION weft.is_group_schema(name) IS
	'does a node group replicate the tables of this schema?';

CREATE FUNCTION weft.group_tables()
RETURNS SETOF regclass LANGUAGE sql STABLE
BEGIN ATOMIC
	SELECT c.oid::regclass
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND weft.is_group_schema(n.nspname)
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
			WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
	ORDER BY c.oid;
END;

COMMENT ON FUNCTION weft.group_tables() IS
	'the tables that a node group replicates';

-- Tables are published one by one.  Otherwise, a table that is created on one member alone
-- would stop the others, which do not have it.
CREATE FUNCTION weft.published_tables()
RETURNS SETOF regclass LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT t.prrelid::regclass FROM pg_publication p JOIN pg_publication_rel t ON t.prpubid = p.oid
	WHERE p.pubname = 'weft_' || weft.local_group()
	ORDER BY t.prrelid::oid
$$;

COMMENT ON FUNCTION weft.published_tables() IS
	'the tables that this node publishes to its group';
REVOKE ALL ON FUNCTION weft.published_tables() FROM PUBLIC;

-- The columns of the index by which the server finds rows.
CREATE FUNCTION weft.key_columns(relation regclass)
RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT array_agg(a.attname::text ORDER BY k.i)
	FROM (SELECT i.indkey::int2[] AS columns, i.indnkeyatts
			FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
			WHERE i.indrelid = relation AND i.indimmediate AND i.indisvalid
				AND (i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
			ORDER BY c.relreplident = 'i' AND i.indisreplident DESC LIMIT 1) i,
		LATERAL unnest(i.columns) WITH ORDINALITY k(attnum, i)
		JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = k.attnum
	WHERE k.i <= i.indnkeyatts
$$;

COMMENT ON FUNCTION weft.key_columns(regclass) IS
	'the columns of the replica identity index or primary key of a table, if it has one';

CREATE FUNCTION weft.schema_definition()
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
	SELECT coalesce(jsonb_object_agg(t.relation::text, t.definition), '{}')
	FROM (SELECT r AS relation,
			(SELECT string_agg(format('%I %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
					CASE WHEN a.attnotnull THEN ' NOT NULL' END,
					CASE WHEN a.attgenerated <> '' THEN ' GENERATED' END), ', '
					ORDER BY a.attname COLLATE "C")
				FROM pg_attribute a
				WHERE a.attrelid = r AND a.attnum > 0 AND NOT a.attisdropped)
			|| coalesce((SELECT string_agg('; ' || pg_get_constraintdef(k.oid), ''
					ORDER BY pg_get_constraintdef(k.oid) COLLATE "C")
				FROM pg_constraint k WHERE k.conrelid = r AND k.contype IN ('p', 'u')), '') AS definition
		FROM weft.group_tables() r) t
$$;

COMMENT ON FUNCTION weft.schema_definition() IS
	'columns and keys of all tables, for comparing nodes';
REVOKE ALL ON FUNCTION weft.schema_definition() FROM PUBLIC;

-- SECURITY DEFINER, since the role that manages the node need not own the tables.
CREATE FUNCTION weft.member_publish(tables text[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
DECLARE
	publication name := 'weft_' || (SELECT node_group_name FROM weft.node_group_entry);
	missing text;
BEGIN
	IF publication IS NULL THEN
		RETURN;
	END IF;
	IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = publication) THEN
		EXECUTE format('CREATE PUBLICATION %I', publication);
	END IF;
	missing := (SELECT string_agg('ONLY ' || r::text, ', ') FROM weft.group_tables() r
		WHERE (tables IS NULL OR r::text = ANY (tables))
			AND r NOT IN (SELECT weft.published_tables()));
	IF missing IS NOT NULL THEN
		EXECUTE format('ALTER PUBLICATION %I ADD TABLE %s', publication, missing);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_publish(text[]) IS
	'creates the publication of this node or adds tables to it: those named, or all';
REVOKE ALL ON FUNCTION weft.member_publish(text[]) FROM PUBLIC;

CREATE FUNCTION weft.member_unpublish()
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	publication name := 'weft_' || (SELECT node_group_name FROM weft.node_group_entry);
BEGIN
	IF EXISTS (SELECT FROM pg_publication WHERE pubname = publication) THEN
		EXECUTE format('DROP PUBLICATION %I', publication);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_unpublish() IS
	'drops the publication of this node';
REVOKE ALL ON FUNCTION weft.member_unpublish() FROM PUBLIC;

CREATE FUNCTION weft.member_track_deletes(enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.track_deletes(r, enabled) FROM weft.group_tables() r
		WHERE (NOT enabled OR weft.key_columns(r) IS NOT NULL)
			AND (enabled <> EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = r AND t.tgname = 'weft_record_delete')
			-- The key may have changed.
			OR enabled AND NOT EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = r AND t.tgname = 'weft_record_key_change'
					AND weft.key_columns(r) <@ ARRAY(SELECT a.attname::text FROM pg_attribute a
						WHERE a.attrelid = r AND a.attnum = ANY (t.tgattr))));
END $$;

COMMENT ON FUNCTION weft.member_track_deletes(boolean) IS
	'makes all tables of the group remember deleted rows, or none';
REVOKE ALL ON FUNCTION weft.member_track_deletes(boolean) FROM PUBLIC;

-- Slots and subscriptions.

-- SECURITY DEFINER, since not every role may see the parameter.
CREATE FUNCTION weft.output_plugin()
RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN coalesce(setting, '') = ''
			OR 'weft' = ANY (regexp_split_to_array(setting, '[\s,"]+'))
		THEN 'weft' ELSE 'pgoutput' END
	FROM current_setting('output_plugin_libraries', true) setting
$$;

COMMENT ON FUNCTION weft.output_plugin() IS
	'the output plugin for slots of a node group on this server';

-- Slot names are unique within a server, not a database.
CREATE FUNCTION weft.member_make_slot(for_node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1min'
AS $$
DECLARE
	slot name := weft.subscription_name(weft.local_group(), weft.local_node(), for_node);
BEGIN
	PERFORM weft.check_identity(for_node, node_identity);
	IF EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = slot AND database IS DISTINCT FROM current_database())
	THEN
		RAISE EXCEPTION 'the server of node "%" already has a slot "%", in another database',
			weft.local_node(), slot
			USING ERRCODE = 'duplicate_object',
				HINT = 'Choose another name for the node; slot names are unique within a server.';
	END IF;
	PERFORM pg_create_logical_replication_slot(slot, weft.output_plugin());
EXCEPTION WHEN lock_not_available THEN
	RAISE EXCEPTION 'could not create slot "%" on node "%"', slot, weft.local_node()
		USING ERRCODE = 'lock_not_available',
			DETAIL = 'Long-running transactions kept it from becoming ready.',
			HINT = 'End long-running transactions there, and join again.';
END $$;

COMMENT ON FUNCTION weft.member_make_slot(name, uuid) IS
	'creates the slot on this node through which another node follows it';
REVOKE ALL ON FUNCTION weft.member_make_slot(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.member_drop_slot(for_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	slot name := weft.subscription_name(weft.local_group(), weft.local_node(), for_node);
	until timestamptz := clock_timestamp() + interval '30 s';
BEGIN
	-- The walsender that uses the slot may be about to end, or may not know that it should.
	WHILE EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = slot AND database = current_database())
	LOOP
		BEGIN
			PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots
				WHERE slot_name = slot AND active_pid IS NOT NULL;
			PERFORM pg_drop_replication_slot(slot);
		EXCEPTION WHEN object_in_use OR undefined_object THEN
			IF clock_timestamp() > until THEN
				RAISE;
			END IF;
			PERFORM pg_sleep(0.02);
		END;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.member_drop_slot(name) IS
	'drops the slot on this node through which another node follows it';
REVOKE ALL ON FUNCTION weft.member_drop_slot(name) FROM PUBLIC;

CREATE FUNCTION weft.create_node_subscription(subscription name, dsn text,
	publication name, num_writers integer, enabled boolean)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_create_node_subscription';

COMMENT ON FUNCTION weft.create_node_subscription(name, text, name, integer, boolean) IS
	'creates a subscription of a node group, for a slot that exists';
REVOKE ALL ON FUNCTION weft.create_node_subscription(name, text, name, integer, boolean) FROM PUBLIC;

-- A join may repeat the step that calls this.  A subscription that existed before was
-- removed when the join began (weft.drop_stale_subscription).
CREATE FUNCTION weft.member_subscribe(to_node name, node_identity uuid, enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := weft.subscription_name(weft.local_group(), to_node, weft.local_node());
	node record;
BEGIN
	PERFORM weft.check_identity(to_node, node_identity);
	SELECT * INTO STRICT node FROM weft.member WHERE node_name = to_node;
	IF weft.local_subscription(to_node) IS NOT NULL THEN
		RETURN;
	END IF;
	INSERT INTO weft.conflict_node
		SELECT '', node_id FROM weft.node_entry WHERE is_local
		UNION ALL SELECT subscription, node.node_id
		ON CONFLICT (subname) DO UPDATE SET node_id = excluded.node_id;
	PERFORM weft.create_node_subscription(subscription, node.dsn,
		('weft_' || weft.local_group())::name,
		(SELECT num_writers FROM weft.node_group_entry), enabled);
END $$;

COMMENT ON FUNCTION weft.member_subscribe(name, uuid, boolean) IS
	'creates the subscription of this node to another one';
REVOKE ALL ON FUNCTION weft.member_subscribe(name, uuid, boolean) FROM PUBLIC;

CREATE FUNCTION weft.member_unsubscribe(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := weft.subscription_name(weft.local_group(), from_node, weft.local_node());
BEGIN
	IF weft.local_subscription(from_node) IS NOT NULL THEN
		EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', subscription);
		EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', subscription);
		EXECUTE format('DROP SUBSCRIPTION %I', subscription);
		DELETE FROM weft.conflict_node WHERE subname = subscription;
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_unsubscribe(name) IS
	'drops the subscription of this node to another one';
REVOKE ALL ON FUNCTION weft.member_unsubscribe(name) FROM PUBLIC;

CREATE FUNCTION weft.drop_stale_subscription(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := (SELECT s.subname FROM pg_subscription s
		WHERE s.oid = weft.local_subscription(from_node) AND s.subenabled);
BEGIN
	IF subscription IS NOT NULL THEN
		RAISE EXCEPTION 'node "%" already has a subscription "%"', weft.local_node(), subscription
			USING ERRCODE = 'duplicate_object', HINT = 'Drop it if nothing uses it.';
	END IF;
	PERFORM weft.member_unsubscribe(from_node);
END $$;

COMMENT ON FUNCTION weft.drop_stale_subscription(name) IS
	'drops a subscription to another node that a dump has restored, which has no tables';
REVOKE ALL ON FUNCTION weft.drop_stale_subscription(name) FROM PUBLIC;

CREATE FUNCTION weft.member_unsubscribe_all()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_unsubscribe(node_name) FROM weft.node_entry WHERE NOT is_local;
END $$;

COMMENT ON FUNCTION weft.member_unsubscribe_all() IS
	'drops all subscriptions of this node to others';
REVOKE ALL ON FUNCTION weft.member_unsubscribe_all() FROM PUBLIC;

CREATE FUNCTION weft.member_hold(from_node name)
RETURNS pg_lsn LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription oid := weft.local_subscription(from_node);
	until timestamptz := clock_timestamp() + interval '30 s';
BEGIN
	LOOP
		BEGIN
			PERFORM pg_replication_origin_session_setup('pg_' || subscription);
			EXIT;
		EXCEPTION WHEN object_in_use THEN
			IF clock_timestamp() > until THEN
				RAISE;
			END IF;
		END;
		PERFORM pg_terminate_backend(pid) FROM pg_stat_get_subscription(subscription)
			WHERE pid IS NOT NULL;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN pg_replication_origin_session_progress(true);
END $$;

COMMENT ON FUNCTION weft.member_hold(name) IS
	'prevents this node from applying changes of another one until the session ends; returns the position applied';
REVOKE ALL ON FUNCTION weft.member_hold(name) FROM PUBLIC;

CREATE FUNCTION weft.member_configure(num_writers integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name;
BEGIN
	UPDATE weft.node_group_entry SET num_writers = member_configure.num_writers;
	FOR subscription IN SELECT s.subname
		FROM weft.node_entry n CROSS JOIN weft.local_subscription(n.node_name) subid
			JOIN pg_subscription s ON s.oid = subid
	LOOP
		EXECUTE format('ALTER SUBSCRIPTION %I SET (num_writers = %s)', subscription, num_writers);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.member_configure(integer) IS
	'sets the number of writers of all subscriptions of this node to others';
REVOKE ALL ON FUNCTION weft.member_configure(integer) FROM PUBLIC;

CREATE FUNCTION weft.member_forget(node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.refuse_namesake(node, node_identity);
	IF node = weft.local_node() THEN
		RAISE EXCEPTION 'node "%" cannot forget itself', node;
	END IF;
	PERFORM weft.member_unsubscribe(node);
	PERFORM weft.member_drop_slot(node);
	DELETE FROM weft.node_entry WHERE node_name = node;
END $$;

COMMENT ON FUNCTION weft.member_forget(name, uuid) IS
	'removes everything that this node has of another one';
REVOKE ALL ON FUNCTION weft.member_forget(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.member_leave()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_unsubscribe_all();
	PERFORM weft.member_drop_slot(node_name) FROM weft.node_entry WHERE NOT is_local;
	PERFORM weft.member_unpublish();
	PERFORM weft.member_track_deletes(false);
	DELETE FROM weft.node_entry WHERE NOT is_local;
	PERFORM weft.forget_recent();
	DELETE FROM weft.conflict_node;
	DELETE FROM weft.join_entry WHERE error IS NULL;
	DELETE FROM weft.node_group_entry;
	UPDATE weft.node_entry SET state = 'created', node_id = NULL, start_lsn = NULL WHERE is_local;
END $$;

COMMENT ON FUNCTION weft.member_leave() IS
	'removes everything that this node has of its group';
REVOKE ALL ON FUNCTION weft.member_leave() FROM PUBLIC;
-- Checks before a node joins.  They fail if it cannot, and change nothing.

CREATE FUNCTION weft.check_name(kind text, name text)
RETURNS void LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF name IS NULL OR name !~ '^[a-z0-9_]+$' OR octet_length(name) > 40 THEN
		RAISE EXCEPTION 'invalid name for a %: "%"', kind, coalesce(name, '')
			USING ERRCODE = 'invalid_name',
				HINT = 'Use 1 to 40 of the characters a to z, 0 to 9 and underscore.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_name(text, text) IS
	'fails if slots cannot be named after a node or group';

CREATE FUNCTION weft.check_group_names(node_group name, nodes name[])
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	first record;
BEGIN
	-- Names are truncated to 63 bytes, and two pairs of nodes could have the same name.
	SELECT * INTO first FROM (
		SELECT count(*) OVER (PARTITION BY full_name) AS same, full_name
		FROM (SELECT 'weft_' || node_group || '_' || a || '_' || b AS full_name
			FROM unnest(nodes) a, unnest(nodes) b WHERE a <> b) pairs) named
		WHERE octet_length(full_name) > 63 OR same > 1
		LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'subscriptions of node group "%" cannot be named: "%" is %',
			node_group, first.full_name,
			CASE WHEN first.same > 1 THEN 'not unique' ELSE 'longer than 63 bytes' END
			USING ERRCODE = 'invalid_name', HINT = 'Choose another name for the node.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_group_names(name, name[]) IS
	'fails if the subscriptions between these nodes cannot be named';
REVOKE ALL ON FUNCTION weft.check_group_names(name, name[]) FROM PUBLIC;

-- A clone has the system identifier of its origin, but was started at another time.
CREATE FUNCTION weft.check_own_dsn(node name, dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.member_info();
	info jsonb := weft.node_query(dsn, node, 'SELECT weft.member_info()')::jsonb;
BEGIN
	IF info ->> 'database' <> own ->> 'database' OR info ->> 'started' <> own ->> 'started' THEN
		RAISE EXCEPTION 'the connection string of node "%" points to another database', node
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_own_dsn(name, text) IS
	'fails if a connection string does not point to this database';
REVOKE ALL ON FUNCTION weft.check_own_dsn(name, text) FROM PUBLIC;

CREATE FUNCTION weft.check_member(info jsonb, needed integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.member_info();
	node text := info ->> 'node';
	what text;
BEGIN
	IF info ->> 'wal_level' <> 'logical' THEN
		RAISE EXCEPTION 'node "%" has "wal_level" set to "%"', node, info ->> 'wal_level'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Set it to "logical" there, and restart that server.';
	END IF;
	IF info ->> 'track_commit_timestamp' <> 'on' THEN
		RAISE EXCEPTION 'node "%" does not record commit times, which conflict resolution needs', node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Set "track_commit_timestamp" to "on" there, and restart that server.';
	END IF;
	FOR what IN SELECT jsonb_object_keys(own -> 'equal') LOOP
		IF own -> 'equal' ->> what IS DISTINCT FROM info -> 'equal' ->> what THEN
			RAISE EXCEPTION 'node "%" and node "%" differ in %: "%" and "%"',
				node, own ->> 'node', what, info -> 'equal' ->> what, own -> 'equal' ->> what
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
	END LOOP;
	FOREACH what IN ARRAY ARRAY['max_replication_slots', 'max_wal_senders',
		'max_logical_replication_workers', 'max_active_replication_origins']
	LOOP
		IF (info ->> what)::integer < needed THEN
			RAISE EXCEPTION 'node "%" has too little left of "%": %, but % needed',
				node, what, info ->> what, needed
				USING ERRCODE = 'configuration_limit_exceeded',
					HINT = format('Increase "%s" there, and restart that server.',
						CASE WHEN what = 'max_active_replication_origins'
								AND current_setting(what, true) IS NULL
							THEN 'max_replication_slots' ELSE what END);
		END IF;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.check_member(jsonb, integer) IS
	'fails if a node does not have what a member of a group needs';
REVOKE ALL ON FUNCTION weft.check_member(jsonb, integer) FROM PUBLIC;

CREATE FUNCTION weft.is_empty(relation regclass)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_is_empty';

COMMENT ON FUNCTION weft.is_empty(regclass) IS
	'has a table no rows? runs no code of its owner';

CREATE FUNCTION weft.check_schema(target_dsn text, target text, OUT copy_schema boolean)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.schema_definition();
	other jsonb;
	published jsonb;
	relation text;
BEGIN
	copy_schema := own = '{}';
	IF copy_schema THEN
		RETURN;
	END IF;
	other := weft.node_query(target_dsn, target, 'SELECT weft.schema_definition()')::jsonb;
	published := weft.node_query(target_dsn, target,
		'SELECT coalesce(jsonb_agg(r::text), ''[]'') FROM weft.published_tables() r')::jsonb;
	FOR relation IN SELECT jsonb_object_keys(own || other) LOOP
		-- A table that the group does not replicate may exist on the target alone.
		CONTINUE WHEN NOT own ? relation AND NOT published ? relation;
		IF NOT own ? relation OR NOT other ? relation THEN
			RAISE EXCEPTION 'table % exists on node "%", but not on node "%"', relation,
				CASE WHEN own ? relation THEN weft.local_node()::text ELSE target END,
				CASE WHEN own ? relation THEN target ELSE weft.local_node()::text END
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Drop all tables of the joining node, or create the missing ones; all must be empty.';
		ELSIF own ->> relation <> other ->> relation THEN
			RAISE EXCEPTION 'table % differs between node "%" and node "%"',
				relation, weft.local_node(), target
				USING ERRCODE = 'object_not_in_prerequisite_state',
					DETAIL = format('It is "%s" and "%s".', own ->> relation, other ->> relation);
		END IF;
		IF NOT weft.is_empty(relation::regclass) THEN
			RAISE EXCEPTION 'table % on node "%" is not empty', relation, weft.local_node()
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Empty it: a joining node receives all rows from the group.';
		END IF;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.check_schema(text, text) IS
	'does this node need the schema of another one? fails if it has tables, but not the same ones';
REVOKE ALL ON FUNCTION weft.check_schema(text, text) FROM PUBLIC;

CREATE FUNCTION weft.check_join(target_dsn text, node_group name, OUT target jsonb, OUT members jsonb,
	OUT copy_schema boolean)
RETURNS record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own record;
	member jsonb;
	info jsonb;
BEGIN
	SELECT * INTO own FROM weft.member WHERE is_local;
	PERFORM weft.check_own_dsn(own.node_name, own.dsn);
	target := weft.node_query(target_dsn, 'join target', 'SELECT weft.member_info()')::jsonb;
	IF target ->> 'database' = weft.member_info() ->> 'database' THEN
		RAISE EXCEPTION 'node "%" cannot join through itself', own.node_name
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF target ->> 'group' IS NULL OR target ->> 'state' <> 'active' THEN
		RAISE EXCEPTION 'the join target, node "%", is not a member of a node group', target ->> 'node'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	IF node_group <> target ->> 'group' THEN
		RAISE EXCEPTION 'node "%" is a member of node group "%", not "%"',
			target ->> 'node', target ->> 'group', node_group
			USING ERRCODE = 'undefined_object';
	END IF;
	IF target ->> 'changing_identity' <> own.identity::text THEN
		RAISE EXCEPTION 'node "%" is joining or parting', target ->> 'changing'
			USING ERRCODE = 'object_in_use',
				HINT = 'Wait until it has finished, or call weft.part_node for it.';
	END IF;

	members := coalesce((SELECT jsonb_agg(m) FROM jsonb_array_elements(
		weft.node_query(target_dsn, target ->> 'node', 'SELECT weft.member_list()')::jsonb) m
		WHERE m ->> 'state' = 'active'), '[]');
	FOR member IN SELECT jsonb_array_elements(members) LOOP
		IF member ->> 'name' = own.node_name THEN
			RAISE EXCEPTION 'node group "%" already has a node "%"', target ->> 'group', own.node_name
				USING ERRCODE = 'duplicate_object';
		END IF;
		info := weft.node_query(member ->> 'dsn', member ->> 'name', 'SELECT weft.member_info()')::jsonb;
		IF info ->> 'identity' IS DISTINCT FROM member ->> 'identity' OR info ->> 'group' IS DISTINCT FROM target ->> 'group' THEN
			RAISE EXCEPTION 'the connection string of node "%" points to another node', member ->> 'name'
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		PERFORM weft.check_member(info, 1);
	END LOOP;
	PERFORM weft.check_member(weft.member_info(), jsonb_array_length(members));
	PERFORM weft.check_group_names((target ->> 'group')::name,
		array_append(ARRAY(SELECT (m ->> 'name')::name FROM jsonb_array_elements(members) m), own.node_name));
	copy_schema := weft.check_schema(target_dsn, target ->> 'node');
END $$;

COMMENT ON FUNCTION weft.check_join(text, name) IS
	'fails if this node cannot join a group; changes nothing';
REVOKE ALL ON FUNCTION weft.check_join(text, name) FROM PUBLIC;

CREATE FUNCTION weft.require_free_node()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF weft.local_node() IS NULL THEN
		RAISE EXCEPTION 'this database is not a node'
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call weft.create_node first.';
	END IF;
	IF weft.local_group() IS NOT NULL AND NOT EXISTS (SELECT FROM weft.join_entry) THEN
		RAISE EXCEPTION 'node "%" is already a member of node group "%"', weft.local_node(), weft.local_group()
			USING ERRCODE = 'duplicate_object';
	END IF;
END $$;

COMMENT ON FUNCTION weft.require_free_node() IS
	'fails unless this database is a node that is in no group';
REVOKE ALL ON FUNCTION weft.require_free_node() FROM PUBLIC;
-- The steps of a join, in their order, and what undoes them.
--
-- The background worker of the node that joins calls weft.join_step_...() for each step
-- (src/group/join.c has the protocol).

CREATE FUNCTION weft.launch_join()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_launch_join';

COMMENT ON FUNCTION weft.launch_join() IS
	'starts the background worker that joins this node to its group';
REVOKE ALL ON FUNCTION weft.launch_join() FROM PUBLIC;

-- Step 1: the lists of members.

CREATE FUNCTION weft.join_step_prepare()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry weft.join_entry;
	checked record;
	member jsonb;
BEGIN
	SELECT * INTO STRICT entry FROM weft.join_entry;
	PERFORM weft.join_undo_members();
	PERFORM weft.member_leave();
	INSERT INTO weft.join_entry SELECT (entry).* ON CONFLICT DO NOTHING;

	SELECT * INTO checked FROM weft.check_join(weft.node_dsn('join target'), entry.node_group_name);
	INSERT INTO weft.node_group_entry
		SELECT entry.node_group_name, (checked.target ->> 'num_writers')::integer,
			(checked.target ->> 'next_node_id')::integer;
	FOR member IN SELECT jsonb_array_elements(checked.members) LOOP
		INSERT INTO weft.node_entry (node_name, node_id, state, identity)
			VALUES (member ->> 'name', (member ->> 'id')::integer, 'active', (member ->> 'identity')::uuid);
		PERFORM weft.set_node_dsn(member ->> 'name', member ->> 'dsn');
		PERFORM weft.drop_stale_subscription((member ->> 'name')::name);
	END LOOP;
	UPDATE weft.node_entry SET state = 'joining', node_id = weft.free_node_id() WHERE is_local;
	UPDATE weft.join_entry SET target_node = checked.target ->> 'node', copy_schema = checked.copy_schema;
	UPDATE weft.node_group_entry
		SET next_node_id = (SELECT node_id + 1 FROM weft.node_entry WHERE is_local);

	-- The group publishes the tables that all its members have.
	PERFORM weft.node_query(weft.node_dsn('join target'), checked.target ->> 'node',
		format('SELECT weft.refresh_node_group(%L)', entry.node_group_name));
END $$;

COMMENT ON FUNCTION weft.join_step_prepare() IS
	'step of a join: takes over the list of members';
REVOKE ALL ON FUNCTION weft.join_step_prepare() FROM PUBLIC;

CREATE FUNCTION weft.free_node_id()
RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	next integer := (SELECT next_node_id FROM weft.node_group_entry);
	result integer;
BEGIN
	-- The id of a node that has parted is reused as late as possible.
	SELECT i INTO result FROM generate_series(1, 1023) i
		WHERE i NOT IN (SELECT node_id FROM weft.node_entry WHERE node_id IS NOT NULL)
		ORDER BY i < next, i LIMIT 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'a node group has at most 1023 nodes'
			USING ERRCODE = 'program_limit_exceeded';
	END IF;
	RETURN result;
END $$;

COMMENT ON FUNCTION weft.free_node_id() IS
	'an id for the next member';
REVOKE ALL ON FUNCTION weft.free_node_id() FROM PUBLIC;

CREATE FUNCTION weft.join_step_register()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.member;
	member weft.member;
	line text;
BEGIN
	SELECT * INTO STRICT own FROM weft.member WHERE is_local;
	line := (SELECT string_agg(regexp_replace(field, '([\\\t\n\r])', '\\\1', 'g'), E'\t' ORDER BY i)
		FROM unnest(ARRAY[own.node_name::text, own.node_id::text, own.identity::text, own.dsn]) WITH ORDINALITY f(field, i)) || E'\n';
	FOR member IN SELECT * FROM weft.member WHERE NOT is_local ORDER BY node_id LOOP
		BEGIN
			PERFORM weft.node_send(member.dsn, member.node_name,
				'COPY weft.arriving_node FROM STDIN', line, 'SELECT weft.member_register()');
		EXCEPTION WHEN unique_violation OR protocol_violation THEN
			-- The message of a failed COPY would show the line, with the connection string.
			RAISE EXCEPTION 'could not register node "%" on node "%"',
				own.node_name, member.node_name
				USING ERRCODE = 'object_in_use',
					HINT = 'Wait until no other node is joining or parting, and join again.';
		END;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.join_step_register() IS
	'step of a join: enters this node into the list of every member';
REVOKE ALL ON FUNCTION weft.join_step_register() FROM PUBLIC;

CREATE FUNCTION weft.member_register()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.arriving_node;
	found_identity text;
BEGIN
	DELETE FROM weft.arriving_node RETURNING * INTO STRICT node;
	INSERT INTO weft.node_entry (node_name, node_id, state, identity)
		VALUES (node.node_name, node.node_id, 'joining', node.identity);
	PERFORM weft.set_node_dsn(node.node_name, node.dsn);
	PERFORM weft.drop_stale_subscription(node.node_name);
	found_identity := weft.node_query(node.dsn, node.node_name,
		'SELECT identity FROM weft.node_entry WHERE is_local');
	IF found_identity IS DISTINCT FROM node.identity::text THEN
		RAISE EXCEPTION 'the connection string of node "%" points to another node', node.node_name
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	UPDATE weft.node_group_entry SET next_node_id = greatest(next_node_id, node.node_id + 1);
END $$;

COMMENT ON FUNCTION weft.member_register() IS
	'enters a joining node into the list of this one; fails if this one cannot connect to it';
REVOKE ALL ON FUNCTION weft.member_register() FROM PUBLIC;

-- Step 2: publication and slots.

CREATE FUNCTION weft.join_step_publish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_publish((
		SELECT coalesce(weft.node_query(n.dsn, n.node_name,
			'SELECT array_agg(r::text) FROM weft.published_tables() r'), '{}')::text[]
		FROM weft.member n JOIN weft.join_entry j ON n.node_name = j.target_node));
END $$;

COMMENT ON FUNCTION weft.join_step_publish() IS
	'step of a join: publishes what the copied node publishes';
REVOKE ALL ON FUNCTION weft.join_step_publish() FROM PUBLIC;

CREATE FUNCTION weft.join_step_make_own_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_make_slot(node_name, identity) FROM weft.node_entry WHERE NOT is_local;
END $$;

COMMENT ON FUNCTION weft.join_step_make_own_slots() IS
	'step of a join: creates slots for the other members';
REVOKE ALL ON FUNCTION weft.join_step_make_own_slots() FROM PUBLIC;

CREATE FUNCTION weft.join_step_note_time()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	-- By the clocks of those members, no change is older that the copy does not contain.
	UPDATE weft.join_entry SET recent_since = (
		SELECT min(weft.node_query(n.dsn, n.node_name, 'SELECT clock_timestamp()')::timestamptz) - interval '3 s'
		FROM weft.member n, weft.join_entry j
		WHERE NOT n.is_local AND n.node_name <> j.target_node);
END $$;

COMMENT ON FUNCTION weft.join_step_note_time() IS
	'step of a join: notes since when the copy may lack changes of other members';
REVOKE ALL ON FUNCTION weft.join_step_note_time() FROM PUBLIC;

-- A step of its own: a slot on this server waits for the transaction that writes the time.
CREATE FUNCTION weft.join_step_make_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_make_slot(%L, %L)', own.node_name, own.identity))
		FROM weft.node_entry own, weft.member n, weft.join_entry j
		WHERE own.is_local AND NOT n.is_local AND n.node_name <> j.target_node;
END $$;

COMMENT ON FUNCTION weft.join_step_make_slots() IS
	'step of a join: creates slots for this node on the other members';
REVOKE ALL ON FUNCTION weft.join_step_make_slots() FROM PUBLIC;

CREATE FUNCTION weft.join_step_catch_up()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(t.dsn, t.node_name, format('SELECT weft.wait_for_subscription(%L, %L)',
			weft.subscription_name(j.node_group_name, n.node_name, t.node_name), '1 hour'))
		FROM weft.join_entry j
			JOIN weft.member t ON t.node_name = j.target_node
			JOIN weft.node_entry n ON n.node_name <> t.node_name AND NOT n.is_local;
END $$;

COMMENT ON FUNCTION weft.join_step_catch_up() IS
	'step of a join: waits until the node to copy has applied what the others had';
REVOKE ALL ON FUNCTION weft.join_step_catch_up() FROM PUBLIC;

-- Step 3: the copy (src/group/join.c).

CREATE FUNCTION weft.join_truncate()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_join_truncate';

COMMENT ON FUNCTION weft.join_truncate() IS
	'truncates tables for a copy, which must be empty';
REVOKE ALL ON FUNCTION weft.join_truncate() FROM PUBLIC;

-- Step 4: subscriptions of the node that joins.

CREATE FUNCTION weft.join_step_subscribe()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_track_deletes(true);
	PERFORM weft.join_settings();
	PERFORM weft.member_subscribe(node_name, identity, false) FROM weft.node_entry WHERE NOT is_local;
END $$;

COMMENT ON FUNCTION weft.join_step_subscribe() IS
	'step of a join: creates disabled subscriptions to all members';
REVOKE ALL ON FUNCTION weft.join_step_subscribe() FROM PUBLIC;

CREATE FUNCTION weft.join_settings()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	settings jsonb := (SELECT weft.node_query(n.dsn, n.node_name, 'SELECT weft.member_settings()')
		FROM weft.member n JOIN weft.join_entry j ON n.node_name = j.target_node);
	setting jsonb;
BEGIN
	FOR setting IN SELECT jsonb_array_elements(settings -> 'resolvers') LOOP
		PERFORM weft.alter_node_set_conflict_resolver('', setting ->> 0, setting ->> 1);
	END LOOP;
	FOR setting IN SELECT jsonb_array_elements(settings -> 'deltas') LOOP
		PERFORM weft.set_delta_columns((setting ->> 0)::regclass,
			ARRAY(SELECT c::name FROM jsonb_array_elements_text(setting -> 1) c));
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.join_settings() IS
	'takes over how the copied node resolves conflicts';
REVOKE ALL ON FUNCTION weft.join_settings() FROM PUBLIC;

CREATE FUNCTION weft.join_step_follow()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member record;
BEGIN
	FOR member IN SELECT s.oid, s.subname, n.start_lsn
		FROM weft.node_entry n CROSS JOIN weft.local_subscription(n.node_name) subid
			JOIN pg_subscription s ON s.oid = subid
		WHERE NOT n.is_local AND NOT s.subenabled
	LOOP
		IF member.start_lsn IS NOT NULL THEN
			PERFORM pg_replication_origin_advance('pg_' || member.oid, member.start_lsn);
		END IF;
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', member.subname);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.join_step_follow() IS
	'step of a join: enables the subscriptions, from where the copied node stood';
REVOKE ALL ON FUNCTION weft.join_step_follow() FROM PUBLIC;

-- Step 5: subscriptions of the others.

CREATE FUNCTION weft.join_step_announce()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_subscribe(%L, %L, true)', own.node_name, own.identity))
		FROM weft.node_entry own, weft.member n WHERE own.is_local AND NOT n.is_local ORDER BY n.node_id;
END $$;

COMMENT ON FUNCTION weft.join_step_announce() IS
	'step of a join: makes all members subscribe to this node';
REVOKE ALL ON FUNCTION weft.join_step_announce() FROM PUBLIC;

-- Step 6: the node is a member.

CREATE FUNCTION weft.join_step_finish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.wait_for_subscription(
			weft.subscription_name(weft.local_group(), node_name, weft.local_node()), '1 day')
		FROM weft.node_entry WHERE NOT is_local;
	UPDATE weft.node_entry SET state = 'active' WHERE is_local AND state = 'joining';
	IF NOT FOUND THEN
		RAISE EXCEPTION 'node "%" is leaving the group', weft.local_node()
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('UPDATE weft.node_entry SET state = %L WHERE identity = %L', 'active', own.identity), true)
		FROM weft.node_entry own, weft.member n WHERE own.is_local AND NOT n.is_local ORDER BY n.node_id;
	PERFORM weft.forget_recent();
	DELETE FROM weft.join_entry;
	PERFORM weft.set_node_dsn('join target', NULL);
END $$;

COMMENT ON FUNCTION weft.join_step_finish() IS
	'step of a join: makes this node an active member';
REVOKE ALL ON FUNCTION weft.join_step_finish() FROM PUBLIC;

-- After a failure.

CREATE FUNCTION weft.join_undo_members(OUT failures text)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member record;
BEGIN
	FOR member IN
		SELECT node_name::text AS name, dsn FROM weft.member WHERE NOT is_local
		UNION
		SELECT target_node::text, weft.node_dsn('join target') FROM weft.join_entry
			WHERE target_node NOT IN (SELECT node_name FROM weft.node_entry)
	LOOP
		BEGIN
			-- The identity excludes another node of that name.
			PERFORM weft.node_query(member.dsn, member.name, format(
				'SELECT weft.member_forget(node_name, identity) FROM weft.node_entry'
				' WHERE identity = %L AND state = %L AND NOT is_local',
				(SELECT identity FROM weft.node_entry WHERE is_local), 'joining'));
		EXCEPTION WHEN OTHERS THEN
			failures := concat_ws('; ', failures, SQLERRM);
		END;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.join_undo_members() IS
	'removes what a join has created on the members';
REVOKE ALL ON FUNCTION weft.join_undo_members() FROM PUBLIC;

CREATE FUNCTION weft.join_undo(reason text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	failures text;
BEGIN
	UPDATE weft.join_entry SET error = reason;
	IF (SELECT copied FROM weft.join_entry) THEN
		RETURN;
	END IF;
	failures := weft.join_undo_members();
	PERFORM weft.member_leave();
	UPDATE weft.join_entry SET error = concat_ws('; could not undo everything: ', reason, failures);
END $$;

COMMENT ON FUNCTION weft.join_undo(text) IS
	'removes what a join has created, and notes the reason';
REVOKE ALL ON FUNCTION weft.join_undo(text) FROM PUBLIC;
-- What a node that joins takes over of rows that were changed recently: when, and by whom
-- (src/group/recent.c).

-- On the member that is copied.

CREATE FUNCTION weft.member_origins(OUT roident oid, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT o.roident, n.node_name
	FROM weft.node_entry n CROSS JOIN weft.local_subscription(n.node_name) subid
		JOIN pg_replication_origin o ON o.roname = 'pg_' || subid
$$;

COMMENT ON FUNCTION weft.member_origins() IS
	'the node that each replication origin stands for';
REVOKE ALL ON FUNCTION weft.member_origins() FROM PUBLIC;

CREATE FUNCTION weft.member_recent_rows(relation regclass, columns text[], since timestamptz,
	OUT row_key text[], OUT changed timestamptz, OUT roident oid)
RETURNS SETOF record
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_member_recent_rows';

COMMENT ON FUNCTION weft.member_recent_rows(regclass, text[], timestamptz) IS
	'keys of the rows of a table that were changed recently';
REVOKE ALL ON FUNCTION weft.member_recent_rows(regclass, text[], timestamptz) FROM PUBLIC;

CREATE FUNCTION weft.member_tombstones(since timestamptz, OUT relation text, OUT key uuid,
	OUT commit_time timestamptz, OUT node_id integer)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT t.relation::regclass::text, t.key, v.commit_time, v.node_id
	FROM (SELECT *, pg_xact_commit_timestamp_origin(xmin) AS c FROM weft.tombstone
			WHERE recorded_at >= since) t
		JOIN pg_class k ON k.oid = t.relation
		LEFT JOIN weft.member_origins() o ON o.roident = (t.c).roident
		JOIN weft.node_entry n ON n.node_name = coalesce(o.node_name, weft.local_node()),
		LATERAL (SELECT coalesce(t.commit_time, (t.c).timestamp) AS commit_time,
			CASE WHEN t.commit_time IS NULL THEN n.node_id ELSE t.node_id END AS node_id) v
	WHERE v.commit_time IS NOT NULL
		-- Conflict detection ignores a delete under an origin that is not a member's, too.
		AND (t.commit_time IS NOT NULL OR (t.c).roident = 0 OR o.node_name IS NOT NULL)
$$;

COMMENT ON FUNCTION weft.member_tombstones(timestamptz) IS
	'rows that were deleted recently, for a joining node';
REVOKE ALL ON FUNCTION weft.member_tombstones(timestamptz) FROM PUBLIC;

CREATE FUNCTION weft.member_merged_rows(since timestamptz, OUT relation text, OUT key uuid,
	OUT commit_time timestamptz, OUT node_id integer, OUT changed timestamptz, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT m.relation::regclass::text, m.key, m.commit_time, m.node_id,
		(m.c).timestamp, coalesce(o.node_name, weft.local_node())
	FROM (SELECT *, pg_xact_commit_timestamp_origin(written_by::text::xid) AS c FROM weft.merged_row
			WHERE recorded_at >= since) m
		JOIN pg_class k ON k.oid = m.relation
		LEFT JOIN weft.member_origins() o ON o.roident = (m.c).roident
	WHERE (m.c).timestamp IS NOT NULL AND m.commit_time IS NOT NULL
		AND ((m.c).roident = 0 OR o.node_name IS NOT NULL)
$$;

COMMENT ON FUNCTION weft.member_merged_rows(timestamptz) IS
	'rows into which counters were merged recently, for a joining node';
REVOKE ALL ON FUNCTION weft.member_merged_rows(timestamptz) FROM PUBLIC;

-- On the node that joins.

CREATE FUNCTION weft.recent_query(relation regclass)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry weft.join_entry;
	keys text[] := weft.key_columns(relation);
BEGIN
	SELECT * INTO STRICT entry FROM weft.join_entry;
	IF keys IS NULL OR entry.recent_since IS NULL THEN
		RETURN NULL;
	END IF;
	RETURN format('COPY (SELECT %s, r.row_key, r.changed, coalesce(o.node_name, %L)'
		' FROM weft.member_recent_rows(%L, %L, %L) r'
		' LEFT JOIN weft.member_origins() o ON o.roident = r.roident'
		' WHERE r.roident = 0 OR o.node_name IS NOT NULL) TO STDOUT',
		relation::oid, entry.target_node, relation, keys, entry.recent_since);
END $$;

COMMENT ON FUNCTION weft.recent_query(regclass) IS
	'the command that asks for the rows of a table that were changed recently';
REVOKE ALL ON FUNCTION weft.recent_query(regclass) FROM PUBLIC;

CREATE FUNCTION weft.keep_tombstones()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	INSERT INTO weft.tombstone (relation, key, commit_time, node_id, recorded_at)
		SELECT to_regclass(t.relation), t.key, t.commit_time, t.node_id, clock_timestamp()
		FROM weft.join_tombstone t WHERE to_regclass(t.relation) IS NOT NULL;
	DELETE FROM weft.join_tombstone;
END $$;

COMMENT ON FUNCTION weft.keep_tombstones() IS
	'stores what was deleted recently on the node that is copied';
REVOKE ALL ON FUNCTION weft.keep_tombstones() FROM PUBLIC;

CREATE FUNCTION weft.stamped(changed timestamptz, node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	INSERT INTO weft.merged_row (relation, key, commit_time, node_id, recorded_at, written_by)
		SELECT to_regclass(m.relation), m.key, m.commit_time, m.node_id, clock_timestamp(),
			pg_current_xact_id()::xid::text::bigint
		FROM weft.join_merged_row m
		WHERE m.changed = stamped.changed AND m.node_name = stamped.node_name
			AND to_regclass(m.relation) IS NOT NULL;
	DELETE FROM weft.join_recent r
		WHERE r.changed = stamped.changed AND r.node_name = stamped.node_name;
END $$;

COMMENT ON FUNCTION weft.stamped(timestamptz, name) IS
	'completes a transaction whose rows have been written again';
REVOKE ALL ON FUNCTION weft.stamped(timestamptz, name) FROM PUBLIC;

CREATE FUNCTION weft.forget_recent()
RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	DELETE FROM weft.join_recent;
	DELETE FROM weft.join_merged_row;
$$;

COMMENT ON FUNCTION weft.forget_recent() IS
	'removes the data from which times of rows are restored';
REVOKE ALL ON FUNCTION weft.forget_recent() FROM PUBLIC;
-- Parting: how a node leaves its group.
--
-- P parts, and continues to commit meanwhile.  Before the other members forget P, all of
-- them must have applied the same transactions of it, although they are asked one after
-- another.  Therefore there is a cut, a position in P's WAL: every member applies each
-- transaction whose commit record begins before the cut, and none that begins later.
--
-- 1. weft.member_part, on all members or none: P is parting.
-- 2. weft.member_stop and weft.member_hold, on each other member: its subscription to P
--    is disabled, and the workers have ended.
-- 3. weft.member_cut, on P: writes and flushes a logical message; the end of the message
--    is the cut.  All members have applied less, since they are stopped.
-- 4. weft.member_follow_until, on each other member: enables the subscription again, with
--    the cut in its label.  The leader ends there, and the replication origin shows that
--    it has.  weft.member_await_end waits for that, and flushes it.
-- 5. weft.member_leaving, on P: from here on, parting can only be completed.
-- 6. P drops its subscriptions, the others forget P, and P leaves, which waits for
--    transactions there (weft.member_untrack).  The member on which weft.part_node was
--    called forgets P last, since it may have to be called there again.
--
-- Each step is a transaction of the member that it changes, and may be repeated.  After an
-- interruption, the next call of weft.part_node, on any member, starts again with another
-- cut, unless P is leaving: before step 5, no member has forgotten anything.  P's own entry
-- decides between sessions: it becomes "leaving" only for the newest cut, and
-- weft.cancel_part_node makes it "active" only before that.  A member that has applied
-- something beyond a cut refuses the cut (weft.member_follow_until).
--
-- A node that cannot be reached has no cut: each member keeps what it has applied.  All
-- members are stopped before that is compared, so the differences reported are final.

-- A node that was parted by force may not know it, and another node may have its name now.
CREATE FUNCTION weft.member_part(node name, node_identity uuid, asking uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.refuse_namesake(node, node_identity);
	IF asking <> node_identity AND NOT EXISTS (SELECT FROM weft.node_entry WHERE identity = asking) THEN
		RAISE EXCEPTION 'node "%" does not part node "%" for a node that is not a member of its group',
			weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'If that node was parted by force, call weft.leave_node_group there.';
	END IF;
	UPDATE weft.node_entry SET state = 'parting' WHERE node_name = node AND state = 'active';
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION 'another node is joining or parting'
		USING ERRCODE = 'object_in_use',
			HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
END $$;

COMMENT ON FUNCTION weft.member_part(name, uuid, uuid) IS
	'step of parting: marks the node as parting';
REVOKE ALL ON FUNCTION weft.member_part(name, uuid, uuid) FROM PUBLIC;

-- Another node may have the address now.
CREATE FUNCTION weft.member_state(node_group name, node_identity uuid)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT state FROM weft.node_entry
	WHERE is_local AND identity = node_identity AND weft.local_group() = node_group
$$;

COMMENT ON FUNCTION weft.member_state(name, uuid) IS
	'the state of this node, if it has that identity and is in that group';
REVOKE ALL ON FUNCTION weft.member_state(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.require_parting(node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM FROM weft.node_entry
		WHERE node_name = node AND state IN ('parting', 'joining') FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'node "%" is not parting', node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Another session may have completed or cancelled its parting.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.require_parting(name) IS
	'fails unless another node is parting; locks its entry';
REVOKE ALL ON FUNCTION weft.require_parting(name) FROM PUBLIC;

CREATE FUNCTION weft.member_stop(from_node name)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.require_parting(from_node);
	IF weft.local_subscription(from_node) IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
	RETURN true;
END $$;

COMMENT ON FUNCTION weft.member_stop(name) IS
	'step of parting: disables the subscription of this node to another one, if it exists';
REVOKE ALL ON FUNCTION weft.member_stop(name) FROM PUBLIC;

CREATE FUNCTION weft.member_cut()
RETURNS pg_lsn LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	cut pg_lsn;
BEGIN
	UPDATE weft.node_entry SET cut_lsn = NULL
		WHERE is_local AND state IN ('parting', 'joining');
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this node is not parting'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	-- The UPDATE has locked the entry, so cuts are stored in the order of their positions.
	cut := pg_logical_emit_message(false, 'weft', 'cut', true);
	UPDATE weft.node_entry SET cut_lsn = cut WHERE is_local;
	RETURN cut;
END $$;

COMMENT ON FUNCTION weft.member_cut() IS
	'step of parting: the position up to which others apply what this node commits';
REVOKE ALL ON FUNCTION weft.member_cut() FROM PUBLIC;

CREATE FUNCTION weft.set_until(from_node name, until pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	label text := (SELECT l.label FROM pg_shseclabel l
		WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
			AND l.objoid = weft.local_subscription(from_node));
BEGIN
	EXECUTE format('SECURITY LABEL FOR weft ON SUBSCRIPTION %I IS %L',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()),
		concat_ws(', ', regexp_replace(label, ', until_lsn=.*', ''), 'until_lsn=' || until));
END $$;

COMMENT ON FUNCTION weft.set_until(name, pg_lsn) IS
	'sets or removes the end of the subscription of this node to another one';
REVOKE ALL ON FUNCTION weft.set_until(name, pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_follow_until(from_node name, until pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.require_parting(from_node);
	IF pg_replication_origin_progress('pg_' || weft.local_subscription(from_node), false) > until THEN
		RAISE EXCEPTION 'node "%" has applied changes of node "%" beyond %',
			weft.local_node(), from_node, until
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Call weft.part_node again, and do not enable subscriptions to a parting node.';
	END IF;
	PERFORM weft.set_until(from_node, until);
	EXECUTE format('ALTER SUBSCRIPTION %I ENABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_follow_until(name, pg_lsn) IS
	'step of parting: applies what another node has committed up to a position';
REVOKE ALL ON FUNCTION weft.member_follow_until(name, pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_await_end(from_node name, until pg_lsn, timeout interval)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription oid := weft.local_subscription(from_node);
	until_time timestamptz := clock_timestamp() + timeout;
	applied pg_lsn;
BEGIN
	LOOP
		applied := pg_replication_origin_progress('pg_' || subscription, false);
		IF NOT EXISTS (SELECT FROM pg_shseclabel l
			WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
				AND l.objoid = subscription AND l.label LIKE '%, until_lsn=' || until)
		THEN
			RAISE EXCEPTION 'node "%" is no longer parting, or another session is parting it', from_node
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		EXIT WHEN applied >= until;
		IF clock_timestamp() > until_time THEN
			RAISE EXCEPTION 'timed out waiting for node "%" to apply what node "%" has committed',
				weft.local_node(), from_node
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('Applied up to LSN %s of %s.', coalesce(applied, '0/0'), until),
						(SELECT last_error FROM weft.stat_get_last_error() WHERE subid = subscription)),
					HINT = 'Call weft.part_node again, or weft.cancel_part_node.';
		END IF;
		PERFORM pg_sleep(0.02);
	END LOOP;
	-- The parting node may drop its slot as soon as this function has returned.
	PERFORM pg_logical_emit_message(false, 'weft', 'end', true);
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_await_end(name, pg_lsn, interval) IS
	'step of parting: waits until that is applied and flushed';
REVOKE ALL ON FUNCTION weft.member_await_end(name, pg_lsn, interval) FROM PUBLIC;

CREATE FUNCTION weft.member_leaving(cut pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE weft.node_entry SET state = 'leaving'
		WHERE is_local AND state IN ('parting', 'joining') AND cut_lsn = cut;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this node is no longer parting, or another session is parting it'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_leaving(pg_lsn) IS
	'step of parting: from here on, parting can only be completed';
REVOKE ALL ON FUNCTION weft.member_leaving(pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_stay(node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.node_entry;
BEGIN
	UPDATE weft.node_entry SET state = 'active', cut_lsn = NULL
		WHERE is_local AND identity = node_identity AND state = 'parting';
	SELECT * INTO own FROM weft.node_entry WHERE is_local AND identity = node_identity;
	IF own.state IS DISTINCT FROM 'active' THEN
		RAISE EXCEPTION 'parting of this node cannot be cancelled: it is %', coalesce(own.state, 'another node')
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call weft.part_node again.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_stay(uuid) IS
	'cancels parting on this node';
REVOKE ALL ON FUNCTION weft.member_stay(uuid) FROM PUBLIC;

CREATE FUNCTION weft.member_resume(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE weft.node_entry SET state = 'active' WHERE node_name = from_node AND state = 'parting';
	IF FOUND AND weft.local_subscription(from_node) IS NOT NULL THEN
		PERFORM weft.set_until(from_node, NULL);
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE',
			weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_resume(name) IS
	'resumes following another node, whose parting was cancelled';
REVOKE ALL ON FUNCTION weft.member_resume(name) FROM PUBLIC;

CREATE FUNCTION weft.part_query(parting weft.member)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('SELECT weft.member_part(%L, %L, %L)', parting.node_name, parting.identity, identity)
	FROM weft.node_entry WHERE is_local
$$;

COMMENT ON FUNCTION weft.part_query(weft.member) IS
	'the query that tells a member that a node is parting';
REVOKE ALL ON FUNCTION weft.part_query(weft.member) FROM PUBLIC;

CREATE FUNCTION weft.part_level(parting weft.member, others weft.member[], until timestamptz)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	subscribed boolean[] := '{}';
	cut text;
BEGIN
	FOREACH member IN ARRAY others LOOP
		subscribed := subscribed || weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_stop(%L)', parting.node_name))::boolean;
	END LOOP;
	-- A node that has not completed its join may have been announced to some members only.
	IF true = ANY (subscribed) THEN
		FOR i IN 1 .. cardinality(others) LOOP
			member := others[i];
			IF subscribed[i] THEN
				PERFORM weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_hold(%L)', parting.node_name));
			ELSE
				PERFORM weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_subscribe(%L, %L, false)', parting.node_name, parting.identity));
			END IF;
		END LOOP;
	END IF;

	cut := weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_cut()');
	IF true = ANY (subscribed) THEN
		FOREACH member IN ARRAY others LOOP
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_follow_until(%L, %L)', parting.node_name, cut));
		END LOOP;
		FOREACH member IN ARRAY others LOOP
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_await_end(%L, %L, %L)', parting.node_name, cut,
					greatest(until - clock_timestamp(), '0')));
		END LOOP;
	END IF;
	PERFORM weft.node_query(parting.dsn, parting.node_name, format('SELECT weft.member_leaving(%L)', cut));
END $$;

COMMENT ON FUNCTION weft.part_level(weft.member, weft.member[], timestamptz) IS
	'makes all other members apply the same changes of a parting node';
REVOKE ALL ON FUNCTION weft.part_level(weft.member, weft.member[], timestamptz) FROM PUBLIC;

-- Returns up to where each member has applied the node's changes, if that differs.
CREATE FUNCTION weft.part_compare(parting weft.member, others weft.member[], force boolean)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	positions text[] := '{}';
	names text[] := '{}';
	part text := weft.part_query(parting);
BEGIN
	FOREACH member IN ARRAY others LOOP
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name, part);
			IF weft.node_query(member.dsn, member.node_name,
				format('SELECT CASE WHEN EXISTS (SELECT FROM weft.node_entry WHERE node_name = %1$L)'
					' THEN weft.member_stop(%1$L) END', parting.node_name))::boolean
			THEN
				positions := positions || coalesce(weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_hold(%L)', parting.node_name)), '0/0');
				names := names || member.node_name::text;
			END IF;
		EXCEPTION WHEN connection_failure THEN
			-- weft.part_node warns when this member is to forget the node.
			IF NOT force THEN
				RAISE;
			END IF;
		END;
	END LOOP;
	RETURN (SELECT string_agg(format('node "%s" up to LSN %s', n, p), ', ' ORDER BY p::pg_lsn DESC)
		FROM unnest(names, positions) c(n, p)
		HAVING count(DISTINCT p) > 1);
END $$;

COMMENT ON FUNCTION weft.part_compare(weft.member, weft.member[], boolean) IS
	'stops applying changes of a node, and compares what the members have applied';
REVOKE ALL ON FUNCTION weft.part_compare(weft.member, weft.member[], boolean) FROM PUBLIC;

-- Of one table at a time: a transaction that holds the lock that this one waits for cannot
-- be waiting for a lock of another table that this one holds.
CREATE FUNCTION weft.member_untrack()
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
DECLARE
	relation regclass := (SELECT r FROM weft.group_tables() r JOIN pg_trigger t ON t.tgrelid = r
		WHERE t.tgname = 'weft_record_delete' LIMIT 1);
BEGIN
	IF relation IS NULL THEN
		RETURN false;
	END IF;
	PERFORM weft.track_deletes(relation, false);
	RETURN true;
END $$;

COMMENT ON FUNCTION weft.member_untrack() IS
	'step of parting: makes one table no longer remember deleted rows; false if there is none';
REVOKE ALL ON FUNCTION weft.member_untrack() FROM PUBLIC;

CREATE FUNCTION weft.part_leave(parting weft.member, until timestamptz)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	more boolean := true;
BEGIN
	WHILE more LOOP
		BEGIN
			more := weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_untrack()');
		EXCEPTION WHEN lock_not_available THEN
			IF clock_timestamp() > until THEN
				RAISE;
			END IF;
			-- Let those that waited for this transaction go first.
			PERFORM pg_sleep(1);
		END;
	END LOOP;
	PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_leave()');
END $$;

COMMENT ON FUNCTION weft.part_leave(weft.member, timestamptz) IS
	'makes a node leave the group, after all others have applied its changes';
REVOKE ALL ON FUNCTION weft.part_leave(weft.member, timestamptz) FROM PUBLIC;

CREATE FUNCTION weft.parting_node(node_name name, OUT parting weft.member, OUT others weft.member[])
RETURNS record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	SELECT * INTO parting FROM weft.member n WHERE n.node_name = parting_node.node_name;
	IF NOT FOUND OR weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'node "%" is not a member of the node group of this database', node_name
			USING ERRCODE = 'undefined_object',
				HINT = 'If it is parting, other members may still list it; look at weft.node there.';
	END IF;
	IF EXISTS (SELECT FROM weft.node_entry n
		WHERE n.state IN ('joining', 'parting', 'leaving') AND n.node_name <> parting_node.node_name)
	THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use', HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
	END IF;
	-- This node comes last.
	others := ARRAY(SELECT n FROM weft.member n WHERE n.node_name <> parting_node.node_name
		ORDER BY n.is_local, n.node_id);
END $$;

COMMENT ON FUNCTION weft.parting_node(name) IS
	'the entries of a node and of all others; fails if the node may not part';
REVOKE ALL ON FUNCTION weft.parting_node(name) FROM PUBLIC;

CREATE FUNCTION weft.part_node(node_name name, force boolean DEFAULT false, timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node_group name := weft.local_group();
	entries record;
	parting weft.member;
	others weft.member[];
	member weft.member;
	until timestamptz := clock_timestamp() + timeout;
	ask_state text;
	state text;
	differences text;
BEGIN
	SELECT * INTO entries FROM weft.parting_node(part_node.node_name);
	parting := entries.parting;
	others := entries.others;
	IF force AND parting.is_local THEN
		RAISE EXCEPTION 'node "%" cannot part itself by force', node_name
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Call weft.part_node on another member, and then weft.leave_node_group here.';
	END IF;
	ask_state := format('SELECT weft.member_state(%L, %L)', node_group, parting.identity);

	IF NOT force THEN
		state := weft.node_query(parting.dsn, parting.node_name, ask_state);
		-- If another node has the address of the parting node, it is not asked; it may be
		-- one of the others.  The order is the same for all: of two nodes that part at
		-- once, through different members, one must fail before it makes the other wait.
		PERFORM weft.node_query_all(array_agg(m.dsn ORDER BY m.node_id),
				array_agg(m.node_name::text ORDER BY m.node_id), weft.part_query(parting))
			FROM unnest(others || CASE WHEN state IS NOT NULL THEN parting END) m
			WHERE m.node_name IS NOT NULL;
		IF state IS NOT NULL THEN
			state := weft.node_query(parting.dsn, parting.node_name, ask_state);
		END IF;
	END IF;
	IF state IN ('parting', 'joining') THEN
		PERFORM weft.part_level(parting, others, until);
	ELSIF state IS NULL THEN
		differences := weft.part_compare(parting, others, force);
	END IF;
	IF differences IS NOT NULL AND NOT force THEN
		RAISE EXCEPTION 'members have applied different changes of node "%", which has left the group', node_name
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Changes are applied as follows: %s.', differences),
				HINT = 'Call weft.part_node with "force", and then compare tables.';
	ELSIF differences IS NOT NULL THEN
		RAISE WARNING 'members have applied different changes of node "%"', node_name
			USING DETAIL = format('Changes are applied as follows: %s.', differences),
				HINT = 'Compare tables; changes that only some members have are not sent to the others.';
	END IF;

	IF state IS NOT NULL THEN
		PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_unsubscribe_all()');
	END IF;
	FOREACH member IN ARRAY others LOOP
		-- This node is the last.
		IF member.is_local AND state IS NOT NULL THEN
			PERFORM weft.part_leave(parting, until);
		END IF;
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_forget(%L, %L)', parting.node_name, parting.identity));
		EXCEPTION WHEN connection_failure THEN
			IF NOT force THEN
				RAISE;
			END IF;
			RAISE WARNING '%', SQLERRM
				USING HINT = format('Call weft.part_node for node "%s" on node "%s" as well, or part that node.',
					parting.node_name, member.node_name);
		END;
	END LOOP;
	IF parting.is_local THEN
		PERFORM weft.part_leave(parting, until);
	END IF;
END $$;

COMMENT ON FUNCTION weft.part_node(name, boolean, interval) IS
	'removes a node from its group; by force, without contacting that node';
REVOKE ALL ON FUNCTION weft.part_node(name, boolean, interval) FROM PUBLIC;

CREATE FUNCTION weft.cancel_part_node(node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entries record;
	parting weft.member;
	others weft.member[];
	member weft.member;
BEGIN
	SELECT * INTO entries FROM weft.parting_node(cancel_part_node.node_name);
	parting := entries.parting;
	others := entries.others;
	PERFORM weft.node_query(parting.dsn, parting.node_name,
		format('SELECT weft.member_stay(%L)', parting.identity));
	FOREACH member IN ARRAY others LOOP
		PERFORM weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_resume(%L)', parting.node_name));
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.cancel_part_node(name) IS
	'undoes what an interrupted weft.part_node has done, if that is still possible';
REVOKE ALL ON FUNCTION weft.cancel_part_node(name) FROM PUBLIC;

CREATE FUNCTION weft.leave_node_group()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'this database is not a member of a node group'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	DELETE FROM weft.join_entry;
	PERFORM weft.set_node_dsn('join target', NULL);
	PERFORM weft.member_leave();
END $$;

COMMENT ON FUNCTION weft.leave_node_group() IS
	'removes what this node has of its group, without contacting the others';
REVOKE ALL ON FUNCTION weft.leave_node_group() FROM PUBLIC;
-- Functions that users call, except for parting (07-part.sql), and what only they need.

-- Subscriptions.

CREATE FUNCTION weft.copy_schema(
	conninfo text,
	publications text[],
	OUT object_type text,
	OUT object text,
	OUT created boolean,
	OUT note text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_copy_schema';

COMMENT ON FUNCTION weft.copy_schema(text, text[]) IS
	'creates the tables of a publisher''s publications that do not exist here';
REVOKE ALL ON FUNCTION weft.copy_schema(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.copy_schema(text, text[]) TO pg_execute_server_program;

CREATE FUNCTION weft.wait_for_subscription(subscription name, timeout interval)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_wait_for_subscription';

COMMENT ON FUNCTION weft.wait_for_subscription(name, interval) IS
	'waits until all tables are synchronized and everything that the publisher has now is applied';

-- The table has the publisher's published rows afterwards, and nothing else: values of columns
-- that are not published, rows that were stored here, and rows outside of the publication's
-- row filter are lost.  No foreign key is checked or followed, and sequences stay as they are.
-- Until the copy is complete, all sessions see the old rows.  Changes of the table that the
-- publisher makes meanwhile arrive afterwards; while the table catches up with them, the
-- subscription's other tables wait, as after its first copy.  A session here that has
-- changed a row of the table and stays in its transaction delays the copy.  The publisher
-- keeps its WAL from the call until the table is synchronized, in a slot, and needs another
-- free slot while the table is copied.  Do not start the server without Weft in
-- "shared_preload_libraries" until weft.copy_progress does not show the table any more: its
-- synchronization would fail until Weft is back.
CREATE FUNCTION weft.resync_table(subscription name, "table" regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_resync_table';

COMMENT ON FUNCTION weft.resync_table(name, regclass) IS
	'copies a table of a subscription again, in the background; its old rows stay visible until then';

-- No change is lost: the table keeps its old rows, and all changes since the call of
-- weft.resync_table are applied to them.  Meanwhile, the subscription's other tables wait, as
-- after a copy.  A copy that is complete cannot be cancelled.
CREATE FUNCTION weft.cancel_resync(subscription name, "table" regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_cancel_resync';

COMMENT ON FUNCTION weft.cancel_resync(name, regclass) IS
	'stops copying a table again; its old rows stay, and catch up with the publisher';

-- Conflicts.

CREATE FUNCTION weft.record_delete()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_record_delete';

COMMENT ON FUNCTION weft.record_delete() IS
	'remembers the key of a deleted row; see weft.track_deletes';

CREATE FUNCTION weft.track_deletes(relation regclass, enabled boolean DEFAULT true)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_track_deletes';

COMMENT ON FUNCTION weft.track_deletes(regclass, boolean) IS
	'makes a table remember which rows were deleted, so that older changes do not restore them';

-- The exact time of a row: SELECT weft.row_commit_timestamp(tableoid, ctid) FROM t.
CREATE FUNCTION weft.row_commit_timestamp("table" regclass, row_id tid)
RETURNS timestamptz
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_row_commit_timestamp';

COMMENT ON FUNCTION weft.row_commit_timestamp(regclass, tid) IS
	'when the transaction that wrote a row has committed, on the node where that was';

CREATE FUNCTION weft.set_delta_columns(relation regclass, columns name[])
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_set_delta_columns';

COMMENT ON FUNCTION weft.set_delta_columns(regclass, name[]) IS
	'sets the columns of a table to which an update adds its difference';

CREATE FUNCTION weft.alter_node_set_conflict_resolver(
	node_name name,
	conflict_type text,
	conflict_resolver text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_alter_node_set_conflict_resolver';

COMMENT ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) IS
	'sets how this node resolves a type of conflict';
REVOKE ALL ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) FROM PUBLIC;

-- Nodes and their groups.

CREATE FUNCTION weft.create_node(node_name name, local_dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_name('node', node_name);
	IF weft.local_node() IS NOT NULL THEN
		RAISE EXCEPTION 'this database is already node "%"', weft.local_node()
			USING ERRCODE = 'duplicate_object';
	END IF;
	PERFORM weft.check_own_dsn(node_name, local_dsn);
	INSERT INTO weft.node_entry (node_name, state, is_local)
		VALUES (create_node.node_name, 'created', true);
	PERFORM weft.set_node_dsn(node_name, local_dsn);
END $$;

COMMENT ON FUNCTION weft.create_node(name, text) IS
	'makes this database a node, to which others connect with this connection string';
REVOKE ALL ON FUNCTION weft.create_node(name, text) FROM PUBLIC;

CREATE FUNCTION weft.drop_node(node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF drop_node.node_name IS DISTINCT FROM weft.local_node() THEN
		RAISE EXCEPTION 'this database is not node "%"', node_name
			USING ERRCODE = 'undefined_object';
	END IF;
	IF weft.local_group() IS NOT NULL THEN
		RAISE EXCEPTION 'node "%" is in node group "%"', node_name, weft.local_group()
			USING ERRCODE = 'object_in_use', HINT = 'Call weft.part_node first.';
	END IF;
	DELETE FROM weft.join_entry;
	PERFORM weft.set_node_dsn('join target', NULL);
	DELETE FROM weft.node_entry;
END $$;

COMMENT ON FUNCTION weft.drop_node(name) IS
	'makes this database no longer a node';
REVOKE ALL ON FUNCTION weft.drop_node(name) FROM PUBLIC;

CREATE FUNCTION weft.create_node_group(node_group_name name, num_writers integer DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_name('node group', node_group_name);
	PERFORM weft.require_free_node();
	PERFORM weft.check_member(weft.member_info(), 0);
	INSERT INTO weft.node_group_entry
		VALUES (create_node_group.node_group_name, create_node_group.num_writers, 2);
	UPDATE weft.node_entry SET node_id = 1, state = 'active' WHERE is_local;
	INSERT INTO weft.conflict_node VALUES ('', 1)
		ON CONFLICT (subname) DO UPDATE SET node_id = excluded.node_id;
	PERFORM weft.member_publish();
	PERFORM weft.member_track_deletes(true);
END $$;

COMMENT ON FUNCTION weft.create_node_group(name, integer) IS
	'creates a group with this node as its only member';
REVOKE ALL ON FUNCTION weft.create_node_group(name, integer) FROM PUBLIC;

CREATE FUNCTION weft.is_joining()
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'weft join' AND datname = current_database())
$$;

COMMENT ON FUNCTION weft.is_joining() IS
	'is the background worker running that joins this node to its group?';
REVOKE ALL ON FUNCTION weft.is_joining() FROM PUBLIC;

CREATE FUNCTION weft.join_progress()
RETURNS jsonb
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_join_progress';

COMMENT ON FUNCTION weft.join_progress() IS
	'the current progress of a join, whatever the isolation level of the transaction';
REVOKE ALL ON FUNCTION weft.join_progress() FROM PUBLIC;

CREATE FUNCTION weft.join_node_group(join_target_dsn text, node_group_name name DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	checked record;
BEGIN
	PERFORM weft.require_free_node();
	IF NOT EXISTS (SELECT FROM weft.join_entry WHERE copied) THEN
		IF weft.is_joining() THEN
			RAISE EXCEPTION 'node "%" is already joining', weft.local_node()
				USING ERRCODE = 'object_in_use', HINT = 'Call weft.wait_for_join_completion.';
		END IF;
		SELECT * INTO checked FROM weft.check_join(join_target_dsn, node_group_name);
		DELETE FROM weft.join_entry;
		INSERT INTO weft.join_entry (node_group_name, target_node, copy_schema)
			VALUES ((checked.target ->> 'group')::name, (checked.target ->> 'node')::name,
				checked.copy_schema);
		PERFORM weft.set_node_dsn('join target', join_target_dsn);
	END IF;
	PERFORM weft.launch_join();
END $$;

COMMENT ON FUNCTION weft.join_node_group(text, name) IS
	'starts or resumes joining the group of another node, in the background';
REVOKE ALL ON FUNCTION weft.join_node_group(text, name) FROM PUBLIC;

CREATE FUNCTION weft.wait_for_join_completion(timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until timestamptz := clock_timestamp() + timeout;
	launched timestamptz := clock_timestamp();
	progress jsonb;
	entry jsonb;
BEGIN
	LOOP
		progress := weft.join_progress();
		entry := progress -> 'entry';
		IF entry = 'null' THEN
			IF progress ->> 'group' IS NULL THEN
				RAISE EXCEPTION 'this database is not joining a node group'
					USING ERRCODE = 'object_not_in_prerequisite_state';
			END IF;
			RETURN;
		END IF;
		IF entry ->> 'error' IS NOT NULL AND NOT (entry -> 'copied')::boolean THEN
			RAISE EXCEPTION 'node "%" could not join node group "%": %',
				weft.local_node(), entry ->> 'node_group_name', entry ->> 'error';
		END IF;
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'timed out waiting for node "%" to join node group "%"', weft.local_node(), entry ->> 'node_group_name'
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('It has reached step "%s".', entry ->> 'step'), entry ->> 'error');
		END IF;
		-- After a restart of the server, nothing else starts the worker.
		PERFORM pg_stat_clear_snapshot();
		IF clock_timestamp() > launched + interval '5 s' AND NOT weft.is_joining() THEN
			PERFORM weft.launch_join();
			launched := clock_timestamp();
		END IF;
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.wait_for_join_completion(interval) IS
	'waits until this node has joined its group; fails if it cannot, or not in time';
REVOKE ALL ON FUNCTION weft.wait_for_join_completion(interval) FROM PUBLIC;

CREATE FUNCTION weft.query_group(node_group_name name, query text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF query_group.node_group_name IS DISTINCT FROM weft.local_group() THEN
		RAISE EXCEPTION 'this database is not a member of node group "%"', node_group_name
			USING ERRCODE = 'undefined_object';
	END IF;
	PERFORM weft.node_query_all(array_agg(dsn ORDER BY node_id),
			array_agg(node_name::text ORDER BY node_id), query)
		FROM weft.member;
END $$;

COMMENT ON FUNCTION weft.query_group(name, text) IS
	'runs a query on all members of the group, or, if it fails on one, on none';
REVOKE ALL ON FUNCTION weft.query_group(name, text) FROM PUBLIC;

CREATE FUNCTION weft.alter_node_group_config(node_group_name name, num_writers integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF num_writers NOT BETWEEN 1 AND 64 THEN
		RAISE EXCEPTION 'invalid number of writers: %', num_writers
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a number from 1 to 64.';
	END IF;
	PERFORM weft.query_group(node_group_name,
		format('SELECT weft.member_configure(%L)', num_writers));
END $$;

COMMENT ON FUNCTION weft.alter_node_group_config(name, integer) IS
	'sets the number of writers of all subscriptions of a node group, on all members';
REVOKE ALL ON FUNCTION weft.alter_node_group_config(name, integer) FROM PUBLIC;

CREATE FUNCTION weft.alter_node_group_set_conflict_resolver(node_group_name name,
	conflict_type text, conflict_resolver text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.query_group(node_group_name,
		format('SELECT weft.alter_node_set_conflict_resolver(%L, %L, %L)', '',
			conflict_type, conflict_resolver));
END $$;

COMMENT ON FUNCTION weft.alter_node_group_set_conflict_resolver(name, text, text) IS
	'sets how a type of conflict is resolved, on all members of a node group';
REVOKE ALL ON FUNCTION weft.alter_node_group_set_conflict_resolver(name, text, text) FROM PUBLIC;

CREATE FUNCTION weft.refresh_node_group(node_group_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.member[] := ARRAY(SELECT n FROM weft.member n ORDER BY n.node_id);
	member weft.member;
	other weft.member;
	theirs text[];
	common text[];
	stray text[] := '{}';
	relation text;
BEGIN
	FOREACH member IN ARRAY members LOOP
		theirs := coalesce(weft.node_query(member.dsn, member.node_name,
			'SELECT array_agg(r::text) FROM weft.group_tables() r'), '{}')::text[];
		-- Names as the member writes them, which this session's settings do not affect.
		common := coalesce(common, theirs);
		stray := ARRAY(SELECT unnest(stray) UNION
			(SELECT unnest(common || theirs) EXCEPT (SELECT unnest(common) INTERSECT SELECT unnest(theirs))));
		common := ARRAY(SELECT unnest(common) INTERSECT SELECT unnest(theirs));
	END LOOP;
	FOREACH relation IN ARRAY stray LOOP
		RAISE WARNING 'table % is not replicated, because not all members have it', relation
			USING HINT = 'Create it on all members and call weft.refresh_node_group again, or drop it.';
	END LOOP;
	PERFORM weft.query_group(node_group_name, format('SELECT weft.member_publish(%L)', common));
	PERFORM weft.query_group(node_group_name, 'SELECT weft.member_track_deletes(true)');
	FOREACH member IN ARRAY members LOOP
		FOREACH other IN ARRAY members LOOP
			CONTINUE WHEN member.node_name = other.node_name;
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('ALTER SUBSCRIPTION %I REFRESH PUBLICATION WITH (copy_data = false)',
					weft.subscription_name(node_group_name, other.node_name, member.node_name)), true);
		END LOOP;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.refresh_node_group(name) IS
	'replicates tables that have been created on all members since';
REVOKE ALL ON FUNCTION weft.refresh_node_group(name) FROM PUBLIC;

-- Only roles that are granted this may manage groups.
CREATE FUNCTION weft.grant_node_admin(role regrole)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	func regprocedure;
BEGIN
	EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON weft.node_group_entry, weft.node_entry,'
		' weft.member, weft.arriving_node, weft.join_entry, weft.join_recent, weft.join_tombstone,'
		' weft.join_merged_row, weft.conflict_node, weft.conflict_resolver, weft.tombstone, weft.merged_row TO %s', role);
	FOR func IN SELECT d.objid::regprocedure
		FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'weft' AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			AND NOT EXISTS (SELECT FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
				WHERE p.oid = d.objid AND a.grantee = 0)
			AND d.objid <> 'weft.grant_node_admin(regrole)'::regprocedure
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', func, role);
	END LOOP;
	EXECUTE format('GRANT EXECUTE ON FUNCTION pg_replication_origin_advance(text, pg_lsn),'
		' pg_replication_origin_progress(text, boolean),'
		' pg_replication_origin_session_setup(text),'
		' pg_replication_origin_session_progress(boolean) TO %s', role);
	EXECUTE format('GRANT CREATE ON DATABASE %I TO %s', current_database(), role);
	EXECUTE format('GRANT pg_create_subscription TO %s', role);
END $$;

COMMENT ON FUNCTION weft.grant_node_admin(regrole) IS
	'grants a role what it needs to manage this node; it needs REPLICATION and LOGIN besides';
REVOKE ALL ON FUNCTION weft.grant_node_admin(regrole) FROM PUBLIC;

CREATE FUNCTION weft.snowflake_nextval(sequence regclass)
RETURNS bigint
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_snowflake_nextval';

COMMENT ON FUNCTION weft.snowflake_nextval(regclass) IS
	'a number that is unique in the node group, made of the time, the node and the sequence';
-- Views, and the functions under them.

-- Subscriptions.

CREATE FUNCTION weft.stat_get_subscription(
	OUT subid oid,
	OUT leader_pid integer,
	OUT num_writers integer,
	OUT wanted_writers integer,
	OUT busy_writers integer,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT apply_lag_bytes bigint,
	OUT publisher_lsn pg_lsn,
	OUT publisher_lsn_time timestamptz,
	OUT publisher_lag_bytes bigint,
	OUT lag_time interval,
	OUT apply_rate double precision,
	OUT apply_rate_bytes bigint,
	OUT catch_up_time interval,
	OUT transactions bigint,
	OUT native_transactions bigint,
	OUT changes bigint,
	OUT dependency_waits bigint,
	OUT order_waits bigint,
	OUT misspeculations bigint,
	OUT barriers bigint,
	OUT ring_size bigint,
	OUT ring_used bigint,
	OUT output_plugin text,
	OUT native_reason text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_subscription';

CREATE FUNCTION weft.stat_get_last_error(
	OUT subid oid,
	OUT last_error_time timestamptz,
	OUT last_error_lsn pg_lsn,
	OUT last_error text,
	OUT repeats integer,
	OUT overcome boolean)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_last_error';

COMMENT ON FUNCTION weft.stat_get_last_error() IS
	'the last error of every apply worker since the server started, for roles that may see it';

CREATE FUNCTION weft.stat_get_totals(
	OUT subid oid,
	OUT total_transactions bigint,
	OUT total_changes bigint,
	OUT worker_starts bigint,
	OUT errors bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_totals';

COMMENT ON FUNCTION weft.stat_get_totals() IS
	'counters of subscriptions over all of their apply workers';

CREATE VIEW weft.stat_subscription AS
	SELECT s.oid AS subid, s.subname,
		g.leader_pid, g.num_writers, g.busy_writers,
		g.received_lsn, g.applied_lsn, g.apply_lag_bytes,
		g.publisher_lsn, g.publisher_lsn_time, g.publisher_lag_bytes,
		g.lag_time, g.apply_rate, g.apply_rate_bytes, g.catch_up_time,
		g.transactions, g.native_transactions, g.changes,
		g.dependency_waits, g.order_waits, g.misspeculations, g.barriers,
		g.ring_size, g.ring_used, g.output_plugin, g.native_reason,
		e.last_error, e.last_error_time, e.last_error_lsn,
		coalesce(t.total_transactions, 0) AS total_transactions,
		coalesce(t.total_changes, 0) AS total_changes,
		coalesce(t.worker_starts, 0) AS worker_starts, coalesce(t.errors, 0) AS errors
	FROM pg_catalog.pg_subscription s
		LEFT JOIN weft.stat_get_subscription() g ON g.subid = s.oid
		LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid
		LEFT JOIN weft.stat_get_totals() t ON t.subid = s.oid;

COMMENT ON VIEW weft.stat_subscription IS
	'progress and counters of every subscription, since its apply worker started';
GRANT SELECT ON weft.stat_subscription TO PUBLIC;

-- Cuts: moments at which apply stood still, and both sides had the same transactions.
-- "snapshots": snapshots of the publisher that were tried for them.  The pauses are the longest
-- time without a break in which apply stood still for one request, whether or not it became a cut.
CREATE FUNCTION weft.stat_get_cut(
	OUT subid oid,
	OUT cuts bigint,
	OUT snapshots bigint,
	OUT last_pause interval,
	OUT longest_pause interval)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_cut';

CREATE VIEW weft.stat_cut AS
	SELECT g.subid, s.subname, g.cuts, g.snapshots, g.last_pause, g.longest_pause
	FROM weft.stat_get_cut() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_cut IS
	'for how long apply has paused for comparisons and repairs, since the apply worker started';
GRANT SELECT ON weft.stat_cut TO PUBLIC;

CREATE FUNCTION weft.stat_get_writer(
	OUT subid oid,
	OUT writer integer,
	OUT pid integer,
	OUT state text,
	OUT seq bigint,
	OUT remote_lsn pg_lsn,
	OUT transactions bigint,
	OUT changes bigint,
	OUT misspeculations bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_writer';

CREATE VIEW weft.stat_writer AS
	SELECT g.subid, s.subname, g.writer, g.pid, g.state, g.seq, g.remote_lsn,
		g.transactions, g.changes, g.misspeculations
	FROM weft.stat_get_writer() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_writer IS
	'state of every writer, and its counters since the apply worker started';
GRANT SELECT ON weft.stat_writer TO PUBLIC;

CREATE FUNCTION weft.stat_get_relation(
	OUT subid oid,
	OUT relation regclass,
	OUT path text,
	OUT reason text,
	OUT inserts bigint,
	OUT updates bigint,
	OUT deletes bigint,
	OUT general_rows bigint,
	OUT coalesced_rows bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_relation';

CREATE VIEW weft.stat_relation AS
	SELECT g.subid, s.subname, g.relation, g.path, g.reason,
		g.inserts, g.updates, g.deletes, g.general_rows, g.coalesced_rows
	FROM weft.stat_get_relation() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid
		JOIN pg_catalog.pg_class c ON c.oid = g.relation;

COMMENT ON VIEW weft.stat_relation IS
	'how writers apply rows of every relation, and how many they have applied since the apply worker started';
GRANT SELECT ON weft.stat_relation TO PUBLIC;

CREATE FUNCTION weft.stat_get_stream(
	OUT subid oid,
	OUT remote_xid xid,
	OUT state text,
	OUT writer integer,
	OUT spool_bytes bigint,
	OUT received_changes bigint,
	OUT applied_changes bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_stream';

CREATE VIEW weft.stat_stream AS
	SELECT g.subid, s.subname, g.remote_xid, g.state, g.writer,
		g.spool_bytes, g.received_changes, g.applied_changes
	FROM weft.stat_get_stream() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_stream IS
	'transactions that the publisher streams while they are in progress, or that wait for commit';
GRANT SELECT ON weft.stat_stream TO PUBLIC;

CREATE FUNCTION weft.stat_get_conflict(
	OUT subid oid,
	OUT conflict_type text,
	OUT conflicts bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_conflict';

CREATE VIEW weft.stat_conflict AS
	SELECT g.subid, s.subname, g.conflict_type, g.conflicts
	FROM weft.stat_get_conflict() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_conflict IS
	'number of conflicts of each type resolved since the apply worker started';
GRANT SELECT ON weft.stat_conflict TO PUBLIC;

CREATE FUNCTION weft.copy_get_progress(
	OUT subid oid,
	OUT relation regclass,
	OUT pid integer,
	OUT phase text,
	OUT helpers integer,
	OUT helpers_used integer,
	OUT rows_done bigint,
	OUT rows_estimated bigint,
	OUT bytes_done bigint,
	OUT bytes_estimated bigint,
	OUT bytes_per_second bigint,
	OUT time_left interval,
	OUT indexes integer,
	OUT indexes_done integer,
	OUT started_at timestamp with time zone,
	OUT last_error text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_copy_get_progress';

CREATE VIEW weft.copy_progress AS
	SELECT r.srsubid AS subid, s.subname, r.srrelid::pg_catalog.regclass AS relation,
		CASE
			-- With a position, the copy of weft.resync_table is not finished.
			WHEN r.srsubstate = 's' OR r.srsubstate = 'f' AND r.srsublsn IS NULL THEN 'catching up'
			WHEN g.pid IS NOT NULL THEN g.phase
			WHEN w.pid IS NOT NULL AND r.srsubstate = 'd' THEN 'copying'
			ELSE 'waiting'
		END AS phase,
		coalesce(g.helpers, 0) AS helpers,
		coalesce(nullif(g.rows_done, 0), p.tuples_processed, g.rows_done) AS rows_done,
		g.rows_estimated,
		coalesce(nullif(g.bytes_done, 0), p.bytes_processed, g.bytes_done) AS bytes_done,
		g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM pg_catalog.pg_subscription_rel r
		JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
		LEFT JOIN weft.copy_get_progress() g
			ON g.subid = r.srsubid AND g.relation = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_subscription w
			ON w.subid = r.srsubid AND w.relid = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = w.pid
	WHERE r.srsubstate <> 'r'
	UNION ALL
	SELECT NULL, NULL, g.relation, g.phase, g.helpers, g.rows_done, g.rows_estimated,
		g.bytes_done, g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM weft.copy_get_progress() g
	WHERE g.subid = 0 AND g.pid IS NOT NULL AND g.phase IN ('copying', 'indexing');

COMMENT ON VIEW weft.copy_progress IS
	'progress of the initial copy of every table that is not synchronized yet, or that this node copies to join a group';
GRANT SELECT ON weft.copy_progress TO PUBLIC;

-- Node groups.

CREATE VIEW weft.node AS
	SELECT n.node_name, n.node_id, n.state, n.is_local, g.node_group_name
	FROM weft.node_entry n LEFT JOIN weft.node_group_entry g ON true;

COMMENT ON VIEW weft.node IS
	'the members of the node group of this database';
GRANT SELECT ON weft.node TO PUBLIC;

-- An error may quote values of rows, so not every role may see it.
CREATE VIEW weft.node_group AS
	SELECT g.node_group_name, g.num_writers,
		(SELECT count(*) FROM weft.node_entry) AS members,
		j.step AS join_step,
		CASE WHEN has_table_privilege('weft.join_entry', 'SELECT')
			OR pg_has_role('pg_read_all_stats', 'USAGE') THEN j.error END AS join_error
	FROM weft.node_group_entry g LEFT JOIN weft.join_entry j ON true;

COMMENT ON VIEW weft.node_group IS
	'the node group of this database';
GRANT SELECT ON weft.node_group TO PUBLIC;

CREATE VIEW weft.node_replication AS
	SELECT n.node_name AS from_node, l.node_name AS to_node, s.subname AS subscription,
		CASE WHEN s.subname IS NULL THEN 'missing'
			WHEN NOT s.subenabled THEN 'disabled'
			WHEN w.leader_pid IS NULL THEN 'down'
			WHEN coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) > 0 THEN 'catching up'
			ELSE 'streaming' END AS state,
		coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) AS lag_bytes,
		w.lag_time, w.num_writers, w.last_error_time, w.last_error
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN (pg_catalog.pg_subscription s
			JOIN pg_catalog.pg_database d ON d.oid = s.subdbid AND d.datname = pg_catalog.current_database()
			JOIN weft.stat_subscription w ON w.subid = s.oid)
			ON s.subname = weft.subscription_name(g.node_group_name, n.node_name, l.node_name)
	UNION ALL
	SELECT l.node_name, n.node_name, t.slot_name,
		CASE WHEN t.slot_name IS NULL THEN 'missing'
			WHEN t.wal_status = 'lost' THEN 'lost'
			WHEN NOT t.active THEN 'down'
			WHEN r.state = 'catchup' THEN 'catching up'
			ELSE coalesce(r.state, 'starting') END,
		pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
				THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END,
			t.confirmed_flush_lsn)::bigint,
		r.replay_lag, NULL, NULL, NULL
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN pg_catalog.pg_replication_slots t
			ON t.slot_name = weft.subscription_name(g.node_group_name, l.node_name, n.node_name)
				AND t.database = pg_catalog.current_database()
		LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = t.active_pid;

COMMENT ON VIEW weft.node_replication IS
	'replication between this node and every other member, in both directions';
GRANT SELECT ON weft.node_replication TO PUBLIC;

CREATE FUNCTION weft.node_group_replication()
RETURNS SETOF weft.node_replication LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
BEGIN
	FOR member IN SELECT * FROM weft.member ORDER BY node_id LOOP
		BEGIN
			RETURN QUERY SELECT r.* FROM jsonb_populate_recordset(NULL::weft.node_replication,
				weft.node_query(member.dsn, member.node_name,
					format('SELECT jsonb_agg(r) FROM weft.node_replication r WHERE to_node = %L',
						member.node_name))::jsonb) r;
		EXCEPTION WHEN connection_failure THEN
			RETURN QUERY SELECT n.node_name, member.node_name,
				weft.subscription_name(weft.local_group(), n.node_name, member.node_name),
				'unreachable', NULL::bigint, NULL::interval, NULL::integer, clock_timestamp(), SQLERRM
				FROM weft.node_entry n WHERE n.node_name <> member.node_name;
		END;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.node_group_replication() IS
	'replication between all members, as each of them reports it';
REVOKE ALL ON FUNCTION weft.node_group_replication() FROM PUBLIC;
-- Comparing a subscription with its publisher, and repairing what differs.
-- Results of comparisons.  They contain rows of user tables, so a role sees a comparison only if
-- it may act as the role that owned the subscription then.  The contents are about OIDs,
-- positions and transactions of this server at some time, so a dump does not contain them.

CREATE SEQUENCE weft.comparison_seq;

-- subid, owner: of the subscription; the role is the one as which rows were read here
-- requested_tables: NULL means all tables of the subscription
-- status: 'running', or 'finished'; a comparison that is "running" and whose process is
--	gone was interrupted, which weft.stat_comparison shows
-- publisher_lsn: the publisher's position at the last cut
-- longest_cut: the longest time that a cut took, in milliseconds; apply paused for a part of it
-- node: the other member, if two members of a group are compared (weft.compare_node); "the
--	publisher" is that member then
CREATE TABLE weft.comparison (
	comparison bigint PRIMARY KEY DEFAULT pg_catalog.nextval('weft.comparison_seq'),
	subid oid NOT NULL,
	subname name NOT NULL,
	owner oid NOT NULL,
	requested_tables regclass[],
	jobs integer NOT NULL,
	max_rows_per_second bigint,
	max_differences integer NOT NULL,
	status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished')),
	started_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	ended_at timestamptz,
	cuts integer NOT NULL DEFAULT 0,
	publisher_lsn pg_lsn,
	longest_cut double precision,
	node name);

ALTER SEQUENCE weft.comparison_seq OWNED BY weft.comparison.comparison;
ALTER TABLE weft.comparison ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison
	USING (pg_catalog.pg_has_role(owner, 'USAGE'));

COMMENT ON TABLE weft.comparison IS
	'comparisons of subscriptions with their publishers; deleting a row deletes its results';
GRANT SELECT, DELETE ON weft.comparison TO PUBLIC;

-- table_name, relation: the quoted name, which is the same on both sides; the table here, if any
-- status: 'waiting'; 'running'; 'done': compared completely, or up to max_differences;
--	'skipped': cannot be compared; 'changed': was altered, truncated or dropped on one of
--	the sides each time that it was compared; 'failed': an error on one of the sides
-- reason: why it was not compared, or not completely
-- publisher_rows, local_rows: how many rows were compared
-- differences: how many were found; more exist if "complete" is false
-- candidates: of weft.compare_node: rows that may differ; when the comparison is finished, those
--	that were changing each time, so that nothing is known of them (weft.comparison_candidate)
-- first_lsn, last_lsn: positions of the publisher at the first and last cut with the table
CREATE TABLE weft.comparison_table (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	table_name text NOT NULL,
	relation regclass,
	status text NOT NULL DEFAULT 'waiting'
		CHECK (status IN ('waiting', 'running', 'done', 'skipped', 'changed', 'failed')),
	reason text,
	publisher_rows bigint NOT NULL DEFAULT 0,
	local_rows bigint NOT NULL DEFAULT 0,
	differences bigint NOT NULL DEFAULT 0,
	complete boolean NOT NULL DEFAULT false,
	cuts integer NOT NULL DEFAULT 0,
	first_lsn pg_lsn,
	last_lsn pg_lsn,
	started_at timestamptz,
	ended_at timestamptz,
	candidates bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (comparison, table_name));

ALTER TABLE weft.comparison_table ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison_table FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = comparison_table.comparison));

COMMENT ON TABLE weft.comparison_table IS
	'what a comparison has compared, what not, and why';
GRANT SELECT ON weft.comparison_table TO PUBLIC;

-- difference: its number within the comparison
-- key: values of the key as text; of a table that is compared without a key, NULL
-- row_count: how many equal rows are missing, in a table that is compared without a key
-- columns: those that differ; NULL if a row is missing
-- publisher_row, local_row: each published column that exists here, with the value's text.
--	A very long text is cut (row_hash.h).
-- local_origin, local_commit_time: who wrote the local row and when, if
--	track_commit_timestamp is on and still knows; the origin's name is empty for a local write
-- publisher_lsn: the publisher's position at the cut at which it was found
-- repair_result: what weft.repair() has done: 'repaired'; 'vanished': the row did not differ
--	any more; 'failed': it still differs, and repair_reason says why; 'kept': of two nodes, the
--	row here wins, or it is not known which one does.  After a dry run for two nodes, repair_reason
--	says what would be done.
-- repair_lsn, repaired_at: the publisher's position at the cut of the repair; when that was
CREATE TABLE weft.difference (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	difference bigint NOT NULL,
	relation regclass NOT NULL,
	key jsonb,
	kind text NOT NULL CHECK (kind IN ('missing here', 'missing there', 'different')),
	row_count bigint NOT NULL DEFAULT 1,
	columns text[],
	publisher_row jsonb,
	local_row jsonb,
	local_origin text,
	local_commit_time timestamptz,
	publisher_lsn pg_lsn NOT NULL,
	found_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	repair_result text CHECK (repair_result IN ('repaired', 'vanished', 'failed', 'kept')),
	repair_reason text,
	repair_lsn pg_lsn,
	repaired_at timestamptz,
	PRIMARY KEY (comparison, difference));

CREATE INDEX difference_relation_index ON weft.difference (comparison, relation);
ALTER TABLE weft.difference ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.difference FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = difference.comparison));

COMMENT ON TABLE weft.difference IS
	'rows that a comparison has found to differ; the texts are exact';
GRANT SELECT ON weft.difference TO PUBLIC;

-- Rows of two members of a group that differed at a cut.  That is no difference yet: changes of
-- other members may be under way.  weft.compare_node looks at them again, and removes those that
-- turn out to be equal or different.
-- looks: how often the row was looked at again
-- row_hash: identifies the row in a table that is compared without a key
-- All others as in weft.difference, at the cut at which it was found.
CREATE TABLE weft.comparison_candidate (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	candidate bigint NOT NULL,
	relation regclass NOT NULL,
	key jsonb,
	row_hash bigint,
	kind text NOT NULL,
	row_count bigint NOT NULL,
	publisher_row jsonb,
	local_row jsonb,
	publisher_lsn pg_lsn NOT NULL,
	looks integer NOT NULL DEFAULT 0,
	PRIMARY KEY (comparison, candidate));

ALTER TABLE weft.comparison_candidate ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison_candidate FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = comparison_candidate.comparison));

COMMENT ON TABLE weft.comparison_candidate IS
	'rows that were changing while weft.compare_node looked at them, so that it is unknown whether they differ';
GRANT SELECT ON weft.comparison_candidate TO PUBLIC;

-- If a publisher publishes ALL TABLES, then its own comparisons would arrive here, and their
-- numbers could be in use.  These triggers fire for what is replicated, and only then.
CREATE FUNCTION weft.ignore_replicated_row()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.ignore_replicated_row() IS
	'ignores rows of another server''s comparisons';
REVOKE ALL ON FUNCTION weft.ignore_replicated_row() FROM PUBLIC;

CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison_table
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison_table ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.difference
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.difference ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison_candidate
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison_candidate ENABLE REPLICA TRIGGER ignore_replicated;

-- Compares the subscription's tables with the publisher's, while both are in use.
--
-- subscription: its owner, and whoever may act as the owner, may call this.
-- tables: which tables; NULL means all.
-- jobs: how many processes compare.  This session is one of them; the others are parallel
--	workers, if available.  Each has its own connection to the publisher.
-- max_rows_per_second: limit on the rows read on each side, by all processes together.
-- max_differences: after that many differences of a table, the rest of it is not compared.
-- resume: continues an interrupted comparison: tables that are done are not compared again.
-- comparison: out: the number of the comparison, as in weft.comparison.
--
-- Each row is compared as of a cut: a moment at which both sides contain the same
-- transactions.  A snapshot is kept on both sides for up to weft.comparison_snapshot_age; a
-- larger table is compared at several cuts, each part at one of them.  A row whose key changes
-- between two of these cuts, so that it moves from a part that has not been compared yet to one that has,
-- is not compared; apply has then written the whole row, except for TOASTed values that did not change.
--
-- Tables are read here as apply writes them: as their owners, or, if the subscription has
-- run_as_owner, as its owner.  The subscription's owner must be allowed to read them, too.
CREATE PROCEDURE weft.compare_subscription(
	subscription name,
	tables regclass[] DEFAULT NULL,
	jobs integer DEFAULT 2,
	max_rows_per_second bigint DEFAULT NULL,
	max_differences integer DEFAULT 1000,
	resume bigint DEFAULT NULL,
	INOUT comparison bigint DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_compare_subscription';

COMMENT ON PROCEDURE weft.compare_subscription(name, regclass[], integer, bigint, integer, bigint, bigint) IS
	'compares a subscription''s tables with the publisher''s; see weft.comparison_table and weft.difference';

-- Compares this member of a node group with another one, while all members are in use.
--
-- node: the other member.
-- timeout: how long all members may take to exchange what they have committed so far.  That
--	is waited for before the comparison, and several times after it.
-- The other arguments are as above.  The caller must own the subscription to that member, and
-- have what weft.grant_node_admin() grants; the role that the members connect as must be able
-- to read the tables there.
--
-- Needs all members: one that is down is named.  What differs is in weft.difference, as above:
-- "publisher" is the other member.  Rows that differ only because changes are under way are
-- none.  A row that is changed all the time may remain in weft.comparison_candidate, and its
-- table is not "complete" then.  A difference does not say which of the members is right:
-- compare with a third one.  An interrupted call cannot be continued, because what the looks
-- at changing rows have seen is lost; call it again, for some of the tables if need be.
CREATE PROCEDURE weft.compare_node(
	node name,
	tables regclass[] DEFAULT NULL,
	jobs integer DEFAULT 2,
	max_rows_per_second bigint DEFAULT NULL,
	max_differences integer DEFAULT 1000,
	timeout interval DEFAULT '5 minutes',
	INOUT comparison bigint DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_compare_node';

COMMENT ON PROCEDURE weft.compare_node(name, regclass[], integer, bigint, integer, interval, bigint) IS
	'compares this member of a node group with another one; see weft.comparison_table and weft.difference';

-- Transactions that apply changes in this database.  Those that are streamed, or copy tables, can be long, and
-- a group has none of them.
-- SECURITY DEFINER, since a role sees its own processes only.
CREATE FUNCTION weft.background_transactions()
RETURNS xid[] LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(array_agg(a.backend_xid), '{}')
	FROM pg_stat_get_activity(NULL) a JOIN pg_database d ON d.oid = a.datid
	WHERE d.datname = current_database() AND a.backend_xid IS NOT NULL
		AND a.backend_type IN ('weft writer', 'logical replication apply worker')
$$;

COMMENT ON FUNCTION weft.background_transactions() IS
	'transactions that apply changes now';
REVOKE ALL ON FUNCTION weft.background_transactions() FROM PUBLIC;

-- Returns when everything that each other member had committed at the time of the call is applied
-- and visible here.  Returns the members, for comparing.
CREATE FUNCTION weft.member_await_members(timeout interval)
RETURNS text LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until timestamptz := clock_timestamp() + timeout;
	local_name name := weft.local_node();
	other name;
	applying xid[];
	detail text;
	hint text;
BEGIN
	FOR other IN SELECT n.node_name FROM weft.node_entry n ORDER BY n.node_id LOOP
		IF (SELECT n.state FROM weft.node_entry n WHERE n.node_name = other) <> 'active' THEN
			RAISE EXCEPTION 'node "%" is not an active member of the group, as node "%" sees it', other, local_name
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Wait until no node is joining or parting.';
		END IF;
		CONTINUE WHEN other = local_name;
		BEGIN
			PERFORM weft.wait_for_subscription(
				weft.subscription_name(weft.local_group(), other, local_name),
				greatest(until - clock_timestamp(), '0'));
		EXCEPTION WHEN OTHERS OR query_canceled THEN
			GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
			RAISE EXCEPTION 'node "%" cannot get all changes of node "%": %', local_name, other, SQLERRM
				USING ERRCODE = SQLSTATE, DETAIL = detail, HINT = hint;
		END;
	END LOOP;
	-- The position of a transaction is known a moment before its changes are visible.
	PERFORM pg_stat_clear_snapshot();
	applying := weft.background_transactions();
	WHILE EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'transactionid'
		AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid = ANY (applying))
	LOOP
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'timed out waiting for transactions that node "%" is applying', local_name
				USING ERRCODE = 'query_canceled';
		END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN (SELECT string_agg(n.node_name || ' ' || n.identity, ', ' ORDER BY n.node_id)
		FROM weft.node_entry n);
END $$;

COMMENT ON FUNCTION weft.member_await_members(interval) IS
	'waits until this node has applied what all others have committed; returns the members';
REVOKE ALL ON FUNCTION weft.member_await_members(interval) FROM PUBLIC;

-- The same for this member and another one; see src/verify/compare_node.c.
CREATE FUNCTION weft.await_both_members(node name, timeout interval)
RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	there text;
	here text;
BEGIN
	there := weft.node_query((SELECT m.dsn FROM weft.member m WHERE m.node_name = node), node,
		format('SELECT weft.member_await_members(%L)', timeout));
	here := weft.member_await_members(timeout);
	IF here IS DISTINCT FROM there THEN
		RAISE EXCEPTION 'nodes "%" and "%" do not have the same members', weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Here: %s. There: %s.', here, there);
	END IF;
END $$;

COMMENT ON FUNCTION weft.await_both_members(name, interval) IS
	'waits until this node and another one have applied what all members have committed';
REVOKE ALL ON FUNCTION weft.await_both_members(name, interval) FROM PUBLIC;

-- Comparisons that are running: progress, from shared memory.
CREATE FUNCTION weft.stat_get_comparison(
	OUT comparison bigint,
	OUT pid integer,
	OUT jobs integer,
	OUT rows_compared bigint,
	OUT rows_estimated bigint,
	OUT snapshot_age interval)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_comparison';

REVOKE ALL ON FUNCTION weft.stat_get_comparison() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.stat_get_comparison() TO PUBLIC;

-- The view's user needs the rights on the tables, so that row security applies to the user.
CREATE VIEW weft.stat_comparison WITH (security_invoker = true) AS
	SELECT c.comparison, c.subname,
		CASE WHEN c.status = 'running' AND g.pid IS NULL THEN 'interrupted' ELSE c.status END AS status,
		g.pid, g.jobs, c.started_at, c.ended_at,
		t.tables, t.tables_done, t.tables_not_compared, t.tables_waiting,
		coalesce(g.rows_compared, t.publisher_rows) AS rows_compared, g.rows_estimated,
		t.differences, c.cuts, g.snapshot_age, c.longest_cut
	FROM weft.comparison c
		LEFT JOIN weft.stat_get_comparison() g ON g.comparison = c.comparison
		CROSS JOIN LATERAL (
			SELECT count(*) AS tables,
				count(*) FILTER (WHERE s.status = 'done') AS tables_done,
				count(*) FILTER (WHERE s.status IN ('skipped', 'changed', 'failed')) AS tables_not_compared,
				count(*) FILTER (WHERE s.status IN ('waiting', 'running')) AS tables_waiting,
				coalesce(sum(s.publisher_rows), 0)::bigint AS publisher_rows,
				coalesce(sum(s.differences), 0)::bigint AS differences
			FROM weft.comparison_table s WHERE s.comparison = c.comparison) t;

COMMENT ON VIEW weft.stat_comparison IS
	'progress of comparisons, and whether they were interrupted';
GRANT SELECT ON weft.stat_comparison TO PUBLIC;


-- Repair.

-- Returns the condition that selects a local row by its key, or, in a table without one, by the text of
-- each of its values; NULL if a value has been cut.
CREATE FUNCTION weft.row_condition(row_key jsonb, local_row jsonb)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN bool_and(jsonb_typeof(c.value) IN ('string', 'null')) THEN
		string_agg(CASE
			WHEN jsonb_typeof(c.value) = 'null' THEN format('%I IS NULL', c.key)
			WHEN row_key IS NOT NULL THEN format('%I = %L', c.key, c.value #>> '{}')
			ELSE format('pg_catalog.format(''%%s'', %I) = %L AND %I IS NOT NULL',
				c.key, c.value #>> '{}', c.key) END, ' AND ' ORDER BY c.key) END
	FROM jsonb_each(coalesce(row_key, local_row)) c
$$;

COMMENT ON FUNCTION weft.row_condition(jsonb, jsonb) IS
	'the condition that selects a row of a difference';
REVOKE ALL ON FUNCTION weft.row_condition(jsonb, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.row_condition(jsonb, jsonb) TO PUBLIC;

-- Returns the statement that repairs a difference; NULL if a value has been cut.
CREATE FUNCTION weft.repair_statement(d weft.difference)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	-- format() would make an empty text of what is unknown
	SELECT CASE
		WHEN d.kind <> 'missing here' AND o.condition IS NULL
			OR d.kind = 'different' AND v.assignments IS NULL
			OR d.kind = 'missing here' AND v.texts IS NULL THEN NULL
		WHEN d.kind = 'missing there' THEN CASE
			WHEN d.key IS NOT NULL THEN
				format('DELETE FROM %s%s WHERE %s;', o.only_this, d.relation, o.condition)
			ELSE format('DELETE FROM %s%s WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM %s%s WHERE %s LIMIT %s);',
				o.only_this, d.relation, o.only_this, d.relation, o.condition, d.row_count) END
		WHEN d.kind = 'different' THEN
			format('UPDATE %s%s SET %s WHERE %s;', o.only_this, d.relation, v.assignments, o.condition)
		ELSE
			format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES %s;', d.relation, v.names,
				repeat('(' || v.texts || '), ', (d.row_count - 1)::integer) || '(' || v.texts || ')')
		END
	FROM pg_class t,
		LATERAL (SELECT CASE WHEN t.relkind = 'r' THEN 'ONLY ' ELSE '' END AS only_this,
			weft.row_condition(d.key, d.local_row) AS condition) o,
		LATERAL (SELECT string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) AS names,
			CASE WHEN bool_and(jsonb_typeof(d.publisher_row -> a.attname) IN ('string', 'null')) THEN
				string_agg(format('%L', d.publisher_row ->> a.attname), ', ' ORDER BY a.attnum) END AS texts,
			CASE WHEN bool_and(jsonb_typeof(d.publisher_row -> a.attname) IN ('string', 'null'))
				FILTER (WHERE a.attname = ANY (d.columns)) THEN
				string_agg(format('%I = %L', a.attname, d.publisher_row ->> a.attname), ', ' ORDER BY a.attnum)
				FILTER (WHERE a.attname = ANY (d.columns)) END AS assignments
			FROM pg_attribute a
			WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
				AND d.publisher_row ? a.attname) v
	WHERE t.oid = d.relation
$$;

COMMENT ON FUNCTION weft.repair_statement(weft.difference) IS
	'the statement that repairs a difference';
REVOKE ALL ON FUNCTION weft.repair_statement(weft.difference) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.repair_statement(weft.difference) TO PUBLIC;

-- Shows how a comparison's differences that have not been repaired could be repaired: dry run.
--
-- The statements contain the publisher's rows as the comparison has recorded them; the publisher
-- is not asked, and either side may have changed since.  They are in the order in which
-- "CALL weft.repair(comparison, apply := true)" goes through the differences, and they are quoted, so that they can be
-- executed here.  But then they are changes of the session: all triggers fire, foreign keys
-- are checked, the changes have no replication origin, and a row that apply has changed
-- meanwhile is overwritten.  A statement is a comment if the difference cannot be repaired
-- by text: because a value is too long to be recorded, or the table is gone.
CREATE FUNCTION weft.repair(
	comparison bigint,
	OUT difference bigint,
	OUT relation regclass,
	OUT statement text)
RETURNS SETOF record LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
	IF NOT EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = repair.comparison) THEN
		RAISE EXCEPTION USING ERRCODE = 'undefined_object',
			MESSAGE = format('comparison %s does not exist', repair.comparison);
	END IF;
	RETURN QUERY
		SELECT d.difference, d.relation, coalesce(weft.repair_statement(d),
			format('-- difference %s: a value is too long to be shown, or nothing can be written', d.difference))
		FROM (SELECT e.*, min(e.difference) OVER (PARTITION BY e.relation) AS first_of_table
				FROM weft.difference e
				WHERE e.comparison = repair.comparison AND e.repair_result IS DISTINCT FROM 'repaired'
					AND e.repair_result IS DISTINCT FROM 'vanished') o
			JOIN weft.difference d ON d.comparison = o.comparison AND d.difference = o.difference
		ORDER BY o.first_of_table,
			CASE d.kind WHEN 'missing there' THEN 1 WHEN 'different' THEN 2 ELSE 3 END, d.difference;
END $$;

COMMENT ON FUNCTION weft.repair(bigint) IS
	'statements that would repair the differences of a comparison (dry run)';
REVOKE ALL ON FUNCTION weft.repair(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.repair(bigint) TO PUBLIC;

-- Repairs a comparison's differences: makes rows here what they are on the publisher.
--
-- apply: must be true.
-- batch_size: how many rows are written in one transaction, 1 to 10000.  If apply does not wait
--	that long, smaller batches are used.
-- lock_timeout: how long to wait for a row, or table, that a session has locked; it is left as it is then.
-- max_pause: for how long apply may stand still for a batch.
--
-- The caller owns the subscription, which must be enabled.  Each batch takes a cut: apply
-- stands at a position of the publisher, whose rows are read as of that position, and compared
-- with those here once more; what still differs is written, and apply goes on.  Therefore
-- nothing newer is overwritten.  What became of each difference is in weft.difference, and a
-- notice tells how many were repaired.  Calling it again tries again what has failed.
--
-- Rows are written as apply would: as the same role, with the triggers that fire on a replica,
-- without checks of foreign keys, and under the subscription's replication origin.  Columns
-- that the publisher does not have keep their values.  If rows have exchanged unique values, they are
-- deleted and inserted, and triggers fire for that.  Tables without a key are read as a
-- whole on the publisher for each batch, while apply stands: for large ones, increase max_pause.
--
-- If the comparison is one of two nodes of a group (weft.compare_node), then rows are written on
-- this node only, each with the time and the node of the version that wins, as if it had
-- arrived by replication.  It is not sent to other members.
-- winner: the name of one of the two nodes, whose rows win; a row that was changed here since
--	it was compared is left.  By default, the newer version of each row wins, or the newer
--	delete; a row whose version is known on neither node is left, and so is one of which this
--	server has forgotten when it was written (it was frozen, or track_commit_timestamp was off).
-- apply => false: writes nothing, but weft.difference.repair_reason says what would be done.
-- Tables with counters (weft.set_delta_columns), and tables without a key, are left.
--
-- Cannot be used within a transaction block, nor after weft.compare_subscription for a
-- subscription that detects conflicts.
-- Needs a free background worker (max_worker_processes), and SELECT on the tables there and here.
CREATE PROCEDURE weft.repair(
	comparison bigint,
	apply boolean,
	batch_size integer DEFAULT 100,
	lock_timeout interval DEFAULT '200 ms',
	max_pause interval DEFAULT '2 s',
	winner name DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_repair';

COMMENT ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) IS
	'makes the rows of a comparison''s differences equal to the publisher''s';
REVOKE ALL ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) FROM PUBLIC;
GRANT EXECUTE ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) TO PUBLIC;

-- On the other member: who wrote a row or deleted it, and when (src/verify/member_version.h).

CREATE FUNCTION weft.member_row_version(relation oid, row_id tid)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_row_version';

COMMENT ON FUNCTION weft.member_row_version(oid, tid) IS
	'time and node of the transaction that wrote a row';
REVOKE ALL ON FUNCTION weft.member_row_version(oid, tid) FROM PUBLIC;

CREATE FUNCTION weft.member_delete_version(relation regclass, row_key uuid)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_delete_version';

COMMENT ON FUNCTION weft.member_delete_version(regclass, uuid) IS
	'time and node of the newest delete of a row';
REVOKE ALL ON FUNCTION weft.member_delete_version(regclass, uuid) FROM PUBLIC;


-- Sequences.

-- Sets the sequences here at or beyond those of the publisher, by "margin" steps: sequences
-- that published tables use, and all others in their schemas.  Logical replication does not
-- replicate sequences.  Call it again after the last write on the publisher, because numbers
-- taken there afterwards are unknown here.
--
-- A sequence is never set back; one that is beyond stays as it is.  One row for each sequence of
-- the publisher; "problem" says why a sequence may still return numbers that the publisher
-- has used, such as that it does not exist here ("sequence" is null), or that the owner of
-- the subscription lacks the right UPDATE on it.  ROLLBACK does not undo this, as with setval().
-- Sequences of weft.snowflake_nextval() are not changed.
--
-- Needs on the publisher: SELECT on the sequences, for the role that the subscription
-- connects as.  Here: ownership of the subscription.
CREATE FUNCTION weft.sync_sequences(
	subscription name,
	margin bigint DEFAULT 1000,
	OUT sequence regclass,
	OUT publisher_value bigint,
	OUT before bigint,
	OUT after bigint,
	OUT problem text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_sync_sequences';

COMMENT ON FUNCTION weft.sync_sequences(name, bigint) IS
	'sets the subscriber''s sequences at or beyond the publisher''s';
-- Switching over to a subscriber, and back.
--
-- The server that accepts writes is the source S, the other one the target T.  For
-- weft.switch_over, the publisher is S and this server T; for weft.switch_back, the reverse.
-- Both are called here, on the server that has the subscription; the other one may be a
-- stock server from version 15 on.
--
-- The steps, each a row in weft.switch_over_progress (src/switch/steps.c):
--
--	plan: runs the checks of weft.switch_over_plan; fails on errors.
--	arm_target, fence_target: T refuses all writes but those of replication, until it is opened.
--		This outlives a failure: until a switch-over succeeds or weft.switch_over_cancel is
--		called, T remains closed, so that clients that look for a server that accepts writes
--		find S alone.
--	arm_source: the same triggers on S, which let everything pass for the time being.
--	publish, create_slot, subscribe: what S will follow T with: a publication and a slot on T,
--		a disabled subscription on S (copy_data = false; origin = none from version 16 on).
--	compare: with verify => 'recent', compares all rows while S accepts writes.
--	catch_up: waits until T is close behind S, and the new slot close behind T.
--	sequences_before: those of T are set at or beyond those of S.
--	fence_source: S refuses writes; here their pause begins.  Provisional: only while this
--		session's connection to S lives, and until "max_pause" has been over for some seconds.
--		If the caller dies or is frozen, S accepts writes again by itself.
--	drain: T applies everything that S had when its fence was closed.
--	sequences: once more.
--	verify: the rows of both sides are compared, as the argument "verify" says.
--	position: the slot on T is advanced; what users write on T comes after that.
--	final: the fence of S becomes final.  The point of no return.
--	stop, open: T no longer follows S, and accepts writes; here the pause ends.
--	remove, follow: what T followed S with is removed, or kept disabled and without a slot;
--		S follows T.
--	disarm: drops the triggers of T.
--
-- A failure before "final" is undone: S continues, T remains closed.  From then on, calling
-- the procedure again completes the switch-over.  After the death of the caller or a crash,
-- calling it again undoes what was begun and begins anew, or completes it.
--
-- Only tables are fenced, and only those of the subscription, with their partitions and
-- parents (src/switch/fence.c).  Not fenced on S: sequences, large objects, tables that are not
-- published, DDL, and owners who drop the triggers "weft_switch_fence".  To open a server by
-- force, for instance when the other one is lost: DROP SCHEMA weft_switch CASCADE there.
--
-- A database has one fence, with one state.  So there is one switch-over of a database: a
-- second subscription to the same publisher, or a second subscriber, is refused as long as the
-- first one relies on a fence.
--
-- Rights.  Here, the caller owns the subscription and its tables, and has CREATE on the
-- database and, for a way back, the attribute REPLICATION.  There, the role of the
-- connection owns the tables, and has CREATE on the database; for a way back also
-- pg_create_subscription (on 15: it is a superuser), and REPLICATION for weft.switch_back.
--
-- With verify => 'counts', rows there are counted by the role that the subscription connects as, which
-- needs SELECT on the tables.
--
-- Connection strings are not stored here, nor shown by any message, view or log of the
-- other server; but the text of the CALL itself is in this server's pg_stat_activity, and in
-- its log if it fails or log_statement says so; the log may contain bound parameters, too.  Use a
-- password file if the server may, or read the string from a table:
--	CREATE TEMPORARY TABLE way (back text);
--	\copy way FROM file
--	DO $$ DECLARE w text; BEGIN SELECT back INTO w FROM way; CALL weft.switch_over('...', w); END $$;
-- On the other server, extensions that log nested commands (pgaudit, pg_stat_statements with
-- track = all), and event triggers, may see the string, unless the role there is a
-- superuser, whose session switches those extensions off.

-- What can be known before a switch-over to this server: one row for each problem, and one
-- row, of severity "ok", for each check that has found none.  Changes nothing on either server.
-- With "error", weft.switch_over would fail, or something would be lost; it refuses to begin.
-- A "warning" is for somebody who knows the application.  A remedy is SQL where possible, to be
-- run here unless its comment says "on the publisher".  What is "written by the publisher" is a
-- comment: read it before you run it anywhere.
--
-- reverse: whether the old publisher is to follow this server afterwards.
-- publisher_connection: as for weft.switch_over; it is the role whose rights there are checked.
--
-- What it cannot see: whether the publisher can connect to this server, what is stored
-- outside of the database, and sessions of other roles there without pg_read_all_stats.
CREATE FUNCTION weft.switch_over_plan(
	subscription name,
	reverse boolean DEFAULT true,
	publisher_connection text DEFAULT NULL,
	OUT check_name text,
	OUT object text,
	OUT severity text,
	OUT problem text,
	OUT remedy text)
RETURNS SETOF record
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_over_plan';

COMMENT ON FUNCTION weft.switch_over_plan(name, boolean, text) IS
	'tells what stands in the way of a switch-over, and what helps';

CREATE TABLE weft.switch_over_progress (
	subscription name NOT NULL,
	attempt bigint NOT NULL,
	direction text NOT NULL CHECK (direction IN ('over', 'back')),
	position integer NOT NULL,
	step text NOT NULL,
	started_at timestamptz NOT NULL,
	ended_at timestamptz,
	result text,
	PRIMARY KEY (subscription, attempt, position));

COMMENT ON TABLE weft.switch_over_progress IS
	'steps of switch-overs; writes are paused from the beginning of fence_source to the end of open';
GRANT SELECT ON weft.switch_over_progress TO PUBLIC;

-- The last attempt of each subscription (src/switch/switch_attempt.c).
CREATE TABLE weft.switch_attempt (
	subscription name NOT NULL,
	subid oid PRIMARY KEY,
	attempt bigint NOT NULL,
	back boolean NOT NULL,
	phase text NOT NULL CHECK (phase IN ('undone', 'begun', 'final', 'opened', 'done')),
	follow boolean NOT NULL,
	slot text,
	plugin text,
	two_phase boolean NOT NULL);

COMMENT ON TABLE weft.switch_attempt IS
	'the last attempt to switch over, of each subscription';
GRANT SELECT ON weft.switch_attempt TO PUBLIC;

-- Fails unless the caller owns the subscription.
CREATE FUNCTION weft.switch_begin(subscription name, direction text, reverse_connection text,
	publisher_connection text, verify text, timeout interval, max_pause interval,
	lock_timeout interval, sequence_margin bigint)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_begin';

COMMENT ON FUNCTION weft.switch_begin(name, text, text, text, text, interval, interval, interval, bigint) IS
	'begins a switch-over, or goes on with it; the procedures call it';

-- Fails unless this session has begun one.
CREATE FUNCTION weft.switch_step()
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_step';

COMMENT ON FUNCTION weft.switch_step() IS
	'the next part of a switch-over; the procedures call it, and commit';

-- reverse_connection: how the old server reaches this one, for the subscription that it gets;
-- NULL: it does not follow, and there is no way back.
-- publisher_connection: a connection string to the old server for a role that owns the
-- published tables, may create a schema, and, for the way back, a subscription
-- (pg_create_subscription from 16 on, a superuser on 15).  NULL: the subscription's own.
-- verify: what is compared; a difference undoes the switch-over.
--	none: nothing.
--	counts: during the pause, how many rows each table has.
--	recent: before the pause everything, as weft.compare_subscription does ("timeout" must suffice
--		for it); during the pause the number and the keys of all rows, and the contents of those
--		that have changed since (src/verify/rest_check.c argues that this finds everything).
--	full: during the pause everything, as weft.compare_subscription does.  The pause is as long as
--		the comparison: "max_pause" must suffice for it.
--	The comparison of "recent" and "full" remains in weft.comparison; its number is the result of
--	the step.  Both need the rights of weft.compare_subscription, and fail if a table of the
--	subscription cannot be compared; "recent" also fails if one is altered or truncated meanwhile.
-- timeout: for everything before the pause; max_pause: for how long writes may be paused.
-- lock_timeout: how long one attempt to lock all tables may hold up writers.
CREATE PROCEDURE weft.switch_over(
	subscription name,
	reverse_connection text,
	publisher_connection text DEFAULT NULL,
	verify text DEFAULT 'counts',
	timeout interval DEFAULT '10 min',
	max_pause interval DEFAULT '10 s',
	lock_timeout interval DEFAULT '300 ms',
	sequence_margin bigint DEFAULT 1000)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'over', reverse_connection, publisher_connection,
		verify, timeout, max_pause, lock_timeout, sequence_margin);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_over(name, text, text, text, interval, interval, interval, bigint) IS
	'makes this server the one that accepts writes, and lets the publisher follow it';

-- Run here as well, once the old server follows.  The subscription continues as before.
-- verify: none, counts or full; "recent" needs cuts, which a stock server cannot make.  "full"
-- compares counts and hashes of all rows during the pause, and tells which tables differ, but not
-- which rows.  It connects to the other server as the subscription does.
CREATE PROCEDURE weft.switch_back(
	subscription name,
	publisher_connection text DEFAULT NULL,
	verify text DEFAULT 'counts',
	timeout interval DEFAULT '10 min',
	max_pause interval DEFAULT '10 s',
	lock_timeout interval DEFAULT '300 ms',
	sequence_margin bigint DEFAULT 1000)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'back', NULL, publisher_connection,
		verify, timeout, max_pause, lock_timeout, sequence_margin);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_back(name, text, text, interval, interval, interval, bigint) IS
	'makes the old server the one that accepts writes again, and lets this one follow it';

-- Before the point of no return: undoes everything, and opens the target for writes as it was
-- before the first attempt.
CREATE PROCEDURE weft.switch_over_cancel(
	subscription name,
	publisher_connection text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'cancel', NULL, publisher_connection,
		'none', '10 min', '10 s', '300 ms', 0);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_over_cancel(name, text) IS
	'undoes a switch-over that did not succeed, and lets this server accept writes again';
-- Checks of what this server can tell alone.
--
-- An id is never given to another check, and README describes each.  The checks see as much as the
-- caller may: others than the owner of a subscription, and members of pg_read_all_stats, do not
-- see its errors.

CREATE FUNCTION weft.library_version()
RETURNS text
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_library_version';

COMMENT ON FUNCTION weft.library_version() IS
	'the version of Weft that the server has loaded';

CREATE FUNCTION weft.health_of_errors(
	recent interval,
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH failed AS (
		SELECT s.subname, s.subenabled AS enabled, s.subdisableonerr AS disable_on_error,
			w.last_error AS message, w.last_error_time AS at, w.last_error_lsn AS lsn, e.repeats,
			coalesce(e.overcome, false) AS overcome, c.apply_error_count > 0 AS counted,
			c.sync_error_count > 0 AND EXISTS (SELECT FROM pg_subscription_rel r
				WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS copy_failed
		FROM pg_subscription s
			JOIN weft.stat_subscription w ON w.subid = s.oid
			LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid
			LEFT JOIN pg_stat_subscription_stats c ON c.subid = s.oid)
	SELECT 'H003', 'error', subname,
		'disabled because of an error' || coalesce(': ' || CASE WHEN NOT overcome THEN message END, ''),
		'Remove the cause, or skip the transaction with ALTER SUBSCRIPTION ... SKIP, then ALTER SUBSCRIPTION ... ENABLE.'
		FROM failed WHERE NOT enabled AND disable_on_error AND (copy_failed OR counted AND NOT overcome)
	UNION ALL
	SELECT 'H004', 'error', subname,
		format('apply has failed %s times in a row: %s', repeats, message),
		coalesce(format('Remove the cause; or skip the transaction: ALTER SUBSCRIPTION %I SKIP (lsn = %L).', subname, lsn),
			'Remove the cause. The log has the details.')
		FROM failed WHERE enabled AND repeats >= 3 AND at > clock_timestamp() - recent AND NOT overcome
	UNION ALL
	SELECT 'H007', 'info', subname,
		format('apply has failed at %s: %s', date_trunc('second', at), message),
		'Nothing, if it was overcome. The log has the details.'
		FROM failed WHERE enabled AND at > clock_timestamp() - recent AND (repeats < 3 OR overcome)
$$;

CREATE FUNCTION weft.health_of_subscriptions(
	stale interval,
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H002', CASE WHEN g.wanted_writers = 0 THEN 'info' ELSE 'warning' END, s.subname,
		'applied by the server''s own code alone: ' || g.native_reason,
		CASE WHEN g.wanted_writers = 0 THEN format('ALTER SUBSCRIPTION %I SET (num_writers = 4), unless this is wanted.', s.subname)
			ELSE 'The log has a hint.' END
		FROM weft.stat_get_subscription() g JOIN pg_subscription s ON s.oid = g.subid
		WHERE g.native_reason IS NOT NULL
	UNION ALL
	SELECT 'H005', 'warning', s.subname,
		format('%s of %s writers could be started', g.num_writers, g.wanted_writers),
		'Increase "max_worker_processes", and restart the server.'
		FROM weft.stat_get_subscription() g JOIN pg_subscription s ON s.oid = g.subid
		WHERE g.num_writers BETWEEN 1 AND g.wanted_writers - 1
	UNION ALL
	SELECT 'H005', 'error', s.subname,
		'no apply worker: all of "max_logical_replication_workers" are in use',
		'Increase "max_logical_replication_workers", and restart the server.'
		FROM pg_subscription s
			LEFT JOIN pg_stat_subscription a ON a.subid = s.oid AND a.relid IS NULL AND a.pid IS NOT NULL
		WHERE s.subenabled AND a.pid IS NULL
			AND (SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL)
				>= current_setting('max_logical_replication_workers')::integer
	UNION ALL
	SELECT 'H006', 'warning', s.subname,
		format('where the publisher''s WAL ends was last known %s ago', date_trunc('second', clock_timestamp() - g.publisher_lsn_time)),
		'Check the publisher, the network, and whether the apply worker waits for a lock. Do not set both "wal_receiver_timeout" here and "wal_sender_timeout" there to 0.'
		FROM weft.stat_get_subscription() g JOIN pg_subscription s ON s.oid = g.subid
		WHERE g.publisher_lsn_time < clock_timestamp() - stale
	UNION ALL
	SELECT 'H011', 'error', p.relation::text,
		format('the initial copy for subscription "%s" has failed: %s', p.subname, p.last_error),
		'Remove the cause. The copy is tried again by itself.'
		FROM weft.copy_progress p WHERE p.last_error IS NOT NULL
	UNION ALL
	SELECT 'H011', 'warning', s.subname,
		format('%s tables are not synchronized, and copies have failed %s times', r.tables, c.sync_error_count),
		'The log of this server says why copies have failed. A copy is tried again by itself.'
		FROM pg_subscription s
			JOIN pg_stat_subscription_stats c ON c.subid = s.oid AND c.sync_error_count > 0
			JOIN (SELECT srsubid, count(*) AS tables FROM pg_subscription_rel
				WHERE srsubstate NOT IN ('r', 's') GROUP BY 1) r ON r.srsubid = s.oid
		WHERE NOT EXISTS (SELECT FROM weft.copy_progress p WHERE p.subid = s.oid AND p.last_error IS NOT NULL)
$$;

CREATE FUNCTION weft.health_of_slots(
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H010', CASE wal_status WHEN 'lost' THEN 'error' ELSE 'warning' END, slot_name,
		CASE wal_status WHEN 'lost' THEN 'the slot has lost WAL that its subscriber needs'
			ELSE 'the slot is about to lose WAL that its subscriber needs' END,
		CASE wal_status WHEN 'lost' THEN 'Drop the slot, and create the subscription again.'
			ELSE 'Let the subscriber catch up, or increase "max_slot_wal_keep_size".' END
		FROM pg_replication_slots
		WHERE slot_type = 'logical' AND wal_status IN ('unreserved', 'lost')
$$;

CREATE FUNCTION weft.health_of_group(
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	most bigint := current_setting('weft.conflict_history_max_rows');
BEGIN
	RETURN QUERY SELECT 'H008', CASE r.state WHEN 'down' THEN 'warning' ELSE 'error' END,
		r.from_node || ' -> ' || r.to_node,
		CASE r.state WHEN 'down' THEN 'the other node is not connected'
			WHEN 'disabled' THEN 'the subscription is disabled'
			WHEN 'lost' THEN 'the slot has lost WAL that the other node needs'
			ELSE 'the subscription or slot is missing' END,
		CASE r.state WHEN 'down' THEN 'Start the other node, or part it with weft.part_node.'
			WHEN 'disabled' THEN format('ALTER SUBSCRIPTION %I ENABLE.', r.subscription)
			ELSE 'Part the node with weft.part_node(..., force => true), and let it join again.' END
		FROM weft.node_replication r
			JOIN weft.node n ON n.node_name IN (r.from_node, r.to_node) AND NOT n.is_local AND n.state = 'active'
			JOIN weft.node l ON l.is_local AND l.state = 'active'
		WHERE r.state IN ('missing', 'disabled', 'down', 'lost');
	RETURN QUERY SELECT 'H012', 'error', j.node_group_name::text,
		format('joining the group has failed in step "%s": %s', j.join_step, j.join_error),
		'Remove the cause. Joining continues by itself.'
		FROM weft.node_group j WHERE j.join_error IS NOT NULL;

	IF most > 0 AND has_table_privilege('weft.conflict_history', 'SELECT') THEN
		RETURN QUERY SELECT 'H009', 'warning', 'weft.conflict_history',
			format('it is full: rows are removed before "weft.conflict_history_retention" is over, the oldest one is of %s',
				date_trunc('second', h.recorded_at)),
			'Increase "weft.conflict_history_max_rows", or find out why there are so many conflicts.'
			FROM (SELECT f.id, f.recorded_at FROM weft.conflict_history f ORDER BY f.id LIMIT 1) h
			WHERE (SELECT max(l.id) FROM weft.conflict_history l) - h.id + 1 >= most
				AND h.recorded_at > clock_timestamp() - current_setting('weft.conflict_history_retention')::interval;
	END IF;
END $$;

CREATE FUNCTION weft.health(
	stale interval DEFAULT '2 minutes',
	recent interval DEFAULT '1 hour',
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT f.* FROM (
		SELECT 'H001' AS id, 'error' AS severity, 'weft' AS object,
			format('the server has loaded version %s, and the extension has version %s',
				weft.library_version(), x.extversion) AS problem,
			'ALTER EXTENSION weft UPDATE; or, if the server has loaded an older version than is installed, restart it.' AS remedy
			FROM pg_extension x
			WHERE x.extname = 'weft' AND x.extversion <> weft.library_version()
		UNION ALL SELECT * FROM weft.health_of_subscriptions(stale)
		UNION ALL SELECT * FROM weft.health_of_errors(recent)
		UNION ALL SELECT * FROM weft.health_of_slots()
		UNION ALL SELECT * FROM weft.health_of_group()) f
	ORDER BY array_position(ARRAY['error', 'warning', 'info'], f.severity), f.id, f.object
$$;

COMMENT ON FUNCTION weft.health(interval, interval) IS
	'what is wrong with subscriptions, slots and the node group of this server, and what to do about it';
