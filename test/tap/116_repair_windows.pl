# weft.repair() is held at each step, while something else happens: the publisher changes
# the row, a session does, apply goes on, or a process dies.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RepairTest;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf =>
	  "autovacuum = off\nrestart_after_crash = on\ndeadlock_timeout = 10s");

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text);
CREATE TABLE other (i int PRIMARY KEY);
EOS
query($pub,
	"INSERT INTO t SELECT i, i, 'v' || i FROM generate_series(1, 20) i; CREATE PUBLICATION pub FOR ALL TABLES"
);
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $next = 1;

# Make rows 1, 2 (missing) and 100 (extra) differ; returns the comparison.
sub damage
{
	query($sub,
		"UPDATE t SET v = 'wrong' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (100, 100, 'extra')"
	);
	return plant(
		$sub, 'sub',
		[ 't', 'different', '{"id": "1"}' ],
		[ 't', 'missing here', '{"id": "2"}' ],
		[ 't', 'missing there', '{"id": "100"}' ]);
}

sub equal
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [ 't', 'other' ], $what);
	return;
}

# Commit something on the publisher that has nothing to do with the rows.
sub other
{
	query($pub, "INSERT INTO other VALUES ($next)");
	return $next++;
}

sub other_is_applied
{
	my ($i) = @_;
	poll($sub, "SELECT count(*) = 1 FROM other WHERE i = $i");
	return;
}

my $all_repaired = "1 repaired\n2 repaired\n3 repaired";
my $patient = "max_pause := '5 min'";

# The publisher changes the rows at each step.  What is written first is older.
foreach my $point (
	'weft-repair-cut', 'weft-repair-read',
	'weft-repair-written', 'weft-repair-commits',
	'weft-repair-committed')
{
	my $comparison = damage();

	attach_point($sub, $point);
	my $run = start_repair($sub, $comparison, $patient);
	held_at($sub, $point);
	query($pub, <<EOS);
UPDATE t SET v = 'newer $point' WHERE id IN (1, 2);
INSERT INTO t VALUES (100, 100, 'newer');
EOS
	my $other = other();
	if ($point ne 'weft-repair-committed')
	{
		is(query($sub, "SELECT count(*) FROM other WHERE i = $other"),
			0, "$point: apply stands");
		is(query($sub, "SELECT v FROM t WHERE id = 1"),
			'wrong', "$point: nothing is visible before");
	}
	release_point($sub, $point);
	like(
		finish_repair($run),
		qr/3 repaired, 0 vanished, 0 not repaired/,
		"$point: all is repaired");
	equal("$point: nothing newer is overwritten");
	is(results($sub, $comparison), $all_repaired, "$point: results");
	query($pub, 'DELETE FROM t WHERE id = 100');
	equal("$point: the row is deleted");
}

# The publisher has already changed the rows when it is repaired.
{
	my $comparison = damage();

	query($pub,
		"UPDATE t SET v = 'newest' WHERE id = 1; DELETE FROM t WHERE id = 2");
	wait_for_apply($pub, $sub, 'sub');
	like(
		repair($sub, $comparison),
		qr/1 repaired, 2 vanished, 0 not repaired/,
		'what replication has made equal meanwhile has vanished');
	equal('replication was first');
	query($pub, "INSERT INTO t VALUES (2, 2, 'again')");
}

# Apply goes on by itself: nothing is written, and it is tried again.
{
	equal('before apply goes on');
	my $comparison = damage();

	attach_point($sub, 'weft-repair-written');
	my $run = start_repair($sub, $comparison, "max_pause := '500 ms'");
	my ($worker) = held_at($sub, 'weft-repair-written');
	my $other = other();
	other_is_applied($other);
	is(query($sub, "SELECT v FROM t WHERE id = 1"),
		'wrong', 'nothing is visible when apply has gone on');
	query($pub, "UPDATE t SET v = 'much newer' WHERE id = 1");
	writer_waits_for_lock($sub);
	release_point($sub, 'weft-repair-written');
	like(
		finish_repair($run),
		qr/2 repaired, 1 vanished, 0 not repaired/,
		'the rows are repaired at other cuts');
	equal('apply has gone on');
}

# A session changes the rows after the publisher's rows have been read.
{
	my $comparison = damage();

	attach_point($sub, 'weft-repair-read');
	my $run = start_repair($sub, $comparison, $patient);
	held_at($sub, 'weft-repair-read');
	query($sub,
		"UPDATE t SET v = (SELECT 'much newer') WHERE id = 1; DELETE FROM t WHERE id = 100; UPDATE t SET u = 2 WHERE id = 3"
	);
	release_point($sub, 'weft-repair-read');
	like(
		finish_repair($run),
		qr/0 repaired, 2 vanished, 1 not repaired/,
		'what a session has made equal has vanished');
	like(
		results($sub, $comparison),
		qr/^1 vanished\n2 failed duplicate key value violates unique constraint "t_u_key".*\n3 vanished$/,
		'a unique value that another row has is a reason');
	query($sub, 'UPDATE t SET u = 3 WHERE id = 3');
	like(
		repair($sub, $comparison),
		qr/1 repaired, 2 vanished, 0 not repaired/,
		'which may be removed');
	equal('a session was first');
}

# A session has locked a row, or inserted a row with the key.
{
	my $comparison = damage();
	my $session = open_session($sub);

	$session->query_safe(
		"BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE; INSERT INTO t VALUES (2, 2, 'mine')"
	);
	like(
		repair($sub, $comparison, "lock_timeout := '100 ms'"),
		qr/1 repaired, 0 vanished, 2 not repaired/,
		'a locked row is left');
	is( results($sub, $comparison),
		"1 failed another session has locked the row, or the table\n2 failed another session has locked the row, or the table\n3 repaired",
		'with the reason');
	$session->query_safe('ROLLBACK; BEGIN; LOCK TABLE t');
	like(
		repair($sub, $comparison, "lock_timeout := '100 ms'"),
		qr/1 repaired, 0 vanished, 2 not repaired/,
		'so are those of a locked table');
	$session->query_safe('ROLLBACK');
	$session->quit;
	like(
		repair($sub, $comparison),
		qr/3 repaired, 0 vanished, 0 not repaired/,
		'later it is repaired');
	equal('locks');
}

# What may happen to those that take part.  After a crash no point is attached.
my %mishaps = (
	'the session is terminated' => sub {
		my ($point, $worker) = @_;

		query($sub,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL weft.repair%'"
		);
		release_point($sub, $point);
		wait_until_gone($sub, $worker);
	},
	'the worker is terminated' => sub {
		my ($point, $worker) = @_;

		terminate($sub, $worker);
		release_point($sub, $point);
		wait_until_gone($sub, $worker);
	},
	'the leader is terminated' => sub {
		my ($point, $worker) = @_;
		my $leader = leader_pid($sub, 'sub');

		terminate($sub, $leader);
		wait_until_gone($sub, $leader);
		release_point($sub, $point);
		wait_until_gone($sub, $worker);
	},
	'the worker is killed' => sub {
		my ($point, $worker) = @_;

		flush_wal($sub);
		kill_process($worker);
		wait_until_up($sub);
	},
	'the leader is killed' => sub {
		flush_wal($sub);
		kill_process(leader_pid($sub, 'sub'));
		wait_until_up($sub);
	},
	'the server is stopped' => sub {
		$sub->stop('immediate');
		$sub->start;
	});

foreach my $point (
	'weft-repair-cut', 'weft-repair-read',
	'weft-repair-written', 'weft-repair-commits',
	'weft-repair-committed')
{
	foreach my $what (sort keys %mishaps)
	{
		my $comparison = damage();

		flush_wal($sub);
		attach_point($sub, $point);
		my $run = start_repair($sub, $comparison, $patient);
		my ($worker) = held_at($sub, $point);
		query($pub, "UPDATE t SET v = v || 1 WHERE id = 3");
		$mishaps{$what}->($point, $worker);
		finish_repair($run);
		wait_for_apply($pub, $sub, 'sub');

		# Result and row agree.
		is( query(
				$sub,
				"SELECT count(*) FILTER (WHERE repair_result = 'repaired') = CASE WHEN (SELECT v FROM t WHERE id = 1) = 'wrong' THEN 0 ELSE 3 END FROM weft.difference WHERE comparison = $comparison"
			),
			't',
			"$point, $what: result and rows agree");
		like(
			repair($sub, $comparison),
			qr/3 repaired, 0 vanished, 0 not repaired/,
			"$point, $what: repaired in the end");
		equal("$point, $what");
	}
}

# An error is reported, and leaves nothing behind.
{
	my $comparison = damage();

	foreach my $point ('weft-repair-cut', 'weft-repair-commits')
	{
		attach_point($sub, $point, 'error');
		repair($sub, $comparison);
		detach_point($sub, $point);
	}
	like(
		repair($sub, $comparison),
		qr/3 repaired, 0 vanished, 0 not repaired/,
		'after errors');
	equal('after errors');
}

done_testing();
