-- What a joining node asks the member that it copies.

CREATE FUNCTION weft.member_has_older_rows(relation regclass)
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_has_older_rows';

COMMENT ON FUNCTION weft.member_has_older_rows(regclass) IS
	'has a table rows that are older than its file? runs no code of its owner';
REVOKE ALL ON FUNCTION weft.member_has_older_rows(regclass) FROM PUBLIC;
