-- The rights of roles that manage this node.

CREATE FUNCTION weft.grant_node_objects(role regrole)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	func regprocedure;
BEGIN
	EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON weft.node_group_entry, weft.node_entry,'
		' weft.member, weft.arriving_node, weft.join_entry, weft.join_recent, weft.join_tombstone,'
		' weft.join_merged_row, weft.conflict_node, weft.conflict_resolver, weft.tombstone, weft.merged_row TO %s', role);
	FOR func IN SELECT d.objid::regprocedure
		FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'weft' AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			AND NOT EXISTS (SELECT FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
				WHERE p.oid = d.objid AND a.grantee = 0)
			AND d.objid NOT IN ('weft.grant_node_objects(regrole)'::regprocedure,
				'weft.grant_node_admin(regrole)'::regprocedure)
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', func, role);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.grant_node_objects(regrole) IS
	'grants a role what it needs of Weft to manage this node';
REVOKE ALL ON FUNCTION weft.grant_node_objects(regrole) FROM PUBLIC;

-- Only roles that are granted this may manage groups.
CREATE OR REPLACE FUNCTION weft.grant_node_admin(role regrole)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	func regprocedure;
BEGIN
	PERFORM weft.grant_node_objects(role);
	-- Their arguments differ between major versions.
	FOR func IN SELECT oid::regprocedure FROM pg_proc
		WHERE pronamespace = 'pg_catalog'::regnamespace
			AND proname IN ('pg_replication_origin_advance', 'pg_replication_origin_progress',
				'pg_replication_origin_session_setup', 'pg_replication_origin_session_progress')
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', func, role);
	END LOOP;
	EXECUTE format('GRANT CREATE ON DATABASE %I TO %s', current_database(), role);
	EXECUTE format('GRANT pg_create_subscription TO %s', role);
END $$;

COMMENT ON FUNCTION weft.grant_node_admin(regrole) IS
	'grants a role what it needs to manage this node; it needs REPLICATION and LOGIN besides';
REVOKE ALL ON FUNCTION weft.grant_node_admin(regrole) FROM PUBLIC;

-- After an update: roles that manage this node, which is to say that they have the rights on a table that nobody else
-- needs, get the rights on what is new.  In a new installation, there are none.  What a script of an extension grants
-- on the server's own functions would not be part of a dump any more.
DO $$
BEGIN
	PERFORM weft.grant_node_objects(a.grantee::regrole)
		FROM pg_class c, aclexplode(c.relacl) a
		WHERE c.oid = 'weft.arriving_node'::regclass AND a.privilege_type = 'UPDATE'
			AND a.grantee NOT IN (0, c.relowner);
END $$;
