# A node that was parted by force while it was down comes back and does not know that it
# was parted, when another node has its name.  It neither takes what belongs to the other
# node, nor parts members of the group.  Two nodes that part at once do not wait for each
# other.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $old, $new) = map { new_member($_) } qw(a b c d);
my @nodes = ($a, $b, $new);

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $old);

sub all_active
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(states($_), 'a active, b active, c active', "$what, says " . $_->name)
	  foreach @nodes;
	return;
}

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $sql);
	return;
}

$old->stop('immediate');
query($a, "SELECT weft.part_node('c', force := true)");
query($new, sprintf "SELECT weft.create_node('c', \$\$%s\$\$)", dsn($new));
join_group($new, $a, 'g');
all_active('the new node has joined');

# --- it does not take the slots of its namesake ---

# Nobody else uses them.
$new->stop;
$old->start;
query($a, "INSERT INTO t VALUES (1, 'a')");
query($b, "INSERT INTO t VALUES (2, 'b')");
poll($old, <<'EOS');
SELECT count(*) = 2 FROM weft.stat_get_last_error()
WHERE last_error LIKE 'the publisher of subscription % does not know this node%'
EOS
is(rows($old, 't'), '', 'the old node receives nothing');
$new->start;
wait_for_apply($a, $new, 'weft_g_a_c');
wait_for_apply($b, $new, 'weft_g_b_c');
same_on_all(\@nodes, ['t'], 'nothing is lost for the new node');

# --- it does not part members ---

fails(
	$old,
	"SELECT weft.part_node('b', force := true)",
	qr/node "a" does not part node "b" for a node that is not a member/);
all_active('a stale member parts another one by force');
fails(
	$old,
	"SELECT weft.part_node('b')",
	qr/does not part node "b" for a node that is not a member/);
all_active('a stale member parts another one');
fails(
	$old,
	"SELECT weft.part_node('c', timeout := '5 s')",
	qr/node "a" knows no node "c", or another one of that name/);
all_active('a stale member parts');
query($old, 'SELECT weft.leave_node_group()');
is(leftovers($old), '', 'it has nothing left');
query($_, "INSERT INTO t VALUES (10 + ascii('" . $_->name . "'), '')")
  foreach @nodes;
wait_for_apply($a, $new, 'weft_g_a_c');
wait_for_apply($b, $new, 'weft_g_b_c');
wait_for_apply($new, $a, 'weft_g_c_a');
wait_for_apply($new, $b, 'weft_g_c_b');
wait_for_group('g', $a, $b);
same_on_all(\@nodes, ['t'], 'the group continues');

# --- two nodes part at once ---

my $block = open_session($a);
$block->query_safe(
	"BEGIN; SELECT FROM weft.node_entry WHERE node_name = 'c' FOR UPDATE");
my $first = open_session($a, on_error_stop => 0);
$first->query_until(qr/begun/, "\\echo begun\nSELECT weft.part_node('c');\n");
poll($a,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%member_part(%' AND wait_event_type = 'Lock'"
);
# Either it waits behind the first one, or it completes.
my $second = open_session($b, on_error_stop => 0);
$second->query_until(qr/begun/,
	"\\echo begun\nSELECT weft.part_node('a');\n");
my $waiting =
  "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
my $parting =
  "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT weft.part_node%'";
for (my $i = 0; $i < $PostgreSQL::Test::Utils::timeout_default * 10; $i++)
{
	last
	  if query($a, $waiting) > 1
	  || query($b, $waiting)
	  || !query($b, $parting);
	select undef, undef, undef, 0.1;
}
$block->query_safe('ROLLBACK');
poll($_, "SELECT ($parting) = 0") foreach ($a, $b);
my $left = states($b);
like($left, qr/^(a|b) active, (b|c) active$/, 'one of the two has parted');
$_->quit foreach ($block, $first, $second);
$_->stop foreach ($old, @nodes);
done_testing();
