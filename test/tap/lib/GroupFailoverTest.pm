# Functions that the tests of members with a physical standby share: standbys, failing over, and
# clients that know which of their transactions were acknowledged.
package GroupFailoverTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Path qw(remove_tree);
use GroupTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  set_on two_hosts make_standby wait_for_standby fail_over
  copy_files replace_files
  create_ledger start_client stop_client check_clients poll_group
);

# Change parameters in postgresql.conf, and return once new sessions have them.
sub set_on
{
	my ($node, %values) = @_;

	$node->append_conf('postgresql.conf', "$_ = '$values{$_}'")
	  foreach sort keys %values;
	$node->reload;
	poll($node, "SELECT current_setting('$_') = '$values{$_}'")
	  foreach sort keys %values;
	return;
}

# An address for two servers, of which one accepts writes.
sub two_hosts
{
	my ($first, $second) = @_;
	return
	  sprintf
	  'host=%s,%s port=%s,%s dbname=postgres target_session_attrs=read-write',
	  $first->host, $second->host, $first->port, $second->port;
}

# A standby of a member, whose physical slot has the name of the standby.  With "synchronous", the
# member waits for it, and so do the subscriptions of the member.  With "guarded", the member sends
# others nothing that the standby does not have.
sub make_standby
{
	my ($primary, $standby, %params) = @_;
	my $name = $standby->name;

	query($primary,
		"SELECT pg_create_physical_replication_slot('$name', true)");
	$primary->backup($name, backup_options => ['-cfast']);
	$standby->init_from_backup($primary, $name, has_streaming => 1);
	$standby->append_conf('postgresql.conf', <<EOC);
port = @{[ $standby->port ]}
primary_conninfo = '@{[ $primary->connstr ]} dbname=postgres application_name=$name'
primary_slot_name = '$name'
hot_standby_feedback = on
sync_replication_slots = on
synchronous_standby_names = ''
synchronized_standby_slots = ''
wal_receiver_status_interval = 1s
EOC
	$standby->start;
	set_on($primary, synchronous_standby_names => $name)
	  if $params{synchronous};
	set_on($primary, synchronized_standby_slots => $name) if $params{guarded};

	if ($params{synchronous})
	{
		query($primary, "ALTER SUBSCRIPTION $_ SET (synchronous_commit = on)")
		  foreach split /\n/,
		  query($primary, 'SELECT subname FROM pg_subscription');
	}
	return;
}

# Return once the standby could take over: it streams, and has all slots of the group.
sub wait_for_standby
{
	my ($primary, $standby) = @_;
	my $slots = query($primary,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'"
	);

	poll(
		$primary,
		sprintf
		  "SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '%s' AND state = 'streaming'",
		$standby->name);
	foreach my $i (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return
		  if query($standby,
			'SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary AND invalidation_reason IS NULL'
		  ) == $slots;
		# A new slot becomes ready when the standby has a snapshot of running transactions.
		query($primary, 'SELECT pg_log_standby_snapshot()');
		select undef, undef, undef, 0.1;
	}
	die 'the slots are not on the standby: '
	  . query($standby, 'SELECT * FROM pg_replication_slots');
}

# The primary is killed, and the standby promoted.
sub fail_over
{
	my ($primary, $standby) = @_;
	my @pids = server_pids($primary);

	kill 9, @pids;
	die 'the primary does not end' if not_ended(@pids);
	$primary->_update_pid(-1);
	$standby->promote;
	return;
}

# --- files ---

# Copies the server's files as a snapshot of its disk would be, which takes a restart; returns the folder.
sub copy_files
{
	my ($node) = @_;
	my $copy = $node->basedir . '/copy';

	$node->stop('immediate');
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $copy);
	chmod 0700, $copy;
	$node->start;
	return $copy;
}

# Starts the server from such a folder; returns the folder with the files that it had.
sub replace_files
{
	my ($node, $copy) = @_;
	my $old = $node->basedir . '/old';

	$node->stop('immediate');
	remove_tree($old) if $old ne $copy;
	rename $node->data_dir, "$old.new" or die "could not rename: $!";
	rename $copy, $node->data_dir or die "could not rename: $!";
	rename "$old.new", $old or die "could not rename: $!";
	$node->start;
	return $old;
}

# --- ledgers ---

sub create_ledger
{
	my ($node) = @_;
	query($node, <<'EOS');
CREATE TABLE ledger (id bigint PRIMARY KEY, node text NOT NULL);
CREATE TABLE counter (node text PRIMARY KEY, n bigint NOT NULL);
INSERT INTO counter SELECT n, 0 FROM unnest(ARRAY['a', 'b', 'c', 'd']) n;
EOS
	return;
}

# Start a client that writes until it is stopped, or loses its server.  Each transaction inserts a row, and
# increments a counter that only clients of this member touch.  Its output has the ids of those that were
# acknowledged.
my $clients = 0;

sub start_client
{
	my ($node, $label) = @_;
	my $number = ++$clients;
	my $base = PostgreSQL::Test::Utils::tempdir('client') . "/$number";
	my $script = '';

	foreach my $i (1 .. 20_000)
	{
		my $id = $number * 1_000_000 + $i;
		$script .=
		  "WITH i AS (INSERT INTO ledger VALUES ($id, '$label') RETURNING id), u AS (UPDATE counter SET n = n + 1 WHERE node = '$label') SELECT id FROM i;\n"
		  . "\\o /dev/null\nSELECT pg_sleep(0.003);\n\\o\n";
	}
	append_to_file("$base.sql", $script);
	my $client = { label => $label, file => "$base.out", node => $node };
	$client->{run} = IPC::Run::start(
		[
			'stdbuf', '-oL',
			$node->installed_command('psql'), '-XAtq',
			'-v', 'ON_ERROR_STOP=1',
			'-d', $node->connstr('postgres'),
			'-f', "$base.sql"
		],
		'<',
		\undef,
		'>',
		"$base.out",
		'2>',
		"$base.err");
	return $client;
}

# Stop it; what it was waiting for may have been committed or not.
sub stop_client
{
	my ($client) = @_;

	$client->{run}->signal('KILL');
	eval { $client->{run}->finish };
	$client->{ids} = [ split /\n/, slurp_file($client->{file}) ];
	# of a line that was being written
	pop @{ $client->{ids} }
	  if @{ $client->{ids} } && slurp_file($client->{file}) !~ /\n\z/;
	return;
}

# All members have the same ledger: every acknowledged transaction is there, once.
sub check_clients
{
	my ($nodes, $clients, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $acknowledged = 0;

	same_on_all($nodes, [ 'ledger', 'counter' ], $what);
	my %have = map { $_ => 1 } split /\n/,
	  query($nodes->[0], 'SELECT id FROM ledger');
	foreach my $client (@$clients)
	{
		my @lost = grep { !$have{$_} } @{ $client->{ids} };
		$acknowledged += @{ $client->{ids} };
		is( scalar @lost,
			0,
			"$what: nothing is lost of $client->{label}'s client, which had "
			  . @{ $client->{ids} }
			  . ' acknowledged'
		) or diag("lost: @lost[0 .. ($#lost > 9 ? 9 : $#lost)]");
	}
	is( query(
			$nodes->[0],
			'SELECT string_agg(node, $$ $$) FROM counter WHERE n <> (SELECT count(*) FROM ledger l WHERE l.node = counter.node)'
		),
		'',
		"$what: nothing is doubled");
	cmp_ok($acknowledged, '>', 0,
		"$what: $acknowledged transactions were acknowledged");
	return $acknowledged;
}

# Return once all links of the group stream.
sub poll_group
{
	my ($node, $links) = @_;
	poll($node,
		"SELECT count(*) = $links AND bool_and(state = 'streaming') FROM weft.node_group_replication()"
	);
	return;
}

1;
