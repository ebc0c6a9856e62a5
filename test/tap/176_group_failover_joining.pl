# A member fails over to its standby while another node joins through a third one, and before they have met.  The
# position that the joining node has copied may be beyond what the promoted server has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
need_injection_points();

my $step_point = 'weft-join-step';
my $copy_point = 'weft-copy-locked';

sub findings
{
	my ($node) = @_;
	return query($node,
		"SELECT severity, problem FROM weft.health() WHERE id = 'H015' ORDER BY 1, 2"
	);
}

foreach my $lost (0, 1)
{
	my $what = $lost ? 'lost' : 'nothing lost';
	my $a1 = PostgreSQL::Test::Cluster->new("a1_$lost");
	my ($a, $b, $c) = map {
		new_member("${_}_$lost", conf => "weft.min_parallel_copy_size = 0\n")
	} qw(a b c);
	my $to_b = "weft_g_a_${lost}_b_$lost";

	query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
	query($a, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$a->name, two_hosts($a, $a1));
	query($a, "SELECT weft.create_node_group('g')");
	join_group($b, $a, 'g');
	query($b, "INSERT INTO t VALUES (1, 'b')");
	query($a, "INSERT INTO t VALUES (2, 'a')");
	wait_for_group('g', $a, $b);
	make_standby($a, $a1);

	# The slot for the new node is on the standby, too.  It becomes ready there, although nobody uses it yet,
	# because the third node keeps its own one from proceeding.
	my $leader = leader_pid($b, $to_b);
	kill 'STOP', $leader or die "could not stop $leader";
	attach_point($c, $step_point);
	start_join($c, $b, 'g');
	hold_in_step($c, 'make_slots');
	wait_for_standby($a, $a1);
	kill 'CONT', $leader or die "could not continue $leader";
	is( query(
			$a1,
			"SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%_c_$lost'"
		),
		1,
		"$what: the standby has the slot");

	# What the third node copies
	$a1->stop if $lost;
	query($a,
		"INSERT INTO t SELECT i, 'own' FROM generate_series(1001, 2000) i");
	wait_for_apply($a, $b, $to_b);
	my $position = query($a, 'SELECT pg_current_wal_lsn()');
	$a->wait_for_catchup($a1->name, 'replay') unless $lost;
	attach_point($c, $copy_point);
	release_point($c, $step_point);
	held_at($c, $copy_point);

	$a->kill9;
	$a1->start if $lost;
	$a1->promote;
	$a1->{_name} = $a->name;
	query($a1, "INSERT INTO t VALUES (3, 'new')");
	query($a1,
		"INSERT INTO t SELECT i, 'new' FROM generate_series(3001, 5000) i");
	ok( query($a1, "SELECT pg_current_wal_lsn() > '$position'"),
		"$what: the promoted server has written as much again");
	release_point($c, $copy_point);

	if ($lost)
	{
		poll($_,
			"SELECT count(*) = 1 FROM weft.health() WHERE id = 'H015' AND severity = 'error'"
		) foreach $b, $c;
		like(
			findings($c),
			qr/node "a_1" was promoted or restored without transactions of its own that this node has/,
			'the joining node has found it');
		is(query($c, "SELECT count(*) FROM t WHERE v = 'new'"),
			0, 'and does not follow');
		# The join repeats its last steps afterwards.
		query($c, "ALTER SUBSCRIPTION weft_g_a_1_c_1 DISABLE");
		query($_, "SELECT weft.accept_promotion('a_1')") foreach $b, $c;
		query($c,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'weft join'"
		);
	}
	wait_for_join($c);
	query($c, "INSERT INTO t VALUES (4, 'c')");
	query($a1,
		"INSERT INTO t SELECT i, 'own' FROM generate_series(1001, 2000) i")
	  if $lost;
	wait_for_group('g', $a1, $b, $c);
	same_on_all([ $a1, $b, $c ], ['t'], "$what: all members are equal");
	is(query($c, "SELECT count(*) FROM t WHERE v = 'new'"),
		2001, "$what: nothing of the promoted server is left out");
	is(findings($c), '', 'nothing is found where nothing is lost')
	  unless $lost;
	$_->stop foreach $a1, $b, $c;
}

done_testing();
