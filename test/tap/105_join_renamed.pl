# Tables, or columns, get each other's names on the member that is copied, after the joining node has its schema.

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

my $a = new_member('a');
my $b = new_member('b', conf => "weft.min_parallel_copy_size = 0\n");

query($a, <<'EOS');
CREATE TABLE first (id int PRIMARY KEY, v text);
CREATE TABLE x (id int PRIMARY KEY, v text, w text);
CREATE TABLE y (id int PRIMARY KEY, v text, w text);
CREATE SCHEMA s1;
CREATE SCHEMA s2;
CREATE TABLE s1.z (id int PRIMARY KEY, v text);
CREATE TABLE s2.z (id int PRIMARY KEY, v text);
CREATE SEQUENCE sx START 10;
CREATE SEQUENCE sy START 20;
CREATE TYPE e AS ENUM ('a', 'b');
CREATE TYPE c AS (p int, q int);
CREATE TABLE typed (id int PRIMARY KEY, e e, c c, d c[]);
INSERT INTO typed VALUES (1, 'a', (10, 20), '{"(1,2)"}');
INSERT INTO first SELECT i, 'first' FROM generate_series(1, 1000) i;
INSERT INTO x VALUES (1, 'made as x');
INSERT INTO y VALUES (1, 'made as y');
INSERT INTO s1.z VALUES (1, 'made in s1');
INSERT INTO s2.z VALUES (1, 'made in s2');
EOS
create_group($a, 'g');

# Schemas can be renamed although their tables are locked.
hold_in_first_table($b, $a, 'g', qw(first x y z));
query($a,
	'BEGIN; SET LOCAL weft.ddl_lock = none; ALTER SCHEMA s1 RENAME TO s3; ALTER SCHEMA s2 RENAME TO s1; ALTER SCHEMA s3 RENAME TO s2; COMMIT'
);
my $log = -s $b->logfile;
my $problem =
  qr/table s1\.z of node "a" was renamed while tables were copied/;
release_point($b, 'weft-copy-locked');
$b->wait_for_log($problem, $log);
my ($result, $out, $err) = $b->psql('postgres', $GroupTest::wait_for_join);
like($err, $problem, 'the join fails');

# Before the tables are locked, it begins again.
my $point = 'weft-join-lock';
attach_point($b, $point);
start_join($b, $a, 'g');

sub rename_meanwhile
{
	my ($statements, $names, $kind) = @_;
	my ($pid) = held_at($b, $point);

	my $what = $kind // 'tables';
	query($a, "SET weft.ddl_replication = off; $statements");
	$log = -s $b->logfile;
	release($b, $pid);
	$b->wait_for_log(
		qr/LOG:  taking another snapshot of node "a"\n.*DETAIL:  These $what have been changed since the snapshot: $names\.\n/,
		$log);
	pass($statements);
	return;
}

rename_meanwhile(
	'ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y',
	'public\.x, public\.y');
rename_meanwhile('ALTER TABLE x RENAME v TO old; ALTER TABLE x ADD v text',
	'public\.x');
rename_meanwhile(
	'ALTER TABLE y RENAME v TO z; ALTER TABLE y RENAME w TO v; ALTER TABLE y RENAME z TO w',
	'public\.y');
rename_meanwhile('ALTER TABLE s1.z SET SCHEMA public', 's1\.z');
rename_meanwhile(
	"ALTER TYPE e RENAME VALUE 'a' TO 'c'; ALTER TYPE e RENAME VALUE 'b' TO 'a'; ALTER TYPE e RENAME VALUE 'c' TO 'b'; ALTER TYPE e ADD VALUE 'd'",
	'public\.e', 'types');
rename_meanwhile(
	'ALTER TYPE c DROP ATTRIBUTE q; ALTER TYPE c ADD ATTRIBUTE s int; CREATE TYPE other AS ENUM ()',
	'public\.c', 'types');
held_at($b, $point);
release_point($b, $point);
query($b, $GroupTest::wait_for_join);
wait_for_group('g', $a, $b);

foreach my $node ($a, $b)
{
	is( query($node, 'SELECT id, old, v, w FROM x'),
		'1|made as y||',
		'the rows are where they belong on ' . $node->name);
	is(query($node, 'SELECT id, v, w FROM y'),
		'1||made as x', 'and the columns on ' . $node->name);
	is( query($node, 'SELECT v FROM z UNION ALL SELECT v FROM s2.z'),
		"made in s2\nmade in s1",
		'and the schemas on ' . $node->name);
}
same_on_all([ $a, $b ], [qw(first x y z s2.z typed)], 'joined');

$_->stop foreach $a, $b;
done_testing();
