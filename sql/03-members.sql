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

-- The number of the protocol rises when functions that members call on each other change.  A node works with
-- members whose protocol is not older than the oldest that it knows; version 0.1.0 tells none, and is 1.
-- "equal" is for nodes of that version, which demand that all of it is equal.
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
		'failover', (SELECT failover FROM weft.node_group_entry),
		'changing', (SELECT node_name FROM weft.node_entry WHERE state IN ('joining', 'parting', 'leaving')),
		'identity', (SELECT identity FROM weft.node_entry WHERE is_local),
		'changing_identity', (SELECT identity FROM weft.node_entry WHERE state IN ('joining', 'parting', 'leaving')),
		'protocol', 2,
		'oldest_protocol', 1,
		'major', current_setting('server_version_num')::integer / 10000,
		'version', (SELECT extversion FROM pg_extension WHERE extname = 'weft'),
		'database', system_identifier || '/' || d.oid,
		'started', extract(epoch FROM pg_postmaster_start_time()),
		-- from 19 on, a slot makes the server log what decoding needs
		'wal_level', CASE WHEN current_setting('wal_level') = 'replica'
			AND current_setting('effective_wal_level', true) IS NOT NULL THEN 'logical'
			ELSE current_setting('wal_level') END,
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
		JOIN pg_class c ON c.oid = t.prrelid
	WHERE p.pubname = 'weft_' || weft.local_group() AND c.relnamespace <> 'weft'::regnamespace
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
CREATE FUNCTION weft.member_publish(tables text[] DEFAULT NULL, ddl text DEFAULT 'all')
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
		EXECUTE format('CREATE PUBLICATION %I WITH (ddl = %L)', publication, ddl);
	END IF;
	missing := (SELECT string_agg('ONLY ' || r::text, ', ') FROM weft.group_tables() r
		WHERE (tables IS NULL OR r::text = ANY (tables))
			AND r NOT IN (SELECT weft.published_tables()));
	IF missing IS NOT NULL THEN
		EXECUTE format('ALTER PUBLICATION %I ADD TABLE %s', publication, missing);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_publish(text[], text) IS
	'creates the publication of this node or adds tables to it: those named, or all';
REVOKE ALL ON FUNCTION weft.member_publish(text[], text) FROM PUBLIC;

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
	PERFORM pg_create_logical_replication_slot(slot, weft.output_plugin(),
		failover => (SELECT g.failover FROM weft.node_group_entry g));
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
	publication name, num_writers integer)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_create_node_subscription';

COMMENT ON FUNCTION weft.create_node_subscription(name, text, name, integer) IS
	'creates a disabled subscription of a node group, without tables, for a slot that exists';
REVOKE ALL ON FUNCTION weft.create_node_subscription(name, text, name, integer) FROM PUBLIC;

-- A join may repeat the step that calls this.  A subscription that existed before was
-- removed when the join began (weft.drop_stale_subscription).  The other node may publish tables
-- that are still to be created here by its schema changes, and the other way round.  Therefore the
-- subscription gets the tables that this node publishes (src/ddl/group_tables.c).
CREATE FUNCTION weft.member_subscribe(to_node name, node_identity uuid, enabled boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1min'
AS $$
DECLARE
	subscription name := weft.subscription_name(weft.local_group(), to_node, weft.local_node());
	synchronous text := weft.member_synchronous_commit();
	node record;
BEGIN
	PERFORM weft.check_identity(to_node, node_identity);
	SELECT * INTO STRICT node FROM weft.member WHERE node_name = to_node;
	IF weft.local_subscription(to_node) IS NOT NULL THEN
		RETURN;
	END IF;
	PERFORM weft.member_keep_schema();
	INSERT INTO weft.conflict_node
		SELECT '', node_id FROM weft.node_entry WHERE is_local
		UNION ALL SELECT subscription, node.node_id
		ON CONFLICT (subname) DO UPDATE SET node_id = excluded.node_id;
	PERFORM weft.create_node_subscription(subscription, node.dsn,
		('weft_' || weft.local_group())::name,
		(SELECT num_writers FROM weft.node_group_entry));
	PERFORM weft.set_subscription_failover(weft.local_subscription(to_node),
		(SELECT g.failover FROM weft.node_group_entry g));
	IF synchronous <> 'off' THEN
		EXECUTE format('ALTER SUBSCRIPTION %I SET (synchronous_commit = %L)', subscription, synchronous);
	END IF;
	PERFORM weft.member_follow_tables();
	IF enabled THEN
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', subscription);
	END IF;
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
