# With weft.confirm_after_standby_slots, a subscriber confirms to its publisher only what the
# standbys of these slots have (src/confirmation.c), whatever the way on which it was applied.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FailoverTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher',
	conf => "synchronous_commit = local\nlogical_decoding_work_mem = 64kB");
my $sub = new_subscriber('subscriber', conf => <<'EOC');
autovacuum = off
wal_receiver_status_interval = 1s
wal_sender_timeout = 0
EOC

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE late (id int)');
query($pub, <<'EOS');
INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i;
CREATE TABLE unpublished (id int);
CREATE PUBLICATION pub FOR TABLE t;
EOS
my $standby = new_standby($sub, 'sb');
set_conf($sub, 'weft.confirm_after_standby_slots' => 'sb');
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT count(*) = 0 FROM pg_subscription WHERE subtwophasestate <> 'e'");

# Has the publisher been told of everything up to a position?
sub confirmed
{
	my ($end) = @_;
	return
	  "SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'sub'";
}

# Return once the publisher has had two more replies.
sub two_replies
{
	foreach (1 .. 2)
	{
		my $before = query($pub, 'SELECT clock_timestamp()');
		poll($pub,
			"SELECT reply_time > '$before' FROM pg_stat_replication WHERE application_name = 'sub'"
		);
	}
	return;
}

my $sender;

sub hold_standby
{
	# what was withheld so far
	poll($sub,
		"SELECT withheld_since IS NULL FROM weft.stat_confirmation WHERE subname = 'sub'"
	);
	$sender = standby_sender($sub, 'sb');
	kill 'STOP', $sender;
	return;
}

# Something is applied while the standby gets nothing: apply goes on, and nothing is confirmed
# before the standby has it.
sub withheld
{
	my ($name, $sql, $applied) = @_;

	hold_standby();
	# so that there is something to send to the standby, whatever is applied
	query($sub, 'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
	query($pub, $sql);
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, $applied) if $applied;
	poll($pub,
		"SELECT replay_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'"
	) if $applied;
	poll($sub,
		"SELECT withheld_since IS NOT NULL AND slot_name = 'sb' AND slot_state = 'behind' FROM weft.stat_confirmation WHERE subname = 'sub'"
	);
	two_replies();
	is(query($pub, confirmed($end)), 'f', "$name: it is withheld");
	kill 'CONT', $sender;
	poll($pub, confirmed($end));
	pass("$name: and confirmed when the standby has it");
	poll($sub,
		'SELECT withheld_since IS NULL FROM weft.stat_confirmation WHERE subname = $$sub$$'
	);
	return;
}

my $value = 0;

sub update
{
	my ($id) = @_;
	$value++;
	return (
		"UPDATE t SET v = $value WHERE id = $id",
		"SELECT v = $value FROM t WHERE id = $id");
}

withheld('a transaction', update(1));
withheld('WAL without changes', 'INSERT INTO unpublished VALUES (1)');
withheld(
	'a streamed transaction',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1000, 9000) i',
	'SELECT count(*) = 8001 FROM t WHERE id >= 1000');
withheld(
	'a prepared transaction',
	"BEGIN; UPDATE t SET v = -1 WHERE id = 2; PREPARE TRANSACTION 'p'",
	'SELECT count(*) = 1 FROM pg_prepared_xacts');
withheld(
	'its end',
	"COMMIT PREPARED 'p'",
	'SELECT v = -1 FROM t WHERE id = 2');

# the server's apply loop: it applies while it is to skip another transaction
query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = 'FFFFFFFF/0')");
withheld("the server's apply loop", update(3));
query($sub, 'ALTER SUBSCRIPTION sub SKIP (lsn = none)');

# native, without writers
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
poll_figure($sub, 'sub', 'native_reason IS NOT NULL');
withheld('without writers', update(4));
withheld(
	'without writers, a streamed transaction',
	'INSERT INTO t SELECT i, 0 FROM generate_series(10000, 19000) i',
	'SELECT count(*) = 9001 FROM t WHERE id >= 10000');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 4)');
poll_figure($sub, 'sub', 'native_reason IS NULL');

# a cut flushes, and reports
hold_standby();
query($pub, 'UPDATE t SET v = 5 WHERE id = 5');
my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
query($sub, "CALL weft.compare_subscription('sub')");
two_replies();
is(query($pub, confirmed($end)), 'f', 'a comparison confirms nothing');

# the leader restarts, and begins with the position of its origin
my $leader = leader_pid($sub, 'sub');
query($sub, "SELECT pg_terminate_backend($leader)");
poll($sub,
	"SELECT withheld_since IS NOT NULL FROM weft.stat_confirmation WHERE subname = 'sub' AND (SELECT leader_pid <> $leader FROM weft.stat_subscription WHERE subname = 'sub')"
);
two_replies();
is(query($pub, confirmed($end)), 'f', 'the next leader confirms nothing');

# while there is a load, apply goes on
my $load = start_pgbench(
	$pub,
	{
		"\\set id random(1, 9000)\nUPDATE t SET v = v + 1 WHERE id = :id;\n"
		  => 1
	},
	'-c', 4, '-t', 500);
finish($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'apply does not wait for the standby');
is(query($pub, confirmed($end)), 'f', 'and nothing is confirmed');
kill 'CONT', $sender;
$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
poll($pub, confirmed($end));
pass('all of it is confirmed then');

# under load, what is confirmed moves, though the standby never has everything
$load = start_pgbench(
	$pub,
	{
		"\\set id random(1, 9000)\nUPDATE t SET v = v + 1 WHERE id = :id;\n"
		  => 1
	},
	'-c', 4, '-T', 100);
foreach (1 .. 3)
{
	$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($pub, confirmed($end));
}
ok(running($load), 'confirmation goes on under load');
end_load($load);
wait_for_apply($pub, $sub, 'sub');

# Sessions on the publisher wait for the standby, too.
set_conf($pub, synchronous_standby_names => 'sub');
poll($pub,
	"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'"
);
query($pub,
	'SET synchronous_commit = on; UPDATE t SET v = v + 1 WHERE id = 6');
pass('a synchronous publisher goes on');
hold_standby();
my $waiting = open_session($pub);
$waiting->query_until(qr/begun/,
	"SET synchronous_commit = on;\n\\echo begun\nUPDATE t SET v = 66 WHERE id = 6;\n\\echo returned\n"
);
poll($sub, 'SELECT v = 66 FROM t WHERE id = 6');
two_replies();
is( query(
		$pub,
		"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
	1,
	'it waits for the standby');
kill 'CONT', $sender;
$waiting->query_until(qr/returned/, '');
$waiting->quit;
pass('and for nothing else');
set_conf($pub, synchronous_standby_names => '');

# Names that cannot be waited for.
sub wrong
{
	my ($name, $slots, $state, $severity) = @_;
	my $log_start = -s $sub->logfile;

	poll($sub,
		'SELECT withheld_since IS NULL FROM weft.stat_confirmation WHERE subname = $$sub$$'
	);
	set_conf($sub, 'weft.confirm_after_standby_slots' => $slots);
	query($sub, 'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
	my ($sql, $applied) = update(7);
	query($pub, $sql);
	$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, $applied);
	poll($sub,
		"SELECT withheld_since IS NOT NULL AND slot_state = '$state' FROM weft.stat_confirmation WHERE subname = 'sub'"
	);
	$sub->wait_for_log(
		qr/WARNING: .*subscription "sub" confirms nothing to its publisher because of replication slot/,
		$log_start);
	two_replies();
	is(query($pub, confirmed($end)), 'f', "$name: nothing is confirmed");
	like(query($sub, "SELECT id, severity FROM weft.health()"),
		qr/^H013\|$severity$/m, "$name: weft.health() tells");
	return;
}

# Back to normal, by a reload only.
sub mended
{
	my ($name) = @_;
	my $log_start = -s $sub->logfile;

	set_conf($sub, 'weft.confirm_after_standby_slots' => 'sb');
	poll($pub, confirmed($end));
	$sub->wait_for_log(qr/confirms to its publisher again/, $log_start);
	pass("$name: confirmed after a reload");
	unlike(query($sub, 'SELECT id FROM weft.health()'),
		qr/H013/, "$name: and weft.health() finds nothing");
	return;
}

wrong('a typo', 'sb, sbb', 'missing', 'error');
mended('a typo');
query($sub, "SELECT pg_create_logical_replication_slot('lo', 'pgoutput')");
wrong('a logical slot', 'lo', 'logical', 'error');
mended('a logical slot');
query($sub, "SELECT pg_create_physical_replication_slot('gone', true)");
wrong('an inactive slot', 'gone', 'inactive', 'warning');
mended('an inactive slot');

# A slot that loses its WAL.
query($sub, 'SELECT pg_switch_wal(); CHECKPOINT') foreach 1 .. 3;
set_conf($sub, max_slot_wal_keep_size => '1MB');
foreach (1 .. 3)
{
	query($sub,
		'SELECT pg_logical_emit_message(true, $$$$, repeat($$x$$, 1000000)) FROM generate_series(1, 40); SELECT pg_switch_wal()'
	);
	$sub->wait_for_catchup($standby, 'flush');
	query($sub, 'CHECKPOINT');
}
poll($sub,
	"SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'gone'"
);
wrong('an invalidated slot', 'gone', 'invalidated', 'error');
mended('an invalidated slot');
set_conf($sub, max_slot_wal_keep_size => -1);

# The standby is stopped for long.
hold_standby();
query($sub, 'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
query($pub, 'UPDATE t SET v = 8 WHERE id = 8');
$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
poll($sub,
	"SELECT count(*) = 1 FROM weft.health(stale => '100 ms') WHERE id = 'H014'"
);
pass('weft.health() tells of a standby that is behind');

# A table is synchronized meanwhile: its slot stays until the standby knows that.
my $log_start = -s $sub->logfile;
query($pub,
	'INSERT INTO late VALUES (1); CREATE PUBLICATION pub2 FOR TABLE late');
subscribe($pub, $sub, 'sub2', 'pub2');
poll($sub,
	"SELECT srsubstate IN ('s', 'r') FROM pg_subscription_rel WHERE srrelid = 'late'::regclass"
);
$sub->wait_for_log(qr/leaves its replication slot on the publisher/,
	$log_start);
is( query(
		$pub,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pg\\_%\\_sync\\_%'"
	),
	1,
	'the slot of a synchronized table is kept');
query($pub, 'INSERT INTO late VALUES (2)');
poll($sub, 'SELECT count(*) = 2 FROM late');
kill 'CONT', $sender;
poll($pub,
	"SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name LIKE 'pg\\_%\\_sync\\_%'"
);
pass('and dropped when the standby knows');

# Turned off while something is withheld.
hold_standby();
query($sub, 'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
query($pub, 'UPDATE t SET v = 9 WHERE id = 9');
$end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
poll($sub,
	"SELECT withheld_since IS NOT NULL FROM weft.stat_confirmation WHERE subname = 'sub'"
);
set_conf($sub, 'weft.confirm_after_standby_slots' => '');
poll($pub, confirmed($end));
pass('without slots, nothing is withheld');
kill 'CONT', $sender;

# Bad values.
foreach my $bad ('Sb-1', 'a,,b')
{
	my ($status, $out, $err) = $sub->psql('postgres',
		"ALTER SYSTEM SET weft.confirm_after_standby_slots = '$bad'");
	isnt($status, 0, "\"$bad\" is refused");
}

wait_for_apply($pub, $sub, $_) foreach 'sub', 'sub2';
same_tables($pub, $sub, [ 't', 'late' ], 'the same rows at the end');
is( errors_logged($sub) =~
	  s/.*terminating logical replication worker.*\n?//gr,
	'',
	'no errors');

# A publisher that is shut down waits for the standby, and not for ever.
set_conf($sub, 'weft.confirm_after_standby_slots' => 'sb');
hold_standby();
query($sub, 'SELECT pg_logical_emit_message(false, $$$$, $$$$, true)');
query($pub, 'UPDATE t SET v = 10 WHERE id = 1');
poll($sub, 'SELECT v = 10 FROM t WHERE id = 1');
my $stop = IPC::Run::start(
	[ 'pg_ctl', 'stop', '-D', $pub->data_dir, '-m', 'fast', '-w' ],
	'>', \my $stop_output);
poll($sub,
	"SELECT withheld_since < clock_timestamp() - interval '1 s' FROM weft.stat_confirmation WHERE subname = 'sub'"
);
$stop->pump_nb;
ok($stop->pumpable, 'a publisher that is stopped waits');
set_conf($sub, 'weft.confirm_after_standby_slots' => '');
$stop->finish;
is($?, 0, 'and stops when nothing is withheld any more');
$pub->_update_pid(0);
kill 'CONT', $sender;
$standby->stop;
$sub->stop;
done_testing();
