# A member is started from an older state of its files, such as a snapshot of its disk, which looks like the member
# itself: the others have transactions of it that it lacks.  They do not follow it, even when its WAL has
# reached the position again, or on another timeline, and say what to do.  A member that was away meanwhile is told.
# The same if it lacks only what others have written.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);
my $problem =
  qr/node "a" was promoted or restored without transactions of its own/;
my $applied =
  "SELECT remote_lsn FROM pg_replication_origin_status s JOIN pg_subscription ON s.external_id = 'pg_' || oid WHERE subname LIKE 'weft_g_a_%'";

sub take_snapshot
{
	my $snapshot = copy_files($a);
	wait_for_group('g', $a, $b, $c);
	return $snapshot;
}

sub remedy
{
	return query($b, "SELECT remedy FROM weft.health() WHERE id = 'H015'");
}

sub cannot_accept
{
	my ($arguments, $problem, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($result, $out, $err) =
	  $b->psql('postgres', "SELECT weft.accept_promotion($arguments)");

	like($err, $problem, $what);
	return;
}

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
query($a, "INSERT INTO t VALUES (1, 'before the snapshot')");
wait_for_group('g', $a, $b, $c);

my $snapshot = take_snapshot();
query($a,
	"INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(100, 1000) g"
);
query($b, "INSERT INTO t VALUES (2, 'of b, after the snapshot')");
wait_for_group('g', $a, $b, $c);
my $position = query($b, $applied);
my $position_of_c = query($c, $applied);

$c->stop;
my ($log_of_a, $log_of_b) = (0, -s $b->logfile);
replace_files($a, $snapshot);
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
$c->start;
$c->wait_for_log(qr/ERROR:  $problem that are applied here/);
is(query($c, $applied),
	$position_of_c, 'a member that connects only now is told');
like(
	query($c, "SELECT remedy FROM weft.health() WHERE id = 'H015'"),
	qr/^Part the node/,
	'and says what to do');
like(
	query(
		$a,
		"SELECT severity || ' ' || problem || ' ' || remedy FROM weft.health() WHERE id = 'H015' AND object = 'a'"
	),
	qr/^error this node was started from an older state of its files, .*they do not follow it Part this node on another one/,
	'so does the member itself');
cannot_accept(
	"'a'",
	qr/ERROR: .*not known.*HINT:  Part that node/s,
	'it cannot be accepted');

# --- the remedy ---

query($b, "SELECT weft.part_node('a', force := true)");
query($a, 'SELECT weft.leave_node_group()');
query($a, 'DROP TABLE t');
join_group($a, $b, 'g');
query($_, 'INSERT INTO t VALUES (' . ($_ == $a ? 6000 : 6001) . ')')
  foreach $a, $b;
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'parted and joined again');
is( query($a, 'SELECT count(*) FROM t'),
	1 + 901 + 1 + 2,
	'what it had sent, and what it lacked, is there');
is(query($_, 'SELECT count(*) FROM weft.promotion_loss'),
	0, $_->name . ' has forgotten it')
  foreach $a, $b, $c;

# --- what it lacks is of the other node: it has written nothing itself ---

$snapshot = take_snapshot();
query($b,
	"INSERT INTO t SELECT g, 'of b' FROM generate_series(7000, 7100) g");
wait_for_group('g', $a, $b, $c);
# b is told how far the WAL of a is.
wait_for_apply($a, $b, 'weft_g_a_b');
$log_of_b = -s $b->logfile;
$c->stop;
my $complete = replace_files($a, $snapshot);
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
is( remedy(),
	'Part the node with weft.part_node(..., force => true), and let it join again.',
	'the remedy');

# --- the snapshot moves to another timeline ---

$a->set_standby_mode;
$a->restart;
$a->promote;
query($a,
	"INSERT INTO t SELECT g, repeat('z', 1000) FROM generate_series(8000, 9000) g"
);
$log_of_b = -s $b->logfile;
$b->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_b);
is(query($b, 'SELECT count(*) FROM t WHERE id >= 8000'),
	0, 'it is not followed on another timeline, either');
cannot_accept("'a'", qr/ERROR: .*not known/,
	'nor by accepting the promotion');

cannot_accept(
	"'a', complete => true",
	qr/ERROR:  node "b" has not met another server of node "a"/,
	'nor by saying that it lacks nothing, which it denies');
is( remedy(),
	'Part the node with weft.part_node(..., force => true), and let it join again.',
	'the same remedy');
my $log_of_c = -s $c->logfile;
$c->start;
$c->wait_for_log(qr/ERROR:  $problem that are applied here/, $log_of_c);
is(query($c, 'SELECT count(*) FROM t WHERE id >= 8000'),
	0, 'another member is told there, too');

# --- another server, which lacks nothing, takes its place ---

replace_files($a, $complete);
# The snapshot was on the second timeline.
foreach my $timeline (2, 3)
{
	$a->set_standby_mode;
	$a->restart;
	$a->promote;
	query($a, 'SELECT weft.own_copy()');
}
query($a, "INSERT INTO t VALUES (9500, 'complete')");
foreach my $node ($b, $c)
{
	poll($node,
		"SELECT remedy LIKE 'If the server that node \"a\" is on now was not made from%' FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
	);
	query($node, "SELECT weft.accept_promotion('a', complete => true)");
}
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'then it is followed');
# What the members had confirmed to each other may be reported.
is( query(
		$_,
		"SELECT count(*) FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
	),
	0,
	$_->name . ' has no error') foreach $a, $b, $c;
cannot_accept(
	"'a', complete => true",
	qr/ERROR:  node "b" has not met another server of node "a"/,
	'there is nothing more to say');

$_->stop foreach $a, $b, $c;
done_testing();
