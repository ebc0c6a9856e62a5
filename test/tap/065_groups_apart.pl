# Transactions that must not share a commit never do, whatever the tuning of writers
# does: with weft.commit_group_size = 1, or weft.exact_commit_timestamps.  Nor are
# their changes deferred or coalesced.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'weft.tune_writers = on');
my $rounds = 4;
my $together = 10;

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE kept (id int PRIMARY KEY, v int);
CREATE TABLE hot (id int PRIMARY KEY, v int);
CREATE TABLE t (id bigserial PRIMARY KEY, round int);
EOS
query($pub, <<'EOS');
INSERT INTO kept VALUES (1, 0);
INSERT INTO hot VALUES (1, 0);
CREATE PUBLICATION pub FOR TABLE kept, hot, t;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 4');
wait_for_apply($pub, $sub, 'sub');

# A flow of transactions with which one writer keeps up, and then some that it finds all at
# once: a local user blocks the writer at the transaction before.  Returns the number of
# local transactions that resulted.
sub one_round
{
	my ($round) = @_;

	finish(
		start_pgbench(
			$pub,
			{ "INSERT INTO t (round) VALUES (0);\n" => 1 },
			'-c' => 1,
			'-R' => 800,
			'-T' => 1));
	wait_for_apply($pub, $sub, 'sub');

	my $local = open_session($sub);
	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($pub, 'UPDATE kept SET v = v + 1');
	writer_waits_for_lock($sub);
	query($pub,
		"BEGIN; UPDATE hot SET v = v + 1; INSERT INTO t (round) VALUES ($round); COMMIT;\n"
		  x $together);
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, "SELECT received_lsn >= '$end' FROM weft.stat_subscription");
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
	return query($sub,
		"SELECT count(DISTINCT xmin::text) FROM t WHERE round = $round");
}

foreach my $setting ('commit_group_size = 1',
	"track_commit_timestamp = on\nweft.exact_commit_timestamps = on")
{
	if ($setting =~ /group/)
	{
		set_conf($sub, 'weft.commit_group_size' => 1);
	}
	else
	{
		query($sub, 'ALTER SYSTEM RESET weft.commit_group_size');
		$sub->append_conf('postgresql.conf', $setting);
		$sub->restart;
	}
	my $first = $setting =~ /group/ ? 1 : 101;
	my @commits = map { one_round($_) } $first .. $first + $rounds - 1;
	is( "@commits",
		join(' ', ($together) x $rounds),
		"$setting: each transaction has its own commit");
}
same_tables($pub, $sub, [qw(kept hot t)], 'the same rows');

$sub->stop;
$pub->stop;
done_testing();
