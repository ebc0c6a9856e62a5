# A member is started from an older state of its files while another node joins through a third one.  The third one finds
# it; when the joining node connects, the member has written as much again.  The joining node must not follow it: it
# would leave out what the member has written first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my ($step_point, $copy_point) = ('weft-join-step', 'weft-copy-locked');
my ($a, $b, $c) =
  map { new_member($_, conf => "weft.min_parallel_copy_size = 0\n") }
  qw(a b c);

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
query($a, "INSERT INTO t VALUES (1, 'before the snapshot')");
wait_for_group('g', $a, $b);

# The older state has the slot for the new node.
attach_point($c, $step_point);
start_join($c, $b, 'g');
hold_in_step($c, 'make_slots');
my $snapshot = copy_files($a);

# What the third node copies
query($a, "INSERT INTO t SELECT i, 'own' FROM generate_series(1001, 2000) i");
wait_for_apply($a, $b, 'weft_g_a_b');
my $position = query($a, 'SELECT pg_current_wal_lsn()');
attach_point($c, $copy_point);
release_point($c, $step_point);
held_at($c, $copy_point);

replace_files($a, $snapshot);
poll($b,
	"SELECT count(*) = 1 FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
);
query($a, "INSERT INTO t SELECT i, 'new' FROM generate_series(3001, 6000) i");
ok(query($a, "SELECT pg_current_wal_flush_lsn() > '$position'"),
	'the member has written as much again');
release_point($c, $copy_point);

poll($c,
	"SELECT count(*) = 1 FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
);
like(
	query($c, "SELECT problem FROM weft.health() WHERE id = 'H015'"),
	qr/node "a" was promoted or restored without transactions of its own that this node has/,
	'the joining node is told');
is(query($c, "SELECT count(*) FROM t WHERE v = 'new'"),
	0, 'and does not follow');

# --- the remedy ---

query($b, "SELECT weft.part_node('c', force => true)");
query($b, "SELECT weft.part_node('a', force => true)");
foreach my $node ($a, $c)
{
	query($node, 'SELECT weft.leave_node_group()');
	query($node, 'DROP TABLE t');
	join_group($node, $b, 'g');
}
query($_->[0], "INSERT INTO t VALUES ($_->[1], 'joined')")
  foreach [ $a, 7001 ], [ $b, 7002 ], [ $c, 7003 ];
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'parted and joined again');
is( query($c, 'SELECT count(*) FROM t'),
	1 + 1000 + 3,
	'with what the members had that remained');

$_->stop foreach $a, $b, $c;
done_testing();
