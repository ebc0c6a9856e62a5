# A member is started from an older state of its files, such as a snapshot of its disk, which looks like the member
# itself: the others have transactions of it that it lacks.  They do not follow it, even when its WAL has
# reached the position again, and say what to do.

use strict;
use warnings FATAL => 'all';

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

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
query($a, "INSERT INTO t VALUES (1, 'before the snapshot')");
wait_for_group('g', $a, $b);

my $snapshot = $a->basedir . '/snapshot';
$a->stop('immediate');
PostgreSQL::Test::RecursiveCopy::copypath($a->data_dir, $snapshot);
chmod 0700, $snapshot;
$a->start;
wait_for_group('g', $a, $b);
query($a,
	"INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(100, 1000) g"
);
query($b, "INSERT INTO t VALUES (2, 'of b, after the snapshot')");
wait_for_group('g', $a, $b);
my $position = query($b, $applied);

$a->stop('immediate');
rename $a->data_dir, $a->basedir . '/lost' or die $!;
rename $snapshot, $a->data_dir or die $!;
my ($log_of_a, $log_of_b) = (0, -s $b->logfile);
$a->start;
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

$_->stop foreach $a, $b;
done_testing();
