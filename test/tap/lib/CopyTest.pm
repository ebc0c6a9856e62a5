# Functions that the tests of the initial copy share.
package CopyTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WeftTest;

our @EXPORT = qw(
  copy_subscriber hold_copy wait_for_held_copy leave_untold copied_by left_to_server
  indexes_sound nothing_left
);

# Start a subscriber that uses helpers for small tables, too.
sub copy_subscriber
{
	my ($name, %params) = @_;
	my $node = new_subscriber($name, conf => <<EOC . ($params{conf} // ''));
autovacuum = off
max_parallel_workers = 16
max_sync_workers_per_subscription = 4
EOC
	$node->append_conf('postgresql.conf', <<EOC) if weft();
weft.copy_workers_per_table = 3
weft.max_copy_workers = 16
weft.min_parallel_copy_size = 0
EOC
	query($node, 'CREATE EXTENSION amcheck');
	$node->restart;
	return $node;
}

# The next copy of table t stands still, at the first row for which the condition holds, until the
# session that is returned ends or executes pg_advisory_unlock(1).
sub hold_copy
{
	my ($node, $condition) = @_;

	query($node, <<EOS);
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
	RETURN NEW;
END \$\$;
CREATE TRIGGER hold BEFORE INSERT ON t FOR EACH ROW WHEN ($condition) EXECUTE FUNCTION hold();
ALTER TABLE t ENABLE ALWAYS TRIGGER hold;
EOS
	my $session = open_session($node);
	$session->query_safe('SELECT pg_advisory_lock(1)');
	return $session;
}

sub wait_for_held_copy
{
	my ($node) = @_;
	poll($node,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
	);
	return;
}

# End a held copy, and stop the apply worker, so that the table waits to be told how far to go.  Returns the apply
# worker, and the table's own walsender.
sub leave_untold
{
	my ($pub, $sub, $session) = @_;
	my $leader = leader_pid($sub, 'sub');
	my $streaming = query($pub,
		"SELECT pid FROM pg_stat_replication WHERE state = 'streaming'");

	kill 'STOP', $leader or die "could not stop $leader";
	$session->query_safe('SELECT pg_advisory_unlock(1)');
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'logical replication tablesync worker' AND wait_event = 'LogicalSyncStateChange')"
	);
	my $sender = query($pub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' AND pid <> $streaming"
	);
	return ($leader, $sender);
}

# The number of processes that copied a table, according to the last message in the
# log, or 0.
sub copied_by
{
	my ($node, $table, $offset) = @_;
	my @by = slurp_file($node->logfile, $offset // 0) =~
	  /table "\Q$table\E" of \w+ "\w+" was copied by (\d+) process/g;
	return @by ? $by[-1] : 0;
}

# Why the server copied a table itself, according to the log, or an empty string.
sub left_to_server
{
	my ($node, $table, $offset) = @_;
	my ($reason) = slurp_file($node->logfile, $offset // 0) =~
	  /table "\Q$table\E" of \w+ "\w+" is copied by the server's own code: (.*)/;
	return $reason // '';
}

# One test: all indexes of the tables are valid and match the tables.
sub indexes_sound
{
	my ($node, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $bad = query($node, <<'EOS');
SELECT indexrelid::regclass FROM pg_index
WHERE NOT (indisvalid AND indisready AND indislive) OR indcheckxmin
EOS
	my ($ret, $stdout, $stderr) = $node->psql('postgres', <<'EOS');
SELECT count(bt_index_check(i.indexrelid, true, i.indisunique))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
	JOIN pg_am a ON a.oid = c.relam
WHERE a.amname = 'btree' AND c.relkind = 'i' AND c.relpersistence = 'p'
	AND c.relnamespace = 'public'::regnamespace
EOS
	return is($bad . $stderr, '', "$what: all indexes are sound");
}

# One test: the initial copy has left nothing on the publisher.
sub nothing_left
{
	my ($pub, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $left =
		"SELECT count(*) FROM pg_stat_activity"
	  . " WHERE backend_type = 'client backend' AND query ~ '^COPY|SNAPSHOT|tid'"
	  . " AND pid <> pg_backend_pid()";

	poll($pub,
		"SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name ~ '_sync_')"
	);
	poll($pub, $left, '0');
	# a session whose client has been killed may not have noticed yet
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my @snapshots;
	while (@snapshots = glob $pub->data_dir . '/pg_snapshots/*'
		and time < $deadline)
	{
		usleep(100_000);
	}
	return is("@snapshots", '', "$what: nothing is left on the publisher");
}

1;
