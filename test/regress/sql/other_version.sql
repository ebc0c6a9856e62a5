-- Functions that are declared with other columns than the library returns, as by another version
-- of the extension, fail; they do not crash.
SET client_min_messages = warning;
CREATE EXTENSION weft;
CREATE SCHEMA other;

DO $$
DECLARE
	f record;
BEGIN
	FOR f IN
		SELECT p.proname, p.prosrc
		FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
		WHERE p.pronamespace = 'weft'::regnamespace AND p.proretset AND l.lanname = 'c'
			AND p.prorettype = 'record'::regtype AND p.pronargs = 0
		ORDER BY p.proname COLLATE "C"
	LOOP
		EXECUTE format(
			'CREATE FUNCTION other.%I(OUT a int, OUT b text) RETURNS SETOF record LANGUAGE c AS ''$libdir/weft'', %L',
			f.proname, f.prosrc);
		BEGIN
			EXECUTE format('SELECT FROM other.%I()', f.proname);
			RAISE WARNING '%: no error', f.proname;
		EXCEPTION WHEN object_not_in_prerequisite_state THEN
			RAISE WARNING '%', SQLERRM;
		END;
	END LOOP;
END
$$;

SELECT * FROM other.stat_get_subscription();

DROP SCHEMA other CASCADE;
DROP EXTENSION weft;
