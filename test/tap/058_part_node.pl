# Parting is interrupted: it is completed, also from another member, or cancelled, and
# no member applies more or less of the node's changes than the others.  If a node is
# gone for good, a warning says which member has how much of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($a, 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i');
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $c);

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $sql);
	return;
}

# Starts a query, and waits until a session there has reached a step of it.
sub start_query
{
	my ($node, $sql, $where, $step) = @_;
	my $session = open_session($node, on_error_stop => 0);

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	poll($where,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%$step(%' AND pid <> pg_backend_pid()"
	);
	return $session;
}

# Cancels it, and waits until its work on other members has ended, too.
sub cancel_query
{
	my ($node, $session) = @_;
	poll($node,
		"SELECT count(pg_cancel_backend(pid)) = 0 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT weft.part_node%' AND pid <> pg_backend_pid()"
	);
	$session->quit;
	poll($_,
		"SELECT count(pg_terminate_backend(pid)) = 0 FROM pg_stat_activity WHERE application_name = 'weft group'"
	) foreach @nodes;
	return;
}

# --- interrupted while "b" cannot apply what "c" has written; then cancelled ---

# Blocks any writer that applies a change of row 1.
my $block = open_session($b);
$block->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
query($c, "UPDATE t SET v = 'first' WHERE id = 1");
my $session =
  start_query($a, "SELECT weft.part_node('c')", $b, 'member_await_end');
query($c, "UPDATE t SET v = 'behind the cut' WHERE id = 2");
is(states($_), 'a active, b active, c parting', 'parting, says ' . $_->name)
  foreach @nodes;
cancel_query($a, $session);
fails(
	$b,
	"SELECT weft.part_node('a')",
	qr/another node is joining or parting/);
fails(
	$a,
	"SELECT weft.part_node('c', timeout := '100 ms')",
	qr/timed out waiting for node "b" to apply what node "c" has committed/);
query($a, "SELECT weft.cancel_part_node('c')");
is(states($_), 'a active, b active, c active', 'cancelled, says ' . $_->name)
  foreach @nodes;
query($a, "SELECT weft.cancel_part_node('c')");
$block->query_safe('ROLLBACK');
query($_,
	'UPDATE t SET v = ' . ord($_->name) . ' WHERE id = ' . ord($_->name) % 10)
  foreach @nodes;
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['t'], 'after parting was cancelled');

# --- past the point of no return ---

# Interrupted again; then completed as far as "b" allows.
$block->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
query($c, "UPDATE t SET v = 'second' WHERE id = 1");
$session =
  start_query($a, "SELECT weft.part_node('c')", $b, 'member_await_end');
query($c, "UPDATE t SET v = 'behind the cut again' WHERE id = 2");
poll($a, "SELECT v = 'second' FROM t WHERE id = 1");
my $forget = open_session($b);
$forget->query_safe(
	"BEGIN; SELECT FROM weft.node_entry WHERE node_name = 'c' FOR UPDATE");
$block->query_safe('ROLLBACK');
poll($c, "SELECT state = 'leaving' FROM weft.node WHERE node_name = 'c'");
poll($b,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%member_forget(%' AND wait_event_type = 'Lock'"
);
cancel_query($a, $session);
$forget->query_safe('ROLLBACK');
is( query($a, 'SELECT v FROM t WHERE id = 2'),
	'behind the cut',
	'no change from after the second cut on one of them');
fails(
	$b,
	"SELECT weft.cancel_part_node('c')",
	qr/parting of this node cannot be cancelled: it is leaving/);
query($b, "SELECT weft.part_node('c')");
is(leftovers($c), '', 'nothing is left on the node that parted');
like(leftovers($a) . leftovers($b),
	qr/^(?!.*(_c\b|_c_))/s, 'nothing of it is left on the others');
is(states($_), 'a active, b active', 'completed, says ' . $_->name)
  foreach ($a, $b);
is(query($_, 'SELECT v FROM t WHERE id = 1'),
	'second', 'all from before is on ' . $_->name)
  foreach ($a, $b);
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'after parting was completed');
fails(
	$a,
	"SELECT weft.part_node('c')",
	qr/node "c" is not a member of the node group/);

# --- two sessions at once ---

query($c, 'DROP TABLE t');
join_group($c, $a, 'g');
$block->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 3');
query($c, "UPDATE t SET v = 'third' WHERE id = 3");
$session =
  start_query($a, "SELECT weft.part_node('c')", $b, 'member_await_end');
fails(
	$b,
	"SELECT weft.part_node('c', timeout := '100 ms')",
	qr/timed out|is no longer parting/);
$session->quit;
$block->query_safe('ROLLBACK');
poll($_,
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%weft.part_node%' AND state = 'active' AND pid <> pg_backend_pid()"
) foreach @nodes;
query($a, "SELECT weft.part_node('c')") if states($a) =~ /c/;
is(states($_), 'a active, b active', 'parted once, says ' . $_->name)
  foreach ($a, $b);
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'after two sessions at once');

# --- gone for good ---

query($c, 'DROP TABLE t');
join_group($c, $a, 'g');
$block->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 4');
query($c, "UPDATE t SET v = 'fourth' WHERE id = 4");
poll($a, "SELECT v = 'fourth' FROM t WHERE id = 4");
$c->stop('immediate');
my ($ret, $out, $err) =
  $b->psql('postgres', "SELECT weft.part_node('c', force := true)");
like(
	$err,
	qr/WARNING:  members have applied different changes of node "c".*DETAIL:  Changes are applied as follows: node "a" up to LSN \S+, node "b" up to LSN \S+\..*Compare tables/s,
	'which member has how much of a node that is gone');
$block->query_safe('ROLLBACK');
is(states($_), 'a active, b active', 'parted by force, says ' . $_->name)
  foreach ($a, $b);
$c->start;
query($c, 'SELECT weft.leave_node_group()');
query($c, 'DROP TABLE t');
query($_, 'UPDATE t SET v = 5 WHERE id = 4') foreach ($a, $b);
wait_for_group('g', $a, $b);
join_group($c, $a, 'g');
wait_for_group('g', @nodes);

# the same, but all of it is applied: there is nothing to report
query($c, "UPDATE t SET v = 'fifth' WHERE id = 5");
poll($_, "SELECT v = 'fifth' FROM t WHERE id = 5") foreach ($a, $b);
$c->stop('immediate');
($ret, $out, $err) =
  $b->psql('postgres', "SELECT weft.part_node('c', force := true)");
is($err, '', 'all members have the same changes of a node that is gone');
same_on_all([ $a, $b ], ['t'], 'after parting by force');

# and if another node has its address now, that node is left alone
$c->start;
query($c, 'SELECT weft.leave_node_group()');
query($c, 'DROP TABLE t');
join_group($c, $a, 'g');
query($c, "UPDATE t SET v = 'sixth' WHERE id = 6");
poll($_, "SELECT v = 'sixth' FROM t WHERE id = 6") foreach ($a, $b);
$c->stop('immediate');
query($a, sprintf "SELECT weft.set_node_dsn('c', \$\$%s\$\$)", dsn($b));
fails($a, "SELECT weft.cancel_part_node('c')", qr/it is another node/);
query($a, "SELECT weft.part_node('c')");
is( states($_),
	'a active, b active',
	'parted without asking it, says ' . $_->name) foreach ($a, $b);
query($b, "UPDATE t SET v = 'seventh' WHERE id = 7");
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'the other node is still a member');

$block->quit;
$forget->quit;
$_->stop foreach ($a, $b);
done_testing();
