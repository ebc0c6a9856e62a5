# What tests share that hold a process of Weft at an injection point: between two
# steps, so that something else happens in between.  See test/injection.
package InjectionTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

our @EXPORT = qw(
  need_injection_points
  attach_point detach_point held_at hold_in_step hold_in_first_table held_unseen release open_point release_point
  terminate wait_until_gone all_applied
);

# Skip the whole test where there are no injection points.
sub need_injection_points
{
	plan skip_all => 'about Weft alone' unless weft();
	plan skip_all => 'the server was built without injection points'
	  unless ($ENV{enable_injection_points} // '') eq 'yes';

	chomp(my $directory = `pg_config --sharedir`);
	plan skip_all => 'the extension weft_injection is not installed'
	  unless -e "$directory/extension/weft_injection.control";
	return;
}

# From now on, every process that comes to the point is held there, or what else the
# action is: "error", "end", or "hold_end", to end when it is released.
sub attach_point
{
	my ($node, $point, $action) = @_;
	$action //= 'hold';
	query($node,
		"SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS weft_injection"
	);
	query($node, "SELECT injection_attach('$point', '$action')");
	return;
}

# Processes that are held at the point stay there; others pass.
sub detach_point
{
	my ($node, $point) = @_;
	query($node, "SELECT injection_detach('$point')");
	return;
}

# Wait until so many processes are held at the point; returns their PIDs.
sub held_at
{
	my ($node, $point, $count) = @_;
	$count //= 1;
	return split /\n/,
	  poll_for(
		$node,
		"SELECT pid FROM pg_stat_activity WHERE wait_event = '$point' ORDER BY pid",
		sub { return (() = $_[0] =~ /^\d+$/mg) == $count });
}

# A node joins, and is held in each step: let it go on until it is held in this one.
sub hold_in_step
{
	my ($node, $step) = @_;

	for (;;)
	{
		my ($pid) = held_at($node, 'weft-join-step');
		return
		  if query($node,
			"SELECT query FROM pg_stat_activity WHERE pid = $pid") eq $step;
		release($node, $pid);
	}
	return;
}

# A node, with weft.min_parallel_copy_size = 0, joins through another one, and is held while it copies the first of these
# tables: it has its snapshot, and reads the others later.  The point is weft-copy-locked.
sub hold_in_first_table
{
	my ($node, $target, $group, $first, @others) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $tables = join '|', @others;

	attach_point($node, 'weft-copy-locked');
	start_join($node, $target, $group);
	held_at($node, 'weft-copy-locked');
	is( query(
			$target,
			"SELECT bool_or(query ~ '\\m$first\\M'), bool_or(query ~ '\\m($tables)\\M') FROM pg_stat_activity WHERE application_name = 'weft group'"
		),
		't|f',
		'nothing else is copied yet');
	return;
}

# Wait until a process is held that is not connected to a database yet, so that it is
# not in pg_stat_activity; returns its PID.  Nobody else is held.
sub held_unseen
{
	my ($node) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $deadline)
	{
		my ($file) = glob($node->data_dir . '/weft_injection.*');
		return $file =~ s/.*\.//r if $file;
		usleep(10_000);
	}
	die 'timed out waiting for a process to be held';
}

# Let processes go on.
sub release
{
	my ($node, @pids) = @_;
	query($node, "SELECT injection_release($_)") foreach @pids;
	return;
}

# Let all go on that are held at the point, and whoever is about to be held there.  Wait until
# they have gone.
sub open_point
{
	my ($node, $point) = @_;

	query($node, "SELECT injection_open('$point')");
	waits_for($node, $point, 0);
	return;
}

# Let all go on that are held at the point, and hold nobody there any more.
sub release_point
{
	my ($node, $point) = @_;

	detach_point($node, $point);
	open_point($node, $point);
	return;
}

sub wait_until_gone
{
	my ($node, $pid) = @_;
	poll($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# Tell a process to end, as SIGTERM does.
sub terminate
{
	my ($node, $pid) = @_;
	query($node, "SELECT pg_terminate_backend($pid)");
	return;
}

# Wait until everything is applied, and compare some tables.
sub all_applied
{
	my ($pub, $sub, $tables, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, $tables, "$what: nothing is lost or doubled");
	return;
}

1;
