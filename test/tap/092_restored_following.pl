# A member is started from an older state of its files, and another one follows it, because the member had written
# enough when they connected.  When a third one finds it, the other is told, too.  No node can join meanwhile.  If the
# member is the one to keep, it forgets that when all others have been parted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c, $d) = map { new_member($_) } qw(a b c d);
my $applied =
  "SELECT remote_lsn FROM pg_replication_origin_status s JOIN pg_subscription ON s.external_id = 'pg_' || oid WHERE subname LIKE 'weft_g_a_%'";

sub insert
{
	my ($node, $from, $to, $value) = @_;
	return query($node,
		"INSERT INTO t SELECT g, '$value' FROM generate_series($from, $to) g"
	);
}

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
insert($a, 1, 1, 'before the copy');
wait_for_group('g', $a, $b, $c);
my $files = copy_files($a);

# b has more than c.
insert($a, 100, 400, 'x');
wait_for_group('g', $a, $b, $c);
my $position_of_c = query($c, $applied);
$c->stop;
insert($a, 1000, 15_000, 'x' x 1000);
wait_for_apply($a, $b, 'weft_g_a_b');
my $position_of_b = query($b, $applied);
$b->stop;

replace_files($a, $files);
insert($a, 20_001, 20_010, 'early');
insert($a, 50_001, 56_000, 'more');
is( query(
		$a,
		"SELECT pg_current_wal_flush_lsn() > '$position_of_c', pg_current_wal_flush_lsn() < '$position_of_b'"
	),
	't|t',
	'its WAL ends between the positions of the others');
insert($a, 30_000, 30_000, 'late');
$c->start;
poll($c, 'SELECT count(*) = 1 FROM t WHERE id = 30000');
is(query($c, 'SELECT count(*) FROM t WHERE id BETWEEN 20001 AND 20010'),
	0, 'one follows it, and does not know what it has left out');

$b->start;
poll($_,
	"SELECT count(*) = 1 FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
) foreach $b, $a, $c;
pass('when another one has found it, that one is told');
insert($a, 40_000, 40_000, 'after it was found');
my $log = -s $c->logfile;
$c->wait_for_log(
	qr/ERROR:  node "a" was promoted or restored without transactions of its own/,
	$log);
is(query($c, 'SELECT count(*) FROM t WHERE id = 40000'),
	0, 'and does not follow any more');

# --- nobody can join ---

foreach my $target ($a, $b)
{
	start_join($d, $target, 'g');
	my ($result, $out, $err) =
	  $d->psql('postgres', $GroupTest::wait_for_join);
	like(
		$err,
		qr/node "a" was started from an older state of its files/,
		'no node can join through ' . $target->name);
}

# --- a is the one to keep ---

$_->stop foreach $b, $c;
query($a, "SELECT weft.part_node('b', force => true)");
is( query(
		$a,
		"SELECT count(*) FROM weft.health() WHERE id = 'H015' AND object = 'a'"
	),
	1,
	'while there is another member, it lacks something');
query($a, "SELECT weft.part_node('c', force => true)");
is(query($a, "SELECT count(*) FROM weft.health() WHERE id = 'H015'"),
	0, 'the last member lacks nothing');
$b->start;
query($b, 'SELECT weft.leave_node_group()');
query($b, 'DROP TABLE t');

foreach my $node ($b, $d)
{
	join_group($node, $a, 'g');
}
insert($b, 60_001, 60_001, 'b');
insert($d, 60_002, 60_002, 'd');
wait_for_group('g', $a, $b, $d);
same_on_all([ $a, $b, $d ], ['t'], 'others join it');
is(query($d, 'SELECT count(*) FROM t WHERE id BETWEEN 20001 AND 40000'),
	12, 'with all that it has');

$_->stop foreach $a, $b, $d;
done_testing();
