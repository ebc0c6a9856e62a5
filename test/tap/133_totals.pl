# Counters of subscriptions that are not reset when an apply worker restarts.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => "restart_after_crash = on\n");

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');

my $totals =
  "SELECT concat_ws(' ', total_transactions, total_changes, worker_starts, errors) FROM weft.stat_subscription WHERE subname = 'sub'";

sub starts
{
	return query($sub,
		"SELECT worker_starts FROM weft.stat_subscription WHERE subname = 'sub'"
	);
}

# Five transactions with two changes each.
sub publish
{
	query($pub,
		"INSERT INTO t VALUES ($_, 1); UPDATE t SET v = 2 WHERE id = $_")
	  foreach $_[0] .. $_[0] + 4;
	wait_for_apply($pub, $sub, 'sub');
	return;
}

query($sub,
	"CREATE SUBSCRIPTION sub CONNECTION 'dbname=postgres' PUBLICATION pub WITH (connect = false, slot_name = 'sub')"
);
is(query($sub, $totals), '0 0 0 0', 'nothing counted yet');
query($sub, 'ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
query($sub, 'DROP SUBSCRIPTION sub');

subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
publish(1);
poll($sub,
	"SELECT total_transactions = transactions AND total_changes = changes AND changes = 10 AND errors = 0 FROM weft.stat_subscription WHERE subname = 'sub'"
);
pass('as many as this apply worker has counted');
my $starts = starts();
cmp_ok($starts, '>=', 1, 'starts of apply workers are counted');

# The last moments of an apply worker count, too.
publish(11);
disable_subscription($sub, 'sub');
my $counted = query($sub, $totals);
like($counted, qr/^\d+ 20 $starts 0$/, 'counted when the apply worker ends');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
poll($sub,
	"SELECT worker_starts > $starts AND total_changes = 20 AND changes = 0 FROM weft.stat_subscription WHERE subname = 'sub'"
);
pass('the next one counts on');

# Errors, by a writer and by the server's own code.
foreach my $writers (4, 0)
{
	my $id = 100 + $writers;

	query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $writers)");
	query($sub, "INSERT INTO t VALUES ($id, 0)");
	my $errors =
	  query($sub,
		"SELECT errors FROM weft.stat_subscription WHERE subname = 'sub'");
	query($pub, "INSERT INTO t VALUES ($id, 1)");
	poll($sub,
		"SELECT errors >= $errors + 2 FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	query($sub, "DELETE FROM t WHERE id = $id");
	wait_for_apply($pub, $sub, 'sub');
	pass("errors are counted, writers: $writers");
}
same_tables($pub, $sub, ['t'], 'equal');

# A restart of the server.
disable_subscription($sub, 'sub');
my $before = query($sub, $totals);
unlike($before, qr/ 0$/, 'there is something of each kind');
$sub->restart;
is(query($sub, $totals), '0 0 0 0', 'after a restart of the server');

# A crash.
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
publish(200);
disable_subscription($sub, 'sub');
unlike(query($sub, $totals), qr/^0 /, 'counted on');
$sub->stop('immediate');
$sub->start;
is(query($sub, $totals), '0 0 0 0', 'after a crash');
is( query(
		$sub,
		"SELECT count(*) FROM weft.stat_get_totals() t WHERE NOT EXISTS (SELECT FROM pg_subscription s WHERE s.oid = t.subid)"
	),
	0,
	'no others are left');

done_testing();
