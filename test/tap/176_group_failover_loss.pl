# What a promoted standby of a member may lack is found and reported, and a member sends nothing that its
# standby does not have if it is told so.  Two servers that are the same member do not both stay in the group.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);
my ($a1, $a2) = map { PostgreSQL::Test::Cluster->new($_) } qw(a1 a2);

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $c);
query($c, "INSERT INTO t VALUES (1, 'c')");
query($b, "INSERT INTO t VALUES (2, 'b')");
wait_for_group('g', $a, $b, $c);
make_standby($a, $_)     foreach ($a1, $a2);
wait_for_standby($a, $_) foreach ($a1, $a2);

sub findings
{
	my ($node) = @_;
	return query($node,
		"SELECT severity, problem FROM weft.health() WHERE id = 'H015' ORDER BY 1, 2"
	);
}

sub values_of
{
	my ($node) = @_;
	return query($node, 'SELECT string_agg(v, $$ $$ ORDER BY id) FROM t');
}

# --- guarded ---

set_on($a, synchronized_standby_slots => 'a1');
$a1->stop;
query($a, "INSERT INTO t VALUES (3, 'guarded')");
poll($a,
	"SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
);
is(values_of($_), 'c b', 'what the standby lacks is not sent to ' . $_->name)
  foreach ($b, $c);
$a1->start;
poll($_, 'SELECT count(*) = 3 FROM t') foreach ($b, $c);
pass('it is sent once the standby has it');
wait_for_standby($a, $a1);

# --- not guarded ---

set_on($a, synchronized_standby_slots => '');
$_->stop foreach ($a1, $a2);
query($b, "INSERT INTO t VALUES (4, 'confirmed')");
wait_for_apply($b, $a, 'weft_g_b_a');
my $end = query($b, 'SELECT pg_current_wal_lsn()');
poll($b,
	"SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'weft_g_b_a'"
);
query($a, "INSERT INTO t VALUES (5, 'own')");
wait_for_apply($a, $_, 'weft_g_a_' . $_->name) foreach ($b, $c);
is(findings($_), '', 'nothing is found on ' . $_->name) foreach ($a, $b, $c);
$a->kill9;
# Nobody has met the promoted server when its address is told.
$a1->append_conf('postgresql.conf', 'max_logical_replication_workers = 0');
$a1->start;
$a1->promote;
query(
	$b,
	sprintf
	  "SET statement_timeout = '60s'; SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
	dsn($a1));
$a1->append_conf('postgresql.conf', 'max_logical_replication_workers = 20');
$a1->restart;

my $own =
  qr/^error\|node "a" was promoted or restored without transactions of its own that this node has, between \S+ and \S+; its changes are not applied$/m;
my $confirmed =
  qr/^warning\|node "a" was promoted or restored at .*, and may lack transactions of node "b" between \S+ and \S+$/m;
poll($_,
	"SELECT count(*) > 0 FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
) foreach ($b, $c);
poll($a1, "SELECT count(*) > 0 FROM weft.health() WHERE id = 'H015'");
like(findings($b), $own, 'b has more of a than a');
like(findings($b), $confirmed, 'and a has confirmed to b more than it has');
like(findings($c), $own, 'c has more of a than a');
unlike(findings($c), qr/warning/, 'what c has sent is not lost');
like(findings($a1), qr/\A$confirmed\z/,
	'the promoted server knows what it lacks of b');

foreach my $node ($b, $c)
{
	like(
		slurp_file($node->logfile),
		qr/ERROR: .*node "a" was promoted or restored without transactions of its own that are applied here, up to/,
		'the log of ' . $node->name . ' says so');
}
like(
	slurp_file($b->logfile),
	qr/LOG: .*node "a" was promoted or restored, and may lack transactions of node "b" between/,
	'and the other one');

query($a1, "INSERT INTO t VALUES (6, 'new')");
my ($ret, $out, $err) =
  $a1->psql('postgres', "SELECT weft.accept_promotion('b')");
like(
	$err,
	qr/node "a" follows node "b", or waits for something else/,
	'there is nothing to accept');
is( values_of($b),
	'c b guarded confirmed own',
	'nothing of the promoted server is applied');
query($_, "SELECT weft.accept_promotion('a')")         foreach ($b, $c);
poll($_, "SELECT count(*) = 1 FROM t WHERE v = 'new'") foreach ($b, $c);
pass('then it is, from its beginning');
unlike(findings($b), qr/^error/m, 'the finding is a warning now');

query($b, "CALL weft.compare_node('a')");
is( query(
		$b,
		'SELECT string_agg(key::text, $$ $$ ORDER BY key::text) FROM weft.difference'
	),
	'{"id": "4"} {"id": "5"}',
	'what is lost is found by comparing');
query($a1, "INSERT INTO t VALUES (4, 'confirmed'), (5, 'own')");
wait_for_apply($a1, $b, 'weft_g_a_b');
wait_for_apply($a1, $c, 'weft_g_a_c');
same_on_all([ $a1, $b, $c ], ['t'], 'all are equal again');
query($_, "SELECT weft.forget_promotion('a')") foreach ($a1, $b, $c);
is(findings($_), '', 'nothing is left on ' . $_->name) foreach ($a1, $b, $c);

# --- two servers that are the same member ---

$a->start;
query($a, "INSERT INTO t VALUES (100, 'old')");
$a->wait_for_log(
	qr/could not start subscription "weft_g_b_a": ERROR:  node "b" does not accept a copy of node "a" that was left behind/
);
$a->wait_for_log(qr/could not start subscription "weft_g_c_a": /);
($ret, $out, $err) =
  $b->psql('postgres',
	sprintf "SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
	dsn($a));
like(
	$err,
	qr/does not accept a copy of node "a" that was left behind/,
	'nobody is told its address');
$a2->start;
$a2->promote;
query($a2, "INSERT INTO t VALUES (101, 'second')");
$a2->wait_for_log(
	qr/could not start subscription "weft_g_b_a": ERROR:  node "b" does not accept a copy of node "a" that was left behind/
);
($ret, $out, $err) =
  $c->psql('postgres',
	sprintf "SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
	dsn($a2));
like(
	$err,
	qr/does not accept a copy of node "a" that was left behind/,
	'nor that of a second standby that was promoted');
query($_->[0], "INSERT INTO t VALUES ($_->[1], 'all')")
  foreach ([ $a1, 7 ], [ $b, 8 ], [ $c, 9 ]);
wait_for_apply($a1, $_, 'weft_g_a_' . $_->name) foreach ($b, $c);
wait_for_apply($_, $a1, 'weft_g_' . $_->name . '_a') foreach ($b, $c);
wait_for_group('g', $b, $c);
same_on_all([ $a1, $b, $c ], ['t'], 'the group goes on');
is(query($a1, 'SELECT count(*) FROM t WHERE id >= 100'),
	0, 'without what the copies have written');
is(query($_, 'SELECT count(*) FROM t WHERE id IN (7, 8, 9)'),
	0, 'which have nothing of it')
  foreach ($a, $a2);

$_->stop foreach ($a, $a1, $a2, $b, $c);
done_testing();
