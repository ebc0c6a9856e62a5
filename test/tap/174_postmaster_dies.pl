# The subscriber's postmaster is killed while the subscription waits for a synchronous standby.  The server gives up
# waiting then, but the publisher must not be told that the standby has it: the standby is promoted, and
# may need it once more.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FailoverTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
query($pub,
	'CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t'
);

# With writers, and applied by the server's own code.
foreach my $writers (2, 0)
{
	my $name = "sub$writers";
	my $sub = new_subscriber($name);
	query($sub, 'CREATE TABLE t (id int PRIMARY KEY)');
	subscribe($pub, $sub, $name, 'pub',
		"synchronous_commit = on, num_writers = $writers");
	wait_for_apply($pub, $sub, $name);

	my $standby = new_standby($sub, "standby$writers");
	set_conf($sub, synchronous_standby_names => $standby->name);
	query($pub, "INSERT INTO t VALUES (10 + $writers)");
	wait_for_apply($pub, $sub, $name);
	poll($pub,
		"SELECT confirmed_flush_lsn >= '@{[ query($pub, 'SELECT pg_current_wal_lsn()') ]}' FROM pg_replication_slots WHERE slot_name = '$name'"
	);

	my @pids = server_pids($sub);
	my $receiver = standby_receiver($standby);
	kill 'STOP', $receiver;
	query($pub, "INSERT INTO t VALUES (20 + $writers)");
	my $end = query($pub, 'SELECT pg_current_wal_insert_lsn()');
	poll($sub,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type LIKE 'logical replication %worker' AND wait_event = 'SyncRep'}
	);
	kill 9, $pids[0];
	is(not_ended(@pids), 0, "$writers writers: all processes end");
	unlink $sub->data_dir . '/postmaster.pid';
	$sub->_update_pid(0);
	poll($pub,
		"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '$name'"
	);
	is( query(
			$pub,
			"SELECT confirmed_flush_lsn < '$end' FROM pg_replication_slots WHERE slot_name = '$name'"
		),
		't',
		'... and the publisher was not told that the standby has everything');

	kill 'CONT', $receiver;
	promote($standby);
	set_conf($standby, synchronous_standby_names => '');
	wait_for_apply($pub, $standby, $name);
	is( query($standby, 'SELECT count(*) FROM t'),
		query($pub, 'SELECT count(*) FROM t'),
		'... which has it in the end');
	query($standby, "DROP SUBSCRIPTION $name");
	$standby->stop;
}
$pub->stop;
done_testing();
