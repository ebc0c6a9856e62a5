# Weft takes over a native subscription: setup under load, settings that change
# while it runs, views, waiting.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my @tables =
  qw(pgbench_accounts pgbench_branches pgbench_tellers pgbench_history wide);
my $tpcb = <<'EOS';
\set aid random(1, 100000 * :scale)
\set bid random(1, :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
	VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
COMMIT;
EOS

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => weft() ? 'weft.tune_writers = on' : undef);
my $log_start = -s $sub->logfile;

$pub->run_log(
	[ 'pgbench', '-i', '-q', '-s' => 1, $pub->connstr('postgres') ]);
$sub->run_log(
	[
		'pgbench', '-i', '-q',
		'-I' => 'dtp',
		$sub->connstr('postgres')
	]);
query_all(
	[ $pub, $sub ],
	'CREATE TABLE wide (id int PRIMARY KEY, t text, n numeric, ts timestamptz, a int[], j jsonb)'
);
query($pub, <<EOS);
INSERT INTO wide SELECT i, repeat('x', i), i / 7.0, now(), ARRAY[i, NULL], '{"k": "v"}'
FROM generate_series(1, 1000) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS

sub load
{
	my (@length) = @_;
	return start_pgbench(
		$pub, { $tpcb => 1 },
		'-c' => 8,
		@length,
		'-M' => 'prepared',
		'-s' => 1,
		'--random-seed=1');
}

sub writers_become
{
	my ($number, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

  SKIP:
	{
		skip 'no writers in the native worker', 1 unless weft();
		ok( $sub->poll_query_until(
				'postgres',
				"SELECT count(*) = $number FROM pg_stat_activity WHERE backend_type = 'weft writer'"
			),
			$what);
	}
	return;
}

# Initial copy while the tables are changed.
my $load = load('-t' => 300);
subscribe($pub, $sub, 'sub', 'pub');
writers_become(4, 'four writers by default');
finish($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'initial copy under load');
is( query(
		$sub,
		"SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'"),
	5,
	'all tables are ready') if weft();

# Apply, and what readers see of it.
my $started = query($sub, 'SELECT pg_postmaster_start_time()');
finish(load('-t' => 500));
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'eight clients');

my $leader = leader_pid($sub, 'sub');
if (weft())
{
	my $lsn = query($pub, 'SELECT pg_current_wal_lsn()');
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, <<EOS), 't|t|4|t|t|t|t|t', 'weft.stat_subscription');
SELECT s.subid = p.oid, leader_pid = $leader, num_writers,
	received_lsn >= '$lsn', applied_lsn >= '$lsn',
	transactions >= 4000, changes >= 4 * 4000,
	coalesce(native_reason, '') = ''
FROM weft.stat_subscription s JOIN pg_subscription p USING (subname)
WHERE subname = 'sub'
EOS
	# the publisher writes WAL of its own now and then
	poll($sub,
		'SELECT apply_lag_bytes = 0 AND publisher_lag_bytes = 0 FROM weft.stat_subscription'
	);
	is( query(
			$sub, 'SELECT ring_size, ring_used FROM weft.stat_subscription'),
		'16777216|0',
		'the ring is empty when everything is applied');
	is(query($sub, <<EOS), '4|t|t|t|t', 'weft.stat_writer');
SELECT count(*), count(DISTINCT writer) = 4, bool_and(a.pid IS NOT NULL),
	sum(w.transactions) = min(s.transactions), sum(w.changes) = min(s.changes)
FROM weft.stat_writer w JOIN weft.stat_subscription s USING (subid, subname)
	LEFT JOIN pg_stat_activity a ON a.pid = w.pid AND backend_type = 'weft writer'
EOS
	poll($sub,
		"SELECT count(DISTINCT state) = 1 AND min(state) = 'idle' FROM weft.stat_writer"
	);
	poll($sub,
		"SELECT bool_and(wait_event_type = 'Extension' AND wait_event LIKE 'Weft%') FROM pg_stat_activity WHERE backend_type = 'weft writer'"
	);
	ok( query($sub,
			"SELECT bool_and(datname = 'postgres' AND usename = current_user) FROM pg_stat_activity WHERE backend_type = 'weft writer'"
		) eq 't',
		'writers are connected as the owner of the subscription');
}

# The server's own views still show the truth.
is(query($sub, <<EOS), 't|t|t', 'pg_stat_subscription');
SELECT received_lsn IS NOT NULL, latest_end_lsn IS NOT NULL,
	last_msg_receipt_time IS NOT NULL
FROM pg_stat_subscription WHERE subname = 'sub' AND worker_type = 'apply'
EOS
$pub->wait_for_catchup('sub', 'flush');
ok(1, 'the publisher is told the flush position');

# Waiting has a time limit, and reports the progress.
if (weft())
{
	my $session = open_session($sub);
	$session->query_safe('BEGIN; LOCK TABLE wide');
	query($pub, 'UPDATE wide SET t = NULL WHERE id = 1');
	my ($ret, $stdout, $stderr) = $sub->psql('postgres',
		"SELECT weft.wait_for_subscription('sub', '300ms')");
	isnt($ret, 0, 'waiting ends at its timeout');
	like(
		$stderr,
		qr/sub.*[0-9A-F]+\/[0-9A-F]+/s,
		'the error shows the progress of the subscription');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['wide'], 'applied once the lock is gone');

	($ret, $stdout, $stderr) =
	  $sub->psql('postgres',
		"SELECT weft.wait_for_subscription('none', '1s')");
	like(
		$stderr,
		qr/subscription "none" does not exist/,
		'waiting for a subscription that does not exist');

	# what the publisher has committed, but not yet written, counts
	foreach my $i (1 .. 5)
	{
		query($pub,
			"SET synchronous_commit = off; UPDATE wide SET n = $i WHERE id = 1"
		);
		wait_for_apply($pub, $sub, 'sub');
		is(query($sub, 'SELECT n FROM wide WHERE id = 1'),
			$i, 'an asynchronous commit is waited for');
	}

	# a single table that is not copied is a reason to wait
	query($_, 'CREATE TABLE later (id int PRIMARY KEY)') foreach $sub, $pub;
	query($pub, 'INSERT INTO later VALUES (1)');
	$session = open_session($sub);
	$session->query_safe('BEGIN; LOCK TABLE later IN SHARE MODE');
	query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	($ret, $stdout, $stderr) = $sub->psql('postgres',
		"SELECT weft.wait_for_subscription('sub', '300ms')");
	isnt($ret, 0, 'waiting includes the initial copy');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['later'], 'copied once the lock is gone');
}

# The number of writers changes under load and without a restart.
if (weft())
{
	$load = load('-T' => 600);
	foreach my $number (6, 1, 2, 8)
	{
		query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $number)");
		writers_become($number, "num_writers = $number");
	}
	query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
	writers_become(0, 'num_writers = 0');
	query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
	writers_become(3, 'num_writers = 3');
	stop_load($load);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, 'num_writers changed under load');

	# A subscription with its own number, in addition to one with the default.
	query($_, 'CREATE TABLE other (id int PRIMARY KEY)') foreach $sub, $pub;
	query($pub, 'CREATE PUBLICATION other FOR TABLE other');
	subscribe($pub, $sub, 'other', 'other', 'num_writers = 5');
	writers_become(8, 'each of two subscriptions has its own writers');
	is( query(
			$sub,
			'SELECT subname, num_writers FROM weft.stat_subscription ORDER BY 1'
		),
		"other|5\nsub|3",
		'weft.stat_subscription shows both');
	query($pub, 'INSERT INTO other SELECT generate_series(1, 100)');
	wait_for_apply($pub, $sub, 'other');
	same_tables($pub, $sub, ['other'], 'the second subscription applies');
	query($sub, 'ALTER SUBSCRIPTION other DISABLE');
	writers_become(3, 'a disabled subscription has no writers');
	query($sub, 'DROP SUBSCRIPTION other');

	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	writers_become(0, 'no subscription is enabled, no writers');
	# the leader ends after its writers
	poll($sub,
		'SELECT count(*) = 0 FROM weft.stat_writer WHERE pid IS NOT NULL');
	pass('weft.stat_writer shows none');
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE later, other, ' . join ', ', @tables);
	subscribe($pub, $sub, 'sub', 'pub');
	writers_become(4, 'a new subscription has the default again');
	wait_for_apply($pub, $sub, 'sub');
}

# Off and on again by parameter, under load.
if (weft())
{
	$load = load('-T' => 600);
	my $offset = -s $sub->logfile;
	set_conf($sub, 'weft.writers_per_subscription' => 0);
	writers_become(0, 'writers_per_subscription = 0');
	$sub->wait_for_log(
		qr/LOG:  subscription "sub" is applied without parallel writers/,
		$offset);
	poll($sub,
		"SELECT native_reason <> '' FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	my $count = query($sub, 'SELECT count(*) FROM pgbench_history');
	poll($sub, "SELECT count(*) > $count FROM pgbench_history");
	set_conf($sub, 'weft.writers_per_subscription' => 4);
	writers_become(4, 'writers_per_subscription = 4');
	stop_load($load);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables,
		'switched to native and back under load');

	# A small ring, and a transaction larger than it.
	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	writers_become(0, 'disabled');
	set_conf($sub, 'weft.ring_size' => '64kB');
	$load = load('-t' => 500);
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	query($pub,
		"INSERT INTO wide SELECT i, repeat('y', 1000) FROM generate_series(1001, 3000) i"
	);
	finish($load);
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, 'SELECT ring_size FROM weft.stat_subscription'),
		65536, 'ring_size has changed');
	same_tables($pub, $sub, \@tables, 'a ring of 64 kB');
}

is(query($sub, 'SELECT pg_postmaster_start_time()'),
	$started, 'the server was not restarted');
is(errors_logged($sub, $log_start), '', 'no errors were logged');

query($sub, 'DROP SUBSCRIPTION sub');
writers_become(0, 'no writers are left');
is(query($pub, 'SELECT count(*) FROM pg_replication_slots'),
	0, 'no slots are left');

$pub->stop;
$sub->stop;
done_testing();
