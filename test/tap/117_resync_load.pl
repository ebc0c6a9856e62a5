# weft.resync_table() while the publisher changes the same table and others, in ordinary and
# in streamed transactions: other tables are applied all the time, and in the end no change
# is lost or applied twice, whatever was interrupted.
#
# WEFT_ROUNDS sets how often each publisher's tables are copied again with an interruption
# (default 1), WEFT_SEED when.

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

plan skip_all => 'about Weft alone' unless weft();

my $rounds = $ENV{WEFT_ROUNDS} // 1;
my $seed = $ENV{WEFT_SEED} // time;
srand($seed);
diag("WEFT_SEED=$seed");

my $old = install_path_of(15);
my ($own_major) = qx(pg_config --version) =~ /PostgreSQL (\d+)/;

my @kinds = (
	{ name => 'weft', options => 'streaming = parallel' },
	{
		name => 'native',
		new => { stock => 1 },
		options => 'streaming = parallel, binary = true, num_writers = 0'
	});
push @kinds,
  {
	name => 'fifteen',
	new => { install_path => $old },
	options => 'streaming = on'
  }
  if $old;

my @tables = qw(t nokey parted beat other);
my %scripts = (
	"\\set a random(1, 2000)
BEGIN;
UPDATE t SET v = v + 1 WHERE id = :a;
INSERT INTO nokey VALUES (:a, 1);
UPDATE other SET n = n + 1 WHERE id = :a % 100;
COMMIT;
" => 10,
	"\\set a random(1, 2000)
BEGIN;
UPDATE parted SET v = v + 1 WHERE id = :a;
UPDATE nokey SET v = v + 1 WHERE id = :a;
SAVEPOINT s;
DELETE FROM nokey WHERE id = :a + 1;
ROLLBACK TO s;
DELETE FROM nokey WHERE id = :a + 2;
COMMIT;
" => 5,
	"\\set a random(1, 2000)
BEGIN;
INSERT INTO nokey SELECT 10000 + i, :a FROM generate_series(1, 500) i;
UPDATE t SET v = v + 1 WHERE id BETWEEN :a AND :a + 20;
DELETE FROM nokey WHERE id BETWEEN 10001 AND 10500 AND v = :a;
UPDATE other SET n = n + 1 WHERE id = :a % 100;
COMMIT;
" => 1);

# The longest lag of a table that is not copied again, as a session of the subscriber saw it.
sub watch_lag
{
	my ($sub) = @_;
	my $watch = open_session($sub);

	poll($sub, "SELECT at > clock_timestamp() - interval '1 s' FROM beat");
	query($sub,
		'TRUNCATE stop; TRUNCATE lag; INSERT INTO lag VALUES (\'0\')');
	$watch->query_until(qr/begun/,
		"\\echo begun\nCALL watch();\n\\echo ended\n");
	return $watch;
}

sub worst_lag
{
	my ($sub, $watch) = @_;

	query($sub, 'INSERT INTO stop VALUES (1)');
	$watch->query_until(qr/ended/, '');
	$watch->quit;
	return query($sub,
		'SELECT round(extract(epoch FROM max(l)), 1) FROM lag');
}

sub ready
{
	my ($sub) = @_;
	poll($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");
	return;
}

sub some_pid
{
	my ($sub, $type) = @_;
	my ($ret, $pid) = $sub->psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type' ORDER BY random() LIMIT 1"
	);
	return $pid;
}

sub interrupt
{
	my ($sub) = @_;
	my @types = (
		'logical replication tablesync worker',
		'logical replication apply worker',
		'parallel worker',
		'weft writer');
	my $type = $types[ rand @types ];
	my $pid = some_pid($sub, $type);
	my $kill = rand() < 0.5;

	return 'immediate stop'
	  if rand() < 0.2
	  and $sub->stop('immediate') || 1
	  and $sub->start || 1;
	return 'nothing' unless $pid;
	if ($kill)
	{
		kill_process($pid);
	}
	else
	{
		$sub->psql('postgres', "SELECT pg_terminate_backend($pid)");
	}
	wait_until_up($sub);
	return ($kill ? 'kill -9' : 'end') . " of a $type";
}

sub start_load
{
	my ($pub) = @_;
	return start_pgbench(
		$pub, \%scripts,
		'-c' => 4,
		'-R' => 200,
		'-T' => 300,
		'--max-tries=1000');
}

foreach my $kind (@kinds)
{
	my $name = $kind->{name};
	my $pub = new_publisher(
		"publisher_$name",
		%{ $kind->{new} // {} },
		conf => 'logical_decoding_work_mem = 64kB');
	my $sub = copy_subscriber("subscriber_$name",
		conf =>
		  "restart_after_crash = on\nwal_retrieve_retry_interval = 1s\n");

	query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int, u int UNIQUE);
CREATE TABLE nokey (id int, v int);
ALTER TABLE nokey REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE other (id int PRIMARY KEY, n int);
CREATE TABLE beat (id int PRIMARY KEY, at timestamptz);
EOS
	query($pub, <<'EOS');
INSERT INTO t SELECT i, 0, i FROM generate_series(1, 2100) i;
INSERT INTO nokey SELECT i, 0 FROM generate_series(1, 2000) i;
INSERT INTO parted SELECT i, 0 FROM generate_series(1, 2000) i;
INSERT INTO other SELECT i, 0 FROM generate_series(0, 99) i;
INSERT INTO beat VALUES (1, clock_timestamp());
CREATE PUBLICATION pub FOR TABLE t, nokey, parted, other, beat WITH (publish_via_partition_root = true);
CREATE INDEX ON nokey (id);
EOS
	query($sub, <<'EOS');
CREATE INDEX ON nokey (id);
CREATE UNLOGGED TABLE lag (l interval);
CREATE TABLE stop (x int);
CREATE PROCEDURE watch() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		UPDATE lag SET l = greatest(l, clock_timestamp() - (SELECT at FROM beat));
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
EOS
	subscribe($pub, $sub, 'sub', 'pub', $kind->{options});
	wait_for_apply($pub, $sub, 'sub');

	my $beat = start_pgbench(
		$pub,
		{ "UPDATE beat SET at = clock_timestamp();\n" => 1 },
		'-c' => 1,
		'-R' => 100,
		'-T' => 300);
	my $load = start_load($pub);
	my $watch = watch_lag($sub);

	foreach my $table (qw(t nokey parted))
	{
		query($sub,
			"DELETE FROM $table WHERE id % 3 = 0; UPDATE $table SET v = -1");
		query($sub, "SELECT weft.resync_table('sub', '$table')");
		ready($sub);
	}

	# Apply restarts once, which takes up to wal_retrieve_retry_interval (1 s in these tests),
	# and waits while the table catches up.  How long that takes depends on the machine.
	# 117_resync.pl tests that other tables are applied while the copy is held.
	my $lag = worst_lag($sub, $watch);
	diag("$name: the longest lag of another table was $lag s");

	# Interruptions would start the apply worker again, and a later copy replace wrong rows.
	end_load($load);
	wait_for_apply($pub, $sub, 'sub');
	same_tables(
		$pub, $sub,
		[qw(t nokey parted other)],
		"$name: nothing is lost or doubled without interruptions");
	$load = start_load($pub);

	foreach my $round (1 .. $rounds)
	{
		# A table whose copy may be cancelled must not differ before.
		my ($spoilt, $kept) = rand() < 0.5 ? qw(nokey t) : qw(t nokey);
		query($sub,
			"DELETE FROM $spoilt WHERE id % 3 = 0; UPDATE $spoilt SET v = -1"
		);
		query($sub, "SELECT weft.resync_table('sub', '$_')")
		  foreach ($spoilt, $kept);
		usleep(rand 400_000);
		my $mishap = interrupt($sub);
		wait_until_up($sub);
		usleep(rand 400_000);
		my ($ret, $stdout, $stderr) =
		  $sub->psql('postgres', "SELECT weft.cancel_resync('sub', '$kept')");
		like(
			$stderr,
			qr/^$|its copy is complete/,
			"$name: $kept is copied, or its copy is cancelled");
		$mishap .= ", copy of $kept cancelled" if $stderr eq '';
		ready($sub);
		diag("$name: $mishap");
	}
	ok(running($load), "$name: the load has been running");
	end_load($load);
	end_load($beat);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$name: nothing is lost or doubled");
	indexes_sound($sub, $name);
	nothing_left($pub, $name);
	$_->stop foreach $pub, $sub;
}

done_testing();
