-- What a node that joins takes over of rows that were changed recently: when, and by whom
-- (src/group/recent.c).

-- On the member that is copied.

CREATE FUNCTION weft.member_origins(OUT roident oid, OUT node_name name)
RETURNS SETOF record LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT o.roident, n.node_name
	FROM weft.node_entry n CROSS JOIN weft.local_subscription(n.node_name) subid
		JOIN pg_replication_origin o ON o.roname = 'pg_' || subid
$$;

COMMENT ON FUNCTION weft.member_origins() IS
	'the node that each replication origin stands for';
REVOKE ALL ON FUNCTION weft.member_origins() FROM PUBLIC;

CREATE FUNCTION weft.member_recent_rows(relation regclass, columns text[], since timestamptz,
	OUT row_key text[], OUT changed timestamptz, OUT roident oid)
RETURNS SETOF record
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_member_recent_rows';

COMMENT ON FUNCTION weft.member_recent_rows(regclass, text[], timestamptz) IS
	'keys of the rows of a table that were changed recently';
REVOKE ALL ON FUNCTION weft.member_recent_rows(regclass, text[], timestamptz) FROM PUBLIC;

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
		-- Conflict detection ignores a delete under an origin that is not a member's, too.
		AND (t.commit_time IS NOT NULL OR (t.c).roident = 0 OR o.node_name IS NOT NULL)
$$;

COMMENT ON FUNCTION weft.member_tombstones(timestamptz) IS
	'rows that were deleted recently, for a joining node';
REVOKE ALL ON FUNCTION weft.member_tombstones(timestamptz) FROM PUBLIC;

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
	'rows into which counters were merged recently, for a joining node';
REVOKE ALL ON FUNCTION weft.member_merged_rows(timestamptz) FROM PUBLIC;

-- On the node that joins.

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

COMMENT ON FUNCTION weft.recent_query(regclass) IS
	'the command that asks for the rows of a table that were changed recently';
REVOKE ALL ON FUNCTION weft.recent_query(regclass) FROM PUBLIC;

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
	'stores what was deleted recently on the node that is copied';
REVOKE ALL ON FUNCTION weft.keep_tombstones() FROM PUBLIC;

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
	'completes a transaction whose rows have been written again';
REVOKE ALL ON FUNCTION weft.stamped(timestamptz, name) FROM PUBLIC;

CREATE FUNCTION weft.forget_recent()
RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	DELETE FROM weft.join_recent;
	DELETE FROM weft.join_merged_row;
$$;

COMMENT ON FUNCTION weft.forget_recent() IS
	'removes the data from which times of rows are restored';
REVOKE ALL ON FUNCTION weft.forget_recent() FROM PUBLIC;
