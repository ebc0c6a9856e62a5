# retain_dead_tuples (from 19 on): the apply loop of the server decides, together with the publisher,
# which dead rows nobody needs any more, and tells an update of a deleted row from one of a row
# that was never there.  Weft's leader must let it do so under load, and Weft's writers must know
# what it has decided.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'retain_dead_tuples came with version 19' if major() < 19;

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "autovacuum = off\ntrack_commit_timestamp = on");

query_all([ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE load (id int PRIMARY KEY, v int)'
);
query($pub, <<EOS);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i;
INSERT INTO load SELECT i, 0 FROM generate_series(1, 1000) i;
CREATE PUBLICATION pub FOR TABLE t, load;
EOS
subscribe($pub, $sub, 'sub', 'pub',
	'retain_dead_tuples = true, max_retention_duration = 0');
wait_for_apply($pub, $sub, 'sub');

my $update =
  "\\set id random(1, 1000)\nUPDATE load SET v = v + 1 WHERE id = :id;\n";

# Wait until dead rows of everything up to now are no longer needed.
sub wait_until_advanced
{
	my $now = query($sub, 'SELECT pg_current_xact_id()::text::bigint');
	poll($sub,
		"SELECT xmin::text::bigint > $now FROM pg_replication_slots WHERE slot_name = 'pg_conflict_detection'"
	);
	return;
}

# Idle.
query($pub, 'UPDATE t SET v = v + 1');
wait_for_apply($pub, $sub, 'sub');
wait_until_advanced();
pass('dead rows are given up while nothing is to be applied');

# Under load, when the loop gets nothing but the turns that the leader gives it.
my $load = start_pgbench($pub, { $update => 1 }, '--client=2', '--time=600');
poll($sub, 'SELECT sum(v) > 100 FROM load');
foreach my $round (1 .. 3)
{
	wait_until_advanced();
	ok(running($load), "and under load, time $round");
}
end_load($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [ 't', 'load' ], 'everything is applied');

# A transaction that is open on the publisher may yet change a row that is deleted here.
my $session = open_session($pub);
$session->query_safe('BEGIN; UPDATE t SET v = 100 WHERE id = 1');
query($sub, 'DELETE FROM t WHERE id IN (1, 2)');
query($pub, 'UPDATE load SET v = v + 1 WHERE id <= 10');
wait_for_apply($pub, $sub, 'sub');

my $offset = -s $sub->logfile;
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($pub, $sub, 'sub');
$sub->wait_for_log(
	qr/conflict detected on relation "public\.t": conflict=update_deleted/,
	$offset);
poll($sub,
	"SELECT confl_update_deleted = 1 AND confl_update_missing = 0 FROM pg_stat_subscription_stats WHERE subname = 'sub'"
);
pass('an update of a deleted row is reported as such, once');

# Once more by a writer that has been there for long: it must not use what was true when it started.
$offset = -s $sub->logfile;
wait_until_advanced();
query($sub, 'DELETE FROM t WHERE id = 3');
query($pub, 'UPDATE t SET v = 100 WHERE id = 3');
$sub->wait_for_log(
	qr/conflict detected on relation "public\.t": conflict=update_deleted/,
	$offset);
pass('and once more, after rows were given up');
query($sub, 'VACUUM t');

# Several writers at once, each with rows that are deleted here: as often as natively.
query($sub, 'DELETE FROM t WHERE id BETWEEN 4 AND 20');
foreach my $id (4 .. 20)
{
	query($pub, "UPDATE t SET v = 200 WHERE id = $id");
}
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT confl_update_deleted = 19 AND confl_update_missing = 0 FROM pg_stat_subscription_stats WHERE subname = 'sub'"
);
pass('each update of a deleted row is counted once');

# A row that was never there.
query($pub, 'ALTER PUBLICATION pub SET TABLE load');
query($pub, 'INSERT INTO t VALUES (100, 0)');
query($pub, 'ALTER PUBLICATION pub SET TABLE load, t');
query($pub, 'UPDATE t SET v = 1 WHERE id = 100');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT confl_update_deleted = 19 AND confl_update_missing = 1 FROM pg_stat_subscription_stats WHERE subname = 'sub'"
);
pass('an update of a row that was never there is another conflict');

# A limit that is longer than what the leader takes is not exceeded under load.
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	"SELECT count(*) = 0 FROM pg_stat_subscription WHERE subname = 'sub' AND pid IS NOT NULL"
);
query($sub,
	"ALTER SUBSCRIPTION sub SET (max_retention_duration = 10000); ALTER SUBSCRIPTION sub ENABLE"
);
$load = start_pgbench($pub, { $update => 1 }, '--client=2', '--time=600');
foreach my $round (1 .. 3)
{
	wait_until_advanced();
}
end_load($load);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, "SELECT subretentionactive FROM pg_subscription"),
	't', 'max_retention_duration was not exceeded');

# If the limit is exceeded, retention stops, and is resumed.
my $blocker = open_session($sub);
query($sub,
	"ALTER SUBSCRIPTION sub SET (max_retention_duration = 1000)");
$blocker->query_safe('BEGIN; LOCK TABLE load');
query($pub, 'UPDATE load SET v = v + 1');
poll($sub, 'SELECT NOT subretentionactive FROM pg_subscription');
pass('a limit that is exceeded ends retention');
$blocker->query_safe('COMMIT');
$blocker->quit;
poll($sub, 'SELECT subretentionactive FROM pg_subscription');
pass('which is resumed');
wait_until_advanced();
query($sub, 'DELETE FROM t WHERE id = 100');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['load'], 'everything is applied');

done_testing();
