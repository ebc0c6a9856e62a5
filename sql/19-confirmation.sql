-- What subscriptions confirm to their publishers (src/confirmation.c).

CREATE FUNCTION weft.stat_get_confirmation(
	OUT subid oid,
	OUT confirmed_lsn pg_lsn,
	OUT withheld_since timestamptz,
	OUT slot_name text,
	OUT slot_state text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_confirmation';

COMMENT ON FUNCTION weft.stat_get_confirmation() IS
	'what subscriptions have confirmed to their publishers, and which standby they wait for';

CREATE VIEW weft.stat_confirmation AS
	SELECT g.subid, s.subname, g.confirmed_lsn, g.withheld_since, g.slot_name, g.slot_state
	FROM weft.stat_get_confirmation() g
		JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW weft.stat_confirmation IS
	'what subscriptions have confirmed to their publishers, and which standby they wait for';
GRANT SELECT ON weft.stat_confirmation TO PUBLIC;

CREATE FUNCTION weft.health_of_confirmation(
	stale interval,
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H013', CASE WHEN r.slot_type = 'physical' AND r.wal_status IS DISTINCT FROM 'lost' THEN 'warning' ELSE 'error' END, n.slot,
		format('the slot, which "weft.confirm_after_standby_slots" names, %s; subscriptions confirm nothing, and their publishers keep all WAL',
			CASE WHEN r.slot_name IS NULL THEN 'does not exist'
				WHEN r.slot_type = 'logical' THEN 'is logical'
				WHEN r.wal_status = 'lost' THEN 'has been invalidated'
				ELSE 'is not used by any standby' END),
		CASE WHEN r.slot_type = 'physical' AND r.wal_status IS DISTINCT FROM 'lost' THEN 'Start the standby'
			WHEN r.wal_status = 'lost' THEN 'Drop the slot, create it again, and build the standby anew'
			ELSE 'Create the physical slot' END || ', or remove the slot from the parameter.'
		FROM (SELECT DISTINCT btrim(lower(btrim(x)), '"') AS slot
				FROM regexp_split_to_table(current_setting('weft.confirm_after_standby_slots', true), ',') x
				WHERE btrim(x) <> '') n
			LEFT JOIN pg_replication_slots r ON r.slot_name = n.slot
		WHERE EXISTS (SELECT FROM pg_subscription WHERE subenabled) AND NOT pg_is_in_recovery()
			AND (r.slot_name IS NULL OR r.slot_type = 'logical' OR NOT r.active OR r.wal_status = 'lost')
	UNION ALL
	SELECT 'H014', 'warning', c.subname,
		format('a position was withheld from the publisher %s ago, and the standby of slot "%s" does not have it yet',
			date_trunc('second', clock_timestamp() - c.withheld_since), c.slot_name),
		'Find out why the standby is behind. The publisher keeps WAL until it has caught up.'
		FROM weft.stat_confirmation c
		WHERE c.withheld_since < clock_timestamp() - stale AND c.slot_state = 'behind'
$$;

-- As before, and with what the previous function finds.
CREATE OR REPLACE FUNCTION weft.health(
	stale interval DEFAULT '2 minutes',
	recent interval DEFAULT '1 hour',
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT f.* FROM (
		SELECT 'H001' AS id, 'error' AS severity, 'weft' AS object,
			format('the server has loaded version %s, and the extension has version %s',
				weft.library_version(), x.extversion) AS problem,
			'ALTER EXTENSION weft UPDATE; or, if the server has loaded an older version than is installed, restart it.' AS remedy
			FROM pg_extension x
			WHERE x.extname = 'weft' AND x.extversion <> weft.library_version()
		UNION ALL SELECT * FROM weft.health_of_subscriptions(stale)
		UNION ALL SELECT * FROM weft.health_of_errors(recent)
		UNION ALL SELECT * FROM weft.health_of_slots()
		UNION ALL SELECT * FROM weft.health_of_confirmation(stale)
		UNION ALL SELECT * FROM weft.health_of_group()) f
	ORDER BY array_position(ARRAY['error', 'warning', 'info'], f.severity), f.id, f.object
$$;

COMMENT ON FUNCTION weft.health(interval, interval) IS
	'what is wrong with subscriptions, slots and the node group of this server, and what to do about it';
