# weft.health(): each check finds what it is for, and nothing where nothing is wrong.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_member('subscriber');

query($pub, 'CREATE EXTENSION weft');
query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'CREATE ROLE other');

my $columns = "concat_ws('|', id, severity, object, problem)";

sub health
{
	my ($node) = @_;
	return query($node, "SELECT $columns FROM weft.health()");
}

# The error of a leader that starts before the last one's walsender has ended; it may be there in place of another one.
my $slot_in_use = qr/replication slot "\w+" is active for PID/;

# Waits until exactly these lines are found; the first part is that of an expression.
sub finds
{
	my ($what, @expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $found = poll_for(
		$sub,
		"SELECT coalesce(string_agg($columns, E'\\n'), 'healthy') FROM weft.health()",
		sub {
			my @lines = split /\n/, $_[0];
			@lines = grep { !/^H007.*$slot_in_use/ } @lines
			  unless grep { /H007/ } @expected;
			@lines = ('healthy') unless @lines;
			return @lines == @expected
			  && !grep { $lines[$_] !~ $expected[$_] } 0 .. $#expected;
		});

	pass("$what: $found");
	is( query(
			$sub,
			"SELECT count(*) FROM weft.health() WHERE num_nulls(id, severity, object, problem, remedy) > 0 OR remedy = ''"
		),
		0,
		"$what: there is a remedy");
	return;
}

my @healthy = (qr/^healthy$/);

finds('nothing wrong', @healthy);
is(health($pub), '', 'nor on the publisher');

# --- H001 ---

my $version = query($sub, 'SELECT weft.library_version()');
is( query($sub, "SELECT extversion FROM pg_extension WHERE extname = 'weft'"),
	$version,
	'library and extension have the same version');
query($sub,
	"UPDATE pg_extension SET extversion = '0.0.1' WHERE extname = 'weft'");
finds('H001',
	qr/^H001\|error\|weft\|the server has loaded version \Q$version\E, and the extension has version 0\.0\.1$/
);
query($sub,
	"UPDATE pg_extension SET extversion = '$version' WHERE extname = 'weft'");

# --- H002 ---

query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
finds('H002',
	qr/^H002\|info\|sub\|applied by the server's own code alone: the number of writers is 0$/
);
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 4)');
finds('H002 is over', @healthy);

# --- H004, H007, H003 ---

my $collision = qr/duplicate key|conflict detected on relation/;

query($sub, 'INSERT INTO t VALUES (1, 0)');
query($pub, 'INSERT INTO t VALUES (1, 1)');
finds('H004',
	qr/^H004\|error\|sub\|apply has failed \d+ times in a row: $collision/);
is(query($sub, 'SET ROLE other; SELECT count(*) FROM weft.health()'),
	0, 'others than the owner do not see errors');
my $skip = poll_for($sub,
	"SELECT substring(remedy FROM '(ALTER SUBSCRIPTION .*)\\.\$') FROM weft.health() WHERE id = 'H004'"
);
query($sub, $skip);
wait_for_apply($pub, $sub, 'sub');
finds('H007',
	qr/^H007\|info\|sub\|apply has failed at .*: (?:$collision|.*$slot_in_use)/
);
is(query($sub, "SELECT count(*) FROM weft.health(recent => '0 s')"),
	0, 'only if it is recent');

query($sub, 'ALTER SUBSCRIPTION sub SET (disable_on_error = on)');
query($sub, 'INSERT INTO t VALUES (2, 0)');
query($pub, 'INSERT INTO t VALUES (2, 2)');
finds('H003',
	qr/^H003\|error\|sub\|disabled because of an error: $collision/);
query($sub, 'DELETE FROM t WHERE id = 2');
query($sub,
	'ALTER SUBSCRIPTION sub SET (disable_on_error = off); ALTER SUBSCRIPTION sub ENABLE'
);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT id, v FROM t ORDER BY id'),
	"1|0\n2|2", 'the remedies have helped');

# From here on, without the errors so far.
$sub->restart;
poll($sub,
	"SELECT publisher_lsn_time IS NOT NULL FROM weft.stat_subscription WHERE subname = 'sub'"
);
finds('errors are forgotten', @healthy);

# --- H006 ---

my $leader = leader_pid($sub, 'sub');
kill 'STOP', $leader or die "could not stop the leader: $!";
my $stale =
  "SELECT count(*) FROM weft.health(stale => '5 s') WHERE id = 'H006' AND object = 'sub'";
poll($sub, $stale, 1);
kill 'CONT', $leader or die "could not continue the leader: $!";
query($pub, 'INSERT INTO t VALUES (3, 3)');
poll($sub, $stale, 0);
pass('H006: an apply worker that learns nothing');

# --- H010 ---

query($sub, <<'EOS');
SELECT pg_create_logical_replication_slot('victim', 'pgoutput');
ALTER SYSTEM SET max_slot_wal_keep_size = '1MB';
SELECT pg_reload_conf();
EOS
foreach my $i (1 .. 4)
{
	query($sub, "SELECT pg_logical_emit_message(false, 'x', 'x')");
	query($sub, 'SELECT pg_switch_wal()');
}
query($sub, 'CHECKPOINT');
finds('H010', qr/^H010\|error\|victim\|the slot has lost WAL/);
query($sub, "SELECT pg_drop_replication_slot('victim')");
finds('H010 is over', @healthy);

# --- H011 ---

# A small table is copied by the server's own code.
query_all(
	[ $pub, $sub ],
	'CREATE TABLE copied (id int PRIMARY KEY, v int); INSERT INTO copied VALUES (1, 1)'
);
query($pub, 'ALTER PUBLICATION pub ADD TABLE copied');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
finds('H011',
	qr/^H011\|warning\|sub\|1 tables are not synchronized, and copies have failed \d+ times$/
);
query($sub, 'TRUNCATE copied');
wait_for_apply($pub, $sub, 'sub');
finds('H011 is over', @healthy);

query_all([ $pub, $sub ], 'CREATE TABLE large (id int PRIMARY KEY, v int)');
query($pub,
	'INSERT INTO large SELECT i, i % 10000 FROM generate_series(1, 20000) i');
query($sub, 'CREATE UNIQUE INDEX large_v ON large (v)');
query($pub, 'ALTER PUBLICATION pub ADD TABLE large');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
finds(
	'H011 of a large table',
	qr/^H011\|error\|public\.large\|the initial copy for subscription "sub" has failed: duplicate key/
);
query($sub, 'DROP INDEX large_v');
wait_for_apply($pub, $sub, 'sub');
finds('H011 of a large table is over', @healthy);

# --- H008, H009, H012 ---

create_group($sub, 'g');
finds('a group of one', @healthy);
query($sub, <<'EOS');
INSERT INTO weft.node_entry (node_name, node_id, state) VALUES ('there', 2, 'active');
INSERT INTO weft.join_entry (node_group_name, target_node, copy_schema, step, error)
	VALUES ('g', 'there', true, 'copy', 'no space left');
ALTER SYSTEM SET weft.conflict_history_max_rows = 2;
SELECT pg_reload_conf();
INSERT INTO weft.conflict_history (recorded_at, subname, relation, conflict_type, resolver, resolution, key,
		remote_commit_time, remote_node, remote_xid, remote_lsn)
	SELECT clock_timestamp(), 'sub', 't', 'x', 'x', 'x', '{}', clock_timestamp(), 1, '1', '0/1' FROM generate_series(1, 3);
EOS
finds(
	'H008, H009, H012',
	qr/^H008\|error\|subscriber -> there\|the subscription or slot is missing$/,
	qr/^H008\|error\|there -> subscriber\|the subscription or slot is missing$/,
	qr/^H012\|error\|g\|joining the group has failed in step "copy": no space left$/,
	qr/^H009\|warning\|weft\.conflict_history\|it is full: /);
query($sub, 'SET ROLE other; SELECT * FROM weft.health()');
query($sub, <<'EOS');
DELETE FROM weft.node_entry WHERE node_name = 'there';
DELETE FROM weft.join_entry;
ALTER SYSTEM RESET weft.conflict_history_max_rows;
SELECT pg_reload_conf();
EOS
finds('all of that is over', @healthy);

# --- H005 ---

$sub->append_conf('postgresql.conf', <<'EOC');
max_worker_processes = 6
max_logical_replication_workers = 1
EOC
$sub->restart;
finds('H005', qr/^H005\|warning\|sub\|2 of 4 writers could be started$/);
query($pub, 'CREATE PUBLICATION pub2');
subscribe($pub, $sub, 'sub2', 'pub2');
finds(
	'H005 twice',
	qr/^H005\|error\|sub2\|no apply worker/,
	qr/^H005\|warning\|sub\|/);
query($sub, 'DROP SUBSCRIPTION sub2');

done_testing();
