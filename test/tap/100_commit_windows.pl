# A writer is held right before or right after its local commit, or between giving way
# and applying again.  Whichever process dies at that point, nothing is lost or doubled,
# and no transaction is committed before its turn.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf =>
	  "autovacuum = off\nrestart_after_crash = on\nweft.writers_per_subscription = 2"
);

# The events have no key, so no error would prevent them from being inserted twice.
my @tables = qw(events t);
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE events (i int);
CREATE TABLE t (id int PRIMARY KEY, v int);
EOS
query($pub, <<'EOS');
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'two_phase = on');
wait_for_apply($pub, $sub, 'sub');
poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription");

my $next = 1;

# A transaction of the publisher: one more event.
sub event
{
	query($pub, "INSERT INTO events VALUES ($next)");
	return $next++;
}

# Is the event visible on the subscriber?
sub is_there
{
	my ($event) = @_;
	return query($sub, "SELECT count(*) FROM events WHERE i = $event");
}

# What may happen to a writer that is held.  After a crash no point is attached.
my %mishaps = (
	'the writer is terminated' => sub {
		my ($point, $writer) = @_;

		terminate($sub, $writer);
		release_point($sub, $point);
		wait_until_gone($sub, $writer);
	},
	'the leader is terminated' => sub {
		my ($point, $writer) = @_;
		my $leader = leader_pid($sub, 'sub');

		# The next one must not begin before the writer has ended.
		terminate($sub, $leader);
		waits_for($sub, 'BgworkerShutdown');
		is( query(
				$sub,
				"SELECT pid FROM pg_stat_subscription WHERE subname = 'sub' AND pid IS NOT NULL"
			),
			$leader,
			'the leader does not end before its writer');
		release_point($sub, $point);
		wait_until_gone($sub, $leader);
	},
	'the writer is killed' => sub {
		my ($point, $writer) = @_;

		flush_wal($sub);
		kill_process($writer);
		wait_until_up($sub);
	});

event();
all_applied($pub, $sub, \@tables, 'at first');

foreach my $point ('weft-writer-commits', 'weft-writer-committed')
{
	my $committed = $point eq 'weft-writer-committed' ? 1 : 0;

	foreach my $what (sort keys %mishaps)
	{
		attach_point($sub, $point);
		my $first = event();
		my ($writer) = held_at($sub, $point);
		my $second = event();
		waits_for($sub, 'WeftWriterCommitOrder');
		is(is_there($first), $committed, "$point: the first transaction");
		is(is_there($second), 0,
			"$point: the second one is not visible before");
		$mishaps{$what}->($point, $writer);
		all_applied($pub, $sub, \@tables, "$point, $what");
	}

	# The server's apply loop, too, waits for its turn.
	attach_point($sub, $point);
	my $first = event();
	held_at($sub, $point);
	query($pub,
		"BEGIN; INSERT INTO events VALUES ($next); PREPARE TRANSACTION 'p'");
	waits_for($sub, 'WeftLeaderDrain');
	is(query($sub, 'SELECT count(*) FROM pg_prepared_xacts'),
		0, "$point: nothing is handed over to the server's apply loop");
	release_point($sub, $point);
	poll($sub, 'SELECT count(*) = 1 FROM pg_prepared_xacts');
	is(is_there($first), 1,
		'then it is applied, after all earlier transactions');
	query($pub, "COMMIT PREPARED 'p'");
	$next++;
	all_applied($pub, $sub, \@tables, "$point, prepared");
}

# The commit itself fails, or is interrupted: the publisher's position, which is set by
# then, must not remain.
foreach my $action ('error', 'end')
{
	my $log = -s $sub->logfile;

	attach_point($sub, 'weft-writer-commits', $action);
	event();
	$sub->wait_for_log(
		qr/(ERROR:  error injected|FATAL:  process ended) at weft-writer-commits/,
		$log);
	detach_point($sub, 'weft-writer-commits');
	all_applied($pub, $sub, \@tables, "$action at the commit");
}

# A writer has committed, and the subscription is disabled before the leader takes note.
{
	my $leader = leader_pid($sub, 'sub');

	attach_point($sub, 'weft-writer-commits');
	my $event = event();
	held_at($sub, 'weft-writer-commits');
	attach_point($sub, 'weft-leader-checks');
	held_at($sub, 'weft-leader-checks');
	release_point($sub, 'weft-writer-commits');
	poll($sub, "SELECT count(*) = 1 FROM events WHERE i = $event");
	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	release_point($sub, 'weft-leader-checks');
	wait_until_gone($sub, $leader);
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	all_applied($pub, $sub, \@tables, 'disabled');
}

# Between giving way and applying again, a writer holds nothing that others could need, and
# what others do in the meantime is visible afterwards.
foreach my $what ('', sort keys %mishaps)
{
	my $point = 'weft-writer-retries';
	my $local = open_session($sub);

	# The first change of a table waits for everything before it.
	query($pub, 'UPDATE t SET v = v WHERE id = 10');
	event();
	wait_for_apply($pub, $sub, 'sub');

	$local->query_safe('BEGIN; UPDATE t SET v = -1 WHERE id = 1');
	query($pub, 'UPDATE t SET v = v + 1 WHERE id = 1');
	writer_waits_for_lock($sub);
	query($pub,
		"BEGIN; INSERT INTO events VALUES ($next); UPDATE t SET v = v + 1 WHERE id = 2; COMMIT"
	);
	$next++;
	waits_for($sub, 'WeftWriterCommitOrder');
	attach_point($sub, $point);
	$local->query_safe('UPDATE t SET v = -1 WHERE id = 2');
	my ($writer) = held_at($sub, $point);
	is( query(
			$sub,
			"SELECT count(*) FROM pg_locks WHERE pid = $writer AND locktype <> 'virtualxid'"
		),
		0,
		'a writer that has given way holds no locks');
	$local->query_safe('COMMIT');
	$local->quit;
	poll(
		$sub,
		'SELECT v FROM t WHERE id = 1',
		query($pub, 'SELECT v FROM t WHERE id = 1'));

	if ($what ne '')
	{
		$mishaps{$what}->($point, $writer);
	}
	else
	{
		query($sub, 'ALTER TABLE t ALTER v TYPE bigint');
		release_point($sub, $point);
	}
	all_applied($pub, $sub, \@tables, "gave way, $what");
}

$sub->stop;
$pub->stop;
done_testing();
