# What the tests of switch-overs share.
package SwitchTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  connection call_switch switch_over switch_back refuses accepts accepting
  left_over $patient wait_until_connected
);

# On a busy machine, the steps of a pause may take much longer than on others.
our $patient = "max_pause => '2 min'";

sub connection
{
	my ($node) = @_;
	return $node->connstr . ' dbname=postgres';
}

# Calls a procedure, after another command if there is one; returns its standard error, '' if
# it succeeds.
sub call_switch
{
	my ($sub, $call, $before) = @_;
	my ($ret, $stdout, $stderr) = $sub->psql(
		'postgres',
		($before ? "$before;\n" : '') . "CALL weft.$call",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	return $ret == 0 ? '' : $stderr || 'failed';
}

# The plan refuses a subscription that is not connected.  Return once an apply worker is
# connected that is not about to end because the slot is still in use.
sub wait_until_connected
{
	my ($pub, $sub, $name) = @_;

	return
	  if query($sub,
		"SELECT subenabled FROM pg_subscription WHERE subname = '$name'") ne
	  't';
	poll_for(
		$pub,
		"SELECT backend_start FROM pg_stat_activity JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = '$name'",
		sub {
			my ($since) = @_;
			return $since ne ''
			  && query($sub,
				"SELECT count(*) FROM pg_stat_activity JOIN pg_stat_subscription USING (pid) WHERE subname = '$name' AND worker_type = 'apply' AND backend_start < '$since'"
			  );
		});
	return;
}

# With the options, if any, and with $patient unless they limit the pause.
sub with_options
{
	my ($options) = @_;
	return ", $patient" unless $options;
	return $options =~ /max_pause/ ? ", $options" : ", $options, $patient";
}

sub switch_over
{
	my ($sub, $name, $options) = @_;
	return call_switch($sub,
			"switch_over('$name', '"
		  . connection($sub) . "'"
		  . with_options($options)
		  . ')');
}

sub switch_back
{
	my ($sub, $name, $options) = @_;
	return call_switch($sub,
		"switch_back('$name'" . with_options($options) . ')');
}

# Is a command refused by a fence?  Returns its standard error.
sub refused_by
{
	my ($node, $sql) = @_;
	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', "BEGIN; $sql; ROLLBACK", on_error_stop => 1);
	return $ret != 0 && $stderr =~ /is fenced: / ? 1 : 0;
}

sub refuses
{
	my ($node, $sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(refused_by($node, $sql), "refused on " . $node->name . ": $what");
	return;
}

sub accepts
{
	my ($node, $sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $node->psql('postgres', "BEGIN; $sql; ROLLBACK", on_error_stop => 1),
		0,
		"accepted on " . $node->name . ": $what");
	return;
}

# The names of those nodes that accept writes to a table that has a column "id".
sub accepting
{
	my ($table, @nodes) = @_;
	return join ' ', map { $_->name }
	  grep { !refused_by($_, "UPDATE $table SET id = id WHERE false") }
	  @nodes;
}

# What an attempt has left on a node, apart from the fence.
sub left_over
{
	my ($node) = @_;
	return query($node,
		"SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name ~ '^weft_switch'"
		  . " UNION ALL SELECT 'publication ' || pubname FROM pg_publication WHERE pubname ~ '^weft_switch'"
		  . " UNION ALL SELECT 'subscription ' || subname FROM pg_subscription WHERE subname ~ '^weft_switch'"
	);
}

1;
