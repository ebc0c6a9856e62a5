-- Parting: how a node leaves its group.
--
-- P parts, and continues to commit meanwhile.  Before the other members forget P, all of
-- them must have applied the same transactions of it, although they are asked one after
-- another.  Therefore there is a cut, a position in P's WAL: every member applies each
-- transaction whose commit record begins before the cut, and none that begins later.
--
-- 1. weft.member_part, on all members or none: P is parting.
-- 2. weft.member_stop and weft.member_hold, on each other member: its subscription to P
--    is disabled, and the workers have ended.
-- 3. weft.member_cut, on P: writes and flushes a logical message; the end of the message
--    is the cut.  All members have applied less, since they are stopped.
-- 4. weft.member_follow_until, on each other member: enables the subscription again, with
--    the cut in its label.  The leader ends there, and the replication origin shows that
--    it has.  weft.member_await_end waits for that, and flushes it.
-- 5. weft.member_leaving, on P: from here on, parting can only be completed.
-- 6. P drops its subscriptions, the others forget P, and P leaves, which waits for
--    transactions there (weft.member_untrack).  The member on which weft.part_node was
--    called forgets P last, since it may have to be called there again.
--
-- Each step is a transaction of the member that it changes, and may be repeated.  After an
-- interruption, the next call of weft.part_node, on any member, starts again with another
-- cut, unless P is leaving: before step 5, no member has forgotten anything.  P's own entry
-- decides between sessions: it becomes "leaving" only for the newest cut, and
-- weft.cancel_part_node makes it "active" only before that.  A member that has applied
-- something beyond a cut refuses the cut (weft.member_follow_until).
--
-- A node that cannot be reached has no cut: each member keeps what it has applied.  All
-- members are stopped before that is compared, so the differences reported are final.

-- A node that was parted by force may not know it, and another node may have its name now.
CREATE FUNCTION weft.member_part(node name, node_identity uuid, asking uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.refuse_namesake(node, node_identity);
	IF asking <> node_identity AND NOT EXISTS (SELECT FROM weft.node_entry WHERE identity = asking) THEN
		RAISE EXCEPTION 'node "%" does not part node "%" for a node that is not a member of its group',
			weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'If that node was parted by force, call weft.leave_node_group there.';
	END IF;
	UPDATE weft.node_entry SET state = 'parting' WHERE node_name = node AND state = 'active';
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION 'another node is joining or parting'
		USING ERRCODE = 'object_in_use',
			HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
END $$;

COMMENT ON FUNCTION weft.member_part(name, uuid, uuid) IS
	'step of parting: marks the node as parting';
REVOKE ALL ON FUNCTION weft.member_part(name, uuid, uuid) FROM PUBLIC;

-- Another node may have the address now.
CREATE FUNCTION weft.member_state(node_group name, node_identity uuid)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT state FROM weft.node_entry
	WHERE is_local AND identity = node_identity AND weft.local_group() = node_group
$$;

COMMENT ON FUNCTION weft.member_state(name, uuid) IS
	'the state of this node, if it has that identity and is in that group';
REVOKE ALL ON FUNCTION weft.member_state(name, uuid) FROM PUBLIC;

CREATE FUNCTION weft.require_parting(node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM FROM weft.node_entry
		WHERE node_name = node AND state IN ('parting', 'joining') FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'node "%" is not parting', node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Another session may have completed or cancelled its parting.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.require_parting(name) IS
	'fails unless another node is parting; locks its entry';
REVOKE ALL ON FUNCTION weft.require_parting(name) FROM PUBLIC;

CREATE FUNCTION weft.member_stop(from_node name)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.require_parting(from_node);
	IF weft.local_subscription(from_node) IS NULL THEN
		RETURN false;
	END IF;
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
	RETURN true;
END $$;

COMMENT ON FUNCTION weft.member_stop(name) IS
	'step of parting: disables the subscription of this node to another one, if it exists';
REVOKE ALL ON FUNCTION weft.member_stop(name) FROM PUBLIC;

CREATE FUNCTION weft.member_cut()
RETURNS pg_lsn LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	cut pg_lsn;
BEGIN
	UPDATE weft.node_entry SET cut_lsn = NULL
		WHERE is_local AND state IN ('parting', 'joining');
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this node is not parting'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	-- The UPDATE has locked the entry, so cuts are stored in the order of their positions.
	cut := pg_logical_emit_message(false, 'weft', 'cut', true);
	UPDATE weft.node_entry SET cut_lsn = cut WHERE is_local;
	RETURN cut;
END $$;

COMMENT ON FUNCTION weft.member_cut() IS
	'step of parting: the position up to which others apply what this node commits';
REVOKE ALL ON FUNCTION weft.member_cut() FROM PUBLIC;

CREATE FUNCTION weft.set_until(from_node name, until pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	label text := (SELECT l.label FROM pg_shseclabel l
		WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
			AND l.objoid = weft.local_subscription(from_node));
BEGIN
	EXECUTE format('SECURITY LABEL FOR weft ON SUBSCRIPTION %I IS %L',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()),
		concat_ws(', ', regexp_replace(label, ', until_lsn=.*', ''), 'until_lsn=' || until));
END $$;

COMMENT ON FUNCTION weft.set_until(name, pg_lsn) IS
	'sets or removes the end of the subscription of this node to another one';
REVOKE ALL ON FUNCTION weft.set_until(name, pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_follow_until(from_node name, until pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.require_parting(from_node);
	IF pg_replication_origin_progress('pg_' || weft.local_subscription(from_node), false) > until THEN
		RAISE EXCEPTION 'node "%" has applied changes of node "%" beyond %',
			weft.local_node(), from_node, until
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Call weft.part_node again, and do not enable subscriptions to a parting node.';
	END IF;
	PERFORM weft.set_until(from_node, until);
	EXECUTE format('ALTER SUBSCRIPTION %I ENABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_follow_until(name, pg_lsn) IS
	'step of parting: applies what another node has committed up to a position';
REVOKE ALL ON FUNCTION weft.member_follow_until(name, pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_await_end(from_node name, until pg_lsn, timeout interval)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subscription oid := weft.local_subscription(from_node);
	until_time timestamptz := clock_timestamp() + timeout;
	applied pg_lsn;
BEGIN
	LOOP
		applied := pg_replication_origin_progress('pg_' || subscription, false);
		IF NOT EXISTS (SELECT FROM pg_shseclabel l
			WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
				AND l.objoid = subscription AND l.label LIKE '%, until_lsn=' || until)
		THEN
			RAISE EXCEPTION 'node "%" is no longer parting, or another session is parting it', from_node
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		EXIT WHEN applied >= until;
		IF clock_timestamp() > until_time THEN
			RAISE EXCEPTION 'timed out waiting for node "%" to apply what node "%" has committed',
				weft.local_node(), from_node
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('Applied up to LSN %s of %s.', coalesce(applied, '0/0'), until),
						(SELECT last_error FROM weft.stat_get_last_error() WHERE subid = subscription)),
					HINT = 'Call weft.part_node again, or weft.cancel_part_node.';
		END IF;
		PERFORM pg_sleep(0.02);
	END LOOP;
	-- The parting node may drop its slot as soon as this function has returned.
	PERFORM pg_logical_emit_message(false, 'weft', 'end', true);
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_await_end(name, pg_lsn, interval) IS
	'step of parting: waits until that is applied and flushed';
REVOKE ALL ON FUNCTION weft.member_await_end(name, pg_lsn, interval) FROM PUBLIC;

CREATE FUNCTION weft.member_leaving(cut pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE weft.node_entry SET state = 'leaving'
		WHERE is_local AND state IN ('parting', 'joining') AND cut_lsn = cut;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this node is no longer parting, or another session is parting it'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_leaving(pg_lsn) IS
	'step of parting: from here on, parting can only be completed';
REVOKE ALL ON FUNCTION weft.member_leaving(pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.member_stay(node_identity uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.node_entry;
BEGIN
	UPDATE weft.node_entry SET state = 'active', cut_lsn = NULL
		WHERE is_local AND identity = node_identity AND state = 'parting';
	SELECT * INTO own FROM weft.node_entry WHERE is_local AND identity = node_identity;
	IF own.state IS DISTINCT FROM 'active' THEN
		RAISE EXCEPTION 'parting of this node cannot be cancelled: it is %', coalesce(own.state, 'another node')
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call weft.part_node again.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_stay(uuid) IS
	'cancels parting on this node';
REVOKE ALL ON FUNCTION weft.member_stay(uuid) FROM PUBLIC;

CREATE FUNCTION weft.member_resume(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE weft.node_entry SET state = 'active' WHERE node_name = from_node AND state = 'parting';
	IF FOUND AND weft.local_subscription(from_node) IS NOT NULL THEN
		PERFORM weft.set_until(from_node, NULL);
		EXECUTE format('ALTER SUBSCRIPTION %I ENABLE',
			weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_resume(name) IS
	'resumes following another node, whose parting was cancelled';
REVOKE ALL ON FUNCTION weft.member_resume(name) FROM PUBLIC;

CREATE FUNCTION weft.part_query(parting weft.member)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('SELECT weft.member_part(%L, %L, %L)', parting.node_name, parting.identity, identity)
	FROM weft.node_entry WHERE is_local
$$;

COMMENT ON FUNCTION weft.part_query(weft.member) IS
	'the query that tells a member that a node is parting';
REVOKE ALL ON FUNCTION weft.part_query(weft.member) FROM PUBLIC;

CREATE FUNCTION weft.part_level(parting weft.member, others weft.member[], until timestamptz)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	subscribed boolean[] := '{}';
	cut text;
BEGIN
	FOREACH member IN ARRAY others LOOP
		subscribed := subscribed || weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_stop(%L)', parting.node_name))::boolean;
	END LOOP;
	-- A node that has not completed its join may have been announced to some members only.
	IF true = ANY (subscribed) THEN
		FOR i IN 1 .. cardinality(others) LOOP
			member := others[i];
			IF subscribed[i] THEN
				PERFORM weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_hold(%L)', parting.node_name));
			ELSE
				PERFORM weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_subscribe(%L, %L, false)', parting.node_name, parting.identity));
			END IF;
		END LOOP;
	END IF;

	cut := weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_cut()');
	IF true = ANY (subscribed) THEN
		FOREACH member IN ARRAY others LOOP
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_follow_until(%L, %L)', parting.node_name, cut));
		END LOOP;
		FOREACH member IN ARRAY others LOOP
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_await_end(%L, %L, %L)', parting.node_name, cut,
					greatest(until - clock_timestamp(), '0')));
		END LOOP;
	END IF;
	PERFORM weft.node_query(parting.dsn, parting.node_name, format('SELECT weft.member_leaving(%L)', cut));
END $$;

COMMENT ON FUNCTION weft.part_level(weft.member, weft.member[], timestamptz) IS
	'makes all other members apply the same changes of a parting node';
REVOKE ALL ON FUNCTION weft.part_level(weft.member, weft.member[], timestamptz) FROM PUBLIC;

-- Returns up to where each member has applied the node's changes, if that differs.
CREATE FUNCTION weft.part_compare(parting weft.member, others weft.member[], force boolean)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
	positions text[] := '{}';
	names text[] := '{}';
	part text := weft.part_query(parting);
BEGIN
	FOREACH member IN ARRAY others LOOP
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name, part);
			IF weft.node_query(member.dsn, member.node_name,
				format('SELECT CASE WHEN EXISTS (SELECT FROM weft.node_entry WHERE node_name = %1$L)'
					' THEN weft.member_stop(%1$L) END', parting.node_name))::boolean
			THEN
				positions := positions || coalesce(weft.node_query(member.dsn, member.node_name,
					format('SELECT weft.member_hold(%L)', parting.node_name)), '0/0');
				names := names || member.node_name::text;
			END IF;
		EXCEPTION WHEN connection_failure THEN
			-- weft.part_node warns when this member is to forget the node.
			IF NOT force THEN
				RAISE;
			END IF;
		END;
	END LOOP;
	RETURN (SELECT string_agg(format('node "%s" up to LSN %s', n, p), ', ' ORDER BY p::pg_lsn DESC)
		FROM unnest(names, positions) c(n, p)
		HAVING count(DISTINCT p) > 1);
END $$;

COMMENT ON FUNCTION weft.part_compare(weft.member, weft.member[], boolean) IS
	'stops applying changes of a node, and compares what the members have applied';
REVOKE ALL ON FUNCTION weft.part_compare(weft.member, weft.member[], boolean) FROM PUBLIC;

-- Of one table at a time: a transaction that holds the lock that this one waits for cannot
-- be waiting for a lock of another table that this one holds.
CREATE FUNCTION weft.member_untrack()
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
DECLARE
	relation regclass := (SELECT r FROM weft.group_tables() r JOIN pg_trigger t ON t.tgrelid = r
		WHERE t.tgname = 'weft_record_delete' LIMIT 1);
BEGIN
	IF relation IS NULL THEN
		RETURN false;
	END IF;
	PERFORM weft.track_deletes(relation, false);
	RETURN true;
END $$;

COMMENT ON FUNCTION weft.member_untrack() IS
	'step of parting: makes one table no longer remember deleted rows; false if there is none';
REVOKE ALL ON FUNCTION weft.member_untrack() FROM PUBLIC;

CREATE FUNCTION weft.part_leave(parting weft.member, until timestamptz)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	more boolean := true;
BEGIN
	WHILE more LOOP
		BEGIN
			more := weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_untrack()');
		EXCEPTION WHEN lock_not_available THEN
			IF clock_timestamp() > until THEN
				RAISE;
			END IF;
			-- Let those that waited for this transaction go first.
			PERFORM pg_sleep(1);
		END;
	END LOOP;
	PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_leave()');
END $$;

COMMENT ON FUNCTION weft.part_leave(weft.member, timestamptz) IS
	'makes a node leave the group, after all others have applied its changes';
REVOKE ALL ON FUNCTION weft.part_leave(weft.member, timestamptz) FROM PUBLIC;

CREATE FUNCTION weft.parting_node(node_name name, OUT parting weft.member, OUT others weft.member[])
RETURNS record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	SELECT * INTO parting FROM weft.member n WHERE n.node_name = parting_node.node_name;
	IF NOT FOUND OR weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'node "%" is not a member of the node group of this database', node_name
			USING ERRCODE = 'undefined_object',
				HINT = 'If it is parting, other members may still list it; look at weft.node there.';
	END IF;
	IF EXISTS (SELECT FROM weft.node_entry n
		WHERE n.state IN ('joining', 'parting', 'leaving') AND n.node_name <> parting_node.node_name)
	THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use', HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
	END IF;
	-- This node comes last.
	others := ARRAY(SELECT n FROM weft.member n WHERE n.node_name <> parting_node.node_name
		ORDER BY n.is_local, n.node_id);
END $$;

COMMENT ON FUNCTION weft.parting_node(name) IS
	'the entries of a node and of all others; fails if the node may not part';
REVOKE ALL ON FUNCTION weft.parting_node(name) FROM PUBLIC;

CREATE FUNCTION weft.part_node(node_name name, force boolean DEFAULT false, timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node_group name := weft.local_group();
	entries record;
	parting weft.member;
	others weft.member[];
	member weft.member;
	until timestamptz := clock_timestamp() + timeout;
	ask_state text;
	state text;
	differences text;
BEGIN
	SELECT * INTO entries FROM weft.parting_node(part_node.node_name);
	parting := entries.parting;
	others := entries.others;
	IF force AND parting.is_local THEN
		RAISE EXCEPTION 'node "%" cannot part itself by force', node_name
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Call weft.part_node on another member, and then weft.leave_node_group here.';
	END IF;
	ask_state := format('SELECT weft.member_state(%L, %L)', node_group, parting.identity);

	IF NOT force THEN
		state := weft.node_query(parting.dsn, parting.node_name, ask_state);
		-- If another node has the address of the parting node, it is not asked; it may be
		-- one of the others.  The order is the same for all: of two nodes that part at
		-- once, through different members, one must fail before it makes the other wait.
		PERFORM weft.node_query_all(array_agg(m.dsn ORDER BY m.node_id),
				array_agg(m.node_name::text ORDER BY m.node_id), weft.part_query(parting))
			FROM unnest(others || CASE WHEN state IS NOT NULL THEN parting END) m
			WHERE m.node_name IS NOT NULL;
		IF state IS NOT NULL THEN
			state := weft.node_query(parting.dsn, parting.node_name, ask_state);
		END IF;
	END IF;
	IF state IN ('parting', 'joining') THEN
		PERFORM weft.part_level(parting, others, until);
	ELSIF state IS NULL THEN
		differences := weft.part_compare(parting, others, force);
	END IF;
	IF differences IS NOT NULL AND NOT force THEN
		RAISE EXCEPTION 'members have applied different changes of node "%", which has left the group', node_name
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Changes are applied as follows: %s.', differences),
				HINT = 'Call weft.part_node with "force", and then compare tables.';
	ELSIF differences IS NOT NULL THEN
		RAISE WARNING 'members have applied different changes of node "%"', node_name
			USING DETAIL = format('Changes are applied as follows: %s.', differences),
				HINT = 'Compare tables; changes that only some members have are not sent to the others.';
	END IF;

	IF state IS NOT NULL THEN
		PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_unsubscribe_all()');
	END IF;
	FOREACH member IN ARRAY others LOOP
		-- This node is the last.
		IF member.is_local AND state IS NOT NULL THEN
			PERFORM weft.part_leave(parting, until);
		END IF;
		BEGIN
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_forget(%L, %L)', parting.node_name, parting.identity));
		EXCEPTION WHEN connection_failure THEN
			IF NOT force THEN
				RAISE;
			END IF;
			RAISE WARNING '%', SQLERRM
				USING HINT = format('Call weft.part_node for node "%s" on node "%s" as well, or part that node.',
					parting.node_name, member.node_name);
		END;
	END LOOP;
	IF parting.is_local THEN
		PERFORM weft.part_leave(parting, until);
	END IF;
END $$;

COMMENT ON FUNCTION weft.part_node(name, boolean, interval) IS
	'removes a node from its group; by force, without contacting that node';
REVOKE ALL ON FUNCTION weft.part_node(name, boolean, interval) FROM PUBLIC;

CREATE FUNCTION weft.cancel_part_node(node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entries record;
	parting weft.member;
	others weft.member[];
	member weft.member;
BEGIN
	SELECT * INTO entries FROM weft.parting_node(cancel_part_node.node_name);
	parting := entries.parting;
	others := entries.others;
	PERFORM weft.node_query(parting.dsn, parting.node_name,
		format('SELECT weft.member_stay(%L)', parting.identity));
	FOREACH member IN ARRAY others LOOP
		PERFORM weft.node_query(member.dsn, member.node_name,
			format('SELECT weft.member_resume(%L)', parting.node_name));
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.cancel_part_node(name) IS
	'undoes what an interrupted weft.part_node has done, if that is still possible';
REVOKE ALL ON FUNCTION weft.cancel_part_node(name) FROM PUBLIC;

CREATE FUNCTION weft.leave_node_group()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'this database is not a member of a node group'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	DELETE FROM weft.join_entry;
	PERFORM weft.set_node_dsn('join target', NULL);
	PERFORM weft.member_leave();
END $$;

COMMENT ON FUNCTION weft.leave_node_group() IS
	'removes what this node has of its group, without contacting the others';
REVOKE ALL ON FUNCTION weft.leave_node_group() FROM PUBLIC;
