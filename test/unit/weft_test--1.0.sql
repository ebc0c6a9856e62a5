\echo Use "CREATE EXTENSION weft_test" to load this file. \quit

-- Runs the tests of one unit; the result of each is "ok", or what was wrong.
CREATE FUNCTION weft_test(unit text, OUT test text, OUT result text) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
