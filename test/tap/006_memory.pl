# Memory use stays bounded, however much a transaction changes and however many
# transactions wait.
#
# With WEFT_TEST_BIG=1 the large transaction has 2 GB instead of 300 MB.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WeftTest;

plan skip_all => 'needs /proc' unless -r '/proc/self/status';

my $megabytes = $ENV{WEFT_TEST_BIG} ? 2000 : 300;
my $limit = 100;

my $pub = new_publisher('publisher', conf => <<EOS);
synchronous_commit = off
max_wal_size = 8GB
EOS
my $sub = new_subscriber('subscriber', conf => 'max_wal_size = 8GB');

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE wide (id int PRIMARY KEY, t text);
ALTER TABLE wide ALTER t SET STORAGE EXTERNAL;
CREATE TABLE narrow (id int PRIMARY KEY, v int, t text);
CREATE TABLE counter (id int PRIMARY KEY, v int);
EOS
query($pub, <<EOS);
INSERT INTO counter SELECT i, 0 FROM generate_series(0, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = off');
wait_for_apply($pub, $sub, 'sub');

# The private memory of a process in MB.
sub private_memory
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/status" or return 0;
	my ($kb) = join('', <$fh>) =~ /^RssAnon:\s+(\d+) kB/m;
	return ($kb // 0) / 1024;
}

# Watches the leader and the writers until the query is true on the subscriber.
# Returns the largest amount of memory that any of them used.
sub peak_memory_until
{
	my ($sql) = @_;
	my @pids = (leader_pid($sub, 'sub'), writer_pids($sub));
	my $session = open_session($sub);
	my $deadline = time + 5 * $PostgreSQL::Test::Utils::timeout_default;
	my $peak = 0;

	while ($session->query_safe($sql) ne 't')
	{
		die "timed out waiting for: $sql" if time > $deadline;
		foreach (1 .. 10)
		{
			foreach my $memory (map { private_memory($_) } @pids)
			{
				$peak = $memory if $memory > $peak;
			}
			usleep(20_000);
		}
	}
	$session->quit;
	is(join(' ', leader_pid($sub, 'sub'), writer_pids($sub)),
		"@pids", 'the processes are still the same');
	return $peak;
}

# One large transaction, of large rows and then of small ones.
foreach my $case (
	[
		'large rows',
		'INSERT INTO wide SELECT i, repeat(chr(65 + i %% 26), 100000) FROM generate_series(1, %d) i',
		$megabytes * 10,
		'SELECT EXISTS (SELECT FROM wide WHERE id = %d)'
	],
	[
		'small rows',
		"INSERT INTO narrow SELECT i, i, repeat('n', 100) FROM generate_series(1, %d) i",
		$megabytes * 1000,
		'SELECT EXISTS (SELECT FROM narrow WHERE id = %d)'
	],
	[
		'updates of small rows',
		'UPDATE narrow SET v = -v WHERE id <= %d',
		$megabytes * 300,
		'SELECT v < 0 FROM narrow WHERE id = %d'
	])
{
	my ($what, $sql, $rows, $condition) = @$case;
	my $start = time;

	query($pub, sprintf($sql, $rows));
	my $published = time;
	my $peak = peak_memory_until(sprintf($condition, $rows));
	note(
		sprintf "%s: peak %.1f MB, publisher %.1f s, subscriber %.1f s more",
		$what,
		$peak,
		$published - $start,
		time - $published);
	cmp_ok($peak, '<', $limit, "$what: memory is bounded");
	wait_for_apply($pub, $sub, 'sub');

	foreach my $table (qw(wide narrow))
	{
		my $sums =
		  "SELECT count(*), sum(length(t)), sum(hashtext(t)::bigint), sum(id::bigint * "
		  . ($table eq 'narrow' ? 'v' : '1')
		  . ") FROM $table";
		is(query($sub, $sums), query($pub, $sums), "$what: $table is equal");
	}
}

# Many tiny transactions, all of which wait for the first.
if (weft())
{
	pause_subscription($sub, 'sub');
	set_conf($sub, 'weft.ring_size' => '1MB');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
}
set_conf($pub, wal_sender_timeout => '20s');
my $local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM counter WHERE id = 0 FOR UPDATE');
query($pub, 'UPDATE counter SET v = 1 WHERE id = 0');
query($pub, <<'EOS');
DO $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		UPDATE counter SET v = v + 1 WHERE id = i % 100 + 1;
		COMMIT;
	END LOOP;
END $$;
EOS
my $peak;
if (weft())
{
	# Waits for longer than the publisher waits for an answer: a leader that finds no room
	# in the ring must still answer.
	my $since = query($sub, 'SELECT clock_timestamp()');
	$peak = peak_memory_until(<<EOS);
SELECT ring_used > ring_size * 0.9 AND clock_timestamp() > '$since'::timestamptz + '25 s'
FROM weft.stat_subscription
EOS
	cmp_ok($peak, '<', $limit, 'waiting transactions: memory is bounded');
	is(query($sub, 'SELECT sum(v) FROM counter'),
		0, 'waiting transactions: nothing is applied out of turn');
}
$local->query_safe('COMMIT');
$local->quit;
$peak = peak_memory_until('SELECT sum(v) = 100001 FROM counter');
note(sprintf 'waiting transactions: peak %.1f MB', $peak);
cmp_ok($peak, '<', $limit,
	'transactions that waited: memory is bounded while they are applied');
same_tables($pub, $sub, ['counter'], 'all of them are applied');

$pub->stop;
$sub->stop;
done_testing();
