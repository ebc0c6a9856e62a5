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
			"SELECT here = there, held FROM weft_test_cut('sub', '$count')"),
		't|t',
		"$what: another cut can be made");
	return;
}

# Apply stands, and does not apply what the publisher sends.
my $standing =
  "SELECT * FROM weft_test_cut('sub', 'SELECT pg_sleep(600)', 30000, 600000)";

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
	is( query(
			$sub,
			"SELECT wait_event FROM pg_stat_activity WHERE pid = "
			  . leader_pid($sub, 'sub')),
		'WeftLeaderCut',
		'the leader stands');
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

# The leader ends while it stands.
my ($session, $pid) =
  begin_cut(
	"SELECT held FROM weft_test_cut('sub', 'SELECT pg_sleep(1)', 30000, 600000)"
  );
poll($sub,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'PgSleep'"
);
my $leader = leader_pid($sub, 'sub');
terminate($sub, $leader);
wait_until_gone($sub, $leader);
like($session->query_safe(''), qr/^f$/m, 'the cut is lost with its leader');
$session->quit;
applies_again('leader terminated');

# The leader goes on by itself.
is( query(
		$sub,
		"SELECT held FROM weft_test_cut('sub', 'SELECT pg_sleep(1)', 30000, 100)"
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

# But not if the cut is pinned.
$session = open_session($sub);
$session->query_safe('BEGIN');
is( $session->query_safe(
		"SELECT weft_test_cut_write('sub', 'INSERT INTO entry VALUES (-1, 0)', 30000, 100)"
	),
	't',
	'a cut is pinned');
insert();
$session->query_safe('SELECT pg_sleep(0.5)');
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
my (undef, undef, $stderr) =
  $sub->psql('postgres', "SELECT weft_test_cut('sub', 'SELECT 1', 500)");
like(
	$stderr,
	qr/timed out while bringing subscription "sub" and its publisher to the same state\nDETAIL:  It has not applied everything that the publisher had at LSN/,
	'time-out of a requester');
$session->query_safe('COMMIT');
$session->quit;
applies_again('lock released');

# Two at the same time.
my @both = map {
	(   begin_cut(
			"SELECT held, here = there FROM weft_test_cut('sub', 'SELECT count(*) FROM public.entry, pg_sleep(0.2)')"
		))[0]
} 1 .. 2;
like($_->query_safe(''), qr/^t\|t$/m, 'two cuts at the same time')
  foreach @both;
$_->quit foreach @both;

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
$pub->safe_psql('postgres',
	"ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()"
);
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
