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

# Members get each other's changes late, so that many rows differ at a cut.
my @nodes = map { new_member($_, conf => <<EOC) } qw(a b c);
synchronous_commit = off
wal_writer_delay = 300ms
EOC
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
		sprintf(
			"CALL weft.compare_node('%s'%s)",
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
		$b, "SELECT node, status FROM weft.comparison WHERE comparison = $id"
	),
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
my ($found, $unfinished, $looked_at) = (0, '', 0);
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
plant($b,
	"INSERT INTO log VALUES ('only on b', NULL, 1), ('only on b', NULL, 1)");
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
is(differences($b, $id),
	$expected, 'planted rows are found under load, and no others');
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

ok(running($_), 'the load is still running') foreach @load;
end_load($_) foreach @load;

# what differs in a row that is changed all the time cannot be told
query($a, "INSERT INTO counters VALUES (302, 0, 'x')");
wait_for_group('g', @nodes);
my @hot = map {
	start_pgbench($_,
		{ "UPDATE counters SET total = total + 1 WHERE id = 302;\n" => 1 },
		'-c', 1, '-T', 3600, '--rate=100')
} $a, $c;
plant($b, 'UPDATE counters SET total = total + 1000 WHERE id = 302');
$id = compare($b, $a, ", tables => '{counters}'");
is( query(
		$b,
		"SELECT status, complete, differences, candidates, reason FROM weft.comparison_table WHERE comparison = $id"
	),
	'done|f|1|1|1 rows were changing each time that they were looked at (12 times).',
	'a row that is changed all the time is reported as such');
is( query(
		$b,
		"SELECT relation, key, looks FROM weft.comparison_candidate WHERE comparison = $id"
	),
	'counters|{"id": "302"}|12',
	'and not as a difference');
end_load($_) foreach @hot;
wait_for_group('g', @nodes);

# at rest
query($a, "INSERT INTO accounts VALUES (7001, 1, 'x'), (7002, 1, 'x')");
wait_for_group('g', @nodes);
plant($b, 'DELETE FROM accounts WHERE id = 7001');
plant($b, 'UPDATE accounts SET v = 2 WHERE id = 7002');
$id = compare($b, $a, ", tables => '{accounts, counters}'");
is( differences($b, $id),
	<<'EOS' =~ s/\n$//r, 'rows that were deleted and updated');
accounts|different|{"id": "7002"}|{v}
accounts|missing here|{"id": "6002"}|
accounts|missing here|{"id": "7001"}|
accounts|missing there|{"id": "6001"}|
counters|different|{"id": "301"}|{total}
counters|different|{"id": "302"}|{total}
EOS
is(unfinished($b, $id), '', 'without load, a comparison is complete');
$id = compare($b, $a, ", tables => '{accounts}', max_differences => 2");
is( query(
		$b,
		"SELECT differences, complete, (SELECT count(*) FROM weft.difference d WHERE d.comparison = t.comparison) FROM weft.comparison_table t WHERE comparison = $id"
	),
	'2|f|2',
	'max_differences');

# Repaired by hand: the statements of a dry run, in a session whose changes are not sent.
query($b,
	'SET weft.ddl_replication = off; ALTER TABLE log REPLICA IDENTITY FULL');
$id = compare($b, $a);
my $statements = query($b, "SELECT statement FROM weft.repair($id)");
plant($b, $statements);
query($b,
	'SET weft.ddl_replication = off; ALTER TABLE log REPLICA IDENTITY DEFAULT'
);
wait_for_group('g', @nodes);
is(differences($b, compare($b, $a)), '', 'then both are equal');
is(differences($a, compare($a, $b)), '', 'from both sides');

my ($ret, undef, $err);
(undef, undef, $err) =
  $b->psql('postgres', "CALL weft.compare_subscription('weft_g_a_b')");
like(
	$err,
	qr/WARNING:.*"weft_g_a_b" detects conflicts.*weft\.compare_node/s,
	'comparing the subscription warns');
my $refused = query($b, 'SELECT max(comparison) FROM weft.comparison');
(undef, undef, $err) =
  $b->psql('postgres', "CALL weft.repair($refused, apply => true)");
like(
	$err,
	qr/cannot be repaired by weft.repair.*compare with weft\.compare_node/s,
	'and such a comparison is not repaired');

# what is refused
sub refused
{
	my ($node, $sql, $expected, $name) = @_;
	my ($ret, undef, $err) = $node->psql('postgres', $sql);
	like($err, $expected, $name);
	isnt($ret, 0, 'and it fails');
	return;
}

refused(
	$b,
	"CALL weft.compare_node('b')",
	qr/this node has no subscription to a node "b"/,
	'a node is not compared with itself');
refused(
	$b,
	"BEGIN; CALL weft.compare_node('a')",
	qr/weft.compare_node\(\) cannot run inside a transaction block/,
	'not in a transaction');
refused(
	$b,
	"CALL weft.compare_node('a', timeout => '0')",
	qr/"timeout" must be positive/, 'timeout');
refused(
	$b,
	"CALL weft.compare_subscription('weft_g_a_b', resume => $id)",
	qr/comparison $id is one of two nodes, and cannot be continued/,
	'it cannot be continued');
query($b, 'CREATE ROLE stranger LOGIN');
refused(
	$b,
	"SET ROLE stranger; CALL weft.compare_node('a')",
	qr/must be owner of subscription weft_g_a_b/,
	'a role that does not own the subscription');
query($b, 'ALTER SUBSCRIPTION weft_g_c_b DISABLE');
refused(
	$b,
	"CALL weft.compare_node('a')",
	qr/node "b" cannot get all changes of node "c": subscription "weft_g_c_b" is disabled/,
	'a subscription that is disabled');
query($b, 'ALTER SUBSCRIPTION weft_g_c_b ENABLE');
is(errors_logged($_), '', 'no errors on ' . $_->name) foreach @nodes;

$c->stop;
refused(
	$b,
	"CALL weft.compare_node('a')",
	qr/node "a" cannot get all changes of node "c": could not connect/,
	'a third member is down');
refused(
	$b,
	"CALL weft.compare_node('c')",
	qr/could not connect to node "c"/,
	'the other member is down');
is( query(
		$b,
		"SELECT count(*) FROM weft.stat_comparison WHERE status <> 'finished'"
	),
	0,
	'what was refused is no comparison');

done_testing();
