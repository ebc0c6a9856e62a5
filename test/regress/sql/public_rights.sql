-- What PUBLIC may do with the objects of the extension.  If you add a line here, you should
-- know the reason.
CREATE EXTENSION weft;

CREATE TEMPORARY VIEW weft_relation AS
	SELECT c.oid, c.relname, c.relkind, c.relowner, c.relacl
	FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
	WHERE e.extname = 'weft';

-- functions that PUBLIC may execute, and which of them run as their owner
SELECT p.oid::regprocedure AS function, p.prosecdef AS runs_as_owner
	FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	WHERE e.extname = 'weft'
		AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
			WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE')
	ORDER BY p.oid::regprocedure::text COLLATE "C";

-- all functions that run as their owner, and their search_path
SELECT p.oid::regprocedure AS function, p.proconfig AS settings
	FROM pg_proc p WHERE p.pronamespace = 'weft'::regnamespace AND p.prosecdef
	ORDER BY p.oid::regprocedure::text COLLATE "C";

-- what PUBLIC may do with tables, views and sequences
SELECT r.oid::regclass AS relation, r.relkind AS kind,
		coalesce((SELECT string_agg(lower(a.privilege_type), ', ' ORDER BY a.privilege_type COLLATE "C")
			FROM aclexplode(coalesce(r.relacl,
				acldefault(CASE WHEN r.relkind = 'S' THEN 's' ELSE 'r' END::"char", r.relowner))) a
			WHERE a.grantee = 0), 'nothing') AS everybody_may
	FROM weft_relation r
	ORDER BY r.relname COLLATE "C";

-- nothing is granted on columns, nor to anybody but the owner and PUBLIC
SELECT r.oid::regclass AS relation, t.attname, t.attacl
	FROM weft_relation r JOIN pg_attribute t ON t.attrelid = r.oid WHERE t.attacl IS NOT NULL;
SELECT r.oid::regclass AS relation, a.grantee::regrole, a.privilege_type
	FROM weft_relation r, aclexplode(r.relacl) a WHERE a.grantee NOT IN (0, r.relowner);
SELECT p.oid::regprocedure AS function, a.grantee::regrole
	FROM pg_proc p, aclexplode(p.proacl) a
	WHERE p.pronamespace = 'weft'::regnamespace AND a.grantee NOT IN (0, p.proowner);

-- what PUBLIC may do with the schema, and with the objects that store connection strings
SELECT a.privilege_type AS schema FROM pg_namespace n, aclexplode(n.nspacl) a
	WHERE n.nspname = 'weft' AND a.grantee = 0;
SELECT a.privilege_type AS wrapper FROM pg_foreign_data_wrapper w,
		aclexplode(coalesce(w.fdwacl, acldefault('F', w.fdwowner))) a
	WHERE w.fdwname = 'weft_node' AND a.grantee = 0;
SELECT a.privilege_type AS server FROM pg_foreign_server s,
		aclexplode(coalesce(s.srvacl, acldefault('S', s.srvowner))) a
	WHERE s.srvname = 'weft_node' AND a.grantee = 0;

-- the columns of every view
SELECT r.oid::regclass AS view, t.attname AS column, format_type(t.atttypid, t.atttypmod) AS type
	FROM weft_relation r JOIN pg_attribute t ON t.attrelid = r.oid
	WHERE r.relkind = 'v' AND t.attnum > 0 AND NOT t.attisdropped
	ORDER BY r.relname COLLATE "C", t.attnum;

DROP VIEW weft_relation;
DROP EXTENSION weft;
