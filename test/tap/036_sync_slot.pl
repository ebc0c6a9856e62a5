# The subscriber stops right before, or right after, a table synchronization drops its
# slot: the table is synchronized, and the slot does not stay behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
plan skip_all => 'the server was built without injection points'
  unless ($ENV{enable_injection_points} // '') eq 'yes';

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber', conf => 'restart_after_crash = on');
plan skip_all => 'the extension injection_points is not there'
  unless query(
	$sub,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
  );

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
query($pub, <<'EOS');
INSERT INTO t SELECT generate_series(1, 1000);
CREATE PUBLICATION pub FOR TABLE t;
EOS
query($sub, <<'EOS');
CREATE EXTENSION injection_points;
SELECT injection_points_attach('weft-copy-drop-slot', 'wait');
EOS

sub sync_slots
{
	return query($pub,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
	);
}

query($pub, "SELECT pg_create_logical_replication_slot('older', 'pgoutput')");

# The table's state is on disk before the slot is dropped.
subscribe($pub, $sub, 'sub', 'pub');
waits_for($sub, 'weft-copy-drop-slot');
is(sync_slots(), 1, 'the slot is still there');
my $start = -s $sub->logfile;
kill_process(
	query(
		$sub,
		"SELECT pid FROM pg_stat_activity WHERE wait_event = 'weft-copy-drop-slot'"
	));
wait_until_up($sub);
query($pub, 'INSERT INTO t VALUES (1001)');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'the table is synchronized');
nothing_left($pub, 'after a crash');
$sub->wait_for_log(
	qr/dropped replication slot "pg_\d+_sync_\d+_\d+" on publisher, left behind by a table synchronization of subscription "sub"/,
	$start);
pass('the log says so');

# Other slots are left alone: one with another name, and one with the same name that was
# created after the table's synchronization, as a clone of this server would do it.
my ($subid, $relid, $system) = split /\|/,
  query($sub,
	"SELECT s.oid, 't'::regclass::oid, c.system_identifier FROM pg_subscription s, pg_control_system() c"
  );
my $own = "pg_${subid}_sync_${relid}_$system";
my %slots = (
	$own => 1,
	"pg_${subid}_sync_1_$system" => 1,
	"pg_${subid}_sync_${relid}_1" => 1,
	"pg_1_sync_${relid}_$system" => 1);
query($pub, "SELECT pg_create_logical_replication_slot('$_', 'pgoutput')")
  foreach keys %slots;

sub slots_after_start
{
	disable_subscription($sub, 'sub');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	query($pub, 'INSERT INTO t SELECT max(id) + 1 FROM t');
	wait_for_apply($pub, $sub, 'sub');
	return query($pub,
		"SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
	);
}
is(slots_after_start(), join(' ', sort keys %slots), 'other slots remain');

# The same name, but created before the table was synchronized.
query($pub, <<EOS);
SELECT pg_drop_replication_slot('$own');
SELECT pg_copy_logical_replication_slot('older', '$own', false, 'pgoutput');
EOS
delete $slots{$own};
is( slots_after_start(),
	join(' ', sort keys %slots),
	'a leftover slot is dropped');
query($pub, "SELECT pg_drop_replication_slot('$_')")
  foreach keys %slots, 'older';

# The worker is terminated in between, and the leader continues: it drops the slot.
query($sub, "SELECT injection_points_attach('weft-copy-drop-slot', 'wait')");
query($sub, 'DROP SUBSCRIPTION sub; TRUNCATE t');
subscribe($pub, $sub, 'sub', 'pub');
waits_for($sub, 'weft-copy-drop-slot');
my $leader = leader_pid($sub, 'sub');
query($sub, <<'EOS');
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'weft-copy-drop-slot'
EOS
wait_for_apply($pub, $sub, 'sub');
poll($pub,
	"SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name ~ '_sync_')"
);
is(leader_pid($sub, 'sub'),
	$leader,
	'a slot that a worker has left behind is dropped while the leader runs');
same_tables($pub, $sub, ['t'], 'and the table is synchronized');

# The slot no longer exists when the worker tries to drop it.
query($sub, 'DROP SUBSCRIPTION sub; TRUNCATE t');
$start = -s $sub->logfile;
subscribe($pub, $sub, 'sub', 'pub');
waits_for($sub, 'weft-copy-drop-slot');
query($pub,
	"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
);
query($sub, <<'EOS');
SELECT injection_points_detach('weft-copy-drop-slot');
SELECT injection_points_wakeup('weft-copy-drop-slot');
EOS
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'],
	'synchronized, although the slot had been dropped');
unlike(slurp_file($sub->logfile, $start), qr/ERROR/, 'no error');

$sub->stop;
$pub->stop;
done_testing();
