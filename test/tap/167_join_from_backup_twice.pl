# Two copies of the same preparation: the first one has begun to follow the members when it is given up, and the second
# one, which is older, takes its place and its address.  It lacks what the slots have passed, and is refused.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
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
query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
my $prepare = sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
  dsn($c);
query($a, $prepare);
$a->backup('bk');

my $join =
  sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g', from_backup := true)",
  dsn($a);

sub start_copy
{
	my ($backup) = @_;

	$c->init_from_backup($a, $backup);
	$c->append_conf('postgresql.conf',
		"recovery_target = 'immediate'\nrecovery_target_action = 'promote'\n"
		  . "restore_command = 'false'\n");
	$c->set_recovery_mode;
	$c->start;
	poll($c, 'SELECT NOT pg_is_in_recovery()');
	return;
}

start_copy('bk');
query($c, "SELECT injection_attach('$point', 'hold')");
query($c, $join);
for (;;)
{
	my ($pid) = held_at($c, $point);
	my $now =
	  query($c, "SELECT query FROM pg_stat_activity WHERE pid = $pid");
	last if $now eq 'meet';
	release($c, $pid);
}
query($a, "INSERT INTO t VALUES (1, 'a')");
query($b, "INSERT INTO t VALUES (2, 'b')");
poll($c, 'SELECT count(*) = 2 FROM t');
my $before = query($a,
	"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'weft_g_a_c'"
);
poll($a,
	"SELECT confirmed_flush_lsn > '$before' FROM pg_replication_slots WHERE slot_name = 'weft_g_a_c'"
);
$c->stop('immediate');
rmtree($c->data_dir);

start_copy('bk');
is(query($c, 'SELECT count(*) FROM t'), 0, 'the second copy is older');
my ($ret, $out, $err) = $c->psql('postgres', $join);
like(
	$err,
	qr/another copy has become node "c", and has followed node "a"/,
	'the second copy is refused');
is(query($c, 'SELECT weft.local_node()'),
	'a', 'it has not become the new node');

# The hint says what to do.
$c->stop('immediate');
rmtree($c->data_dir);
query($a, $prepare);
$a->backup('bk2');
start_copy('bk2');
query($c, $join);
wait_for_join($c);
query($c, "INSERT INTO t VALUES (3, 'c')");
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'a copy of another preparation joins');
is(query($c, 'SELECT count(*) FROM t'), 3, 'it has all rows');

$_->stop foreach ($a, $b, $c);
done_testing();
