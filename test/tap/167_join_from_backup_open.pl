# A transaction on a copy of a member began before the copy became a node of its own, and writes afterwards: its
# rows are those of the new node.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my ($a, $b) = map { new_member($_) } qw(a b);
my $c = PostgreSQL::Test::Cluster->new('c');
my $point = 'weft-join-step';

query($a, 'CREATE EXTENSION weft_injection');
query($b, 'CREATE EXTENSION weft_injection');
query($a, 'CREATE TABLE t (id int PRIMARY KEY, v int)');
create_group($a, 'g');
join_group($b, $a, 'g');
query($a, 'INSERT INTO t VALUES (1, 0)');
wait_for_group('g', $a, $b);
query($a, sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
	dsn($c));
$a->backup('bk');
$c->init_from_backup($a, 'bk', has_streaming => 1);
$c->start;
$a->wait_for_catchup($c, 'replay');
$c->promote;

# Its slots are there: they would wait for the transaction.
query($c, "SELECT injection_attach('$point', 'hold')");
query($c,
	sprintf "SELECT weft.join_node_group(\$\$%s\$\$, from_backup := true)",
	dsn($a));
my ($pid) = held_at($c, $point);
is(query($c, "SELECT query FROM pg_stat_activity WHERE pid = $pid"),
	'make_copy_slots', 'the copy has made its slots');
my $session = open_session($c);
my $xid = $session->query_safe('BEGIN; SELECT pg_current_xact_id()');
release_point($c, $point);
poll($c, "SELECT node_name = 'c' FROM weft.node WHERE is_local");
$session->query_safe('INSERT INTO t VALUES (2, 0); COMMIT');
$session->quit;

wait_for_join($c);
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'all members have the row');
is(query($c, 'SELECT xmin::text FROM t WHERE id = 2'),
	$xid, 'the transaction has written it');
is( query(
		$c,
		"SELECT bool_and(until <= '$xid'::xid8) FROM weft.past_origin WHERE origin = 0"
	),
	't',
	'it counts as the new node\'s');
is( query(
		$c,
		'SELECT bool_and(t.xmin::text::bigint < until::text::bigint) FROM t, weft.past_origin WHERE origin = 0 AND id = 1'
	),
	't',
	'older ones as the copied node\'s');

$_->stop foreach ($a, $b, $c);
done_testing();
