# weft.cancel_resync(): a table that is being copied again keeps its old rows, and gets all
# changes since then, each of them once, whatever is interrupted.  And the slot that keeps
# these changes on the publisher: it is gone when it is not needed, and its loss loses nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher', conf => 'restart_after_crash = on');
my $sub = copy_subscriber('subscriber', conf => 'restart_after_crash = on');

# In "log", a row that is applied twice is stored twice.  Column "here" tells old rows from
# those that arrived later.
query($pub, <<'EOS');
CREATE TABLE log (id int);
CREATE TABLE t (id int PRIMARY KEY, n int);
CREATE TABLE other (id int PRIMARY KEY, n int);
INSERT INTO log SELECT i FROM generate_series(1, 1000) i;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i;
INSERT INTO other VALUES (1, 0);
CREATE PUBLICATION pub FOR TABLE log, t, other;
EOS
query($sub, <<'EOS');
CREATE TABLE log (id int, here text DEFAULT 'arrived');
CREATE TABLE t (id int PRIMARY KEY, n int, here text DEFAULT 'arrived');
CREATE TABLE other (id int PRIMARY KEY, n int);
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $change = 0;

# Changes both tables there, and waits until another table has what came after that.
sub change
{
	my ($wait) = @_;
	$change++;
	query($pub, <<"EOS");
INSERT INTO log VALUES (-$change);
BEGIN;
UPDATE t SET n = n + 1 WHERE id <= 10;
DELETE FROM t WHERE id = 1000 - $change;
INSERT INTO t VALUES (1000 + $change, 0);
COMMIT;
UPDATE other SET n = $change;
EOS
	poll($sub, "SELECT n = $change FROM other") unless $wait;
	return;
}

sub mark
{
	query($sub,
		"UPDATE log SET here = 'old'; UPDATE t SET here = 'old' WHERE id <= 100"
	);
	return;
}

my ($resync, $cancel) = map {
	my $function = $_;
	sub { return "SELECT weft.${function}('sub', '$_[0]')" }
} qw(resync_table cancel_resync);

sub slots
{
	return query($pub,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '_sync_|resync'"
	);
}

# Everything is there, each row once, and the rows that were there are the old ones, or not.
sub ended
{
	my ($what, $old) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	query($pub, 'INSERT INTO log VALUES (0); UPDATE t SET n = n + 1');
	wait_for_apply($pub, $sub, 'sub');
	same_rows(rows($sub, 'log', 'id'), rows($pub, 'log', 'id'), "$what: log");
	same_rows(rows($sub, 't', 'id, n'), rows($pub, 't', 'id, n'), "$what: t");
	is( query(
			$sub,
			"SELECT (SELECT count(*) FROM log WHERE here = 'old' AND id > 0), (SELECT count(*) FROM t WHERE here = 'old')"
		),
		$old,
		"$what: whose rows");
	nothing_left($pub, $what);
	is(slots(), 0, "$what: no slot is left");
	is( query(
			$sub,
			"SELECT string_agg(roname, ' ') FROM pg_replication_origin WHERE roname !~ '^pg_\\d+\$'"
		),
		'',
		"$what: no replication origin is left");
	poll($sub,
		"SELECT count(*) = 0 FROM pg_ls_dir('pg_logical') f WHERE f ~ '^weft_'"
	);
	return;
}

sub refused
{
	my ($sql, $message, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $stdout, $stderr) = $sub->psql('postgres', $sql);
	return like($stderr, $message, $what // $sql);
}

# Cancels a copy whose worker is held at a point; it does not end before it is released.
sub cancel_held
{
	my ($table, $point) = @_;
	my $session = open_session($sub);

	$session->query_until(qr/begun/,
		"\\echo begun\n" . $cancel->($table) . ";\n\\echo ended\n");
	poll($sub,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'BgworkerShutdown'"
	);
	release_point($sub, $point);
	$session->query_until(qr/ended/, '');
	$session->quit;
	return;
}

refused($cancel->('log'), qr/there is no copy of the table to cancel/);
refused('BEGIN; ' . $cancel->('log'),
	qr/weft.cancel_resync\(\) cannot run inside a transaction block/);
refused(
	"SELECT weft.cancel_resync('nosuch', 'log')",
	qr/subscription "nosuch" does not exist/);

# At each step of the copy, with changes before and after.
foreach
  my $point (qw(weft-replace-begin weft-copy-range-done weft-replace-copied))
{
	my $table = $point =~ /copied/ ? 'log' : 't';

	mark();
	attach_point($sub, $point);
	query($sub, $resync->($table));
	held_at($sub, $point);
	change();
	cancel_held($table, $point);
	ended("at $point", '1000|100');
}

# What is applied here is not flushed yet, so that the publisher has not been told, and the slot
# begins earlier than the rows.
mark();
set_conf($sub, wal_writer_delay => '10s', wal_writer_flush_after => '1GB');
attach_point($sub, 'weft-replace-begin');
change();
query($sub, $resync->('log'));
held_at($sub, 'weft-replace-begin');
cancel_held('log', 'weft-replace-begin');
ended('applied, but not flushed', '1000|100');
set_conf($sub, wal_writer_delay => '200ms', wal_writer_flush_after => '1MB');

# Before the first attempt, of both tables, and twice.
mark();
pause_subscription($sub, 'sub');
query($sub, $resync->($_)) foreach qw(t log);
change(1);
query($sub, $cancel->($_)) foreach qw(t log log);
is( query(
		$sub,
		"SELECT string_agg(DISTINCT phase, ' ') FROM weft.copy_progress"),
	'waiting',
	'the view shows both tables');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
ended('before the first attempt', '1000|100');

# While a session waits for the table that is copied, and others behind it; the publisher has
# emptied the table meanwhile, so that other tables wait, too.
attach_point($sub, 'weft-replace-deleted');
query($sub, $resync->('log'));
held_at($sub, 'weft-replace-deleted');
my @waiting = map { open_session($sub) } 1 .. 2;
$waiting[0]->query_until(qr/begun/,
	"\\echo begun\nALTER TABLE log ADD late int;\n\\echo ended\n");
poll($sub,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'log'::regclass AND NOT granted"
);
$waiting[1]->query_until(qr/begun/,
	"\\echo begun\nSELECT count(*) FROM log;\n\\echo ended\n");
poll($sub,
	"SELECT count(*) = 2 FROM pg_locks WHERE relation = 'log'::regclass AND NOT granted"
);
query($pub,
	'TRUNCATE log; INSERT INTO log SELECT i FROM generate_series(1, 900) i');
change(1);
cancel_held('log', 'weft-replace-deleted');

foreach my $session (@waiting)
{
	$session->query_until(qr/ended/, '');
	$session->quit;
}
ended('while others wait', '0|100');

# After the copy has failed for a while, the publisher has crashed, and so has the
# subscriber.
query($pub, 'INSERT INTO log SELECT i FROM generate_series(901, 1000) i');
wait_for_apply($pub, $sub, 'sub');
mark();
query($sub, "ALTER TABLE log ADD CHECK (id <> 1) NOT VALID");
my $offset = -s $sub->logfile;
query($sub, $resync->('log'));
$sub->wait_for_log(qr/new row for relation "log" violates check constraint/,
	$offset);
change();
$pub->stop('immediate');
$pub->start;
change();
$sub->stop('immediate');
$sub->start;
change();
query($sub, $cancel->('log'));
ended('after failures and crashes', '1000|100');
query($sub, 'ALTER TABLE log DROP CONSTRAINT log_id_check');

# The worker that ends the copy is killed, between moving the origin and its commit; or the
# subscriber crashes then.
foreach my $mishap (qw(kill stop))
{
	mark();
	attach_point($sub, 'weft-replace-begin');
	query($sub, $resync->('log'));
	held_at($sub, 'weft-replace-begin');
	change();
	attach_point($sub, 'weft-replace-cancel');
	cancel_held('log', 'weft-replace-begin');
	my ($held) = held_at($sub, 'weft-replace-cancel');
	change();
	detach_point($sub, 'weft-replace-cancel');
	kill_process($held) if $mishap eq 'kill';
	$sub->stop('immediate'), $sub->start if $mishap eq 'stop';
	wait_until_up($sub);
	change();
	ended("$mishap while the copy is ended", '1000|100');
}

# The function that cancels fails: the copy goes on.
foreach my $action (qw(error kill))
{
	mark();
	attach_point($sub, 'weft-replace-begin');
	query($sub, $resync->('log'));
	held_at($sub, 'weft-replace-begin');
	change();
	attach_point($sub, 'weft-resync-cancelled',
		$action eq 'kill' ? 'hold' : $action);
	my $session = open_session($sub, on_error_stop => 0);
	$session->query_until(qr/begun/,
		"\\echo begun\n" . $cancel->('log') . ";\n");
	poll($sub,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'BgworkerShutdown'"
	);
	release_point($sub, 'weft-replace-begin');

	if ($action eq 'kill')
	{
		kill_process(held_at($sub, 'weft-resync-cancelled'));
		wait_until_up($sub);
	}
	else
	{
		poll($sub,
			"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND query ~ '^SELECT weft.cancel')"
		);
		detach_point($sub, 'weft-resync-cancelled');
	}
	eval { $session->quit };
	ended("$action in the function that cancels", '0|100');
}

# The leader drops slots of tables that are READY, but not if they begin after that.
sub confirmed
{
	my $ready = query($sub,
		"SELECT srsublsn FROM pg_subscription_rel WHERE srrelid = 'log'::regclass"
	);
	query($pub, 'UPDATE other SET n = n + 1');
	poll($pub,
		"SELECT confirmed_flush_lsn > '$ready' FROM pg_replication_slots WHERE slot_name = 'sub'"
	);
	return;
}

# The function that requests the copy fails: it takes its slot with it.
foreach my $action (qw(error end))
{
	confirmed();
	attach_point($sub, 'weft-resync-requested', $action);
	$sub->psql('postgres', $resync->('log'));
	detach_point($sub, 'weft-resync-requested');
	poll($pub,
		"SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name ~ '_sync_')"
	);
	ended("$action in the function", '0|100');
}
# Its transaction is rolled back after it has returned, or the server crashes before the commit:
# the next leader drops the slot, or the next call if there is none.
my $rolled_back =
  "DO \$\$ BEGIN PERFORM weft.resync_table('sub', 'log'); RAISE EXCEPTION 'too late'; END \$\$";
confirmed();
refused($rolled_back, qr/too late/, 'the transaction is rolled back');
ended('rolled back', '0|100');

confirmed();
attach_point($sub, 'weft-resync-requested');
my $session = open_session($sub, on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\n" . $resync->('log') . ";\n");
kill_process(held_at($sub, 'weft-resync-requested'));
wait_until_up($sub);
eval { $session->quit };
ended('kill in the function', '0|100');

confirmed();
mark();
pause_subscription($sub, 'sub');
refused($rolled_back, qr/too late/, 'the transaction is rolled back again');
is(slots(), 1, 'disabled: a slot is left over');
query($sub, $resync->('log'));
is(slots(), 1, 'disabled: the next call has a slot of its own');
query($sub, $cancel->('log'));
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
ended('disabled', '1000|100');

# A slot of the same name that nobody has marked may be that of a clone of this server.
my $clone = query($sub,
	"SELECT format('pg_%s_sync_%s_%s', s.oid, 'log'::regclass::oid, c.system_identifier) FROM pg_subscription s, pg_control_system() c"
);
confirmed();
query($pub,
	"SELECT pg_copy_logical_replication_slot('sub', '$clone', false, 'pgoutput')"
);
refused(
	$resync->('log'),
	qr/replication slot "$clone" already exists.*HINT:  .*pg_drop_replication_slot/s,
	'the slot of a clone: the call says so');
$offset = -s $sub->logfile;
disable_subscription($sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
$sub->wait_for_log(
	qr/LOG: .* replication slot "$clone" on the publisher is not used/,
	$offset);
is(slots(), 1, 'the slot of a clone: nobody drops it');
query($pub, "SELECT pg_drop_replication_slot('$clone')");

# The publisher loses the slot, before or during the copy: the table is copied, with another
# slot, and the request cannot be cancelled.
foreach my $point (qw(weft-replace-begin weft-replace-deleted))
{
	mark();
	attach_point($sub, $point);
	query($sub, $resync->('log'));
	held_at($sub, $point);
	query($pub,
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
	);
	change();
	refused(
		$cancel->('log'),
		qr/has not kept the changes/,
		"lost at $point: no way back");
	release_point($sub, $point);
	ended("lost at $point", '0|100');
}

# A copy that is complete cannot be cancelled, and goes on without Weft's help: its worker
# is held after its commit, and then killed.
mark();
attach_point($sub, 'weft-replace-copied');
query($sub, $resync->('log'));
held_at($sub, 'weft-replace-copied');
change();
my $leader = leader_pid($sub, 'sub');
kill 'STOP', $leader;
release_point($sub, 'weft-replace-copied');
poll($sub,
	"SELECT srsubstate = 'f' AND srsublsn IS NULL FROM pg_subscription_rel WHERE srrelid = 'log'::regclass"
);
refused($cancel->('log'), qr/or its copy is complete/);
kill 'CONT', $leader;
ended('complete', '0|100');

# Whoever drops the subscription, or takes the table out of it, drops the slot.
pause_subscription($sub, 'sub');
query($sub, $resync->($_)) foreach qw(t log);
is(slots(), 2, 'two slots');
query($pub, 'ALTER PUBLICATION pub DROP TABLE t');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll($pub,
	"SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name ~ '_sync_'"
);
pause_subscription($sub, 'sub');
query($sub, $resync->('other'));
is(slots(), 1, 'one slot');
query($sub, 'DROP SUBSCRIPTION sub');
is(slots(), 0, 'no slot is left by DROP SUBSCRIPTION');

done_testing();
