# A streamed transaction that stays open for a long time withholds nothing from others
# but its locks.  VACUUM waits for buffer pins, and CREATE INDEX CONCURRENTLY for
# snapshots; a changed number of writers takes effect; and a leader that receives nothing
# but such transactions is not considered disconnected.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @tables = qw(large other);
my $pub =
  new_publisher('publisher', conf => "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber');

# a text key, so that rows are found by the index's own scan
query_all([ $pub, $sub ], <<EOS);
CREATE TABLE large (id text PRIMARY KEY, v int, t text);
CREATE TABLE other (id int PRIMARY KEY, v int);
EOS
query($sub, 'CREATE TABLE unrelated (id int)');
query($pub, <<EOS);
INSERT INTO large SELECT 'row ' || i, 0, 'old' FROM generate_series(1, 5000) i;
INSERT INTO other SELECT i, 0 FROM generate_series(1, 10) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = on');
wait_for_apply($pub, $sub, 'sub');

# rows that VACUUM can remove, on all pages of the index
query($pub, "DELETE FROM large WHERE substr(id, 5)::int % 10 = 0");
wait_for_apply($pub, $sub, 'sub');

my $stream = open_session($pub);

sub streams
{
	my ($condition) = @_;
	return "SELECT count(*) FROM weft.stat_stream WHERE $condition";
}

my $applied =
  "state = 'applying' AND applied_changes = received_changes AND received_changes > 1000";

# A user's command must not wait for anybody.
sub goes_on
{
	my ($sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $errors) = $sub->psql(
		'postgres', $sql,
		timeout => $PostgreSQL::Test::Utils::timeout_default / 2,
		timed_out => \my $timed_out);

	ok(!$timed_out && $ret == 0, $what) or diag($errors);
	return;
}

# A stream writer that is idle in mid-transaction.
$stream->query_safe(
	"BEGIN; UPDATE large SET v = 1; INSERT INTO large SELECT 'new ' || i, 1, repeat('x', 50) FROM generate_series(1, 3000) i; UPDATE large SET v = 2 WHERE v = 1"
);

# All of it is decoded once a later transaction is; until then, the stream writer would
# get more to do.
query($pub, 'UPDATE other SET v = v + 1');
wait_for_apply($pub, $sub, 'sub');
poll($sub, streams($applied), 1);
poll($sub,
	"SELECT bool_and(backend_xmin IS NULL) FROM pg_stat_activity WHERE backend_type = 'weft stream writer'"
);
goes_on('VACUUM (INDEX_CLEANUP ON) large',
	'VACUUM does not wait for a stream writer');
goes_on('CREATE INDEX CONCURRENTLY ON unrelated (id)',
	'CREATE INDEX CONCURRENTLY does not wait for a stream writer');
$stream->query_safe("UPDATE large SET v = 3 WHERE v = 2; COMMIT");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'an idle stream writer: equal');

# A writer that waits for its turn behind one that waits for a user.
{
	my $user = open_session($sub);

	# a dozen changes: few enough to be sent at the end
	$user->query_safe('BEGIN; UPDATE other SET v = v WHERE id = 1');
	query($pub, 'UPDATE other SET v = 5 WHERE id = 1');
	query($pub,
		"UPDATE large SET v = 5 WHERE id IN ('row 1', 'row 11', 'row 111', 'row 1111', 'row 2222', 'row 3333')"
	);
	poll($sub,
		"SELECT EXISTS (SELECT FROM weft.stat_writer WHERE state = 'waiting for commit order')"
	);
	poll($sub,
		"SELECT bool_and(backend_xmin IS NULL) FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event_type <> 'Lock'"
	);
	goes_on('VACUUM (INDEX_CLEANUP ON) large',
		'VACUUM does not wait for a writer that waits for its turn');
	$user->query_safe('COMMIT');
	$user->quit;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, 'a waiting writer: equal');
}

# Streams that overlap, while the number of writers changes: the second stream begins
# before the first one ends, and so on.
my $next_id = 1;

sub begin_and_insert
{
	my ($session) = @_;
	my $last = $next_id + 2999;

	$session->query_safe(
		"BEGIN; INSERT INTO large SELECT 'more ' || i, i, repeat('x', 50) FROM generate_series($next_id, $last) i"
	);
	$next_id = $last + 1;
	return;
}

sub writers_are
{
	my ($number) = @_;
	poll($sub,
		"SELECT num_writers = $number AND (SELECT count(*) = $number FROM weft.stat_writer WHERE writer < 64 AND state = 'idle') FROM weft.stat_subscription"
	);
	return;
}

my ($first, $third) = map { open_session($pub) } 1 .. 2;
my $leader = leader_pid($sub, 'sub');

begin_and_insert($first);
poll($sub, streams($applied), 1);
foreach my $number (2, 5)
{
	query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $number)");
	query($pub, 'UPDATE other SET v = v + 1');
	writers_are($number);
	pass("$number writers while a transaction is streamed");

	# changes from before the number of writers changes, which are rolled back after it
	$first->query_safe(
		"SAVEPOINT s$number; INSERT INTO large SELECT 'void $number ' || i, i, repeat('x', 50) FROM generate_series(1, 3000) i"
	);
	poll($sub, streams($applied), 1);
}
$first->query_safe('ROLLBACK TO s5');
begin_and_insert($third);
poll($sub, streams($applied), 2);
$first->query_safe('COMMIT');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
query($pub, 'UPDATE other SET v = v + 1');
writers_are(3);
$third->query_safe(
	"INSERT INTO large SELECT 'end ' || i, i, repeat('x', 50) FROM generate_series(1, 3000) i"
);
is(leader_pid($sub, 'sub'), $leader, 'it is the same leader');

# without writers, the server's own apply starts again
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
query($pub, 'UPDATE other SET v = v + 1');
poll($sub, 'SELECT num_writers FROM weft.stat_subscription', 0);
$third->query_safe('COMMIT');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
query($pub, 'UPDATE other SET v = v + 1');
writers_are(3);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'a changed number of writers: equal');
poll($sub, streams('true'), 0);
my @files = glob($sub->data_dir . '/base/pgsql_tmp/*.fileset/*');
is("@files", '', 'no file is left');

# Rows of the next transaction: it is never received as a whole.
my $slow_rows = 300_000;

# A transaction that is streamed for longer than wal_receiver_timeout, with shorter
# pauses.  The publisher's process is stopped repeatedly so that it never sends a
# keepalive; each change is a block, so the process is hardly ever stopped within
# one.  Returns the longest time without a change, and what it has received.
sub stream_slowly
{
	my ($log_start) = @_;
	my $watch = open_session($sub);
	my $received =
	  'SELECT coalesce(max(received_changes), 0) FROM weft.stat_stream';
	my $walsender = poll_for(
		$pub,
		"SELECT pid FROM pg_stat_replication WHERE state = 'streaming'",
		sub { $_[0] =~ /^\d+$/ });
	my $longest = 0;

	kill 'STOP', $walsender;
	my $last = time;
	$stream->query_safe(
		"BEGIN; INSERT INTO large SELECT 'slow ' || i, i, NULL FROM generate_series(1, $slow_rows) i"
	);
	set_conf($sub, wal_receiver_timeout => '6s');
	my $start = time;
	my $before = 0;

	while (time < $start + 10)
	{
		my $now = time;
		my $seen = $before;

		kill 'CONT', $walsender;
		$seen = $watch->query_safe($received)
		  while $seen == $before
		  && $seen < $slow_rows
		  && time < $now + $PostgreSQL::Test::Utils::timeout_default;
		kill 'STOP', $walsender;
		$longest = max($longest, time - $last);
		$last = time;
		$before = $seen;
		last
		  if slurp_file($sub->logfile, $log_start) =~ /due to timeout/;
		$watch->query_safe("SELECT pg_sleep(1.3)");
	}
	$longest = max($longest, time - $last);
	kill 'CONT', $walsender;
	set_conf($sub, wal_receiver_timeout => '60s');
	$stream->query_safe('ROLLBACK');
	wait_for_apply($pub, $sub, 'sub');
	$watch->quit;
	return ($longest, $before);
}

set_conf($pub, debug_logical_replication_streaming => 'immediate');
query($pub, 'UPDATE other SET v = v + 1');
wait_for_apply($pub, $sub, 'sub');
foreach my $attempt (1 .. 20)
{
	my $log_start = -s $sub->logfile;
	my ($longest, $seen) = stream_slowly($log_start);
	my $timeout = slurp_file($sub->logfile, $log_start) =~ /due to timeout/;

	# The machine was too busy to keep the pauses short, or to stop the process in time.
	next
	  if ($timeout && $longest > 3 || $seen >= $slow_rows) && $attempt < 20;
	cmp_ok($seen, '<', $slow_rows, 'there were always more changes to come');
	ok(!$timeout, 'no timeout between the blocks of a transaction')
	  or diag("the longest pause was $longest s");
	last;
}

$_->quit foreach $stream, $first, $third;
$pub->stop;
$sub->stop;
done_testing();
