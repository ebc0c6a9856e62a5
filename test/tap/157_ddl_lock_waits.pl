# Schema changes of a node group that lock their tables: cycles of waits, of which the server sees a part only, and
# tables whose writers must wait though the statement does not name them.

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

my @nodes =
  map { new_member($_, conf => "max_worker_processes = 40\n") } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE u (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 1);
INSERT INTO u VALUES (1, 0);
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;
poll($_,
	"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
) foreach @nodes;

# What b gets of a is held back, or goes on.
sub hold
{
	pause_subscription($b, subscription_name('g', $a, $b));
	return;
}

sub let_go
{
	query($b,
		'ALTER SUBSCRIPTION ' . subscription_name('g', $a, $b) . ' ENABLE');
	return;
}

# A session that has made a schema change of t, and not committed it: the gates of the others are confirmed.
my $number = 0;

sub change
{
	my $session = open_session($a);

	$number++;
	$session->query_safe(
		"BEGIN; ALTER TABLE t ADD CONSTRAINT c$number CHECK (id > -$number)");
	return $session;
}

sub commit
{
	my ($session) = @_;
	$session->query_safe('COMMIT');
	$session->quit;
	return;
}

# No lock is left, and all members are the same.
sub recovered
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	poll($_, 'SELECT count(*) = 0 FROM weft.ddl_lock_status') foreach @nodes;
	wait_for_group('g', @nodes);
	same_schema($a, $_, "$what: schema of " . $_->name) foreach $b, $c;
	same_on_all(\@nodes, [qw(t u)], $what);
	return;
}

# A statement that waits for a gate.
sub waits_for_gate
{
	my ($node, $sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($result, $out, $err) =
	  $node->psql('postgres', "SET lock_timeout = '500ms'; $sql");

	like($err, qr/canceling statement due to lock timeout/, $what);
	return;
}

# --- a session waits for the gate with a row that comes before the schema change ---

my $holder = open_session($b, on_error_stop => 0);
$holder->query_safe('BEGIN; UPDATE u SET v = 10 WHERE id = 1');
my $session = change();
$holder->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO t VALUES (10, 10);\n");
query($a, 'UPDATE u SET v = 11 WHERE id = 1');
commit($session);
poll($_, 'SELECT count(*) = 0 FROM weft.ddl_lock_status') foreach @nodes;
like(
	$holder->query('SELECT 1') . $holder->{stderr},
	qr/canceling statement due to user request/,
	'the session that is in the way is told');
$holder->query('ROLLBACK');
$holder->quit;
recovered('a row of a session');

# --- the same before the gate is confirmed ---

my $blocker = open_session($c);
$blocker->query_safe('BEGIN; INSERT INTO t VALUES (11, 11)');
$holder = open_session($b, on_error_stop => 0);
$holder->query_safe('BEGIN; UPDATE u SET v = 12 WHERE id = 1');
$session = open_session($a);
$session->query_until(qr/begun/,
	"\\echo begun\nBEGIN; ALTER TABLE t ADD CONSTRAINT early CHECK (id > -100);\n"
);
poll($b, "SELECT state = 'closed' FROM weft.ddl_lock_status");
$holder->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO t VALUES (12, 12);\n");
query($c, 'UPDATE u SET v = 13 WHERE id = 1');
$blocker->query_safe('COMMIT');
$blocker->quit;
commit($session);
$holder->query('ROLLBACK');
$holder->quit;
recovered('a row of a session before the confirmation');

# --- the row is of a third member, and was there when the schema change was made ---

my $reader = open_session($a);
$reader->query_safe('BEGIN; LOCK TABLE t IN ACCESS SHARE MODE');
$holder = open_session($b, on_error_stop => 0);
$holder->query_safe('BEGIN; UPDATE u SET v = 14 WHERE id = 1');
$session = open_session($a);
$session->query_until(qr/begun/,
	"\\echo begun\nBEGIN; ALTER TABLE t ADD CONSTRAINT third CHECK (id > -200);\n"
);
poll($b, "SELECT state = 'confirmed' FROM weft.ddl_lock_status");
$holder->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO t VALUES (14, 14);\n");
query($c, 'UPDATE u SET v = 15 WHERE id = 1');
wait_for_apply($c, $a, subscription_name('g', $c, $a));
$reader->query_safe('COMMIT');
$reader->quit;
commit($session);
$holder->query('ROLLBACK');
$holder->quit;
recovered('a row of a third member');

# --- the same for a writer of another member that waits for the schema change ---

$session = change();
hold();
query($a, 'UPDATE u SET v = 20 WHERE id = 1');
commit($session);
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c,
	'BEGIN; UPDATE u SET v = 21 WHERE id = 1; INSERT INTO t VALUES (20, 20); COMMIT'
);
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event = 'WeftGate'"
);
let_go();
recovered('a row of a writer');

# --- the row is that of a later transaction ---

query($c, 'UPDATE u SET v = 29 WHERE id = 1');
wait_for_group('g', @nodes);
$session = change();
hold();
query($a, 'UPDATE u SET v = 30 WHERE id = 1');
commit($session);
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c, 'INSERT INTO t VALUES (30, 30)');
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event = 'WeftGate'"
);
query($c, 'UPDATE u SET v = 31 WHERE id = 1');
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event ~ 'CommitOrder'"
);
let_go();
recovered('a row of a later transaction');

# --- rows behind the schema change, in a transaction with one from before ---

my $early = open_session($c);
$early->query_safe('BEGIN; CREATE TABLE early (id int PRIMARY KEY)');
$session = change();
hold();
$early->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO t VALUES (40, 40);\n");
commit($session);
commit($early);
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event = 'WeftGate'"
);
let_go();
recovered('a schema change from before');

# --- rows on their way that cannot pass a gate ---

query($a, <<'EOS');
CREATE TABLE spare (id int PRIMARY KEY);
CREATE TABLE keyless (v int);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO keyless VALUES (1);
CREATE TABLE emptied (id int PRIMARY KEY, v int);
INSERT INTO emptied VALUES (1, 1);
EOS
wait_for_group('g', @nodes);
my %unable = (
	keyless => 'UPDATE keyless SET v = v + 1',
	emptied => 'TRUNCATE emptied');
foreach my $table (sort keys %unable)
{
	$blocker = open_session($b);
	$blocker->query_safe('BEGIN; LOCK TABLE spare IN SHARE MODE');
	$number++;
	query($c, "INSERT INTO spare VALUES ($number); $unable{$table}");
	$session = open_session($a, on_error_stop => 0);
	$session->query_until(qr/begun/,
		"\\echo begun\nSET weft.ddl_lock_timeout = '30s'; ALTER TABLE $table ALTER v TYPE bigint;\n"
	);
	poll($b, "SELECT state = 'closed' FROM weft.ddl_lock_status");
	$blocker->query_safe('COMMIT');
	$blocker->quit;
	$session->query('SELECT 1');
	is($session->{stderr}, '', "rows on their way: $table");
	$session->quit;
	recovered("rows on their way: $table");
	same_on_all(\@nodes, [$table], "rows on their way: $table");
}

# --- partitions: what a statement does not name ---

query($a, <<'EOS');
CREATE TABLE key (id int PRIMARY KEY);
CREATE TABLE part (id int PRIMARY KEY, k int REFERENCES key, gone int) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE TABLE part3 (id int PRIMARY KEY, k int, gone int);
CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES part);
INSERT INTO key VALUES (1), (2);
INSERT INTO part VALUES (1, 1), (101, 1);
INSERT INTO part3 VALUES (201, 2);
EOS
wait_for_group('g', @nodes);
$session = open_session($a);
$session->query_safe('BEGIN; ALTER TABLE part DETACH PARTITION part2');
waits_for_gate(
	$b,
	'INSERT INTO child VALUES (1, 101)',
	'a row that refers to a partition that goes');
$session->query_safe('COMMIT');
$session->query_safe(
	'BEGIN; ALTER TABLE part ATTACH PARTITION part3 FOR VALUES FROM (200) TO (300)'
);
waits_for_gate(
	$b,
	'DELETE FROM key WHERE id = 2',
	'a row that one of a partition that comes refers to');
$session->query_safe('COMMIT');
wait_for_group('g', @nodes);
$session->query_safe('BEGIN; ALTER TABLE part DROP COLUMN gone');
waits_for_gate(
	$b,
	'CREATE VIEW view_of_part AS SELECT * FROM part',
	'a view of a partitioned table');
waits_for_gate(
	$b,
	'GRANT SELECT ON part TO public',
	'privileges of a partitioned table');

# The gate worker is gone for a second.  A statement that comes later waits for it.
sub refused_without_worker
{
	my ($statement, $what) = @_;
	my $err;

	foreach my $attempt (1 .. 10)
	{
		(undef, undef, $err) = $b->psql('postgres', <<EOS);
SET lock_timeout = '1s';
SELECT pg_terminate_backend(pid, 10000) FROM weft.ddl_gates() WHERE pid <> 0;
$statement;
EOS
		last if $err !~ /lock timeout/;
	}
	like(
		$err,
		qr/could not write to table "part1?" before a schema change of the node group/,
		$what);
	return;
}

refused_without_worker('INSERT INTO part VALUES (2, 2, 2)',
	'no row slips through by way of the partitioned table');
refused_without_worker('UPDATE part SET gone = 2', '... nor is one changed');
$session->query_safe('COMMIT');
recovered('partitions');
same_on_all(\@nodes, [qw(key part1 part2 part3 child)], 'partitions');

# --- the right to refer to a column ---

query($_, 'CREATE ROLE alice') foreach @nodes;
query($a, <<'EOS');
GRANT CREATE ON SCHEMA public TO alice;
GRANT REFERENCES (id) ON key TO alice;
SET ROLE alice;
CREATE TABLE of_alice (id int PRIMARY KEY, k int);
EOS
wait_for_group('g', @nodes);
$session->query_safe(
	'SET ROLE alice; BEGIN; ALTER TABLE of_alice ADD FOREIGN KEY (k) REFERENCES key (id)'
);
waits_for_gate(
	$b,
	'DELETE FROM key WHERE id = 2',
	'a table of whose columns the user may refer to some');
$session->query_safe('ROLLBACK');
$session->quit;
recovered('a column');

# --- the longest time-out ---

query($a,
	'SET weft.ddl_lock_timeout = 2147483647; ALTER TABLE t ADD CONSTRAINT patient CHECK (id > -300)'
);
recovered('the longest time-out');

$_->stop foreach @nodes;
done_testing();
