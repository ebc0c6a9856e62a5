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

CREATE FUNCTION weft.member_register()
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

COMMENT ON FUNCTION weft.member_register() IS
	'enters a joining node into the list of this one; fails if this one cannot connect to it';
REVOKE ALL ON FUNCTION weft.member_register() FROM PUBLIC;

-- Step 2: publication and slots.

CREATE FUNCTION weft.join_step_publish()
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
		-- This step may be repeated when more has been applied.
		IF member.start_lsn > coalesce(pg_replication_origin_progress('pg_' || member.oid, false), '0/0') THEN
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
