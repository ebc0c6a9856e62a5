-- The SQL objects of Weft: where they are created.
--
-- The parts of this script are put together in the order of their numbers.  What PUBLIC may
-- do with an object is said right after its definition.
\echo Use "CREATE EXTENSION weft" to load this file. \quit

-- What this script names without a schema is the server's own.
SET LOCAL search_path = pg_catalog, pg_temp;

-- A role that may create objects in the schema could put functions and operators there
-- that are called in place of Weft's.
DO $$
DECLARE
	found record;
BEGIN
	SELECT n.oid, r.rolname, r.rolsuper OR r.rolname = current_user AS is_trusted,
			EXISTS (SELECT FROM aclexplode(n.nspacl) a
				WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS is_open,
			EXISTS (SELECT FROM pg_depend d
				WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
					AND d.classid <> 'pg_extension'::regclass) AS has_objects
		INTO STRICT found
		FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'weft';
	IF NOT found.is_trusted THEN
		RAISE EXCEPTION 'schema "weft" belongs to role "%"', found.rolname
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Its owner could run code with the rights of those who use the extension.',
				HINT = 'Drop or rename the schema; CREATE EXTENSION creates a new one.';
	ELSIF found.is_open THEN
		RAISE EXCEPTION 'roles other than its owner may create objects in schema "weft"'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Revoke the privilege CREATE on the schema.';
	ELSIF found.has_objects THEN
		RAISE EXCEPTION 'schema "weft" is not empty'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Drop or rename the schema; CREATE EXTENSION creates a new one.';
	END IF;
END $$;

GRANT USAGE ON SCHEMA weft TO PUBLIC;
