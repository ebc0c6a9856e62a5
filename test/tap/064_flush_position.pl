# The publisher is told that a transaction is flushed only once it is, because the
# publisher never sends it again, and the subscriber may crash at any time.
#
# The last transaction in flight is committed at the very moment at which the leader
# checks whether anything is in flight, after the leader has noted what is committed.
# The WAL writer is stopped, so the subscriber's WAL reaches the disk only if the leader
# flushes it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
plan skip_all => 'the server was built without injection points'
  unless ($ENV{enable_injection_points} // '') eq 'yes';

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf =>
	  "autovacuum = off\nrestart_after_crash = on\nweft.flush_delay = -1");
plan skip_all => 'the extension injection_points is not there'
  unless query(
	$sub,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
  );

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub,
	'INSERT INTO t VALUES (1, 0); CREATE PUBLICATION pub FOR TABLE t');
query($sub, 'CREATE EXTENSION injection_points');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# What the publisher is told about the end of a transaction: is it flushed?
sub told_flushed
{
	my ($end) = @_;
	poll($pub,
		"SELECT replay_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'"
	);
	return query($pub,
		"SELECT flush_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'"
	);
}

sub stop_wal_writer
{
	my $pid = query($sub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill 'STOP', $pid;
	return $pid;
}

foreach my $synchronous_commit ('off', 'on')
{
	my $log_start = -s $sub->logfile;
	query($sub,
		"ALTER SUBSCRIPTION sub SET (synchronous_commit = $synchronous_commit)"
	);
	poll($sub,
		"SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL"
	);

	# a local user keeps the transaction from being applied
	my $local = open_session($sub);
	$local->query_safe('BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE');
	query($pub, 'UPDATE t SET v = v + 1');
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	writer_waits_for_lock($sub);
	query($sub,
		"SELECT injection_points_attach('weft-leader-drained', 'wait')");
	waits_for($sub, 'weft-leader-drained');

	my $wal_writer = stop_wal_writer();
	$local->query_safe('COMMIT');
	$local->quit;
	poll(
		$sub,
		'SELECT v FROM t WHERE id = 1',
		query($pub, 'SELECT v FROM t WHERE id = 1'));
	query($sub, <<'EOS');
SELECT injection_points_detach('weft-leader-drained');
SELECT injection_points_wakeup('weft-leader-drained');
EOS
	is( told_flushed($end),
		$synchronous_commit eq 'on' ? 't' : 'f',
		"$synchronous_commit: everything that is reported to the publisher is flushed"
	);
	unlike(
		slurp_file($sub->logfile, $log_start),
		qr/TRAP|was terminated by signal/,
		"$synchronous_commit: the leader has not crashed");

	# crash
	kill_process($wal_writer);
	wait_until_up($sub);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], "$synchronous_commit: nothing is lost");
}

# The subscription asks for this server's synchronous standbys, too: that somebody else flushes
# the WAL is not enough.
query($sub, 'CREATE TABLE filler ()');
set_conf($sub, synchronous_standby_names => 'nobody');
my $probe = open_session($sub);
my $probe_pid = $probe->query_safe('SELECT pg_backend_pid()');

# returns never, because once the setting is in effect, it waits
$probe->query_until(qr/begun/,
	"\\echo begun\nDO 'BEGIN LOOP INSERT INTO filler DEFAULT VALUES; COMMIT; END LOOP; END';\n"
);
poll($sub,
	"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $probe_pid"
);
my $user = open_session($sub);
$user->query_safe(
	'SET synchronous_commit = local; BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE'
);
query($pub, 'UPDATE t SET v = v + 1');
my $asked = query($pub, 'SELECT pg_current_wal_flush_lsn()');
writer_waits_for_lock($sub);
query($sub, "SELECT injection_points_attach('weft-leader-drained', 'wait')");
waits_for($sub, 'weft-leader-drained');
$user->query_safe('COMMIT');
poll(
	$sub,
	'SELECT v FROM t WHERE id = 1',
	query($pub, 'SELECT v FROM t WHERE id = 1'));
$user->query_safe('CREATE TABLE flushed_by_user ()');
$user->quit;
query($sub, <<'EOS');
SELECT injection_points_detach('weft-leader-drained');
SELECT injection_points_wakeup('weft-leader-drained');
EOS
my $told =
  "SELECT flush_lsn >= '$asked' FROM pg_stat_replication WHERE application_name = 'sub'";
poll_for(
	$sub,
	"SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'logical replication apply worker'",
	sub { return $_[0] eq 'SyncRep' || query($pub, $told) eq 't' });
is(query($pub, $told),
	'f', "what this server's synchronous standby lacks is not reported");
my $leader = leader_pid($sub, 'sub');
query($sub, "SELECT pg_terminate_backend($leader)");
poll_for(
	$sub,
	"SELECT string_agg(wait_event, '') FROM pg_stat_activity WHERE backend_type = 'logical replication apply worker' AND pid <> $leader",
	sub { return $_[0] eq 'SyncRep' || query($pub, $told) eq 't' });
isnt(query($pub, $told), 't', 'nor does the next leader report it');
query($sub, "SELECT pg_terminate_backend($probe_pid)");
$probe->{run}->kill_kill;
set_conf($sub, synchronous_standby_names => '');
poll($pub, $told);
pass('it is once nobody waits for that standby');

# A transaction that the server's apply loop has applied must not count as flushed because
# a later one, which has written nothing on the subscriber, needs no flush.
query($pub, 'INSERT INTO t VALUES (2, 0), (3, 0)');
wait_for_apply($pub, $sub, 'sub');
query($sub,
	"DELETE FROM t WHERE id = 3; ALTER SUBSCRIPTION sub SET (synchronous_commit = off); ALTER SUBSCRIPTION sub SKIP (lsn = 'FFFFFFFF/0')"
);
my $log = -s $sub->logfile;
my $local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE');
my $wal_writer = stop_wal_writer();
query($pub, 'UPDATE t SET v = 7 WHERE id = 2');
my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
$sub->wait_for_log(qr/skip-LSN of subscription "sub" cleared/, $log);
query($pub, 'UPDATE t SET v = 8 WHERE id = 3');
query($pub, 'UPDATE t SET v = 9 WHERE id = 1');
writer_waits_for_lock($sub);
is(told_flushed($end), 'f', 'nor is one of the server\'s apply loop');
kill_process($wal_writer);
$local->{run}->kill_kill;
wait_until_up($sub);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT v FROM t WHERE id = 2'), 7, 'it is not lost');

# Transaction T1 is flushed while the leader does not look, and T2 is committed behind
# it: T2 is not flushed.  T3 is in flight all the time.
query($pub, 'INSERT INTO t VALUES (4, 0), (5, 0)');
wait_for_apply($pub, $sub, 'sub');
my $holds_t2 = open_session($sub);
my $holds_t3 = open_session($sub);
$holds_t2->query_safe('BEGIN; SELECT FROM t WHERE id = 5 FOR UPDATE');
$holds_t3->query_safe('BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE');
$wal_writer = stop_wal_writer();
my $before_t1 = query($pub, 'SELECT pg_current_wal_insert_lsn()');
query($pub, 'UPDATE t SET v = 1 WHERE id = 4');
my $before_t2 = query($pub, 'SELECT pg_current_wal_insert_lsn()');
query($pub, 'UPDATE t SET v = 2 WHERE id = 5');
query($pub, 'UPDATE t SET v = 3 WHERE id = 1');
poll($pub,
	"SELECT replay_lsn > '$before_t1' AND flush_lsn <= '$before_t1' FROM pg_stat_replication WHERE application_name = 'sub'"
);
query($sub, "SELECT injection_points_attach('weft-leader-checks', 'wait')");
waits_for($sub, 'weft-leader-checks');
query($sub, 'SET synchronous_commit = on; CREATE TABLE flushed ()');
$holds_t2->query_safe('ROLLBACK');
poll($sub, 'SELECT v = 2 FROM t WHERE id = 5');
query($sub, <<'EOS');
SELECT injection_points_detach('weft-leader-checks');
SELECT injection_points_wakeup('weft-leader-checks');
EOS
poll($pub,
	"SELECT replay_lsn > '$before_t2' FROM pg_stat_replication WHERE application_name = 'sub'"
);
is( query(
		$pub,
		"SELECT flush_lsn <= '$before_t2' FROM pg_stat_replication WHERE application_name = 'sub'"
	),
	't',
	'the later of two transactions is not flushed with the earlier one');
kill_process($wal_writer);
$_->{run}->kill_kill foreach $holds_t2, $holds_t3;
wait_until_up($sub);
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		"SELECT string_agg(id || ':' || v, ' ' ORDER BY id) FROM t WHERE id IN (1, 4, 5)"
	),
	'1:3 4:1 5:2',
	'none of them is lost');

$sub->stop;
$pub->stop;
done_testing();
