-- Joining from a physical copy: a node that was made from a base backup or a standby of a member.
--
-- S is the member that is copied, X any other member, J the node that the copy becomes.  The copy has
-- everything that S has, including the list of members with S as the local node, and S's subscriptions.
--
-- 1. weft.prepare_join_from_backup, on S, before the backup ends: J is entered into the list of every member as
--	  joining, with an identity of its own, and gets its slots on all of them.  Then S applies what
--	  each X had when its slot was made, and only then weft.prepared_copy on S says that J is ready.
--	  A copy that has this row has everything that J's slots will not send.
-- 2. The copy replays S's WAL and is promoted at position P, which its timeline history names.  Until step 4 it
--	  is nobody: its leaders do not start (src/server_copy.c).
-- 3. weft.join_node_group(..., from_backup := true), on the copy: checks, and starts the worker (src/group/join.c).
--	  weft.join_step_make_copy_slots: J's slots for the others, so that they get what is written on J.
-- 4. weft.join_step_become, one transaction: the entry of J becomes the local one.  Rows that were written under no
--	  origin before all transactions that are running are S's (weft.past_origin).  S's subscriptions are J's from now on, with J's
--	  slots: a subscription keeps its origin when it is renamed, and so its position, which replay has brought to P
--	  exactly.
-- 5. weft.join_step_subscribe and weft.join_step_follow, as in any join: J follows S from P on.
-- 6. weft.join_step_meet: the members find J at its address.  Then the join goes on as any other.
--
-- Nothing is lost: a transaction of S whose commit record is before P is in the copy, and S's slot sends every
-- other one, because it was made before the row of step 1.  A transaction of X that S had applied at P is in the copy,
-- with the progress of X's origin, and X's slot sends the later ones.
--
-- Each step may be repeated after a crash; step 4 is there or not.  If the preparation is repeated, J gets another
-- identity, and copies of the first one are refused.

CREATE TABLE weft.prepared_copy (
	node_name name NOT NULL,
	identity uuid NOT NULL,
	timeline integer NOT NULL,
	slot name NOT NULL,
	ready boolean NOT NULL,
	prepared_at timestamptz NOT NULL
);

CREATE UNIQUE INDEX prepared_copy_one ON weft.prepared_copy ((true));
ALTER TABLE weft.prepared_copy REPLICA IDENTITY FULL;

COMMENT ON TABLE weft.prepared_copy IS
	'the node that a physical copy of this one is to become; outdated unless that node is joining';
REVOKE ALL ON weft.prepared_copy FROM PUBLIC;

CREATE FUNCTION weft.server_timeline()
RETURNS integer
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_server_timeline';

COMMENT ON FUNCTION weft.server_timeline() IS
	'the timeline that this server writes';

CREATE FUNCTION weft.timeline_end(timeline integer)
RETURNS pg_lsn
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_timeline_end';

COMMENT ON FUNCTION weft.timeline_end(integer) IS
	'where the history of this server has left an earlier timeline; null if it has not';

-- On the member that is copied, and on all others.

CREATE FUNCTION weft.member_register_copy()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.member_enter();
END $$;

COMMENT ON FUNCTION weft.member_register_copy() IS
	'enters a node that does not exist yet into the list of this one';
REVOKE ALL ON FUNCTION weft.member_register_copy() FROM PUBLIC;

-- SECURITY DEFINER, as are the other functions that use the table: its rows decide whether subscriptions run.
CREATE FUNCTION weft.member_note_copy(node name, node_identity uuid, is_ready boolean)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_identity(node, node_identity);
	-- The copy will have it.
	PERFORM weft.own_copy();
	DELETE FROM weft.prepared_copy;
	INSERT INTO weft.prepared_copy VALUES (node, node_identity, weft.server_timeline(),
		weft.subscription_name(weft.local_group(), weft.local_node(), node), is_ready, clock_timestamp());
END $$;

COMMENT ON FUNCTION weft.member_note_copy(name, uuid, boolean) IS
	'notes that a physical copy of this node is to become another one';
REVOKE ALL ON FUNCTION weft.member_note_copy(name, uuid, boolean) FROM PUBLIC;

CREATE FUNCTION weft.pending_copy()
RETURNS weft.prepared_copy LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT p FROM weft.prepared_copy p JOIN weft.node_entry n ON n.identity = p.identity
	WHERE n.state = 'joining' AND NOT n.is_local
$$;

COMMENT ON FUNCTION weft.pending_copy() IS
	'the joining node that a physical copy of this one is to become';
REVOKE ALL ON FUNCTION weft.pending_copy() FROM PUBLIC;

CREATE FUNCTION weft.member_check_address(node name, node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_identity(node, node_identity);
	IF weft.node_query(weft.node_dsn(node), node, 'SELECT identity FROM weft.node_entry WHERE is_local')
		IS DISTINCT FROM node_identity::text
	THEN
		RAISE EXCEPTION 'the connection string of node "%" points to another node', node
			USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('Node "%s" has used it.', weft.local_node());
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_check_address(name, uuid) IS
	'fails unless this node finds another one at its address';
REVOKE ALL ON FUNCTION weft.member_check_address(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.member_has_slot(for_node name, node_identity uuid)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_identity(for_node, node_identity);
	RETURN EXISTS (SELECT FROM pg_replication_slots
		WHERE slot_name = weft.subscription_name(weft.local_group(), weft.local_node(), for_node)
			AND database = current_database() AND wal_status <> 'lost');
END $$;

COMMENT ON FUNCTION weft.member_has_slot(name, uuid) IS
	'does this node still keep its changes for another one?';
REVOKE ALL ON FUNCTION weft.member_has_slot(name, uuid) FROM PUBLIC;

-- SECURITY DEFINER, since this reads weft.node_copy.
CREATE FUNCTION weft.member_has_met(node_identity uuid)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM weft.node_copy c WHERE c.identity = node_identity)
$$;

COMMENT ON FUNCTION weft.member_has_met(uuid) IS
	'has another node, on some server, followed this one, or been followed by it?';
REVOKE ALL ON FUNCTION weft.member_has_met(uuid) FROM PUBLIC;

-- Whatever it changes is changed by other sessions: a slot waits for every transaction that has written something.
CREATE FUNCTION weft.prepare_join_from_backup(node_name name, node_dsn text)
RETURNS pg_lsn LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.member;
	members weft.member[];
	member weft.member;
	node_group name := weft.local_group();
	new_identity uuid := gen_random_uuid();
	line text;
BEGIN
	IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
		RAISE EXCEPTION 'weft.prepare_join_from_backup() cannot be called in a transaction that has written something'
			USING ERRCODE = 'active_sql_transaction';
	END IF;
	SELECT * INTO own FROM weft.member WHERE is_local;
	IF node_group IS NULL OR own.state <> 'active' THEN
		RAISE EXCEPTION 'this database is not a member of a node group'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	PERFORM weft.check_backup_source();
	PERFORM weft.check_name('node', node_name);
	IF node_dsn IS NULL THEN
		RAISE EXCEPTION 'a connection string is needed for node "%"', node_name
			USING ERRCODE = 'null_value_not_allowed';
	END IF;
	members := ARRAY(SELECT m FROM weft.member m
		WHERE m.node_name <> prepare_join_from_backup.node_name ORDER BY m.node_id);
	IF (weft.pending_copy()).node_name = node_name THEN
		PERFORM weft.check_not_joining(weft.pending_copy());
		PERFORM weft.forget_copy(members, (weft.pending_copy()).identity);
	ELSIF EXISTS (SELECT FROM weft.node_entry n WHERE n.state <> 'active') THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use',
				HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
	ELSIF EXISTS (SELECT FROM weft.node_entry n WHERE n.node_name = prepare_join_from_backup.node_name) THEN
		RAISE EXCEPTION 'node group "%" already has a node "%"', node_group, node_name
			USING ERRCODE = 'duplicate_object';
	END IF;
	PERFORM weft.check_group_names(node_group,
		ARRAY(SELECT m.node_name FROM unnest(members) m) || node_name);
	FOREACH member IN ARRAY members LOOP
		PERFORM weft.check_member(
			weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_info()')::jsonb, 1);
	END LOOP;

	line := (SELECT string_agg(regexp_replace(field, '([\\\t\n\r])', '\\\1', 'g'), E'\t' ORDER BY i)
		FROM unnest(ARRAY[node_name::text, weft.free_node_id()::text, new_identity::text, node_dsn])
			WITH ORDINALITY f(field, i)) || E'\n';
	BEGIN
		PERFORM weft.prepare_copy_on(members, own, node_name, new_identity, line);
	EXCEPTION WHEN OTHERS OR query_canceled THEN
		BEGIN
			PERFORM weft.forget_copy(members, new_identity);
		EXCEPTION WHEN OTHERS THEN
			RAISE WARNING 'could not undo everything: %', SQLERRM
				USING HINT = format('Call weft.part_node(%L, force := true).', node_name);
		END;
		RAISE;
	END;
	RETURN pg_current_wal_insert_lsn();
END $$;

COMMENT ON FUNCTION weft.prepare_join_from_backup(name, text) IS
	'prepares that a physical copy of this node, complete up to the returned position, joins the group as another node';
REVOKE ALL ON FUNCTION weft.prepare_join_from_backup(name, text) FROM PUBLIC;

CREATE FUNCTION weft.prepare_copy_on(members weft.member[], own weft.member, new_node name, new_identity uuid, line text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	done boolean := false;
	note text := format('SELECT weft.member_note_copy(%L, %L, %%L)', new_node, new_identity);
BEGIN
	-- This node first, so that the preparation can be repeated.
	FOREACH member IN ARRAY own || members LOOP
		CONTINUE WHEN member.is_local AND done;
		done := true;
		BEGIN
			PERFORM weft.node_send(member.dsn, member.node_name,
				'COPY weft.arriving_node FROM STDIN', line, 'SELECT weft.member_register_copy()');
		EXCEPTION WHEN unique_violation OR protocol_violation THEN
			-- The message of a failed COPY would show the line, with the connection string.
			RAISE EXCEPTION 'could not register node "%" on node "%"', new_node, member.node_name
				USING ERRCODE = 'object_in_use',
					HINT = 'Wait until no other node is joining or parting, and try again.';
		END;
		PERFORM weft.node_query(member.dsn, member.node_name, format('SELECT weft.member_make_slot(%L, %L)', new_node, new_identity));
		IF member.is_local THEN
			-- Behind the slot: a server that has the note but not the slot is a copy.
			PERFORM weft.node_query(own.dsn, own.node_name, format(note, false));
		ELSE
			PERFORM weft.node_query(own.dsn, own.node_name, format('SELECT weft.wait_for_subscription(%L, %L)',
				weft.subscription_name(weft.local_group(), member.node_name, own.node_name), '1 hour'));
		END IF;
	END LOOP;
	PERFORM weft.node_query(own.dsn, own.node_name, format(note, true));
END $$;

COMMENT ON FUNCTION weft.prepare_copy_on(weft.member[], weft.member, name, uuid, text) IS
	'step of preparing a physical copy: registers the new node and makes its slots';
REVOKE ALL ON FUNCTION weft.prepare_copy_on(weft.member[], weft.member, name, uuid, text) FROM PUBLIC;

-- This node comes last, and only if all others have forgotten it: then the preparation can be repeated, and the node
-- parted here.
CREATE FUNCTION weft.forget_copy(members weft.member[], old_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	failures text;
BEGIN
	FOR member IN SELECT m.* FROM unnest(members) m ORDER BY m.is_local, m.node_id LOOP
		CONTINUE WHEN member.is_local AND failures IS NOT NULL;
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name, format(
				'SELECT weft.member_forget(node_name, identity) FROM weft.node_entry'
				' WHERE identity = %L AND state = %L AND NOT is_local', old_identity, 'joining'));
		EXCEPTION WHEN OTHERS THEN
			failures := concat_ws('; ', failures, SQLERRM);
		END;
	END LOOP;
	IF failures IS NOT NULL THEN
		RAISE EXCEPTION '%', failures
			USING ERRCODE = 'connection_failure', HINT = 'Try again when all members can be reached.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.forget_copy(weft.member[], uuid) IS
	'removes what was prepared for a physical copy';
REVOKE ALL ON FUNCTION weft.forget_copy(weft.member[], uuid) FROM PUBLIC;

CREATE FUNCTION weft.check_not_joining(prepared weft.prepared_copy)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	found_identity text;
BEGIN
	BEGIN
		found_identity := weft.node_query(weft.node_dsn(prepared.node_name), prepared.node_name,
			'SELECT identity FROM weft.node_entry WHERE is_local');
	EXCEPTION WHEN OTHERS THEN
		-- It need not exist yet.
		NULL;
	END;
	IF found_identity = prepared.identity::text THEN
		RAISE EXCEPTION 'node "%" is joining', prepared.node_name
			USING ERRCODE = 'object_in_use', HINT = 'Call weft.wait_for_join_completion there, or part it.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_not_joining(weft.prepared_copy) IS
	'fails if a physical copy has become the node for which it was made';
REVOKE ALL ON FUNCTION weft.check_not_joining(weft.prepared_copy) FROM PUBLIC;

CREATE FUNCTION weft.check_backup_source()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	other record;
BEGIN
	-- They would run on the copy, too.
	SELECT s.subname, d.datname INTO other
		FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
		WHERE s.subenabled AND (d.datname <> current_database()
			OR s.oid NOT IN (SELECT weft.local_subscription(n.node_name) FROM weft.node_entry n WHERE NOT n.is_local
				AND weft.local_subscription(n.node_name) IS NOT NULL))
		ORDER BY 2, 1 LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'subscription "%" in database "%" is not one of the node group, and would run on a copy of this server, too',
			other.subname, other.datname
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Disable it while the copy is made, or let the new node join without a backup.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_backup_source() IS
	'fails if a copy of this server would do something that only this one may do';
REVOKE ALL ON FUNCTION weft.check_backup_source() FROM PUBLIC;

-- On the copy.

CREATE FUNCTION weft.check_copy_history()
RETURNS weft.prepared_copy LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	prepared weft.prepared_copy := weft.pending_copy();
	source name := weft.local_node();
BEGIN
	IF source IS NULL OR weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'this database is not a copy of a member of a node group'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restore a base backup of a member on this server, or join without "from_backup".';
	END IF;
	IF prepared.node_name IS NULL OR NOT prepared.ready THEN
		RAISE EXCEPTION 'no node is to join from a copy of node "%" that is as old as this one', source
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Changes that other members have made since could be missing.',
				HINT = 'Call weft.prepare_join_from_backup there, and then make a base backup, or promote a standby that has replayed up to the position that it returns.';
	END IF;
	IF weft.server_timeline() = prepared.timeline THEN
		IF EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = prepared.slot) THEN
			RAISE EXCEPTION 'this server is node "%" itself, not a copy of it', source
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = format('Call the function on the server that is to become node "%s".', prepared.node_name);
		END IF;
		RAISE EXCEPTION 'this copy of node "%" was not started as a standby, so it is unknown what it has', source
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restore the backup again, create the file standby.signal or recovery.signal in its data directory, start it, and promote it.';
	END IF;
	IF weft.timeline_end(prepared.timeline) IS NULL THEN
		RAISE EXCEPTION 'this server is not a copy of node "%" as it was when the join was prepared', source
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Its history does not contain timeline %s.', prepared.timeline);
	END IF;
	RETURN prepared;
END $$;

COMMENT ON FUNCTION weft.check_copy_history() IS
	'fails unless this server is a copy of a member that was prepared and has been promoted';
REVOKE ALL ON FUNCTION weft.check_copy_history() FROM PUBLIC;

CREATE FUNCTION weft.check_copy_target(prepared weft.prepared_copy, target_dsn text, node_group name, OUT target jsonb)
RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own jsonb := weft.member_info();
	source text := weft.local_node();
	behind pg_lsn := weft.timeline_end(prepared.timeline);
BEGIN
	target := weft.node_query(target_dsn, 'join target', 'SELECT weft.member_info()')::jsonb;
	IF target ->> 'started' = own ->> 'started' AND target ->> 'database' = own ->> 'database' THEN
		RAISE EXCEPTION 'node "%" cannot join through itself', prepared.node_name
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF node_group <> weft.local_group() THEN
		RAISE EXCEPTION 'this database is a copy of a member of node group "%", not "%"', weft.local_group(), node_group
			USING ERRCODE = 'undefined_object';
	END IF;
	IF target ->> 'identity' IS DISTINCT FROM own ->> 'identity' THEN
		RAISE EXCEPTION 'this database is a copy of node "%", but the join target is %', source,
			coalesce('node "' || (target ->> 'node') || '"', 'no node')
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Join through the node that was copied.';
	END IF;
	IF target ->> 'database' <> own ->> 'database' THEN
		RAISE EXCEPTION 'this database is not a physical copy of that of node "%"', source
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('The system identifiers and OIDs of the databases are %s and %s.',
					own ->> 'database', target ->> 'database');
	END IF;
	IF target ->> 'changing_identity' IS DISTINCT FROM prepared.identity::text THEN
		RAISE EXCEPTION 'node "%" does not expect node "%" any more', source, prepared.node_name
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'The join was prepared again since the copy was made, or the node was parted.',
				HINT = 'Make a new copy, after weft.prepare_join_from_backup.';
	END IF;
	IF weft.node_query(target_dsn, source, 'SELECT weft.server_timeline()')::integer <> prepared.timeline
		OR weft.node_query(target_dsn, source, 'SELECT pg_current_wal_flush_lsn()')::pg_lsn < behind
	THEN
		RAISE EXCEPTION 'this copy has WAL that node "%" does not have', source
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('It follows timeline %s up to LSN %s.', prepared.timeline, behind),
				HINT = format('If node "%s" was replaced by a standby or restored, call weft.part_node(%L, force := true) there, and begin again.',
					source, prepared.node_name);
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_copy_target(weft.prepared_copy, text, name) IS
	'fails unless a connection string points to the member that this server is a copy of';
REVOKE ALL ON FUNCTION weft.check_copy_target(weft.prepared_copy, text, name) FROM PUBLIC;

CREATE FUNCTION weft.check_unchanged_since(since pg_lsn, relations oid[])
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_check_unchanged_since';

COMMENT ON FUNCTION weft.check_unchanged_since(pg_lsn, oid[]) IS
	'fails if a committed transaction of this server has changed a table since a position; false if its WAL is gone';
REVOKE ALL ON FUNCTION weft.check_unchanged_since(pg_lsn, oid[]) FROM PUBLIC;

CREATE FUNCTION weft.check_copy_contents(prepared weft.prepared_copy)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	left_open text;
	changed regclass;
BEGIN
	PERFORM weft.check_backup_source();
	SELECT gid INTO left_open FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1 LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'the copy has a prepared transaction "%"', left_open
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'It belongs to the node that was copied, from which this one gets its outcome.',
				HINT = 'Execute ROLLBACK PREPARED here, and join again.';
	END IF;
	IF weft.check_unchanged_since(weft.timeline_end(prepared.timeline), ARRAY(SELECT r::oid FROM weft.group_tables() r)) THEN
		RETURN;
	END IF;
	-- The WAL is gone.  Statistics show less; in these, replay does not count.
	PERFORM pg_stat_clear_snapshot();
	SELECT r INTO changed FROM weft.group_tables() r
		WHERE pg_stat_get_tuples_inserted(r) + pg_stat_get_tuples_updated(r) + pg_stat_get_tuples_deleted(r) > 0
		LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'table % was changed on this server since it was promoted', changed
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'No other member would get these changes.',
				HINT = 'Make a new copy, and let nobody write to it before it has joined. If these are changes that a server had counted before it was copied while it was stopped, call pg_stat_reset().';
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_copy_contents(weft.prepared_copy) IS
	'fails if this copy of a member has something that the member does not have';
REVOKE ALL ON FUNCTION weft.check_copy_contents(weft.prepared_copy) FROM PUBLIC;

CREATE FUNCTION weft.check_copy(target_dsn text, node_group name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	prepared weft.prepared_copy := weft.check_copy_history();
	info jsonb := weft.member_info();
	others integer := (SELECT count(*) FROM weft.node_entry) - 1;
	member weft.member;
BEGIN
	PERFORM weft.check_copy_target(prepared, target_dsn, node_group);
	PERFORM weft.check_own_dsn(prepared.node_name, weft.node_dsn(prepared.node_name));
	PERFORM weft.check_copy_contents(prepared);
	-- The subscriptions to all others but the copied node are there already.
	info := info || jsonb_build_object('node', prepared.node_name,
		'max_logical_replication_workers', (info ->> 'max_logical_replication_workers')::integer + others - 1,
		'max_active_replication_origins', (info ->> 'max_active_replication_origins')::integer + others - 1);
	PERFORM weft.check_member(info, others);
	FOR member IN SELECT * FROM weft.member m WHERE m.node_name <> prepared.node_name ORDER BY m.node_id LOOP
		member.dsn := CASE WHEN member.is_local THEN target_dsn ELSE member.dsn END;
		IF NOT weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_has_slot(%L, %L)', prepared.node_name, prepared.identity))::boolean
		THEN
			RAISE EXCEPTION 'node "%" has no slot for node "%" any more, or has removed WAL of it',
				member.node_name, prepared.node_name
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Make a new copy, after weft.prepare_join_from_backup.';
		END IF;
		-- Its slot has passed what this copy lacks.
		IF weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_has_met(%L)', prepared.identity))::boolean
		THEN
			RAISE EXCEPTION 'another copy has become node "%", and has followed node "%"', prepared.node_name, member.node_name
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'If that copy is gone, make a new one, after weft.prepare_join_from_backup.';
		END IF;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.check_copy(text, name) IS
	'fails if this copy of a member cannot join; changes nothing';
REVOKE ALL ON FUNCTION weft.check_copy(text, name) FROM PUBLIC;

CREATE FUNCTION weft.begin_join_from_backup(target_dsn text, node_group name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'this server is still a standby'
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Promote it first.';
	END IF;
	IF NOT EXISTS (SELECT FROM weft.join_entry WHERE copied) THEN
		PERFORM weft.check_copy(target_dsn, node_group);
		DELETE FROM weft.join_entry;
		INSERT INTO weft.join_entry (node_group_name, target_node, copy_schema, copied)
			VALUES (weft.local_group(), weft.local_node(), false, true);
		PERFORM weft.set_node_dsn('join target', target_dsn);
	END IF;
	PERFORM weft.launch_join();
END $$;

COMMENT ON FUNCTION weft.begin_join_from_backup(text, name) IS
	'starts or resumes making this copy of a member a member of its own';
REVOKE ALL ON FUNCTION weft.begin_join_from_backup(text, name) FROM PUBLIC;
