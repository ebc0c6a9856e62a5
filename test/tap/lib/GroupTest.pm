# Functions that the tests of node groups share: members, and waiting until all of
# them are in sync.
package GroupTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  new_member dsn create_group join_group start_join
  $wait_for_join wait_for_join
  subscription_name leftovers states wait_for_group same_on_all
);

# A server that can become a member.
sub new_member
{
	my ($name, %params) = @_;
	return new_subscriber($name, conf => <<EOC . ($params{conf} // ''));
autovacuum = off
track_commit_timestamp = on
max_wal_senders = 20
max_replication_slots = 20
wal_retrieve_retry_interval = 100ms
weft.writers_per_subscription = 2
weft.min_parallel_copy_size = 64kB
$offer_plugin
EOC
}

sub dsn
{
	my ($node) = @_;
	return $node->connstr . ' dbname=postgres';
}

# The first member.
sub create_group
{
	my ($node, $group) = @_;

	query($node, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$node->name, dsn($node));
	query($node, "SELECT weft.create_node_group('$group')");
	return;
}

sub start_join
{
	my ($node, $target, $group) = @_;

	query($node, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$node->name, dsn($node))
	  unless query($node, 'SELECT count(*) FROM weft.node');
	query($node, sprintf "SELECT weft.join_node_group(\$\$%s\$\$, '%s')",
		dsn($target), $group);
	return;
}

our $wait_for_join =
  "SELECT weft.wait_for_join_completion('$PostgreSQL::Test::Utils::timeout_default s')";

sub wait_for_join
{
	my ($node) = @_;
	query($node, $wait_for_join);
	return;
}

sub join_group
{
	my ($node, $target, $group) = @_;

	start_join($node, $target, $group);
	wait_for_join($node);
	return;
}

sub subscription_name
{
	my ($group, $from, $to) = @_;
	return join '_', 'weft', $group, $from->name, $to->name;
}

# Slots, subscriptions, origins and publications of a group on a node.
sub leftovers
{
	my ($node) = @_;
	return query($node, <<'EOS');
SELECT 'slot ' || slot_name FROM pg_replication_slots
UNION ALL SELECT 'subscription ' || subname FROM pg_subscription
UNION ALL SELECT 'origin ' || roname FROM pg_replication_origin
UNION ALL SELECT 'publication ' || pubname FROM pg_publication
UNION ALL SELECT 'node ' || node_name FROM weft.node WHERE NOT is_local
UNION ALL SELECT 'label ' || label FROM pg_shseclabel
ORDER BY 1
EOS
}

# Return once every member has applied what all others have now.
sub wait_for_group
{
	my ($group, @nodes) = @_;

	foreach my $to (@nodes)
	{
		foreach my $from (@nodes)
		{
			wait_for_apply($from, $to, subscription_name($group, $from, $to))
			  if $from != $to;
		}
	}
	return;
}

# The nodes that a member lists, each with its state.
sub states
{
	my ($member) = @_;
	return query($member,
		"SELECT string_agg(node_name || ' ' || state, ', ' ORDER BY node_name) FROM weft.node"
	);
}

sub same_on_all
{
	my ($nodes, $tables, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($first, @others) = @$nodes;
	my $same = 1;

	foreach my $other (@others)
	{
		same_tables($first, $other, $tables,
			"$what: " . $first->name . ' and ' . $other->name)
		  or $same = 0;
	}
	return $same;
}

1;
