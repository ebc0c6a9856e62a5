# Functions that the tests of node groups share: members, and waiting until all of
# them are in sync.
package GroupTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Copy qw(copy);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  new_member dsn create_group join_group start_join
  $wait_for_join wait_for_join
  subscription_name leftovers states wait_for_group same_on_all
  previous_server upgrade_server make_group start_ledger end_ledger check_ledgers
);

# A server that can become a member.
sub new_member
{
	my ($name, %params) = @_;
	return new_subscriber($name, %params,
		conf => <<EOC . ($params{conf} // ''));
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

# Where the server of the previous major version is installed, with Weft; undef without one.  The program that
# runs the tests looks for this name in them (tools/run-check.py).
sub previous_server
{
	my $bindir = $ENV{WEFT_PREVIOUS_BINDIR};

	return defined $bindir ? $bindir =~ s{/bin/?$}{}r : undef;
}

# Upgrade a stopped server of the previous major version with pg_upgrade; the new one has its name and address, and
# is started.
sub upgrade_server
{
	my ($old, @options) = @_;
	my $new = new_member(
		$old->name . '_new',
		port => $old->port,
		stopped => 1,
		extra => [ major() >= 18 ? '--no-data-checksums' : () ]);

	# not the address at which other members look for the server: they would use its slots
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	chdir $PostgreSQL::Test::Utils::tmp_check;
	command_ok(
		[
			'pg_upgrade', '--no-sync', @options,
			'--old-datadir' => $old->data_dir,
			'--new-datadir' => $new->data_dir,
			'--old-bindir' => $old->config_data('--bindir'),
			'--new-bindir' => $new->config_data('--bindir'),
			'--socketdir' => $new->host,
			'--old-port' => $port,
			'--new-port' => $port
		],
		'pg_upgrade of ' . $old->name);
	my $gates = '/weft_ddl_gates';
	copy($old->data_dir . $gates, $new->data_dir . $gates)
	  or die "could not copy: $!"
	  if -e $old->data_dir . $gates;
	$new->{_name} = $old->name;
	$new->start;
	return $new;
}

# Make servers with an older version of the extension, and with the same empty tables, members of a group, as that
# version's own functions do when a node joins: the library of a newer version does not join with them.
sub make_group
{
	my ($group, @nodes) = @_;
	my %identity;
	my $number = 0;

	create_group($nodes[0], $group);
	foreach my $node (@nodes)
	{
		$number++;
		next if $number == 1;
		query($node, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
			$node->name, dsn($node));
		query($node, <<EOS);
INSERT INTO weft.node_group_entry VALUES ('$group', NULL, @{[1 + @nodes]});
UPDATE weft.node_entry SET node_id = $number, state = 'active' WHERE is_local;
SELECT weft.member_publish(), weft.member_track_deletes(true);
EOS
	}
	$identity{ $_->name } =
	  query($_, 'SELECT identity FROM weft.node_entry WHERE is_local')
	  foreach @nodes;
	foreach my $node (@nodes)
	{
		foreach my $i (grep { $nodes[$_] != $node } 0 .. $#nodes)
		{
			my $name = $nodes[$i]->name;

			query($node, sprintf <<EOS, dsn($nodes[$i]));
INSERT INTO weft.node_entry (node_name, node_id, state, identity)
	VALUES ('$name', @{[$i + 1]}, 'active', '$identity{$name}');
SELECT weft.set_node_dsn('$name', \$\$%s\$\$);
EOS
			query($node,
				"SELECT weft.member_make_slot('$name', '$identity{$name}')");
		}
	}
	foreach my $node (@nodes)
	{
		foreach my $other (map { $_->name } grep { $_ != $node } @nodes)
		{
			query($node,
				"SELECT weft.member_subscribe('$other', '$identity{$other}', true)"
			);
		}
	}
	return;
}

# Clients of a member that write rows of their own, and change rows that all members change.  The tables are
#	ledger (node text, id int, PRIMARY KEY (node, id)) and account (id int PRIMARY KEY, v int, node text),
# with 100 rows in the latter; each member has a sequence "entry".
my %acknowledged;

sub start_ledger
{
	my ($node) = @_;
	my $name = $node->name;
	my $count = "count(*) FROM ledger WHERE node = '$name'";
	my $before = query($node, "SELECT $count");
	my $load = start_pgbench(
		$node,
		{ <<EOS => 1 }, '-T' => 600, '-c' => 2, '-R' => 100, '--max-tries' => 1);
\\set id random(1, 100)
BEGIN;
INSERT INTO ledger VALUES ('$name', nextval('entry'));
UPDATE account SET v = v + 1, node = '$name' WHERE id = :id;
END;
EOS

	poll($node, "SELECT $before + 50 <= $count");
	return $load;
}

# End such clients; with may_fail, their server was stopped.  Nothing else may have failed.
sub end_ledger
{
	my ($load, %params) = @_;
	my $name = $load->{node}->name;

	if ($params{may_fail})
	{
		finish($load, may_fail => 1);
	}
	else
	{
		end_load($load);
		unlike($load->{output}, qr/aborted|ERROR|FATAL/,
			"clients of $name: no errors");
	}
	my ($count) = $load->{output} =~ /transactions actually processed: (\d+)/;
	die "no number of transactions: $load->{output}" unless defined $count;
	$acknowledged{$name} += $count;
	return $count;
}

# All members have the same rows, and whatever was acknowledged is among them.
sub check_ledgers
{
	my ($nodes, $what) = @_;

	same_on_all($nodes, [ 'ledger', 'account' ], $what);
	foreach my $name (sort keys %acknowledged)
	{
		my $count = query($nodes->[0],
			"SELECT count(*) FROM ledger WHERE node = '$name'");
		cmp_ok($count, '>=', $acknowledged{$name},
			"$what: all of the $acknowledged{$name} acknowledged transactions of $name are there"
		);
		cmp_ok($acknowledged{$name}, '>', 0, "$what: $name was written to");
	}
	return;
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
