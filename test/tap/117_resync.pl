# weft.resync_table(): a table is copied again while others are applied.  Readers, whatever
# their snapshot is, see all the old rows or all the new ones; whatever happens to the copy,
# no row is lost or doubled.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use InjectionTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $rows = $ENV{WEFT_ROWS} // 5000;
my $pub = new_publisher('publisher', conf => 'restart_after_crash = on');
my $sub = copy_subscriber('subscriber', conf => 'restart_after_crash = on');

# Without a unique index, rows that are copied to old ones are stored twice.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE);
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE);
CREATE TABLE nokey (id int, v text);
ALTER TABLE nokey REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
CREATE TABLE fires (id int PRIMARY KEY, v text);
CREATE TABLE tags (id int PRIMARY KEY, v int[]);
CREATE TABLE other (id int PRIMARY KEY, n int);
EOS
query($pub, <<"EOS");
INSERT INTO t SELECT i, 'new', i FROM generate_series(1, $rows) i;
INSERT INTO child SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO nokey SELECT i, 'new' FROM generate_series(1, $rows) i;
INSERT INTO parted SELECT i, 'new' FROM generate_series(1, $rows) i;
INSERT INTO numbered (v) SELECT 'new' FROM generate_series(1, 1000) i;
INSERT INTO fires SELECT i, 'new' FROM generate_series(1, 1000) i;
INSERT INTO tags SELECT i, ARRAY[i] FROM generate_series(1, 1000) i;
INSERT INTO other SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true);
EOS
query($sub, <<'EOS');
CREATE INDEX ON t (v);
CREATE INDEX ON tags USING gin (v);
CREATE TABLE fired (op text, n int);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.fired VALUES (TG_OP, coalesce(NEW.id, OLD.id));
	RETURN NULL;
END
$$;
CREATE TRIGGER t AFTER INSERT OR DELETE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER quiet AFTER INSERT OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION fire();
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER TABLE fires ENABLE ALWAYS TRIGGER t');

my @tables = qw(t child nokey parted numbered fires tags other);
my $number = 0;

# Changes all rows of a table here, and adds some.
sub spoil
{
	my ($table) = @_;
	query($sub, <<"EOS");
BEGIN;
UPDATE $table SET v = 'old';
INSERT INTO $table SELECT i, 'old' FROM generate_series(10 * $rows, 10 * $rows + 99) i;
COMMIT;
TRUNCATE fired;
EOS
	return;
}

sub resync
{
	my ($table) = @_;
	query($sub, "SELECT weft.resync_table('sub', '$table')");
	return;
}

sub resynced
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	query($pub, "UPDATE other SET n = n + 1");
	all_applied($pub, $sub, \@tables, $what);
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	is( query(
			$sub,
			"SELECT string_agg(roname, ' ') FROM pg_replication_origin WHERE roname !~ '^pg_\\d+\$'"
		),
		'',
		"$what: no replication origin is left");
	return;
}

# Ordinary and partitioned tables, with helpers and without.
foreach my $table (qw(t nokey parted))
{
	foreach my $workers (3, 0)
	{
		my $what = "$table, $workers helpers";
		set_conf($sub, 'weft.copy_workers_per_table', $workers);
		spoil($table);
		my $offset = -s $sub->logfile;
		resync($table);
		resynced($what);
		is( copied_by($sub, "public.$table", $offset) > 0 ? 1 : 0,
			$workers > 0                                  ? 1 : 0,
			"$what: who copies");
	}
}
set_conf($sub, 'weft.copy_workers_per_table', 3);
is(query($sub, "SELECT count(*) FROM child"),
	100, 'foreign keys do not cascade');
is(query($sub, "SELECT count(*) FROM fired"),
	0, 'only triggers for replicas fire');

# Triggers that fire on replicas, identity columns, and an index that helpers must not fill.
resync($_) foreach qw(fires);
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		"SELECT string_agg(op || ' ' || c, ', ' ORDER BY op) FROM (SELECT op, count(*) c FROM fired GROUP BY op) o"
	),
	'DELETE 1000, INSERT 1000',
	'triggers that fire on replicas see each row');
query($sub,
	"UPDATE numbered SET v = 'old' WHERE id < 10; DELETE FROM tags WHERE id > 500"
);
my $offset = -s $sub->logfile;
resync('numbered');
wait_for_apply($pub, $sub, 'sub');
resync('tags');
resynced('identity column, GIN');
like(
	left_to_server($sub, 'public.tags', $offset),
	qr/an index that only one process/,
	'helpers do not fill a GIN index');


# Each reader sees one of the two states, whatever its snapshot and its plan are.
sub shape
{
	my ($table) = @_;
	return query($sub, "SELECT count(*), min(v), max(v) FROM $table");
}

sub old_shape
{
	return ($rows + 100) . '|old|old';
}

sub state_of
{
	my ($table) = @_;
	return query($sub,
		"SELECT srsubstate, srsublsn IS NOT NULL FROM pg_subscription_rel WHERE srrelid = '$table'::regclass"
	);
}

query($sub, <<'EOS');
CREATE TABLE seen (shape text PRIMARY KEY);
CREATE TABLE stop ();
CREATE PROCEDURE watch() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		INSERT INTO seen SELECT concat_ws('|', count(*), min(v), max(v)) FROM t
			ON CONFLICT DO NOTHING;
		COMMIT;
		PERFORM set_config('enable_seqscan', random()::int::text, false);
		PERFORM pg_sleep(0.002);
	END LOOP;
END
$$;
EOS
spoil('t');
my $reader = open_session($sub);
my $snapshot = "SELECT count(*) || '|' || min(v) || '|' || max(v) FROM t;";
$reader->query_safe(
	"BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_seqscan = off; $snapshot"
);
my $watch = open_session($sub);
$watch->query_until(qr/begun/, "\\echo begun\nCALL watch();\n\\echo ended\n");
poll($sub, 'SELECT count(*) = 1 FROM seen');
resync('t');
wait_for_apply($pub, $sub, 'sub');
poll($sub, 'SELECT count(*) >= 2 FROM seen');
query($sub, 'ALTER TABLE stop ADD x int; INSERT INTO stop VALUES (1)');
$watch->query_until(qr/ended/, '');
is( query($sub, "SELECT string_agg(shape, ' ' ORDER BY shape) FROM seen"),
	join(' ', sort("$rows|new|new", old_shape())),
	'readers see all old rows or all new rows');
is($reader->query_safe($snapshot),
	old_shape(), 'an older snapshot still sees the old rows');
$reader->query_safe('COMMIT');
is($reader->query_safe($snapshot),
	"$rows|new|new", 'and the next one the new rows');
$_->quit foreach $reader, $watch;

# What is deleted and copied is not taken for a local change by those that replicate from here.
query($sub,
	"SELECT pg_create_logical_replication_slot('decoding', 'test_decoding')");
resync('nokey');
wait_for_apply($pub, $sub, 'sub');
flush_wal($sub);
my $decoded =
  "SELECT count(*) FILTER (WHERE data ~ 'nokey: DELETE'), count(*) FILTER (WHERE data ~ 'nokey: INSERT')"
  . " FROM pg_logical_slot_peek_changes('decoding', NULL, NULL";
is(query($sub, "$decoded)"), "$rows|$rows", 'all of it can be decoded');
is(query($sub, "$decoded, 'only-local', '1')"),
	'0|0', 'nothing of it is local');
is( query(
		$sub,
		"SET logical_decoding_work_mem = '64kB';"
		  . " SELECT count(*) FROM pg_logical_slot_peek_changes('decoding', NULL, NULL, 'only-local', '1', 'stream-changes', '1')"
		  . " WHERE data ~ 'streaming change'"),
	0,
	'nor if it is streamed');
query($sub, "SELECT pg_drop_replication_slot('decoding')");

# While the copy is held anywhere, other tables are applied; after kill -9, an end, or an
# error there, the old rows are still there, and the next attempt succeeds.
foreach my $point (
	qw(weft-replace-begin weft-replace-deleted weft-copy-range-done weft-replace-copied)
  )
{
	foreach my $mishap (
		$point =~ /begin|copied/ ? qw(kill) : qw(kill terminate leader))
	{
		my $what = "$mishap at $point";

		spoil('nokey');
		attach_point($sub, $point);
		resync('nokey');
		my ($pid) = poll_for($sub,
			"SELECT pid FROM pg_stat_activity WHERE wait_event = '$point' LIMIT 1"
		);
		$number++;
		query($pub,
			"INSERT INTO nokey VALUES (-$number, 'new'); UPDATE other SET n = -$number"
		);
		poll($sub, "SELECT bool_and(n = -$number) FROM other");
		is(shape('nokey'), old_shape(), "$what: the old rows are there");
		is(state_of('nokey'), 'f|t', "$what: the request is there");
		detach_point($sub, $point);
		kill_process($pid) if $mishap eq 'kill';
		terminate($sub, $pid) if $mishap eq 'terminate';
		terminate($sub, leader_pid($sub, 'sub')) if $mishap eq 'leader';
		wait_until_up($sub);
		open_point($sub, $point);
		resynced($what);
		query($pub, "DELETE FROM nokey WHERE id < 0");
		wait_for_apply($pub, $sub, 'sub');
	}
}

# The function is killed, or fails, before it commits: nothing has changed.
foreach my $action (qw(error end))
{
	spoil('nokey');
	attach_point($sub, 'weft-resync-requested', $action);
	$sub->psql('postgres', "SELECT weft.resync_table('sub', 'nokey')");
	detach_point($sub, 'weft-resync-requested');
	is(state_of('nokey'), 'r|t',
		"$action in the function: the table is still ready");
	query($pub, 'UPDATE other SET n = n + 1');
	wait_for_apply($pub, $sub, 'sub');
	is(shape('nokey'), old_shape(),
		"$action in the function: the old rows are there");
	resync('nokey');
	resynced("after $action in the function");
}

# Without Weft, the worker fails, and does not add the new rows to the old ones: neither
# before its first attempt nor after one.
my $preload = query($sub, 'SHOW shared_preload_libraries');
foreach my $point (undef, 'weft-copy-range-done')
{
	my $what = $point ? "without Weft, after an attempt" : "without Weft";

	spoil('nokey');
	if ($point)
	{
		attach_point($sub, $point);
		resync('nokey');
		poll_for($sub,
			"SELECT pid FROM pg_stat_activity WHERE wait_event = '$point' LIMIT 1"
		);
	}
	else
	{
		pause_subscription($sub, 'sub');
		resync('nokey');
	}
	$sub->stop('immediate');
	my $offset = -s $sub->logfile;
	$sub->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
	$sub->start;
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE') unless $point;
	$sub->wait_for_log(
		qr/ERROR: .* replication origin "pg_\d+_\d+" does not exist/,
		$offset);
	is(shape('nokey'), old_shape(), "$what: the old rows are there");
	is(state_of('nokey'), 'f|t', "$what: the request is there");
	$sub->adjust_conf('postgresql.conf', 'shared_preload_libraries',
		"'$preload'");
	$sub->restart;
	resynced($what);
}

# The subscription loses the table while it is copied: the next request cleans up.
query($pub, 'ALTER PUBLICATION pub SET (publish_via_partition_root = true)');
attach_point($sub, 'weft-replace-deleted');
resync('nokey');
my ($held) = held_at($sub, 'weft-replace-deleted');
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
detach_point($sub, 'weft-replace-deleted');
terminate($sub, $held);
release($sub, $held);
wait_until_gone($sub, $held);
query($sub,
	'ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub');
my $hidden =
  "SELECT count(*) FROM pg_replication_origin WHERE roname ~ '^weft_resync_'";
is(query($sub, $hidden), 1, 'an origin is left over');
my $slots = "pg_replication_slots WHERE slot_name ~ '_sync_|^sub\$'";
poll($pub, "SELECT NOT bool_or(active) FROM $slots");
query($pub, "SELECT pg_drop_replication_slot(slot_name) FROM $slots");
query($sub,
	'TRUNCATE t CASCADE; TRUNCATE nokey, parted, numbered, fires, tags, other'
);
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
resync('nokey');
resynced('next subscription');

# What is refused.
sub refused
{
	my ($sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $stdout, $stderr) = $sub->psql('postgres', $sql);
	return like($stderr, $message, $sql);
}
my $call = "SELECT weft.resync_table('sub', 't')";
refused("BEGIN; $call", qr/cannot run inside a transaction block/);
refused(
	"DO \$\$ BEGIN PERFORM weft.resync_table('sub', 't'); EXCEPTION WHEN division_by_zero THEN END \$\$",
	qr/cannot run inside a transaction block/);
refused(
	"SELECT weft.resync_table('sub', 'fired')",
	qr/table "fired" is not part of subscription "sub"/);
refused(
	"SELECT weft.resync_table('nosuch', 't')",
	qr/subscription "nosuch" does not exist/);
query($sub,
	'CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING; ALTER TABLE t ENABLE REPLICA RULE r'
);
refused($call, qr/It has a rule for DELETE that applies to replication/);
my $trigger = query($sub,
	"DROP RULE r ON t; SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgisinternal LIMIT 1"
);
query($sub, "ALTER TABLE t ENABLE ALWAYS TRIGGER $trigger");
refused($call, qr/foreign key whose triggers are enabled for replication/);
query($sub, "ALTER TABLE t ENABLE TRIGGER $trigger");
query($sub,
	'ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE ROLE plain; GRANT ALL ON SCHEMA public TO plain; ALTER TABLE t OWNER TO plain'
);
refused($call, qr/Row-level security applies/);
query($sub,
	'ALTER TABLE t DISABLE ROW LEVEL SECURITY; REVOKE DELETE ON t FROM plain'
);
refused($call, qr/lacks the right to delete/);
query($sub, 'GRANT DELETE ON t TO plain');
query($sub,
	'CREATE PUBLICATION p FOR TABLE nokey; ALTER TABLE nokey REPLICA IDENTITY NOTHING'
);
refused("SELECT weft.resync_table('sub', 'nokey')",
	qr/does not have a replica identity and publishes deletes/);
query($sub, 'DROP PUBLICATION p');
query($sub, 'ALTER SUBSCRIPTION sub SET (origin = none)');
refused($call, qr/WARNING: .* will be lost/);
wait_for_apply($pub, $sub, 'sub');
query($sub,
		"CREATE SUBSCRIPTION second CONNECTION '"
	  . $pub->connstr
	  . " dbname=postgres' PUBLICATION pub WITH (connect = false, slot_name = NONE)"
);
query($sub, "ALTER SUBSCRIPTION sub SET (origin = any)");
query($sub,
	"INSERT INTO pg_subscription_rel SELECT oid, 'parted_0'::regclass, 'r' FROM pg_subscription WHERE subname = 'second'"
);
refused("SELECT weft.resync_table('sub', 'parted')",
	qr/Its rows also come from table "parted_0" of subscription "second"/);
refused("SELECT weft.resync_table('second', 'parted_0')",
	qr/It has no replication slot/);
query($sub, 'DROP SUBSCRIPTION second');
pause_subscription($sub, 'sub');
query($sub, "UPDATE pg_subscription SET subtwophasestate = 'e'");
refused($call, qr/Its option "two_phase" is enabled/);
query($sub,
	"UPDATE pg_subscription SET subtwophasestate = 'd'; SECURITY LABEL FOR weft ON SUBSCRIPTION sub IS 'detect_conflicts=on'"
);
refused($call, qr/It detects conflicts/);
query($sub,
	"SECURITY LABEL FOR weft ON SUBSCRIPTION sub IS NULL; ALTER SUBSCRIPTION sub ENABLE"
);

# The owner of the subscription may; another role may not (regress/privileges.sql).
attach_point($sub, 'weft-replace-begin');
resync($_) foreach @tables;
refused($call, qr/table "t" of subscription "sub" is being synchronized/);
release_point($sub, 'weft-replace-begin');
resynced('all tables at once');

done_testing();
