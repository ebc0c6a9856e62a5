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

my $point = 'weft-copy-locked';
my $a = new_member('a');
my $b = new_member('b', conf => "weft.min_parallel_copy_size = 0\n");

query($a, <<'EOS');
CREATE TABLE first (id int PRIMARY KEY, v text);
CREATE TABLE x (id int PRIMARY KEY, v text, w text);
CREATE TABLE y (id int PRIMARY KEY, v text, w text);
INSERT INTO first SELECT i, 'first' FROM generate_series(1, 1000) i;
INSERT INTO x VALUES (1, 'made as x');
INSERT INTO y VALUES (1, 'made as y');
EOS
create_group($a, 'g');

# It copies the first table.
sub rename_meanwhile
{
	my ($statements, $problem) = @_;

	hold_in_first_table($b, $a, 'g', qw(first x y));
	query($a, "BEGIN; SET LOCAL weft.ddl_lock = none; $statements COMMIT");
	my $log = -s $b->logfile;
	release_point($b, $point);
	$b->wait_for_log($problem, $log);
	my ($result, $out, $err) =
	  $b->psql('postgres', $GroupTest::wait_for_join);
	like($err, $problem, 'the join fails');
	return;
}

rename_meanwhile(
	'ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y;',
	qr/was renamed while tables were copied/);
rename_meanwhile(
	'ALTER TABLE x RENAME v TO old; ALTER TABLE x ADD v text;',
	qr/columns were renamed on node "a" while tables were copied: public\.x/);
rename_meanwhile(
	'ALTER TABLE y RENAME v TO z; ALTER TABLE y RENAME w TO v; ALTER TABLE y RENAME z TO w;',
	qr/columns were renamed on node "a" while tables were copied: public\.y/);

start_join($b, $a, 'g');
query($b, $GroupTest::wait_for_join);
wait_for_group('g', $a, $b);
foreach my $node ($a, $b)
{
	is( query($node, 'SELECT id, old, v, w FROM x'),
		'1|made as y||',
		'the rows are where they belong on ' . $node->name);
	is(query($node, 'SELECT id, v, w FROM y'),
		'1||made as x', 'and the columns on ' . $node->name);
}
same_on_all([ $a, $b ], [ 'first', 'x', 'y' ], 'joined');

done_testing();
