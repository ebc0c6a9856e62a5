# weft.compare_node(): three members that all accept writes, and change the same rows, with
# counters and deletes.  Comparisons under load find no difference; rows that are
# planted on one member, without being replicated, are found, and nothing else.
#
# WEFT_COMPARISONS sets the number of comparisons (default 6).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $comparisons = $ENV{WEFT_COMPARISONS} // 6;
my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<EOC);
CREATE TABLE accounts (id int PRIMARY KEY, v int, t text);
CREATE TABLE counters (id int PRIMARY KEY, total bigint NOT NULL, t text);
CREATE TABLE log (client text, t timestamptz, v int);
CREATE TABLE "Quoted, ""Ä""" ("k 1" text, k2 numeric, v int, PRIMARY KEY ("k 1", k2));
ALTER TABLE counters REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT i, 0, 'first' FROM generate_series(1, 5000) i;
INSERT INTO counters SELECT i, 0, 'first' FROM generate_series(1, 200) i;
INSERT INTO "Quoted, ""Ä""" SELECT 'k' || i, i / 10.0, i FROM generate_series(1, 500) i;
EOC
create_group($a, 'g');
join_group($b, $a, 'g');
join_group($c, $a, 'g');
query($_, "SELECT weft.set_delta_columns('counters', '{total}')")
  foreach @nodes;

# Changes what the other members do not get, and what conflicts do not see.
sub plant
{
	my ($node, $sql) = @_;
	query($node, <<EOC);
SELECT pg_replication_origin_create('planted') WHERE NOT EXISTS
	(SELECT FROM pg_replication_origin WHERE roname = 'planted');
SELECT pg_replication_origin_session_setup('planted');
$sql
EOC
}

# Compares one node with another one; returns the number of the comparison.
sub compare
{
	my ($node, $other, $arguments) = @_;
	my ($ret, $id, $err) = $node->psql(
		'postgres',
		sprintf("CALL weft.compare_node('%s'%s)",
			$other->name, $arguments // ''),
		timeout => 300);
	die $err if $ret;
	note($err);
	return $id;
}

sub differences
{
	my ($node, $id) = @_;
	return query($node,
		"SELECT relation, kind, key, columns FROM weft.difference WHERE comparison = $id ORDER BY relation::text, kind, key::text"
	);
}

sub unfinished
{
	my ($node, $id) = @_;
	return query($node,
		"SELECT table_name, status, reason FROM weft.comparison_table WHERE comparison = $id AND (status <> 'done' OR NOT complete)"
	);
}

my $id = compare($b, $a);
is(differences($b, $id), '', 'at rest: no difference');
is(unfinished($b, $id), '', 'and all tables are compared');
is( query(
		$b,
		"SELECT node, status FROM weft.comparison WHERE comparison = $id"),
	'a|finished',
	'weft.comparison names the node');

# under load
my $numbers =
  "\\set a random(1, 5000)\n\\set hot random(1, 50)\n\\set c random(1, 200)\n\\set q random(1, 500)\n";
my $scripts = {
	"$numbers UPDATE accounts SET v = v + 1, t = 'u' || :a WHERE id = :a;\n"
	  => 20,
	"$numbers UPDATE accounts SET v = :c WHERE id = :hot;\n" => 10,
	"$numbers DELETE FROM accounts WHERE id = :hot;\n" => 5,
	"$numbers INSERT INTO accounts VALUES (:hot, :c, 'new') ON CONFLICT DO NOTHING;\n"
	  => 5,
	"$numbers BEGIN;\nDELETE FROM accounts WHERE id = :a;\nINSERT INTO accounts VALUES (:a, 0, 'again') ON CONFLICT DO NOTHING;\nEND;\n"
	  => 5,
	"$numbers DELETE FROM accounts WHERE id = :a;\n" => 2,
	"$numbers INSERT INTO accounts VALUES (:a, 0, 'back') ON CONFLICT DO NOTHING;\n"
	  => 3,
	"$numbers UPDATE counters SET total = total + :c WHERE id = :c;\n" => 20,
	"$numbers UPDATE counters SET t = 't' || :a WHERE id = :c;\n" => 5,
	"$numbers INSERT INTO log VALUES (pg_backend_pid() || 'x', clock_timestamp(), :a);\n"
	  => 5,
	"$numbers UPDATE \"Quoted, \"\"Ä\"\"\" SET v = v + 1 WHERE \"k 1\" = 'k' || :q;\n"
	  => 5,
};
my @load = map {
	start_pgbench($_, $scripts, '-c', 3, '-T', 3600, '--rate=100',
		'--max-tries=0')
} @nodes;
my ($found, $unfinished) = (0, '');
foreach my $i (1 .. $comparisons)
{
	my ($node, $other) = @nodes[ $i % 3, ($i + 1 + $i % 2) % 3 ];
	$id = compare($node, $other);
	my $differences = query($node,
		"SELECT * FROM weft.difference WHERE comparison = $id LIMIT 20");
	diag("false differences: $differences") if $differences;
	$found++ if $differences;
	note('not complete: ' . unfinished($node, $id));
	$unfinished .= query($node,
		"SELECT table_name, status, reason FROM weft.comparison_table WHERE comparison = $id AND status <> 'done'"
	);
}
is($found, 0, 'under load, no comparison finds a difference');
is($unfinished, '', 'and all tables are compared');

# planted under load; these rows are not changed by it
plant($b, "INSERT INTO accounts VALUES (6001, 1, 'only on b')");
plant($b, "INSERT INTO log VALUES ('only on b', NULL, 1), ('only on b', NULL, 1)");
plant($a, "INSERT INTO accounts VALUES (6002, 1, 'only on a')");
plant($a, "INSERT INTO counters VALUES (301, 1, 'x')");
plant($b, "INSERT INTO counters VALUES (301, 2, 'x')");
plant($a, "INSERT INTO \"Quoted, \"\"Ä\"\"\" VALUES ('o''k', 1.00, 7)");
plant($b, "INSERT INTO \"Quoted, \"\"Ä\"\"\" VALUES ('o''k', 1.0, 7)");
plant($c, "INSERT INTO accounts VALUES (6003, 1, 'only on c')");
my $expected = <<'EOS' =~ s/\n$//r;
"Quoted, ""Ä"""|missing here|{"k2": "1.00", "k 1": "o'k"}|
"Quoted, ""Ä"""|missing there|{"k2": "1.0", "k 1": "o'k"}|
accounts|missing here|{"id": "6002"}|
accounts|missing there|{"id": "6001"}|
counters|different|{"id": "301"}|{total}
log|missing there||
EOS
$id = compare($b, $a);
is(differences($b, $id), $expected,
	'planted rows are found under load, and no others');
is( query(
		$b,
		"SELECT row_count FROM weft.difference WHERE comparison = $id AND relation = 'log'::regclass"
	),
	2,
	'and counted');
is( query(
		$b,
		"SELECT local_origin FROM weft.difference WHERE comparison = $id AND relation = 'counters'::regclass"
	),
	'planted',
	'with the local writer');
$id = compare($a, $b, ", tables => '{accounts}', jobs => 1");
is( differences($a, $id),
	"accounts|missing here|{\"id\": \"6001\"}|\naccounts|missing there|{\"id\": \"6002\"}|",
	'and from the other side, for one table');

# a planted difference in rows that the load changes: it remains, until a change overwrites it
plant($b, 'DELETE FROM accounts WHERE id = 5000');
ok(running($_), 'the load is still running') foreach @load;
end_load($_) foreach @load;
wait_for_group('g', @nodes);
$id = compare($b, $a);
is(unfinished($b, $id), '', 'without load, every comparison is complete');
is(same_on_all([ $a, $c ], [], 'nothing'), 1, 'sane');

is(errors_logged($_), '', 'no errors on ' . $_->name) foreach @nodes;

done_testing();
