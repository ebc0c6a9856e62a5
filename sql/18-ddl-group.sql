-- Schema changes in node groups.

-- What schema changes have dropped without a lock; the column is empty if the table was dropped.
CREATE TABLE weft.dropped_column (
	schema_name name NOT NULL,
	table_name name NOT NULL,
	column_name name NOT NULL,
	dropped_at timestamptz NOT NULL);

ALTER TABLE weft.dropped_column REPLICA IDENTITY NOTHING;
REVOKE ALL ON weft.dropped_column FROM PUBLIC;

COMMENT ON TABLE weft.dropped_column IS
	'tables and columns that schema changes of the node group have dropped: rows that still carry them are applied without';

CREATE FUNCTION weft.group_ddl()
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce((SELECT substr(l.label, 5) FROM pg_seclabel l
			JOIN pg_publication p ON l.objoid = p.oid AND l.classoid = 'pg_publication'::regclass
		WHERE l.provider = 'weft' AND p.pubname = 'weft_' || weft.local_group()), 'none')
$$;

COMMENT ON FUNCTION weft.group_ddl() IS
	'which schema changes this node publishes to its group';
REVOKE ALL ON FUNCTION weft.group_ddl() FROM PUBLIC;

CREATE FUNCTION weft.member_set_ddl(ddl text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	EXECUTE format('ALTER PUBLICATION %I SET (ddl = %L)', 'weft_' || weft.local_group(), ddl);
END $$;

COMMENT ON FUNCTION weft.member_set_ddl(text) IS
	'sets which schema changes this node publishes to its group';
REVOKE ALL ON FUNCTION weft.member_set_ddl(text) FROM PUBLIC;

-- A member of version 0.1.0 would stop at the first schema change.
CREATE FUNCTION weft.alter_node_group_set_ddl(node_group_name name, ddl text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	member weft.member;
BEGIN
	IF ddl IS NULL OR ddl <> ALL ('{none,table,all}') THEN
		RAISE EXCEPTION 'invalid value for publication parameter "ddl": "%"', ddl
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use "none", "table" or "all".';
	END IF;
	IF ddl <> 'none' THEN
		FOR member IN SELECT * FROM weft.member ORDER BY node_id LOOP
			PERFORM weft.check_protocol(
				weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_info()')::jsonb, 2);
		END LOOP;
	END IF;
	PERFORM weft.query_group(node_group_name, format('SELECT weft.member_set_ddl(%L)', ddl));
END $$;

COMMENT ON FUNCTION weft.alter_node_group_set_ddl(name, text) IS
	'sets which schema changes all members of a node group publish to each other';
REVOKE ALL ON FUNCTION weft.alter_node_group_set_ddl(name, text) FROM PUBLIC;

-- For whoever wants to know before executing it.
CREATE FUNCTION weft.ddl_needs_lock(statement text)
RETURNS boolean
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_ddl_needs_lock';

COMMENT ON FUNCTION weft.ddl_needs_lock(text) IS
	'does a schema change need a lock on its tables in a node group?';
REVOKE ALL ON FUNCTION weft.ddl_needs_lock(text) FROM PUBLIC;

CREATE FUNCTION weft.member_keep_schema()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_keep_schema';

COMMENT ON FUNCTION weft.member_keep_schema() IS
	'keeps the schema of this node as it is until the transaction ends';
REVOKE ALL ON FUNCTION weft.member_keep_schema() FROM PUBLIC;

CREATE FUNCTION weft.member_follow_tables()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_follow_tables';

COMMENT ON FUNCTION weft.member_follow_tables() IS
	'adds the tables that this node publishes to its subscriptions to the other members';
REVOKE ALL ON FUNCTION weft.member_follow_tables() FROM PUBLIC;

-- The triggers must fire for all columns on which keys and unique values depend; none are
-- listed if they fire for each UPDATE.
CREATE FUNCTION weft.member_track_table(relation regclass)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.track_deletes(relation, true)
		WHERE weft.key_columns(relation) IS NOT NULL
			AND NOT EXISTS (SELECT FROM pg_trigger t
				WHERE t.tgrelid = relation AND t.tgname = 'weft_record_key_change'
					AND (t.tgattr::text = ''
						OR (SELECT coalesce(array_agg(DISTINCT k), '{}') FROM pg_index i, unnest(i.indkey::int2[]) k
							WHERE i.indrelid = relation AND i.indisunique AND k > 0) <@ t.tgattr::int2[]));
END $$;

COMMENT ON FUNCTION weft.member_track_table(regclass) IS
	'makes a table of the group remember deleted rows, if it has a key';
REVOKE ALL ON FUNCTION weft.member_track_table(regclass) FROM PUBLIC;
