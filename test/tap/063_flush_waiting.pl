# The leader flushes when somebody waits for it: if the publisher counts the subscription
# as a synchronous standby, at once; otherwise once it has been idle for
# weft.flush_delay.
#
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

my $pub = new_publisher('publisher',
	conf => "logical_decoding_work_mem = 64kB\nsynchronous_commit = local");
my $sub = new_subscriber('subscriber',
	conf =>
	  "autovacuum = off\nrestart_after_crash = on\nweft.flush_delay = -1");

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub,
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i; CREATE PUBLICATION pub FOR TABLE t'
);
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT count(*) = 0 FROM pg_subscription WHERE subtwophasestate <> 'e'");

my $wal_writer;

sub stop_wal_writer
{
	$wal_writer = query($sub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill 'STOP', $wal_writer;
	return;
}

# Crash, so that what is not flushed is lost, and check that nothing is.
sub crash
{
	my ($name) = @_;
	kill_process($wal_writer);
	wait_until_up($sub);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], "$name: nothing is lost in a crash");
	return;
}

# Apply a change, and return its end once the publisher knows that it is applied.
sub apply
{
	my ($sql) = @_;
	query($pub, $sql);
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($pub,
		"SELECT replay_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'"
	);
	return $end;
}

sub flushed
{
	my ($end) = @_;
	return
	  "SELECT flush_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'";
}

# Wait for a transaction that the server's apply loop applies: it does so while it is
# to skip another one.
sub native
{
	query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$_[0]')");
	return;
}

# Nobody waits.
stop_wal_writer();
my $end = apply('UPDATE t SET v = v + 1 WHERE id = 1');
is(query($pub, flushed($end)),
	'f', 'weft.flush_delay = -1: the leader leaves it to the WAL writer');

# The next leader reports the replication origin's position.
my $leader = leader_pid($sub, 'sub');
query($sub, "SELECT pg_terminate_backend($leader)");
poll($pub, flushed($end));
crash('the next leader');

# The leader is idle.
stop_wal_writer();
$end = apply('UPDATE t SET v = v + 1 WHERE id = 1');
query($sub,
	"ALTER SYSTEM SET weft.flush_delay = '20ms'; SELECT pg_reload_conf()");
poll($pub, flushed($end));
pass('what was committed before is flushed after weft.flush_delay');
$end = apply('UPDATE t SET v = v + 1 WHERE id = 2');
poll($pub, flushed($end));
pass('and so is what is committed now');
query($sub, "ALTER SYSTEM SET weft.flush_delay = 0; SELECT pg_reload_conf()");
$end = apply('UPDATE t SET v = v + 1 WHERE id = 3');
poll($pub, flushed($end));
pass('and without a delay');
native('FFFFFFFF/0');
$end = apply('UPDATE t SET v = v + 1 WHERE id = 2');
poll($pub, flushed($end));
pass("the same for the server's apply loop");
crash('idle');

# The publisher waits.  What the subscriber does not flush, it waits for until the time-out.
query($sub,
	"ALTER SYSTEM SET weft.flush_delay = -1; SELECT pg_reload_conf()");
set_conf($pub, synchronous_standby_names => 'sub');
poll($pub,
	"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'"
);
stop_wal_writer();

sub returns
{
	my ($name, @commands) = @_;
	my $timeout = $PostgreSQL::Test::Utils::timeout_default;
	my ($status, $out, $err) = $pub->psql(
		'postgres',
		join("\n",
			"SET statement_timeout = '${timeout}s';",
			'SET synchronous_commit = on;',
			map { "$_;" } @commands));
	is($err, '', "$name: the publisher does not wait for the WAL writer");
	return;
}

returns("server's apply loop", 'UPDATE t SET v = v + 1 WHERE id = 4');
native('none');
returns("after it", 'UPDATE t SET v = v + 1 WHERE id = 4');
returns('transaction', 'UPDATE t SET v = v + 1 WHERE id = 5');
returns(
	'savepoints', 'BEGIN',
	'UPDATE t SET v = v + 1 WHERE id = 5', 'SAVEPOINT s',
	'UPDATE t SET v = v + 1 WHERE id = 6', 'COMMIT');
returns('streamed transaction',
	'INSERT INTO t SELECT i, 0 FROM generate_series(10, 9000) i');
returns(
	'prepared transaction',
	'BEGIN',
	'UPDATE t SET v = v + 1 WHERE id = 7',
	"PREPARE TRANSACTION 'p'");
returns('its end', "COMMIT PREPARED 'p'");

# Somebody waits for the first of two transactions, while the second one is in flight.
my @holds = map { open_session($sub) } 1 .. 2;
foreach my $id (1, 2)
{
	$holds[ $id - 1 ]->query_safe(
		"SET synchronous_commit = off; BEGIN; SELECT FROM t WHERE id = $id FOR UPDATE"
	);
}
my $waiting = open_session($pub);
$waiting->query_until(qr/begun/,
	"SET synchronous_commit = on;\n\\echo begun\nUPDATE t SET v = v + 1 WHERE id = 1;\n\\echo returned\n"
);
poll($pub,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
query($pub, 'UPDATE t SET v = v + 1 WHERE id = 2');
$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
poll($sub,
	"SELECT received_lsn >= '$end' FROM pg_stat_subscription WHERE worker_type = 'apply'"
);
$holds[0]->query_safe('COMMIT');
$waiting->query_until(qr/returned/, '');
pass('in flight: the publisher does not wait for the WAL writer');
$holds[1]->query_safe('COMMIT');
$_->quit foreach @holds, $waiting;
crash('synchronous');

# A synchronous standby that is no longer one.
poll($pub,
	"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'"
);
returns('still', 'UPDATE t SET v = v + 1 WHERE id = 8');
set_conf($pub, synchronous_standby_names => '');
poll($pub,
	"SELECT sync_state = 'async' FROM pg_stat_replication WHERE application_name = 'sub'"
);
stop_wal_writer();
$end = apply('UPDATE t SET v = v + 1 WHERE id = 8');
is(query($pub, flushed($end)),
	'f', 'a publisher that no longer waits is not flushed for');
crash('asynchronous');
$sub->stop;

# Batches say whether the publisher waits, unless the subscriber is too old to know that.
query($pub, "SELECT pg_create_logical_replication_slot('raw', 'weft')");
set_conf($pub, synchronous_standby_names => 'raw');
foreach my $version (1 .. 4)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/batch";

	query($pub, 'UPDATE t SET v = v + 1 WHERE id = 9');
	run_log(
		[
			'pg_recvlogical', '-d',
			$pub->connstr('postgres') . ' application_name=raw', '-S',
			'raw', '--start',
			'--no-loop', '-f',
			$file, '--endpos',
			query($pub, 'SELECT pg_current_wal_flush_lsn()'), '-o',
			'proto_version=4', '-o',
			'publication_names=pub', '-o',
			"weft_batch_version=$version"
		]);
	my ($type, $flags) = unpack 'a C', slurp_file($file);
	is( "$type $flags",
		'# ' . ($version < 3 ? 0 : 4),
		"batches of version $version");
	unlink $file;
}

$pub->stop;
done_testing();
