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
plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "autovacuum = off\ntrack_commit_timestamp = on");

query_all(
	[ $pub, $sub ],
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

# Rows are deleted here while an earlier transaction of the publisher is not applied yet, and
# then updated there.  Several writers find out at the same time, and too early.
sub update_deleted_rows
{
	my (@ids) = @_;
	my $blocker = open_session($sub);

	$blocker->query_safe('BEGIN; UPDATE load SET v = v WHERE id = 1');
	query($pub, 'UPDATE load SET v = v + 1 WHERE id = 1');
	writer_waits_for_lock($sub);
	query($sub, 'DELETE FROM t WHERE id IN (' . join(', ', @ids) . ')');
	query($pub, "UPDATE t SET v = 100 WHERE id = $_") foreach @ids;
	query($sub, 'VACUUM t');
	$blocker->query_safe('ROLLBACK');
	$blocker->quit;
	wait_for_apply($pub, $sub, 'sub');
	return;
}

sub wait_for_conflicts
{
	my ($deleted, $missing) = @_;
	poll($sub,
		"SELECT confl_update_deleted = $deleted AND confl_update_missing = $missing FROM pg_stat_subscription_stats WHERE subname = 'sub'"
	);
	return;
}

my $offset = -s $sub->logfile;
update_deleted_rows(1);
$sub->wait_for_log(
	qr/conflict detected on relation "public\.t": conflict=update_deleted/,
	$offset);
wait_for_conflicts(1, 0);
pass('an update of a deleted row is reported as such, once');

# The writers must not use what was true when they started.
wait_until_advanced();
update_deleted_rows(2);
wait_for_conflicts(2, 0);
pass('and once more, after rows were given up');

update_deleted_rows(3 .. 20);
wait_for_conflicts(20, 0);
pass('each of several updates is counted once');

# What was deleted long ago is not known any more.
wait_until_advanced();
query($pub, 'UPDATE t SET v = 200 WHERE id = 1');
wait_for_apply($pub, $sub, 'sub');
wait_for_conflicts(20, 1);
pass('a row that was given up is a missing one');

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

same_tables($pub, $sub, ['load'], 'everything is applied');

done_testing();
