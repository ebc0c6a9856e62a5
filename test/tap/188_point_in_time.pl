# Point-in-time recovery of a subscriber and of a publisher.
#
# A subscriber that is restored to an earlier time has a replication origin of that time, but the publisher was told
# that more is flushed, and its slot does not send that again.  A copy of the slot that was made before the base backup
# does.  Without one, weft.compare_subscription and weft.repair bring back what is missing.
# A publisher that is restored has no slots, and the subscriber is ahead of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('pub');
my $sub = new_subscriber('sub', conf => 'weft.writers_per_subscription = 3');
foreach my $node ($pub, $sub)
{
	$node->enable_archiving;
	$node->restart;
}
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE log (id bigserial PRIMARY KEY, t_id int NOT NULL);
EOS
query($pub, <<'EOS');
CREATE EXTENSION weft;
INSERT INTO t SELECT g, 0 FROM generate_series(1, 500) g;
CREATE PUBLICATION p FOR TABLE t, log;
EOS
subscribe($pub, $sub, 's', 'p');
wait_for_apply($pub, $sub, 's');

my $script = <<'EOS';
\set id random(1, 500)
BEGIN;
UPDATE t SET n = n + 1 WHERE id = :id;
INSERT INTO log (t_id) VALUES (:id);
COMMIT;
EOS

sub run_load
{
	my ($node, $transactions) = @_;
	finish(
		start_pgbench($node, { $script => 1 }, '-t', $transactions, '-c', 4));
	return;
}

sub check
{
	my ($there, $here, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($there, $here, 's');
	same_tables($there, $here, [qw(t log)], $what);
	return;
}

# A server from a base backup, recovered up to a restore point.
sub restore
{
	my ($node, $name, $conf) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($node, 'base', has_restoring => 1, standby => 0);
	$copy->append_conf('postgresql.conf', <<"EOC");
recovery_target_name = 'here'
recovery_target_action = 'promote'
archive_mode = off
$conf
EOC
	$copy->start;
	poll($copy, 'SELECT NOT pg_is_in_recovery()');
	return $copy;
}

sub switch_wal
{
	my ($node) = @_;
	my $file = query($node, 'SELECT pg_walfile_name(pg_current_wal_lsn())');

	query($node, 'SELECT pg_switch_wal()');
	poll($node, "SELECT last_archived_wal >= '$file' FROM pg_stat_archiver");
	return;
}

# Compare all tables, and write what differs as the publisher has it.
sub repair
{
	my ($node) = @_;

	query($node,
		q(CALL weft.compare_subscription('s', max_differences => 100000)));
	my $comparison =
	  query($node, 'SELECT max(comparison) FROM weft.comparison');
	query($node, "CALL weft.repair($comparison, apply => true)");
	return;
}

my $positions =
  q(SELECT remote_lsn FROM pg_replication_origin_status o JOIN pg_subscription s ON o.external_id = 'pg_' || s.oid);
my $not_started = 'max_logical_replication_workers = 0';

# --- a subscriber, with a copy of the slot ---

query($pub, "SELECT pg_copy_logical_replication_slot('s', 's_kept')");
$sub->backup('base');
run_load($pub, 60);
check($pub, $sub, 'before the point in time');
query($sub, "SELECT pg_create_restore_point('here')");
my $count = query($sub, 'SELECT count(*) FROM log');
run_load($pub, 60);
check($pub, $sub, 'after it');
query($pub, 'DELETE FROM log WHERE id <= 20; DELETE FROM t WHERE id = 500');
wait_for_apply($pub, $sub, 's');
flush_wal($pub);
poll($pub,
	q(SELECT confirmed_flush_lsn >= pg_current_wal_flush_lsn() FROM pg_replication_slots WHERE slot_name = 's')
);
switch_wal($sub);
$sub->stop;

# The copy starts no subscription, so it does not take the place of the original.
my $restored = restore($sub, 'restored', $not_started);
is(query($restored, 'SELECT count(*) FROM log'),
	$count, 'it is restored to the point in time');
my $applied = query($restored, $positions);
is( query(
		$pub,
		"SELECT confirmed_flush_lsn > '$applied' FROM pg_replication_slots WHERE slot_name = 's'"
	),
	't',
	'the publisher was told that more is flushed');
is( query(
		$pub,
		"SELECT confirmed_flush_lsn <= '$applied' FROM pg_replication_slots WHERE slot_name = 's_kept'"
	),
	't',
	'the copy of the slot has what is missing');
query($restored, q(ALTER SUBSCRIPTION s SET (slot_name = 's_kept')));
query($pub, "SELECT pg_drop_replication_slot('s')");
$restored->adjust_conf('postgresql.conf', 'max_logical_replication_workers',
	'20');
$restored->restart;
run_load($pub, 30);
check($pub, $restored, 'with a copy of the slot');
is(query($restored, 'SELECT (SELECT sum(n) FROM t WHERE id < 500) > 0'),
	't', 'rows were applied');
$restored->stop;

# --- without one: the slot is ahead of what the subscriber has ---

my $second = restore($sub, 'second', $not_started);
query($second, q(ALTER SUBSCRIPTION s SET (slot_name = 's_kept')));
$second->adjust_conf('postgresql.conf', 'max_logical_replication_workers',
	'20');
$second->restart;
query($pub,
	'INSERT INTO log (t_id) VALUES (1); UPDATE t SET n = n + 1 WHERE id = 1');
wait_for_apply($pub, $second, 's');
cmp_ok(query($second, 'SELECT count(*) FROM log WHERE id <= 20'),
	'==', 20, 'rows that were deleted meanwhile are still there');
cmp_ok(
	query($second, 'SELECT count(*) FROM log'),
	'<',
	query($pub, 'SELECT count(*) FROM log'),
	'and others are missing');
query($second, q(CALL weft.compare_subscription('s')));
cmp_ok(
	query(
		$second,
		'SELECT sum(differences) FROM weft.comparison_table WHERE comparison = 1'
	),
	'>', 0,
	'a comparison finds it');
repair($second);
check($pub, $second, 'compared and repaired');
run_load($pub, 20);
check($pub, $second, 'and it goes on');

# --- a publisher: the subscriber is ahead ---

query($pub,
	q(SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name <> 's_kept')
);
$pub->backup('base');
run_load($pub, 30);
query($pub, "SELECT pg_create_restore_point('here')");
$count = query($pub, 'SELECT count(*) FROM log');
run_load($pub, 100);
check($pub, $second, 'before the publisher is lost');
switch_wal($pub);
$pub->stop;
my $new = restore($pub, 'new', '');
is(query($new, 'SELECT count(*) FROM log'),
	$count, 'it is restored to the point in time');
is(query($new, 'SELECT count(*) FROM pg_replication_slots'),
	0, 'it has no slots');

# With a new slot alone, changes would be skipped.
my $connection = $new->connstr . ' dbname=postgres';
my $log_offset = -s $second->logfile;
query($new,
	q(SELECT pg_create_logical_replication_slot(slot_name, 'weft') FROM (VALUES ('s'), ('s_kept')) s(slot_name))
);
query($second, "ALTER SUBSCRIPTION s CONNECTION '$connection'");
$second->wait_for_log(qr/ERROR:  subscription "s" is ahead of its publisher/,
	$log_offset);
pass('a subscriber that is ahead says so');
query($second, 'ALTER SUBSCRIPTION s DISABLE');
query($new,
	'SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots');
run_load($new, 20);
query($second, 'ALTER SUBSCRIPTION s SET (slot_name = NONE)');
query($second, 'DROP SUBSCRIPTION s');
query($second,
	"CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p WITH (copy_data = false)"
);
# Nothing is written yet: the subscriber has rows with keys that the restored publisher is about to give out.
wait_for_apply($new, $second, 's');
repair($second);
check($new, $second, 'a restored publisher');
run_load($new, 20);
check($new, $second, 'and it goes on');
is( (   grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } $sub,
		$restored, $second, $pub, $new),
	0,
	'no server has failed');

$_->stop foreach $second, $new;
done_testing();
