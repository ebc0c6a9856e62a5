# The subscriber goes down right before, or after, a table synchronization drops its
# slot: neither is the table left behind, nor the slot.

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

# What is known of the table is on disk before the slot is dropped.
subscribe($pub, $sub, 'sub', 'pub');
poll($sub,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'weft-copy-drop-slot'"
);
is(sync_slots(), 1, 'the slot is still there');
my $start = -s $sub->logfile;
kill 9,
  query($sub,
	"SELECT pid FROM pg_stat_activity WHERE wait_event = 'weft-copy-drop-slot'"
  );
wait_until_up($sub);
query($pub, 'INSERT INTO t VALUES (1001)');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'the table is in step');
nothing_left($pub, 'after a crash');
like(
	slurp_file($sub->logfile, $start),
	qr/dropped replication slot "pg_\d+_sync_\d+_\d+" on publisher, which a table synchronization of subscription "sub" had left/,
	'the log says so');

# Others are left alone.
my ($subid, $relid, $system) = split /\|/,
  query($sub,
	"SELECT s.oid, 't'::regclass::oid, c.system_identifier FROM pg_subscription s, pg_control_system() c"
  );
my %slots = (
	"pg_${subid}_sync_${relid}_$system" => 0,
	"pg_${subid}_sync_1_$system" => 1,
	"pg_${subid}_sync_${relid}_1" => 1,
	"pg_1_sync_${relid}_$system" => 1);
query($pub, "SELECT pg_create_logical_replication_slot('$_', 'pgoutput')")
  foreach keys %slots;
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	"SELECT NOT EXISTS (SELECT FROM pg_stat_subscription WHERE pid IS NOT NULL)"
);
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
wait_for_apply($pub, $sub, 'sub');

foreach my $slot (sort keys %slots)
{
	is( query(
			$pub,
			"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$slot'"
		),
		$slots{$slot},
		$slots{$slot}
		? 'a slot of others stays'
		: 'one that is left over goes');
	query($pub, "SELECT pg_drop_replication_slot('$slot')") if $slots{$slot};
}

# The slot is gone when the worker wants to drop it.
query($sub, "SELECT injection_points_attach('weft-copy-drop-slot', 'wait')");
query($sub, 'DROP SUBSCRIPTION sub; TRUNCATE t');
$start = -s $sub->logfile;
subscribe($pub, $sub, 'sub', 'pub');
poll($sub,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'weft-copy-drop-slot'"
);
query($pub,
	"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
);
query($sub, <<'EOS');
SELECT injection_points_detach('weft-copy-drop-slot');
SELECT injection_points_wakeup('weft-copy-drop-slot');
EOS
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'],
	'in step, though somebody has dropped the slot');
unlike(slurp_file($sub->logfile, $start), qr/ERROR/, 'no error');

$sub->stop;
$pub->stop;
done_testing();
