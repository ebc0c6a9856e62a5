# A writer or the leader is held between two steps whose order matters to the ring's
# protocol: taking transactions, going to sleep, running alone, deferring changes,
# starting and ending.

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
	conf => "autovacuum = off\nweft.writers_per_subscription = 2");
my @tables = qw(events t fired plain parted quiet);

# The events have no key, so no error would prevent them from being inserted twice.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE events (i int);
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE fired (id int PRIMARY KEY);
CREATE TABLE plain (id int PRIMARY KEY);
CREATE TABLE quiet (i int);
EOS
query($pub, <<'EOS');
CREATE TABLE parted (id int PRIMARY KEY);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
query($sub, <<'EOS');
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted DEFAULT;
CREATE TABLE seen (id int, events bigint);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
	INSERT INTO public.seen SELECT NEW.id, count(*) FROM public.events;
	RETURN NEW;
END
$$;
CREATE TRIGGER see AFTER INSERT ON fired FOR EACH ROW EXECUTE FUNCTION see();
ALTER TABLE fired ENABLE REPLICA TRIGGER see;
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $next = 1;

# A transaction of the publisher: one more event.
sub event
{
	query($pub, "INSERT INTO events VALUES ($next)");
	return $next++;
}

# The first change of a table waits for everything before it.
sub warm_up
{
	query($pub, 'UPDATE t SET v = v WHERE id = 10');
	event();
	all_applied($pub, $sub, \@tables, 'warm');
	return;
}

sub set_writers
{
	my ($number) = @_;
	set_conf($sub, 'weft.writers_per_subscription' => $number);
	poll($sub,
		"SELECT count(*) = $number FROM weft.stat_writer WHERE pid IS NOT NULL AND state <> 'starting'"
	);
	return;
}

# Two writers see the same unclaimed transaction: one gets it.
warm_up();
attach_point($sub, 'weft-ring-take');
event();
held_at($sub, 'weft-ring-take', 2);
release_point($sub, 'weft-ring-take');
all_applied($pub, $sub, \@tables, 'two writers want it');

# An exclusive transaction begins when it is the oldest, and no other one begins before it
# has ended.
{
	my $point = 'weft-writer-alone';

	attach_point($sub, 'weft-writer-commits');
	event();
	held_at($sub, 'weft-writer-commits');
	attach_point($sub, $point);
	query($pub, 'INSERT INTO fired VALUES (1)');
	waits_for($sub, 'WeftWriterCommitOrder');
	event();
	waits_for($sub, 'WeftLeaderDrain');
	release_point($sub, 'weft-writer-commits');
	held_at($sub, $point);

	# the other writer has nothing to do yet
	waits_for($sub, 'WeftWriterMain');
	waits_for($sub, 'WeftLeaderDrain');
	release_point($sub, $point);
	all_applied($pub, $sub, \@tables, 'alone');
	is(query($sub, 'SELECT events FROM seen WHERE id = 1'),
		$next - 2, 'it has seen all earlier transactions, and no later one');
}

# A table, or a partition, gets a trigger after the leader has checked the table, and before a writer applies
# a change of it.  The trigger still fires only after all earlier transactions.
foreach my $case ([ 'plain', 'plain', 2 ], [ 'parted', 'part', 3 ])
{
	my ($table, $with_trigger, $id) = @$case;

	query($pub, "INSERT INTO $table VALUES (0)");
	all_applied($pub, $sub, \@tables, "$table without a trigger");
	attach_point($sub, 'weft-writer-commits');
	event();
	held_at($sub, 'weft-writer-commits');
	attach_point($sub, 'weft-ring-take');
	query($pub, "INSERT INTO $table VALUES ($id)");
	held_at($sub, 'weft-ring-take');
	query($sub, <<"EOS");
CREATE TRIGGER see AFTER INSERT ON $with_trigger FOR EACH ROW EXECUTE FUNCTION see();
ALTER TABLE $with_trigger ENABLE REPLICA TRIGGER see;
EOS
	release_point($sub, 'weft-ring-take');
	waits_for($sub, 'WeftWriterRetry');
	release_point($sub, 'weft-writer-commits');
	all_applied($pub, $sub, \@tables, "$table with a trigger in between");
	is(query($sub, "SELECT events FROM seen WHERE id = $id"),
		$next - 1, "$table: it has seen all earlier transactions");
}

# A group is rolled back while its deferred changes are applied: all of its transactions are
# applied again, and each change with its own transaction.
{
	set_writers(1);
	warm_up();
	my $before = query($sub, 'SELECT misspeculations FROM weft.stat_writer');

	attach_point($sub, 'weft-writer-commits');
	event();
	my ($writer) = held_at($sub, 'weft-writer-commits');
	query($pub,
		"BEGIN; INSERT INTO events VALUES (-$_); UPDATE t SET v = $_ WHERE id = 1; COMMIT"
	) foreach 1 .. 4;
	query($pub,
		'BEGIN; INSERT INTO events VALUES (-5); DELETE FROM t WHERE id = 1; COMMIT'
	);
	attach_point($sub, 'weft-deferred-applied', 'error');
	attach_point($sub, 'weft-writer-retries');
	release_point($sub, 'weft-writer-commits');
	held_at($sub, 'weft-writer-retries');
	detach_point($sub, 'weft-deferred-applied');
	attach_point($sub, 'weft-writer-committed');
	release_point($sub, 'weft-writer-retries');

	foreach my $i (1 .. 5)
	{
		held_at($sub, 'weft-writer-committed');
		is( query(
				$sub,
				'SELECT (SELECT count(*) FROM events WHERE i < 0), (SELECT v FROM t WHERE id = 1)'
			),
			"$i|" . ($i < 5 ? $i : ''),
			"applied again, one by one: $i");
		detach_point($sub, 'weft-writer-committed') if $i == 5;
		release($sub, $writer);
	}
	all_applied($pub, $sub, \@tables, 'a group was rolled back');
}

# A writer is about to sleep because there is nothing to do, and has announced that, or has
# checked once more.  A transaction that arrives now wakes the writer.  The leader, which
# would wake it again later, is kept from getting that far.
foreach my $point ('weft-writer-idle', 'weft-writer-sleeps')
{
	query($pub, 'INSERT INTO quiet VALUES (1)');
	all_applied($pub, $sub, \@tables, 'before');

	# Once it has reported its work, it sleeps without a timeout.
	poll($sub,
		"SELECT n_tup_ins = (SELECT count(*) FROM quiet) FROM pg_stat_user_tables WHERE relname = 'quiet'"
	);
	attach_point($sub, $point);
	query($sub, 'SELECT pg_reload_conf()');
	my ($writer) = held_at($sub, $point);

	attach_point($sub, 'weft-leader-drained');
	my ($leader) = held_at($sub, 'weft-leader-drained');
	query($pub, 'INSERT INTO quiet VALUES (2)');
	poll($pub,
		'SELECT sent_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication'
	);
	while (query($sub, 'SELECT ring_used FROM weft.stat_subscription') == 0)
	{
		release($sub, $leader);
		held_at($sub, 'weft-leader-drained');
	}
	release_point($sub, $point);
	my $rows = query($pub, 'SELECT count(*) FROM quiet');
	poll($sub, "SELECT count(*) = $rows FROM quiet");
	pass("$point: the writer is woken");
	release_point($sub, 'weft-leader-drained');
	all_applied($pub, $sub, \@tables, $point);
}

# While a writer is starting, another number of writers is set, or the leader ends.
{
	my $point = 'weft-writer-starts';
	my $log = -s $sub->logfile;

	attach_point($sub, $point);
	set_conf($sub, 'weft.writers_per_subscription' => 2);
	held_at($sub, $point, 2);
	set_conf($sub, 'weft.writers_per_subscription' => 3);
	waits_for($sub, 'BgworkerShutdown');
	release_point($sub, $point);
	all_applied($pub, $sub, \@tables, 'other writers');

	attach_point($sub, $point);
	set_conf($sub, 'weft.writers_per_subscription' => 2);
	held_at($sub, $point, 2);
	my $leader = leader_pid($sub, 'sub');
	terminate($sub, $leader);
	waits_for($sub, 'BgworkerShutdown');
	event();
	release_point($sub, $point);
	wait_until_gone($sub, $leader);
	all_applied($pub, $sub, \@tables, 'another leader');
	unlike(
		slurp_file($sub->logfile, $log),
		qr/because writer \d+ has ended/,
		'the new writers are not taken for the old ones');
}

# A writer reports an error and ends, just after the leader has checked for errors, and
# before it checks whether all writers are running.
{
	my $point = 'weft-leader-checks';
	my $local = open_session($sub);

	query($sub, 'ALTER SUBSCRIPTION sub SET (disable_on_error = true)');
	event();
	all_applied($pub, $sub, \@tables, 'disable_on_error');
	my $log = -s $sub->logfile;
	$local->query_safe('BEGIN; INSERT INTO t VALUES (11, 0)');
	query($pub, 'INSERT INTO t VALUES (11, 1)');
	my $writer = poll_for($sub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event_type = 'Lock'"
	);
	attach_point($sub, $point);
	held_at($sub, $point);
	$local->query_safe('COMMIT');
	$local->quit;
	wait_until_gone($sub, $writer);
	release_point($sub, $point);
	poll($sub, 'SELECT NOT subenabled FROM pg_subscription');
	my $text = slurp_file($sub->logfile, $log);
	like(
		$text,
		qr/ERROR:  (duplicate key value|conflict detected)/,
		'the error is reported');
	unlike(
		$text,
		qr/because writer \d+ has ended/,
		'rather than the disappearance of a writer');
	query($sub, 'DELETE FROM t WHERE id = 11; ALTER SUBSCRIPTION sub ENABLE');
	all_applied($pub, $sub, \@tables, 'enabled again');
}

$sub->stop;
$pub->stop;
done_testing();
