-- Checks of what this server can tell alone.
--
-- An id is never given to another check, and README describes each.  The checks see as much as the
-- caller may: others than the owner of a subscription, and members of pg_read_all_stats, do not
-- see its errors.

CREATE FUNCTION weft.health_of_errors(
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

CREATE FUNCTION weft.health_of_subscriptions(
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

CREATE FUNCTION weft.health_of_slots(
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H010', CASE wal_status WHEN 'lost' THEN 'error' ELSE 'warning' END, slot_name,
		CASE wal_status WHEN 'lost' THEN 'the slot has lost WAL that its subscriber needs'
			ELSE 'the slot is about to lose WAL that its subscriber needs' END,
		CASE wal_status WHEN 'lost' THEN 'Drop the slot, and create the subscription again.'
			ELSE 'Let the subscriber catch up, or increase "max_slot_wal_keep_size".' END
		FROM pg_replication_slots
		WHERE slot_type = 'logical' AND wal_status IN ('unreserved', 'lost')
$$;

CREATE FUNCTION weft.health_of_group(
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
