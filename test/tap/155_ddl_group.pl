# Schema changes of a node group that need no lock: every member makes them for all, new tables
# belong to the group, rows that need a schema change wait for it, and a node joins while the
# schema changes all the time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

sub same_on_members
{
	my ($what, @members) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	@members = @nodes unless @members;
	wait_for_group('g', @members);
	my $expected = all_rows($members[0]);
	foreach my $member (@members[ 1 .. $#members ])
	{
		my $which = "$what: a and " . $member->name;

		same_schema($members[0], $member, "$which: same schema");
		is(all_rows($member), $expected, "$which: same rows");
	}
	return;
}

# What one member gets of another one is held back, or goes on.
sub hold
{
	my ($from, $to) = @_;
	pause_subscription($to, subscription_name('g', $from, $to));
	return;
}

sub let_go
{
	my ($from, $to) = @_;
	query($to,
			'ALTER SUBSCRIPTION '
		  . subscription_name('g', $from, $to)
		  . ' ENABLE');
	return;
}

sub errors
{
	return query($_[0], 'SELECT sum(errors) FROM weft.stat_subscription');
}

sub waiting_for
{
	my ($from, $to) = @_;
	return query(
		$to,
		sprintf
		  "SELECT waiting_for FROM weft.node_replication WHERE from_node = '%s' AND to_node = '%s'",
		$from->name,
		$to->name);
}

sub poll_waiting_for
{
	my ($from, $to, $what) = @_;
	return poll(
		$to,
		sprintf(
			"SELECT waiting_for FROM weft.node_replication WHERE from_node = '%s' AND to_node = '%s'",
			$from->name, $to->name),
		$what);
}

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v varchar(5), n int NOT NULL DEFAULT 0);
CREATE TABLE big (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
EOS
query($a, $rows_of);
create_group($a, 'g');
join_group($b, $a, 'g');
join_group($c, $a, 'g');
is( query(
		$_, q{SELECT label FROM pg_seclabels WHERE objtype = 'publication'}),
	'ddl=all',
	$_->name . ' publishes schema changes') foreach @nodes;

# Statements of each member, with rows behind them in the same transaction.
query($a, <<'EOS');
ALTER TABLE t ADD COLUMN x int DEFAULT 7;
BEGIN;
CREATE TABLE t2 (id int PRIMARY KEY, v text);
INSERT INTO t2 VALUES (1, 'from a');
COMMIT;
CREATE TABLE no_key (v int);
CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree, t int REFERENCES t2);
INSERT INTO tree VALUES (1, NULL, 1), (2, 1, 1);
EOS
wait_for_group('g', @nodes);
is(query($_, 'SELECT count(*) FROM tree'), 2, $_->name . ': foreign keys')
  foreach @nodes;
query($b, <<'EOS');
INSERT INTO t2 VALUES (2, 'from b');
CREATE INDEX ON t2 (v);
CREATE TYPE mood AS ENUM ('sad');
CREATE TABLE t3 (id int PRIMARY KEY, m mood);
INSERT INTO t3 VALUES (1, 'sad');
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE RETURN $1 * 2;
EOS
wait_for_group('g', @nodes);
query($c, <<'EOS');
INSERT INTO t3 VALUES (2, 'sad');
INSERT INTO t2 VALUES (3, 'from c');
UPDATE t2 SET v = v || ' c' WHERE id = 1;
DELETE FROM t3 WHERE id = 1;
CREATE VIEW sums AS SELECT sum(twice(x)) FROM t;
COMMENT ON TABLE t2 IS 'two';
GRANT SELECT ON t2 TO public;
EOS
same_on_members('each member');
is(query($_, 'SELECT * FROM sums'),
	28, 'a view and a function are on ' . $_->name)
  foreach @nodes;
is( query(
		$_,
		q{SELECT count(*) FROM pg_trigger WHERE tgrelid = 't2'::regclass AND tgname LIKE 'weft_record%'}
	),
	2,
	'a new table remembers deleted rows on ' . $_->name) foreach @nodes;
is( query(
		$_,
		q{SELECT count(*) FROM pg_subscription_rel WHERE srrelid = 't3'::regclass AND srsubstate = 'r'}
	),
	2,
	'a new table belongs to all subscriptions of ' . $_->name) foreach @nodes;

# A new key is remembered, too.
query($a, 'ALTER TABLE no_key ADD COLUMN id int PRIMARY KEY');
same_on_members('a new key');
is( query(
		$_,
		q{SELECT count(*) FROM pg_trigger WHERE tgrelid = 'no_key'::regclass AND tgname LIKE 'weft_record%'}
	),
	2,
	'a table with a new key remembers deleted rows on ' . $_->name
) foreach @nodes;

# What a session does not publish stays where it is, and so does what is about it.
query($a, <<'EOS');
SET weft.ddl_replication = off;
CREATE TABLE only_a (id int);
RESET weft.ddl_replication;
ALTER TABLE only_a ADD COLUMN v int;
CREATE INDEX ON only_a (v);
INSERT INTO only_a VALUES (1, 1);
DROP TABLE only_a;
EOS
same_on_members('a table of one member');

# Rows from c arrive at b before the schema changes of a that they need.
my %errors = map { $_->name => errors($_) } @nodes;
foreach my $case (
	[
		'a new column',
		'ALTER TABLE t ADD COLUMN y text',
		q{INSERT INTO t (id, y) VALUES (10, 'new'); UPDATE t SET y = 'old' WHERE id = 1},
		'column y of table public.t'
	],
	[
		'a new table',
		'CREATE TABLE t4 (id int PRIMARY KEY)',
		'INSERT INTO t VALUES (11); INSERT INTO t4 VALUES (1), (2)',
		'table public.t4'
	],
	[
		'a longer column',
		'ALTER TABLE t ALTER v TYPE varchar(50)',
		q{UPDATE t SET v = 'a longer value' WHERE id = 2},
		'wider column v of table public.t'
	],
	[
		'a new value of an enum',
		q{ALTER TYPE mood ADD VALUE 'happy'},
		q{INSERT INTO t3 VALUES (3, 'happy')},
		'the end of an error'
	],
	[
		'a column that may be null',
		'ALTER TABLE t ALTER n DROP NOT NULL',
		'UPDATE t SET n = NULL WHERE id = 1',
		'the end of an error'
	],
	[
		'a schema change that needs another one',
		'ALTER TABLE t ADD COLUMN z int',
		'CREATE INDEX t_z ON t (z)',
		'the end of an error'
	],
	[
		'a truncated new table',
		'CREATE TABLE t5 (id int PRIMARY KEY)',
		'TRUNCATE t5; INSERT INTO t5 VALUES (1)',
		'table public.t5'
	],)
{
	my ($what, $change, $rows, $waiting) = @$case;

	hold($a, $b);
	query($a, $change);
	wait_for_apply($a, $c, subscription_name('g', $a, $c));
	query($c, $rows);
	query($c, "INSERT INTO t2 SELECT max(id) + 1, 'behind' FROM t2");
	poll_waiting_for($c, $b, $waiting);
	pass("$what: the member shows it");
	is( query(
			$b,
			q{SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
			WHERE a.wait_event = 'WeftSchema' AND l.locktype IN ('relation', 'tuple', 'transactionid')}
		),
		0,
		"$what: without locks");
	let_go($a, $b);
	same_on_members($what);
	is(waiting_for($c, $b), '', "$what: no longer");
}
is(errors($_), $errors{ $_->name }, 'no errors on ' . $_->name)
  foreach @nodes;

# c updates a row after a has set a new column of it that c does not know: c's row wins, as a whole.
query($a,
	'CREATE TABLE filled (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED)'
);
query($a, 'INSERT INTO filled VALUES (1, 1), (2, 1)');
wait_for_group('g', @nodes);
hold($a, $c);
query($a, 'ALTER TABLE filled ADD COLUMN w int, ADD COLUMN x int DEFAULT 7');
query($a, 'UPDATE filled SET w = 1, x = 1');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
query($c, 'UPDATE filled SET v = 5 WHERE id = 1');
wait_for_apply($c, $_, subscription_name('g', $c, $_)) foreach $a, $b;
let_go($a, $c);
same_on_members('a column that is filled');
is(query($c, 'SELECT * FROM filled ORDER BY id'),
	"1|5|10||7\n2|1|2|1|1", 'the later update wins');

# A transaction that is longer than the ring waits as well.
set_conf($b, 'weft.ring_size' => '64kB');
hold($c, $b);
let_go($c, $b);
hold($a, $b);
query($a, 'CREATE TABLE t6 (id int PRIMARY KEY)');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c, <<'EOS');
BEGIN;
INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i;
INSERT INTO t6 VALUES (1);
COMMIT;
EOS
poll_waiting_for($c, $b, 'table public.t6');
let_go($a, $b);
same_on_members('a long transaction');
is(errors($b), $errors{ $b->name },
	'no errors because of a long transaction');

# A member that waits is killed.
hold($a, $b);
query($a, 'ALTER TABLE t ADD COLUMN after_crash int');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c, 'UPDATE t SET after_crash = id');
poll_waiting_for($c, $b, 'column after_crash of table public.t');
$b->stop('immediate');
$b->start;
poll_waiting_for($c, $b, 'column after_crash of table public.t');
let_go($a, $b);
same_on_members('a crash');

# After some time it is an error, which ends by itself.
set_conf($b, 'weft.ddl_wait_timeout' => '200ms');
hold($a, $b);
query($a, 'ALTER TABLE t ADD COLUMN late int');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
my $before = query($b, 'SELECT clock_timestamp()');
query($c, 'UPDATE t SET late = id');
my ($error) = apply_error($b, subscription_name('g', $c, $b), $before);
like(
	$error,
	qr/missing replicated column: "late"/,
	'the error of the server after weft.ddl_wait_timeout');
let_go($a, $b);
same_on_members('after the time-out');

# A column that a has dropped is ignored in rows of c that still carry it; b has dropped it, c has not.
set_conf($b, 'weft.ddl_wait_timeout' => '1min');
query($b, 'ALTER TABLE t2 ADD COLUMN gone text, ADD COLUMN stays int');
wait_for_group('g', @nodes);
%errors = map { $_->name => errors($_) } @nodes;
hold($a, $c);
query($a, 'SET weft.ddl_lock = none; ALTER TABLE t2 DROP COLUMN gone');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
query($c, <<'EOS');
INSERT INTO t2 (id, v, gone, stays) VALUES (100, 'v', 'gone', 1);
UPDATE t2 SET gone = 'x', stays = 2 WHERE id = 2;
DELETE FROM t2 WHERE id = 3;
BEGIN;
ALTER TABLE t2 ADD COLUMN new int;
UPDATE t2 SET new = 5, gone = 'y' WHERE id = 1;
INSERT INTO t2 SELECT i, repeat('v', 50), 'gone', i, i FROM generate_series(1000, 1200) i;
COMMIT;
UPDATE t2 SET stays = 3;
EOS
wait_for_apply($c, $b, subscription_name('g', $c, $b));
wait_for_apply($c, $a, subscription_name('g', $c, $a));
let_go($a, $c);
same_on_members('a dropped column');
is(query($b, 'SELECT stays, new FROM t2 WHERE id = 1'),
	'3|5', 'the other columns are there');
is(errors($_), $errors{ $_->name }, 'no errors on ' . $_->name)
  foreach @nodes;

# A dropped table: its rows are ignored after the time-out, unless it comes back.
query($a,
	'CREATE TABLE doomed (id int PRIMARY KEY, v int); INSERT INTO doomed VALUES (1, 1)'
);
wait_for_group('g', @nodes);
hold($a, $c);
query($a, 'SET weft.ddl_lock = none; DROP TABLE doomed');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
query($c, 'INSERT INTO doomed VALUES (2, 2); UPDATE doomed SET v = 3');
poll_waiting_for($c, $b, 'table public.doomed');
set_conf($_, 'weft.ddl_wait_timeout' => '1ms') foreach ($a, $b);
query($c, 'INSERT INTO t2 (id) VALUES (5000); TRUNCATE doomed');
wait_for_apply($c, $b, subscription_name('g', $c, $b));
wait_for_apply($c, $a, subscription_name('g', $c, $a));
set_conf($_, 'weft.ddl_wait_timeout' => '1min') foreach ($a, $b);
let_go($a, $c);
wait_for_group('g', @nodes);
query($a, 'CREATE TABLE doomed (id int PRIMARY KEY)');
wait_for_group('g', @nodes);
query($c, 'INSERT INTO doomed VALUES (1)');
same_on_members('a dropped table');

# The same statement of two members, of which neither has seen the other, counts once.
hold($a, $b);
hold($b, $a);
foreach my $node ($a, $b)
{
	query($node,
		'CREATE TABLE IF NOT EXISTS same (id int PRIMARY KEY, v text); ALTER TABLE same ADD COLUMN w int; CREATE INDEX same_w ON same (w)'
	);
	query($node,
		"INSERT INTO same VALUES (" . ord($node->name) . ", 'x', 1)");
}
let_go($a, $b);
let_go($b, $a);
same_on_members('the same statement of two members');
is(query($c, 'SELECT count(*) FROM same'), 2, 'with the rows of both');

# Others of the same name are errors; nothing is lost once one of them is gone.
hold($a, $b);
hold($b, $a);
query($a, 'CREATE TABLE IF NOT EXISTS other (id int PRIMARY KEY, v text)');
query($b, 'CREATE TABLE IF NOT EXISTS other (id int PRIMARY KEY, w int)');
$before = query($b, 'SELECT clock_timestamp()');
let_go($a, $b);
($error) = apply_error($b, subscription_name('g', $a, $b), $before);
like(
	$error,
	qr/relation "other" already exists/,
	'two tables of the same name');
query($b, 'SET weft.ddl_replication = off; DROP TABLE other');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
is( query(
		$b,
		q{SELECT attname FROM pg_attribute WHERE attrelid = 'other'::regclass AND attnum = 2}
	),
	'v',
	'the other one is created when the first is gone');

# b's statement is still on its way to a and c.
my $skip = query($a, 'SELECT clock_timestamp()');
let_go($b, $a);
foreach my $node ($a, $c)
{
	my $name = subscription_name('g', $b, $node);
	my (undef, $lsn) = apply_error($node, $name, $skip);
	query($node, "ALTER SUBSCRIPTION $name SKIP (lsn = '$lsn')");
}
same_on_members('two tables of the same name');

# Two schema changes of the same thing: the second one is an error on each member.
hold($a, $b);
hold($b, $a);
query($a,
	q{COMMENT ON TABLE t IS 'from a'; CREATE VIEW only_view AS SELECT 1 AS x}
);
query($b, q{COMMENT ON TABLE t IS 'from b'; COMMENT ON TABLE t2 IS 'b'});
$skip = query($a, 'SELECT clock_timestamp()');
let_go($a, $b);
let_go($b, $a);

foreach my $pair ([ $a, $b ], [ $b, $a ])
{
	my ($from, $to) = @$pair;
	my $name = subscription_name('g', $from, $to);
	my ($message, $lsn) = apply_error($to, $name, $skip);

	like(
		$message,
		qr/conflicts with one of another member, made at the same time/,
		'two comments on ' . $to->name);
	query($to, "ALTER SUBSCRIPTION $name SKIP (lsn = '$lsn')");
}

# c has got both, in one order or the other.
my $failed = poll_for($c,
	"SELECT subname FROM weft.stat_subscription WHERE last_error LIKE '%made at the same time%' AND last_error_time > '$skip'"
);
my $failed_lsn = query($c,
	"SELECT last_error_lsn FROM weft.stat_subscription WHERE subname = '$failed'"
);
query($c, "ALTER SUBSCRIPTION $failed SKIP (lsn = '$failed_lsn')");
query($_, q{SET weft.ddl_replication = off; COMMENT ON TABLE t IS 'from a'})
  foreach @nodes;
same_on_members('two comments');

# --- indexes that are built concurrently ---

sub no_concurrent
{
	poll($_, 'SELECT count(*) = 0 FROM weft.ddl_concurrent') foreach @nodes;
	return;
}

# Two members build the same one.
hold($a, $b);
hold($b, $a);
query($_, 'CREATE INDEX CONCURRENTLY twofold ON t (v)') foreach $a, $b;
let_go($a, $b);
let_go($b, $a);
wait_for_group('g', @nodes);
no_concurrent();
same_on_members('the same index');
is( query(
		$_,
		q{SELECT count(*) FROM weft.ddl_history WHERE statement ~ 'INDEX CONCURRENTLY twofold' AND (result = 'repeated' OR detail = 'it existed already')}
	),
	1,
	'... on ' . $_->name) foreach @nodes;

# c is still building what a has announced when b drops it.
%errors = map { $_->name => errors($_) } @nodes;
my $blocker = open_session($c);
$blocker->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 1');
query($a, 'CREATE INDEX CONCURRENTLY slow ON t (v, id)');
query($a, 'CREATE INDEX CONCURRENTLY slower ON t (id, v)');
poll($b,
	q{SELECT count(*) = 2 FROM pg_index WHERE indisvalid AND indexrelid IN (to_regclass('slow'), to_regclass('slower'))}
);
poll($c,
	q{SELECT string_agg(state, ' ' ORDER BY id) = 'started waiting' FROM weft.ddl_concurrent}
);
query($b, 'DROP INDEX CONCURRENTLY slow');
query($b, 'DROP INDEX slower');
poll($c,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
);
$blocker->query_safe('ROLLBACK');
$blocker->quit;
wait_for_group('g', @nodes);
no_concurrent();
same_on_members('indexes that another member drops');
is(errors($_), $errors{ $_->name }, 'no errors on ' . $_->name)
  foreach @nodes;

# What waits for a subscription that is disabled says so.
$blocker = open_session($c);
$blocker->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 1');
query($a, 'CREATE INDEX CONCURRENTLY begun ON t (v, id)');
query($a, 'CREATE INDEX CONCURRENTLY awaited ON t (id, v)');
poll($b,
	q{SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('awaited')}
);
poll($c,
	q{SELECT string_agg(state, ' ' ORDER BY id) = 'started waiting' FROM weft.ddl_concurrent}
);
hold($a, $c);
$blocker->query_safe('ROLLBACK');
$blocker->quit;
poll($c, 'SELECT count(*) = 1 FROM weft.ddl_concurrent');
my $log = -s $c->logfile;
query($b, 'DROP INDEX CONCURRENTLY awaited');
$c->wait_for_log(
	qr/schema change \d+ of subscription "[^"]+" is waiting for schema change \d+ of subscription "[^"]+"\n.*DETAIL: .* is disabled/,
	$log);
like(
	query(
		$c,
		q{SELECT result || ' ' || detail FROM weft.ddl_history WHERE statement ~ '^DROP INDEX CONCURRENTLY awaited' AND result <> 'captured'}
	),
	qr/^waiting waiting for schema change \d+ of subscription "[^"]+", which is disabled$/,
	'a schema change waits for a subscription that is disabled');
let_go($a, $c);
wait_for_group('g', @nodes);
no_concurrent();
same_on_members('a subscription that was disabled');

# A node joins while all members change the schema and rows all the time.  The load ends soon, for a busy machine may
# apply less than it makes.
my $number = 0;
my @loads;
foreach my $node (@nodes)
{
	my $name = $node->name;
	push @loads, start_pgbench(
		$node,
		{
			<<"EOS" => 1,
\\set i random(1, 1000000000)
CREATE TABLE IF NOT EXISTS ${name}_:i (id int PRIMARY KEY, v text DEFAULT 'x');
INSERT INTO ${name}_:i VALUES (1);
ALTER TABLE ${name}_:i ADD COLUMN w int DEFAULT 3;
INSERT INTO ${name}_:i VALUES (2);
CREATE INDEX ON ${name}_:i (w);
UPDATE t SET n = :i WHERE id = 2;
INSERT INTO ${name}_:i SELECT 3;
EOS
		},
		'-c' => 1,
		'-R' => 2,
		'-T' => 30);
}
poll($c,
	q{SELECT count(*) > 10 FROM pg_class WHERE relname ~ '^[abc]_[0-9]+$'});
my $d = new_member('d');
join_group($d, $b, 'g');
end_load($_) foreach @loads;
push @nodes, $d;
same_on_members('after a join');
is( query(
		$_, q{SELECT count(DISTINCT n) FROM (
		SELECT count(*) AS n FROM pg_subscription_rel GROUP BY srsubid) s}),
	1,
	'all subscriptions of ' . $_->name . ' have the same tables'
) foreach @nodes;
query($d, 'ALTER TABLE t ADD COLUMN from_d int DEFAULT 4');
same_on_members('a statement of the new member');

done_testing();
