-- After an update: roles that manage this node get the rights on what is new.  In a new installation, there are none.
DO $$
BEGIN
	PERFORM weft.grant_node_admin(a.grantee::regrole)
		FROM pg_proc p, aclexplode(p.proacl) a
		WHERE p.oid = 'weft.member_list()'::regprocedure AND a.privilege_type = 'EXECUTE'
			AND a.grantee NOT IN (0, p.proowner);
END $$;
