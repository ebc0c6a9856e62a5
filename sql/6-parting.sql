-- Parting.
--
-- P parts, and goes on committing meanwhile.  All other members must have applied the
-- same of it before they forget it, and whole transactions, though they are asked one
-- after another.  So there is a cut, a position in P's WAL: every member applies each
-- transaction whose commit record begins before the cut, and none that begins later.
--
-- 1. weft.member_part, on all members or none: P is parting.
-- 2. weft.member_stop and weft.member_hold, on each other member: its subscription to P
--    is disabled, and the workers have ended.
-- 3. weft.member_cut, on P: a logical message is written and flushed; where it ends is
--    the cut.  All members have applied less, since they are stopped.
-- 4. weft.member_follow_until, on each other member: the subscription is enabled again,
--    with the cut in its label.  Its leader ends there, and the replication origin says
--    that it has.  weft.member_await_end waits for that, and flushes it.
-- 5. weft.member_leaving, on P: no way back.
-- 6. P drops its subscriptions, the others forget it, and it leaves, which waits for
--    transactions there (weft.member_untrack).  The member that was asked forgets it
--    last, since it may have to be asked again.
--
-- Each step is a transaction of the member that it changes, and may be done again.
-- Whoever is asked after an interruption begins anew, with another cut, unless P is
-- leaving: up to 5 nobody has forgotten anything.  P's own entry is what decides
-- between sessions: it becomes "leaving" only for the newest cut, and
-- weft.cancel_part_node makes it "active" only before.  A member that has applied
-- something behind a cut refuses it (weft.member_follow_until).
--
-- A node that cannot be reached cannot be cut: each member has what it has applied.
-- All are stopped before it is compared, so what is reported is final.

-- Whoever was parted by force may not know that, and another node may have its name by now.
CREATE FUNCTION weft.member_part(node name, node_identity uuid, asking uuid)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.refuse_namesake(node, node_identity);
	IF asking <> node_identity AND NOT EXISTS (SELECT FROM weft.node_entry WHERE identity = asking) THEN
		RAISE EXCEPTION 'node "%" is asked to part node "%" by a node that is not a member of its group',
			weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'If that node was parted by force, call weft.leave_node_group there.';
	END IF;
	UPDATE weft.node_entry SET state = 'parting' WHERE node_name = node AND state = 'active';
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION 'another node is joining or parting'
		USING ERRCODE = 'object_in_use',
			HINT = 'See weft.node; wait for it, or call weft.part_node for it.';
END $$;

COMMENT ON FUNCTION weft.member_part(name, uuid, uuid) IS
	'a step of parting: the node is parting';

-- Another node may have its address now.
CREATE FUNCTION weft.member_state(node_group name, node_identity uuid)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT state FROM weft.node_entry
	WHERE is_local AND identity = node_identity AND weft.local_group() = node_group
$$;

COMMENT ON FUNCTION weft.member_state(name, uuid) IS
	'the state of this node, if it is that one, and in that group';

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
				DETAIL = 'Another session may have completed it, or cancelled it.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.require_parting(name) IS
	'fails if another node is not parting any more; nobody changes that meanwhile';

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
	'a step of parting: disables the subscription of this node to another one, if there is one';

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
	-- With the entry locked, so that cuts are stored in the order of their positions.
	cut := pg_logical_emit_message(false, 'weft', 'cut', true);
	UPDATE weft.node_entry SET cut_lsn = cut WHERE is_local;
	RETURN cut;
END $$;

COMMENT ON FUNCTION weft.member_cut() IS
	'a step of parting: up to where others apply what this node has committed';

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

CREATE FUNCTION weft.member_follow_until(from_node name, until pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.require_parting(from_node);
	IF pg_replication_origin_progress('pg_' || weft.local_subscription(from_node), false) > until THEN
		RAISE EXCEPTION 'node "%" has applied more of node "%" than up to %',
			weft.local_node(), from_node, until
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Do not enable subscriptions to a node that parts. Call weft.part_node again.';
	END IF;
	PERFORM weft.set_until(from_node, until);
	EXECUTE format('ALTER SUBSCRIPTION %I ENABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_follow_until(name, pg_lsn) IS
	'a step of parting: applies what another node has committed up to there';

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
			RAISE EXCEPTION 'node "%" is not parting any more, or another session parts it', from_node
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		EXIT WHEN applied >= until;
		IF clock_timestamp() > until_time THEN
			RAISE EXCEPTION 'timed out while node "%" applies what node "%" has committed',
				weft.local_node(), from_node
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('Applied up to LSN %s of %s.', coalesce(applied, '0/0'), until),
						(SELECT last_error FROM weft.stat_get_last_error() WHERE subid = subscription)),
					HINT = 'Call weft.part_node again, or weft.cancel_part_node.';
		END IF;
		PERFORM pg_sleep(0.02);
	END LOOP;
	-- The node may forget it as soon as we have returned.
	PERFORM pg_logical_emit_message(false, 'weft', 'end', true);
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE',
		weft.subscription_name(weft.local_group(), from_node, weft.local_node()));
END $$;

COMMENT ON FUNCTION weft.member_await_end(name, pg_lsn, interval) IS
	'a step of parting: waits until that is applied and flushed';

CREATE FUNCTION weft.member_leaving(cut pg_lsn)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	UPDATE weft.node_entry SET state = 'leaving'
		WHERE is_local AND state IN ('parting', 'joining') AND cut_lsn = cut;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this node is not parting any more, or another session parts it'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_leaving(pg_lsn) IS
	'a step of parting: from here it can only be completed';

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
	'this node does not part';

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
	'goes on following another node, which does not part';

CREATE FUNCTION weft.part_query(parting weft.member)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('SELECT weft.member_part(%L, %L, %L)', parting.node_name, parting.identity, identity)
	FROM weft.node_entry WHERE is_local
$$;

COMMENT ON FUNCTION weft.part_query(weft.member) IS
	'the query that tells a member that a node is parting';

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
	-- One that has not completed its join may have been announced to some only.
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
	'lets all other members apply the same of a node that parts';

-- Returns who has applied what, if that differs.
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
			-- It says so when it is to forget the node.
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
	'stops applying changes of a node, and compares what members have of it';

-- Of one table, so that nobody can wait for us who has what we wait for.
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
	'a step of parting: one table does not remember any more what is deleted; is there one?';

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
			-- Those who waited for us have their turn.
			PERFORM pg_sleep(1);
		END;
	END LOOP;
	PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_leave()');
END $$;

COMMENT ON FUNCTION weft.part_leave(weft.member, timestamptz) IS
	'has a node leave the group whose changes all others have applied';

CREATE FUNCTION weft.parting_node(node_name name, OUT parting weft.member, OUT others weft.member[])
RETURNS record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	SELECT * INTO parting FROM weft.member n WHERE n.node_name = parting_node.node_name;
	IF NOT FOUND OR weft.local_group() IS NULL THEN
		RAISE EXCEPTION 'node "%" is not a member of the node group of this database', node_name
			USING ERRCODE = 'undefined_object',
				HINT = 'If it is parting, other members may still have it: see weft.node there.';
	END IF;
	IF EXISTS (SELECT FROM weft.node_entry n
		WHERE n.state IN ('joining', 'parting', 'leaving') AND n.node_name <> parting_node.node_name)
	THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use', HINT = 'See weft.node; wait for it, or call weft.part_node for it.';
	END IF;
	-- This one comes last.
	others := ARRAY(SELECT n FROM weft.member n WHERE n.node_name <> parting_node.node_name
		ORDER BY n.is_local, n.node_id);
END $$;

COMMENT ON FUNCTION weft.parting_node(name) IS
	'the entries of a node and of all others, if it may part';

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
		RAISE EXCEPTION 'node "%" cannot be parted by force from itself', node_name
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Call weft.part_node on another member; for what is left here, weft.leave_node_group.';
	END IF;
	ask_state := format('SELECT weft.member_state(%L, %L)', node_group, parting.identity);

	IF NOT force THEN
		state := weft.node_query(parting.dsn, parting.node_name, ask_state);
		-- Not one that has the address of the node, and may be one of the others.  In one
		-- order: of two nodes that part at once, through different members, one must fail
		-- before it makes the other one wait.
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
				DETAIL = format('Applied are the changes of %s.', differences),
				HINT = 'Call weft.part_node with "force", and compare tables.';
	ELSIF differences IS NOT NULL THEN
		RAISE WARNING 'members have applied different changes of node "%"', node_name
			USING DETAIL = format('Applied are the changes of %s.', differences),
				HINT = 'Compare tables: what only some of them have is not sent to the others.';
	END IF;

	IF state IS NOT NULL THEN
		PERFORM weft.node_query(parting.dsn, parting.node_name, 'SELECT weft.member_unsubscribe_all()');
	END IF;
	FOREACH member IN ARRAY others LOOP
		-- This one last of all.
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
				USING HINT = format('Call weft.part_node for node "%s" on node "%s", too, or part that one.',
					parting.node_name, member.node_name);
		END;
	END LOOP;
	IF parting.is_local THEN
		PERFORM weft.part_leave(parting, until);
	END IF;
END $$;

COMMENT ON FUNCTION weft.part_node(name, boolean, interval) IS
	'takes a node out of its group; by force, without asking that node';

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
	'undoes what an interrupted weft.part_node has done, if that is possible still';

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
	'removes what this node has of its group, without asking the others';

-- The superuser says who may: weft.grant_node_admin.
REVOKE ALL ON FUNCTION
	weft.member_part(name, uuid, uuid),
	weft.member_state(name, uuid),
	weft.require_parting(name),
	weft.member_stop(name),
	weft.member_cut(),
	weft.set_until(name, pg_lsn),
	weft.member_follow_until(name, pg_lsn),
	weft.member_await_end(name, pg_lsn, interval),
	weft.member_leaving(pg_lsn),
	weft.member_stay(uuid),
	weft.member_resume(name),
	weft.part_query(weft.member),
	weft.part_level(weft.member, weft.member[], timestamptz),
	weft.member_untrack(),
	weft.part_leave(weft.member, timestamptz),
	weft.part_compare(weft.member, weft.member[], boolean),
	weft.parting_node(name),
	weft.part_node(name, boolean, interval),
	weft.cancel_part_node(name),
	weft.leave_node_group()
	FROM PUBLIC;
