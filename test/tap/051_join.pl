# A node joins a group of two under load, several times.  Some joins are interrupted by
# kill -9, and continue or start again.  Nothing is lost or doubled.
#
# WEFT_TEST_JOINS sets the number of joins.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $joins = $ENV{WEFT_TEST_JOINS} // 1;
my ($a, $b) = map { new_member($_) } qw(a b);

query($a, <<'EOS');
CREATE TABLE counts (node text, client int, n int, filler text, PRIMARY KEY (node, client));
CREATE TABLE events (node text, client int, n int, PRIMARY KEY (node, client, n));
CREATE TABLE ballast (id int PRIMARY KEY, v text);
INSERT INTO counts SELECT node, c, 0, repeat('x', 50) FROM unnest(ARRAY['a', 'b', 'c']) node, generate_series(0, 3) c;
INSERT INTO ballast SELECT i, repeat('y', 100) FROM generate_series(1, 20000) i;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');

# Every transaction counts itself, and leaves an event.  Therefore a state that no member
# ever had, or a change that is lost or doubled, is noticed.
sub start_load
{
	my ($node, @options) = @_;
	my $name = $node->name;
	return start_pgbench(
		$node,
		{
				"BEGIN;\n"
			  . "UPDATE counts SET n = n + 1 WHERE node = '$name' AND client = :client_id;\n"
			  . "INSERT INTO events SELECT node, client, n FROM counts WHERE node = '$name' AND client = :client_id;\n"
			  . "UPDATE ballast SET v = v || 'z' WHERE id = (SELECT n % 6000 * 3 + ascii('$name') % 3 + 1 FROM counts WHERE node = '$name' AND client = :client_id);\n"
			  . "COMMIT;\n" => 1
		},
		'-c' => 2,
		'-R' => 300,
		@options);
}

# Waits until a member has some more of the changes of "a" and "b".
sub load_goes_on
{
	my ($member) = @_;

	foreach my $from ($a, $b)
	{
		my $count = sprintf "SELECT count(*) FROM events WHERE node = '%s'",
		  $from->name;
		my $before = query($member, $count);
		poll($member, "SELECT ($count) >= $before + 50");
	}
	return;
}

my @tables = qw(counts events ballast);

sub check
{
	my ($what, @nodes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @nodes);
	same_on_all(\@nodes, \@tables, $what);
	is( query(
			$nodes[-1],
			'SELECT count(*) FROM counts c WHERE n <> (SELECT count(*) FROM events e WHERE e.node = c.node AND e.client = c.client)'
		),
		0,
		"$what: every transaction is there once");
	return;
}

my @loads = map { start_load($_, '-T' => 600) } ($a, $b);
my $c = new_member('c', conf => "restart_after_crash = on\n");
foreach my $i (1 .. $joins)
{
	join_group($c, $i % 2 ? $a : $b, 'g');

	# the new node is written to immediately
	my $load = start_load($c, '-t' => 100);
	finish($load);
	load_goes_on($c);
	if ($i == $joins)
	{
		stop_load($_) foreach @loads;
	}
	else
	{
		query($a, "SELECT weft.part_node('c')");
		is(leftovers($c), '', "nothing is left after join $i");
		query($c, 'DROP TABLE counts, events, ballast');
	}
}
check("after $joins joins under load", $a, $b, $c);
cmp_ok(copied_by($c, 'public.ballast'),
	'>', 0, 'a table is copied as initially');

# --- kill -9 ---

query($a, "SELECT weft.part_node('c')");
query($c, 'DROP TABLE counts, events, ballast');
@loads = map { start_load($_, '-T' => 600) } ($a, $b);

# Where the join is interrupted: its step, on which server, what blocks it there, and how
# it is ended.
my @stops = (
	[
		'register', $b,
		"INSERT INTO weft.node_entry VALUES ('x', 900, 'joining', false)",
		'kill'
	],
	[ 'make_slots', $b, 'SELECT txid_current()', 'kill' ],
	[ 'copy', $a, 'SELECT txid_current()', 'kill' ],
	[ 'copy', $a, 'SELECT txid_current()', 'stop' ],
	[ 'announce', $b, 'LOCK TABLE weft.node_entry', 'kill' ],
	[
		'finish', $b,
		"SELECT FROM weft.node_entry WHERE node_name = 'c' FOR UPDATE",
		'stop'
	]);

foreach my $stop (@stops)
{
	my ($step, $where, $sql, $how) = @$stop;
	my $session = open_session($where);

	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe('BEGIN');
	if ($step =~ /announce|finish/)
	{
		# not before the copy, which another session blocks meanwhile
		my $first = open_session($a);
		$first->query_safe('BEGIN; SELECT txid_current()');
		start_join($c, $a, 'g');
		poll($c, "SELECT step = 'copy' FROM weft.join_entry");
		$session->query_safe($sql);
		$first->query_safe('COMMIT');
		$first->quit;
	}
	else
	{
		$session->query_safe($sql);
		start_join($c, $a, 'g');
	}
	poll($c, "SELECT step = '$step' FROM weft.join_entry");
	poll($where,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $pid = ANY (pg_blocking_pids(pid)))"
	);
	my $was = query($c, 'SELECT step FROM weft.join_entry');
	if ($how eq 'kill')
	{
		kill_process(
			poll_for(
				$c,
				"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft join'"
			));
	}
	else
	{
		$c->stop('immediate');
	}
	$session->query_safe('ROLLBACK');
	$session->quit;
	$c->start if $how eq 'stop';
	wait_until_up($c);
	note("$step, $how: was at $was");

	# after a crash of the worker it continues by itself, otherwise on request
	start_join($c, $a, 'g') if $how eq 'stop';
	wait_for_join($c);
	load_goes_on($c);
	stop_load($_) foreach @loads;
	check("killed in $step", $a, $b, $c);
	query($b, "SELECT weft.part_node('c')");
	is(leftovers($c), '', "killed in $step: nothing is left");
	query($c, 'DROP TABLE counts, events, ballast');
	@loads = map { start_load($_, '-T' => 600) } ($a, $b);
}
stop_load($_) foreach @loads;
$_->stop foreach ($a, $b, $c);
done_testing();
