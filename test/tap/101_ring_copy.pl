# The changes of a table that is being copied are dropped before the ring.  The changes of
# other tables in the same commit group keep their order all the same.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use Test::More;
use WeftTest;

need_injection_points();

# How often a window may be missed; see all_in_ring().
my $attempts = 20;
# Some of the rows of "big" and "b" have the same hash value.
my $big_rows = 2000;
my $b_rows = 400;

# With groups of up to four, a writer takes transactions one by one.
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "weft.writers_per_subscription = 2\nweft.commit_group_size = 4");

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE b (id int PRIMARY KEY, v int);
CREATE TABLE big (id serial PRIMARY KEY, v int);
EOS
query($pub, <<"EOS");
INSERT INTO b SELECT i, 0 FROM generate_series(0, $b_rows) i;
CREATE PUBLICATION pub FOR TABLE b;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = off');
wait_for_apply($pub, $sub, 'sub');

# The worker that copies "big" waits for its lock.
my $local = open_session($sub);
$local->query_safe('BEGIN; LOCK TABLE big IN SHARE MODE');
query($pub, 'ALTER PUBLICATION pub ADD TABLE big');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll($sub,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'big'::regclass AND NOT granted"
);

sub applied
{
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');

	poll($sub, "SELECT applied_lsn >= '$end' FROM weft.stat_subscription");
	return;
}

# The transactions reach the leader at once, as far as its socket has room for them.  It reads
# all of them, and writers take none.  Returns false if the leader waits for those in flight, to
# let the server's apply loop have a turn.  It does so at intervals while a table is being copied.
sub all_in_ring
{
	my (@transactions) = @_;
	my $leader = leader_pid($sub, 'sub');

	attach_point($sub, 'weft-ring-take');
	kill 'STOP', $leader;
	query($pub, $_) foreach @transactions;
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($pub, <<"EOS");
SELECT bool_and(sent_lsn >= '$end' OR wait_event = 'WalSenderWriteData')
FROM pg_stat_replication JOIN pg_stat_activity USING (pid)
EOS
	kill 'CONT', $leader;
	return poll_for($sub, <<"EOS") eq 'all';
SELECT CASE
	WHEN wait_event = 'WeftLeaderDrain' THEN 'not all'
	WHEN wait_event = 'WeftLeaderMain' AND received_lsn >= '$end' THEN 'all'
END
FROM pg_stat_activity a JOIN weft.stat_subscription s ON a.pid = s.leader_pid
EOS
}

# The relations' descriptions are not new.
query($pub, 'UPDATE b SET v = 0; INSERT INTO big (v) VALUES (0)');
applied();

# T1; T2, of which one change waits for T1, and so do those that follow in T2 of rows that it
# has changed before; T3, which is dropped; and T4.
my $all;
foreach (1 .. $attempts)
{
	$all = all_in_ring(
		'UPDATE b SET v = 1 WHERE id = 0',
		'BEGIN; UPDATE b SET v = 2 WHERE id > 0; UPDATE b SET v = 2 WHERE id = 0; UPDATE b SET v = 3 WHERE id > 0; COMMIT',
		"INSERT INTO big (v) SELECT i FROM generate_series(1, $big_rows) i",
		'UPDATE b SET v = 4 WHERE id > 0');
	last if $all;
	release_point($sub, 'weft-ring-take');
	applied();
}
ok($all, 'all are in the ring');

# One writer applies T1, and does not commit.  The other one applies T2 to T4 as a group.
my ($first) = held_at($sub, 'weft-ring-take', 2);
attach_point($sub, 'weft-writer-commits');
release($sub, $first);
held_at($sub, 'weft-writer-commits');
release_point($sub, 'weft-ring-take');
waits_for($sub, 'WeftWriterCommitOrder');
release_point($sub, 'weft-writer-commits');
applied();
is( query(
		$sub, 'SELECT count(DISTINCT xmin::text) FROM b WHERE id IN (0, 1)'),
	1,
	'T2 and T4 share a commit');
same_tables($pub, $sub, ['b'], 'no update is lost');

$local->query_safe('COMMIT');
$local->quit;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [qw(b big)], 'the copy has all rows');

$sub->stop;
$pub->stop;
done_testing();
