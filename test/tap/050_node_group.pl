# Node groups: three nodes, writes on all of them, a schema change, parting.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE SCHEMA other;
CREATE TABLE other.u (id bigint PRIMARY KEY, v int DEFAULT 3, w int GENERATED ALWAYS AS (v * 2) STORED);
CREATE INDEX ON other.u (v);
CREATE SEQUENCE other.s START 42;
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES t);
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200);
INSERT INTO t SELECT i, E'row\t\\' || i FROM generate_series(1, 1000) i;
INSERT INTO other.u SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO child VALUES (1, 1);
INSERT INTO parts SELECT i, i FROM generate_series(50, 150) i;
SELECT nextval('other.s');
EOS
create_group($a, 'g');
is( query(
		$a,
		'SELECT node_name, node_id, state, node_group_name FROM weft.node'),
	'a|1|active|g',
	'a group of one');

join_group($b, $a, 'g');
my @tables = qw(t other.u child parts);
same_on_all([ $a, $b ], \@tables, 'after the first join');
is(query($b, "SELECT nextval('other.s')"), 43, 'sequences are copied');
is(query($b, "SELECT count(*) FROM pg_indexes WHERE schemaname = 'other'"),
	2, 'so are indexes');

join_group($c, $b, 'g');
same_on_all([ $a, $b, $c ], \@tables, 'after the second join');
foreach my $node ($a, $b, $c)
{
	is( query(
			$node,
			"SELECT string_agg(concat_ws(' ', node_name, node_id, state), ', ' ORDER BY node_id) FROM weft.node"
		),
		'a 1 active, b 2 active, c 3 active',
		'the members on ' . $node->name);
	poll($node,
		"SELECT string_agg(DISTINCT state, ',') = 'streaming' AND count(*) = 4 FROM weft.node_replication"
	);
}

poll($b,
	"SELECT string_agg(from_node || to_node, ' ' ORDER BY from_node, to_node) = 'ab ac ba bc ca cb' AND bool_and(state = 'streaming' AND num_writers = 2) FROM weft.node_group_replication()"
);

# Changes on all of them; each change reaches all.
foreach my $node ($a, $b, $c)
{
	my $id = 2000 + 10 * ord $node->name;
	query($node, <<EOS);
INSERT INTO t VALUES ($id, 'x');
INSERT INTO child VALUES ($id, $id);
UPDATE other.u SET v = $id WHERE id = @{[ ord $node->name ]};
DELETE FROM t WHERE id = @{[ ord($node->name) + 500 ]};
INSERT INTO parts VALUES (@{[ ord($node->name) - 80 ]}, 0);
EOS
}
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], \@tables, 'after changes on all');
is(query($c, 'SELECT count(*) FROM t WHERE id > 2000'),
	3, 'nothing is missing');

# The number of writers is set through any member.
query($c,
	"SELECT weft.alter_node_group_config(node_group_name := 'g', num_writers := 3)"
);
foreach my $node ($a, $b, $c)
{
	poll($node,
		"SELECT count(*) = 2 AND bool_and(num_writers = 3) FROM weft.node_replication WHERE to_node = '@{[ $node->name ]}'"
	);
	is(query($node, 'SELECT num_writers FROM weft.node_group'),
		3, 'writers on ' . $node->name);
}
foreach ([ "'g', -1", qr/invalid number of writers: -1/ ],
	[ "'h', 2", qr/this database is not a member of node group "h"/ ])
{
	my ($arguments, $message) = @$_;
	my ($ret, $out, $err) =
	  $a->psql('postgres', "SELECT weft.alter_node_group_config($arguments)");
	like($err, $message, "alter_node_group_config($arguments)");
}

# Resolvers are set through any member.
query($b,
	"SELECT weft.alter_node_group_set_conflict_resolver('g', 'insert_exists', 'keep_local')"
);
is( query(
		$_,
		'SELECT subname, conflict_type, conflict_resolver FROM weft.conflict_resolver'
	),
	'|insert_exists|keep_local',
	'resolvers on ' . $_->name) foreach ($a, $b, $c);

# A new table that was created on each member.
query_all(
	[ $a, $b, $c ],
	'SET weft.ddl_replication = off; CREATE TABLE later (id int PRIMARY KEY)'
);
query($b, "SELECT weft.refresh_node_group('g')");
query($_, 'INSERT INTO later VALUES (' . ord($_->name) . ')')
  foreach ($a, $b, $c);
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['later'], 'a table that was created later');
is(query($a, 'SELECT count(*) FROM later'), 3, 'all of its rows');

# The extension's tables are not replicated.
is( query(
		$a,
		"SELECT count(*) FROM pg_publication_tables WHERE schemaname = 'weft' AND tablename <> 'ddl_queue'"
	),
	0,
	'tables of the extension are not replicated');

# A node parts, at the request of another one; then the others continue.
query($b, "INSERT INTO t VALUES (9001, 'from b')");
query($a, "SELECT weft.part_node('b')");
is(leftovers($b), '', 'nothing is left on the node that parted');
unlike(leftovers($_), qr/_b\b|_b_/, 'nothing of it is left on ' . $_->name)
  foreach ($a, $c);
is(query($_, 'SELECT count(*) FROM t WHERE id = 9001'),
	1, 'what it wrote is on ' . $_->name)
  foreach ($a, $c);
query($a, "INSERT INTO t VALUES (9002, 'from a')");
query($c, "INSERT INTO t VALUES (9003, 'from c')");
wait_for_group('g', $a, $c);
same_on_all([ $a, $c ], [ @tables, 'later' ], 'after parting');

# It joins again with its old rows, which is refused until it is empty.
my ($ret, $out, $err) =
  $b->psql('postgres', sprintf "SELECT weft.join_node_group(\$\$%s\$\$)",
	dsn($a));
like(
	$err,
	qr/table \S+ on node "b" is not empty/,
	'a node with rows cannot join') or diag $err;
query($b, 'TRUNCATE t, child, other.u, parts, later');
join_group($b, $c, 'g');
same_on_all(
	[ $a, $b, $c ],
	[ @tables, 'later' ],
	'joined again, with tables that existed');
is( query(
		$b,
		"SELECT string_agg(DISTINCT tgname, ', ') FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgname LIKE 'weft%'"
	),
	'weft_record_delete, weft_record_key_change',
	'deletes are remembered');
is(query($b, 'SELECT node_id FROM weft.node WHERE is_local'),
	4, 'with a new number');

# A node that is gone for good.
$c->stop('immediate');
($ret, $out, $err) = $a->psql('postgres', "SELECT weft.part_node('c')");
like($err, qr/could not connect to node "c"/,
	'a node that cannot be reached');
is( query(
		$a,
		"SELECT from_node, to_node, last_error ~ 'could not connect' FROM weft.node_group_replication() WHERE state = 'unreachable' ORDER BY 1"
	),
	"a|c|t\nb|c|t",
	'it is told that the node is unknown');
query($a, "SELECT weft.part_node('c', force := true)");
unlike(leftovers($_), qr/_c\b|_c_/, 'nothing of it is left on ' . $_->name)
  foreach ($a, $b);
query($a, "INSERT INTO t VALUES (9004, 'from a')");
query($b, "INSERT INTO t VALUES (9005, 'from b')");
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], [ @tables, 'later' ], 'after parting by force');
$c->start;
query($c, 'SELECT weft.leave_node_group()');
is(leftovers($c), '',
	'nothing is left on a node that was parted by force, and has left the group'
);
$c->stop;

# The last nodes leave at their own request.
query($b, "SELECT weft.part_node('b')");
query($a, "SELECT weft.part_node('a')");
is(leftovers($_), '', 'nothing is left on ' . $_->name) foreach ($a, $b);
query($a, "SELECT weft.drop_node('a')");
is(query($a, 'SELECT count(*) FROM weft.node'), 0, 'and no node');

$_->stop foreach ($a, $b);
done_testing();
