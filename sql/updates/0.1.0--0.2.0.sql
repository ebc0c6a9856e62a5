-- From 0.1.0 to 0.2.0: what has changed.  The parts of the install script from 13 on, which are new, follow (Makefile), and
-- replace the functions of 0.1.0 that they define.

ALTER TABLE weft.node_entry ADD COLUMN copied_lsn pg_lsn;

-- The slots of a group that exists have no such option: weft.alter_node_group_config gives it to them.
ALTER TABLE weft.node_group_entry ADD COLUMN failover boolean NOT NULL DEFAULT true;
UPDATE weft.node_group_entry SET failover = false;

DROP FUNCTION weft.alter_node_group_config(name, integer);

CREATE OR REPLACE FUNCTION weft.published_tables()
RETURNS SETOF regclass LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT t.prrelid::regclass FROM pg_publication p JOIN pg_publication_rel t ON t.prpubid = p.oid
		JOIN pg_class c ON c.oid = t.prrelid
	WHERE p.pubname = 'weft_' || weft.local_group() AND c.relnamespace <> 'weft'::regnamespace
	ORDER BY t.prrelid::oid
$$;

DROP FUNCTION weft.member_publish(text[]);

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

DROP FUNCTION weft.create_node_subscription(name, text, name, integer, boolean);

CREATE FUNCTION weft.create_node_subscription(subscription name, dsn text,
	publication name, num_writers integer)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_create_node_subscription';

COMMENT ON FUNCTION weft.create_node_subscription(name, text, name, integer) IS
	'creates a disabled subscription of a node group, without tables, for a slot that exists';
REVOKE ALL ON FUNCTION weft.create_node_subscription(name, text, name, integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION weft.member_make_slot(for_node name, node_identity uuid)
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

CREATE OR REPLACE FUNCTION weft.member_subscribe(to_node name, node_identity uuid, enabled boolean)
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

CREATE FUNCTION weft.member_enter()
RETURNS weft.arriving_node LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.arriving_node;
BEGIN
	DELETE FROM weft.arriving_node RETURNING * INTO STRICT node;
	-- The node would get rows of before and after a schema change in any order.  A schema change
	-- locks its tables and looks for nodes; therefore this looks for locks behind the entry.
	LOOP
		WHILE weft.ddl_gate_any() LOOP
			PERFORM pg_sleep(0.05);
		END LOOP;
		BEGIN
			INSERT INTO weft.node_entry (node_name, node_id, state, identity)
				VALUES (node.node_name, node.node_id, 'joining', node.identity);
			IF weft.ddl_gate_any() THEN
				RAISE SQLSTATE 'WEFT0';
			END IF;
			EXIT;
		EXCEPTION WHEN SQLSTATE 'WEFT0' THEN
			NULL;
		END;
	END LOOP;
	PERFORM weft.set_node_dsn(node.node_name, node.dsn);
	PERFORM weft.drop_stale_subscription(node.node_name);
	UPDATE weft.node_group_entry SET next_node_id = greatest(next_node_id, node.node_id + 1);
	RETURN node;
END $$;

COMMENT ON FUNCTION weft.member_enter() IS
	'enters the node that has arrived into the list of this one';
REVOKE ALL ON FUNCTION weft.member_enter() FROM PUBLIC;

CREATE OR REPLACE FUNCTION weft.member_register()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.arriving_node := weft.member_enter();
BEGIN
	IF weft.node_query(node.dsn, node.node_name, 'SELECT identity FROM weft.node_entry WHERE is_local')
		IS DISTINCT FROM node.identity::text
	THEN
		RAISE EXCEPTION 'the connection string of node "%" points to another node', node.node_name
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION weft.join_step_publish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_publish(
			coalesce(weft.node_query(n.dsn, n.node_name,
				'SELECT array_agg(r::text) FROM weft.published_tables() r'), '{}')::text[],
			weft.node_query(n.dsn, n.node_name, 'SELECT weft.group_ddl()'))
		FROM weft.member n JOIN weft.join_entry j ON n.node_name = j.target_node;
END $$;

CREATE OR REPLACE FUNCTION weft.refresh_node_group(node_group_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.member[] := ARRAY(SELECT n FROM weft.member n ORDER BY n.node_id);
	member weft.member;
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
		PERFORM weft.follow_tables(member, members);
	END LOOP;
END $$;

-- The number of the protocol rises when functions that members call on each other change.  A node works with
-- members whose protocol is not older than the oldest that it knows; version 0.1.0 tells none, and is 1.
-- "equal" is for nodes of that version, which demand that all of it is equal.
CREATE OR REPLACE FUNCTION weft.member_info()
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

CREATE OR REPLACE FUNCTION weft.check_member(info jsonb, needed integer)
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

CREATE OR REPLACE FUNCTION weft.check_join(target_dsn text, node_group name, OUT target jsonb, OUT members jsonb,
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

-- A member of version 0.1.0 asks the publishers.
CREATE FUNCTION weft.follow_tables(member weft.member, members weft.member[])
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	info jsonb := weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_info()')::jsonb;
	other weft.member;
BEGIN
	IF (info ->> 'protocol')::integer >= 2 THEN
		PERFORM weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_follow_tables()');
		RETURN;
	END IF;
	FOREACH other IN ARRAY members LOOP
		CONTINUE WHEN member.node_name = other.node_name;
		PERFORM weft.node_query(member.dsn, member.node_name,
			format('ALTER SUBSCRIPTION %I REFRESH PUBLICATION WITH (copy_data = false)',
				weft.subscription_name(weft.local_group(), other.node_name, member.node_name)), true);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.follow_tables(weft.member, weft.member[]) IS
	'makes a member apply changes of the tables that it publishes';
REVOKE ALL ON FUNCTION weft.follow_tables(weft.member, weft.member[]) FROM PUBLIC;

-- Schema changes of members (src/apply/schema_wait.c).
CREATE FUNCTION weft.stat_get_schema_wait(OUT subid oid, OUT waiting_for text, OUT since timestamptz)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_schema_wait';

COMMENT ON FUNCTION weft.stat_get_schema_wait() IS
	'what changes wait for that a schema change of another member brings';

CREATE OR REPLACE VIEW weft.node_replication AS
	SELECT n.node_name AS from_node, l.node_name AS to_node, s.subname AS subscription,
		CASE WHEN s.subname IS NULL THEN 'missing'
			WHEN NOT s.subenabled THEN 'disabled'
			WHEN w.leader_pid IS NULL THEN 'down'
			WHEN coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) > 0 THEN 'catching up'
			ELSE 'streaming' END AS state,
		coalesce(w.publisher_lag_bytes, w.apply_lag_bytes) AS lag_bytes,
		w.lag_time, w.num_writers, w.last_error_time, w.last_error,
		(SELECT c.waiting_for FROM weft.stat_get_schema_wait() c WHERE c.subid = s.oid) AS waiting_for
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
		r.replay_lag, NULL, NULL, NULL, NULL
	FROM weft.node_entry n JOIN weft.node_entry l ON l.is_local AND NOT n.is_local
		CROSS JOIN weft.node_group_entry g
		LEFT JOIN pg_catalog.pg_replication_slots t
			ON t.slot_name = weft.subscription_name(g.node_group_name, l.node_name, n.node_name)
				AND t.database = pg_catalog.current_database()
		LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = t.active_pid;

CREATE OR REPLACE FUNCTION weft.node_group_replication()
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
				'unreachable', NULL::bigint, NULL::interval, NULL::integer, clock_timestamp(), SQLERRM, NULL::text
				FROM weft.node_entry n WHERE n.node_name <> member.node_name;
		END;
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION weft.join_step_prepare()
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
			(checked.target ->> 'next_node_id')::integer,
			coalesce((checked.target ->> 'failover')::boolean, false);
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

CREATE OR REPLACE VIEW weft.node_group AS
	SELECT g.node_group_name, g.num_writers,
		(SELECT count(*) FROM weft.node_entry) AS members,
		j.step AS join_step,
		CASE WHEN has_table_privilege('weft.join_entry', 'SELECT')
			OR pg_has_role('pg_read_all_stats', 'USAGE') THEN j.error END AS join_error,
		g.failover
	FROM weft.node_group_entry g LEFT JOIN weft.join_entry j ON true;

CREATE OR REPLACE VIEW weft.copy_progress AS
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
		-- from 19 on, there may be sequences
		JOIN pg_catalog.pg_class t ON t.oid = r.srrelid AND t.relkind <> 'S'
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

CREATE OR REPLACE FUNCTION weft.health_of_errors(
	recent interval,
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH failed AS (
		SELECT s.subname, s.subenabled AS enabled, s.subdisableonerr AS disable_on_error,
			w.last_error AS message, w.last_error_time AS at, w.last_error_lsn AS lsn, e.repeats,
			coalesce(e.overcome, false) AS overcome, c.apply_error_count > 0 AS counted,
			c.copy_errors > 0 AND EXISTS (SELECT FROM pg_subscription_rel r
				JOIN pg_class t ON t.oid = r.srrelid AND t.relkind <> 'S'
				WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS copy_failed
		FROM pg_subscription s
			JOIN weft.stat_subscription w ON w.subid = s.oid
			LEFT JOIN weft.stat_get_last_error() e ON e.subid = s.oid
			LEFT JOIN (SELECT subid, apply_error_count,
				-- the column has another name from 19 on
				coalesce(to_jsonb(t) ->> 'sync_table_error_count', to_jsonb(t) ->> 'sync_error_count')::bigint AS copy_errors
				FROM pg_stat_subscription_stats t) c ON c.subid = s.oid)
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

CREATE OR REPLACE FUNCTION weft.health_of_subscriptions(
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
			LEFT JOIN pg_stat_subscription a ON a.subid = s.oid AND a.worker_type = 'apply' AND a.pid IS NOT NULL
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
		format('%s tables are not synchronized, and copies have failed %s times', r.tables, c.copy_errors),
		'The log of this server says why copies have failed. A copy is tried again by itself.'
		FROM pg_subscription s
			JOIN (SELECT subid, coalesce(to_jsonb(t) ->> 'sync_table_error_count', to_jsonb(t) ->> 'sync_error_count')::bigint AS copy_errors
				FROM pg_stat_subscription_stats t) c ON c.subid = s.oid AND c.copy_errors > 0
			JOIN (SELECT srsubid, count(*) AS tables FROM pg_subscription_rel
				JOIN pg_class t ON t.oid = srrelid AND t.relkind <> 'S'
				WHERE srsubstate NOT IN ('r', 's') GROUP BY 1) r ON r.srsubid = s.oid
		WHERE NOT EXISTS (SELECT FROM weft.copy_progress p WHERE p.subid = s.oid AND p.last_error IS NOT NULL)
$$;

CREATE OR REPLACE FUNCTION weft.health_of_group(
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
	RETURN QUERY SELECT * FROM weft.health_of_promotion();

	RETURN QUERY SELECT * FROM weft.health_of_upgrade();

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

DROP FUNCTION weft.join_node_group(text, name);

CREATE FUNCTION weft.join_node_group(join_target_dsn text, node_group_name name DEFAULT NULL,
	from_backup boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	checked record;
BEGIN
	IF from_backup THEN
		PERFORM weft.begin_join_from_backup(join_target_dsn, node_group_name);
		RETURN;
	END IF;
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

COMMENT ON FUNCTION weft.join_node_group(text, name, boolean) IS
	'starts or resumes joining the group of another node, in the background; "from_backup" on a physical copy of that node';
REVOKE ALL ON FUNCTION weft.join_node_group(text, name, boolean) FROM PUBLIC;

CREATE OR REPLACE FUNCTION weft.join_step_follow()
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
		-- This step may be repeated when more has been applied.
		IF member.start_lsn > coalesce(pg_replication_origin_progress('pg_' || member.oid, false), '0/0') THEN
			PERFORM pg_replication_origin_advance('pg_' || member.oid, member.start_lsn);
		END IF;
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', member.subname);
	END LOOP;
END $$;
