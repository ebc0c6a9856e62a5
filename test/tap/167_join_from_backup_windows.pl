# A copy of a member dies within every step of its join, after the step's work on other members is done and
# before its own is committed, and so does the member that is copied while the join is prepared.  In
# the end all members have the same rows.

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

my ($a, $b) = map { new_member($_) } qw(a b);
my $c = PostgreSQL::Test::Cluster->new('c');
my $point = 'weft-join-step';
my $next = 1;

query($a, 'CREATE EXTENSION weft_injection');
query($b, 'CREATE EXTENSION weft_injection');
query($a, 'CREATE TABLE t (id int PRIMARY KEY, v int)');
create_group($a, 'g');
join_group($b, $a, 'g');

sub write_rows
{
	foreach my $node ($a, $b)
	{
		query($node, "INSERT INTO t VALUES ($next, 0)");
		query($node, "UPDATE t SET v = v + 1 WHERE id = $next");
		$next++;
	}
	return;
}

my $prepare = sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
  dsn($c);

# The member that is copied dies while it waits for a slot on the other one.
my $hold = open_session($b);
$hold->query_safe('BEGIN; SELECT txid_current()');
my $session = open_session($a, on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\n$prepare;\n");
poll($b,
	"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'weft_g_b_c'"
);
$a->stop('immediate');
$hold->query_safe('COMMIT');
$hold->quit;
eval { $session->quit };
$a->start;
is( states($a),
	'a active, b active, c joining',
	'the member died while it prepared the join');
write_rows();
query($a, $prepare);
write_rows();

$a->backup('bk');
$c->init_from_backup($a, 'bk', has_streaming => 1);
$c->start;
write_rows();
$a->wait_for_catchup($c, 'replay');
$c->promote;
write_rows();

sub die_in
{
	my ($step) = @_;

	hold_in_step($c, $step);
	write_rows();
	flush_wal($c);
	$c->stop('immediate');
	$c->start;
	return;
}

query($c, "SELECT injection_attach('$point', 'hold')");
query($c,
	sprintf "SELECT weft.join_node_group(\$\$%s\$\$, from_backup := true)",
	dsn($a));
foreach
  my $step (qw(make_copy_slots become subscribe follow meet announce finish))
{
	die_in($step);
	pass("died in step \"$step\"");
	query($c, "SELECT injection_attach('$point', 'hold')");
	query(
		$c,
		sprintf
		  "SELECT weft.join_node_group(\$\$%s\$\$, from_backup := true)",
		dsn($a));
}
release_point($c, $point);
wait_for_join($c);
write_rows();
query($c, "INSERT INTO t VALUES ($next, 0)");
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'all members have the same');
is( states($_),
	'a active, b active, c active',
	$_->name . ' knows all members') foreach $a, $b, $c;
is(query($_, 'SELECT count(*) FROM pg_replication_slots'),
	2, $_->name . ' has a slot for each of the others')
  foreach $a, $b, $c;
is( query(
		$c,
		"SELECT string_agg(subname, ' ' ORDER BY subname) FROM pg_subscription"
	),
	'weft_g_a_c weft_g_b_c',
	'its subscriptions are its own');
is( query(
		$c,
		'SELECT count(*) FROM weft.conflict_history WHERE subname = $$weft_g_a_c$$'
	),
	0,
	'rows of the copied node are its own');

$_->stop foreach ($a, $b, $c);
done_testing();
