-- The lock of a node group for a schema change.  src/gate.c has the protocol.

CREATE FUNCTION weft.ddl_gate_open(lock bigint, requester name, request integer, tables oid[],
	timeout integer)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gate_open';

COMMENT ON FUNCTION weft.ddl_gate_open(bigint, name, integer, oid[], integer) IS
	'begins to hold back local writers of tables, for a schema change of a member; false: not yet';
REVOKE ALL ON FUNCTION weft.ddl_gate_open(bigint, name, integer, oid[], integer) FROM PUBLIC;

CREATE FUNCTION weft.ddl_gate_closed(lock bigint, timeout integer)
RETURNS bigint
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gate_closed';

COMMENT ON FUNCTION weft.ddl_gate_closed(bigint, integer) IS
	'waits until no local transaction that has written to the tables is open; null: not yet';
REVOKE ALL ON FUNCTION weft.ddl_gate_closed(bigint, integer) FROM PUBLIC;

CREATE FUNCTION weft.ddl_gate_confirm(lock bigint, round bigint, local_node name)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gate_confirm';

COMMENT ON FUNCTION weft.ddl_gate_confirm(bigint, bigint, name) IS
	'makes a lock independent of the connection of its requester';
REVOKE ALL ON FUNCTION weft.ddl_gate_confirm(bigint, bigint, name) FROM PUBLIC;

CREATE FUNCTION weft.ddl_gate_is_open(lock bigint)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gate_is_open';

COMMENT ON FUNCTION weft.ddl_gate_is_open(bigint) IS
	'does a lock exist here?';
REVOKE ALL ON FUNCTION weft.ddl_gate_is_open(bigint) FROM PUBLIC;

CREATE FUNCTION weft.ddl_gate_any()
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gate_any';

COMMENT ON FUNCTION weft.ddl_gate_any() IS
	'does a schema change of the node group lock tables here?';
REVOKE ALL ON FUNCTION weft.ddl_gate_any() FROM PUBLIC;

CREATE FUNCTION weft.ddl_gates(OUT lock bigint, OUT node name, OUT tables oid[], OUT state text,
	OUT since timestamptz, OUT pid integer)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_ddl_gates';

COMMENT ON FUNCTION weft.ddl_gates() IS
	'schema changes of the node group that lock tables here, or want to';
REVOKE ALL ON FUNCTION weft.ddl_gates() FROM PUBLIC;

-- What other members call.  A function that waits has a snapshot, and CREATE INDEX CONCURRENTLY waits
-- for that.  Therefore such a function returns after a while, and is called again.

CREATE FUNCTION weft.member_ddl_gate(lock bigint, requester name, request integer, tables text[],
	timeout integer)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM weft.node_entry WHERE node_name = requester) THEN
		RAISE EXCEPTION 'node "%" knows no node "%"', weft.local_node(), requester
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	-- A table may have partitions here that the requester does not know yet.
	RETURN weft.ddl_gate_open(lock, requester, request,
		ARRAY(WITH RECURSIVE found(t) AS (
				SELECT to_regclass(n)::oid FROM unnest(tables) n WHERE to_regclass(n) IS NOT NULL
				UNION SELECT inhrelid FROM pg_inherits JOIN found ON inhparent = t)
			SELECT t FROM found), timeout);
END $$;

COMMENT ON FUNCTION weft.member_ddl_gate(bigint, name, integer, text[], integer) IS
	'step of a schema change: waits for others, and begins to hold back local writers of its tables; false: not yet';
REVOKE ALL ON FUNCTION weft.member_ddl_gate(bigint, name, integer, text[], integer) FROM PUBLIC;

CREATE FUNCTION weft.member_ddl_closed(lock bigint, requester_pid integer, timeout integer,
	OUT round text, OUT lsn text)
RETURNS record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	round := weft.ddl_gate_closed(lock, timeout);
	IF round IS NULL THEN
		IF requester_pid <> 0 AND EXISTS (WITH RECURSIVE waiting(process) AS
				(SELECT g.pid FROM weft.ddl_gates() g WHERE g.lock = member_ddl_closed.lock
					UNION SELECT unnest(pg_blocking_pids(process)) FROM waiting)
			SELECT FROM waiting WHERE process = requester_pid)
		THEN
			RAISE EXCEPTION 'a session that has changed the tables waits for the transaction of the schema change'
				USING ERRCODE = 'deadlock_detected', HINT = 'Retry the transaction.';
		END IF;
		RETURN;
	END IF;
	lsn := pg_logical_emit_message(false, 'weft', 'ddl', true);
END $$;

COMMENT ON FUNCTION weft.member_ddl_closed(bigint, integer, integer) IS
	'step of a schema change: waits until local writers are held back; returns the position of the last row; null: not yet';
REVOKE ALL ON FUNCTION weft.member_ddl_closed(bigint, integer, integer) FROM PUBLIC;

CREATE FUNCTION weft.applied_position(subscription oid)
RETURNS pg_lsn
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_applied_position';

COMMENT ON FUNCTION weft.applied_position(oid) IS
	'the position up to which a subscription is applied';
REVOKE ALL ON FUNCTION weft.applied_position(oid) FROM PUBLIC;

CREATE FUNCTION weft.member_ddl_applied(positions jsonb, requester_pid integer, timeout integer)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	slice constant integer := 500;
	until timestamptz := clock_timestamp() + least(timeout, slice) * interval '1 ms';
	own name := weft.local_node();
	behind record;
BEGIN
	LOOP
		SELECT n.node_name, s.subenabled AS enabled, s.subname INTO behind
			FROM weft.node_entry n
				LEFT JOIN pg_subscription s ON s.oid = weft.local_subscription(n.node_name)
			WHERE NOT n.is_local AND positions ? n.node_name
				AND (s.oid IS NULL
					OR weft.applied_position(s.oid) < (positions ->> n.node_name)::pg_lsn)
			ORDER BY n.node_id LIMIT 1;
		IF NOT FOUND THEN
			RETURN true;
		END IF;
		IF behind.enabled IS NOT TRUE THEN
			RAISE EXCEPTION 'node "%" does not apply changes of node "%"', own, behind.node_name
				USING ERRCODE = 'object_not_in_prerequisite_state',
					DETAIL = CASE WHEN behind.subname IS NULL THEN 'There is no subscription.'
						ELSE format('Subscription "%s" is disabled.', behind.subname) END,
					HINT = 'A schema change that locks tables needs all members.';
		END IF;
		IF clock_timestamp() > until THEN
			IF requester_pid <> 0 AND EXISTS (WITH RECURSIVE waiting(process) AS
					(SELECT a.pid FROM pg_stat_activity a
						WHERE a.datname = current_database() AND a.wait_event_type = 'Lock' AND a.backend_type IN
							('weft writer', 'weft stream writer', 'logical replication apply worker')
						UNION SELECT unnest(pg_blocking_pids(process)) FROM waiting)
				SELECT FROM waiting WHERE process = requester_pid)
			THEN
				RAISE EXCEPTION 'the transaction of the schema change holds a lock that changes of node "%" need', behind.node_name
					USING ERRCODE = 'deadlock_detected',
						HINT = 'Retry the transaction, make the schema change in one of its own, or set weft.ddl_lock to always before its first schema change.';
			ELSIF timeout > slice THEN
				RETURN false;
			END IF;
			RAISE EXCEPTION 'timed out waiting for node "%" to apply changes of node "%"', own, behind.node_name
				USING ERRCODE = 'lock_not_available',
					HINT = 'View weft.node_replication there shows the cause.';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.member_ddl_applied(jsonb, integer, integer) IS
	'step of a schema change: waits until this node has applied what others had written; false: not yet';
REVOKE ALL ON FUNCTION weft.member_ddl_applied(jsonb, integer, integer) FROM PUBLIC;

CREATE FUNCTION weft.member_ddl_confirm(lock bigint, round bigint)
RETURNS boolean LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT weft.ddl_gate_confirm(lock, round, weft.local_node()) $$;

COMMENT ON FUNCTION weft.member_ddl_confirm(bigint, bigint) IS
	'step of a schema change: holds back local writers until its outcome is known; false if some have slipped through';
REVOKE ALL ON FUNCTION weft.member_ddl_confirm(bigint, bigint) FROM PUBLIC;

-- SECURITY DEFINER, since nobody may read the table.
CREATE FUNCTION weft.member_ddl_outcome(lock bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF weft.ddl_gate_is_open(lock) THEN
		RETURN 'open';
	END IF;
	-- The row was visible before the lock ended.
	IF EXISTS (SELECT FROM weft.ddl_queue q
		WHERE (q.message ->> 'lock')::bigint = member_ddl_outcome.lock)
	THEN
		RETURN pg_logical_emit_message(false, 'weft', 'ddl', true);
	END IF;
	RETURN 'aborted';
END $$;

COMMENT ON FUNCTION weft.member_ddl_outcome(bigint) IS
	'what has become of a schema change of this node: open, aborted, or a position after its commit';
REVOKE ALL ON FUNCTION weft.member_ddl_outcome(bigint) FROM PUBLIC;

CREATE VIEW weft.ddl_lock_status AS
	SELECT g.lock, g.node,
		ARRAY(SELECT t::regclass::text FROM unnest(g.tables) t) AS tables,
		g.state, g.since,
		CASE WHEN g.state = 'waiting'
			THEN (SELECT 'node ' || h.node FROM weft.ddl_gates() h
				WHERE h.state <> 'waiting' LIMIT 1)
			WHEN g.state = 'closing' AND cardinality(pg_catalog.pg_blocking_pids(g.pid)) > 0
			THEN 'sessions ' || pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(g.pid), ', ')
			WHEN g.state = 'confirmed' THEN 'schema change of node ' || g.node
			END AS waits_for
	FROM weft.ddl_gates() g;

COMMENT ON VIEW weft.ddl_lock_status IS
	'schema changes of the node group that lock tables on this node, or want to';
REVOKE ALL ON weft.ddl_lock_status FROM PUBLIC;
