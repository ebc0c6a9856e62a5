# Somebody is slow while a switch-over goes on: a writer that was stopped inside of the fence, a
# caller whose statement is canceled, and what a dead caller has left when the next one waits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)'
);
query($pub, 'CREATE PUBLICATION pub FOR TABLE t, u');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $over = "switch_over('sub', '" . connection($sub) . "'";
my $back = "switch_back('sub'";

# Begins something in another session, and waits until it waits for a lock.
sub begin_waiting
{
	my ($node, $sql) = @_;
	my $session = open_session($node, on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	poll($node,
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"
	);
	return $session;
}

# A writer has seen that the fence is provisional, and looks whether its session lives when
# everything is over.
foreach
  my $case ([ $over, $sub, $pub, 'over' ], [ $back, $pub, $sub, 'back' ])
{
	my ($call, $target, $source, $what) = @$case;
	my $session = open_session($sub, on_error_stop => 0);

	attach_point($sub, 'weft-switch-position');
	$session->query_until(qr/begun/,
		"\\echo begun\nCALL weft.$call, max_pause => '2 min');\n");
	my ($pid) = held_at($sub, 'weft-switch-position');
	detach_point($sub, 'weft-switch-position');

	# nobody can read this sequence any more; the others remain
	my $locker = open_session($source);
	$locker->query_safe(
		'BEGIN; ALTER SEQUENCE weft_switch.session OWNER TO CURRENT_USER');
	my $writer = begin_waiting($source, 'INSERT INTO t VALUES (1)');
	release($sub, $pid);
	is($session->query('SELECT 1'), '1', "$what, with a slow writer");
	$session->quit;
	poll($source,
		"SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'");
	$locker->query_safe('ROLLBACK');
	$locker->quit;
	$writer->query('SELECT 1');
	like(
		$writer->{stderr},
		qr/is fenced: another server accepts/,
		"$what: a writer that was slow is refused"
	) or die 'both sides differ';
	$writer->quit;
	is(query($source, 'SELECT count(*) FROM t'),
		'0', "$what: nothing is written behind the fence");
	is(accepting('t', $pub, $sub),
		$target->name, "$what: one server accepts writes");
}

# The caller's own statement_timeout ends it while it waits for a writer: once, and not the
# undoing as well.  The triggers exist already, so that nothing else waits for the writer.
wait_until_connected($pub, $sub, 'sub');
attach_point($sub, 'weft-switch-publish', 'error');
like(call_switch($sub, "$over)"), qr/has been undone/, 'all is prepared');
detach_point($sub, 'weft-switch-publish');
my $long = open_session($pub);
$long->query_safe('BEGIN; INSERT INTO t VALUES (1)');
my $seconds = 3;
my $stderr;
my $step;

# on a slow machine it may take more seconds to get there
do
{
	$stderr = call_switch(
		$sub,
		"$over, lock_timeout => '10 min')",
		"SET statement_timeout = '$seconds s'");
	$step = query($sub,
		'SELECT step FROM weft.switch_over_progress ORDER BY started_at DESC LIMIT 1'
	);
	$seconds *= 2;
} while ($step ne 'fence_source' && $seconds < 60);
is($step, 'fence_source', 'a statement timeout while it waits for a writer');
like(
	$stderr,
	qr/ERROR:  .*statement timeout.*HINT:  The attempt has been undone/s,
	'the attempt is undone');
is(query($sub, 'SELECT phase FROM weft.switch_attempt'),
	'undone', 'so it says');
$long->quit;
is(left_over($_), '', 'nothing is left on ' . $_->name) foreach $pub, $sub;

done_testing();
