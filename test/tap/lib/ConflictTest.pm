# Functions that the TAP tests of conflicts share: nodes that subscribe to each
# other like the members of a group, but without a group.
package ConflictTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  new_member new_members create_tables connect_members quiet cut_off join_again
  set_resolvers conflict_counts history
);

# Start a node.  If WEFT_FAKETIME is the path of libfaketime, then its clock is ahead
# by "ahead" seconds.
sub new_member
{
	my ($name, %params) = @_;
	my $library = $ENV{WEFT_FAKETIME};
	local %ENV = (
		%ENV,
		LD_PRELOAD => $library,
		FAKETIME => sprintf('%+ds', $params{ahead}),
		FAKETIME_DONT_FAKE_MONOTONIC => 1) if $library && $params{ahead};

	return new_subscriber($name, %params,
		conf => <<EOC . ($params{conf} // ''));
track_commit_timestamp = on
autovacuum = off
weft.writers_per_subscription = 4
max_wal_senders = 20
max_replication_slots = 20
$offer_plugin
EOC
}

sub new_members
{
	my ($count, %params) = @_;
	my @ahead = @{ delete $params{ahead} // [] };
	return
	  map { new_member("n$_", %params, ahead => shift @ahead // 0) }
	  1 .. $count;
}

# Create tables on all nodes, each with a key, and publish them.
sub create_tables
{
	my ($nodes, $schema, @tables) = @_;
	my $list = join ', ', @tables;

	query_all($nodes, $schema);
	query_all($nodes, "CREATE PUBLICATION pub FOR TABLE $list");
	query_all($nodes, "SELECT weft.track_deletes('$_')") foreach @tables;
	return;
}

# Every node subscribes to every other one; ni's subscription to nj is from_nj.
sub connect_members
{
	my ($nodes, $options) = @_;

	foreach my $to (0 .. $#$nodes)
	{
		query($nodes->[$to],
			"INSERT INTO weft.conflict_node VALUES ('', @{[ $to + 1 ]})");
		foreach my $from (0 .. $#$nodes)
		{
			next if $from == $to;
			my $name = 'from_' . $nodes->[$from]->name;
			my $connstr = $nodes->[$from]->connstr . ' dbname=postgres';

			query($nodes->[$to],
				"CREATE SUBSCRIPTION $name CONNECTION '$connstr' PUBLICATION pub"
				  . " WITH (slot_name = 'to_@{[ $nodes->[$to]->name ]}',"
				  . ' origin = none, copy_data = off, detect_conflicts = on'
				  . ($options ? ", $options" : '')
				  . ')');
			query($nodes->[$to],
				"INSERT INTO weft.conflict_node VALUES ('$name', @{[ $from + 1 ]})"
			);
		}
	}
	quiet($nodes);
	return;
}

# Wait until every node has applied everything.
sub quiet
{
	my ($nodes) = @_;

	foreach my $to (@$nodes)
	{
		foreach my $from (@$nodes)
		{
			wait_for_apply($from, $to, 'from_' . $from->name)
			  if $from != $to;
		}
	}
	return;
}

# Disable all subscriptions, and wait until no process applies anything.
sub cut_off
{
	my ($nodes) = @_;

	foreach my $node (@$nodes)
	{
		query($node, $_)
		  foreach split /\n/,
		  query($node,
			"SELECT format('ALTER SUBSCRIPTION %I DISABLE', subname) FROM pg_subscription"
		  );
	}
	poll($_,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('logical replication apply worker', 'weft writer')"
	) foreach @$nodes;
	return;
}

sub join_again
{
	my ($nodes) = @_;

	foreach my $node (@$nodes)
	{
		query($node, $_)
		  foreach split /\n/,
		  query($node,
			"SELECT format('ALTER SUBSCRIPTION %I ENABLE', subname) FROM pg_subscription"
		  );
	}
	return;
}

# Set one resolver for all types of conflicts.
sub set_resolvers
{
	my ($node, $resolver) = @_;

	query($node, <<EOS);
SELECT weft.alter_node_set_conflict_resolver('', t, '$resolver')
FROM unnest('{insert_exists,update_origin_differs,update_exists,update_missing,delete_origin_differs,delete_missing,multiple_unique_conflicts}'::text[]) t
EOS
	return;
}

# The number of conflicts resolved, by type.
sub conflict_counts
{
	my ($node) = @_;
	return query($node,
		"SELECT string_agg(conflict_type || ' ' || sum, ', ' ORDER BY conflict_type) FROM (SELECT conflict_type, sum(conflicts) FROM weft.stat_conflict GROUP BY 1) s WHERE sum > 0"
	);
}

# In the order of the remote transactions; writers record conflicts in any order.
sub history
{
	my ($node, $columns, $where) = @_;
	return query($node,
			"SELECT $columns FROM weft.conflict_history"
		  . ($where ? " WHERE $where" : '')
		  . ' ORDER BY remote_lsn, id');
}

1;
