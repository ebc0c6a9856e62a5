# Schema changes that cannot run in a transaction block: CREATE INDEX CONCURRENTLY and others.  They
# are announced when they are complete, and executed on the subscriber by a worker of their own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConcurrentDdlTest;
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my ($pub, $sub, $other) = start_servers();

# The publisher is dropping an index that subscribers do not have any more.
sub all_the_same_but_index
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach ([ $sub, 'sub' ], [ $other, 'other' ])
	{
		my ($node, $name) = @$_;

		wait_for_apply($pub, $node, $name);
		same_tables($pub, $node, ['unique_once'], "$what, $name");
	}
	return;
}

# --- each kind ---

query($pub, $_)
  foreach (
	'CREATE INDEX CONCURRENTLY t_v ON t (v)',
	'CREATE UNIQUE INDEX CONCURRENTLY "t ""x"" INDEX " ON t (w text_pattern_ops DESC, (v + 1)) INCLUDE (id) WITH (fillfactor = 80) WHERE id > 3',
	'CREATE INDEX CONCURRENTLY ON t (w, v)',
	'CREATE INDEX CONCURRENTLY ON t (w, v)',
	'CREATE INDEX CONCURRENTLY IF NOT EXISTS t_v ON t (w)',
	'CREATE INDEX CONCURRENTLY IF NOT EXISTS t_if ON t (w)',
	'INSERT INTO t VALUES (2000, 1, 1)',
	'REINDEX TABLE CONCURRENTLY t',
	'REINDEX INDEX CONCURRENTLY t_v',
	'DROP INDEX CONCURRENTLY t_w_v_idx',
	'DROP INDEX CONCURRENTLY IF EXISTS t_w_v_idx',
	'ALTER TABLE part DETACH PARTITION part_0 CONCURRENTLY',
	'CREATE TEMP TABLE mine (a int); CREATE INDEX CONCURRENTLY ON mine (a); DROP INDEX CONCURRENTLY mine_a_idx',
	'CREATE UNLOGGED TABLE fast (a int); CREATE INDEX CONCURRENTLY ON fast (a); DROP TABLE fast',
  );
all_the_same('all kinds');
is(states($sub), '', 'nothing is left');
is(results($sub, 'CREATE INDEX CONCURRENTLY t_v'),
	'applied', 'the history has them');
unlike(
	query($sub, 'SELECT string_agg(statement, $$;$$) FROM weft.ddl_history'),
	qr/REINDEX/,
	'REINDEX is not replicated');

# In the order in which they were complete, one at a time.
query($pub, $_)
  foreach (
	'CREATE INDEX CONCURRENTLY again ON t (v)',
	'DROP INDEX CONCURRENTLY again',
	'CREATE INDEX CONCURRENTLY again ON t (w)',
	'DROP INDEX CONCURRENTLY again',
	'CREATE INDEX CONCURRENTLY again ON t (v, w)');
all_the_same('in order');

# --- the stream goes on ---

my $session = hold_table($sub, 't');
query($pub, 'CREATE INDEX CONCURRENTLY slow ON t (v)');
query($pub, 'CREATE INDEX CONCURRENTLY slow_too ON t (w)');
waiting_worker($sub);
query($pub,
	'INSERT INTO t SELECT g, g FROM generate_series(3000, 3100) g; CREATE TABLE unrelated (id int); INSERT INTO unrelated VALUES (1); ALTER TABLE unrelated ADD v int DEFAULT 3'
);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM t WHERE id >= 3000'),
	101, 'rows are applied while an index is built');
is(query($sub, 'SELECT r FROM unrelated r'),
	'(1,3)', '... and schema changes of other tables');
query($pub, q{CREATE TYPE colour AS ENUM ('red')});
wait_for_apply($pub, $sub, 'sub');
is(query($sub, q{SELECT 'red'::colour}),
	'red', '... and those that are not about tables');
is(states($sub), "started|1\nwaiting|0",
	'... one is started, one is waiting');
is(results($sub, 'slow ON'), 'started', '... as the history shows');
$session->query_safe('COMMIT');
all_the_same('the stream goes on');

# --- a later schema change of the same table ---

# It waits for the worker.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY late ON t (v, id)');
waiting_worker($sub);
query($pub, 'ALTER INDEX late RENAME TO later');
later_change_waits($sub);
is(results($sub, 'RENAME TO later'), '', 'a later schema change waits');
$session->query_safe('COMMIT');
all_the_same('a later schema change');

# The later one has changed rows of the table in its transaction, so the worker waits for it.
my $log = -s $sub->logfile;
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY crossing ON t (v, id)');
waiting_worker($sub);
query($pub,
	'BEGIN; INSERT INTO t VALUES (4000, 1); ALTER TABLE t RENAME COLUMN v TO x; INSERT INTO t VALUES (4001, 2); COMMIT'
);
later_change_waits($sub);
$session->query_safe('COMMIT');
all_the_same('a deadlock');
like(
	slurp_file($sub->logfile, $log),
	qr/schema change \d+ of subscription "sub" is executed without CONCURRENTLY/,
	'... the later one has executed both');
query($pub, 'ALTER TABLE t RENAME COLUMN x TO v');
wait_for_apply($pub, $sub, 'sub');

# The copy of a table gets the indexes that the table has.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY copied ON t (v, id)');
waiting_worker($sub);
query($pub, 'CREATE TABLE copy (LIKE t INCLUDING INDEXES)');
later_change_waits($sub);
$session->query_safe('COMMIT');
all_the_same('a copy of the table');

# --- a unique index that is dropped: rows that it refuses may follow ---

query($pub,
	'CREATE TABLE unique_once (id int PRIMARY KEY, v int); CREATE UNIQUE INDEX unique_once_v ON unique_once (v); INSERT INTO unique_once VALUES (1, 1)'
);
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET (disable_on_error = true)');
{
	my $reader = open_session($sub);

	$reader->query_safe('BEGIN; SELECT * FROM unique_once');
	query($pub, 'DROP INDEX CONCURRENTLY unique_once_v');
	query($pub, 'INSERT INTO unique_once VALUES (2, 1)');
	writer_waits_for_lock($sub);
	$reader->query_safe('COMMIT');
	$reader->quit;
}
all_the_same('a unique index is dropped');
is( query(
		$sub, q{SELECT subenabled FROM pg_subscription WHERE subname = 'sub'}
	),
	't',
	'... and no row has failed');

# Such rows may be committed before the index is gone.
query($pub, 'CREATE UNIQUE INDEX unique_once_id ON unique_once ((id % 10))');
{
	my $earlier = open_session($pub);
	my $later = open_session($pub);
	my $dropping = open_session($pub);

	$earlier->query_safe('BEGIN; SELECT * FROM unique_once');
	$dropping->query_until(qr/begun/,
		"\\echo begun\nDROP INDEX CONCURRENTLY unique_once_id;\n\\echo dropped\n"
	);
	poll($pub,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^DROP INDEX' AND wait_event_type = 'Lock'}
	);
	$later->query_safe('BEGIN; SELECT * FROM unique_once');
	$earlier->query_safe('COMMIT');
	poll($pub,
		q{SELECT NOT indislive FROM pg_index WHERE indexrelid = 'unique_once_id'::regclass}
	);
	query($pub, 'INSERT INTO unique_once VALUES (12, 1)');
	all_the_same_but_index('rows before the index is gone');
	$later->query_safe('COMMIT');
	$dropping->query_until(qr/dropped/, '');
	$_->quit foreach $earlier, $later, $dropping;
}
all_the_same('... and after that');
query($sub, 'ALTER SUBSCRIPTION sub SET (disable_on_error = false)');

# --- a DETACH that is executed without CONCURRENTLY ---

# The server adds a constraint if it is executed concurrently.
query($pub, <<'EOS');
CREATE TABLE plain (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE plain_0 PARTITION OF plain FOR VALUES FROM (0) TO (100);
CREATE TABLE plain_1 PARTITION OF plain FOR VALUES FROM (100) TO (200) PARTITION BY LIST (v);
CREATE TABLE plain_1_a (id int, v int);
ALTER TABLE plain_1 ATTACH PARTITION plain_1_a FOR VALUES IN (1);
CREATE TABLE plain_2 PARTITION OF plain (CHECK (id IS NOT NULL AND id >= 200 AND id < 300))
	FOR VALUES FROM (200) TO (300);
INSERT INTO plain VALUES (1, 1), (101, 1), (201, 1);
CREATE TABLE tree (a int) PARTITION BY RANGE (a);
CREATE TABLE tree_0 PARTITION OF tree FOR VALUES FROM (0) TO (10);
CREATE INDEX tree_a ON ONLY tree (a);
CREATE TABLE hashed (id int) PARTITION BY HASH (id);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);
EOS
$log = -s $sub->logfile;
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY in_front ON t (v, id)');
waiting_worker($sub);

# Nothing keeps rows that do not belong there out of a partition by hash.
query($pub, 'ALTER TABLE hashed DETACH PARTITION hashed_0 CONCURRENTLY');
query($pub, 'INSERT INTO hashed_0 SELECT generate_series(1, 10)');
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM hashed_0'),
	10, 'rows of a partition by hash that is detached');

query($pub, 'CREATE INDEX CONCURRENTLY tree_0_a ON tree_0 (a)');
query($pub, "ALTER TABLE plain DETACH PARTITION $_ CONCURRENTLY")
  foreach 'plain_0', 'plain_1', 'plain_2';
query($pub, 'ALTER TABLE plain_2 ADD more int');
query($pub, 'ALTER INDEX tree_a ATTACH PARTITION tree_0_a');
later_change_waits($sub);
$session->query_safe('COMMIT');

# A session that waits on the subscriber has a snapshot, for which the worker waits.
$pub->wait_for_catchup('sub');
all_the_same('partitions detached, with schema changes behind them');
unlike(
	slurp_file($sub->logfile, $log),
	qr/is executed without CONCURRENTLY/,
	'... which wait');
unlike(
	slurp_file($sub->logfile, $log),
	qr/"tree_0_a" does not exist/,
	'an index that is attached waits until it is built');

# --- a subscriber that publishes on ---

query($pub,
	'CREATE TABLE hers (id int PRIMARY KEY); INSERT INTO hers VALUES (1), (2)'
);
wait_for_apply($pub, $sub, 'sub');
query($sub, 'CREATE PUBLICATION onward FOR TABLE hers WITH (ddl = table)');
my $connstr = $sub->connstr('postgres');
foreach ([ chain => "any" ], [ none => "none" ])
{
	my ($name, $origin) = @$_;
	query($other, "CREATE DATABASE $name");
	$other->safe_psql($name, <<"EOS");
CREATE EXTENSION weft;
CREATE TABLE hers (id int PRIMARY KEY, v int);
CREATE SUBSCRIPTION $name CONNECTION \$\$$connstr\$\$ PUBLICATION onward WITH (origin = $origin);
EOS
	ok( $other->poll_query_until(
			$name,
			q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}),
		"a next subscriber, origin = $origin");
}
query($pub, 'CREATE INDEX CONCURRENTLY chained ON hers (id DESC)');
ok( $other->poll_query_until(
		'chain',
		q{SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('chained')}
	),
	'a concurrent schema change is passed on');
query($sub,
	q{SET session_replication_role = replica; INSERT INTO hers VALUES (99)});
ok( $other->poll_query_until(
		'none', q{SELECT count(*) = 1 FROM hers WHERE id = 99}),
	'a later row');
is($other->safe_psql('none', q{SELECT to_regclass('chained')}),
	'', '... but the schema change not to those who want no foreign changes');
$other->safe_psql($_, "DROP SUBSCRIPTION $_") foreach 'chain', 'none';

# --- a subscription that is dropped ---

query($sub, 'DELETE FROM hers WHERE id = 99');
$session = hold_table($sub, 't');
query($pub, 'CREATE INDEX CONCURRENTLY orphan ON t (v, v)');
query($pub, 'CREATE INDEX CONCURRENTLY orphan_too ON t (v, v)');
waiting_worker($sub);
wait_for_apply($pub, $sub, 'sub');
query($sub, 'DROP SUBSCRIPTION sub');
is(states($sub), '', 'a subscription that is dropped forgets its statements');
$session->query_safe('COMMIT');
$session->quit;
query($sub,
	q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active}
);
subscribe($pub, $sub, 'next', 'pub', 'copy_data = false');
is(states($sub), '', '... for good');

stop_servers();
done_testing();
