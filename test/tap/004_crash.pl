# Processes and servers crash under load, and recover by themselves.  No transaction
# may be lost or doubled: the transactions that the subscriber committed, according
# to its own WAL, must be the publisher's, each once and in order.
#
# WEFT_CRASHES sets the number of crashes of each kind (default 10), WEFT_SEED their
# times.  With WEFT_STREAMED=1 every transaction is streamed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

my $crashes = $ENV{WEFT_CRASHES} // 10;
my $seed = $ENV{WEFT_SEED} // time;
srand($seed);
diag("WEFT_SEED=$seed");

my @tables = qw(journal accounts codes events);
my $schema = <<'EOS';
CREATE TABLE journal (id bigserial PRIMARY KEY);
CREATE TABLE accounts (id int PRIMARY KEY, last_txn bigint, value bigint);
CREATE TABLE codes (id int PRIMARY KEY, code int UNIQUE);
CREATE TABLE events (client int, i int);
EOS

# The accounts' sum stays zero.  The events have no key, so no error would prevent them
# from being inserted twice.
my $random = <<'EOS';
\set a random(1, 50)
\set b :a + random(1, 50)
\set d random(1, 100)
EOS
my %scripts = (
	"$random
BEGIN;
INSERT INTO journal DEFAULT VALUES RETURNING id AS txn \\gset
UPDATE accounts SET value = value + :d, last_txn = :txn WHERE id = :a;
UPDATE accounts SET value = value - :d, last_txn = :txn WHERE id = :b;
INSERT INTO events VALUES (:client_id, :d);
COMMIT;
" => 3,
	"$random
BEGIN;
INSERT INTO journal DEFAULT VALUES;
SELECT pg_advisory_xact_lock(:d);
UPDATE codes SET code = NULL WHERE code = :d;
UPDATE codes SET code = :d WHERE id = :a;
INSERT INTO events SELECT :client_id, i FROM generate_series(1, :d) i;
COMMIT;
" => 1);

my $conf = 'restart_after_crash = on';
my $pub = new_publisher(
	'publisher',
	conf => "$conf\nsynchronous_commit = off" . streaming_conf(),
	stock => major() != 17);
my $sub = new_subscriber('subscriber',
	conf => $conf . (weft() ? "\nweft.tune_writers = on" : ''));

query_all([ $pub, $sub ], $schema);
query($pub, <<EOS);
INSERT INTO accounts SELECT i, 0, 0 FROM generate_series(1, 100) i;
INSERT INTO codes SELECT i, i FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub', streaming_option());
wait_for_apply($pub, $sub, 'sub');

sub load
{
	return start_pgbench(
		$pub, \%scripts,
		'-c' => 8,
		'-T' => 600,
		'--rate' => 400,
		'--max-tries=0',
		'--random-seed=' . int rand 1_000_000);
}

# Waits until the subscriber has applied some more, for up to about half a second, and
# then a little longer.
sub random_moment
{
	my $more = 1 + int rand 200;

	wait_until_up($sub);
	my $applied = query($sub, 'SELECT count(*) FROM journal');
	poll($sub, "SELECT count(*) >= $applied + $more FROM journal");
	usleep(rand 100_000);
	return;
}

# Kills the postmaster, and also the other processes unless they are to notice that
# themselves; starts the server once all have ended.
sub kill_server
{
	my ($node, %params) = @_;
	my @pids = server_pids($node);

	$node->kill9;
	kill 9, @pids[ 1 .. $#pids ] if $params{children};
	my @alive = not_ended(@pids);
	die "processes outlive their postmaster: @alive" if @alive;
	$node->start;
	return;
}

# A worker that exists now: a new leader may be starting others.
sub random_writer
{
	my @pids = split /\n/,
	  poll_for($sub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft writer'"
	  );
	return $pids[ rand @pids ];
}

# Crashes of one kind, again and again.
sub survives
{
	my ($what, $number, $mishap, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $synchronous_commit = (qw(off on))[ rand 2 ];
	my $log_start = -s $sub->logfile;

	note("$what, synchronous_commit = $synchronous_commit");
	query($sub,
		"ALTER SUBSCRIPTION sub SET (synchronous_commit = $synchronous_commit)"
	);
	wait_for_apply($pub, $sub, 'sub');
	query_all(
		[ $pub, $sub ],
		"SELECT pg_create_logical_replication_slot('history', 'test_decoding')"
	);

	my $load = load();
	foreach my $i (1 .. $number)
	{
		random_moment();
		$mishap->($i);
		if ($params{ends_load})
		{
			finish($load, may_fail => 1);
			$load = load();
		}
	}
	random_moment();
	stop_load($load);

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what: equal");
	my $commits = decode_commits($pub, 'history');
	my $applied = decode_commits($sub, 'history');
	query_all([ $pub, $sub ], "SELECT pg_drop_replication_slot('history')");
	cmp_ok(scalar(@$commits), '>', $number, "$what: there was a load");
	is(first_difference($commits, $applied),
		undef, "$what: nothing is lost, doubled or in another order");
	is( join("\n",
			grep { /duplicate key|violates|PANIC|TRAP|could not find/ }
			  split /\n/,
			slurp_file($sub->logfile, $log_start)),
		'',
		"$what: nothing else went wrong");
	return;
}

survives('kill -9 of the leader',
	$crashes, sub { kill_process(leader_pid($sub, 'sub')) });

survives('kill -9 of a writer',
	$crashes, sub { kill_process(random_writer()) })
  if weft();

survives('kill -9 of the subscriber',
	$crashes, sub { kill_server($sub, children => 1) });

survives(
	'kill -9 of the publisher',
	$crashes,
	sub { kill_server($pub) },
	ends_load => 1);

survives(
	'pg_terminate_backend() of the leader',
	$crashes,
	sub {
		query($sub,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE subname = 'sub' AND worker_type = 'apply'"
		);
	});

survives(
	'pg_terminate_backend() of a writer',
	$crashes,
	sub {
		my $pid = random_writer();
		query($sub, "SELECT pg_terminate_backend($pid)");
	}) if weft();

survives(
	'pg_cancel_backend() of a writer',
	$crashes,
	sub {
		my $pid = random_writer();
		query($sub, "SELECT pg_cancel_backend($pid)");
	}) if weft();

survives(
	'stop of the subscriber',
	6,
	sub {
		my ($i) = @_;
		$sub->stop((qw(smart fast immediate))[ $i % 3 ]);
		$sub->start;
	});

survives(
	'stop of the publisher',
	4,
	sub {
		my ($i) = @_;
		$pub->stop((qw(fast immediate))[ $i % 2 ]);
		$pub->start;
	},
	ends_load => 1);

is(query($sub, 'SELECT sum(value) FROM accounts'),
	0, 'the sum of all accounts is unchanged');

$pub->stop;
$sub->stop;
done_testing();
