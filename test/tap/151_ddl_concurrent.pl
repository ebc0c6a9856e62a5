# Schema changes that cannot run in a transaction block: CREATE INDEX CONCURRENTLY and others.  They
# are announced when they are complete, and executed on the subscriber by a worker of their own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use InjectionTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $with_injection = ($ENV{enable_injection_points} // '') eq 'yes';
my $conf = "wal_retrieve_retry_interval = 200ms\nrestart_after_crash = on\n";
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => $conf);
my $other = new_subscriber('other', conf => $conf);

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub, $other;
query_all(
	[ $pub, $sub, $other ],
	'CREATE ROLE alice; CREATE ROLE bob; GRANT CREATE ON SCHEMA public TO alice'
);
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub');
subscribe_with_pgoutput($pub, $other, 'other', 'pub');

# No statement is waiting.
sub done
{
	my ($node) = @_;
	poll($node,
		"SELECT count(*) = 0 FROM weft.ddl_concurrent WHERE state <> 'failed'"
	);
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach ([ $sub, 'sub', 'plugin weft' ], [ $other, 'other', 'pgoutput' ])
	{
		my ($node, $name, $plugin) = @$_;

		wait_for_apply($pub, $node, $name);
		done($node);
		same_everything($pub, $node, "$what, $plugin");
	}
	return;
}

# The same, with rows that were made different.
sub all_the_same_but_rows
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach ([ $sub, 'sub' ], [ $other, 'other' ])
	{
		my ($node, $name) = @$_;

		wait_for_apply($pub, $node, $name);
		done($node);
		same_schema($pub, $node, "$what, $name");
	}
	return;
}

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

# The states of the statements that are waiting, or have failed.
sub states
{
	my ($node) = @_;
	return query($node,
		'SELECT state, attempts FROM weft.ddl_concurrent ORDER BY id');
}

# How a statement has ended, as the history shows it.
sub results
{
	my ($node, $pattern) = @_;
	return query($node,
		"SELECT string_agg(result, ',' ORDER BY recorded_at) FROM weft.ddl_history WHERE statement ~ '$pattern'"
	);
}

sub is_valid
{
	my ($node, $index) = @_;
	return query($node,
		"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('$index')"
	);
}

# The worker's process, once it waits for another session.
sub waiting_worker
{
	my ($node) = @_;
	return poll_for(
		$node,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft ddl worker' AND wait_event_type = 'Lock'",
		sub { $_[0] =~ /^\d+$/ });
}

query($pub, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int, w text);
INSERT INTO t SELECT g, g % 100, g FROM generate_series(1, 1000) g;
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (100) TO (200);
INSERT INTO part SELECT g, g FROM generate_series(1, 150) g;
EOS

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
	query($pub, 'SELECT string_agg(statement, $$;$$) FROM weft.ddl_history'),
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

# The worker waits for a session that has written the table.
sub hold_table
{
	my ($node, $table) = @_;
	my $session = open_session($node);
	$session->query_safe("BEGIN; UPDATE $table SET id = id WHERE id = 3");
	return $session;
}

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
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
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
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
$session->query_safe('COMMIT');
all_the_same('a deadlock');
like(
	slurp_file($sub->logfile, $log),
	qr/schema change \d+ of subscription "sub" is executed without CONCURRENTLY/,
	'... the later one has executed both');
query($pub, 'ALTER TABLE t RENAME COLUMN x TO v');

# The copy of a table gets the indexes that the table has.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY copied ON t (v, id)');
waiting_worker($sub);
query($pub, 'CREATE TABLE copy (LIKE t INCLUDING INDEXES)');
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
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
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
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

# --- an index that exists already ---

sub detail
{
	my ($node, $pattern) = @_;
	return query($node,
		"SELECT result, detail FROM weft.ddl_history WHERE statement ~ '$pattern' ORDER BY recorded_at DESC LIMIT 1"
	);
}

sub failed_id
{
	my ($node, $pattern) = @_;
	return poll_for($node,
		"SELECT id FROM weft.ddl_concurrent WHERE state = 'failed' AND message->>'statement' ~ '$pattern'"
	);
}

query($sub, 'CREATE INDEX same ON t (v, lower(w)) WHERE id > 5');
query($pub, 'CREATE INDEX CONCURRENTLY same ON t (v, lower(w)) WHERE id > 5');
all_the_same('an index that exists already');
is( detail($sub, 'same ON'),
	'applied|it existed already',
	'... as the history shows');

query($sub, 'CREATE INDEX another ON t (w, v)');
query($pub, 'CREATE INDEX CONCURRENTLY another ON t (v)');
my $id = failed_id($sub, 'another');
is( detail($sub, 'another'),
	'failed|index "another" exists already, with another definition',
	'one with another definition');
my ($ret, $out, $err) =
  $sub->psql('postgres', "SET ROLE alice; SELECT weft.retry_ddl('sub', $id)");
like(
	$err,
	qr/must be owner of subscription sub/,
	'a stranger cannot retry it');
($ret, $out, $err) =
  $sub->psql('postgres', "SET ROLE alice; SELECT weft.skip_ddl('sub', $id)");
like($err, qr/must be owner of subscription sub/, '... nor give it up');
query($sub, "BEGIN; SELECT weft.retry_ddl('sub', $id); ROLLBACK");
is(states($sub), 'failed|3', '... and it takes a commit');
query($sub, "DROP INDEX another; SELECT weft.retry_ddl('sub', $id)");
all_the_same('... is built by hand');
is(states($sub), '', '... and is not a failure any more');
($ret, $out, $err) =
  $sub->psql('postgres', "SELECT weft.retry_ddl('sub', $id)");
like($err, qr/has not failed, or is no concurrent one/, '... only once');

# A session here builds the same one at the same time.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
my $building = open_session($sub);
$building->query_until(qr/begun/,
	"\\echo begun\nCREATE INDEX CONCURRENTLY twofold ON t (w, id);\n");
poll($sub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND wait_event_type = 'Lock'}
);
query($pub, 'CREATE INDEX CONCURRENTLY twofold ON t (w, id)');
waiting_worker($sub);
$session->query_safe('COMMIT');
$building->query_safe('SELECT 1');
all_the_same('an index that is being built');
is( detail($sub, 'twofold ON'),
	'applied|it existed already',
	'... by nobody else');
$building->quit;

# An invalid index of a session here is left alone.
query_all(
	[ $sub, $other ],
	q{SET session_replication_role = replica; UPDATE t SET w = 'twice' WHERE id IN (10, 11)}
);
$sub->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY theirs ON t (w)');
is(is_valid($sub, 'theirs'), 'f', 'a build of a session here fails');
query($pub, 'CREATE INDEX CONCURRENTLY theirs ON t (w)');
$id = failed_id($sub, 'theirs');
is( detail($sub, 'theirs'),
	'failed|index "theirs" exists already, and is not valid',
	'... its index is not taken for one of Weft');
is(is_valid($sub, 'theirs'), 'f', '... nor dropped');
query($sub, "DROP INDEX theirs; SELECT weft.retry_ddl('sub', $id)");
all_the_same_but_rows('... but built once it is gone');

# The publisher drops an index that could not be built here.
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY hopeless ON t (w) WHERE id < 100');
failed_id($_, 'hopeless') foreach $sub, $other;
my $errors = query($sub, 'SELECT errors FROM weft.stat_subscription');
query($pub, 'DROP INDEX hopeless');
all_the_same_but_rows('a DROP INDEX of what has failed');
is(states($sub), '', '... which nobody needs any more');
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY hopeless ON t (w) WHERE id < 100');
failed_id($_, 'hopeless') foreach $sub, $other;
query($pub, 'DROP INDEX CONCURRENTLY hopeless');
all_the_same_but_rows('a DROP INDEX CONCURRENTLY of what has failed');
is(states($sub), '', '... which nobody needs, either');
like(
	detail($sub, 'CREATE UNIQUE INDEX CONCURRENTLY hopeless'),
	qr/^skipped\|schema change \d+ has dropped the index$/,
	'... as the history shows');

# One that fails when a later schema change needs its result does not stop the stream.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY in_the_way ON t (w) WHERE id < 100');
waiting_worker($sub);
query($pub, 'ALTER TABLE t ADD COLUMN more int');
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
$session->query_safe('COMMIT');
wait_for_apply($pub, $_->[0], $_->[1])
  foreach [ $sub, 'sub' ], [ $other, 'other' ];
$id = failed_id($sub, 'in_the_way');
is(query($sub, 'SELECT errors FROM weft.stat_subscription'),
	$errors, 'a failure does not stop the subscription');
query($sub, "SELECT weft.skip_ddl('sub', $id)");
is(states($sub), '', 'it is given up by hand');
is( detail($sub, 'in_the_way'),
	'skipped|applied by hand, by role "'
	  . query($sub, 'SELECT current_user') . '"',
	'... as the history shows');
($ret, $out, $err) =
  $sub->psql('postgres', "SELECT weft.skip_ddl('sub', $id)");
like($err, qr/has not failed/, '... only once');
query($other,
	"SELECT weft.skip_ddl('other', " . failed_id($other, 'in_the_way') . ')');
query_all([ $sub, $other ], <<'EOS');
SET session_replication_role = replica;
UPDATE t SET w = id WHERE id IN (10, 11);
CREATE UNIQUE INDEX in_the_way ON t (w) WHERE id < 100;
EOS
query($pub, 'DROP INDEX in_the_way; ALTER TABLE t DROP COLUMN more');
all_the_same('what was made by hand is dropped');

# There is nothing to drop if it was given up, and not made by hand.
foreach my $concurrently ('', 'CONCURRENTLY ')
{
	query_all(
		[ $sub, $other ],
		q{SET session_replication_role = replica; UPDATE t SET w = 'twice' WHERE id IN (10, 11)}
	);
	query($pub,
		'CREATE UNIQUE INDEX CONCURRENTLY given_up ON t (w) WHERE id < 100');
	query($sub,
		"SELECT weft.skip_ddl('sub', " . failed_id($sub, 'given_up') . ')');
	query($other,
			"SELECT weft.skip_ddl('other', "
		  . failed_id($other, 'given_up')
		  . ')');
	query($pub, "DROP INDEX ${concurrently}given_up");
	query_all(
		[ $sub, $other ],
		q{SET session_replication_role = replica; UPDATE t SET w = id WHERE id IN (10, 11)}
	);
	all_the_same("DROP INDEX ${concurrently}of what was given up");
	is( detail($sub, "^DROP INDEX ${concurrently}given_up"),
		'applied|there was no index public.given_up, whose creation had been given up',
		'... as the history shows');
}

# --- failures ---

query_all([ $sub, $other ], <<'EOS');
SET session_replication_role = replica;
UPDATE t SET w = 'twice' WHERE id IN (10, 11);
EOS
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY only_once ON t (w) WHERE id < 100');
query($pub, 'CREATE INDEX CONCURRENTLY behind ON t (v DESC)');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	q{SELECT count(*) = 1 FROM weft.ddl_concurrent WHERE state = 'failed'});
done($sub);
is(states($sub), 'failed|3', 'a statement that fails is tried three times');
is( query($sub, q{SELECT last_error FROM weft.ddl_concurrent}),
	'could not create unique index "only_once"',
	'... its error is kept');
is(results($sub, 'only_once'), 'failed', '... the history shows it');
is(is_valid($sub, 'only_once'), '', '... no invalid index is left');
is(is_valid($sub, 'behind'), 't', '... and the next one is executed');
like(
	slurp_file($sub->logfile, $log),
	qr/schema change \d+ of subscription "sub" has failed.*HINT: +Remove the cause, and run SELECT weft.retry_ddl\('sub', \d+\)/s,
	'... the log has the remedy');

# A later statement about a failed one does not wait.
query_all(
	[ $sub, $other ],
	q{SET session_replication_role = replica; UPDATE t SET w = id WHERE id IN (10, 11)}
);
poll($other,
	q{SELECT count(*) = 1 FROM weft.ddl_concurrent WHERE state = 'failed'});
query_all([ $sub, $other ],
	'CREATE UNIQUE INDEX CONCURRENTLY only_once ON t (w) WHERE id < 100');
all_the_same('executed by hand');

# --- an invalid index of the publisher ---

# Nobody else knows it.
query($pub, q{INSERT INTO t VALUES (5000, 1, 'same'), (5001, 2, 'same')});
($ret, $out, $err) =
  $pub->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY failing ON t (w)');
like(
	$err,
	qr/could not create unique index/,
	'a build fails on the publisher');
is(is_valid($pub, 'failing'), 'f', '... and leaves an invalid index');
query($pub, 'DROP INDEX failing');
query($pub, q{DELETE FROM t WHERE id = 5001});
all_the_same('an invalid index is dropped');

# REINDEX completes it.
foreach my $reindex ('INDEX CONCURRENTLY failing', 'TABLE t')
{
	query($pub, q{INSERT INTO t VALUES (5001, 2, 'same')});
	$pub->psql('postgres',
		q{CREATE UNIQUE INDEX CONCURRENTLY failing ON t (w) WHERE w = 'same'}
	);
	is(is_valid($pub, 'failing'), 'f', 'a build fails again');
	query($pub, q{DELETE FROM t WHERE id = 5001});
	query($pub, "REINDEX $reindex");
	is(is_valid($pub, 'failing'), 't', "REINDEX $reindex");
	all_the_same('... makes an index');
	query($pub, 'DROP INDEX failing');
}
query($pub, <<'EOS');
CREATE TABLE parted (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (0), (1);
CREATE INDEX parted_index ON ONLY parted ((1 / a));
EOS
$pub->psql('postgres',
	'CREATE INDEX CONCURRENTLY parted_0_index ON parted_0 ((1 / a))');
my $attach = 'ALTER INDEX parted_index ATTACH PARTITION parted_0_index';
($ret, $out, $err) = $pub->psql('postgres', $attach);
like(
	$err,
	qr/cannot replicate that the invalid index "parted_0_index" is attached/,
	'an invalid index cannot be attached');
query($pub,
	"DELETE FROM parted WHERE a = 0; REINDEX INDEX parted_0_index; $attach");
all_the_same('... until it is valid');

# A DROP INDEX that is interrupted leaves one, too.
my $blocker = hold_table($pub, 't');
my $dropping = open_session($pub);
my $pid = $dropping->query_safe('SELECT pg_backend_pid()');
$dropping->query_until(qr/begun/,
	"\\echo begun\nDROP INDEX CONCURRENTLY behind;\n");
poll($pub,
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$pub->stop('immediate');
eval { $_->quit } foreach $blocker, $dropping;
$pub->start;
is(is_valid($pub, 'behind'), 'f', 'a DROP INDEX that was interrupted');
wait_for_apply($pub, $sub, 'sub');
is(is_valid($sub, 'behind'), 't', '... is not announced');
query($pub, 'DROP INDEX CONCURRENTLY behind');
all_the_same('... until it is repeated');

# So does a CREATE INDEX: the next one gets another name.
$blocker = hold_table($pub, 't');
my $creating = open_session($pub);
$pid = $creating->query_safe('SELECT pg_backend_pid()');
$creating->query_until(qr/begun/,
	"\\echo begun\nCREATE INDEX CONCURRENTLY ON t (w DESC);\n");
poll($pub,
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$pub->stop('immediate');
eval { $_->quit } foreach $blocker, $creating;
$pub->start;
query($pub, 'CREATE INDEX CONCURRENTLY ON t (w DESC)');
query($pub, 'CREATE INDEX ON t (w DESC)');
query($pub,
	q{DO $$ BEGIN EXECUTE (SELECT 'DROP INDEX ' || indexrelid::regclass FROM pg_index WHERE NOT indisvalid); END $$}
);
all_the_same('a CREATE INDEX that was interrupted');

# And a DETACH, which FINALIZE completes.
$blocker = open_session($pub);
$blocker->query_safe('BEGIN; SELECT count(*) FROM part');
my $detaching = open_session($pub);
$pid = $detaching->query_safe('SELECT pg_backend_pid()');
$detaching->query_until(qr/begun/,
	"\\echo begun\nALTER TABLE part DETACH PARTITION part_1 CONCURRENTLY;\n");
poll($pub,
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$pub->stop('immediate');
eval { $_->quit } foreach $blocker, $detaching;
$pub->start;
query($pub, 'ALTER TABLE part DETACH PARTITION part_1 FINALIZE');

# Without CONCURRENTLY, it would leave no constraint behind.
foreach ([ $sub, 'sub' ], [ $other, 'other' ])
{
	wait_for_apply($pub, @$_);
	done($_->[0]);
}
query($pub,
	'CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200); INSERT INTO part VALUES (150)'
);
all_the_same('a DETACH that was interrupted');

# --- crashes of the subscriber ---

# In the middle of a build.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY crashed ON t (v, w)');
waiting_worker($sub);
$sub->stop('immediate');
eval { $session->quit };
$sub->start;
all_the_same('a crash in the middle of a build');

# The worker is told to end.
$session = hold_table($sub, 't');
query($pub, 'CREATE INDEX CONCURRENTLY terminated ON t (v, w)');
$pid = waiting_worker($sub);
query($sub, "SELECT pg_terminate_backend($pid)");
$pid = poll_for(
	$sub,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft ddl worker' AND wait_event_type = 'Lock'",
	sub { $_[0] =~ /^\d+$/ && $_[0] != $pid });
is( query(
		$sub,
		q{SELECT attempts FROM weft.ddl_concurrent WHERE state = 'started'}),
	1,
	'a worker that was told to end has not failed');
query($sub, "SELECT pg_cancel_backend($pid)");
$session->query_safe('COMMIT');
all_the_same('a worker that was terminated, and one that was cancelled');

# The leader ends, and starts again, while the worker is at work.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY outlived ON t (v, w)');
$pid = waiting_worker($sub);
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
query($pub, 'INSERT INTO t VALUES (6000, 1)');
wait_for_apply($pub, $sub, 'sub');
is(waiting_worker($sub), $pid, 'the worker outlives the leader');
$session->query_safe('COMMIT');
all_the_same('... and nothing is done twice');

# In the detach of a partition.
$session->query_safe('BEGIN; SELECT count(*) FROM part');
query($pub, 'ALTER TABLE part DETACH PARTITION part_2 CONCURRENTLY');
waiting_worker($sub);
$sub->stop('immediate');
eval { $session->quit };
$sub->start;
all_the_same('a crash in the middle of a DETACH');

SKIP:
{
	skip 'the server was built without injection points', 8
	  unless $with_injection;

	# The build is complete, but not committed.
	attach_point($sub, 'weft-ddl-worker-done');
	query($pub, 'CREATE INDEX CONCURRENTLY complete ON t (id, v, w)');
	my ($held) = held_at($sub, 'weft-ddl-worker-done');
	$log = -s $sub->logfile;
	kill_process($held);
	$sub->wait_for_log(qr/database system is ready to accept connections/,
		$log);
	poll($sub,
		'SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL'
	);
	all_the_same('a crash when the build is complete');

	# Nothing has been done.
	attach_point($sub, 'weft-ddl-worker-begin');
	query($pub, 'CREATE INDEX CONCURRENTLY not_begun ON t (id, v, w)');
	($held) = held_at($sub, 'weft-ddl-worker-begin');
	$log = -s $sub->logfile;
	kill_process($held);
	$sub->wait_for_log(qr/database system is ready to accept connections/,
		$log);
	poll($sub,
		'SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL'
	);
	all_the_same('a crash before the build');
}

# --- rights ---

# Settings of the role are meant for its sessions.
query($sub, "ALTER ROLE alice SET $_ = '1ms'")
  foreach 'lock_timeout', 'statement_timeout', 'transaction_timeout',
  'idle_in_transaction_session_timeout';
query($sub, "ALTER ROLE alice SET $_")
  foreach 'default_transaction_read_only = on',
  q{default_transaction_isolation = 'serializable'},
  q{search_path = 'nowhere'};
query($sub, q{ALTER DATABASE postgres SET lock_timeout = '1ms'});
query($pub, <<'EOS');
SET ROLE alice;
CREATE TABLE timed (id int PRIMARY KEY);
EOS
wait_for_apply($pub, $sub, 'sub');
$session = open_session($sub);
$session->query_safe('BEGIN; INSERT INTO timed VALUES (1)');
query($pub,
	'SET ROLE alice; CREATE INDEX CONCURRENTLY timed_id ON timed (id)');
waiting_worker($sub);
$session->query_safe('ROLLBACK');
$session->quit;
all_the_same('settings of the role');
query($sub, 'ALTER ROLE alice RESET ALL; ALTER DATABASE postgres RESET ALL');

# The table gets another owner once it is released, and before the schema change is published: at last, the
# build waits for older snapshots.
query_all([ $pub, $sub, $other ], 'GRANT CREATE ON SCHEMA public TO bob');
$blocker = open_session($pub);
$blocker->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $alice = open_session($pub);
$alice->query_until(qr/begun/,
	"SET ROLE alice;\n\\echo begun\nCREATE INDEX CONCURRENTLY owned ON timed (id, id);\n"
);
poll($pub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^CREATE INDEX CONCURRENTLY owned' AND wait_event_type = 'Lock'}
);
my $giving = open_session($pub);
$giving->query_until(qr/begun/,
	"\\echo begun\nALTER TABLE timed OWNER TO bob;\n");
poll($pub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^ALTER TABLE timed' AND wait_event_type = 'Lock'}
);
$blocker->query_safe('ROLLBACK');
$_->query_safe('SELECT 1') foreach $alice, $giving;
$_->quit foreach $blocker, $alice, $giving;
all_the_same('another owner');

# The worker's session belongs to the role of the statement.  The function would fail on the
# publisher if it were not called by a superuser's session there.
query_all([ $pub, $sub, $other ], <<'EOS');
CREATE FUNCTION show(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$
BEGIN
	IF $1 = 1 THEN
		BEGIN
			RESET SESSION AUTHORIZATION;
			RAISE LOG 'session user of the build: %', session_user;
		EXCEPTION WHEN OTHERS THEN
			RAISE LOG 'session user of the build: %, %', session_user, SQLERRM;
		END;
	END IF;
	RETURN $1;
END $f$;
EOS
query($pub, <<'EOS');
SET ROLE alice;
CREATE TABLE hers (id int PRIMARY KEY);
INSERT INTO hers VALUES (1), (2);
EOS
$log = -s $sub->logfile;
query($pub,
	'SET ROLE alice; CREATE INDEX CONCURRENTLY hers_show ON hers (show(id))');
all_the_same('as another role');
like(
	slurp_file($sub->logfile, $log),
	qr/session user of the build: alice/,
	'the worker is a session of the role');
unlike(
	slurp_file($sub->logfile, $log),
	qr/session user of the build: (?!alice)/,
	'... and of nobody else');

query($sub, 'CREATE ROLE writer IN ROLE pg_write_all_data, pg_read_all_data');
foreach my $sql (
	'INSERT INTO weft.ddl_concurrent VALUES (1)',
	'TRUNCATE weft.ddl_concurrent',
	'DELETE FROM weft.ddl_concurrent')
{
	($ret, $out, $err) =
	  $sub->psql('postgres', "SET session_replication_role = replica; $sql");
	like($err, qr/cannot be changed|cannot delete/, "refused: $sql");
}

# --- no background worker is available ---

# The launcher and the leader have all of them.
$other->append_conf('postgresql.conf', 'max_worker_processes = 2');
$log = -s $other->logfile;
$other->restart;
query($pub, 'CREATE INDEX CONCURRENTLY no_worker ON t (v, v, id)');
query($pub, 'INSERT INTO t VALUES (7000, 1)');
$other->wait_for_log(
	qr/no background worker is available for schema change \d+ of subscription "other"/,
	$log);
wait_for_apply($pub, $other, 'other');
is(query($other, 'SELECT count(*) FROM t WHERE id = 7000'),
	1, 'rows do not wait for a background worker');
like(states($other), qr{waiting\|0$}, '... and the schema change does');
$other->append_conf('postgresql.conf', 'max_worker_processes = 30');
$other->restart;
all_the_same('a background worker is available again');

# --- a subscriber that publishes on ---

query($sub, 'CREATE PUBLICATION onward FOR TABLE hers WITH (ddl = table)');
query($other, 'CREATE DATABASE chain');
my $connstr = $sub->connstr('postgres');
foreach ([ chain => "any" ], [ none => "none" ])
{
	my ($name, $origin) = @$_;
	query($other, "CREATE DATABASE $name") if $name eq 'none';
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

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub, $other;

$_->stop foreach $sub, $other, $pub;
done_testing();
