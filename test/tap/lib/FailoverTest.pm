# Functions for tests with physical standbys: building, holding back, losing and promoting them, and
# clients that write down what was acknowledged.
package FailoverTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

our @EXPORT = qw(
  new_standby standby_sender standby_receiver kill_server promote
  start_ledger acknowledged missing_from doubled
);

# Build a standby that uses a slot of its own name, and return once it streams.
sub new_standby
{
	my ($primary, $name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$primary->safe_psql('postgres',
		"SELECT pg_create_physical_replication_slot('$name', true)")
	  unless query(
		$primary,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$name'"
	  );
	$primary->backup("for_$name", backup_options => ['--checkpoint=fast']);
	$node->init_from_backup($primary, "for_$name", has_streaming => 1);
	$node->append_conf('postgresql.conf', <<"EOC");
primary_slot_name = '$name'
primary_conninfo = '@{[ $primary->connstr('postgres') =~ s/'/''/gr ]} application_name=$name'
hot_standby_feedback = on
wal_receiver_status_interval = 1s
EOC
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	$node->start;
	poll($primary,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$name' AND state = 'streaming'"
	);
	return $node;
}

# The process of the primary that sends to a standby.
sub standby_sender
{
	my ($primary, $name) = @_;
	return poll_for($primary,
		"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '$name'"
	);
}

# The process of the standby that receives.
sub standby_receiver
{
	my ($standby) = @_;
	return poll_for($standby, 'SELECT pid FROM pg_stat_wal_receiver');
}

# End all processes of a server at once, stopped ones included, as if its machine was switched off.
sub kill_server
{
	my ($node) = @_;
	my @pids = server_pids($node);

	kill 9, @pids;
	die 'processes do not go away' if not_ended(@pids);
	# so that Cluster does not take a new process of this number for the server
	unlink $node->data_dir . '/postmaster.pid';
	$node->_update_pid(0);
	return;
}

sub promote
{
	my ($node) = @_;
	$node->promote;
	poll($node, 'SELECT NOT pg_is_in_recovery()');
	return;
}

# Start clients that insert rows (client, number) into table "ledger", and update a row of "account".
# pgbench writes down each transaction that the server has acknowledged.
my $ledgers = 0;

sub start_ledger
{
	my ($node, $round, $clients, @options) = @_;
	my $prefix = sprintf('%s/ledger_%s_%d',
		$PostgreSQL::Test::Utils::tmp_check,
		$node->name, ++$ledgers);
	my $load = start_pgbench(
		$node,
		{ <<"EOS" => 1 }, '-c', $clients, '-D', 'n=0', '-l', '--log-prefix', $prefix, @options);
\\set n :n + 1
\\set id random(1, 100)
BEGIN;
INSERT INTO ledger VALUES ($round, :client_id, :n);
UPDATE account SET v = v + 1 WHERE id = :id;
COMMIT;
EOS
	$load->{prefix} = $prefix;
	$load->{round} = $round;
	return $load;
}

# What was acknowledged to a load that has ended, as rows of the ledger.
sub acknowledged
{
	my ($load) = @_;
	my @rows;

	foreach my $file (glob "$load->{prefix}.*")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			# client, transaction, time (or "failed"), ...
			my ($client, $transaction) = $line =~ /^(\d+) (\d+) \d+ / or next;
			push @rows, sprintf '(%d,%d,%d)', $load->{round}, $client,
			  $transaction;
		}
	}
	return @rows;
}

# Those of these rows that a node's ledger lacks.
sub missing_from
{
	my ($node, @rows) = @_;
	my %has = map { $_ => 1 } split /\n/,
	  query($node, 'SELECT l FROM ledger l');
	return grep { !$has{$_} } @rows;
}

# Rows that a node's ledger has more than once.
sub doubled
{
	my ($node) = @_;
	return query($node,
		'SELECT round, client, n, count(*) FROM ledger GROUP BY 1, 2, 3 HAVING count(*) > 1'
	);
}

1;
