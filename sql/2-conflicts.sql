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
CREATE INDEX tombstone_open_index ON weft.tombstone (recorded_at) WHERE commit_time IS NULL;
ALTER TABLE weft.tombstone REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.tombstone IS
	'hashes of the keys of rows that were deleted, and of unique values that rows had';

CREATE TABLE weft.merged_row (
	relation oid NOT NULL,
	key uuid NOT NULL,
	commit_time timestamptz,
	node_id integer,
	recorded_at timestamptz NOT NULL,
	written_by bigint NOT NULL);

-- A hot row has many of them, of which one is looked for; there is no order of xid.
CREATE INDEX merged_row_key_index ON weft.merged_row (relation, key, written_by);
CREATE INDEX merged_row_time_index ON weft.merged_row (recorded_at);
ALTER TABLE weft.merged_row REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.merged_row IS
	'versions of rows of which only delta columns were written last';

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
	'what delta columns of deleted rows had, and what was added to them since';

-- Of this server: no pg_extension_config_dump.
CREATE TABLE weft.past_origin (
	origin oid NOT NULL,
	node_id integer NOT NULL,
	until xid8 NOT NULL);

ALTER TABLE weft.past_origin REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.past_origin IS
	'which node rows are from that a dropped subscription has applied, in transactions before a number';

CREATE FUNCTION weft.table_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_table_changed';

CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_resolver
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.conflict_node
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
CREATE TRIGGER conflict_settings_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON weft.delta_column
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();

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
