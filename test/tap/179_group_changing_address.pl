# Two plain servers behind an address that changes: the others know a member by a path that leads to
# whichever of the two is the primary, as a virtual address or a proxy does.  Planned switches, and crashes;
# the old primary comes back as a standby, in place or with pg_rewind.

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

my $rounds = $ENV{WEFT_FAILOVERS} // 2;
my ($primary, $b, $c) =
  map { new_member($_, conf => "wal_log_hints = on\n") } qw(a b c);
my $standby = PostgreSQL::Test::Cluster->new('a1');
my $directory = PostgreSQL::Test::Utils::tempdir_short();

# The address leads to this server from now on.
sub switch_address
{
	my ($node) = @_;
	my $link = "$directory/.s.PGSQL.5432";

	symlink($node->host . '/.s.PGSQL.' . $node->port, "$link.new")
	  or die "could not make a link: $!";
	rename("$link.new", $link) or die "could not rename the link: $!";
	return;
}

# What belongs to each server stays when the configuration is copied from the other one.
sub as_standby_of
{
	my ($node, $source) = @_;
	my $name = $node->name;

	$node->append_conf('postgresql.conf', <<EOC);
port = @{[ $node->port ]}
unix_socket_directories = '@{[ $node->host ]}'
primary_conninfo = '@{[ $source->connstr ]} dbname=postgres application_name=$name'
primary_slot_name = '$name'
hot_standby_feedback = on
sync_replication_slots = on
synchronous_standby_names = ''
synchronized_standby_slots = ''
EOC
	$node->set_standby_mode;
	return;
}

# The new primary waits for the old one, which has a slot there, from now on.
sub come_back
{
	my ($old, $new, $planned) = @_;
	my $name = $old->name;

	query($new,
		"SELECT pg_create_physical_replication_slot('$name', true) WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$name')"
	);
	if (!$planned)
	{
		query($new, 'CHECKPOINT');
		command_ok(
			[
				'pg_rewind', '--target-pgdata',
				$old->data_dir, '--source-server',
				$new->connstr('postgres'), '--no-sync'
			],
			'pg_rewind');
	}
	as_standby_of($old, $new);
	$old->start;
	# Slots of its own that are in the way of synchronized ones.
	query($old,
		'SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT synced'
	);
	set_on($new, synchronous_standby_names => $name);
	set_on($new, synchronized_standby_slots => $name);
	return;
}

create_ledger($primary);
switch_address($primary);
query($primary,
	"SELECT weft.create_node('a', 'host=$directory port=5432 dbname=postgres')"
);
query($primary, "SELECT weft.create_node_group('g')");
join_group($_, $primary, 'g') foreach ($b, $c);
make_standby($primary, $standby, synchronous => 1, guarded => 1);
my @clients = map { start_client($_, $_->name) } ($b, $c);

foreach my $round (1 .. $rounds)
{
	my $planned = $round % 2 == 1;

	wait_for_standby($primary, $standby);
	push @clients, start_client($primary, 'a');
	my $written = query($b, "SELECT n FROM counter WHERE node = 'a'");
	poll($b, "SELECT n > $written + 20 FROM counter WHERE node = 'a'");
	if ($planned)
	{
		# It ends once its standby, and the other members, have everything.
		$primary->stop;
		$standby->promote;
	}
	else
	{
		fail_over($primary, $standby);
	}
	switch_address($standby);
	push @clients, start_client($standby, 'a');
	$written = query($standby, "SELECT n FROM counter WHERE node = 'a'");
	poll($_, "SELECT n > $written FROM counter WHERE node = 'a'")
	  foreach ($b, $c);
	stop_client($_)
	  foreach grep { !$_->{ids} && $_->{label} eq 'a' } @clients;
	come_back($primary, $standby, $planned);
	($primary, $standby) = ($standby, $primary);
}

stop_client($_) foreach grep { !$_->{ids} } @clients;
foreach my $node ($b, $c)
{
	wait_for_apply($primary, $node, 'weft_g_a_' . $node->name);
	wait_for_apply($node, $primary, 'weft_g_' . $node->name . '_a');
}
wait_for_group('g', $b, $c);
check_clients([ $primary, $b, $c ], \@clients, 'after all switches');
is(query($_, "SELECT count(*) FROM weft.health() WHERE id = 'H015'"),
	0, 'nothing to report on ' . $_->name)
  foreach ($primary, $b, $c);
$_->stop foreach ($standby, $primary, $b, $c);
done_testing();
