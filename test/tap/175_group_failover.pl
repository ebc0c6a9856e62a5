# A member of a group fails over to its synchronous standby, again and again, while clients write to all
# members: it stays a member, no acknowledged transaction is lost, and none is doubled.
#
# WEFT_FAILOVERS: how often.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $rounds = $ENV{WEFT_FAILOVERS} // 2;
my ($primary, $b, $c) = map { new_member($_) } qw(a b c);
my $standby = PostgreSQL::Test::Cluster->new('a1');

create_ledger($primary);
query(
	$primary,
	sprintf "SELECT weft.create_node('a', \$\$%s\$\$)",
	two_hosts($primary, $standby));
query($primary, "SELECT weft.create_node_group('g')");
join_group($_, $primary, 'g') foreach ($b, $c);
is( query(
		$_,
		"SELECT count(*) FROM pg_replication_slots WHERE failover AND slot_name LIKE 'weft_g_%'"
	),
	2,
	'slots of ' . $_->name . ' have the option') foreach ($primary, $b, $c);
is(query($_, 'SELECT count(*) FROM pg_subscription WHERE subfailover'),
	2, 'and its subscriptions')
  foreach ($primary, $b, $c);
is(query($b, 'SELECT failover FROM weft.node_group'), 't', 'as the group');

my @clients = map { start_client($_, $_->name) } ($b, $c);
my @pauses;

# Return once something that is written on one node from now on has arrived on the other.
sub arrives
{
	my ($from, $to, $name) = @_;
	wait_for_apply($from, $to, $name);
	return;
}

foreach my $round (1 .. $rounds)
{
	my $by_call = $round % 2 == 0;

	make_standby($primary, $standby, synchronous => 1, guarded => 1);
	query(
		$b,
		sprintf "SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
		two_hosts($primary, $standby)) if $round > 1 && !$by_call;
	push @clients, start_client($primary, 'a');
	wait_for_standby($primary, $standby);
	my $written = query($b, "SELECT n FROM counter WHERE node = 'a'");
	poll($b, "SELECT n > $written + 20 FROM counter WHERE node = 'a'");
	usleep(1000 * int rand 300);

	fail_over($primary, $standby);
	my $start = time;
	query($b, sprintf "SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
		dsn($standby))
	  if $by_call;
	push @clients, start_client($standby, 'a');
	$written = query($standby, "SELECT n FROM counter WHERE node = 'a'");
	poll($_, "SELECT n > $written FROM counter WHERE node = 'a'")
	  foreach ($b, $c);
	push @pauses, sprintf '%.1f s', time - $start;
	my $theirs = query($b, "SELECT n FROM counter WHERE node = 'b'");
	poll($standby, "SELECT n > $theirs FROM counter WHERE node = 'b'");

	stop_client($_)
	  foreach grep { !$_->{ids} && $_->{label} eq 'a' } @clients;
	is(query($_, "SELECT count(*) FROM weft.health() WHERE id = 'H015'"),
		0, "round $round: nothing to report on " . $_->name)
	  foreach ($standby, $b, $c);
	if ($round < 3 || $round == $rounds)
	{
		stop_client($_) foreach grep { !$_->{ids} } @clients;
		foreach my $to ($standby, $b, $c)
		{
			wait_for_apply($_->[0], $to,
				"weft_g_$_->[1]_" . ($to == $standby ? 'a' : $to->name))
			  foreach grep { $_->[0] != $to }
			  ([ $standby, 'a' ], [ $b, 'b' ], [ $c, 'c' ]);
		}
		check_clients([ $standby, $b, $c ], \@clients, "round $round");
		push @clients, map { start_client($_, $_->name) } ($b, $c)
		  if $round < $rounds;
	}
	$primary->clean_node;
	$primary = $standby;
	$standby = PostgreSQL::Test::Cluster->new('a' . ($round + 1))
	  if $round < $rounds;
}
note("a's changes arrived everywhere after: @pauses");
is( query(
		$primary,
		'SELECT generation FROM weft.node_copy WHERE identity = (SELECT identity FROM weft.node_entry WHERE is_local)'
	),
	$rounds + 1,
	'each promotion is a generation');
$_->stop foreach ($primary, $b, $c);
done_testing();
