-- Members that fail over to a physical standby.
--
-- P is a member whose server has failed, and P' the standby that was promoted in its place.  P' has
-- everything of P that the standby had received: tables, subscriptions with their origins, and, because
-- they have the option "failover", the slots.  It is the same member, with the same identity.  S is
-- any other member.
--
-- Copies.  Each member stores what it is: its generation, a number that grows whenever it finds itself on
-- another server or timeline than before, and an incarnation, a random number for each generation (weft.own_copy).
-- When the leader of a subscription connects to its publisher, both sides look at each other
-- (src/node_copy.c): they accept a higher generation than the one they know, and refuse a lower one,
-- and another incarnation of the same one.  Therefore P, if it comes back beside P', is refused by every
-- member that has met P', and of two standbys that were promoted, the second one.  A member stores
-- what it is before it tells others.  A file copy that is started without recovery has all of
-- P's numbers, and is told apart only by what it lacks (3).
--
-- What P' may lack, with an asynchronous standby:
--
-- 1. Transactions of P that S has applied.  S knows on which of P's timelines its origin for P is
--    ("followed"), and P' knows where it has left that timeline.  If the origin is beyond, then S has
--    something that P' does not have.  Worse, P' writes the same positions once more, and
--    would not send S what is before the origin.  S records the loss and does not follow P'
--    until weft.accept_promotion is called, which sets the origin back to where the timelines part.
--    A node that joins takes over "followed" with the position (weft.member_copy_of).
--    "synchronized_standby_slots" on P prevents this case: P sends nothing that its standby does not have.
-- 2. Transactions of S that P had confirmed.  S does not send them again.  S knows the last
--    transaction that it has sent and that was confirmed (src/publish/sent_commits.c); after a
--    restart of S it does not, and takes the confirmed position instead.  If P' begins before that, both
--    sides record the loss, and P' goes on.  A transaction of S that has changed nothing on P counts, too.
--    A synchronous standby prevents this case if the subscriptions have "synchronous_commit = on".
--
-- 3. An older state of P's files (a snapshot of the disk) is started instead of P.  S finds that its origin, or
--    what P's walsender has told it ("seen", src/next_leader.c), is beyond the end of P's WAL, if it connects before P
--    has written that much again.  The latter counts as well because P may have written nothing but what S had sent
--    it, which S does not send again.  Nobody knows where the snapshot ended, so the loss has no beginning, and S
--    neither follows P nor lets it follow, on whatever server P is then, until P is parted, or somebody says
--    that another server, which lacks nothing, has taken P's place (weft.accept_promotion).
--    P notes what S has found, stops sending to all others, and tells them when they connect, as it does nodes that
--    join: P may have written that much again by then.  The note stays until P has left the group, or all others have,
--    on servers that are made from P, too.  Somebody who connects to P while S tells it may not be told, but S comes
--    again every few seconds.  If P is started from the same state once more, and catches up before S comes, then it
--    does not know; nor does a standby that had not received the note.  S still does.
--
-- Lock order: a leader locks rows of weft.node_copy, then of weft.promotion_loss, for moments, and waits for no other
-- process meanwhile but those that lock the same rows.

CREATE TABLE weft.node_copy (
	identity uuid PRIMARY KEY,
	server text NOT NULL,
	generation integer NOT NULL,
	incarnation uuid NOT NULL,
	-- of the node: the server to which this node's replication origin for it belongs
	followed text,
	-- the node's generation when it last followed this node
	following_generation integer
);

COMMENT ON TABLE weft.node_copy IS
	'the servers that members are on: this one, and those that it has met';
REVOKE ALL ON weft.node_copy FROM PUBLIC;

CREATE TABLE weft.promotion_loss (
	node_name name NOT NULL,
	of_node name NOT NULL,
	generation integer NOT NULL,
	-- null if the timelines have nothing in common, or the node has an older state of its files
	from_lsn pg_lsn,
	until_lsn pg_lsn NOT NULL,
	server text NOT NULL,
	found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	accepted boolean NOT NULL,
	PRIMARY KEY (node_name, of_node, generation)
);

COMMENT ON TABLE weft.promotion_loss IS
	'transactions of a member that another one, or itself, lacks since its standby was promoted';
REVOKE ALL ON weft.promotion_loss FROM PUBLIC;

CREATE FUNCTION weft.forget_copy()
RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	DELETE FROM weft.node_copy WHERE identity = OLD.identity;
	DELETE FROM weft.promotion_loss WHERE OLD.node_name IN (node_name, of_node);
	-- The last member has what nobody else has; a node that leaves has no others, either.
	IF NOT EXISTS (SELECT FROM weft.node_entry WHERE NOT is_local) THEN
		DELETE FROM weft.promotion_loss;
	END IF;
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.forget_copy() IS
	'removes what is known of a member that is removed';
REVOKE ALL ON FUNCTION weft.forget_copy() FROM PUBLIC;

CREATE TRIGGER node_entry_copy_deleted AFTER DELETE ON weft.node_entry
	FOR EACH ROW EXECUTE FUNCTION weft.forget_copy();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_copy_deleted;

CREATE FUNCTION weft.sent_commit(slot name, until pg_lsn)
RETURNS pg_lsn
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_sent_commit';

COMMENT ON FUNCTION weft.sent_commit(name, pg_lsn) IS
	'where the last transaction ends that was sent through a slot and ends before a position, if that is known';
REVOKE ALL ON FUNCTION weft.sent_commit(name, pg_lsn) FROM PUBLIC;

CREATE FUNCTION weft.own_copy()
RETURNS weft.node_copy LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node uuid := (SELECT identity FROM weft.node_entry WHERE is_local);
	here text := (SELECT system_identifier || '/' || weft.server_timeline() FROM pg_control_system());
	result weft.node_copy;
	created boolean;
BEGIN
	SELECT * INTO result FROM weft.node_copy WHERE identity = node;
	IF result.server IS DISTINCT FROM here THEN
		-- Nobody may hear of an incarnation that a crash could take back.
		PERFORM set_config('synchronous_commit', 'local', true);
		INSERT INTO weft.node_copy AS c (identity, server, generation, incarnation)
			VALUES (node, here, 1, gen_random_uuid())
			ON CONFLICT (identity) DO UPDATE
			SET server = here, generation = c.generation + 1, incarnation = gen_random_uuid()
			WHERE c.server <> here;
		created := FOUND;
		SELECT * INTO result FROM weft.node_copy WHERE identity = node;
		IF created THEN
			RAISE LOG 'this server is generation % of node "%"', result.generation, weft.local_node();
		END IF;
	END IF;
	RETURN result;
END $$;

COMMENT ON FUNCTION weft.own_copy() IS
	'which copy of this node this server is';
REVOKE ALL ON FUNCTION weft.own_copy() FROM PUBLIC;

CREATE FUNCTION weft.publisher_of(subscription name)
RETURNS weft.node_entry LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT n.* FROM weft.node_entry n
	WHERE NOT n.is_local
		AND weft.subscription_name(weft.local_group(), n.node_name, weft.local_node()) = subscription
$$;

COMMENT ON FUNCTION weft.publisher_of(name) IS
	'the member that a subscription of this node follows';
REVOKE ALL ON FUNCTION weft.publisher_of(name) FROM PUBLIC;

CREATE FUNCTION weft.own_copy_for(subscription name, OUT server text, OUT generation integer,
	OUT incarnation uuid, OUT followed text)
RETURNS record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT own.server, own.generation, own.incarnation,
		(SELECT c.followed FROM weft.node_copy c
			WHERE c.identity = (weft.publisher_of(own_copy_for.subscription)).identity)
	FROM weft.own_copy() own
$$;

COMMENT ON FUNCTION weft.own_copy_for(name) IS
	'which copy this server is, and which one of the publisher it has followed';
REVOKE ALL ON FUNCTION weft.own_copy_for(name) FROM PUBLIC;

CREATE FUNCTION weft.refuse_old_copy(node name, node_identity uuid, node_server text,
	node_generation integer, node_incarnation uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	known weft.node_copy;
BEGIN
	SELECT * INTO known FROM weft.node_copy WHERE identity = node_identity;
	IF known.generation > node_generation
		OR known.generation = node_generation AND known.incarnation <> node_incarnation
	THEN
		RAISE EXCEPTION 'node "%" does not accept a copy of node "%" that was left behind',
			weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('The copy is generation %s, on timeline %s; node "%s" knows another one of generation %s, on timeline %s.',
					node_generation, split_part(node_server, '/', 2), weft.local_node(),
					known.generation, split_part(known.server, '/', 2)),
				HINT = 'Stop the old server, or make it a standby of the new one.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.refuse_old_copy(name, uuid, text, integer, uuid) IS
	'fails if another copy of a member is in use; changes nothing';
REVOKE ALL ON FUNCTION weft.refuse_old_copy(name, uuid, text, integer, uuid) FROM PUBLIC;

CREATE FUNCTION weft.meet_copy(node name, node_identity uuid, node_server text, node_generation integer,
	node_incarnation uuid)
RETURNS weft.node_copy LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	known weft.node_copy;
BEGIN
	SELECT * INTO known FROM weft.node_copy WHERE identity = node_identity;
	IF known.incarnation IS DISTINCT FROM node_incarnation THEN
		INSERT INTO weft.node_copy AS c (identity, server, generation, incarnation)
			VALUES (node_identity, node_server, node_generation, node_incarnation)
			ON CONFLICT (identity) DO UPDATE
			SET server = node_server, generation = node_generation, incarnation = node_incarnation
			WHERE c.generation < node_generation;
		PERFORM weft.refuse_old_copy(node, node_identity, node_server, node_generation, node_incarnation);
		SELECT * INTO known FROM weft.node_copy WHERE identity = node_identity;
		IF known.generation > 1 THEN
			RAISE LOG 'node "%" is generation % now, on timeline %', node, known.generation,
				split_part(known.server, '/', 2);
		END IF;
	END IF;
	RETURN known;
END $$;

COMMENT ON FUNCTION weft.meet_copy(name, uuid, text, integer, uuid) IS
	'notes which copy of another member is in use; fails if it was left behind';
REVOKE ALL ON FUNCTION weft.meet_copy(name, uuid, text, integer, uuid) FROM PUBLIC;

CREATE FUNCTION weft.record_loss(node name, of_node name, generation integer, from_lsn pg_lsn,
	until_lsn pg_lsn, server text, accepted boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	INSERT INTO weft.promotion_loss (node_name, of_node, generation, from_lsn, until_lsn, server, accepted)
		VALUES (node, record_loss.of_node, record_loss.generation, record_loss.from_lsn,
			record_loss.until_lsn, record_loss.server, record_loss.accepted)
		-- What was accepted says nothing about what it lacks now.
		ON CONFLICT ON CONSTRAINT promotion_loss_pkey DO UPDATE
			SET from_lsn = excluded.from_lsn, until_lsn = excluded.until_lsn, server = excluded.server,
				found_at = excluded.found_at, accepted = false
			WHERE promotion_loss.accepted AND NOT excluded.accepted;
	IF FOUND THEN
		RAISE LOG 'node "%" was promoted or restored, and may lack transactions of node "%" between % and %',
			node, of_node, coalesce(from_lsn::text, 'an unknown position'), until_lsn
			USING HINT = 'weft.health() says what to do.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.record_loss(name, name, integer, pg_lsn, pg_lsn, text, boolean) IS
	'records that a promoted member lacks transactions';
REVOKE ALL ON FUNCTION weft.record_loss(name, name, integer, pg_lsn, pg_lsn, text, boolean) FROM PUBLIC;

CREATE FUNCTION weft.stop_sending(node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots s
		WHERE s.active AND s.slot_name = weft.subscription_name(weft.local_group(), weft.local_node(), node);
EXCEPTION WHEN insufficient_privilege THEN
	RAISE LOG 'node "%" goes on following node "%": %', node, weft.local_node(), SQLERRM;
END $$;

COMMENT ON FUNCTION weft.stop_sending(name) IS
	'ends the walsender that sends to a member, which connects again and learns why';
REVOKE ALL ON FUNCTION weft.stop_sending(name) FROM PUBLIC;

-- On the publisher, called by the leader of a subscriber.  "seen": how far the server "followed" has sent its WAL to
-- that node, as far as it remembers.
CREATE FUNCTION weft.member_meet(node_identity uuid, node_server text, node_generation integer,
	node_incarnation uuid, applied pg_lsn, followed text, seen pg_lsn,
	OUT server text, OUT generation integer, OUT incarnation uuid,
	OUT ended pg_lsn, OUT other_branch boolean, OUT lost_until pg_lsn)
RETURNS record LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	own weft.node_copy := weft.own_copy();
	node name := (SELECT n.node_name FROM weft.node_entry n WHERE n.identity = node_identity AND NOT n.is_local);
	known weft.node_copy;
	slot record;
	sent pg_lsn;
BEGIN
	-- The commit must not wait for a synchronous standby, which may be the very subscription that is about to start.
	PERFORM set_config('synchronous_commit', 'local', true);
	IF node IS NULL THEN
		RAISE EXCEPTION 'node "%" knows no other node with this identity', weft.local_node()
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'It may have been removed from the group.';
	END IF;
	known := weft.meet_copy(node, node_identity, node_server, node_generation, node_incarnation);
	server := own.server;
	generation := own.generation;
	incarnation := own.incarnation;
	other_branch := false;
	IF followed <> own.server AND split_part(followed, '/', 1) = split_part(own.server, '/', 1) THEN
		ended := weft.timeline_end(split_part(followed, '/', 2)::integer);
		other_branch := ended IS NULL;
	END IF;
	IF weft.is_set_back(node) THEN
		RAISE EXCEPTION 'node "%" was promoted or restored without transactions of its own that node "%" has',
				node, weft.local_node()
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Part that node with weft.part_node(..., force => true), and let it join again.';
	END IF;

	IF known.following_generation < node_generation THEN
		SELECT * INTO slot FROM pg_replication_slots s
			WHERE s.slot_name = weft.subscription_name(weft.local_group(), weft.local_node(), node);
		IF slot.active THEN
			RAISE EXCEPTION 'replication slot "%" is active for PID %', slot.slot_name, slot.active_pid
				USING ERRCODE = 'object_in_use';
		END IF;
		sent := coalesce(weft.sent_commit(slot.slot_name, slot.confirmed_flush_lsn), slot.confirmed_flush_lsn);
		IF sent > applied THEN
			lost_until := sent;
		END IF;
	END IF;
	IF known.following_generation IS DISTINCT FROM node_generation THEN
		UPDATE weft.node_copy c SET following_generation = node_generation WHERE c.identity = node_identity;
	END IF;
	IF lost_until IS NOT NULL THEN
		PERFORM weft.record_loss(node, weft.local_node(), node_generation, applied, lost_until, node_server, true);
	END IF;

	-- This server was started from an older state of its files: nobody knows where that ended, or what was made from it.
	IF followed = own.server AND greatest(applied, seen) > pg_current_wal_flush_lsn() THEN
		PERFORM weft.record_loss(weft.local_node(), weft.local_node(), own.generation, NULL, greatest(applied, seen),
			own.server, false);
	END IF;
	IF weft.is_set_back(weft.local_node()) THEN
		ended := NULL;
		other_branch := true;
		PERFORM weft.stop_sending(n.node_name) FROM weft.node_entry n WHERE NOT n.is_local;
	ELSIF ended IS NULL AND applied > pg_current_wal_flush_lsn() THEN
		other_branch := true;
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_meet(uuid, text, integer, uuid, pg_lsn, text, pg_lsn) IS
	'makes this node and one that follows it look whether the other one was promoted';
REVOKE ALL ON FUNCTION weft.member_meet(uuid, text, integer, uuid, pg_lsn, text, pg_lsn) FROM PUBLIC;

-- On the subscriber, with what weft.member_meet has returned.  Returns why it must not follow the publisher.
CREATE FUNCTION weft.note_publisher(subscription name, applied pg_lsn,
	server text, generation integer, incarnation uuid,
	ended pg_lsn, other_branch boolean, lost_until pg_lsn)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	publisher weft.node_entry := weft.publisher_of(subscription);
	node name := publisher.node_name;
	own weft.node_copy := weft.own_copy();
	known weft.node_copy := weft.meet_copy(node, publisher.identity, server, generation, incarnation);
BEGIN
	IF lost_until IS NOT NULL THEN
		PERFORM weft.record_loss(weft.local_node(), node, own.generation, applied, lost_until, own.server, true);
	END IF;
	IF other_branch THEN
		-- It lacks them on this server, too.
		DELETE FROM weft.promotion_loss l WHERE l.node_name = node AND l.of_node = node AND l.from_lsn IS NULL
			AND NOT l.accepted AND l.generation < note_publisher.generation;
	END IF;
	IF other_branch OR applied > ended THEN
		PERFORM weft.record_loss(node, node, generation, ended, applied, server, false);
	END IF;
	-- What was found once holds, though the node's WAL may have reached that position since.
	IF other_branch OR applied > ended OR weft.is_set_back(node) THEN
		-- It may have begun to follow this node before that was known: it meets this node again, and is told.
		IF weft.is_set_back(node) THEN
			PERFORM weft.stop_sending(node);
		END IF;
		RETURN format('node "%s" was promoted or restored without transactions of its own that are applied here, up to %s', node, applied);
	END IF;
	IF known.followed IS DISTINCT FROM server THEN
		UPDATE weft.node_copy c SET followed = note_publisher.server WHERE c.identity = publisher.identity;
	END IF;
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.note_publisher(name, pg_lsn, text, integer, uuid, pg_lsn, boolean, pg_lsn) IS
	'notes which copy of a member this node follows; returns why it must not';
REVOKE ALL ON FUNCTION weft.note_publisher(name, pg_lsn, text, integer, uuid, pg_lsn, boolean, pg_lsn) FROM PUBLIC;

-- On a member M that another node copies, while M applies nothing of the member that is asked for: what M knows of
-- that one, and to which server M's position for it belongs.  Null if they have not met.
CREATE FUNCTION weft.member_copy_of(node name)
RETURNS jsonb LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT to_jsonb(c) FROM weft.node_copy c JOIN weft.node_entry n ON n.identity = c.identity
	WHERE n.node_name = node
$$;

COMMENT ON FUNCTION weft.member_copy_of(name) IS
	'which copy of a member this node has followed, for a node that continues from here';
REVOKE ALL ON FUNCTION weft.member_copy_of(name) FROM PUBLIC;

-- On the node that copies M, with what M has answered.  If a member fails over before this node meets it, the
-- positions that came from M are beyond the end of its old timeline in the same way as M's are.
CREATE FUNCTION weft.join_note_position(node name, copy jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node_identity uuid := copy ->> 'identity';
BEGIN
	PERFORM weft.check_identity(node, node_identity);
	PERFORM weft.meet_copy(node, node_identity, copy ->> 'server', (copy ->> 'generation')::integer,
		(copy ->> 'incarnation')::uuid);
	UPDATE weft.node_copy c SET followed = copy ->> 'followed' WHERE c.identity = node_identity;
END $$;

COMMENT ON FUNCTION weft.join_note_position(name, jsonb) IS
	'step of a join: notes to which copy of a member the position belongs that was copied';
REVOKE ALL ON FUNCTION weft.join_note_position(name, jsonb) FROM PUBLIC;

CREATE FUNCTION weft.start_apply(subid oid)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_start_apply';

COMMENT ON FUNCTION weft.start_apply(oid) IS
	'starts the apply worker of a subscription at once, even if the last one has just failed';
REVOKE ALL ON FUNCTION weft.start_apply(oid) FROM PUBLIC;

-- Slots with the option "failover".

CREATE FUNCTION weft.alter_slot_failover(dsn text, node text, slot name, failover boolean)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_alter_slot_failover';

COMMENT ON FUNCTION weft.alter_slot_failover(text, text, name, boolean) IS
	'sets the option "failover" of a slot on another member';
REVOKE ALL ON FUNCTION weft.alter_slot_failover(text, text, name, boolean) FROM PUBLIC;

-- What a member's standby lacks must not be confirmed to a node that joins later either.
CREATE FUNCTION weft.member_synchronous_commit()
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT min(s.subsynccommit) FROM weft.node_entry n
		JOIN pg_subscription s ON s.oid = weft.local_subscription(n.node_name)
	WHERE NOT n.is_local
	HAVING count(DISTINCT s.subsynccommit) = 1
$$;

COMMENT ON FUNCTION weft.member_synchronous_commit() IS
	'the setting that all subscriptions of this node to others have in common';
REVOKE ALL ON FUNCTION weft.member_synchronous_commit() FROM PUBLIC;

CREATE FUNCTION weft.set_subscription_failover(subid oid, failover boolean)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_set_subscription_failover';

COMMENT ON FUNCTION weft.set_subscription_failover(oid, boolean) IS
	'notes that the slot of a subscription has the option "failover", or not';
REVOKE ALL ON FUNCTION weft.set_subscription_failover(oid, boolean) FROM PUBLIC;

-- A joining node takes the option from its target.
CREATE FUNCTION weft.member_set_failover(failover boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF EXISTS (SELECT FROM weft.node_entry WHERE state <> 'active') THEN
		RAISE EXCEPTION 'another node is joining or parting'
			USING ERRCODE = 'object_in_use',
				HINT = 'Look at weft.node; wait until that node has finished, or call weft.part_node for it.';
	END IF;
	UPDATE weft.node_group_entry SET failover = member_set_failover.failover;
END $$;

COMMENT ON FUNCTION weft.member_set_failover(boolean) IS
	'sets the option "failover" for slots that are created from now on';
REVOKE ALL ON FUNCTION weft.member_set_failover(boolean) FROM PUBLIC;

-- On the subscriber.  Its leader has ended and cannot return before this session ends, whatever ends it
-- (weft.member_hold).  Therefore nothing has to be repaired after a crash.
CREATE FUNCTION weft.member_alter_link(from_node name, failover boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subid oid := weft.local_subscription(from_node);
	subscription name := weft.subscription_name(weft.local_group(), from_node, weft.local_node());
	dsn text := weft.node_dsn(from_node);
BEGIN
	IF subid IS NULL THEN
		RAISE EXCEPTION 'node "%" has no subscription to node "%"', weft.local_node(), from_node
			USING ERRCODE = 'undefined_object';
	END IF;
	IF weft.node_query(dsn, from_node, format('SELECT s.failover FROM pg_replication_slots s WHERE slot_name = %L',
			subscription))::boolean IS DISTINCT FROM failover
	THEN
		PERFORM weft.member_hold(from_node);
		PERFORM weft.alter_slot_failover(dsn, from_node, subscription, failover);
	END IF;
	PERFORM weft.set_subscription_failover(subid, failover);
END $$;

COMMENT ON FUNCTION weft.member_alter_link(name, boolean) IS
	'sets the option "failover" of the slot through which this node follows another one';
REVOKE ALL ON FUNCTION weft.member_alter_link(name, boolean) FROM PUBLIC;

-- A leader that still tries to connect with what was valid before is ended.
CREATE FUNCTION weft.member_start_apply(from_node name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	subid oid := weft.local_subscription(from_node);
BEGIN
	IF subid IS NOT NULL THEN
		PERFORM pg_terminate_backend(pid) FROM pg_stat_get_subscription(subid)
			WHERE pid IS NOT NULL AND last_msg_receipt_time IS NULL;
		PERFORM weft.start_apply(subid);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_start_apply(name) IS
	'makes this node connect to another one at once';
REVOKE ALL ON FUNCTION weft.member_start_apply(name) FROM PUBLIC;

CREATE FUNCTION weft.alter_group_failover(node_group name, failover boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.member[] := ARRAY(SELECT n FROM weft.member n ORDER BY n.node_id);
	publisher weft.member;
	subscriber weft.member;
BEGIN
	PERFORM weft.query_group(node_group, format('SELECT weft.member_set_failover(%L)', failover));
	FOREACH publisher IN ARRAY members LOOP
		FOREACH subscriber IN ARRAY members LOOP
			CONTINUE WHEN subscriber.node_name = publisher.node_name;
			PERFORM weft.node_query(subscriber.dsn, subscriber.node_name,
				format('SELECT weft.member_alter_link(%L, %L)', publisher.node_name, failover));
			PERFORM weft.node_query(subscriber.dsn, subscriber.node_name,
				format('SELECT weft.member_start_apply(%L)', publisher.node_name));
		END LOOP;
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.alter_group_failover(name, boolean) IS
	'sets the option "failover" of all slots of a node group, one after another';
REVOKE ALL ON FUNCTION weft.alter_group_failover(name, boolean) FROM PUBLIC;

CREATE FUNCTION weft.alter_node_group_config(node_group_name name, num_writers integer DEFAULT NULL,
	failover boolean DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF num_writers NOT BETWEEN 1 AND 64 THEN
		RAISE EXCEPTION 'invalid number of writers: %', num_writers
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a number from 1 to 64.';
	END IF;
	IF num_writers IS NOT NULL OR failover IS NULL THEN
		PERFORM weft.query_group(node_group_name,
			format('SELECT weft.member_configure(%L)', num_writers));
	END IF;
	IF failover IS NOT NULL THEN
		PERFORM weft.alter_group_failover(node_group_name, failover);
	END IF;
END $$;

COMMENT ON FUNCTION weft.alter_node_group_config(name, integer, boolean) IS
	'sets the number of writers of all subscriptions of a node group, and whether its slots are synchronized to standbys';
REVOKE ALL ON FUNCTION weft.alter_node_group_config(name, integer, boolean) FROM PUBLIC;

-- The address of a member.

CREATE FUNCTION weft.set_subscription_dsn(subscription name, node text, dsn text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_set_subscription_dsn';

COMMENT ON FUNCTION weft.set_subscription_dsn(name, text, text) IS
	'changes the connection string of a subscription to a member';
REVOKE ALL ON FUNCTION weft.set_subscription_dsn(name, text, text) FROM PUBLIC;

-- Which copy of which node answers at an address.  SECURITY DEFINER, since this reads weft.node_copy.
CREATE FUNCTION weft.member_at_address()
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RETURN jsonb_build_object('standby', true);
	END IF;
	RETURN to_jsonb(weft.own_copy());
END $$;

COMMENT ON FUNCTION weft.member_at_address() IS
	'which copy of this node this server is, or that it is a standby';
REVOKE ALL ON FUNCTION weft.member_at_address() FROM PUBLIC;

CREATE FUNCTION weft.check_address(node name, node_identity uuid, dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	found jsonb := weft.node_query(dsn, node, 'SELECT weft.member_at_address()')::jsonb;
BEGIN
	IF found ->> 'identity' IS DISTINCT FROM node_identity::text THEN
		RAISE EXCEPTION 'the connection string of node "%" points to %', node,
			CASE WHEN found ? 'standby' THEN 'a standby' ELSE 'another node' END
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	-- Nothing is noted: the session that calls the members would keep a lock that one of them waits for.
	IF node <> weft.local_node() THEN
		PERFORM weft.refuse_old_copy(node, node_identity, found ->> 'server', (found ->> 'generation')::integer,
			(found ->> 'incarnation')::uuid);
	END IF;
END $$;

COMMENT ON FUNCTION weft.check_address(name, uuid, text) IS
	'fails unless a connection string leads to a node';
REVOKE ALL ON FUNCTION weft.check_address(name, uuid, text) FROM PUBLIC;

CREATE FUNCTION weft.member_set_interface()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.arriving_node;
	subscription name;
BEGIN
	DELETE FROM weft.arriving_node RETURNING * INTO STRICT node;
	PERFORM weft.check_identity(node.node_name, node.identity);
	PERFORM weft.check_address(node.node_name, node.identity, node.dsn);
	PERFORM weft.set_node_dsn(node.node_name, node.dsn);
	subscription := (SELECT s.subname FROM pg_subscription s WHERE s.oid = weft.local_subscription(node.node_name));
	IF subscription IS NOT NULL THEN
		PERFORM weft.set_subscription_dsn(subscription, node.node_name, node.dsn);
	END IF;
END $$;

COMMENT ON FUNCTION weft.member_set_interface() IS
	'takes over the new address of a member; fails if this one cannot connect to it there';
REVOKE ALL ON FUNCTION weft.member_set_interface() FROM PUBLIC;

CREATE FUNCTION weft.alter_node_interface(node_name name, interface_dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node weft.node_entry;
	member weft.member;
	line text;
	failures text[] := '{}';
	names text[] := '{}';
BEGIN
	IF node_name IS NULL OR interface_dsn IS NULL THEN
		RAISE EXCEPTION 'argument must not be null' USING ERRCODE = 'null_value_not_allowed';
	END IF;
	SELECT * INTO node FROM weft.node_entry n WHERE n.node_name = alter_node_interface.node_name;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'this database knows no node "%"', node_name USING ERRCODE = 'undefined_object';
	END IF;
	PERFORM weft.check_address(node.node_name, node.identity, interface_dsn);
	line := (SELECT string_agg(regexp_replace(field, '([\\\t\n\r])', '\\\1', 'g'), E'\t' ORDER BY i)
		FROM unnest(ARRAY[node.node_name::text, coalesce(node.node_id, 0)::text, node.identity::text, interface_dsn])
			WITH ORDINALITY f(field, i)) || E'\n';
	FOR member IN SELECT * FROM weft.member ORDER BY node_id LOOP
		IF member.node_name = node.node_name THEN
			member.dsn := interface_dsn;
		END IF;
		BEGIN
			PERFORM weft.node_send(member.dsn, member.node_name,
				'COPY weft.arriving_node FROM STDIN', line, 'SELECT weft.member_set_interface()');
			PERFORM weft.node_query(member.dsn, member.node_name,
				format('SELECT weft.member_start_apply(%L)', node.node_name));
		EXCEPTION
			WHEN protocol_violation THEN
				-- The message of a failed COPY would show the line, with the connection string.
				names := names || member.node_name::text;
				failures := failures || format('node "%s" did not accept it', member.node_name);
			WHEN OTHERS THEN
				names := names || member.node_name::text;
				failures := failures || SQLERRM;
		END;
	END LOOP;
	IF names <> '{}' THEN
		RAISE EXCEPTION 'could not tell the address of node "%" to: %', node_name, array_to_string(names, ', ')
			USING ERRCODE = 'connection_failure',
				DETAIL = array_to_string(failures, E'\n'),
				HINT = 'All others have it. Call weft.alter_node_interface again when these can be reached.';
	END IF;
END $$;

COMMENT ON FUNCTION weft.alter_node_interface(name, text) IS
	'tells all members the connection string under which a member can be reached from now on';
REVOKE ALL ON FUNCTION weft.alter_node_interface(name, text) FROM PUBLIC;
