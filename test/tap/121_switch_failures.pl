# A switch-over fails, or its caller, a server or the connection dies, in each of its steps:
# never do both servers accept writes, and after calling again exactly one does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use Time::HiRes qw(time usleep);
use WeftTest;

need_injection_points();

my @before_final =
  qw(plan arm_target fence_target arm_source publish create_slot subscribe catch_up
  sequences_before fence_source drain sequences verify position);
my @after_final = qw(stop open remove follow);
my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber', conf => "restart_after_crash = on\n");
my $next = 1;

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id serial PRIMARY KEY)'
);
query($pub, 'CREATE PUBLICATION pub FOR TABLE t, u');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# Writes a row where this is possible, which must be this node alone.
sub only
{
	my ($node, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(accepting('t', $pub, $sub),
		$node->name, "$what: " . $node->name . ' accepts writes');
	query($node, "INSERT INTO t VALUES ($next, 'on " . $node->name . "')");
	$next++;
	return;
}

sub nothing_left
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join('', map { left_over($_) } $pub, $sub),
		'', "$what: nothing else is left");
	return;
}

# Waits until the plan finds nothing to complain about.
sub ready
{
	my ($call) = @_;
	wait_until_connected($pub, $sub, 'sub') if $call =~ /^switch_over/;
	return;
}

# Calls a procedure in the background until it is held at the end of a step; returns the
# session and its process.
sub hold_in
{
	my ($step, $call, $action) = @_;
	my $session = open_session($sub, on_error_stop => 0);

	ready($call);
	attach_point($sub, "weft-switch-$step-done", $action);
	$session->query_until(qr/begun/, "\\echo begun\nCALL weft.$call;\n");
	my ($pid) = held_at($sub, "weft-switch-$step-done");
	detach_point($sub, "weft-switch-$step-done");
	return ($session, $pid);
}

# The same if writes may only be paused for a short time, but for long enough to come to the end
# of the step.  Also returns the time of the call.
sub hold_in_pause
{
	my ($step, $call) = @_;
	my $point = "weft-switch-$step-done";

	foreach my $pause (map { 2**$_ } 0 .. 6)
	{
		my $limited = $call =~ s/max_pause => '.*?'/max_pause => '$pause s'/r;
		my $session = open_session($sub, on_error_stop => 0);
		my $pid = $session->query_safe('SELECT pg_backend_pid()');

		ready($call);
		attach_point($sub, $point);
		my $time = time;
		$session->query_until(qr/begun/,
			"\\echo begun\nCALL weft.$limited;\n\\warn ended\n");
		my $held = poll_for(
			$sub,
			"SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND wait_event = '$point'",
			sub {
				$session->{run}->pump_nb;
				return $_[0] || $session->{stderr} =~ /^ended$/m;
			});
		detach_point($sub, $point);
		return ($session, $pid, $time) if $held;
		note("$pause s: $session->{stderr}");
		end_session($session);
	}
	die "step $step is not reached";
}

my $over = "switch_over('sub', '" . connection($sub) . "', $patient)";
my $back = "switch_back('sub', $patient)";

# Ends a session that has probably lost its server process.
sub end_session
{
	my ($session) = @_;
	local $SIG{PIPE} = 'IGNORE';
	eval { $session->quit };
	return;
}

sub switches
{
	my ($call, $node, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ready($call);
	is(call_switch($sub, $call), '', "$what: calling it succeeds");
	only($node, $what);
	return;
}

# Errors on the way over.
foreach my $step (@before_final)
{
	attach_point($sub, "weft-switch-$step-done", 'error');
	like(
		call_switch($sub, $over),
		qr/has been undone/,
		"over, error in $step: undone");
	detach_point($sub, "weft-switch-$step-done");
	only($pub, "over, error in $step")
	  unless grep { $_ eq $step } qw(plan arm_target);
	nothing_left("over, error in $step");
}
attach_point($sub, 'weft-switch-final-done', 'error');
is(call_switch($sub, $over), '', 'over, error in final: it goes on');
detach_point($sub, 'weft-switch-final-done');
only($sub, 'over, error in final');

# Errors on the way back.
foreach my $step (grep { $_ ne 'publish' } @before_final)
{
	attach_point($sub, "weft-switch-$step-done", 'error');
	like(
		call_switch($sub, $back),
		qr/has been undone/,
		"back, error in $step: undone");
	detach_point($sub, "weft-switch-$step-done");
	only($sub, "back, error in $step");
}
attach_point($sub, 'weft-switch-final-done', 'error');
is(call_switch($sub, $back), '', 'back, error in final: it goes on');
detach_point($sub, 'weft-switch-final-done');
only($pub, 'back, error in final');
nothing_left('back');

foreach my $step (@after_final)
{
	foreach my $case ([ $over, $sub, 'over' ], [ $back, $pub, 'back' ])
	{
		my ($call, $node, $what) = @$case;
		ready($call);
		attach_point($sub, "weft-switch-$step-done", 'error');
		like(
			call_switch($sub, $call),
			qr/point of no return/,
			"$what, error in $step");
		detach_point($sub, "weft-switch-$step-done");
		switches($call, $node, "$what, error in $step");
	}
}
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [ 't', 'u' ], 'all rows are on both sides');

# The caller ends.
foreach my $step (qw(subscribe fence_source position final open follow))
{
	foreach
	  my $case ([ $over, $sub, $pub, 'over' ], [ $back, $pub, $sub, 'back' ])
	{
		my ($call, $target, $source, $what) = @$case;
		my ($session, $pid) = hold_in($step, $call, 'hold_end');

		# on the way back, that step still holds its locks here
		is( accepting('t', $pub, $sub),
			$step eq 'fence_source'
			  || $step eq 'drain' || $step eq 'position' ? ''
			: grep({ $_ eq $step } @before_final) ? $source->name
			: $step eq 'final' || $step eq 'stop' ? ''
			: $target->name,
			"$what, in $step: who accepts writes")
		  unless $what eq 'back'
		  && $step eq 'fence_source';
		release($sub, $pid);
		wait_until_gone($sub, $pid);
		end_session($session);
		if (grep { $_ eq $step } @before_final)
		{
			# the other server notices that the connection is gone
			poll($source,
				"SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'"
			);
			only($source, "$what, caller ends in $step");
		}
		switches($call, $target, "$what, caller ends in $step");
	}
}
wait_for_apply($pub, $sub, 'sub');
same_tables(
	$pub, $sub,
	[ 't', 'u' ],
	'all rows are on both sides when callers have ended');
nothing_left('callers have ended');

# One of the servers, or the connection, dies.
my %die = (
	'subscriber crashes' => sub { kill_process($_[0]); wait_until_up($sub); },
	'publisher crashes' => sub {
		$pub->stop('immediate');
		release($sub, $_[0]);
		wait_until_gone($sub, $_[0]) if $_[1];
		$pub->start;
	},
	'connection breaks' => sub {
		query($pub,
			"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'weft switch-over'"
		);
		release($sub, $_[0]);
	});

foreach my $step (qw(fence_source final open))
{
	foreach my $how (sort keys %die)
	{
		my ($session, $pid) = hold_in($step, $over);
		my $what = "over, $how in $step";

		$die{$how}->($pid, 0);
		wait_until_gone($sub, $pid) if $how eq 'subscriber crashes';
		$session->query('SELECT 1') unless $how eq 'subscriber crashes';
		end_session($session);
		is( query(
				$sub,
				"SELECT confirmed_flush_lsn >= (SELECT result::pg_lsn FROM weft.switch_over_progress WHERE step = 'position' ORDER BY started_at DESC LIMIT 1)"
				  . " FROM pg_replication_slots WHERE slot_name ~ '^weft_switch_'"
			),
			't',
			"$what: the slot does not go back to where it was created"
		) if $how eq 'subscriber crashes' && $step ne 'fence_source';
		my $now = accepting('t', $pub, $sub);
		isnt($now, 'publisher subscriber', "$what: not both accept writes");
		switches($over, $sub, $what)
		  unless $now eq 'subscriber'
		  && query($sub, "SELECT phase FROM weft.switch_attempt") eq 'done';
		only($sub, $what);
		switches($back, $pub, "back after $what");
	}
}
wait_for_apply($pub, $sub, 'sub');
same_tables(
	$pub, $sub,
	[ 't', 'u' ],
	'all rows are on both sides when servers have crashed');
nothing_left('servers have crashed');

# The caller is frozen while writes are paused: it neither goes on nor ends, nor gives up its
# locks.  The source does not wait for it; after that, the step "final" must fail.
foreach
  my $case ([ $over, $sub, $pub, 'over' ], [ $back, $pub, $sub, 'back' ])
{
	my ($call, $target, $source, $what) = @$case;
	my ($session, $pid, $time) = hold_in_pause('position', $call);
	my $accepting = accepting('t', $pub, $sub);

  SKIP:
	{
		# the fence opens by itself 5 seconds after the end of the pause
		skip 'the machine is too slow', 1 if time - $time > 5;
		is($accepting, '', "$what: frozen while writes are paused");
	}
	poll_for($source, 'SELECT 1',
		sub { return accepting('t', $pub, $sub) eq $source->name });
	only($source, "$what, frozen");
	like(
		call_switch($sub, $call),
		qr/another switch-over is in progress.*DETAIL:  The lock is held by process $pid, of role/s,
		"$what, frozen: another caller learns of it");
	release($sub, $pid);
	poll($sub, "SELECT phase = 'undone' FROM weft.switch_attempt");
	end_session($session);
	only($source, "$what, frozen no more");
	nothing_left("$what, frozen") if $what eq 'over';
	switches($call, $target, "$what, after it was frozen");
}

# What the target has written since its new slot was created is read before writes pause.
foreach
  my $case ([ $over, $sub, $pub, 'over' ], [ $back, $pub, $sub, 'back' ])
{
	my ($call, $target, $source, $what) = @$case;
	my ($session, $pid) = hold_in('subscribe', $call);

	query($target,
		"SELECT pg_logical_emit_message(true, 'much', repeat('x', 1000000))");
	my $lsn = query($target, 'SELECT pg_current_wal_flush_lsn()');
	attach_point($sub, 'weft-switch-fence_source');
	release($sub, $pid);
	held_at($sub, 'weft-switch-fence_source');
	detach_point($sub, 'weft-switch-fence_source');
	is( query($target,
				"SELECT slot_name, confirmed_flush_lsn >= '$lsn' AND "
			  . ($what eq 'back' ? 'true' : "restart_lsn >= '$lsn'")
			  . " FROM pg_replication_slots WHERE slot_name ~ '^(weft_switch_.*|sub)\$'"
		) =~ s/.*[|]//r,
		't',
		"$what: the new slot is close behind before writes pause");
	release($sub, $pid);
	is($session->query('SELECT 1'), '1', "$what, with much to read");
	$session->quit;
	only($target, "$what, with much to read");
}
# Any role may take the lock of switch-overs.  It cannot keep a fence closed with it.
query($pub, 'CREATE ROLE nobody LOGIN');
{
	my ($session, $pid) = hold_in('drain', $over, 'hold_end');
	local $ENV{PGUSER} = 'nobody';
	my $other = open_session($pub);
	delete local $ENV{PGUSER};
	$other->query_until(qr/begun/,
		"\\echo begun\nSELECT pg_advisory_lock(x'77656674'::int, x'73776974'::int);\n"
	);
	release($sub, $pid);
	poll($pub,
		"SELECT granted FROM pg_locks l, pg_stat_activity a WHERE locktype = 'advisory' AND a.pid = l.pid AND usename = 'nobody'"
	);
	end_session($session);
	only($pub, 'over, somebody else has the lock');
	like(
		call_switch($sub, $over =~ s/[)]$/, timeout => '1 s')/r),
		qr/another switch-over is in progress on the publisher.*of role "nobody"/s,
		'over, somebody else has the lock: it is said who');
	end_session($other);
	switches($over, $sub, 'over, without the lock');
	switches($back, $pub, 'back again');
}

# Somebody locks a table while writes are paused.
foreach my $case (
	[ 'over', $over, $pub, $pub ],
	[ 'over', $over, $pub, $sub ],
	[ 'back', $back, $sub, $pub ],
	[ 'back', $back, $sub, $sub ])
{
	my ($way, $call, $source, $locked) = @$case;
	my $what = "$way, a table is locked on " . $locked->name;

	switches($over, $sub, 'over, to come back')
	  if $way eq 'back' && $locked == $pub;
	my ($session, $pid) = hold_in_pause('sequences', $call);
	my $locker = open_session($locked);
	$locker->query_safe('BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE');
	release($sub, $pid);
	poll($sub, "SELECT phase = 'undone' FROM weft.switch_attempt");
	$session->query('SELECT 1');
	like($session->{stderr},
		qr/step "verify" did not end within "max_pause"/, $what);
	end_session($session);
	$locker->quit;
	only($source, $what);
}
switches($back, $pub, 'back at last');

# The postmaster alone dies, while the caller is busy and waits for nothing.
sub gone
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return 1;
	return <$file> =~ /[)] Z /;
}

query($sub, <<'EOC');
CREATE SEQUENCE is_busy;
CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN PERFORM pg_catalog.nextval(''public.is_busy''); LOOP NULL; END LOOP; END';
CREATE TRIGGER busy BEFORE UPDATE ON weft.switch_over_progress FOR EACH ROW EXECUTE FUNCTION busy();
ALTER TABLE weft.switch_over_progress ENABLE ALWAYS TRIGGER busy;
EOC
my $session = open_session($sub, on_error_stop => 0);
my $caller = $session->query('SELECT pg_backend_pid()');
$session->query_until(qr/begun/, "\\echo begun\nCALL weft.$over;\n");
poll($sub, 'SELECT is_called FROM is_busy');
$sub->kill9;
for (my $i = 0; $i < 600 && !gone($caller); $i++)
{
	usleep(100_000);
}
ok(gone($caller), 'the caller ends after its postmaster');
kill 'KILL', $caller unless gone($caller);
end_session($session);

done_testing();
