-- Comparing a subscription with its publisher, and repairing what differs.
-- Results of comparisons.  They contain rows of user tables, so a role sees a comparison only if
-- it may act as the role that owned the subscription then.  The contents are about OIDs,
-- positions and transactions of this server at some time, so a dump does not contain them.

CREATE SEQUENCE weft.comparison_seq;

-- subid, owner: of the subscription; the role is the one as which rows were read here
-- requested_tables: NULL means all tables of the subscription
-- status: 'running', or 'finished'; a comparison that is "running" and whose process is
--	gone was interrupted, which weft.stat_comparison shows
-- publisher_lsn: the publisher's position at the last cut
-- longest_cut: the longest time that a cut took, in milliseconds; apply paused for a part of it
CREATE TABLE weft.comparison (
	comparison bigint PRIMARY KEY DEFAULT pg_catalog.nextval('weft.comparison_seq'),
	subid oid NOT NULL,
	subname name NOT NULL,
	owner oid NOT NULL,
	requested_tables regclass[],
	jobs integer NOT NULL,
	max_rows_per_second bigint,
	max_differences integer NOT NULL,
	status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished')),
	started_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	ended_at timestamptz,
	cuts integer NOT NULL DEFAULT 0,
	publisher_lsn pg_lsn,
	longest_cut double precision);

ALTER SEQUENCE weft.comparison_seq OWNED BY weft.comparison.comparison;
ALTER TABLE weft.comparison ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison
	USING (pg_catalog.pg_has_role(owner, 'USAGE'));

COMMENT ON TABLE weft.comparison IS
	'comparisons of subscriptions with their publishers; deleting a row deletes its results';
GRANT SELECT, DELETE ON weft.comparison TO PUBLIC;

-- table_name, relation: the quoted name, which is the same on both sides; the table here, if any
-- status: 'waiting'; 'running'; 'done': compared completely, or up to max_differences;
--	'skipped': cannot be compared; 'changed': was altered, truncated or dropped on one of
--	the sides each time that it was compared; 'failed': an error on one of the sides
-- reason: why it was not compared, or not completely
-- publisher_rows, local_rows: how many rows were compared
-- differences: how many were found; more exist if "complete" is false
-- first_lsn, last_lsn: positions of the publisher at the first and last cut with the table
CREATE TABLE weft.comparison_table (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	table_name text NOT NULL,
	relation regclass,
	status text NOT NULL DEFAULT 'waiting'
		CHECK (status IN ('waiting', 'running', 'done', 'skipped', 'changed', 'failed')),
	reason text,
	publisher_rows bigint NOT NULL DEFAULT 0,
	local_rows bigint NOT NULL DEFAULT 0,
	differences bigint NOT NULL DEFAULT 0,
	complete boolean NOT NULL DEFAULT false,
	cuts integer NOT NULL DEFAULT 0,
	first_lsn pg_lsn,
	last_lsn pg_lsn,
	started_at timestamptz,
	ended_at timestamptz,
	PRIMARY KEY (comparison, table_name));

ALTER TABLE weft.comparison_table ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison_table FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = comparison_table.comparison));

COMMENT ON TABLE weft.comparison_table IS
	'what a comparison has compared, what not, and why';
GRANT SELECT ON weft.comparison_table TO PUBLIC;

-- difference: its number within the comparison
-- key: values of the key as text; of a table that is compared without a key, NULL
-- row_count: how many equal rows are missing, in a table that is compared without a key
-- columns: those that differ; NULL if a row is missing
-- publisher_row, local_row: each published column that exists here, with the value's text.
--	A very long text is cut (row_hash.h).
-- local_origin, local_commit_time: who wrote the local row and when, if
--	track_commit_timestamp is on and still knows; the origin's name is empty for a local write
-- publisher_lsn: the publisher's position at the cut at which it was found
CREATE TABLE weft.difference (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	difference bigint NOT NULL,
	relation regclass NOT NULL,
	key jsonb,
	kind text NOT NULL CHECK (kind IN ('missing here', 'missing there', 'different')),
	row_count bigint NOT NULL DEFAULT 1,
	columns text[],
	publisher_row jsonb,
	local_row jsonb,
	local_origin text,
	local_commit_time timestamptz,
	publisher_lsn pg_lsn NOT NULL,
	found_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	PRIMARY KEY (comparison, difference));

CREATE INDEX difference_relation_index ON weft.difference (comparison, relation);
ALTER TABLE weft.difference ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.difference FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = difference.comparison));

COMMENT ON TABLE weft.difference IS
	'rows that a comparison has found to differ; the texts are exact';
GRANT SELECT ON weft.difference TO PUBLIC;

-- If a publisher publishes ALL TABLES, then its own comparisons would arrive here, and their
-- numbers could be in use.  These triggers fire for what is replicated, and only then.
CREATE FUNCTION weft.ignore_replicated_row()
RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.ignore_replicated_row() IS
	'ignores rows of another server''s comparisons';
REVOKE ALL ON FUNCTION weft.ignore_replicated_row() FROM PUBLIC;

CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison_table
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison_table ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.difference
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.difference ENABLE REPLICA TRIGGER ignore_replicated;

-- Compares the subscription's tables with the publisher's, while both are in use.
--
-- subscription: its owner, and whoever may act as the owner, may call this.
-- tables: which tables; NULL means all.
-- jobs: how many processes compare.  This session is one of them; the others are parallel
--	workers, if available.  Each has its own connection to the publisher.
-- max_rows_per_second: limit on the rows read on each side, by all processes together.
-- max_differences: after that many differences of a table, the rest of it is not compared.
-- resume: continues an interrupted comparison: tables that are done are not compared again.
-- comparison: out: the number of the comparison, as in weft.comparison.
--
-- Each row is compared as of a cut: a moment at which both sides contain the same
-- transactions.  A snapshot is kept on both sides for up to weft.comparison_snapshot_age; a
-- larger table is compared at several cuts, each part at one of them.
CREATE PROCEDURE weft.compare_subscription(
	subscription name,
	tables regclass[] DEFAULT NULL,
	jobs integer DEFAULT 2,
	max_rows_per_second bigint DEFAULT NULL,
	max_differences integer DEFAULT 1000,
	resume bigint DEFAULT NULL,
	INOUT comparison bigint DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_compare_subscription';

COMMENT ON PROCEDURE weft.compare_subscription(name, regclass[], integer, bigint, integer, bigint, bigint) IS
	'compares a subscription''s tables with the publisher''s; see weft.comparison_table and weft.difference';

-- Comparisons that are running: progress, from shared memory.
CREATE FUNCTION weft.stat_get_comparison(
	OUT comparison bigint,
	OUT pid integer,
	OUT jobs integer,
	OUT rows_compared bigint,
	OUT rows_estimated bigint,
	OUT snapshot_age interval)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_stat_get_comparison';

REVOKE ALL ON FUNCTION weft.stat_get_comparison() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.stat_get_comparison() TO PUBLIC;

-- The view's user needs the rights on the tables, so that row security applies to the user.
CREATE VIEW weft.stat_comparison WITH (security_invoker = true) AS
	SELECT c.comparison, c.subname,
		CASE WHEN c.status = 'running' AND g.pid IS NULL THEN 'interrupted' ELSE c.status END AS status,
		g.pid, g.jobs, c.started_at, c.ended_at,
		t.tables, t.tables_done, t.tables_not_compared, t.tables_waiting,
		coalesce(g.rows_compared, t.publisher_rows) AS rows_compared, g.rows_estimated,
		t.differences, c.cuts, g.snapshot_age, c.longest_cut
	FROM weft.comparison c
		LEFT JOIN weft.stat_get_comparison() g ON g.comparison = c.comparison
		CROSS JOIN LATERAL (
			SELECT count(*) AS tables,
				count(*) FILTER (WHERE s.status = 'done') AS tables_done,
				count(*) FILTER (WHERE s.status IN ('skipped', 'changed', 'failed')) AS tables_not_compared,
				count(*) FILTER (WHERE s.status IN ('waiting', 'running')) AS tables_waiting,
				coalesce(sum(s.publisher_rows), 0)::bigint AS publisher_rows,
				coalesce(sum(s.differences), 0)::bigint AS differences
			FROM weft.comparison_table s WHERE s.comparison = c.comparison) t;

COMMENT ON VIEW weft.stat_comparison IS
	'progress of comparisons, and whether they were interrupted';
GRANT SELECT ON weft.stat_comparison TO PUBLIC;


-- Sequences.

-- Sets the sequences here at or beyond those of the publisher, by "margin" steps: sequences
-- that published tables use, and all others in their schemas.  Logical replication does not
-- replicate sequences.  Call it again after the last write on the publisher, because numbers
-- taken there afterwards are unknown here.
--
-- A sequence is never set back; one that is beyond stays as it is.  One row for each sequence of
-- the publisher; "problem" says why a sequence may still return numbers that the publisher
-- has used, such as that it does not exist here ("sequence" is null), or that the owner of
-- the subscription lacks the right UPDATE on it.  ROLLBACK does not undo this, as with setval().
-- Sequences of weft.snowflake_nextval() are not changed.
--
-- Needs on the publisher: SELECT on the sequences, for the role that the subscription
-- connects as.  Here: ownership of the subscription.
CREATE FUNCTION weft.sync_sequences(
	subscription name,
	margin bigint DEFAULT 1000,
	OUT sequence regclass,
	OUT publisher_value bigint,
	OUT before bigint,
	OUT after bigint,
	OUT problem text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_sync_sequences';

COMMENT ON FUNCTION weft.sync_sequences(name, bigint) IS
	'sets the subscriber''s sequences at or beyond the publisher''s';
