# weft.compare_node() that loses a process in the middle: the process that called it, the apply worker,
# the walsender, its connection.  Nothing remains of it, no member is held, and it can be called again.
#
# A process that is killed takes its server with it; one that is terminated leaves the others to
# clean up behind it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use IPC::Run;
use Test::More;
use WeftTest;

need_injection_points();

my ($a, $b) =
  map { new_member($_, conf => 'restart_after_crash = on') } qw(a b);

query($a, <<EOC);
CREATE TABLE first (id int PRIMARY KEY, v int);
CREATE TABLE second (id int PRIMARY KEY, v int);
INSERT INTO first SELECT i, 0 FROM generate_series(1, 1000) i;
INSERT INTO second SELECT i, 0 FROM generate_series(1, 1000) i;
EOC
create_group($a, 'g');
join_group($b, $a, 'g');
my $subscription = subscription_name('g', $a, $b);
query($b, <<EOC);
SELECT pg_replication_origin_create('planted');
SELECT pg_replication_origin_session_setup('planted');
UPDATE second SET v = 1 WHERE id = 7;
EOC

sub pid_of
{
	my ($node, $condition) = @_;
	return poll_for($node,
		"SELECT pid FROM pg_stat_activity WHERE $condition LIMIT 1");
}

my $number = 0;

# A comparison that is held at a point; whom find() returns is then killed or terminated.
sub lost
{
	my ($how, $what, $point, $find) = @_;
	my ($stdin, $stdout, $stderr) =
	  ("CALL weft.compare_node('a', jobs => 2);\n\\echo ended\n", '', '');

	attach_point($b, $point);
	my $run =
	  IPC::Run::start([ 'psql', '-XAtq', '-d', $b->connstr('postgres') ],
		'<', \$stdin, '>', \$stdout, '2>', \$stderr);
	$run->pump_nb;
	my ($pid) = held_at($b, $point);
	my $victim = $find->($pid);
	detach_point($b, $point);

	if ($how eq 'killed')
	{
		kill_process($victim);
		wait_until_up($_) foreach $a, $b;
	}
	else
	{
		kill 'TERM', $victim;
	}
	open_point($b, $point);

	# The session stays open, so that its end does not hide what remains.  It has ended if its server
	# has crashed.
	eval { $run->pump until $stdout =~ /ended/; };
	note($stderr);

	# it may have been able to go on, but then it has the right result
	my $result = $stdout =~ /^(\d+)/ ? $1 : 'none';
	poll($b,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'weft comparison'"
	);
	is( query(
			$b,
			"SELECT count(*) FROM weft.stat_comparison WHERE status = 'running' AND pid IS NOT NULL"
		),
		0,
		"$what: no comparison is running");
	poll($_,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR state LIKE 'idle in transaction%')"
	) foreach $a, $b;
	poll($a,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
	);
	pass("$what: no snapshot is held, no transaction open, no connection left"
	);
	$stdin .= "\\q\n";
	eval { $run->finish; };

	query($a, 'INSERT INTO first VALUES (' . (2000 + ++$number) . ', 0)');
	query($b, 'INSERT INTO first VALUES (' . (3000 + $number) . ', 0)');
	wait_for_group('g', $a, $b);
	same_tables($a, $b, ['first'], "$what: both members go on");
	my $id = query($b, "CALL weft.compare_node('a')");
	is( query(
			$b,
			"SELECT string_agg(concat_ws(' ', relation, key, kind), ', ') FROM weft.difference WHERE comparison IN ($id, "
			  . ($result eq 'none' ? $id : $result)
			  . ') GROUP BY comparison'),
		join("\n",
			('second {"id": "7"} different') x ($result eq 'none' ? 1 : 2)),
		"$what: it can be called again");
	return;
}

# A process on the other member with which this one compares.
sub session_there
{
	my $to_a = "pid <> pg_backend_pid() AND backend_type = 'client backend'";
	return pid_of($a,
		"$to_a AND query LIKE '%snapshot%' OR $to_a AND state LIKE 'idle%'");
}

foreach my $how (qw(killed terminated))
{
	foreach my $point (qw(weft-cut-held weft-compare-snapshot))
	{
		my $what = "$how, at $point";

		lost(
			$how, "$what, the apply worker",
			$point, sub { leader_pid($b, $subscription) });
		lost($how, "$what, the caller", $point, sub { $_[0] });
		lost($how, "$what, a session on the other member",
			$point, \&session_there);
	}
	lost($how, "$how, the walsender",
		'weft-compare-snapshot',
		sub { pid_of($a, "backend_type = 'walsender'") });
}

done_testing();
