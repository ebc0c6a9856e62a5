# A member is started from an older state of its files, such as a snapshot of its disk, which looks like the member
# itself: the others have transactions of it that it lacks.  They do not follow it, even when its WAL has
# reached the position again, or on another timeline, and say what to do.  The same if it lacks only what others
# have written.

use strict;
use warnings FATAL => 'all';

use File::Path qw(remove_tree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);
my $problem =
  qr/node "a" was promoted or restored without transactions of its own/;
my $applied =
  "SELECT remote_lsn FROM pg_replication_origin_status s JOIN pg_subscription ON s.external_id = 'pg_' || oid WHERE subname = 'weft_g_a_b'";

my $snapshot = $a->basedir . '/snapshot';
my $lost = $a->basedir . '/lost';

sub take_snapshot
{
	$a->stop('immediate');
	PostgreSQL::Test::RecursiveCopy::copypath($a->data_dir, $snapshot);
	chmod 0700, $snapshot;
	$a->start;
	wait_for_group('g', $a, $b);
	return;
}

# Starts it in place of what the node has now.
sub start_snapshot
{
	$a->stop('immediate');
	remove_tree($lost);
	rename $a->data_dir, $lost or die $!;
	rename $snapshot, $a->data_dir or die $!;
	$a->start;
	return;
}

sub remedy
{
	return query($b, "SELECT remedy FROM weft.health() WHERE id = 'H015'");
}

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
query($a, "INSERT INTO t VALUES (1, 'before the snapshot')");
wait_for_group('g', $a, $b);

take_snapshot();
query($a,
	"INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(100, 1000) g"
);
query($b, "INSERT INTO t VALUES (2, 'of b, after the snapshot')");
wait_for_group('g', $a, $b);
my $position = query($b, $applied);

my ($log_of_a, $log_of_b) = (0, -s $b->logfile);
start_snapshot();
query($a, "INSERT INTO t VALUES (2000, 'after the restart')");
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
$a->wait_for_log(qr/$problem that node "b" has/, $log_of_a);
like(
	query(
		$b,
		"SELECT severity || problem || remedy FROM weft.health() WHERE id = 'H015'"
	),
	qr/^error$problem that this node has, between an unknown position and \S+; its changes are not applied.*weft\.part_node/,
	'the health check says what to do');

# --- its WAL reaches the position ---

query($a,
	"INSERT INTO t SELECT g, repeat('y', 1000) FROM generate_series(3000, 5000) g"
);
is(query($a, "SELECT pg_current_wal_flush_lsn() > '$position'"),
	't', 'its WAL reaches the position');
$log_of_b = -s $b->logfile;
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
is(query($b, 'SELECT count(*) FROM t WHERE id >= 2000'),
	0, 'nothing of it is applied');
is(query($b, $applied), $position, 'the position has not moved');
my ($result, $out, $err) =
  $b->psql('postgres', "SELECT weft.accept_promotion('a')");
like(
	$err,
	qr/ERROR: .*not known.*HINT:  Part that node/s,
	'it cannot be accepted');

# --- the remedy ---

query($b, "SELECT weft.part_node('a', force := true)");
query($a, 'SELECT weft.leave_node_group()');
query($a, 'DROP TABLE t');
join_group($a, $b, 'g');
query($_, 'INSERT INTO t VALUES (' . ($_ == $a ? 6000 : 6001) . ')')
  foreach $a, $b;
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'parted and joined again');
is( query($a, 'SELECT count(*) FROM t'),
	1 + 901 + 1 + 2,
	'what it had sent, and what it lacked, is there');
is(query($_, 'SELECT count(*) FROM weft.promotion_loss'),
	0, $_->name . ' has forgotten it')
  foreach $a, $b;

# --- what it lacks is of the other node: it has written nothing itself ---

take_snapshot();
query($b,
	"INSERT INTO t SELECT g, 'of b' FROM generate_series(7000, 7100) g");
wait_for_group('g', $a, $b);
# b is told how far the WAL of a is.
wait_for_apply($a, $b, 'weft_g_a_b');
$log_of_b = -s $b->logfile;
start_snapshot();
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
is( remedy(),
	'Part the node with weft.part_node(..., force => true), and let it join again.',
	'the remedy');

# --- the snapshot moves to another timeline ---

$a->set_standby_mode;
$a->restart;
$a->promote;
poll($b,
	"SELECT remedy LIKE 'If the server that node \"a\" is on now was not made from%' FROM weft.health() WHERE id = 'H015'"
);
query($a,
	"INSERT INTO t SELECT g, repeat('z', 1000) FROM generate_series(8000, 9000) g"
);
$log_of_b = -s $b->logfile;
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
is(query($b, 'SELECT count(*) FROM t WHERE id >= 8000'),
	0, 'it is not followed on another timeline, either');
($result, $out, $err) =
  $b->psql('postgres', "SELECT weft.accept_promotion('a')");
like($err, qr/ERROR: .*not known/, 'nor by accepting the promotion');

# Somebody says that this is another server, which lacks nothing.
query($b, "SELECT weft.accept_promotion('a', complete => true)");
poll($b, 'SELECT count(*) = 1001 FROM t WHERE id >= 8000');
pass('then it is followed');
poll($b,
	"SELECT string_agg(severity, ',') = 'warning' FROM weft.health() WHERE id = 'H015'"
);
pass('and what it has confirmed and lacks is found by comparing');
($result, $out, $err) =
  $b->psql('postgres', "SELECT weft.accept_promotion('a', complete => true)");
like(
	$err,
	qr/ERROR:  node "b" has not met another server of node "a"/,
	'there is nothing more to say');

$_->stop foreach $a, $b;
done_testing();
