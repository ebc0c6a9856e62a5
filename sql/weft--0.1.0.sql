-- The SQL objects of Weft.
\echo Use "CREATE EXTENSION weft" to load this file. \quit

CREATE FUNCTION weft.stat_get_subscription(
	OUT subid oid,
	OUT leader_pid integer,
	OUT num_writers integer,
	OUT busy_writers integer,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT lag_bytes bigint,
	OUT lag_time interval,
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

CREATE FUNCTION weft.stat_get_relation(
	OUT subid oid,
	OUT relation regclass,
	OUT path text,
	OUT reason text,
	OUT inserts bigint,
	OUT updates bigint,
	OUT deletes bigint,
	OUT general_rows bigint)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_relation';

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

CREATE VIEW weft.stat_subscription AS
	SELECT s.oid AS subid, s.subname,
		g.leader_pid, g.num_writers, g.busy_writers,
		g.received_lsn, g.applied_lsn, g.lag_bytes, g.lag_time,
		g.transactions, g.native_transactions, g.changes,
		g.dependency_waits, g.order_waits, g.misspeculations, g.barriers,
		g.ring_size, g.ring_used, g.output_plugin, g.native_reason
	FROM pg_catalog.pg_subscription s
		LEFT JOIN weft.stat_get_subscription() g ON g.subid = s.oid;

COMMENT ON VIEW weft.stat_subscription IS
	'progress and counters of every subscription, since its apply worker started';

CREATE VIEW weft.stat_writer AS
	SELECT g.subid, s.subname, g.writer, g.pid, g.state, g.seq, g.remote_lsn,
		g.transactions, g.changes, g.misspeculations
	FROM weft.stat_get_writer() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_writer IS
	'what every writer is doing, and its counters since the apply worker started';

CREATE VIEW weft.stat_relation AS
	SELECT g.subid, s.subname, g.relation, g.path, g.reason,
		g.inserts, g.updates, g.deletes, g.general_rows
	FROM weft.stat_get_relation() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid
		JOIN pg_catalog.pg_class c ON c.oid = g.relation;

COMMENT ON VIEW weft.stat_relation IS
	'how rows of every relation are applied by writers, and how many were since the apply worker started';

CREATE VIEW weft.stat_stream AS
	SELECT g.subid, s.subname, g.remote_xid, g.state, g.writer,
		g.spool_bytes, g.received_changes, g.applied_changes
	FROM weft.stat_get_stream() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_stream IS
	'transactions that are being received while the publisher has them in progress, or that wait to be committed';

CREATE VIEW weft.copy_progress AS
	SELECT r.srsubid AS subid, s.subname, r.srrelid::pg_catalog.regclass AS relation,
		CASE
			WHEN r.srsubstate IN ('f', 's') THEN 'catching up'
			WHEN g.pid IS NOT NULL THEN g.phase
			WHEN w.pid IS NOT NULL AND r.srsubstate = 'd' THEN 'copying'
			ELSE 'waiting'
		END AS phase,
		coalesce(g.helpers, 0) AS helpers,
		coalesce(g.rows_done, p.tuples_processed) AS rows_done,
		g.rows_estimated,
		coalesce(g.bytes_done, p.bytes_processed) AS bytes_done,
		g.bytes_estimated, g.bytes_per_second, g.time_left,
		g.indexes, g.indexes_done, g.started_at, g.last_error
	FROM pg_catalog.pg_subscription_rel r
		JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
		LEFT JOIN weft.copy_get_progress() g
			ON g.subid = r.srsubid AND g.relation = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_subscription w
			ON w.subid = r.srsubid AND w.relid = r.srrelid
		LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = w.pid
	WHERE r.srsubstate <> 'r';

COMMENT ON VIEW weft.copy_progress IS
	'how far the initial copy is of every table that is not synchronized yet';

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
	'creates the tables of a publisher''s publications that are missing here';

REVOKE ALL ON FUNCTION weft.copy_schema(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.copy_schema(text, text[]) TO pg_execute_server_program;

CREATE FUNCTION weft.wait_for_subscription(subscription name, timeout interval)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_wait_for_subscription';

COMMENT ON FUNCTION weft.wait_for_subscription(name, interval) IS
	'waits until all tables are synchronized and what the publisher has now is applied';

GRANT USAGE ON SCHEMA weft TO PUBLIC;
GRANT SELECT ON weft.stat_subscription, weft.stat_writer, weft.stat_relation, weft.stat_stream,
	weft.copy_progress TO PUBLIC;

-- Conflicts

CREATE TABLE weft.conflict_resolver (
	subname name NOT NULL,
	conflict_type text NOT NULL,
	conflict_resolver text NOT NULL,
	PRIMARY KEY (subname, conflict_type));

COMMENT ON TABLE weft.conflict_resolver IS
	'how conflicts are resolved here; the empty name stands for all subscriptions';

CREATE TABLE weft.conflict_node (
	subname name PRIMARY KEY,
	node_id integer NOT NULL);

COMMENT ON TABLE weft.conflict_node IS
	'the id of the node behind each subscription, for changes with the same commit time; the empty name stands for this node';

CREATE TABLE weft.delta_column (
	relation regclass NOT NULL,
	column_name name NOT NULL,
	PRIMARY KEY (relation, column_name));

COMMENT ON TABLE weft.delta_column IS
	'columns to which the difference of an update is added';

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
	'conflicts that were resolved here, with the rows that were in it';

CREATE TABLE weft.tombstone (
	relation oid NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz,
	node_id integer,
	recorded_at timestamptz NOT NULL);

CREATE INDEX tombstone_key_index ON weft.tombstone (relation, key);
CREATE INDEX tombstone_time_index ON weft.tombstone (recorded_at);
ALTER TABLE weft.tombstone REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.tombstone IS
	'hashes of the keys of rows that were deleted';

CREATE TABLE weft.merged_row (
	relation oid NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz,
	node_id integer,
	recorded_at timestamptz NOT NULL,
	written_by xid NOT NULL);

CREATE INDEX merged_row_key_index ON weft.merged_row (relation, key);
CREATE INDEX merged_row_time_index ON weft.merged_row (recorded_at);
ALTER TABLE weft.merged_row REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.merged_row IS
	'versions of rows of which only delta columns were written last';

CREATE FUNCTION weft.conflict_settings_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_conflict_settings_changed';

CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_resolver
	FOR EACH STATEMENT EXECUTE FUNCTION weft.conflict_settings_changed();
CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_node
	FOR EACH STATEMENT EXECUTE FUNCTION weft.conflict_settings_changed();
CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.delta_column
	FOR EACH STATEMENT EXECUTE FUNCTION weft.conflict_settings_changed();

CREATE FUNCTION weft.record_delete()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_record_delete';

COMMENT ON FUNCTION weft.record_delete() IS
	'remembers the key of a row that is deleted; see weft.track_deletes';

CREATE FUNCTION weft.track_deletes(relation regclass, enabled boolean DEFAULT true)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_track_deletes';

COMMENT ON FUNCTION weft.track_deletes(regclass, boolean) IS
	'has a table remember which rows were deleted, so that older changes do not bring them back';

CREATE FUNCTION weft.set_delta_columns(relation regclass, columns name[])
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_set_delta_columns';

COMMENT ON FUNCTION weft.set_delta_columns(regclass, name[]) IS
	'sets to which columns of a table the difference of an update is added';

CREATE FUNCTION weft.alter_node_set_conflict_resolver(
	node_name name,
	conflict_type text,
	conflict_resolver text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_alter_node_set_conflict_resolver';

COMMENT ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) IS
	'sets how this node resolves a type of conflict';

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
	'how many conflicts of each type were resolved since the apply worker started';

SELECT pg_catalog.pg_extension_config_dump('weft.conflict_resolver', '');
SELECT pg_catalog.pg_extension_config_dump('weft.conflict_node', '');
SELECT pg_catalog.pg_extension_config_dump('weft.delta_column', '');

REVOKE ALL ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) FROM PUBLIC;
GRANT SELECT ON weft.conflict_resolver, weft.conflict_node, weft.delta_column,
	weft.stat_conflict TO PUBLIC;
-- Node groups.
--
-- Every member keeps the same list of members.  A function whose name begins with
-- member_ does one member's share; another member calls it through a connection of
-- its own.  What begins with join_ is a step of a join, in the background worker of
-- the node that joins (src/group/join.c).

CREATE TABLE weft.node_group_entry (
	node_group_name name PRIMARY KEY,
	num_writers integer CHECK (num_writers BETWEEN 1 AND 64),
	next_node_id integer NOT NULL
);

CREATE TABLE weft.node_entry (
	node_name name PRIMARY KEY,
	node_id integer UNIQUE CHECK (node_id BETWEEN 1 AND 1023),
	state text NOT NULL CHECK (state IN ('created', 'joining', 'active', 'parting')),
	is_local boolean NOT NULL DEFAULT false,
	dsn text NOT NULL,
	start_lsn pg_lsn
);

COMMENT ON TABLE weft.node_entry IS
	'the members of the node group, with their connection strings';

-- One node at a time joins or parts.
CREATE UNIQUE INDEX node_entry_changing ON weft.node_entry ((true))
	WHERE state IN ('joining', 'parting');
CREATE UNIQUE INDEX node_entry_local ON weft.node_entry ((true)) WHERE is_local;

CREATE TABLE weft.join_entry (
	node_group_name name NOT NULL,
	target_node name NOT NULL,
	target_dsn text NOT NULL,
	copy_schema boolean NOT NULL,
	copied boolean NOT NULL DEFAULT false,
	recent_since timestamptz,
	step text NOT NULL DEFAULT 'start',
	error text
);

COMMENT ON TABLE weft.join_entry IS
	'how far this node has come with joining a group';

CREATE UNIQUE INDEX join_entry_one ON weft.join_entry ((true));

-- Rows that were changed lately on the node that is copied (src/group/recent.c):
-- by their keys there, and by their places here.
CREATE TABLE weft.join_recent_key (
	row_key text,
	changed timestamptz,
	node_name name
);

CREATE TABLE weft.join_recent (
	relation oid NOT NULL,
	place tid NOT NULL,
	changed timestamptz NOT NULL,
	node_name name NOT NULL
);

CREATE INDEX join_recent_changed ON weft.join_recent (changed, node_name);

-- What weft.tombstone and weft.merged_row have there, without numbers that mean
-- something else here.
CREATE TABLE weft.join_tombstone (
	relation text NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz NOT NULL,
	node_id integer NOT NULL
);

CREATE TABLE weft.join_merged_row (
	relation text NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz NOT NULL,
	node_id integer NOT NULL,
	changed timestamptz NOT NULL,
	node_name name NOT NULL
);

CREATE INDEX join_merged_row_changed ON weft.join_merged_row (changed, node_name);

COMMENT ON TABLE weft.join_tombstone IS
	'rows that were deleted lately on the node that is copied';
COMMENT ON TABLE weft.join_merged_row IS
	'rows there into which counters were merged lately';
COMMENT ON TABLE weft.join_recent_key IS
	'rows of a table that were changed lately on the node that is copied';
COMMENT ON TABLE weft.join_recent IS
	'rows that are to get the time and the origin of their last change';

-- No pg_extension_config_dump: a database restored from a dump is no member.

REVOKE ALL ON weft.node_group_entry, weft.node_entry, weft.join_entry, weft.join_recent_key,
	weft.join_recent, weft.join_tombstone, weft.join_merged_row FROM PUBLIC;

CREATE FUNCTION weft.node_entry_changed() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'weft_node_entry_changed';

CREATE TRIGGER node_entry_changed AFTER INSERT OR UPDATE OR DELETE ON weft.node_entry
	FOR EACH STATEMENT EXECUTE FUNCTION weft.node_entry_changed();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_changed;

-- The worker that joins a node is a replica to triggers.
ALTER TABLE weft.conflict_resolver ENABLE ALWAYS TRIGGER conflict_settings_changed;
ALTER TABLE weft.conflict_node ENABLE ALWAYS TRIGGER conflict_settings_changed;
ALTER TABLE weft.delta_column ENABLE ALWAYS TRIGGER conflict_settings_changed;

CREATE FUNCTION weft.node_query(dsn text, node text, query text, is_command boolean DEFAULT false)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_query';

COMMENT ON FUNCTION weft.node_query(text, text, text, boolean) IS
	'runs a query on another member, and returns its one value';

CREATE FUNCTION weft.node_send(dsn text, node text, copy text, line text, query text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_send';

COMMENT ON FUNCTION weft.node_send(text, text, text, text, text) IS
	'copies a line to another member, and runs a query there in the same transaction';

CREATE FUNCTION weft.node_query_all(dsns text[], nodes text[], query text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_node_query_all';

COMMENT ON FUNCTION weft.node_query_all(text[], text[], text) IS
	'runs a query on several members, or on none if it fails on one';

CREATE FUNCTION weft.create_node_subscription(subscription name, dsn text,
	publication name, num_writers integer, enabled boolean)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_create_node_subscription';

COMMENT ON FUNCTION weft.create_node_subscription(name, text, name, integer, boolean) IS
	'creates a subscription of a node group, for a slot that exists';

CREATE FUNCTION weft.launch_join()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_launch_join';

COMMENT ON FUNCTION weft.launch_join() IS
	'starts the background worker that joins this node to its group';

CREATE FUNCTION weft.snowflake_nextval(sequence regclass)
RETURNS bigint
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_snowflake_nextval';

COMMENT ON FUNCTION weft.snowflake_nextval(regclass) IS
	'a number that is unique in the node group, from the time, the node and the sequence';

-- Names and what there is to replicate.

CREATE FUNCTION weft.subscription_name(node_group name, from_node name, to_node name)
RETURNS name LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
	SELECT ('weft_' || node_group || '_' || from_node || '_' || to_node)::name;
END;

COMMENT ON FUNCTION weft.subscription_name(name, name, name) IS
	'the name of a subscription of a node group, and of its slot';

CREATE FUNCTION weft.check_name(kind text, name text)
RETURNS void LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF name IS NULL OR name !~ '^[a-z0-9_]+$' OR octet_length(name) > 40 THEN
		RAISE EXCEPTION 'invalid name for a %: "%"', kind, coalesce(name, '')
			USING ERRCODE = 'invalid_name',
				HINT = 'Names have 1 to 40 of the characters a to z, 0 to 9 and underscore.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_name(text, text) IS
	'fails if slots could not be named after a node or group';

CREATE FUNCTION weft.is_group_schema(schema name)
RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
BEGIN ATOMIC
	SELECT schema NOT IN ('weft', 'information_schema') AND schema !~ '^pg_';
END;

COMMENT ON FUNCTION weft.is_group_schema(name) IS
	'are the tables of this schema replicated in a node group?';

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
	'the tables that are replicated in a node group';

CREATE FUNCTION weft.schema_definition()
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
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
	'columns and keys of all tables, to compare nodes by';

-- Not everybody may see the parameter.
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
	'how many of what a parameter limits can be had still';

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
		'changing', (SELECT node_name FROM weft.node_entry WHERE state IN ('joining', 'parting')),
		'database', system_identifier || '/' || d.oid,
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
	'what other nodes must know of this one before they have to do with it';

CREATE FUNCTION weft.member_list()
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_agg(jsonb_build_object('name', node_name, 'id', node_id,
		'state', state, 'dsn', dsn) ORDER BY node_id)
	FROM weft.node_entry
$$;

COMMENT ON FUNCTION weft.member_list() IS
	'the members of the group, with their connection strings';

-- A publication of whole schemas belongs to a superuser, whoever made it.
CREATE FUNCTION weft.member_publish()
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	publication name := 'weft_' || (SELECT node_group_name FROM weft.node_group_entry);
	schemas text := (SELECT string_agg(format('%I', nspname), ', ' ORDER BY nspname)
		FROM pg_namespace WHERE weft.is_group_schema(nspname));
BEGIN
	IF publication IS NULL OR schemas IS NULL THEN
		RETURN;
	END IF;
	IF EXISTS (SELECT FROM pg_publication WHERE pubname = publication) THEN
		EXECUTE format('ALTER PUBLICATION %I SET TABLES IN SCHEMA %s', publication, schemas);
	ELSE
		EXECUTE format('CREATE PUBLICATION %I FOR TABLES IN SCHEMA %s', publication, schemas);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_publish() IS
	'makes the publication of this node, or adds schemas to it';

CREATE FUNCTION weft.member_track_deletes(enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.track_deletes(r, enabled) FROM weft.group_tables() r
		WHERE (NOT enabled OR EXISTS (SELECT FROM pg_index i
				WHERE i.indrelid = r AND (i.indisprimary OR i.indisreplident)))
			AND enabled <> EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = r AND t.tgname = 'weft_record_delete');
END $$;

COMMENT ON FUNCTION weft.member_track_deletes(boolean) IS
	'has all tables of the group remember what is deleted, or none';

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

-- Everybody may see them, as in weft.node.
CREATE FUNCTION weft.local_node()
RETURNS name LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT node_name FROM weft.node_entry WHERE is_local $$;

CREATE FUNCTION weft.local_group()
RETURNS name LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT node_group_name FROM weft.node_group_entry $$;

COMMENT ON FUNCTION weft.local_node() IS 'the name of this node, if it is one';
COMMENT ON FUNCTION weft.local_group() IS 'the group that this node is in';

CREATE FUNCTION weft.member_make_slot(for_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM pg_create_logical_replication_slot(
		weft.subscription_name(weft.local_group(), weft.local_node(), for_node), weft.output_plugin());
END $$;

COMMENT ON FUNCTION weft.member_make_slot(name) IS
	'makes the slot on this node through which another one follows it';

CREATE FUNCTION weft.member_drop_slot(for_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	slot name := weft.subscription_name(weft.local_group(), weft.local_node(), for_node);
	until timestamptz := clock_timestamp() + interval '30 s';
BEGIN
	-- Its user may be about to end, or may never know that he should.
	WHILE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = slot) LOOP
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
	'drops the slot on this node through which another one follows it';

CREATE FUNCTION weft.member_subscribe(to_node name, enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := weft.subscription_name(weft.local_group(), to_node, weft.local_node());
	node record;
BEGIN
	SELECT * INTO STRICT node FROM weft.node_entry WHERE node_name = to_node;
	IF EXISTS (SELECT FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
		WHERE s.subname = subscription AND d.datname = current_database())
	THEN
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

COMMENT ON FUNCTION weft.member_subscribe(name, boolean) IS
	'makes the subscription of this node to another one';

CREATE FUNCTION weft.member_unsubscribe(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := weft.subscription_name(weft.local_group(), from_node, weft.local_node());
BEGIN
	IF EXISTS (SELECT FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
		WHERE s.subname = subscription AND d.datname = current_database())
	THEN
		EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', subscription);
		EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', subscription);
		EXECUTE format('DROP SUBSCRIPTION %I', subscription);
		DELETE FROM weft.conflict_node WHERE subname = subscription;
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_unsubscribe(name) IS
	'drops the subscription of this node to another one';

CREATE FUNCTION weft.member_forget(node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF node = weft.local_node() THEN
		RAISE EXCEPTION 'node "%" cannot forget itself', node;
	END IF;
	PERFORM weft.member_unsubscribe(node);
	PERFORM weft.member_drop_slot(node);
	DELETE FROM weft.node_entry WHERE node_name = node;
END $$;

COMMENT ON FUNCTION weft.member_forget(name) IS
	'removes all that this node has of another one';

CREATE FUNCTION weft.member_unsubscribe_all()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_unsubscribe(node_name) FROM weft.node_entry WHERE NOT is_local;
END $$;

COMMENT ON FUNCTION weft.member_unsubscribe_all() IS
	'drops all subscriptions of this node to others';

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
	DELETE FROM weft.join_recent;
	DELETE FROM weft.join_merged_row;
	DELETE FROM weft.conflict_node;
	DELETE FROM weft.join_entry WHERE error IS NULL;
	DELETE FROM weft.node_group_entry;
	UPDATE weft.node_entry SET state = 'created', node_id = NULL, start_lsn = NULL WHERE is_local;
END $$;

COMMENT ON FUNCTION weft.member_leave() IS
	'removes all that this node has of its group';

CREATE FUNCTION weft.member_hold(from_node name)
RETURNS pg_lsn LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription oid := (SELECT s.oid FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
		WHERE d.datname = current_database()
			AND s.subname = weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
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
	'keeps this node from applying changes of another one until the session ends';

-- Checks before a join, for which nothing is changed.

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
		RAISE EXCEPTION 'node "%" does not record commit times, which decide conflicts', node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Set "track_commit_timestamp" to "on" there, and restart that server.';
	END IF;
	FOR what IN SELECT jsonb_object_keys(own -> 'equal') LOOP
		IF own -> 'equal' ->> what IS DISTINCT FROM info -> 'equal' ->> what THEN
			RAISE EXCEPTION 'node "%" has another % than node "%": "%" and "%"',
				node, what, own ->> 'node', info -> 'equal' ->> what, own -> 'equal' ->> what
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
	END LOOP;
	FOREACH what IN ARRAY ARRAY['max_replication_slots', 'max_wal_senders',
		'max_logical_replication_workers', 'max_active_replication_origins']
	LOOP
		IF (info ->> what)::integer < needed THEN
			RAISE EXCEPTION 'node "%" has too little left of "%": % of % needed',
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

CREATE FUNCTION weft.check_schema(target_dsn text, target text, OUT copy_schema boolean)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.schema_definition();
	other jsonb;
	relation text;
	has_rows boolean;
BEGIN
	copy_schema := own = '{}';
	IF copy_schema THEN
		RETURN;
	END IF;
	other := weft.node_query(target_dsn, target, 'SELECT weft.schema_definition()')::jsonb;
	FOR relation IN SELECT jsonb_object_keys(own || other) LOOP
		IF NOT own ? relation OR NOT other ? relation THEN
			RAISE EXCEPTION 'table % is on node "%", but not on node "%"', relation,
				CASE WHEN own ? relation THEN weft.local_node()::text ELSE target END,
				CASE WHEN own ? relation THEN target ELSE weft.local_node()::text END
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'A node that joins must have no tables, or the same ones, and all of them empty.';
		ELSIF own ->> relation <> other ->> relation THEN
			RAISE EXCEPTION 'table % differs between node "%" and node "%"',
				relation, weft.local_node(), target
				USING ERRCODE = 'object_not_in_prerequisite_state',
					DETAIL = format('It is "%s" and "%s".', own ->> relation, other ->> relation);
		END IF;
		EXECUTE format('SELECT EXISTS (SELECT FROM %s)', relation) INTO has_rows;
		IF has_rows THEN
			RAISE EXCEPTION 'table % on node "%" is not empty', relation, weft.local_node()
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'A node that joins gets all rows from the group.';
		END IF;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.check_schema(text, text) IS
	'does this node need the schema of another one? fails if it has tables, but not the same';

CREATE FUNCTION weft.check_group_names(node_group name, nodes name[])
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	first record;
BEGIN
	-- Names are cut off at 63 bytes, and two pairs could make the same name.
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
	SELECT * INTO own FROM weft.node_entry WHERE is_local;
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
	IF target ->> 'changing' <> own.node_name THEN
		RAISE EXCEPTION 'node "%" is joining or parting', target ->> 'changing'
			USING ERRCODE = 'object_in_use',
				HINT = 'Wait for it, or call weft.part_node for it.';
	END IF;

	members := coalesce((SELECT jsonb_agg(m) FROM jsonb_array_elements(
		weft.node_query(target_dsn, target ->> 'node', 'SELECT weft.member_list()')::jsonb) m
		WHERE m ->> 'state' = 'active'), '[]');
	FOR member IN SELECT jsonb_array_elements(members) LOOP
		IF member ->> 'name' = own.node_name THEN
			RAISE EXCEPTION 'node group "%" has a node "%" already', target ->> 'group', own.node_name
				USING ERRCODE = 'duplicate_object';
		END IF;
		info := weft.node_query(member ->> 'dsn', member ->> 'name', 'SELECT weft.member_info()')::jsonb;
		IF info ->> 'node' IS DISTINCT FROM member ->> 'name' OR info ->> 'group' IS DISTINCT FROM target ->> 'group' THEN
			RAISE EXCEPTION 'the connection string of node "%" leads to another node', member ->> 'name'
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

-- The steps of a join.

CREATE FUNCTION weft.join_prepare()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry weft.join_entry;
	own weft.node_entry;
	checked record;
	member jsonb;
BEGIN
	SELECT * INTO STRICT entry FROM weft.join_entry;
	PERFORM weft.join_undo_members();
	PERFORM weft.member_leave();
	SELECT * INTO STRICT own FROM weft.node_entry WHERE is_local;
	INSERT INTO weft.join_entry SELECT (entry).* ON CONFLICT DO NOTHING;

	SELECT * INTO checked FROM weft.check_join(entry.target_dsn, entry.node_group_name);
	INSERT INTO weft.node_group_entry
		SELECT entry.node_group_name, (checked.target ->> 'num_writers')::integer,
			(checked.target ->> 'next_node_id')::integer;
	FOR member IN SELECT jsonb_array_elements(checked.members) LOOP
		INSERT INTO weft.node_entry (node_name, node_id, state, dsn)
			VALUES (member ->> 'name', (member ->> 'id')::integer, 'active', member ->> 'dsn');
	END LOOP;
	UPDATE weft.node_entry SET state = 'joining', node_id = weft.free_node_id() WHERE is_local;
	UPDATE weft.join_entry SET target_node = checked.target ->> 'node', copy_schema = checked.copy_schema;
	UPDATE weft.node_group_entry
		SET next_node_id = (SELECT node_id + 1 FROM weft.node_entry WHERE is_local);
END $$;

CREATE FUNCTION weft.free_node_id()
RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	next integer := (SELECT next_node_id FROM weft.node_group_entry);
	result integer;
BEGIN
	-- Numbers of nodes that have gone come again as late as possible.
	SELECT i INTO result FROM generate_series(1, 1023) i
		WHERE i NOT IN (SELECT node_id FROM weft.node_entry WHERE node_id IS NOT NULL)
		ORDER BY i < next, i LIMIT 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'a node group has at most 1023 nodes'
			USING ERRCODE = 'program_limit_exceeded';
	END IF;
	RETURN result;
END $$;

COMMENT ON FUNCTION weft.free_node_id() IS 'a number for the next member';

CREATE FUNCTION weft.join_register()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.node_entry;
	member weft.node_entry;
	line text;
BEGIN
	SELECT * INTO STRICT own FROM weft.node_entry WHERE is_local;
	line := (SELECT string_agg(regexp_replace(field, '([\\\t\n\r])', '\\\1', 'g'), E'\t' ORDER BY i)
		FROM unnest(ARRAY[own.node_name::text, own.node_id::text, 'joining', own.dsn]) WITH ORDINALITY f(field, i)) || E'\n';
	FOR member IN SELECT * FROM weft.node_entry WHERE NOT is_local ORDER BY node_id LOOP
		BEGIN
			PERFORM weft.node_send(member.dsn, member.node_name,
				'COPY weft.node_entry (node_name, node_id, state, dsn) FROM STDIN', line,
				format('SELECT weft.member_reach(%L)', own.node_name));
		EXCEPTION WHEN unique_violation OR protocol_violation THEN
			-- The message of a failed COPY would show the line.
			RAISE EXCEPTION 'node "%" cannot be entered into the list of node "%"',
				own.node_name, member.node_name
				USING ERRCODE = 'object_in_use',
					HINT = 'Another node may be joining or parting.';
		END;
	END LOOP;
END $$;

CREATE FUNCTION weft.member_reach(to_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.node_entry;
	found_node text;
BEGIN
	SELECT * INTO STRICT node FROM weft.node_entry WHERE node_name = to_node;
	found_node := weft.node_query(node.dsn, node.node_name, 'SELECT weft.local_node()');
	IF found_node IS DISTINCT FROM to_node::text THEN
		RAISE EXCEPTION 'the connection string of node "%" leads to another node', to_node
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	UPDATE weft.node_group_entry SET next_node_id = greatest(next_node_id, node.node_id + 1);
END $$;

COMMENT ON FUNCTION weft.member_reach(name) IS
	'fails if this node cannot connect to one that joins';

CREATE FUNCTION weft.join_publish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_publish();
END $$;

CREATE FUNCTION weft.join_make_own_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_make_slot(node_name) FROM weft.node_entry WHERE NOT is_local;
END $$;

CREATE FUNCTION weft.join_make_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	-- By the clocks of those others, nothing that is not in the copy is older.
	UPDATE weft.join_entry SET recent_since = (
		SELECT min(weft.node_query(n.dsn, n.node_name, 'SELECT clock_timestamp()')::timestamptz) - interval '3 s'
		FROM weft.node_entry n, weft.join_entry j
		WHERE NOT n.is_local AND n.node_name <> j.target_node);
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_make_slot(%L)', weft.local_node()))
		FROM weft.node_entry n, weft.join_entry j
		WHERE NOT n.is_local AND n.node_name <> j.target_node;
END $$;

CREATE FUNCTION weft.recent_query(relation regclass)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry weft.join_entry;
	keys text := weft.key_columns(relation);
BEGIN
	SELECT * INTO STRICT entry FROM weft.join_entry;
	IF keys IS NULL OR entry.recent_since IS NULL THEN
		RETURN NULL;
	END IF;
	RETURN format('COPY (SELECT r.row_key, (r.c).timestamp, coalesce(o.node_name, %L)'
		' FROM (SELECT ROW(%s)::text AS row_key, pg_catalog.pg_xact_commit_timestamp_origin(t.xmin) AS c FROM ONLY %s t) r'
		' LEFT JOIN weft.member_origins() o ON o.roident = (r.c).roident'
		' WHERE (r.c).timestamp >= %L AND (r.c).roident <> 65535) TO STDOUT',
		entry.target_node, keys, relation, entry.recent_since);
END $$;

CREATE FUNCTION weft.keep_recent(relation regclass)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	EXECUTE format('INSERT INTO weft.join_recent'
		' SELECT %s, t.ctid, k.changed, k.node_name FROM ONLY %s t JOIN weft.join_recent_key k'
		' ON ROW(%s)::text = k.row_key', relation::oid, relation, weft.key_columns(relation));
	DELETE FROM weft.join_recent_key;
END $$;

CREATE FUNCTION weft.key_columns(relation regclass)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT string_agg(format('t.%I', a.attname), ', ' ORDER BY a.attname COLLATE "C")
	FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1])
	WHERE i.indrelid = relation AND i.indisprimary
$$;

CREATE FUNCTION weft.member_origins(OUT roident oid, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT o.roident, n.node_name
	FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
		JOIN pg_replication_origin o ON o.roname = 'pg_' || s.oid
		JOIN weft.node_entry n
			ON s.subname = weft.subscription_name(weft.local_group(), n.node_name, weft.local_node())
$$;

COMMENT ON FUNCTION weft.recent_query(regclass) IS 'asks for the rows of a table that were changed lately';
COMMENT ON FUNCTION weft.keep_recent(regclass) IS 'keeps where these rows are';
COMMENT ON FUNCTION weft.key_columns(regclass) IS 'the columns of the primary key of a table that is called t';
COMMENT ON FUNCTION weft.member_origins() IS 'which node each replication origin stands for';

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
$$;

COMMENT ON FUNCTION weft.member_tombstones(timestamptz) IS
	'what was deleted lately, for a node that joins';

CREATE FUNCTION weft.member_merged_rows(since timestamptz, OUT relation text, OUT key uuid,
	OUT commit_time timestamptz, OUT node_id integer, OUT changed timestamptz, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT m.relation::regclass::text, m.key, m.commit_time, m.node_id,
		(m.c).timestamp, coalesce(o.node_name, weft.local_node())
	FROM (SELECT *, pg_xact_commit_timestamp_origin(written_by) AS c FROM weft.merged_row
			WHERE recorded_at >= since) m
		JOIN pg_class k ON k.oid = m.relation
		LEFT JOIN weft.member_origins() o ON o.roident = (m.c).roident
	WHERE (m.c).timestamp IS NOT NULL AND m.commit_time IS NOT NULL
$$;

COMMENT ON FUNCTION weft.member_merged_rows(timestamptz) IS
	'into which rows counters were merged lately, for a node that joins';

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
	'keeps what was deleted lately on the node that is copied';

CREATE FUNCTION weft.stamp_rows(changed timestamptz, node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	recent record;
	dummy name;
BEGIN
	FOR recent IN SELECT relation, array_agg(place) AS places FROM weft.join_recent r
		WHERE r.changed = stamp_rows.changed AND r.node_name = stamp_rows.node_name
		GROUP BY relation
	LOOP
		-- Any column that may be set to what it is.
		SELECT attname INTO dummy FROM pg_attribute
			WHERE attrelid = recent.relation AND attnum > 0 AND NOT attisdropped
				AND attgenerated = '' AND attidentity <> 'a'
			ORDER BY attnum LIMIT 1;
		CONTINUE WHEN NOT FOUND;
		-- Not a row that was changed here meanwhile: its place has another version.
		EXECUTE format('UPDATE ONLY %s SET %I = %I WHERE ctid = ANY ($1)'
			' AND (pg_xact_commit_timestamp_origin(xmin)).roident = 65535',
			recent.relation::regclass, dummy, dummy) USING recent.places;
	END LOOP;
	INSERT INTO weft.merged_row (relation, key, commit_time, node_id, recorded_at, written_by)
		SELECT to_regclass(m.relation), m.key, m.commit_time, m.node_id, clock_timestamp(),
			pg_current_xact_id()::xid
		FROM weft.join_merged_row m
		WHERE m.changed = stamp_rows.changed AND m.node_name = stamp_rows.node_name
			AND to_regclass(m.relation) IS NOT NULL;
	DELETE FROM weft.join_recent r
		WHERE r.changed = stamp_rows.changed AND r.node_name = stamp_rows.node_name;
END $$;

COMMENT ON FUNCTION weft.stamp_rows(timestamptz, name) IS
	'changes nothing, but the time of the last change, of rows of that time';

CREATE FUNCTION weft.join_catch_up()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(t.dsn, t.node_name, format('SELECT weft.wait_for_subscription(%L, %L)',
			weft.subscription_name(j.node_group_name, n.node_name, t.node_name), '1 hour'))
		FROM weft.join_entry j
			JOIN weft.node_entry t ON t.node_name = j.target_node
			JOIN weft.node_entry n ON n.node_name <> t.node_name AND NOT n.is_local;
END $$;

CREATE FUNCTION weft.join_truncate()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	relation regclass;
	has_rows boolean;
BEGIN
	FOR relation IN SELECT weft.group_tables() LOOP
		EXECUTE format('LOCK TABLE %s', relation);
		EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', relation) INTO has_rows;
		IF has_rows THEN
			RAISE EXCEPTION 'table % on node "%" is not empty', relation, weft.local_node()
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
	END LOOP;
	-- All at once, because of foreign keys; so rows can be stored frozen.
	EXECUTE (SELECT 'TRUNCATE ' || string_agg('ONLY ' || r::text, ', ') FROM weft.group_tables() r);
END $$;

CREATE FUNCTION weft.join_subscribe()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_publish();
	PERFORM weft.member_track_deletes(true);
	PERFORM weft.join_settings();
	PERFORM weft.member_subscribe(node_name, false) FROM weft.node_entry WHERE NOT is_local;
END $$;

CREATE FUNCTION weft.join_settings()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	settings jsonb := (SELECT weft.node_query(n.dsn, n.node_name, 'SELECT weft.member_settings()')
		FROM weft.node_entry n JOIN weft.join_entry j ON n.node_name = j.target_node);
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
	'takes over how the node that was copied decides conflicts';

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
	'how this node decides conflicts, for one that joins';

CREATE FUNCTION weft.join_follow()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member record;
BEGIN
	FOR member IN SELECT s.oid, s.subname, n.start_lsn
		FROM weft.node_entry n JOIN pg_subscription s
			ON s.subname = weft.subscription_name(weft.local_group(), n.node_name, weft.local_node())
			JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
		WHERE NOT n.is_local AND NOT s.subenabled
	LOOP
		IF member.start_lsn IS NOT NULL THEN
			PERFORM pg_replication_origin_advance('pg_' || member.oid, member.start_lsn);
		END IF;
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', member.subname);
	END LOOP;
END $$;

CREATE FUNCTION weft.join_announce()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(dsn, node_name, format('SELECT weft.member_subscribe(%L, true)', weft.local_node()))
		FROM weft.node_entry WHERE NOT is_local ORDER BY node_id;
END $$;

CREATE FUNCTION weft.join_finish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.wait_for_subscription(
			weft.subscription_name(weft.local_group(), node_name, weft.local_node()), '1 day')
		FROM weft.node_entry WHERE NOT is_local;
	PERFORM weft.node_query(dsn, node_name,
			format('UPDATE weft.node_entry SET state = %L WHERE node_name = %L', 'active', weft.local_node()),
			true)
		FROM weft.node_entry WHERE NOT is_local ORDER BY node_id;
	UPDATE weft.node_entry SET state = 'active' WHERE is_local;
	DELETE FROM weft.join_recent;
	DELETE FROM weft.join_merged_row;
	DELETE FROM weft.join_entry;
END $$;

CREATE FUNCTION weft.join_undo_members(OUT failures text)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member record;
BEGIN
	FOR member IN
		SELECT node_name::text AS name, dsn FROM weft.node_entry WHERE NOT is_local
		UNION
		SELECT target_node::text, target_dsn FROM weft.join_entry
			WHERE target_node NOT IN (SELECT node_name FROM weft.node_entry)
	LOOP
		BEGIN
			-- Not a member of that name which has nothing to do with us.
			PERFORM weft.node_query(member.dsn, member.name, format(
				'SELECT weft.member_forget(node_name) FROM weft.node_entry'
				' WHERE node_name = %L AND state = %L AND NOT is_local', weft.local_node(), 'joining'));
		EXCEPTION WHEN OTHERS THEN
			failures := concat_ws('; ', failures, SQLERRM);
		END;
	END LOOP;
END $$;

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
	UPDATE weft.join_entry SET error = concat_ws('; not all could be undone: ', reason, failures);
END $$;

COMMENT ON FUNCTION weft.join_prepare() IS 'a step of a join: the list of members';
COMMENT ON FUNCTION weft.join_register() IS 'a step of a join: this node is entered into the list of all members';
COMMENT ON FUNCTION weft.join_publish() IS 'a step of a join: the publication of this node';
COMMENT ON FUNCTION weft.join_make_own_slots() IS 'a step of a join: slots for the others';
COMMENT ON FUNCTION weft.join_make_slots() IS 'a step of a join: slots for this node on the others';
COMMENT ON FUNCTION weft.join_catch_up() IS 'a step of a join: the node to copy applies what the others had';
COMMENT ON FUNCTION weft.join_truncate() IS 'a step of a join: tables that exist are found empty';
COMMENT ON FUNCTION weft.join_subscribe() IS 'a step of a join: subscriptions to all members';
COMMENT ON FUNCTION weft.join_follow() IS 'a step of a join: they begin where the copied node stood';
COMMENT ON FUNCTION weft.join_announce() IS 'a step of a join: all members subscribe to this node';
COMMENT ON FUNCTION weft.join_finish() IS 'a step of a join: this node is a member';
COMMENT ON FUNCTION weft.join_undo_members() IS 'removes from the members what a join has made there';
COMMENT ON FUNCTION weft.join_undo(text) IS 'removes what a join has made, and says why';

-- What users call.

CREATE FUNCTION weft.create_node(node_name name, local_dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	info jsonb;
BEGIN
	PERFORM weft.check_name('node', node_name);
	IF weft.local_node() IS NOT NULL THEN
		RAISE EXCEPTION 'this database is node "%" already', weft.local_node()
			USING ERRCODE = 'duplicate_object';
	END IF;
	info := weft.node_query(local_dsn, node_name, 'SELECT weft.member_info()')::jsonb;
	IF info ->> 'database' <> weft.member_info() ->> 'database' THEN
		RAISE EXCEPTION 'the connection string of node "%" leads to another database', node_name
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO weft.node_entry (node_name, state, is_local, dsn)
		VALUES (create_node.node_name, 'created', true, local_dsn);
END $$;

COMMENT ON FUNCTION weft.create_node(name, text) IS
	'makes this database a node; others will connect to it with this connection string';

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
	DELETE FROM weft.node_entry;
END $$;

COMMENT ON FUNCTION weft.drop_node(name) IS
	'makes this database no node any more';

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
	'makes a group with this node as its only member';

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
		RAISE EXCEPTION 'node "%" is a member of node group "%" already', weft.local_node(), weft.local_group()
			USING ERRCODE = 'duplicate_object';
	END IF;
END $$;

COMMENT ON FUNCTION weft.require_free_node() IS
	'fails if this database is not a node, or is in a group';

CREATE FUNCTION weft.join_node_group(join_target_dsn text, node_group_name name DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	checked record;
BEGIN
	PERFORM weft.require_free_node();
	IF NOT EXISTS (SELECT FROM weft.join_entry WHERE copied) THEN
		IF EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'weft join' AND datname = current_database()) THEN
			RAISE EXCEPTION 'node "%" is joining already', weft.local_node()
				USING ERRCODE = 'object_in_use', HINT = 'Call weft.wait_for_join_completion.';
		END IF;
		SELECT * INTO checked FROM weft.check_join(join_target_dsn, node_group_name);
		DELETE FROM weft.join_entry;
		INSERT INTO weft.join_entry (node_group_name, target_node, target_dsn, copy_schema)
			VALUES ((checked.target ->> 'group')::name, (checked.target ->> 'node')::name,
				join_target_dsn, checked.copy_schema);
	END IF;
	PERFORM weft.launch_join();
END $$;

COMMENT ON FUNCTION weft.join_node_group(text, name) IS
	'lets this node join the group of another one, in the background, or go on joining';

CREATE FUNCTION weft.wait_for_join_completion(timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until timestamptz := clock_timestamp() + timeout;
	launched timestamptz := clock_timestamp();
	entry record;
BEGIN
	LOOP
		SELECT * INTO entry FROM weft.join_entry;
		IF NOT FOUND THEN
			IF weft.local_group() IS NULL THEN
				RAISE EXCEPTION 'this database is not joining a node group'
					USING ERRCODE = 'object_not_in_prerequisite_state';
			END IF;
			RETURN;
		END IF;
		IF entry.error IS NOT NULL AND NOT entry.copied THEN
			RAISE EXCEPTION 'node "%" could not join node group "%": %',
				weft.local_node(), entry.node_group_name, entry.error;
		END IF;
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'timed out while node "%" joins node group "%"', weft.local_node(), entry.node_group_name
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('It has come to the step "%s".', entry.step), entry.error);
		END IF;
		-- After a restart of the server nobody else starts the worker.
		IF clock_timestamp() > launched + interval '5 s' AND NOT EXISTS (
			SELECT FROM pg_stat_activity WHERE backend_type = 'weft join' AND datname = current_database())
		THEN
			PERFORM weft.launch_join();
			launched := clock_timestamp();
		END IF;
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.wait_for_join_completion(interval) IS
	'returns when this node has joined its group; fails if it could not, or has not in time';

CREATE FUNCTION weft.part_node(node_name name, force boolean DEFAULT false, timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.node_entry[] := ARRAY(SELECT n FROM weft.node_entry n ORDER BY n.node_id);
	node_group name := weft.local_group();
	parting weft.node_entry;
	member weft.node_entry;
	mark text := format('UPDATE weft.node_entry SET state = %L WHERE node_name = %L', 'parting', part_node.node_name);
BEGIN
	SELECT * INTO parting FROM unnest(members) m WHERE m.node_name = part_node.node_name;
	IF NOT FOUND OR node_group IS NULL THEN
		RAISE EXCEPTION 'node "%" is not a member of the node group of this database', node_name
			USING ERRCODE = 'undefined_object';
	END IF;
	IF force AND parting.is_local THEN
		RAISE EXCEPTION 'node "%" cannot be parted by force from itself', node_name
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Call weft.part_node on another member; for what is left here, weft.leave_node_group.';
	END IF;

	IF EXISTS (SELECT FROM unnest(members) m
		WHERE m.state IN ('joining', 'parting') AND m.node_name <> parting.node_name)
	THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use', HINT = 'See weft.node; wait for it, or call weft.part_node for it.';
	END IF;

	IF NOT force THEN
		-- First see whether all can be reached, the node itself included.
		FOREACH member IN ARRAY members LOOP
			PERFORM weft.node_query(member.dsn, member.node_name, 'SELECT 1');
		END LOOP;
		FOREACH member IN ARRAY members LOOP
			PERFORM weft.node_query(member.dsn, member.node_name, mark, true);
		END LOOP;
		-- What the node has written must not be lost.
		FOREACH member IN ARRAY members LOOP
			CONTINUE WHEN member.node_name = parting.node_name OR parting.state = 'joining';
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.wait_for_subscription(%L, %L)',
					weft.subscription_name(node_group, parting.node_name, member.node_name), timeout));
		END LOOP;
		PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_unsubscribe_all()');
	END IF;

	FOREACH member IN ARRAY members LOOP
		CONTINUE WHEN member.node_name = parting.node_name;
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_forget(%L)', parting.node_name));
		EXCEPTION WHEN connection_failure THEN
			IF NOT force THEN
				RAISE;
			END IF;
			RAISE WARNING '%', SQLERRM
				USING HINT = format('Call weft.part_node for node "%s" on node "%s", too, or part that one.',
					parting.node_name, member.node_name);
		END;
	END LOOP;
	IF NOT force THEN
		PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_leave()');
	END IF;
END $$;

COMMENT ON FUNCTION weft.part_node(name, boolean, interval) IS
	'takes a node out of its group; by force, without asking that node';

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
	PERFORM weft.member_leave();
END $$;

COMMENT ON FUNCTION weft.leave_node_group() IS
	'removes what this node has of its group, without asking the others';

CREATE FUNCTION weft.member_configure(num_writers integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name;
BEGIN
	UPDATE weft.node_group_entry SET num_writers = member_configure.num_writers;
	FOR subscription IN SELECT s.subname
		FROM weft.node_entry n JOIN pg_subscription s
			ON s.subname = weft.subscription_name(weft.local_group(), n.node_name, weft.local_node())
			JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
	LOOP
		EXECUTE format('ALTER SUBSCRIPTION %I SET (num_writers = %s)', subscription, num_writers);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.member_configure(integer) IS
	'sets the number of writers of all subscriptions of this node to others';

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
		FROM weft.node_entry;
END $$;

COMMENT ON FUNCTION weft.query_group(name, text) IS
	'runs a query on all members of the group, or on none';

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

CREATE FUNCTION weft.refresh_node_group(node_group_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.node_entry[] := ARRAY(SELECT n FROM weft.node_entry n ORDER BY n.node_id);
	member weft.node_entry;
	other weft.node_entry;
BEGIN
	PERFORM weft.query_group(node_group_name, 'SELECT weft.member_publish()');
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
	'replicates tables that have been made on all members since';

-- Only who is named here may have to do with groups.
CREATE FUNCTION weft.grant_node_admin(role regrole)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	func regprocedure;
BEGIN
	EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON weft.node_group_entry, weft.node_entry,'
		' weft.join_entry, weft.join_recent_key, weft.join_recent, weft.join_tombstone,'
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
		' pg_replication_origin_session_setup(text),'
		' pg_replication_origin_session_progress(boolean) TO %s', role);
	EXECUTE format('GRANT CREATE ON DATABASE %I TO %s', current_database(), role);
	EXECUTE format('GRANT pg_create_subscription TO %s', role);
END $$;

COMMENT ON FUNCTION weft.grant_node_admin(regrole) IS
	'grants a role what it needs to manage this node; it needs REPLICATION and LOGIN besides';

CREATE VIEW weft.node AS
	SELECT n.node_name, n.node_id, n.state, n.is_local, g.node_group_name
	FROM weft.node_entry n LEFT JOIN weft.node_group_entry g ON true;

COMMENT ON VIEW weft.node IS
	'the members of the node group of this database';

CREATE VIEW weft.node_group AS
	SELECT g.node_group_name, g.num_writers,
		(SELECT count(*) FROM weft.node_entry) AS members,
		j.step AS join_step, j.error AS join_error
	FROM weft.node_group_entry g LEFT JOIN weft.join_entry j ON true;

COMMENT ON VIEW weft.node_group IS
	'the node group of this database';

CREATE FUNCTION weft.stat_get_last_error(
	OUT subid oid,
	OUT last_error_time timestamptz,
	OUT last_error text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_last_error';

COMMENT ON FUNCTION weft.stat_get_last_error() IS
	'the last error of every apply worker since the server started, for who may see it';

CREATE VIEW weft.node_replication AS
	SELECT n.node_name AS from_node, l.node_name AS to_node, s.subname AS subscription,
		CASE WHEN s.subname IS NULL THEN 'missing'
			WHEN NOT s.subenabled THEN 'disabled'
			WHEN w.leader_pid IS NULL THEN 'down'
			WHEN w.lag_bytes > 0 THEN 'catching up'
			ELSE 'streaming' END AS state,
		w.lag_bytes, w.lag_time, w.num_writers, e.last_error_time, e.last_error
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN (pg_catalog.pg_subscription s
			JOIN pg_catalog.pg_database d ON d.oid = s.subdbid AND d.datname = pg_catalog.current_database()
			JOIN weft.stat_subscription w ON w.subid = s.oid)
			ON s.subname = weft.subscription_name(g.node_group_name, n.node_name, l.node_name)
		LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid
	UNION ALL
	SELECT l.node_name, n.node_name, t.slot_name,
		CASE WHEN t.slot_name IS NULL THEN 'missing'
			WHEN t.wal_status = 'lost' THEN 'lost'
			WHEN NOT t.active THEN 'down'
			WHEN r.state = 'catchup' THEN 'catching up'
			ELSE coalesce(r.state, 'starting') END,
		pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), t.confirmed_flush_lsn)::bigint,
		r.replay_lag, NULL, NULL, NULL
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN pg_catalog.pg_replication_slots t
			ON t.slot_name = weft.subscription_name(g.node_group_name, l.node_name, n.node_name)
		LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = t.active_pid;

COMMENT ON VIEW weft.node_replication IS
	'how this node follows every other member, and they follow it';

CREATE FUNCTION weft.node_group_replication()
RETURNS SETOF weft.node_replication LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.node_entry;
BEGIN
	FOR member IN SELECT * FROM weft.node_entry ORDER BY node_id LOOP
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
	'how every member follows every other one, asked of all of them';

GRANT SELECT ON weft.node, weft.node_group, weft.node_replication TO PUBLIC;

-- The superuser says who may: weft.grant_node_admin.
REVOKE ALL ON FUNCTION
	weft.node_query(text, text, text, boolean),
	weft.node_send(text, text, text, text, text),
	weft.node_query_all(text[], text[], text),
	weft.create_node_subscription(name, text, name, integer, boolean),
	weft.launch_join(),
	weft.schema_definition(),
	weft.member_info(),
	weft.member_list(),
	weft.member_publish(),
	weft.member_unpublish(),
	weft.member_make_slot(name),
	weft.member_drop_slot(name),
	weft.member_subscribe(name, boolean),
	weft.member_unsubscribe(name),
	weft.member_forget(name),
	weft.member_unsubscribe_all(),
	weft.member_leave(),
	weft.member_hold(name),
	weft.check_member(jsonb, integer),
	weft.check_schema(text, text),
	weft.check_group_names(name, name[]),
	weft.check_join(text, name),
	weft.join_prepare(),
	weft.free_node_id(),
	weft.join_register(),
	weft.member_reach(name),
	weft.join_publish(),
	weft.join_make_own_slots(),
	weft.join_make_slots(),
	weft.recent_query(regclass),
	weft.keep_recent(regclass),
	weft.member_origins(),
	weft.stamp_rows(timestamptz, name),
	weft.member_tombstones(timestamptz),
	weft.member_merged_rows(timestamptz),
	weft.keep_tombstones(),
	weft.join_settings(),
	weft.member_settings(),
	weft.member_track_deletes(boolean),
	weft.alter_node_group_set_conflict_resolver(name, text, text),
	weft.join_catch_up(),
	weft.join_truncate(),
	weft.join_subscribe(),
	weft.join_follow(),
	weft.join_announce(),
	weft.join_finish(),
	weft.join_undo_members(),
	weft.join_undo(text),
	weft.create_node(name, text),
	weft.drop_node(name),
	weft.create_node_group(name, integer),
	weft.require_free_node(),
	weft.join_node_group(text, name),
	weft.wait_for_join_completion(interval),
	weft.part_node(name, boolean, interval),
	weft.leave_node_group(),
	weft.member_configure(integer),
	weft.query_group(name, text),
	weft.alter_node_group_config(name, integer),
	weft.refresh_node_group(name),
	weft.node_group_replication(),
	weft.grant_node_admin(regrole)
	FROM PUBLIC;
