# The apply worker ends while a table that was copied catches up with it.  The next one waits for the table:
# changes that come after the position up to which the table catches up are not lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'natively, the changes are lost' unless weft();

my $waits = "wait_event = 'LogicalSyncStateChange'";

# Either the publisher does not send what the table lacks, or the table's worker has it, and says so in shared
# memory, but cannot store it.
foreach my $case ([ 4, 'stream' ], [ 0, 'stream' ], [ 4, 'commit' ],
	[ 0, 'commit' ])
{
	my ($writers, $hold) = @$case;
	my $what =
	  ($writers ? 'writers' : 'the server\'s apply loop') . ", held $hold";
	my $pub = new_publisher("publisher_${writers}_$hold");
	my $sub = new_subscriber("subscriber_${writers}_$hold");

	query_all([ $pub, $sub ],
		'CREATE TABLE t (id int); CREATE TABLE other (id int)');
	query($pub, 'INSERT INTO t VALUES (1)');
	query($pub, 'CREATE PUBLICATION pub FOR TABLE t, other');
	my $session = hold_copy($sub, 'true');
	subscribe($pub, $sub, 'sub', 'pub', "num_writers = $writers");
	wait_for_held_copy($sub);
	query($pub, 'INSERT INTO t VALUES (2); INSERT INTO other VALUES (1)');
	poll($sub, 'SELECT count(*) = 1 FROM other');

	# The table waits to be told the position, and will not reach it.
	my ($leader, $held) = leave_untold($pub, $sub, $session);
	if ($hold eq 'stream')
	{
		kill 'STOP', $held or die "could not stop $held";
	}
	else
	{
		$session->query_safe(
			'BEGIN; LOCK TABLE pg_subscription_rel IN SHARE MODE');
	}
	kill 'CONT', $leader or die "could not continue $leader";
	poll($sub, "SELECT $waits FROM pg_stat_activity WHERE pid = $leader");
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'pg_subscription_rel'::regclass AND NOT granted)"
	) if $hold eq 'commit';

	# what the next leader gets at once
	query($pub, 'INSERT INTO t VALUES (3); INSERT INTO other VALUES (2)');
	query($sub, "SELECT pg_terminate_backend($leader)");
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_subscription WHERE worker_type = 'apply' AND pid <> $leader)"
	);
	# without the wait, the next one applies the changes of the other table
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'logical replication apply worker' AND pid <> $leader AND $waits) OR (SELECT count(*) = 2 FROM other)"
	);
	if ($hold eq 'stream')
	{
		kill 'CONT', $held or die "could not continue $held";
	}
	else
	{
		$session->query_safe('COMMIT');
	}
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [qw(t other)],
		"$what: nothing is lost or doubled");
	$session->quit;
	$_->stop foreach $sub, $pub;
}

done_testing();
