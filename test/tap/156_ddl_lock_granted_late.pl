# The lock of a gate worker that is granted in the moment in which its time-out comes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes = map { new_member($_) } qw(a b);
my ($a, $b) = @nodes;

query($a, 'CREATE TABLE t (id int PRIMARY KEY, n int)');
create_group($a, 'g');
join_group($b, $a, 'g');
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;
wait_for_group('g', @nodes);

# Stops the gate worker of b while it waits for its lock, and returns its process once the time for that is over.
sub stop_while_it_waits
{
	my $pid = poll_for($b, 'SELECT pid FROM weft.ddl_gates() WHERE pid <> 0');
	my $waits = "FROM pg_locks WHERE pid = $pid AND NOT granted";

	for (;;)
	{
		poll($b, "SELECT count(*) = 1 $waits");
		kill 'STOP', $pid or die "could not stop the gate worker: $!";
		last if query($b, "SELECT count(*) $waits");
		kill 'CONT', $pid;
	}
	poll($b,
		"SELECT waitstart < clock_timestamp() - interval '1.5 s' $waits");
	return $pid;
}

# What the gate of a waits for keeps the schema change from being made.
my $blocker = open_session($a);
$blocker->query_safe('BEGIN; INSERT INTO t VALUES (1, 1)');
my $writer = open_session($b);
$writer->query_safe('BEGIN; INSERT INTO t VALUES (2, 2)');
my $change = start_query($a, 'ALTER TABLE t ALTER n SET DEFAULT 7');
my $pid = stop_while_it_waits();
$writer->query_safe('COMMIT');
$writer->quit;
kill 'CONT', $pid or die "could not continue the gate worker: $!";
poll($b, "SELECT state = 'closed' FROM weft.ddl_lock_status");
my (undef, undef, $err) = $b->psql('postgres',
	"SET lock_timeout = '500ms'; INSERT INTO t VALUES (3, 3)");
like($err, qr/lock timeout/, 'a closed gate holds writers back');

$blocker->query_safe('COMMIT');
$blocker->quit;
finish($change);
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['t'], 'rows');

done_testing();
