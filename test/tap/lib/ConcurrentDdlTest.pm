# What the tests of schema changes that cannot run in a transaction block share: a publisher, a
# subscriber that uses plugin weft, and another one that uses pgoutput.
package ConcurrentDdlTest;

use strict;
use warnings FATAL => 'all';

use DdlTest;
use Exporter 'import';
use Test::More;
use WeftTest;

our @EXPORT = qw(
  start_servers stop_servers
  done wait_for_subscribers all_the_same all_the_same_but_rows
  states results is_valid detail failed_id
  waiting_worker later_change_waits hold_table
);

my ($pub, $sub, $other);

# Three servers, of which the second and third, with subscriptions "sub" and "other", have the tables
# of the first; the functions below are about these.
sub start_servers
{
	my $conf =
	  "wal_retrieve_retry_interval = 200ms\nrestart_after_crash = on\n";

	$pub = new_publisher('publisher');
	$sub = new_subscriber('subscriber', conf => $conf);
	$other = new_subscriber('other', conf => $conf);
	query($_, 'CREATE EXTENSION IF NOT EXISTS weft')
	  foreach $pub, $sub, $other;
	query_all(
		[ $pub, $sub, $other ],
		'CREATE ROLE alice; CREATE ROLE bob; GRANT CREATE ON SCHEMA public TO alice'
	);
	query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
	subscribe($pub, $sub, 'sub', 'pub');
	subscribe_with_pgoutput($pub, $other, 'other', 'pub');
	query($pub, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int, w text);
INSERT INTO t SELECT g, g % 100, g FROM generate_series(1, 1000) g;
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (100) TO (200);
INSERT INTO part SELECT g, g FROM generate_series(1, 150) g;
EOS
	return ($pub, $sub, $other);
}

sub stop_servers
{
	unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
	  foreach $pub, $sub, $other;
	$_->stop foreach $sub, $other, $pub;
	return;
}

# No statement is waiting.
sub done
{
	my ($node) = @_;
	poll($node,
		"SELECT count(*) = 0 FROM weft.ddl_concurrent WHERE state <> 'failed'"
	);
	return;
}

# Both subscribers have applied everything, and no statement is waiting there.
sub wait_for_subscribers
{
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($pub, $other, 'other');
	done($_) foreach $sub, $other;
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_subscribers();
	same_everything($pub, $sub, "$what, plugin weft");
	same_everything($pub, $other, "$what, pgoutput");
	return;
}

# The same, with rows that were made different.
sub all_the_same_but_rows
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_subscribers();
	same_schema($pub, $sub, "$what, sub");
	same_schema($pub, $other, "$what, other");
	return;
}

# The states of the statements that are waiting, or have failed.
sub states
{
	my ($node) = @_;
	return query($node,
		'SELECT state, attempts FROM weft.ddl_concurrent ORDER BY id');
}

# How a statement has ended, as the history shows it.
sub results
{
	my ($node, $pattern) = @_;
	return query($node,
		"SELECT string_agg(result, ',' ORDER BY recorded_at) FROM weft.ddl_history WHERE statement ~ '$pattern'"
	);
}

sub is_valid
{
	my ($node, $index) = @_;
	return query($node,
		"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('$index')"
	);
}

# The worker's process, once it waits for another session; another process than an earlier worker's, if
# that is given.
sub waiting_worker
{
	my ($node, $earlier) = @_;
	return poll_for(
		$node,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft ddl worker' AND wait_event_type = 'Lock'",
		sub { $_[0] =~ /^\d+$/ && $_[0] != ($earlier // 0) });
}

# How a statement has ended at last, and why.
sub detail
{
	my ($node, $pattern) = @_;
	return query($node,
		"SELECT result, detail FROM weft.ddl_history WHERE statement ~ '$pattern' ORDER BY recorded_at DESC LIMIT 1"
	);
}

# The id of a statement that has failed, once it has.
sub failed_id
{
	my ($node, $pattern) = @_;
	return poll_for($node,
		"SELECT id FROM weft.ddl_concurrent WHERE state = 'failed' AND message->>'statement' ~ '$pattern'"
	);
}

# A schema change waits for an earlier one of the same table.
sub later_change_waits
{
	my ($node) = @_;
	poll($node,
		q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'}
	);
	return;
}

# The worker waits for a session that has written the table.
sub hold_table
{
	my ($node, $table) = @_;
	my $session = open_session($node);
	$session->query_safe("BEGIN; UPDATE $table SET id = id WHERE id = 3");
	return $session;
}

1;
