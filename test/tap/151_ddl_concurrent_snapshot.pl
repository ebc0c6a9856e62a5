# A session on the subscriber that keeps an old snapshot does not hold back the stream: CREATE INDEX CONCURRENTLY waits for
# it, but gives way to a later schema change that waits for the index.

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
my $sub = new_subscriber('subscriber',
	conf => "wal_retrieve_retry_interval = 200ms\n");

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub;
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub');
query(
	$pub,
	'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g;
	CREATE TABLE other (id int PRIMARY KEY, v int); INSERT INTO other VALUES (1, 1)'
);
wait_for_apply($pub, $sub, 'sub');

my $report = open_session($sub);
my $without = qr/is executed without CONCURRENTLY/;
my $gives_way = qr/schema change \d+ of subscription "sub" gives way/;

sub hold_snapshot
{
	$report->query_safe(
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other');
	return;
}

# A statement's worker waits for the snapshot.
sub worker_waits
{
	poll($sub,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft ddl worker' AND wait_event = 'virtualxid'}
	);
	return;
}

# Everything is applied while a session keeps its snapshot, and while another one waits for that.
sub applied_meanwhile
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($result, undef, $error) = $sub->psql('postgres',
		q{SELECT weft.wait_for_subscription('sub', '20s')});

	is($error, '', "$what: applied while a session keeps its snapshot");
	is($report->query_safe('SELECT count(*) FROM other'),
		1, '... which it still has');
	return;
}

sub logged
{
	my ($log, $pattern) = @_;
	return scalar(() = slurp_file($sub->logfile, $log) =~ /$pattern/g);
}

# --- a schema change behind one whose worker waits ---

my $log = -s $sub->logfile;
hold_snapshot();
query($pub, 'CREATE INDEX CONCURRENTLY one ON t (v)');
worker_waits();
query($pub, 'INSERT INTO t VALUES (2000, 1)');
query($pub, 'ALTER TABLE t ADD COLUMN w int');
query($pub, 'INSERT INTO t VALUES (2001, 1, 1)');
applied_meanwhile('a column');
is(logged($log, $gives_way), 1, '... the worker gives way');
is(logged($log, $without), 1, '... and the later one executes the earlier');
$report->query_safe('COMMIT');
poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
same_everything($pub, $sub, 'a column');

# --- at once, several of them, and the session that waits for the subscription is the one with the snapshot ---

$log = -s $sub->logfile;
hold_snapshot();
query($pub, 'CREATE INDEX CONCURRENTLY two ON t (w)');
query($pub, 'CREATE INDEX CONCURRENTLY three ON t (v, w)');
query($pub, 'DROP INDEX CONCURRENTLY one');
query($pub, 'ALTER TABLE t ADD COLUMN x int');
is( $report->query_safe(
		q{SELECT weft.wait_for_subscription('sub', '20s') IS NULL}),
	'f',
	'a session with a snapshot waits for the subscription');
applied_meanwhile('several');
$report->query_safe('COMMIT');
poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
same_everything($pub, $sub, 'several');

# --- the worker in front is busy with another table ---

my $number = 0;
foreach (
	[
		'another table',
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other'
	],
	[ 'another table, with a writer', 'BEGIN; UPDATE other SET v = v' ])
{
	my ($what, $begin) = @$_;

	$number++;
	$log = -s $sub->logfile;
	$report->query_safe($begin);
	query($pub, "CREATE INDEX CONCURRENTLY other_$number ON other (v)");
	worker_waits();
	query($pub, "CREATE INDEX CONCURRENTLY behind_$number ON t (x)");
	query($pub, "ALTER TABLE t ADD COLUMN y_$number int");
	applied_meanwhile($what);
	is( query(
			$sub,
			"SELECT indisvalid FROM pg_index WHERE indexrelid = 'behind_$number'::regclass"
		),
		't',
		'... with the index of this one');
	is( query(
			$sub,
			q{SELECT state = 'failed', attempts <= 1 FROM weft.ddl_concurrent}
		),
		'f|t',
		'... and the other one has not failed');
	cmp_ok(logged($log, $gives_way), '>', 0, '... but has given way');
	is(logged($log, $without), 1, '... and only one is executed early');
	$report->query_safe('COMMIT');
	poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
	same_everything($pub, $sub, $what);
}

# --- a writer of the same table: the later one would have to wait for it, too ---

$log = -s $sub->logfile;
$report->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
query($pub, 'CREATE INDEX CONCURRENTLY four ON t (x, id)');
worker_waits();
query($pub, 'ALTER TABLE t ADD COLUMN z int');
poll($sub,
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'object' AND NOT granted AND waitstart < clock_timestamp() - interval '2 s'}
);
is(logged($log, $gives_way),
	0, 'a writer of the same table: nobody gives way');
$report->query_safe('COMMIT');
# A session that waited for the subscription now could have a snapshot for which the worker would give way.
poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
wait_for_apply($pub, $sub, 'sub');
is(logged($log, $without), 0, '... and the index is built concurrently');
same_everything($pub, $sub, 'a writer of the same table');

# --- nobody waits for the worker ---

$log = -s $sub->logfile;
hold_snapshot();
query($pub, 'CREATE INDEX CONCURRENTLY five ON t (x, v)');
worker_waits();
query($pub, 'INSERT INTO t VALUES (3000, 1)');
applied_meanwhile('rows alone');
$report->query_safe('COMMIT');
poll($sub, 'SELECT count(*) = 0 FROM weft.ddl_concurrent');
is(logged($log, $gives_way), 0, '... the worker does not give way');
same_everything($pub, $sub, 'rows alone');

$report->quit;
unlike(slurp_file($_->logfile),
	qr/TRAP: /, $_->name . ': no failed assertion')
  foreach $pub, $sub;

done_testing();
