# A schema change right behind one with CONCURRENTLY, of the same table, does not make the subscriber execute that one
# without CONCURRENTLY: whoever writes to the table there would have to wait until it is complete.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub;
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub');
query(
	$pub,
	'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g;
	CREATE TABLE parted (a int PRIMARY KEY) PARTITION BY RANGE (a);
	CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (0), (1)'
);
wait_for_apply($pub, $sub, 'sub');

my $id = 1000;

# Lets the subscriber have several statements at once, while a session there has written to the table.
sub behind
{
	my ($what, @statements) = @_;
	my $log = -s $sub->logfile;
	my $session = open_session($sub);

	$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
	pause_subscription($sub, 'sub');
	query($pub, $_) foreach @statements;
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	poll($sub,
		q{SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'weft ddl worker') AND wait_event_type = 'Lock'}
	);
	$id++;
	my ($result, undef, $error) = $sub->psql('postgres',
		"SET lock_timeout = '1s'; INSERT INTO t (id) VALUES ($id); DELETE FROM t WHERE id = $id"
	);
	is($error, '', "$what: writers do not wait");
	$session->query_safe('COMMIT');
	$session->quit;

	# A session that waits on the subscriber has a snapshot, for which the worker waits.
	$pub->wait_for_catchup('sub');
	wait_for_apply($pub, $sub, 'sub');
	poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
	same_everything($pub, $sub, $what);
	return slurp_file($sub->logfile, $log);
}

my $without = qr/is executed without CONCURRENTLY/;

unlike(
	behind(
		'a column',
		'CREATE INDEX CONCURRENTLY one ON t (v)',
		'ALTER TABLE t ADD COLUMN w int'),
	$without,
	'... and the index is built concurrently');
unlike(
	behind(
		'two indexes, and rows',
		'CREATE INDEX CONCURRENTLY two ON t (v, id)',
		'INSERT INTO t VALUES (5000, 1)',
		'CREATE INDEX CONCURRENTLY three ON t (w)',
		'ALTER TABLE t ADD COLUMN x int',
		'INSERT INTO t VALUES (5001, 1)'),
	$without,
	'... both are built concurrently');
unlike(
	behind(
		'a dropped index',
		'DROP INDEX CONCURRENTLY one',
		'ALTER TABLE t DROP COLUMN x',
		'INSERT INTO t SELECT g, g FROM generate_series(6000, 6100) g'),
	$without,
	'... it is dropped concurrently');

# Nobody can start a worker while the launcher and the leader have all of them.
$sub->append_conf('postgresql.conf', 'max_worker_processes = 2');
$sub->restart;
my $log = -s $sub->logfile;
query($pub, 'CREATE INDEX CONCURRENTLY four ON t (w, v)');
query($pub, 'ALTER TABLE t ADD COLUMN y int');
query($pub, 'ALTER TABLE parted DETACH PARTITION parted_0 CONCURRENTLY');
query($pub, 'ALTER TABLE parted_0 ADD COLUMN y int');
wait_for_apply($pub, $sub, 'sub');
same_everything($pub, $sub, 'no background worker');
is(scalar(() = slurp_file($sub->logfile, $log) =~ /$without/g),
	2, '... the later one executes both');

unlike(slurp_file($_->logfile),
	qr/TRAP: /, $_->name . ': no failed assertion')
  foreach $pub, $sub;

done_testing();
