-- What users call.

CREATE FUNCTION weft.create_node(node_name name, local_dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_name('node', node_name);
	IF weft.local_node() IS NOT NULL THEN
		RAISE EXCEPTION 'this database is node "%" already', weft.local_node()
			USING ERRCODE = 'duplicate_object';
	END IF;
	PERFORM weft.check_own_dsn(node_name, local_dsn);
	INSERT INTO weft.node_entry (node_name, state, is_local)
		VALUES (create_node.node_name, 'created', true);
	PERFORM weft.set_node_dsn(node_name, local_dsn);
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
	PERFORM weft.set_node_dsn('join target', NULL);
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

CREATE FUNCTION weft.is_joining()
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'weft join' AND datname = current_database())
$$;

COMMENT ON FUNCTION weft.is_joining() IS
	'is the background worker at work that joins this node to its group?';

CREATE FUNCTION weft.join_progress()
RETURNS jsonb
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_join_progress';

COMMENT ON FUNCTION weft.join_progress() IS
	'how far a join is now, whatever the isolation level of the transaction';

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
			RAISE EXCEPTION 'node "%" is joining already', weft.local_node()
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
	'lets this node join the group of another one, in the background, or go on joining';

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
			RAISE EXCEPTION 'timed out while node "%" joins node group "%"', weft.local_node(), entry ->> 'node_group_name'
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('It has come to the step "%s".', entry ->> 'step'), entry ->> 'error');
		END IF;
		-- After a restart of the server nobody else starts the worker.
		PERFORM pg_stat_clear_snapshot();
		IF clock_timestamp() > launched + interval '5 s' AND NOT weft.is_joining() THEN
			PERFORM weft.launch_join();
			launched := clock_timestamp();
		END IF;
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.wait_for_join_completion(interval) IS
	'returns when this node has joined its group; fails if it could not, or has not in time';

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
		-- As they are written there, which this session's settings do not change.
		common := coalesce(common, theirs);
		stray := ARRAY(SELECT unnest(stray) UNION
			(SELECT unnest(common || theirs) EXCEPT (SELECT unnest(common) INTERSECT SELECT unnest(theirs))));
		common := ARRAY(SELECT unnest(common) INTERSECT SELECT unnest(theirs));
	END LOOP;
	FOREACH relation IN ARRAY stray LOOP
		RAISE WARNING 'table % is not replicated, for not all members have it', relation
			USING HINT = 'Create it on all members, and call weft.refresh_node_group again, or drop it.';
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

CREATE VIEW weft.node AS
	SELECT n.node_name, n.node_id, n.state, n.is_local, g.node_group_name
	FROM weft.node_entry n LEFT JOIN weft.node_group_entry g ON true;

COMMENT ON VIEW weft.node IS
	'the members of the node group of this database';

-- An error may quote values of rows.
CREATE VIEW weft.node_group AS
	SELECT g.node_group_name, g.num_writers,
		(SELECT count(*) FROM weft.node_entry) AS members,
		j.step AS join_step,
		CASE WHEN has_table_privilege('weft.join_entry', 'SELECT')
			OR pg_has_role('pg_read_all_stats', 'USAGE') THEN j.error END AS join_error
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
	'how this node follows every other member, and they follow it';

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
	weft.published_tables(),
	weft.member_publish(text[]),
	weft.member_unpublish(),
	weft.node_dsn(text),
	weft.set_node_dsn(text, text),
	weft.forget_dsn(),
	weft.check_identity(name, uuid),
	weft.check_own_dsn(name, text),
	weft.drop_stale_subscription(name),
	weft.member_make_slot(name, uuid),
	weft.member_drop_slot(name),
	weft.member_subscribe(name, uuid, boolean),
	weft.member_unsubscribe(name),
	weft.refuse_namesake(name, uuid),
	weft.member_forget(name, uuid),
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
	weft.member_register(),
	weft.join_publish(),
	weft.join_make_own_slots(),
	weft.join_note_time(),
	weft.join_make_slots(),
	weft.recent_query(regclass),
	weft.member_recent_rows(regclass, text[], timestamptz),
	weft.member_origins(),
	weft.stamped(timestamptz, name),
	weft.forget_recent(),
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
	weft.is_joining(),
	weft.join_progress(),
	weft.join_node_group(text, name),
	weft.wait_for_join_completion(interval),
	weft.member_configure(integer),
	weft.query_group(name, text),
	weft.alter_node_group_config(name, integer),
	weft.refresh_node_group(name),
	weft.node_group_replication(),
	weft.grant_node_admin(regrole)
	FROM PUBLIC;
