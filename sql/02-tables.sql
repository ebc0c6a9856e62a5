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
	next_node_id integer NOT NULL,
	-- whether slots are created with the option of that name
	failover boolean NOT NULL DEFAULT true
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
	cut_lsn pg_lsn,
	-- where the copy was made, for the member that this node was copied from
	copied_lsn pg_lsn
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
