-- The steps of a join that make a physical copy of a member a member of its own; 15-physical-copy.sql tells how.

CREATE FUNCTION weft.join_step_make_copy_slots()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1min'
AS $$
DECLARE
	prepared weft.prepared_copy := weft.pending_copy();
	slot name;
BEGIN
	-- Those that the member keeps on its standbys.
	PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s, weft.node_entry n
		WHERE s.database = current_database() AND NOT n.is_local
			AND s.slot_name = weft.subscription_name(weft.local_group(), weft.local_node(), n.node_name);
	FOR slot IN SELECT weft.subscription_name(weft.local_group(), prepared.node_name, n.node_name)
		FROM weft.node_entry n WHERE n.node_name <> prepared.node_name ORDER BY n.node_id
	LOOP
		IF EXISTS (SELECT FROM pg_replication_slots
			WHERE slot_name = slot AND database IS DISTINCT FROM current_database())
		THEN
			RAISE EXCEPTION 'the server of node "%" already has a slot "%", in another database',
				prepared.node_name, slot
				USING ERRCODE = 'duplicate_object';
		END IF;
		PERFORM pg_create_logical_replication_slot(slot, weft.output_plugin(),
				failover => (SELECT g.failover FROM weft.node_group_entry g))
			WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = slot);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.join_step_make_copy_slots() IS
	'step of a join from a backup: creates slots for the other members';
REVOKE ALL ON FUNCTION weft.join_step_make_copy_slots() FROM PUBLIC;

CREATE FUNCTION weft.rename_applied(old_name name, new_name name)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_rename_applied';

COMMENT ON FUNCTION weft.rename_applied(name, name) IS
	'step of a join from a backup: what is known of schema changes of a subscription is known of another name';
REVOKE ALL ON FUNCTION weft.rename_applied(name, name) FROM PUBLIC;

CREATE FUNCTION weft.complete_tombstones()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_complete_tombstones';

COMMENT ON FUNCTION weft.complete_tombstones() IS
	'step of a join from a backup: rows that sessions have deleted before are those of the node that was copied';
REVOKE ALL ON FUNCTION weft.complete_tombstones() FROM PUBLIC;

-- SECURITY DEFINER: the role that manages the node need not have rights on the tables.  Whoever has written to
-- a table has ended; a transaction that is running, or begins later, is this node's, and is sent through its slots.
CREATE FUNCTION weft.adopt_copied_rows(prepared weft.prepared_copy, source_id integer)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
DECLARE
	relation regclass;
	own numeric;
BEGIN
	-- On any other server, rows would get another node's name.
	PERFORM weft.check_copy_history();
	FOR relation IN SELECT r FROM weft.group_tables() r LOOP
		EXECUTE format('LOCK TABLE ONLY %s IN SHARE MODE', relation);
	END LOOP;
	PERFORM weft.check_copy_contents(prepared);
	PERFORM weft.complete_tombstones();
	own := pg_current_xact_id()::text::numeric;
	PERFORM pg_stat_clear_snapshot();
	-- Prepared transactions, which may be the copied node's in other databases, have no session.
	INSERT INTO weft.past_origin
		SELECT 0, source_id, (own - coalesce(max(older), 0))::text::xid8
		FROM (SELECT (own - backend_xid::text::numeric) % 4294967296 AS older FROM pg_stat_activity) running
		WHERE older < 2147483648;
	DELETE FROM weft.prepared_copy;
	-- If somebody has asked this server which copy of the member it is, it is a later one in its own eyes.
	DELETE FROM weft.node_copy c USING weft.node_entry n
		WHERE n.is_local AND c.identity = n.identity
			AND c.server = (SELECT system_identifier || '/' || weft.server_timeline() FROM pg_control_system());
	UPDATE weft.node_copy c
		SET followed = (SELECT system_identifier || '/' || prepared.timeline FROM pg_control_system())
		FROM weft.node_entry n WHERE n.is_local AND c.identity = n.identity;
END $$;

COMMENT ON FUNCTION weft.adopt_copied_rows(weft.prepared_copy, integer) IS
	'step of a join from a backup: rows that sessions have written before are those of the node that was copied';
REVOKE ALL ON FUNCTION weft.adopt_copied_rows(weft.prepared_copy, integer) FROM PUBLIC;

CREATE FUNCTION weft.take_over_subscription(old_name name, new_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', old_name);
	EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = %L)', old_name, new_name);
	EXECUTE format('ALTER SUBSCRIPTION %I RENAME TO %I', old_name, new_name);
	UPDATE weft.conflict_node SET subname = new_name WHERE subname = old_name;
	UPDATE weft.conflict_resolver SET subname = new_name WHERE subname = old_name;
	PERFORM weft.rename_applied(old_name, new_name);
END $$;

COMMENT ON FUNCTION weft.take_over_subscription(name, name) IS
	'step of a join from a backup: a subscription of the node that was copied becomes one of this node';
REVOKE ALL ON FUNCTION weft.take_over_subscription(name, name) FROM PUBLIC;

CREATE FUNCTION weft.join_step_become()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1min'
AS $$
DECLARE
	prepared weft.prepared_copy := weft.check_copy_history();
	behind pg_lsn := weft.timeline_end(prepared.timeline);
	source weft.node_entry;
	own weft.node_entry;
	other name;
BEGIN
	SELECT * INTO STRICT source FROM weft.node_entry WHERE is_local;
	SELECT * INTO STRICT own FROM weft.node_entry WHERE identity = prepared.identity;
	PERFORM weft.adopt_copied_rows(prepared, source.node_id);
	FOREACH other IN ARRAY ARRAY(SELECT n.node_name FROM weft.node_entry n
		WHERE NOT n.is_local AND weft.local_subscription(n.node_name) IS NOT NULL)
	LOOP
		PERFORM weft.take_over_subscription(weft.subscription_name(weft.local_group(), other, source.node_name),
			weft.subscription_name(weft.local_group(), other, own.node_name));
	END LOOP;
	UPDATE weft.node_entry SET start_lsn = NULL WHERE start_lsn IS NOT NULL;
	UPDATE weft.node_entry SET is_local = false, start_lsn = behind, copied_lsn = behind
		WHERE identity = source.identity;
	-- Schema changes of the copied node are behind where it may have begun itself (src/ddl/unseen.c).
	UPDATE weft.node_entry SET is_local = true, start_lsn = behind, copied_lsn = source.start_lsn
		WHERE identity = own.identity;
	INSERT INTO weft.conflict_node VALUES ('', own.node_id)
		ON CONFLICT (subname) DO UPDATE SET node_id = excluded.node_id;
END $$;

COMMENT ON FUNCTION weft.join_step_become() IS
	'step of a join from a backup: this server becomes the node that was prepared';
REVOKE ALL ON FUNCTION weft.join_step_become() FROM PUBLIC;

CREATE FUNCTION weft.join_step_meet()
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	-- A node that has copied rows was found when it was registered.
	PERFORM weft.node_query(n.dsn, n.node_name,
			format('SELECT weft.member_check_address(%L, %L)', own.node_name, own.identity))
		FROM weft.node_entry own, weft.member n
		WHERE own.is_local AND own.start_lsn IS NOT NULL AND NOT n.is_local ORDER BY n.node_id;
END $$;

COMMENT ON FUNCTION weft.join_step_meet() IS
	'step of a join from a backup: fails unless all members find this one at its address';
REVOKE ALL ON FUNCTION weft.join_step_meet() FROM PUBLIC;

-- For other nodes that copy rows from this one later.
CREATE FUNCTION weft.copied_row_origins(OUT until xid8, OUT roident oid)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT p.until, o.roident
	FROM weft.past_origin p JOIN weft.node_entry n ON n.node_id = p.node_id
		JOIN weft.member_origins() o ON o.node_name = n.node_name
	WHERE p.origin = 0 ORDER BY p.until
$$;

COMMENT ON FUNCTION weft.copied_row_origins() IS
	'the replication origins that stand for nodes whose rows came with a physical copy, and before which transactions';
REVOKE ALL ON FUNCTION weft.copied_row_origins() FROM PUBLIC;
