# Schema changes of a node group that lock their tables: writers of all members wait and do not fail, and
# two members that compete end with the same schema.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $attempts = $ENV{WEFT_TEST_ATTEMPTS} // 10;
my @nodes =
  map { new_member($_, conf => "max_worker_processes = 40\n") } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOS');
CREATE TABLE t (id bigint PRIMARY KEY, v text, n int);
CREATE TABLE other (id int PRIMARY KEY, v int);
INSERT INTO other VALUES (1, 0);
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
foreach my $node (@nodes)
{
	query($node, "ALTER PUBLICATION weft_g SET (ddl = 'all')");
}
foreach my $node (@nodes)
{
	poll($node,
		"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
	);
}

# A query in the background; finish() waits for it.
sub start_query
{
	my ($node, $sql) = @_;
	my $query = { node => $node, output => '' };
	my @command = (
		$node->installed_command('psql'),
		'-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
		'-c', $sql);

	$query->{run} =
	  IPC::Run::start(\@command, '<', \undef, '>&', \$query->{output});
	return $query;
}

sub same_schemas
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @nodes);
	same_schema($a, $_, "$what: " . $_->name) foreach $b, $c;
	return;
}

sub no_locks
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $node (@nodes)
	{
		poll($node, 'SELECT count(*) = 0 FROM weft.ddl_lock_status');
	}
	pass("$what: no lock is left");
	return;
}

# --- one statement ---

query($a, 'INSERT INTO t VALUES (1, 1, 1)');
wait_for_group('g', @nodes);
query($a, 'ALTER TABLE t ALTER n TYPE bigint');
no_locks('a type');
same_schemas('a type');
query($b, 'INSERT INTO t VALUES (2, 2, 3000000000)');
wait_for_group('g', @nodes);
is(query($c, 'SELECT n FROM t WHERE id = 2'),
	3000000000, 'rows after the change');

# --- a name ---

my $other = open_session($a);
$other->query_safe(
	'SET weft.ddl_lock = always; BEGIN; CREATE TABLE u (id int PRIMARY KEY)');
my $second = start_query($b,
	'SET weft.ddl_lock = always; CREATE TABLE u (id text PRIMARY KEY)');
poll($a,
	"SELECT count(*) = 1 FROM weft.ddl_lock_status WHERE state = 'waiting' AND node = 'b' AND waits_for = 'node a'"
);
$other->query_safe('COMMIT');
$other->quit;
finish($second, may_fail => 1);
like(
	$second->{output},
	qr/"u" already exists/,
	'two members create the same name');
no_locks('a name');
same_schemas('a new table');

# --- writers wait, readers do not ---

my $writer = $b->background_psql('postgres');
$writer->query_safe('BEGIN; INSERT INTO t VALUES (10, 10, 10)');
my $change = start_query($a,
	'ALTER TABLE t ALTER n SET DEFAULT 7, ALTER v SET NOT NULL');
poll($b,
	"SELECT state = 'closing' AND tables = '{t}' AND node = 'a' AND waits_for ~ 'sessions' FROM weft.ddl_lock_status"
);
is(query($b, 'SELECT count(*) FROM t WHERE id = 1'), 1, 'readers go on');
my $blocked = start_query($b, "INSERT INTO t (id, v) VALUES (11, 'x')");
my $blocked_on_c = start_query($c, "INSERT INTO t (id, v) VALUES (12, 'x')");
poll($c,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^INSERT INTO t' AND wait_event_type = 'Lock'"
);
$writer->query_safe('COMMIT');
$writer->quit;
finish($change);
finish($blocked);
finish($blocked_on_c);
no_locks('writers that wait');
same_schemas('writers that wait');
is(query($a, 'SELECT id, n FROM t WHERE id > 10 ORDER BY 1'),
	"11|7\n12|7", 'the writers waited, and have used the new definition');

# --- an abort ---

query($a, 'BEGIN; ALTER TABLE t DROP COLUMN v; ROLLBACK');
no_locks('an abort');
query($_, 'UPDATE other SET v = v + 1') foreach @nodes;
query($c, "INSERT INTO t VALUES (20, 'y', 1)");
same_schemas('an abort');

# --- several statements in a transaction ---

query($c, <<'EOS');
BEGIN;
ALTER TABLE t RENAME n TO m;
ALTER TABLE other ALTER v TYPE bigint;
ALTER TABLE t ALTER m TYPE numeric;
COMMIT;
EOS
no_locks('a transaction');
same_schemas('a transaction');

# --- what cannot be locked ---

my ($result, $out, $err) = $a->psql('postgres',
	"BEGIN; UPDATE other SET v = 0; ALTER TABLE other ALTER v SET NOT NULL; COMMIT"
);
like($err, qr/because this transaction has already changed it/, 'own rows');
no_locks('own rows');

# --- settings ---

query($a,
	"SET weft.ddl_lock = none; ALTER TABLE other ADD CONSTRAINT positive CHECK (v > -1000)"
);
same_schemas('without a lock');
query($a,
	"BEGIN; SET LOCAL weft.ddl_lock = always; ALTER TABLE other ADD w int; UPDATE other SET w = 1; ALTER TABLE other ALTER w SET NOT NULL; COMMIT"
);
no_locks('always');
same_schemas('always');

# --- two members compete, while all of them write ---

my $script = <<'EOS';
\set id random(1, 1000000000000)
INSERT INTO t (id, v) VALUES (:id::bigint * 10 + :node, 'x');
EOS
my $number = 0;
my @loads = map {
	$number++;
	start_pgbench(
		$_, { $script =~ s/:node/$number/r => 1 },
		'-c' => 2,
		'-R' => 100,
		'-T' => 600)
} @nodes;
my ($longest, $waits) = (0, 0);
foreach my $i (1 .. $attempts)
{
	my $start = time;
	my @changes = (
		start_query($a, "ALTER TABLE t ADD CONSTRAINT c$i CHECK (id <> -$i)"),
		start_query($b, "ALTER TABLE t ADD CONSTRAINT c$i CHECK (id <> -$i)")
	);
	my $failures = 0;
	foreach my $attempt (@changes)
	{
		$failures++ unless eval { finish($attempt); 1 };
	}
	my $time = time - $start;
	$longest = $time if $time > $longest;
	$waits += $failures;
}
is($waits, $attempts,
	'of two equal changes, one is made, and the other one finds it');
cmp_ok($longest, '<', 30, 'the longest attempt was bounded');
note(sprintf 'the longest of %d attempts took %.3f s', $attempts, $longest);
end_load($_) foreach @loads;
no_locks('competition');
same_schemas('competition');
same_on_all(\@nodes, [qw(t other u)], 'competition');

foreach my $node (@nodes)
{
	unlike(
		slurp_file($node->logfile),
		qr/deadlock detected/,
		'no deadlock on ' . $node->name);
}
$_->stop foreach @nodes;
done_testing();
