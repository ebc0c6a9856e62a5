-- The steps of a join.

CREATE FUNCTION weft.join_prepare()
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

	-- The group takes in what all its members have.
	PERFORM weft.node_query(weft.node_dsn('join target'), checked.target ->> 'node',
		format('SELECT weft.refresh_node_group(%L)', entry.node_group_name));
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
			-- The message of a failed COPY would show the line.
			RAISE EXCEPTION 'node "%" cannot be entered into the list of node "%"',
				own.node_name, member.node_name
				USING ERRCODE = 'object_in_use',
					HINT = 'Another node may be joining or parting.';
		END;
	END LOOP;
END $$;

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
		RAISE EXCEPTION 'the connection string of node "%" leads to another node', node.node_name
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	UPDATE weft.node_group_entry SET next_node_id = greatest(next_node_id, node.node_id + 1);
END $$;

COMMENT ON FUNCTION weft.member_register() IS
	'enters a node that joins into the list of this one; fails if this one cannot connect to it';

CREATE FUNCTION weft.join_publish()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_publish((
		SELECT coalesce(weft.node_query(n.dsn, n.node_name,
			'SELECT array_agg(r::text) FROM weft.published_tables() r'), '{}')::text[]
		FROM weft.member n JOIN weft.join_entry j ON n.node_name = j.target_node));
END $$;

CREATE FUNCTION weft.join_make_own_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_make_slot(node_name, identity) FROM weft.node_entry WHERE NOT is_local;
END $$;

CREATE FUNCTION weft.join_note_time()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	-- By the clocks of those others, nothing that is not in the copy is older.
	UPDATE weft.join_entry SET recent_since = (
		SELECT min(weft.node_query(n.dsn, n.node_name, 'SELECT clock_timestamp()')::timestamptz) - interval '3 s'
		FROM weft.member n, weft.join_entry j
		WHERE NOT n.is_local AND n.node_name <> j.target_node);
END $$;

-- Apart, since a slot on this server would wait for the transaction that has noted the time.
CREATE FUNCTION weft.join_make_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_make_slot(%L, %L)', own.node_name, own.identity))
		FROM weft.node_entry own, weft.member n, weft.join_entry j
		WHERE own.is_local AND NOT n.is_local AND n.node_name <> j.target_node;
END $$;

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

CREATE FUNCTION weft.member_recent_rows(relation regclass, columns text[], since timestamptz,
	OUT row_key text[], OUT changed timestamptz, OUT roident oid)
RETURNS SETOF record
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_member_recent_rows';

-- The index that the server finds rows with.
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

CREATE FUNCTION weft.member_origins(OUT roident oid, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT o.roident, n.node_name
	FROM weft.node_entry n CROSS JOIN weft.local_subscription(n.node_name) subid
		JOIN pg_replication_origin o ON o.roname = 'pg_' || subid
$$;

COMMENT ON FUNCTION weft.recent_query(regclass) IS 'asks for the rows of a table that were changed lately';
COMMENT ON FUNCTION weft.member_recent_rows(regclass, text[], timestamptz) IS
	'the rows of a table that were changed lately, by the columns of their key';
COMMENT ON FUNCTION weft.key_columns(regclass) IS
	'the columns of the replica identity index or primary key of a table, if it has one';
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
		-- Under another origin than a member's it counts for nothing here, either.
		AND (t.commit_time IS NOT NULL OR (t.c).roident = 0 OR o.node_name IS NOT NULL)
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
	FROM (SELECT *, pg_xact_commit_timestamp_origin(written_by::text::xid) AS c FROM weft.merged_row
			WHERE recorded_at >= since) m
		JOIN pg_class k ON k.oid = m.relation
		LEFT JOIN weft.member_origins() o ON o.roident = (m.c).roident
	WHERE (m.c).timestamp IS NOT NULL AND m.commit_time IS NOT NULL
		AND ((m.c).roident = 0 OR o.node_name IS NOT NULL)
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
	'what else belongs to a transaction whose rows have been written again';

CREATE FUNCTION weft.forget_recent()
RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	DELETE FROM weft.join_recent;
	DELETE FROM weft.join_merged_row;
$$;

COMMENT ON FUNCTION weft.forget_recent() IS
	'removes what the times of rows were restored from';

CREATE FUNCTION weft.join_catch_up()
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

CREATE FUNCTION weft.join_truncate()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_join_truncate';

CREATE FUNCTION weft.join_subscribe()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_track_deletes(true);
	PERFORM weft.join_settings();
	PERFORM weft.member_subscribe(node_name, identity, false) FROM weft.node_entry WHERE NOT is_local;
END $$;

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

CREATE FUNCTION weft.join_announce()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_subscribe(%L, %L, true)', own.node_name, own.identity))
		FROM weft.node_entry own, weft.member n WHERE own.is_local AND NOT n.is_local ORDER BY n.node_id;
END $$;

CREATE FUNCTION weft.join_finish()
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
			-- Not another node of that name.
			PERFORM weft.node_query(member.dsn, member.name, format(
				'SELECT weft.member_forget(node_name, identity) FROM weft.node_entry'
				' WHERE identity = %L AND state = %L AND NOT is_local',
				(SELECT identity FROM weft.node_entry WHERE is_local), 'joining'));
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
COMMENT ON FUNCTION weft.join_publish() IS 'a step of a join: this node publishes what the one does that is copied';
COMMENT ON FUNCTION weft.join_make_own_slots() IS 'a step of a join: slots for the others';
COMMENT ON FUNCTION weft.join_note_time() IS 'a step of a join: since when changes of others may be missing';
COMMENT ON FUNCTION weft.join_make_slots() IS 'a step of a join: slots for this node on the others';
COMMENT ON FUNCTION weft.join_catch_up() IS 'a step of a join: the node to copy applies what the others had';
COMMENT ON FUNCTION weft.join_truncate() IS 'a step of a join: tables that exist are found empty';
COMMENT ON FUNCTION weft.join_subscribe() IS 'a step of a join: subscriptions to all members';
COMMENT ON FUNCTION weft.join_follow() IS 'a step of a join: they begin where the copied node stood';
COMMENT ON FUNCTION weft.join_announce() IS 'a step of a join: all members subscribe to this node';
COMMENT ON FUNCTION weft.join_finish() IS 'a step of a join: this node is a member';
COMMENT ON FUNCTION weft.join_undo_members() IS 'removes from the members what a join has made there';
COMMENT ON FUNCTION weft.join_undo(text) IS 'removes what a join has made, and says why';

