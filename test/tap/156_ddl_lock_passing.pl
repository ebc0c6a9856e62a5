# Writers that have passed a gate: what is made of their tables meanwhile, and gates that end before they do.

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

query($a, <<'EOQ');
CREATE TABLE t (id int PRIMARY KEY, n int);
CREATE TABLE other (id int PRIMARY KEY);
EOQ
create_group($a, 'g');
join_group($b, $a, 'g');
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;
query($a, 'CREATE EXTENSION amcheck');
wait_for_group('g', @nodes);

# Starts a schema change of a, whose gate is closed at b, and waits at a for a transaction there.
sub start_change
{
	my ($blocker, @settings) = @_;

	$blocker->query_safe('BEGIN; INSERT INTO t VALUES (100000, 0)');
	my $change = start_query($a,
		join '; ', @settings, 'ALTER TABLE t ALTER n SET DEFAULT 7');
	poll($b, "SELECT state = 'closed' FROM weft.ddl_lock_status");
	return $change;
}

sub index_is_complete
{
	my ($index, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @nodes);
	is(query($b, "SELECT bt_index_check('$index', true)"),
		'', "$what: the index has all rows");
	same_on_all(\@nodes, ['t'], $what);
	return;
}

# A transaction of a with two rows of the table, and between them one of a table that is locked at b: returns once the
# first one is there, and the session with the lock.
sub write_in_two_steps
{
	my ($id) = @_;
	my $lock = open_session($b);

	$lock->query_safe('BEGIN; LOCK TABLE other IN SHARE MODE');
	query($a,
		"BEGIN; INSERT INTO t VALUES ($id, 1); INSERT INTO other VALUES ($id); INSERT INTO t VALUES ($id + 1, 2); COMMIT"
	);
	poll($b,
		"SELECT count(*) > 0 FROM pg_locks WHERE relation = 't'::regclass AND mode = 'RowShareLock' AND granted"
	);
	return $lock;
}

# The gate worker fails, and is away for a second.
my $blocker = open_session($a);
my $change = start_change($blocker);
my $lock = write_in_two_steps(1);
query($b, <<'EOQ');
SET weft.ddl_replication = off;
SELECT pg_terminate_backend(pid, 10000) FROM weft.ddl_gates();
CREATE INDEX t_plain ON t (n);
EOQ
$lock->query_safe('COMMIT');
$lock->quit;
$blocker->query_safe('COMMIT');
finish($change);
index_is_complete('t_plain', 'the gate worker has failed');

# The schema change is given up, and the gate ends behind the writer.
query($a, 'DELETE FROM t WHERE id = 100000');
wait_for_group('g', @nodes);
$change = start_change($blocker, "SET weft.ddl_lock_timeout = '5s'");
$lock = write_in_two_steps(10);
finish($change, may_fail => 1);
like(
	$change->{output},
	qr/timed out waiting for transactions/,
	'the schema change is given up');
poll($b, "SELECT state = 'ending' FROM weft.ddl_lock_status");
my $index = do
{
	local $ENV{PGOPTIONS} = '-c weft.ddl_replication=off';
	start_query($b, 'CREATE INDEX CONCURRENTLY t_concurrent ON t (n)');
};
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'INDEX CONCURRENTLY t_c' AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'"
);
$_->query_safe('COMMIT') foreach $lock, $blocker;
$_->quit foreach $lock, $blocker;
finish($index);
index_is_complete('t_concurrent', 'the gate has ended');

done_testing();
