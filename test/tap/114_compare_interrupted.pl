# weft.compare_subscription() that is canceled, killed, or loses its publisher, and is continued;
# and tables that are altered, truncated or dropped meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher', conf => 'restart_after_crash = on');
my $sub = new_subscriber('subscriber', conf => 'restart_after_crash = on');
my $both = [ $pub, $sub ];

query_all($both, <<EOC);
CREATE TABLE a_small (id int PRIMARY KEY, v int);
CREATE TABLE b_large (id int PRIMARY KEY, v int);
CREATE TABLE c_other (id int PRIMARY KEY, v int);
EOC
query($pub, <<EOC);
INSERT INTO a_small SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO b_large SELECT i, i FROM generate_series(1, 60000) i;
INSERT INTO c_other SELECT i, i FROM generate_series(1, 10) i;
CREATE PUBLICATION p FOR TABLE a_small, b_large, c_other;
EOC
subscribe($pub, $sub, 'sub', 'p');
wait_for_apply($pub, $sub, 'sub');
query_all($both, 'ANALYZE');
query($sub,
	'UPDATE a_small SET v = -1 WHERE id = 5; UPDATE b_large SET v = -1 WHERE id = 59999'
);

# A comparison in the background.  The caller must end it with the_end().
sub start_comparison
{
	my ($arguments, $settings) = @_;
	my ($stdout, $stderr) = ('', '');
	my @command = ('psql', '-XAtq', '-d', $sub->connstr('postgres'));

	push @command, '-c', $settings if $settings;
	push @command, '-c', "CALL weft.compare_subscription($arguments)";
	my $comparison = { stdout => \$stdout, stderr => \$stderr };
	$comparison->{run} =
	  IPC::Run::start(\@command, '<', \undef, '>', \$stdout, '2>', \$stderr);
	return $comparison;
}

sub the_end
{
	my ($comparison) = @_;

	$comparison->{run}->finish;
	note(${ $comparison->{stderr} });
	return ${ $comparison->{stdout} } =~ s/\n\z//r;
}

my $slow = "'sub', max_rows_per_second => 1000";
my $short = "SET weft.comparison_snapshot_age = '1s'";

# Wait until the newest comparison has done its first table, and returns its number.
sub first_table_done
{
	return poll_for($sub,
		"SELECT c.comparison FROM weft.stat_comparison c WHERE c.status = 'running' AND c.tables_done >= 1 AND c.tables_waiting >= 1"
	);
}

sub pid_of
{
	my ($id) = @_;
	return query($sub,
		"SELECT pid FROM weft.stat_comparison WHERE comparison = $id");
}

# What is interrupted is seen to be, and continued without doing the first table again.
sub continued
{
	my ($id, $what) = @_;
	my $query =
	  "SELECT ended_at FROM weft.comparison_table WHERE comparison = $id AND table_name = 'public.a_small'";

	poll($sub,
		"SELECT status = 'interrupted' AND pid IS NULL FROM weft.stat_comparison WHERE comparison = $id"
	);
	my $ended = query($sub, $query);
	is(query($sub, "CALL weft.compare_subscription('sub', resume => $id)"),
		$id, "$what: is continued");
	is(query($sub, $query), $ended, "$what: what was done is not done again");
	is( query(
			$sub,
			"SELECT status, tables_done, tables_waiting, differences FROM weft.stat_comparison WHERE comparison = $id"
		),
		'finished|3|0|2',
		"$what: the result is complete");
	is( query(
			$sub,
			"SELECT relation, key FROM weft.difference WHERE comparison = $id ORDER BY 1::text"
		),
		qq(a_small|{"id": "5"}\nb_large|{"id": "59999"}),
		"$what: and correct");
	return;
}

# --- ways to end ---

my $comparison = start_comparison($slow, $short);
my $id = first_table_done();
my ($ret, $stdout, $stderr) =
  $sub->psql('postgres',
	"CALL weft.compare_subscription('sub', resume => $id)");
like(
	$stderr,
	qr/comparison $id is running\nDETAIL:  The process with PID \d+ runs it/,
	'a running comparison is not continued');
is( query(
		$sub,
		"SELECT rows_compared > 0, rows_estimated >= 60000, jobs <= 2, snapshot_age < '60 s' OR snapshot_age IS NULL FROM weft.stat_comparison WHERE comparison = $id"
	),
	't|t|t|t',
	'the view shows progress');
query($sub, 'SELECT pg_cancel_backend(' . pid_of($id) . ')');
the_end($comparison);
like(${ $comparison->{stderr} },
	qr/canceling statement due to user request/, 'canceled');
continued($id, 'canceled');

$comparison = start_comparison($slow, $short);
$id = first_table_done();
terminate($sub, pid_of($id));
the_end($comparison);
continued($id, 'terminated');

$comparison = start_comparison($slow, $short);
$id = first_table_done();
kill_process(pid_of($id));
the_end($comparison);
wait_until_up($sub);
continued($id, 'killed');

$comparison = start_comparison($slow, $short);
$id = first_table_done();
query($pub,
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
);
the_end($comparison);
like(
	${ $comparison->{stderr} },
	qr/ERROR: .*publisher/,
	'the lost connection is reported');
continued($id, 'connection lost');

# a parallel worker is gone
$comparison = start_comparison("$slow, jobs => 3", $short);
$id = first_table_done();
my $worker = poll_for($sub,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1"
);
terminate($sub, $worker);
the_end($comparison);
continued($id, 'worker terminated');

# the snapshots are not kept for long
$comparison = start_comparison($slow, $short);
$id = first_table_done();
my $xmin = query($sub,
	"SELECT backend_xmin FROM pg_stat_activity WHERE pid = " . pid_of($id));
query($sub, 'SELECT txid_current()') foreach 1 .. 3;
poll($sub,
	"SELECT backend_xmin::text::bigint > coalesce(nullif('$xmin', ''), '0')::bigint FROM pg_stat_activity WHERE pid = "
	  . pid_of($id));
ok(pid_of($id), 'the horizon of vacuum moves while the comparison runs');
query($sub, 'SELECT pg_cancel_backend(' . pid_of($id) . ')');
the_end($comparison);

# --- tables that change meanwhile ---

query($sub,
	'UPDATE a_small SET v = id; UPDATE b_large SET v = id WHERE v = -1');

# A TRUNCATE does not have to wait until the snapshots are old.
$comparison = start_comparison("$slow, jobs => 1");
$id = poll_for($sub,
	"SELECT comparison FROM weft.stat_comparison WHERE status = 'running' AND rows_compared >= 2000"
);
query($pub, 'TRUNCATE c_other; INSERT INTO c_other VALUES (1, 1)');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'BEGIN; LOCK b_large; COMMIT');
query($pub, 'BEGIN; LOCK b_large; COMMIT');
is( query(
		$sub,
		"SELECT status FROM weft.stat_comparison WHERE comparison = $id"),
	'running',
	'who waits for a lock on either side gets it before the end');
my $compared = query($sub,
	"SELECT rows_compared FROM weft.stat_comparison WHERE comparison = $id");
poll($sub,
	"SELECT rows_compared > $compared FROM weft.stat_comparison WHERE comparison = $id AND status = 'running'"
);
pass('the comparison goes on');
query($sub, 'SELECT pg_cancel_backend(' . pid_of($id) . ')');
the_end($comparison);
query($sub, "CALL weft.compare_subscription('sub', resume => $id)");
is( query(
		$sub,
		"SELECT status, tables_done, differences FROM weft.stat_comparison WHERE comparison = $id"
	),
	'finished|3|0',
	'and finds no difference');

# Hold a comparison between its snapshots and the first look at the tables, while something
# changes; returns its number.
sub meanwhile
{
	my ($times, $change, $after) = @_;

	attach_point($sub, 'weft-compare-snapshot');
	my $running = start_comparison("'sub', tables => '{c_other}'");
	foreach my $i (1 .. $times)
	{
		my ($pid) = held_at($sub, 'weft-compare-snapshot');
		$change->();
		detach_point($sub, 'weft-compare-snapshot') if $i == $times;
		release($sub, $pid);
		$after->() if $after;
	}
	return the_end($running);
}


sub result
{
	my ($number) = @_;
	return query($sub,
		"SELECT status, differences, cuts, reason FROM weft.comparison_table WHERE comparison = $number"
	);
}

# The publisher truncates after the snapshot, and apply, which is held back, does not.
my $session = open_session($sub);
$id = meanwhile(
	1,
	sub {
		$session->query_safe('BEGIN; LOCK c_other IN ROW EXCLUSIVE MODE');
		query($pub,
			'BEGIN; TRUNCATE c_other; INSERT INTO c_other SELECT i, i FROM generate_series(1, 20) i; COMMIT'
		);
	},
	sub {
		# the first attempt has been discarded once the second one waits for its cut
		poll($sub,
			"SELECT count(*) = 1 FROM weft.comparison WHERE status = 'running' AND cuts = 1"
		);
		$session->query_safe('COMMIT');
	});
is(result($id), 'done|0|1|',
	'a table that is truncated on the publisher is compared again');

# Somebody truncates here.
$id = meanwhile(
	1,
	sub {
		query($sub,
			'BEGIN; CREATE TABLE saved AS TABLE c_other; TRUNCATE c_other; INSERT INTO c_other TABLE saved; DROP TABLE saved; COMMIT'
		);
	});
is(result($id), 'done|0|1|',
	'a table that is truncated here is compared again');

$id = meanwhile(
	1,
	sub {
		query_all($both, 'ALTER TABLE c_other ADD w int DEFAULT 7');
	});
is(result($id), 'done|0|1|', 'the same if a column is added');
$id = meanwhile(
	1,
	sub {
		query($pub, 'ALTER TABLE c_other DROP v');
	});
is(result($id), 'done|0|1|', 'or dropped');

# Each side in its turn, during an attempt of its own: the first one finds the two sides different, which
# they were not at the cut.
sub in_turn
{
	my @turns = @_;
	return meanwhile(scalar(@turns), sub { shift(@turns)->(); });
}

query_all($both, <<'EOC');
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, moods mood[]);
ALTER TABLE c_other ADD m mood DEFAULT 'sad', ADD p pair DEFAULT ROW(1, '{sad}')::pair, ADD i int, ADD part int NOT NULL DEFAULT 1;
EOC
$id = in_turn(
	map {
		my $node = $_;
		sub { query($node, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'") }
	} $pub,
	$sub);
is(result($id), 'done|0|1|',
	"a table is compared again if an enum's label is renamed");
$id = in_turn(
	map {
		my $node = $_;
		sub { query($node, 'ALTER TYPE pair ADD ATTRIBUTE b text') }
	} $sub,
	$pub);
is(result($id), 'done|0|1|',
	'the same if an attribute is added to a composite type');
$id = in_turn(
	map {
		my $node = $_;
		sub { query($node, 'ALTER TABLE c_other RENAME i TO j') }
	} $pub,
	$sub);
is(result($id), 'done|0|1|', 'or a column renamed');
$id = in_turn(
	map {
		my $node = $_;
		sub { query($node, 'ALTER TABLE c_other ALTER j TYPE text') }
	} $sub,
	$pub);
is(result($id), 'done|0|1|', 'or its type changed');

# another table takes the place of this one, by its schema's name
$id = in_turn(
	sub {
		query($pub, <<'EOC');
CREATE SCHEMA other; CREATE TABLE other.c_other (LIKE public.c_other INCLUDING ALL);
ALTER SCHEMA public RENAME TO away; ALTER SCHEMA other RENAME TO public;
EOC
	},
	sub {
		query($pub,
			'ALTER SCHEMA public RENAME TO other; ALTER SCHEMA away RENAME TO public; DROP SCHEMA other CASCADE'
		);
	});
like(
	result($id),
	qr/^(done\|0\|1\||changed\|0\|0\|.+)$/,
	'or schemas change places');
$id = in_turn(
	sub { query($sub, 'ALTER TABLE c_other DROP CONSTRAINT c_other_pkey') });
is(result($id), 'done|0|1|', 'an index of the key is dropped here');
query($sub, 'ALTER TABLE c_other ADD PRIMARY KEY (id)');

# A lock on the publisher: who holds it may wait for apply, and apply for the comparison.
my $holder = open_session($pub);
my $offset = -s $pub->logfile;
$id = meanwhile(
	1,
	sub { $holder->query_safe('BEGIN; LOCK TABLE c_other'); },
	sub {
		$pub->wait_for_log(qr/canceling statement due to lock timeout/,
			$offset);
		$holder->query_safe('COMMIT');
	});
is(result($id), 'done|0|1|',
	'a comparison does not wait long for a lock on the publisher, and tries again'
);
$holder->quit;

# truncated again and again
$id = meanwhile(5, sub { query($pub, 'TRUNCATE c_other'); });
like(
	result($id),
	qr/^changed\|0\|0\|The table was altered, truncated or dropped (here|on the publisher) during the comparison\.$/,
	'a table that changes each time is left out');

$id =
  meanwhile(1, sub { query($pub, 'ALTER TABLE c_other RENAME TO renamed'); });
like(result($id), qr/^changed\|0\|0\|./,
	'a table that is renamed on the publisher is left out');
query($pub, 'ALTER TABLE renamed RENAME TO c_other');
$id = meanwhile(1, sub { query($sub, 'DROP TABLE c_other'); });
is( result($id),
	'changed|0|0|The table was dropped here during the comparison.',
	'a table that is dropped here is left out');

$session->quit;
done_testing();
