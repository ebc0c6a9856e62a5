# Conflicts with sessions: a writer waits for a transaction in progress, a deadlock
# ends, and a row that is deleted in the meantime is noticed.  The history is kept
# within its limits, only its owner can read it, and it is not replicated.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my @nodes = new_members(2, conf => "deadlock_timeout = 1s\n");
my ($n1, $n2) = @nodes;

create_tables(\@nodes, <<'EOS', 't', 'docs', 'parent', 'child');
CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE);
CREATE TABLE docs (id int PRIMARY KEY, v text, body text);
ALTER TABLE docs ALTER body SET STORAGE EXTERNAL;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
EOS
connect_members(\@nodes);
# a deadlock may end this session's transaction
my $session = open_session($n1, on_error_stop => 0);
my $pid = $session->query_safe('SELECT pg_backend_pid()');

sub writer_waits
{
	poll($n1,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'weft writer' AND $pid = ANY (pg_blocking_pids(pid)))"
	);
	return;
}

# What a session does on n1, and what arrives from n2 before the session ends.
sub meanwhile
{
	my ($local, $remote, $end, $expected, $what) = @_;

	$session->query_safe("BEGIN; $local");
	query($n2, $remote);
	writer_waits();
	$session->query_safe($end);
	quiet(\@nodes);
	is(rows($n1, 't'), $expected, $what);
	same_tables($n1, $n2, ['t'], "$what: the same on both nodes");
	return;
}

query($n1, "INSERT INTO t VALUES (1, 'base', 1), (2, 'base', 2)");
quiet(\@nodes);
meanwhile(
	"UPDATE t SET v = 'here' WHERE id = 1",
	"UPDATE t SET v = 'there' WHERE id = 1",
	'COMMIT',
	"(1,here,1)\n(2,base,2)",
	'an update that commits later wins');
meanwhile(
	"UPDATE t SET v = 'lost' WHERE id = 1",
	"UPDATE t SET v = 'there' WHERE id = 1",
	'ROLLBACK',
	"(1,there,1)\n(2,base,2)",
	'an update that is rolled back does not count');
meanwhile(
	'DELETE FROM t WHERE id = 1',
	"UPDATE t SET v = 'too late' WHERE id = 1",
	'COMMIT',
	'(2,base,2)',
	'a delete that commits later wins');
meanwhile(
	"INSERT INTO t VALUES (3, 'here', 3)",
	"INSERT INTO t VALUES (3, 'there', 3)",
	'COMMIT',
	"(2,base,2)\n(3,here,3)",
	'an insert that commits later wins');
meanwhile(
	"INSERT INTO t VALUES (4, 'here', 40)",
	"INSERT INTO t VALUES (5, 'there', 40)",
	'COMMIT',
	"(2,base,2)\n(3,here,3)\n(4,here,40)",
	'the same for another unique index');
meanwhile(
	'DELETE FROM t WHERE id = 4',
	"INSERT INTO t VALUES (6, 'there', 41); UPDATE t SET v = 'again' WHERE id = 4",
	'ROLLBACK',
	"(2,base,2)\n(3,here,3)\n(4,again,40)\n(6,there,41)",
	'a delete that is rolled back does not count');

# each holds what the other one needs
$session->query_safe("BEGIN; UPDATE t SET v = 'session' WHERE id = 2");
query($n2,
	"BEGIN; UPDATE t SET v = 'writer' WHERE id = 3; UPDATE t SET v = 'writer' WHERE id = 2; COMMIT"
);
writer_waits();
$session->query_until(qr/done/,
	"UPDATE t SET v = 'session' WHERE id = 3;\nCOMMIT;\n\\echo done\n");
quiet(\@nodes);
same_tables($n1, $n2, ['t'], 'a deadlock ends, and both have the same rows');
is(errors_logged($n1) =~ s/^.*deadlock detected.*$//mr, '', 'nobody fails');

####
#### A reference, while the row that it refers to is being deleted
####

sub orphans_recorded
{
	return query($n1,
		"SELECT string_agg(key::text, ' ' ORDER BY id) FROM weft.conflict_history WHERE conflict_type = 'parent_missing'"
	);
}

# The deadlock may have ended a statement of the session before, which it would report now.
$session->quit;
$session = open_session($n1);
$pid = $session->query_safe('SELECT pg_backend_pid()');
query($n1, 'INSERT INTO parent VALUES (1), (2), (3)');
quiet(\@nodes);
$session->query_safe('BEGIN; DELETE FROM parent WHERE id = 1');
query($n2, 'INSERT INTO child VALUES (1, 1)');
writer_waits();
$session->query_safe('COMMIT');
quiet(\@nodes);
same_tables($n1, $n2, [ 'parent', 'child' ], 'the reference stays');
is(orphans_recorded(), '{"id": 1}',
	'a reference to a row that is being deleted is recorded');

$session->query_safe('BEGIN; DELETE FROM parent WHERE id = 2');
query($n2, 'INSERT INTO child VALUES (2, 2)');
writer_waits();
$session->query_safe('ROLLBACK');
quiet(\@nodes);
is(orphans_recorded(), '{"id": 1}', '... unless the delete is rolled back');

# the writer has stored the reference, and waits for something else
my $deleter = open_session($n1, on_error_stop => 0);
my $deleter_pid = $deleter->query_safe('SELECT pg_backend_pid()');
my $log_offset = -s $n1->logfile;
$session->query_safe('BEGIN; SELECT FROM t WHERE id = 2 FOR UPDATE');
query($n2,
	"BEGIN; INSERT INTO child VALUES (3, 3); UPDATE t SET v = 'waits' WHERE id = 2; COMMIT"
);
writer_waits();
$deleter->query_until(qr/begun/,
	"\\echo begun\nDELETE FROM parent WHERE id = 3;\n");
poll($n1, "SELECT cardinality(pg_blocking_pids($deleter_pid)) > 0");
$session->query_safe('COMMIT');
quiet(\@nodes);
$deleter->quit;
like(
	slurp_file($n1->logfile, $log_offset),
	qr/ERROR:  update or delete on table "parent" violates foreign key constraint/,
	'a row with a reference that has not committed yet cannot be deleted');
same_tables($n1, $n2, [ 'parent', 'child' ], '... and stays on both nodes');

####
#### Values out of line
####

query($n1,
	"INSERT INTO docs VALUES (1, 'base', repeat('x', 10000)), (2, 'base', repeat('x', 10000))"
);
quiet(\@nodes);
my $offset = -s $n2->logfile;
cut_off(\@nodes);
query($n2, 'DELETE FROM docs WHERE id = 1');
query($n1, "UPDATE docs SET v = 'later'");
join_again(\@nodes);
quiet(\@nodes);
ok( $n2->log_contains(
		qr/WARNING:  a conflict on relation "public.docs" was decided without all values/,
		$offset),
	'a row that was not sent completely is reported');
query_all(\@nodes, 'ALTER TABLE docs REPLICA IDENTITY FULL');
query($n1,
	"DELETE FROM docs; INSERT INTO docs VALUES (3, 'base', repeat('x', 10000)), (4, 'base', repeat('x', 10000))"
);
quiet(\@nodes);
cut_off(\@nodes);
query($n2,
	"DELETE FROM docs WHERE id = 3; UPDATE docs SET body = repeat('y', 10000) WHERE id = 4"
);
query($n1, "UPDATE docs SET v = 'later'");
join_again(\@nodes);
quiet(\@nodes);
same_tables($n1, $n2, ['docs'],
	'with replica identity full it is sent completely');
is(query($n2, "SELECT count(*) FROM docs WHERE body = repeat('x', 10000)"),
	'2', 'and wins as a whole');

####
#### Limits and types of the history
####

cmp_ok(query($n1, 'SELECT count(*) FROM weft.conflict_history'),
	'>', 2, 'there is some history');
set_conf(
	$n1,
	'weft.conflict_history_max_rows' => 2,
	'weft.conflict_history_retention' => '50000s');
set_conf($n1, 'weft.tombstone_retention' => '1s');

# writers check when they start, and then once a minute
cut_off([$n1]);
join_again([$n1]);
poll($n1, 'SELECT count(*) = 2 FROM weft.conflict_history');
pass('its number of rows is limited');
poll($n1, 'SELECT count(*) = 0 FROM weft.tombstone');
pass('tombstones are removed once they expire');
set_conf($n1, 'weft.conflict_history_retention' => '1s');
poll($n1, 'SELECT count(*) = 0 FROM weft.conflict_history');
pass('its age is limited');
set_conf(
	$n1,
	'weft.conflict_history_retention' => '30d',
	'weft.tombstone_retention' => '7d');

sub conflicts
{
	query($n1, 'DELETE FROM t');
	quiet(\@nodes);
	query($n1, 'DELETE FROM weft.conflict_history');
	query($n2, "INSERT INTO t VALUES (1, 'base'), (2, 'base')");
	quiet(\@nodes);
	cut_off(\@nodes);
	query($n1,
		"UPDATE t SET v = 'here' WHERE id = 1; DELETE FROM t WHERE id = 2");
	query($n2,
		"UPDATE t SET v = 'there' WHERE id = 1; DELETE FROM t WHERE id = 2");
	join_again(\@nodes);
	quiet(\@nodes);
	return query($n1,
		"SELECT string_agg(conflict_type, ' ' ORDER BY remote_lsn, id) FROM weft.conflict_history"
	);
}

$n1->append_conf('postgresql.conf',
	"weft.conflict_history_types = 'delete_missing, insert_exists'\n");
$n1->reload;
is(conflicts(), 'delete_missing', 'only some types are recorded');
$n1->append_conf('postgresql.conf', "weft.conflict_history_types = 'none'\n");
$n1->reload;
is(conflicts(), '', 'nothing is recorded');
$n1->append_conf('postgresql.conf', "weft.conflict_history_types = 'all'\n");
$n1->reload;
is(conflicts(), 'update_origin_differs delete_missing', 'all are recorded');

####
#### Not replicated
####

query($n1,
	"SELECT pg_create_logical_replication_slot('watch', 'test_decoding')");
query($n1, 'CREATE PUBLICATION everything FOR ALL TABLES');
cut_off(\@nodes);
query($n1,
	"UPDATE t SET v = 'seen' WHERE id = 1; INSERT INTO t VALUES (3, 'base'); DELETE FROM t WHERE id = 3"
);
query($n2, "UPDATE t SET v = 'there' WHERE id = 1");
join_again(\@nodes);
quiet(\@nodes);
set_conf($n1, 'weft.conflict_history_retention' => '1s');
cut_off([$n1]);
join_again([$n1]);
poll($n1, 'SELECT count(*) = 0 FROM weft.conflict_history');
cmp_ok(query($n1, 'SELECT count(*) FROM weft.tombstone'),
	'>', 0, 'there are tombstones');
my $changes = query($n1,
	"SELECT data FROM pg_logical_slot_get_changes('watch', NULL, NULL)");
like(
	$changes,
	qr/^table public.t: UPDATE:.*seen/m,
	'changes of tables are decoded');
unlike(
	$changes,
	qr/^table weft.*: (INSERT|UPDATE)/m,
	'history and tombstones are not');
unlike(
	$changes,
	qr/^table weft.*: DELETE:(?! \(no-tuple-data\))/m,
	'nor are rows that are removed from them');
query($n1, 'DROP PUBLICATION everything');

####
#### Turned off, and what cannot be
####

query($n1, 'ALTER SUBSCRIPTION from_n2 SET (detect_conflicts = off)');
poll($n1, "SELECT count(*) = 0 FROM weft.stat_conflict");
query($n1, 'ALTER SUBSCRIPTION from_n2 SET (detect_conflicts = on)');
poll($n1, "SELECT count(*) > 0 FROM weft.stat_conflict");
pass('it can be turned off and on');
my ($ret, $stdout, $stderr) =
  $n1->psql('postgres', 'ALTER SUBSCRIPTION from_n2 SET (num_writers = 0)');
like(
	$stderr,
	qr/"detect_conflicts" needs at least one writer/,
	'without writers it is refused');
$offset = -s $n1->logfile;
$n1->append_conf('postgresql.conf', "track_commit_timestamp = off\n");
$session->quit;
$n1->restart;
$n1->wait_for_log(
	qr/ERROR:  conflicts of subscription "from_n2" cannot be detected because "track_commit_timestamp" is off/,
	$offset);
pass('without commit times the subscription stops');

done_testing();
