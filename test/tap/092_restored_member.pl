# A member is gone, and a server with its restored schema joins under its name: it
# receives all changes, and does not send again what others sent to the old member.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);

query($a,
	'CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1)');
create_group($a, 'g');
join_group($b, $a, 'g');
my $dump = $PostgreSQL::Test::Utils::tmp_check . '/b.sql';
$b->command_ok(
	[ 'pg_dump', '-s', '-f', $dump, '-d', $b->connstr('postgres') ],
	'the schema is dumped');
$b->stop('immediate');
query($a, "SELECT weft.part_node('b', force := true)");
query($a, 'INSERT INTO t VALUES (2)');

my $restored = new_member('restored');
$restored->command_ok(
	[ 'psql', '-X', '-q', '-d', $restored->connstr('postgres'), '-f', $dump ],
	'and restored');
like(
	leftovers($restored),
	qr/subscription weft_g_a_b/,
	'with its subscription');
query($restored, sprintf "SELECT weft.create_node('b', \$\$%s\$\$)",
	dsn($restored));

# A subscription that is in use is not removed.
query($restored,
	"ALTER SUBSCRIPTION weft_g_a_b SET (slot_name = 'nosuch'); ALTER SUBSCRIPTION weft_g_a_b ENABLE"
);
start_join($restored, $a, 'g');
my ($ret, $out, $err) = $restored->psql('postgres', $wait_for_join);
like(
	$err,
	qr/could not join node group "g": node "b" already has a subscription "weft_g_a_b"/,
	'one that is enabled');
query($restored, 'ALTER SUBSCRIPTION weft_g_a_b DISABLE');

join_group($restored, $a, 'g');
query($restored, 'INSERT INTO t VALUES (3)');
query($a, 'INSERT INTO t VALUES (4)');
query($restored, "SELECT weft.wait_for_subscription('weft_g_a_b', '180 s')");
query($a, "SELECT weft.wait_for_subscription('weft_g_b_a', '180 s')");
same_on_all([ $a, $restored ],
	['t'], 'it receives changes, and sends its own');
is(query($restored, 'SELECT count(*) FROM t'), 4, 'all rows');

# The same on a member that was restored, and that others join.
query($a, "SELECT weft.part_node('b')");
query($restored, 'TRUNCATE t');
query($a,
	"CREATE SUBSCRIPTION weft_g_b_a CONNECTION 'host=/nowhere' PUBLICATION weft_g WITH (connect = false, slot_name = NONE)"
);
join_group($restored, $a, 'g');
query($restored, 'INSERT INTO t VALUES (5)');
query($a, "SELECT weft.wait_for_subscription('weft_g_b_a', '180 s')");
same_on_all([ $a, $restored ], ['t'], 'a member receives changes, too');

$_->stop foreach ($a, $restored);
done_testing();
