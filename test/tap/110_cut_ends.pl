# How cuts end: by their requester, by its end in any state, by the leader's end, by their
# time-outs; and which are refused.

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

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'restart_after_crash = on');

query_all([ $pub, $sub ], 'CREATE TABLE entry (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
query($sub, 'CREATE EXTENSION weft_test');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 2');
wait_for_apply($pub, $sub, 'sub');

my $id = 0;

sub insert
{
	query($pub, 'INSERT INTO entry VALUES (' . ++$id . ', 0)');
	return;
}

# A session in a cut, or on its way to it, and its PID.
sub begin_cut
{
	my ($command) = @_;
	my $session = open_session($sub, on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/begun/, "\\echo begun\n$command;\n");
	return ($session, $pid);
}

# Everything goes on as if there had been no cut.
sub applies_again
{
	my ($what) = @_;

	insert();
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['entry'], "$what: apply goes on");
	my $count = 'SELECT count(*) FROM public.entry';
	is( query(
			$sub,
			"SELECT here = there, held FROM weft_test_cut('sub', '$count', 60000, 60000)"
		),
		't|t',
		"$what: another cut can be made");
	return;
}

# Apply stands, and does not apply what the publisher sends.
my $standing =
  "SELECT * FROM weft_test_cut('sub', 'SELECT pg_sleep(600)', 30000, 600000, true)";

sub stand
{
	my @cut = begin_cut($standing);

	poll($sub,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $cut[1] AND wait_event = 'PgSleep'"
	);
	insert();
	poll($pub,
		"SELECT write_lsn > replay_lsn AND write_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
	);
	is(query($sub, "SELECT count(*) FROM entry WHERE id = $id"),
		0, 'what comes behind a cut is held');

	# now and then it is awake for a moment
	poll(
		$sub,
		"SELECT wait_event FROM pg_stat_activity WHERE pid = "
		  . leader_pid($sub, 'sub'),
		'WeftLeaderCut');
	pass('the leader stands');
	return @cut;
}

my %endings = (
	cancelled => sub { query($sub, "SELECT pg_cancel_backend($_[0])") },
	terminated => sub { terminate($sub, $_[0]) },
	killed => sub {
		kill_process($_[0]);
		wait_until_up($sub);
	});

foreach my $how (sort keys %endings)
{
	my ($session, $pid) = stand();

	$endings{$how}->($pid);
	applies_again("$how while the leader stands");
	eval { $session->quit };

	foreach my $point ('weft-cut-held', 'weft-cut-given')
	{
		attach_point($sub, $point);
		($session, $pid) =
		  begin_cut("SELECT * FROM weft_test_cut('sub', 'SELECT 1', 600000)");
		held_at($sub, $point);
		detach_point($sub, $point);
		$endings{$how}->($pid);
		release($sub, $pid) unless $how eq 'killed';
		applies_again("$how at $point");
		eval { $session->quit };
	}
}

# The leader ends while it stands, and the requester waits for a lock of the test.
my $holder = open_session($sub);
$holder->query_safe('SELECT pg_advisory_lock(1)');
my ($session, $pid) =
  begin_cut(
	"SELECT held FROM weft_test_cut('sub', 'SELECT pg_advisory_lock(1)', 30000, 600000, true)"
  );
poll($sub,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'advisory'"
);
my $leader = leader_pid($sub, 'sub');
terminate($sub, $leader);
wait_until_gone($sub, $leader);
$holder->quit;
like($session->query_safe(''), qr/^f$/m, 'the cut is lost with its leader');
$session->quit;
applies_again('leader terminated');

# The leader goes on by itself.
is( query(
		$sub,
		"SELECT held FROM weft_test_cut('sub', 'SELECT pg_sleep(1)', 30000, 100, true)"
	),
	'f',
	'the leader stands for a limited time');
is( query(
		$sub,
		"SELECT weft_test_cut_write('sub', 'SELECT pg_sleep(1)', 30000, 100)"
	),
	'f',
	'nobody who is late may commit');
applies_again('late requester');

# That is another limit than the one for reaching the cut, which a busy machine may exceed.
my $held;
foreach my $seconds (1, 2, 4, 8, 16, 32, 64)
{
	my (undef, $stdout, $error) = $sub->psql('postgres',
		"SELECT weft_test_cut_write('sub', 'SELECT pg_sleep($seconds)', ${seconds}000, 600000)"
	);
	$held = $stdout;
	last unless $error =~ /timed out/;
}
is($held, 't', 'the leader stands for longer than the time to reach a cut');
applies_again('longer than the time to reach a cut');

# But not if the cut is pinned, which may take longer than the limit on a busy machine.
$session = open_session($sub);
my $limit;
foreach (map { 100 * 2**$_ } 0 .. 9)
{
	$limit = $_;
	$session->query_safe('BEGIN');
	last
	  if $session->query_safe(
		"SELECT weft_test_cut_write('sub', 'INSERT INTO entry VALUES (-1, 0)', 30000, $limit)"
	  ) eq 't';
	$session->query_safe('ROLLBACK');
}
insert();
$session->query_safe("SELECT pg_sleep(5 * $limit / 1000.0)");
is($session->query_safe("SELECT count(*) FROM entry WHERE id = $id"),
	0, 'a pinned cut outlives its limit');
$session->query_safe('COMMIT');
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'DELETE FROM entry WHERE id = -1 RETURNING id'),
	'-1', 'the write is committed');
applies_again('pinned cut, committed');
$session->query_safe('BEGIN');
$session->query_safe(
	"SELECT weft_test_cut_write('sub', 'SELECT 1', 30000, 100)");
$session->query_safe('ROLLBACK');
applies_again('pinned cut, rolled back');
$session->quit;

# A lock keeps apply from reaching the cut.
$session = open_session($sub);
$session->query_safe('BEGIN; LOCK TABLE entry IN SHARE MODE');
insert();
writer_waits_for_lock($sub);
my $stderr;
foreach my $timeout (map { 500 * 4**$_ } 0 .. 4)
{
	(undef, undef, $stderr) = $sub->psql('postgres',
		"SELECT weft_test_cut('sub', 'SELECT 1', $timeout)");
	# on a busy machine, the time may be over before the publisher has been asked
	last if $stderr =~ /It has not applied everything/;
}
like(
	$stderr,
	qr/timed out while bringing subscription "sub" and its publisher to the same state\nDETAIL:  It has not applied everything that the publisher had at LSN/,
	'time-out of a requester');
$session->query_safe('COMMIT');
$session->quit;
applies_again('lock released');

# Two at the same time: the second one waits until the first one has what it waits for.
$holder = open_session($sub);
$holder->query_safe('SELECT pg_advisory_lock(1)');
my @both = map {
	[
		begin_cut(
			"SELECT held, here = there FROM weft_test_cut('sub', 'SELECT count(*) FROM public.entry, pg_advisory_xact_lock(1)', 120000, 600000, true)"
		)
	]
} 1 .. 2;
my $both = join ', ', map { $_->[1] } @both;
poll(
	$sub,
	"SELECT string_agg(wait_event, ' ' ORDER BY wait_event = 'advisory') FROM pg_stat_activity WHERE pid IN ($both)",
	'WeftCut advisory');
$holder->quit;
like($_->[0]->query_safe(''), qr/^t\|t$/m, 'two cuts at the same time')
  foreach @both;
$_->[0]->quit foreach @both;

# Who may, and when.
query($sub, 'CREATE ROLE stranger');
(undef, undef, $stderr) = $sub->psql('postgres',
	"SET ROLE stranger; SELECT weft_test_cut('sub', 'SELECT 1')");
like(
	$stderr,
	qr/must be owner of subscription sub/,
	'only the owner may make a cut');

($session, $pid) = stand();
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
query($sub, "SELECT pg_cancel_backend($pid)");
$session->quit;
disable_subscription($sub, 'sub');
(undef, undef, $stderr) =
  $sub->psql('postgres', "SELECT weft_test_cut('sub', 'SELECT 1')");
like($stderr, qr/subscription "sub" is disabled/, 'a disabled subscription');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
applies_again('enabled again');

# A transaction has been applied here by a leader that has ended, and waits there for a standby,
# so that no snapshot sees it.  The next leader does not know whether it was applied.
set_conf($pub, synchronous_standby_names => 'nobody');
my $waiting = open_session($pub);
$id++;
$waiting->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO entry VALUES ($id, 0);\n");
poll($sub, "SELECT count(*) = 1 FROM entry WHERE id = $id");
is(query($pub, "SELECT count(*) FROM entry WHERE id = $id"),
	0, 'a transaction that is applied here is not visible there');
$leader = leader_pid($sub, 'sub');
terminate($sub, $leader);
wait_until_gone($sub, $leader);
poll($pub,
	"SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'");
# on a busy machine the next leader may need more than one attempt's time
foreach my $attempt (1 .. 10)
{
	(undef, undef, $stderr) = $sub->psql('postgres',
		"SELECT here, there FROM weft_test_cut('sub', 'SELECT count(*) FROM public.entry', 5000)"
	);
	last
	  unless $stderr =~
	  /did not come to the end of a transaction|has no apply worker/;
}
like(
	$stderr,
	qr/DETAIL:.*may be waiting for a synchronous standby/,
	'there is no cut without it');
$pub->safe_psql('postgres',
	'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()');
$waiting->query_safe('');
$waiting->quit;
applies_again('nobody is waited for');

done_testing();
