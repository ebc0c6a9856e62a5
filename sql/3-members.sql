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
	state text NOT NULL CHECK (state IN ('created', 'joining', 'active', 'parting', 'leaving')),
	is_local boolean NOT NULL DEFAULT false,
	identity uuid NOT NULL DEFAULT gen_random_uuid(),
	start_lsn pg_lsn,
	cut_lsn pg_lsn
);

COMMENT ON TABLE weft.node_entry IS
	'the members of the node group; "identity" tells nodes of the same name apart';

-- One node at a time joins or parts.
CREATE UNIQUE INDEX node_entry_changing ON weft.node_entry ((true))
	WHERE state IN ('joining', 'parting', 'leaving');
CREATE UNIQUE INDEX node_entry_local ON weft.node_entry ((true)) WHERE is_local;

CREATE TABLE weft.join_entry (
	node_group_name name NOT NULL,
	target_node name NOT NULL,
	copy_schema boolean NOT NULL,
	copied boolean NOT NULL DEFAULT false,
	recent_since timestamptz,
	step text NOT NULL DEFAULT 'start',
	error text
);

COMMENT ON TABLE weft.join_entry IS
	'how far this node has come with joining a group';

CREATE UNIQUE INDEX join_entry_one ON weft.join_entry ((true));

-- Connection strings have passwords in them, and are in no table (src/group/dsn.c).
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

CREATE FUNCTION weft.set_node_dsn(node text, dsn text)
RETURNS void
LANGUAGE C VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'weft_set_node_dsn';

COMMENT ON FUNCTION weft.set_node_dsn(text, text) IS
	'keeps the connection string of a member; null removes it';

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

CREATE VIEW weft.member AS
	SELECT node_name, node_id, state, is_local, identity, weft.node_dsn(node_name) AS dsn
	FROM weft.node_entry;

COMMENT ON VIEW weft.member IS
	'the members of the node group, with their connection strings';

-- How a node that joins is told to a member.  What is in an unlogged table is not in
-- the WAL, nor published.
CREATE UNLOGGED TABLE weft.arriving_node (
	node_name name NOT NULL,
	node_id integer NOT NULL,
	identity uuid NOT NULL,
	dsn text NOT NULL
);

COMMENT ON TABLE weft.arriving_node IS
	'a node that joins, until it is entered into the list';

-- Rows that were changed lately on the node that is copied (src/group/recent.c).
CREATE TABLE weft.join_recent (
	relation oid NOT NULL,
	row_key text[] NOT NULL,
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
COMMENT ON TABLE weft.join_recent IS
	'rows that are to get the time and the origin of their last change';

-- No pg_extension_config_dump: a database restored from a dump is no member.

REVOKE ALL ON weft.node_group_entry, weft.node_entry, weft.member, weft.arriving_node,
	weft.join_entry,
	weft.join_recent, weft.join_tombstone, weft.join_merged_row FROM PUBLIC;

CREATE TRIGGER node_entry_changed AFTER INSERT OR UPDATE OR DELETE ON weft.node_entry
	FOR EACH STATEMENT EXECUTE FUNCTION weft.table_changed();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_changed;

CREATE TRIGGER node_entry_deleted AFTER DELETE ON weft.node_entry
	FOR EACH ROW EXECUTE FUNCTION weft.forget_dsn();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_deleted;

-- Tables without a key can be changed where they are published, FOR ALL TABLES.
ALTER TABLE weft.join_entry REPLICA IDENTITY FULL;
ALTER TABLE weft.join_recent REPLICA IDENTITY FULL;
ALTER TABLE weft.join_tombstone REPLICA IDENTITY FULL;
ALTER TABLE weft.join_merged_row REPLICA IDENTITY FULL;

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

CREATE FUNCTION weft.is_empty(relation regclass)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_is_empty';

COMMENT ON FUNCTION weft.is_empty(regclass) IS
	'has a table no rows? runs no code of its owner';

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
	'what other nodes must know of this one before they have to do with it';

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

-- Tables one by one: a table that somebody makes on one member alone would stop the
-- others, which do not have it.
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

-- The node's manager need not own the tables.
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
	'makes the publication of this node, or adds tables to it, all unless they are named';

CREATE FUNCTION weft.member_track_deletes(enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.track_deletes(r, enabled) FROM weft.group_tables() r
		WHERE (NOT enabled OR weft.key_columns(r) IS NOT NULL)
			AND (enabled <> EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = r AND t.tgname = 'weft_record_delete')
			-- The key may have become another one.
			OR enabled AND NOT EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = r AND t.tgname = 'weft_record_key_change'
					AND weft.key_columns(r) <@ ARRAY(SELECT a.attname::text FROM pg_attribute a
						WHERE a.attrelid = r AND a.attnum = ANY (t.tgattr))));
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

-- Fails if a member is not the node that the caller means.
CREATE FUNCTION weft.check_identity(node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM weft.node_entry n WHERE n.node_name = node AND n.identity = node_identity) THEN
		RAISE EXCEPTION 'node "%" of node "%" is another node of that name, or none', node, weft.local_node()
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_identity(name, uuid) IS
	'fails if another node has that name here';

-- Names of slots are those of the whole server.
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
		RAISE EXCEPTION 'the server of node "%" has a slot "%" that is not of its database',
			weft.local_node(), slot
			USING ERRCODE = 'duplicate_object',
				HINT = 'Choose another name for the node: all slots of a server have different names.';
	END IF;
	PERFORM pg_create_logical_replication_slot(slot, weft.output_plugin());
EXCEPTION WHEN lock_not_available THEN
	RAISE EXCEPTION 'slot "%" could not be made on node "%"', slot, weft.local_node()
		USING ERRCODE = 'lock_not_available',
			DETAIL = 'Transactions that take long did not let it become ready.',
			HINT = 'End long transactions there, and join again.';
END $$;

COMMENT ON FUNCTION weft.member_make_slot(name, uuid) IS
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
	'drops the slot on this node through which another one follows it';

-- The step of a join in which this is called may be done again.  A subscription that was
-- there before was removed when the join began: weft.drop_stale_subscription.
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
	'makes the subscription of this node to another one';

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

CREATE FUNCTION weft.drop_stale_subscription(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription name := (SELECT s.subname FROM pg_subscription s
		WHERE s.oid = weft.local_subscription(from_node) AND s.subenabled);
BEGIN
	IF subscription IS NOT NULL THEN
		RAISE EXCEPTION 'node "%" has a subscription "%" already', weft.local_node(), subscription
			USING ERRCODE = 'duplicate_object', HINT = 'Drop it, if nothing uses it.';
	END IF;
	PERFORM weft.member_unsubscribe(from_node);
END $$;

COMMENT ON FUNCTION weft.drop_stale_subscription(name) IS
	'drops what a restored dump has of a subscription to another node: it has no tables';

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
	'fails if a member has that name that is not the node that the caller means';

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
	PERFORM weft.forget_recent();
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
		-- One that the group does not have may be there alone.
		CONTINUE WHEN NOT own ? relation AND NOT published ? relation;
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
		IF NOT weft.is_empty(relation::regclass) THEN
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

-- Not to the server that this one was cloned from, either.
CREATE FUNCTION weft.check_own_dsn(node name, dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.member_info();
	info jsonb := weft.node_query(dsn, node, 'SELECT weft.member_info()')::jsonb;
BEGIN
	IF info ->> 'database' <> own ->> 'database' OR info ->> 'started' <> own ->> 'started' THEN
		RAISE EXCEPTION 'the connection string of node "%" leads to another database', node
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_own_dsn(name, text) IS
	'fails if a connection string does not lead here';

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
		IF info ->> 'identity' IS DISTINCT FROM member ->> 'identity' OR info ->> 'group' IS DISTINCT FROM target ->> 'group' THEN
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

