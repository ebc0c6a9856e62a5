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
-- node: the other member, if two members of a group are compared (weft.compare_node); "the
--	publisher" is that member then
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
	longest_cut double precision,
	node name);

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
-- candidates: of weft.compare_node: rows that may differ; when the comparison is finished, those
--	that were changing each time, so that nothing is known of them (weft.comparison_candidate)
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
	candidates bigint NOT NULL DEFAULT 0,
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
-- repair_result: what weft.repair() has done: 'repaired'; 'vanished': the row did not differ
--	any more; 'failed': it still differs, and repair_reason says why; 'kept': of two nodes, the
--	row here wins, or it is not known which one does.  After a dry run for two nodes, repair_reason
--	says what would be done.
-- repair_lsn, repaired_at: the publisher's position at the cut of the repair; when that was
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
	repair_result text CHECK (repair_result IN ('repaired', 'vanished', 'failed', 'kept')),
	repair_reason text,
	repair_lsn pg_lsn,
	repaired_at timestamptz,
	PRIMARY KEY (comparison, difference));

CREATE INDEX difference_relation_index ON weft.difference (comparison, relation);
ALTER TABLE weft.difference ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.difference FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = difference.comparison));

COMMENT ON TABLE weft.difference IS
	'rows that a comparison has found to differ; the texts are exact';
GRANT SELECT ON weft.difference TO PUBLIC;

-- Rows of two members of a group that differed at a cut.  That is no difference yet: changes of
-- other members may be under way.  weft.compare_node looks at them again, and removes those that
-- turn out to be equal or different.
-- looks: how often the row was looked at again
-- row_hash: identifies the row in a table that is compared without a key
-- All others as in weft.difference, at the cut at which it was found.
CREATE TABLE weft.comparison_candidate (
	comparison bigint NOT NULL REFERENCES weft.comparison ON DELETE CASCADE,
	candidate bigint NOT NULL,
	relation regclass NOT NULL,
	key jsonb,
	row_hash bigint,
	kind text NOT NULL,
	row_count bigint NOT NULL,
	publisher_row jsonb,
	local_row jsonb,
	publisher_lsn pg_lsn NOT NULL,
	looks integer NOT NULL DEFAULT 0,
	PRIMARY KEY (comparison, candidate));

ALTER TABLE weft.comparison_candidate ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON weft.comparison_candidate FOR SELECT
	USING (EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = comparison_candidate.comparison));

COMMENT ON TABLE weft.comparison_candidate IS
	'rows that were changing while weft.compare_node looked at them, so that it is unknown whether they differ';
GRANT SELECT ON weft.comparison_candidate TO PUBLIC;

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
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON weft.comparison_candidate
	FOR EACH ROW EXECUTE FUNCTION weft.ignore_replicated_row();
ALTER TABLE weft.comparison_candidate ENABLE REPLICA TRIGGER ignore_replicated;

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
-- larger table is compared at several cuts, each part at one of them.  A row whose key changes
-- between two of these cuts, so that it moves from a part that has not been compared yet to one that has,
-- is not compared; apply has then written the whole row, except for TOASTed values that did not change.
--
-- Tables are read here as apply writes them: as their owners, or, if the subscription has
-- run_as_owner, as its owner.  The subscription's owner must be allowed to read them, too.
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

-- Compares this member of a node group with another one, while all members are in use.
--
-- node: the other member.
-- timeout: how long all members may take to exchange what they have committed so far.  That
--	is waited for before the comparison, and several times after it.
-- The other arguments are as above.  The caller must own the subscription to that member, and
-- have what weft.grant_node_admin() grants; the role that the members connect as must be able
-- to read the tables there.
--
-- Needs all members: one that is down is named.  What differs is in weft.difference, as above:
-- "publisher" is the other member.  Rows that differ only because changes are under way are
-- none.  A row that is changed all the time may remain in weft.comparison_candidate, and its
-- table is not "complete" then.  A difference does not say which of the members is right:
-- compare with a third one.  An interrupted call cannot be continued, because what the looks
-- at changing rows have seen is lost; call it again, for some of the tables if need be.
CREATE PROCEDURE weft.compare_node(
	node name,
	tables regclass[] DEFAULT NULL,
	jobs integer DEFAULT 2,
	max_rows_per_second bigint DEFAULT NULL,
	max_differences integer DEFAULT 1000,
	timeout interval DEFAULT '5 minutes',
	INOUT comparison bigint DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_compare_node';

COMMENT ON PROCEDURE weft.compare_node(name, regclass[], integer, bigint, integer, interval, bigint) IS
	'compares this member of a node group with another one; see weft.comparison_table and weft.difference';

-- Transactions that apply changes in this database.  Those that are streamed, or copy tables, can be long, and
-- a group has none of them.
-- SECURITY DEFINER, since a role sees its own processes only.
CREATE FUNCTION weft.background_transactions()
RETURNS xid[] LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(array_agg(a.backend_xid), '{}')
	FROM pg_stat_get_activity(NULL) a JOIN pg_database d ON d.oid = a.datid
	WHERE d.datname = current_database() AND a.backend_xid IS NOT NULL
		AND a.backend_type IN ('weft writer', 'logical replication apply worker')
$$;

COMMENT ON FUNCTION weft.background_transactions() IS
	'transactions that apply changes now';
REVOKE ALL ON FUNCTION weft.background_transactions() FROM PUBLIC;

-- Returns when everything that each other member had committed at the time of the call is applied
-- and visible here.  Returns the members, for comparing.
CREATE FUNCTION weft.member_await_members(timeout interval)
RETURNS text LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until timestamptz := clock_timestamp() + timeout;
	local_name name := weft.local_node();
	other name;
	applying xid[];
	detail text;
	hint text;
BEGIN
	FOR other IN SELECT n.node_name FROM weft.node_entry n ORDER BY n.node_id LOOP
		IF (SELECT n.state FROM weft.node_entry n WHERE n.node_name = other) <> 'active' THEN
			RAISE EXCEPTION 'node "%" is not an active member of the group, as node "%" sees it', other, local_name
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Wait until no node is joining or parting.';
		END IF;
		CONTINUE WHEN other = local_name;
		BEGIN
			PERFORM weft.wait_for_subscription(
				weft.subscription_name(weft.local_group(), other, local_name),
				greatest(until - clock_timestamp(), '0'));
		EXCEPTION WHEN OTHERS OR query_canceled THEN
			GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
			RAISE EXCEPTION 'node "%" cannot get all changes of node "%": %', local_name, other, SQLERRM
				USING ERRCODE = SQLSTATE, DETAIL = detail, HINT = hint;
		END;
	END LOOP;
	-- The position of a transaction is known a moment before its changes are visible.
	PERFORM pg_stat_clear_snapshot();
	applying := weft.background_transactions();
	WHILE EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'transactionid'
		AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid = ANY (applying))
	LOOP
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'timed out waiting for transactions that node "%" is applying', local_name
				USING ERRCODE = 'query_canceled';
		END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN (SELECT string_agg(n.node_name || ' ' || n.identity, ', ' ORDER BY n.node_id)
		FROM weft.node_entry n);
END $$;

COMMENT ON FUNCTION weft.member_await_members(interval) IS
	'waits until this node has applied what all others have committed; returns the members';
REVOKE ALL ON FUNCTION weft.member_await_members(interval) FROM PUBLIC;

-- The same for this member and another one; see src/verify/compare_node.c.
CREATE FUNCTION weft.await_both_members(node name, timeout interval)
RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	there text;
	here text;
BEGIN
	there := weft.node_query((SELECT m.dsn FROM weft.member m WHERE m.node_name = node), node,
		format('SELECT weft.member_await_members(%L)', timeout));
	here := weft.member_await_members(timeout);
	IF here IS DISTINCT FROM there THEN
		RAISE EXCEPTION 'nodes "%" and "%" do not have the same members', weft.local_node(), node
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = format('Here: %s. There: %s.', here, there);
	END IF;
END $$;

COMMENT ON FUNCTION weft.await_both_members(name, interval) IS
	'waits until this node and another one have applied what all members have committed';
REVOKE ALL ON FUNCTION weft.await_both_members(name, interval) FROM PUBLIC;

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


-- Repair.

-- Returns the condition that selects a local row by its key, or, in a table without one, by the text of
-- each of its values; NULL if a value has been cut.
CREATE FUNCTION weft.row_condition(row_key jsonb, local_row jsonb)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN bool_and(jsonb_typeof(c.value) IN ('string', 'null')) THEN
		string_agg(CASE
			WHEN jsonb_typeof(c.value) = 'null' THEN format('%I IS NULL', c.key)
			WHEN row_key IS NOT NULL THEN format('%I = %L', c.key, c.value #>> '{}')
			ELSE format('pg_catalog.format(''%%s'', %I) = %L AND %I IS NOT NULL',
				c.key, c.value #>> '{}', c.key) END, ' AND ' ORDER BY c.key) END
	FROM jsonb_each(coalesce(row_key, local_row)) c
$$;

COMMENT ON FUNCTION weft.row_condition(jsonb, jsonb) IS
	'the condition that selects a row of a difference';
REVOKE ALL ON FUNCTION weft.row_condition(jsonb, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.row_condition(jsonb, jsonb) TO PUBLIC;

-- Returns the statement that repairs a difference; NULL if a value has been cut.
CREATE FUNCTION weft.repair_statement(d weft.difference)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	-- format() would make an empty text of what is unknown
	SELECT CASE
		WHEN d.kind <> 'missing here' AND o.condition IS NULL
			OR d.kind = 'different' AND v.assignments IS NULL
			OR d.kind = 'missing here' AND v.texts IS NULL THEN NULL
		WHEN d.kind = 'missing there' THEN CASE
			WHEN d.key IS NOT NULL THEN
				format('DELETE FROM %s%s WHERE %s;', o.only_this, d.relation, o.condition)
			ELSE format('DELETE FROM %s%s WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM %s%s WHERE %s LIMIT %s);',
				o.only_this, d.relation, o.only_this, d.relation, o.condition, d.row_count) END
		WHEN d.kind = 'different' THEN
			format('UPDATE %s%s SET %s WHERE %s;', o.only_this, d.relation, v.assignments, o.condition)
		ELSE
			format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES %s;', d.relation, v.names,
				repeat('(' || v.texts || '), ', (d.row_count - 1)::integer) || '(' || v.texts || ')')
		END
	FROM pg_class t,
		LATERAL (SELECT CASE WHEN t.relkind = 'r' THEN 'ONLY ' ELSE '' END AS only_this,
			weft.row_condition(d.key, d.local_row) AS condition) o,
		LATERAL (SELECT string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) AS names,
			CASE WHEN bool_and(jsonb_typeof(d.publisher_row -> a.attname) IN ('string', 'null')) THEN
				string_agg(format('%L', d.publisher_row ->> a.attname), ', ' ORDER BY a.attnum) END AS texts,
			CASE WHEN bool_and(jsonb_typeof(d.publisher_row -> a.attname) IN ('string', 'null'))
				FILTER (WHERE a.attname = ANY (d.columns)) THEN
				string_agg(format('%I = %L', a.attname, d.publisher_row ->> a.attname), ', ' ORDER BY a.attnum)
				FILTER (WHERE a.attname = ANY (d.columns)) END AS assignments
			FROM pg_attribute a
			WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
				AND d.publisher_row ? a.attname) v
	WHERE t.oid = d.relation
$$;

COMMENT ON FUNCTION weft.repair_statement(weft.difference) IS
	'the statement that repairs a difference';
REVOKE ALL ON FUNCTION weft.repair_statement(weft.difference) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.repair_statement(weft.difference) TO PUBLIC;

-- Shows how a comparison's differences that have not been repaired could be repaired: dry run.
--
-- The statements contain the publisher's rows as the comparison has recorded them; the publisher
-- is not asked, and either side may have changed since.  They are in the order in which
-- "CALL weft.repair(comparison, apply := true)" goes through the differences, and they are quoted, so that they can be
-- executed here.  But then they are changes of the session: all triggers fire, foreign keys
-- are checked, the changes have no replication origin, and a row that apply has changed
-- meanwhile is overwritten.  A statement is a comment if the difference cannot be repaired
-- by text: because a value is too long to be recorded, or the table is gone.
CREATE FUNCTION weft.repair(
	comparison bigint,
	OUT difference bigint,
	OUT relation regclass,
	OUT statement text)
RETURNS SETOF record LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
	IF NOT EXISTS (SELECT FROM weft.comparison c WHERE c.comparison = repair.comparison) THEN
		RAISE EXCEPTION USING ERRCODE = 'undefined_object',
			MESSAGE = format('comparison %s does not exist', repair.comparison);
	END IF;
	RETURN QUERY
		SELECT d.difference, d.relation, coalesce(weft.repair_statement(d),
			format('-- difference %s: a value is too long to be shown, or nothing can be written', d.difference))
		FROM (SELECT e.*, min(e.difference) OVER (PARTITION BY e.relation) AS first_of_table
				FROM weft.difference e
				WHERE e.comparison = repair.comparison AND e.repair_result IS DISTINCT FROM 'repaired'
					AND e.repair_result IS DISTINCT FROM 'vanished') o
			JOIN weft.difference d ON d.comparison = o.comparison AND d.difference = o.difference
		ORDER BY o.first_of_table,
			CASE d.kind WHEN 'missing there' THEN 1 WHEN 'different' THEN 2 ELSE 3 END, d.difference;
END $$;

COMMENT ON FUNCTION weft.repair(bigint) IS
	'statements that would repair the differences of a comparison (dry run)';
REVOKE ALL ON FUNCTION weft.repair(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.repair(bigint) TO PUBLIC;

-- Repairs a comparison's differences: makes rows here what they are on the publisher.
--
-- apply: must be true.
-- batch_size: how many rows are written in one transaction, 1 to 10000.  If apply does not wait
--	that long, smaller batches are used.
-- lock_timeout: how long to wait for a row, or table, that a session has locked; it is left as it is then.
-- max_pause: for how long apply may stand still for a batch.
--
-- The caller owns the subscription, which must be enabled.  Each batch takes a cut: apply
-- stands at a position of the publisher, whose rows are read as of that position, and compared
-- with those here once more; what still differs is written, and apply goes on.  Therefore
-- nothing newer is overwritten.  What became of each difference is in weft.difference, and a
-- notice tells how many were repaired.  Calling it again tries again what has failed.
--
-- Rows are written as apply would: as the same role, with the triggers that fire on a replica,
-- without checks of foreign keys, and under the subscription's replication origin.  Columns
-- that the publisher does not have keep their values.  If rows have exchanged unique values, they are
-- deleted and inserted, and triggers fire for that.  Tables without a key are read as a
-- whole on the publisher for each batch, while apply stands: for large ones, increase max_pause.
--
-- If the comparison is one of two nodes of a group (weft.compare_node), then rows are written on
-- this node only, each with the time and the node of the version that wins, as if it had
-- arrived by replication.  It is not sent to other members.
-- winner: the name of one of the two nodes, whose rows win; a row that was changed here since
--	it was compared is left.  By default, the newer version of each row wins, or the newer
--	delete; a row whose version is known on neither node is left, and so is one of which this
--	server has forgotten when it was written (it was frozen, or track_commit_timestamp was off).
-- apply => false: writes nothing, but weft.difference.repair_reason says what would be done.
-- Tables with counters (weft.set_delta_columns), and tables without a key, are left.
--
-- Cannot be used within a transaction block, nor after weft.compare_subscription for a
-- subscription that detects conflicts.
-- Needs a free background worker (max_worker_processes), and SELECT on the tables there and here.
CREATE PROCEDURE weft.repair(
	comparison bigint,
	apply boolean,
	batch_size integer DEFAULT 100,
	lock_timeout interval DEFAULT '200 ms',
	max_pause interval DEFAULT '2 s',
	winner name DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_repair';

COMMENT ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) IS
	'makes the rows of a comparison''s differences equal to the publisher''s';
REVOKE ALL ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) FROM PUBLIC;
GRANT EXECUTE ON PROCEDURE weft.repair(bigint, boolean, integer, interval, interval, name) TO PUBLIC;

-- On the other member: who wrote a row or deleted it, and when (src/verify/member_version.h).

CREATE FUNCTION weft.member_row_version(relation oid, row_id tid)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_row_version';

COMMENT ON FUNCTION weft.member_row_version(oid, tid) IS
	'time and node of the transaction that wrote a row';
REVOKE ALL ON FUNCTION weft.member_row_version(oid, tid) FROM PUBLIC;

CREATE FUNCTION weft.member_delete_version(relation regclass, row_key uuid)
RETURNS text
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_member_delete_version';

COMMENT ON FUNCTION weft.member_delete_version(regclass, uuid) IS
	'time and node of the newest delete of a row';
REVOKE ALL ON FUNCTION weft.member_delete_version(regclass, uuid) FROM PUBLIC;


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
