\echo Use "CREATE EXTENSION weft_test" to load this file. \quit

-- Runs the tests of one unit; the result of each is "ok", or what was wrong.
CREATE FUNCTION weft_test(unit text, OUT test text, OUT result text) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

-- Makes a cut of a subscription, and runs a query on both sides there.  "held": apply stood
-- until the snapshot was taken here, or, if "standing", until the query had been run here.
CREATE FUNCTION weft_test_cut(subscription name, query text, timeout int DEFAULT 30000,
		stand int DEFAULT 1000, standing bool DEFAULT false,
		OUT here text, OUT there text, OUT held bool, OUT attempts int)
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

-- Runs a command at a cut that lasts until the end of the transaction; false if apply has
-- gone on before.
CREATE FUNCTION weft_test_cut_write(subscription name, command text,
		timeout int DEFAULT 30000, stand int DEFAULT 1000) RETURNS bool
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

-- Shows what a subscription's publications publish of these tables, or of all; "here" and
-- "there" are the rows to compare as SQL.
CREATE FUNCTION weft_test_tables(subscription name, tables regclass[] DEFAULT '{}',
		OUT name text, OUT status text, OUT reason text, OUT columns text, OUT missing text,
		OUT key text, OUT here text, OUT there text) RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

-- Compares a table that nobody writes.  First comes how it is divided; then the rows that
-- only one side has.
CREATE FUNCTION weft_test_compare(subscription name, "table" regclass,
		rows bigint DEFAULT 1000,
		OUT side text, OUT key text, OUT "row" text, OUT whole text, OUT found text)
	RETURNS SETOF record
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

-- What becomes of a publisher's row filter here: a condition, or a problem.
CREATE FUNCTION weft_test_row_filter("table" regclass, text text,
		OUT filter text, OUT problem text, OUT columns int)
	AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
