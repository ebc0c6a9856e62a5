-- The version of the library.  The script that updates from an older version begins with this part, too (Makefile).

CREATE OR REPLACE FUNCTION weft.library_version()
RETURNS text
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_library_version';

COMMENT ON FUNCTION weft.library_version() IS
	'the version of Weft that the server has loaded';

-- A package may have replaced the files while the server runs with the library of an older version.
DO $$
DECLARE
	loaded text := weft.library_version();
	wanted text := (SELECT extversion FROM pg_extension WHERE extname = 'weft');
BEGIN
	IF string_to_array(loaded, '.')::int[] < string_to_array(wanted, '.')::int[] THEN
		RAISE EXCEPTION 'the server has loaded version % of Weft, but this is the extension of version %', loaded, wanted
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restart the server first, so that it loads the new library.';
	END IF;
END $$;
