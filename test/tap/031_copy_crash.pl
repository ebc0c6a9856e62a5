# The initial copy is interrupted at random moments, in every way.  In the end the
# tables are equal, each row is there once, the indexes are valid, and nothing is left
# behind on the publisher.
#
# WEFT_CRASHES sets the number of interruptions (default 10), WEFT_SEED their times.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

my $crashes = $ENV{WEFT_CRASHES} // 10;
my $seed = $ENV{WEFT_SEED} // time;
srand($seed);
diag("WEFT_SEED=$seed");

my $pub = new_publisher('publisher', conf => 'restart_after_crash = on');
my $sub = copy_subscriber('subscriber', conf => 'restart_after_crash = on');

# Without a key, a row that is copied twice is stored twice.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE many (id int, t text);
CREATE TABLE parted (id int, t text) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
EOS
query($pub, <<'EOS');
ALTER TABLE many REPLICA IDENTITY FULL;
ALTER TABLE parted REPLICA IDENTITY FULL;
INSERT INTO many SELECT i, md5(i::text) FROM generate_series(1, 150000) i;
INSERT INTO parted SELECT i, md5(i::text) FROM generate_series(1, 50000) i;
CREATE PUBLICATION pub FOR TABLE many, parted WITH (publish_via_partition_root = true);
EOS
query($sub, <<'EOS');
CREATE UNIQUE INDEX ON many (id);
CREATE INDEX ON many (t);
CREATE INDEX ON many (t, id);
CREATE UNIQUE INDEX ON parted (id);
CREATE INDEX ON parted (t);
EOS

sub pids
{
	my ($node, $type) = @_;
	my $sql =
	  "SELECT pid FROM pg_stat_activity WHERE backend_type = '$type' ORDER BY random()";
	my ($ret, $stdout) = $node->psql('postgres', $sql);
	return $ret == 0 ? split /\n/, $stdout // '' : ();
}

# A copy is in the middle of something: copying rows, building indexes, or finishing.
sub random_moment
{
	wait_until_up($sub);
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate IN ('d', 'f'))"
		  . " OR (SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel)"
	);
	usleep(rand 800_000);
	return;
}

# These show a row that is missing, or stored twice.
sub equal
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $table (qw(many parted))
	{
		my $sums =
		  "SELECT count(*), count(DISTINCT id), sum(hashtextextended(r::text, 0)) FROM $table r";
		is(query($sub, $sums), query($pub, $sums), "$what: $table is equal");
	}
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	return;
}

my $sync = 'logical replication tablesync worker';
my $unfinished = 0;
my @mishaps = (
	'kill -9 of a helper' => sub {
		my @pids = pids($sub, 'parallel worker');
		kill_process($pids[0]) if @pids;
	},
	'end of a helper' => sub {
		my @pids = pids($sub, 'parallel worker');
		query($sub, "SELECT pg_terminate_backend($pids[0])") if @pids;
	},
	'kill -9 of the table synchronisation worker' => sub {
		my @pids = pids($sub, $sync);
		kill_process($pids[0]) if @pids;
	},
	'end of the table synchronisation worker' => sub {
		my @pids = pids($sub, $sync);
		query($sub, "SELECT pg_terminate_backend($pids[0])") if @pids;
	},
	'immediate stop of the subscriber' => sub {
		$sub->stop('immediate');
		$sub->start;
	},
	'fast stop of the subscriber' => sub {
		$sub->stop('fast');
		$sub->start;
	},
	'end of all connections to the publisher' => sub {
		query($pub,
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type IN ('walsender', 'client backend') AND pid <> pg_backend_pid()"
		);
	},
	'immediate stop of the publisher' => sub {
		$pub->stop('immediate');
		$pub->start;
	},
	'the subscription is disabled and enabled' => sub {
		query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
		usleep(rand 100_000);
		query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	},
	'the subscription is dropped and created' => sub {
		query($sub, 'DROP SUBSCRIPTION sub');
		indexes_sound($sub, 'after the drop');
		nothing_left($pub, 'after the drop');
		query($sub, 'TRUNCATE many, parted');
		subscribe($pub, $sub, 'sub', 'pub');
	});

subscribe($pub, $sub, 'sub', 'pub');
foreach my $i (0 .. $crashes - 1)
{
	my $which = 2 * ($i % (@mishaps / 2));

	random_moment();
	if (query($sub,
			"SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel") eq
		't')
	{
		# the copy was faster this time
		query($sub, 'DROP SUBSCRIPTION sub');
		query($sub, 'TRUNCATE many, parted');
		subscribe($pub, $sub, 'sub', 'pub');
	}
	else
	{
		$unfinished++;
	}
	note($mishaps[$which]);
	$mishaps[ $which + 1 ]->();
	wait_until_up($sub);
	wait_until_up($pub);

	# in each round, one copy completes
	next if $i % 2;
	wait_for_apply($pub, $sub, 'sub');
	equal($mishaps[$which]);
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE many, parted');
	subscribe($pub, $sub, 'sub', 'pub');
}
wait_for_apply($pub, $sub, 'sub');
equal('in the end');
note("$unfinished of $crashes interruptions were in the middle of a copy");

unlike(
	slurp_file($sub->logfile),
	qr/PANIC|TRAP:|could not find|during a parallel operation|in a parallel worker/,
	'nothing else went wrong');

$sub->stop;
$pub->stop;
done_testing();
