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

-- Version 0.1.0 does not tell its protocol.
CREATE FUNCTION weft.check_protocol(info jsonb, needed integer)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.member_info();
	version text := coalesce(info ->> 'version', info -> 'equal' ->> 'version of the extension');
	update_hint constant text := 'Install the newer version of Weft there, restart that server, and execute ALTER EXTENSION weft UPDATE.';
BEGIN
	IF coalesce((info ->> 'protocol')::integer, 1) < needed THEN
		RAISE EXCEPTION 'node "%" has version % of extension "weft", which is too old for this', info ->> 'node', version
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Node "%s" has version %s.', own ->> 'node', own ->> 'version'),
				HINT = update_hint;
	ELSIF coalesce((info ->> 'oldest_protocol')::integer, 1) > (own ->> 'protocol')::integer THEN
		RAISE EXCEPTION 'node "%" has version % of extension "weft", which is too old for node "%"',
			own ->> 'node', own ->> 'version', info ->> 'node'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Node "%s" has version %s.', info ->> 'node', version),
				HINT = update_hint;
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_protocol(jsonb, integer) IS
	'fails if this node and another one do not understand each other''s functions';
REVOKE ALL ON FUNCTION weft.check_protocol(jsonb, integer) FROM PUBLIC;

CREATE FUNCTION weft.major_version(info jsonb)
RETURNS integer LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
	SELECT coalesce(info ->> 'major', info -> 'equal' ->> 'major version')::integer;
END;

COMMENT ON FUNCTION weft.major_version(jsonb) IS
	'the major version of the server of a node';
REVOKE ALL ON FUNCTION weft.major_version(jsonb) FROM PUBLIC;

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
	PERFORM weft.check_protocol(info, (own ->> 'oldest_protocol')::integer);
	IF abs(weft.major_version(info) - weft.major_version(own)) > 1 THEN
		RAISE EXCEPTION 'node "%" has PostgreSQL %, and node "%" has PostgreSQL %',
			info ->> 'node', weft.major_version(info), own ->> 'node', weft.major_version(own)
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Members of a node group have the same major version, or adjacent ones.';
	END IF;
	FOR what IN SELECT k FROM jsonb_object_keys(own -> 'equal') k
		WHERE k NOT IN ('major version', 'version of the extension')
	LOOP
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
		-- A join calls functions that are new in protocol 2.
		PERFORM weft.check_protocol(info, 2);
		PERFORM weft.check_member(info, 1);
	END LOOP;
	PERFORM weft.check_member(weft.member_info(), jsonb_array_length(members));
	PERFORM weft.check_group_names((target ->> 'group')::name,
		array_append(ARRAY(SELECT (m ->> 'name')::name FROM jsonb_array_elements(members) m), own.node_name));
	copy_schema := weft.check_schema(target_dsn, target ->> 'node');
	IF copy_schema AND weft.major_version(target) > weft.major_version(weft.member_info()) THEN
		RAISE EXCEPTION 'node "%", with PostgreSQL %, cannot copy the schema of node "%", with PostgreSQL %',
			own.node_name, weft.major_version(weft.member_info()), target ->> 'node', weft.major_version(target)
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'The pg_dump of a server does not read servers of newer major versions.',
				HINT = 'Join through a member whose major version is not newer, or create the tables first.';
	END IF;
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
