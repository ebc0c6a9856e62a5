# A streamed transaction passes from its stream writer to an ordinary writer.  One of the
# two is held between two steps of that, and the other one, or the leader, continues or
# dies.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub =
  new_publisher('publisher', conf => 'logical_decoding_work_mem = 64kB');
my $sub = new_subscriber('subscriber',
	conf =>
	  "autovacuum = off\nrestart_after_crash = on\nweft.writers_per_subscription = 2"
);

# The rows have no key, so no error would prevent them from being inserted twice.
my @tables = qw(bulk events);
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE bulk (i int, t text);
CREATE TABLE events (i int);
EOS
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
wait_for_apply($pub, $sub, 'sub');

my $session = open_session($pub);
my $next = 1;
my $applied =
  "state = 'applying' AND applied_changes = received_changes AND received_changes > 3000";

# The transaction in progress continues.
sub insert_rows
{
	my ($count) = @_;
	my $last = $next + $count - 1;

	$session->query_safe(
		"INSERT INTO bulk SELECT i, repeat('x', 50) FROM generate_series($next, $last) i"
	);
	$next = $last + 1;
	return;
}

# A transaction begins, and its streamed part is applied.
sub begin_stream
{
	$session->query_safe('BEGIN');
	insert_rows(5000);
	poll($sub, "SELECT count(*) = 1 FROM weft.stat_stream WHERE $applied");
	return;
}

sub stream_writer
{
	return query($sub,
		"SELECT pid FROM weft.stat_writer JOIN weft.stat_stream USING (subid, writer)"
	);
}

sub ordinary_writer
{
	return poll_for($sub,
		"SELECT pid FROM pg_stat_activity WHERE wait_event = 'WeftWriterStream'"
	);
}

sub state_is
{
	my ($state) = @_;
	poll($sub,
		"SELECT count(*) = 1 FROM weft.stat_stream WHERE state = '$state'");
	return;
}

# The subscriber has the publisher's rows, each once.
sub event_applied
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	query($pub, "INSERT INTO events VALUES (1)");
	all_applied($pub, $sub, \@tables, $what);
	return;
}

my $log = -s $sub->logfile;

# The stream writer ends before it has begun, after an ordinary writer has asked it to finish.
attach_point($sub, 'weft-writer-attaches', 'hold_end');
$session->query_safe('BEGIN');
insert_rows(5000);
my $unborn = held_unseen($sub);
$session->query_safe('COMMIT');
state_is('committing');
ordinary_writer();
detach_point($sub, 'weft-writer-attaches');
release($sub, $unborn);
event_applied('the stream writer never begins');
unlike(
	slurp_file($sub->logfile, $log),
	qr/because writer \d+ has ended/,
	'nobody gets an error');

# The stream writer fails when an ordinary writer is about to ask it.
begin_stream();
attach_point($sub, 'weft-writer-asks-stream');
$session->query_safe('COMMIT');
held_at($sub, 'weft-writer-asks-stream');
query($sub, "SELECT pg_cancel_backend(@{[ stream_writer() ]})");
state_is('spooled');
release_point($sub, 'weft-writer-asks-stream');
event_applied('the stream writer fails before it is asked');

# It fails after it was asked.
begin_stream();
attach_point($sub, 'weft-stream-finishes', 'error');
$session->query_safe('COMMIT');
event_applied('the stream writer fails when it is asked');
detach_point($sub, 'weft-stream-finishes');
$sub->log_check(
	'the stream writer has failed',
	$log,
	log_like => [
		qr/canceling statement due to user request/,
		qr/error injected at weft-stream-finishes/
	]);

# It has checked whether it is asked to finish; before it checks how much there is to read,
# more data arrives, and it is asked.
begin_stream();
attach_point($sub, 'weft-stream-looks');
held_at($sub, 'weft-stream-looks');
insert_rows(3000);
$session->query_safe('COMMIT');
state_is('committing');
release_point($sub, 'weft-stream-looks');
event_applied('the end has arrived');

# The same with a transaction that is aborted.
begin_stream();
attach_point($sub, 'weft-stream-looks');
held_at($sub, 'weft-stream-looks');
$session->query_safe('ROLLBACK');
state_is('rolling back');
release_point($sub, 'weft-stream-looks');
event_applied('rolled back');

# It commits while the ordinary writer, which has asked for that, is about to sleep.
begin_stream();
attach_point($sub, 'weft-stream-finishes');
$session->query_safe('COMMIT');
my ($stream_writer) = held_at($sub, 'weft-stream-finishes');
my $ordinary = ordinary_writer();
attach_point($sub, 'weft-writer-sleeps');
query($sub, "SELECT pg_reload_conf()");
held_at($sub, 'weft-writer-sleeps', 2);
detach_point($sub, 'weft-stream-finishes');
release($sub, $stream_writer);
state_is('committed');
release_point($sub, 'weft-writer-sleeps');
event_applied('the ordinary writer is woken');

# A process dies when the stream writer is about to commit, or has committed.  After a crash
# no point is attached.
foreach my $point ('weft-writer-commits', 'weft-writer-committed')
{
	foreach my $who ('stream writer', 'ordinary writer', 'leader', 'server')
	{
		begin_stream();
		attach_point($sub, $point);
		$session->query_safe('COMMIT');
		my ($stream_writer) = held_at($sub, $point);
		my $writer = ordinary_writer();
		my $leader = leader_pid($sub, 'sub');

		if ($who eq 'server')
		{
			flush_wal($sub);
			kill_process($stream_writer);
			wait_until_up($sub);
		}
		else
		{
			my $pid =
				$who eq 'leader'        ? $leader
			  : $who eq 'stream writer' ? $stream_writer
			  :                           $writer;

			terminate($sub, $pid);
			if ($who ne 'stream writer')
			{
				wait_until_gone($sub, $writer);
				poll($sub,
					"SELECT wait_event = 'BgworkerShutdown' FROM pg_stat_activity WHERE pid = $leader"
				);
			}
			release_point($sub, $point);
			wait_until_gone($sub, $_) foreach $pid, $leader;
		}
		event_applied("$point, $who");
	}
}

$session->quit;
$sub->stop;
$pub->stop;
done_testing();
