# Joins under unusual settings and circumstances: transactions that keep their
# snapshot, standbys, timeouts, transactions that never end.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);

query($a,
	'CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10000)'
);
create_group($a, 'g');

# Waits in a transaction whose snapshot was taken before the join began.
my $session = open_session($b);
query($b, sprintf "SELECT weft.create_node('b', \$\$%s\$\$)", dsn($b));
$session->query_safe(
	'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM weft.node');
start_join($b, $a, 'g');
$session->query_safe($wait_for_join);
is($session->query_safe('SELECT count(*) FROM weft.node_group'),
	0, 'its snapshot is still the same');
$session->query_safe('COMMIT');
$session->quit;
is(query($b, 'SELECT count(*) FROM t'), 10000, 'but it saw the join end');

# Sessions may not be idle in a transaction, or run for long, anywhere.
foreach my $node ($a, $b, $c)
{
	set_conf(
		$node,
		idle_in_transaction_session_timeout => '1ms',
		transaction_timeout => '1s',
		default_transaction_isolation => 'repeatable read',
		default_transaction_read_only => 'on');
}
# on a busy machine, the calls themselves may take longer
my $rw =
  'SET default_transaction_read_only = off; SET transaction_timeout = 0; ';
my $hold = open_session($a);
query($c, $rw . sprintf "SELECT weft.create_node('c', \$\$%s\$\$)", dsn($c));
query($c, $rw . sprintf "SELECT weft.join_node_group(\$\$%s\$\$)", dsn($a));
query($c,
	"SET transaction_timeout = 0; SET idle_in_transaction_session_timeout = 0; $wait_for_join"
);
query($a, $rw . 'INSERT INTO t VALUES (0)');
foreach my $node ($a, $b, $c)
{
	query($node, "${rw}ALTER SYSTEM RESET ALL");
	query($node, 'SELECT pg_reload_conf()');
	poll($node,
		"SELECT current_setting('default_transaction_read_only') = 'off'");
}
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'joined under other settings');
query($a, "SELECT weft.part_node('c')");
query($c, 'DROP TABLE t');

# A slot waits for all transactions, but not forever; then nothing is left behind.
query($_,
	"ALTER FUNCTION weft.member_make_slot(name, uuid) SET lock_timeout = '200ms'"
) foreach ($b, $c);
foreach my $where ($b, $c)
{
	my $name = $where->name;
	$session = open_session($where);
	$session->query_safe('BEGIN; SELECT txid_current()');
	start_join($c, $a, 'g');
	my ($ret, $out, $err) = $c->psql('postgres', $wait_for_join);
	my $slot = $name eq 'b' ? 'weft_g_b_c' : 'weft_g_c_a';
	like(
		$err,
		qr/node "c" could not join node group "g": .*could not create slot "$slot" on node "$name"/,
		"a transaction that does not end on $name");
	is(leftovers($c), '', 'nothing is left');
	unlike(leftovers($_), qr/_c\b|_c_/, 'nor on ' . $_->name)
	  foreach ($a, $b);
	$session->query_safe('COMMIT');
	$session->quit;
}
query($_,
	"ALTER FUNCTION weft.member_make_slot(name, uuid) SET lock_timeout = '1min'"
) foreach ($b, $c);
join_group($c, $a, 'g');

# What a standby shows of a member.
query($b, "SELECT pg_create_physical_replication_slot('standby')");
$b->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($b, 'standby', has_streaming => 1);
$standby->start;
$b->wait_for_replay_catchup($standby);
is( query(
		$standby,
		"SELECT string_agg(from_node || to_node, ' ' ORDER BY from_node, to_node) FROM weft.node_replication"
	),
	'ab ba bc cb',
	'weft.node_replication on a standby');
is(query($standby, 'SELECT members FROM weft.node_group'),
	3, 'weft.node_group on a standby');

$_->stop foreach ($standby, $a, $b, $c);
done_testing();
