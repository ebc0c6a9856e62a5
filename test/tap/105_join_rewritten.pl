# A table is rewritten on the member that is copied, or gets another file in another way, between the joining node's
# snapshot and the locks on the tables, when a snapshot sees none of the new file's rows: the node takes another
# one.  As soon as all tables are locked, this must wait until they are copied.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my ($a, $b) = map { new_member($_) } qw(a b);
my $c = new_member('c', conf => "weft.min_parallel_copy_size = 0\n");
my @tables = qw(first t p truncated);

query($a, <<'EOS');
CREATE TABLE first (id int PRIMARY KEY, v text);
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (500);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (500) TO (5000);
CREATE TABLE truncated (id int PRIMARY KEY, v text);
CREATE TABLE "no columns" ();
INSERT INTO first SELECT i, 'first' FROM generate_series(1, 1000) i;
INSERT INTO t SELECT i, 't' FROM generate_series(1, 1000) i;
INSERT INTO p SELECT i, 'p' FROM generate_series(1, 1000) i;
INSERT INTO truncated SELECT i, 'truncated' FROM generate_series(1, 1000) i;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');

# --- between the snapshot and the locks ---

my $point = 'weft-join-lock';
my $log;
my $pid;

sub goes_on
{
	$log = -s $c->logfile;
	release($c, $pid);
	return;
}

sub begins_again
{
	my ($tables, $what) = @_;

	$c->wait_for_log(
		qr/LOG:  taking another snapshot of node "a"\n.*DETAIL:  These tables have been changed since the snapshot: $tables\.\n/,
		$log);
	pass($what);
	($pid) = held_at($c, $point);
	return;
}

# Not replicated, and thus on two members; replicated schema changes wait.
sub alter
{
	my ($statements) = @_;
	query($_, "SET weft.ddl_replication = off; $statements") foreach $a, $b;
	return;
}

# As pg_repack does it: the rows are copied, and then the copy's file becomes the table's.
my $copy_rows = 'CREATE TABLE copy AS SELECT * FROM t;';
my $exchange_files = <<'EOS';
LOCK TABLE t;
UPDATE pg_class SET relfilenode = pg_relation_filenode(CASE oid WHEN 't'::regclass THEN 'copy'::regclass ELSE 't' END)
	WHERE oid IN ('t'::regclass, 'copy'::regclass);
REINDEX TABLE t;
EOS

sub repack
{
	my ($statements) = @_;
	query($a,
		"SET weft.ddl_replication = off; SET allow_system_table_mods = on; $statements"
	);
	is(query($a, 'SELECT count(*) FROM t'), 1000, 'the file was exchanged');
	return;
}

# The rows of the first one are copied before the snapshot.
query($a, "SET weft.ddl_replication = off; $copy_rows");
attach_point($c, $point);
start_join($c, $a, 'g');
($pid) = held_at($c, $point);
repack("BEGIN; $exchange_files COMMIT; DROP TABLE copy");
goes_on();
begins_again('public\.t', 'another file, with rows that were copied before');
repack("$copy_rows BEGIN; $exchange_files COMMIT; DROP TABLE copy");
goes_on();
begins_again('public\.t', 'another file, with rows that were copied later');
repack("BEGIN; $copy_rows $exchange_files COMMIT; DROP TABLE copy");
goes_on();
begins_again('public\.t', 'another file, in one transaction');

alter("ALTER TABLE t ALTER v TYPE text USING v || '!'");
goes_on();
begins_again('public\.t', 'ALTER TABLE that rewrites the rows');
alter(
	"ALTER TABLE p ALTER v TYPE text USING v || '!'; ALTER TABLE t ADD w int DEFAULT 5"
);
goes_on();
begins_again('public\.t, public\.p1, public\.p2',
	'that of a partitioned table, and a new column');
query($a, 'VACUUM FULL t');
query($a, 'CLUSTER p1 USING p1_pkey');
query($a, "TRUNCATE truncated; INSERT INTO truncated VALUES (1, 'new')");
goes_on();
begins_again(
	'public\.t, public\.p1, public\.truncated',
	'VACUUM FULL, CLUSTER and TRUNCATE');

# Somebody has locked a table, and the joining node waits for that.
my $locker = open_session($a);

sub lock_and_wait
{
	my ($statements) = @_;
	$locker->query_safe("BEGIN; $statements");
	goes_on();
	poll($a,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'weft group' AND wait_event_type = 'Lock'"
	);
	return;
}

sub cannot_lock
{
	my ($error, $what) = @_;
	$c->wait_for_log(
		qr/LOG:  taking another snapshot of node "a"\n.*DETAIL:  Its tables could not be locked: node "a": $error/,
		$log);
	pass($what);
	($pid) = held_at($c, $point);
	return;
}

# The time after which the joining node's session looks for a deadlock; the other session does not.
query($a,
	"ALTER SYSTEM SET deadlock_timeout = '3s'; SELECT pg_reload_conf()");
$locker->query_safe(
	"SET weft.ddl_replication = off; SET weft.ddl_lock = none; SET deadlock_timeout = '1h'"
);
lock_and_wait('ALTER TABLE p2 RENAME TO p3;');
$locker->query_safe('COMMIT');
cannot_lock('relation "public\.p2" does not exist', 'renamed meanwhile');
lock_and_wait('ALTER TABLE p3 RENAME TO p2;');
$locker->query_safe('LOCK TABLE first; COMMIT');
cannot_lock('deadlock detected', 'a deadlock');
lock_and_wait('LOCK TABLE p2; SET weft.ddl_replication = on;');
$locker->query_safe('ALTER TABLE first ADD CHECK (id > 0); COMMIT');
cannot_lock('canceling statement due to lock timeout',
	'a session with a lock that waits for the joining node');
$locker->quit;

# This was the ninth attempt.
query($a, 'VACUUM FULL t');
detach_point($c, $point);
release($c, $pid);
my ($result, $out, $err) = $c->psql('postgres', $GroupTest::wait_for_join);
like(
	$err,
	qr/could not lock the tables of node "a" \(These tables have been changed since the snapshot: public\.t\.\)/,
	'after ten attempts, the join fails');
is( query(
		$a,
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '_c\$'"),
	0,
	'its slot is removed');

# --- while the tables are copied ---

attach_point($c, 'weft-copy-locked');
start_join($c, $a, 'g');
held_at($c, 'weft-copy-locked');
foreach my $statement (
	'TRUNCATE truncated',
	'VACUUM FULL t',
	'BEGIN; LOCK TABLE p2',
	'SET weft.ddl_replication = off; ALTER TABLE p2 RENAME v TO w')
{
	my ($result, $out, $err) =
	  $a->psql('postgres', "SET lock_timeout = '10ms'; $statement");
	like(
		$err,
		qr/canceling statement due to lock timeout/,
		"$statement has to wait");
}
my $truncater = open_session($a);
$truncater->query_until(qr/begun/,
	"\\echo begun\nTRUNCATE p;\nINSERT INTO p VALUES (1, 'truncated');\n\\echo truncated\n"
);
poll($a,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'TRUNCATE p;' AND wait_event_type = 'Lock'"
);
query($a, "INSERT INTO t SELECT i, 'new' FROM generate_series(2001, 2010) i");
query($a, "UPDATE first SET v = 'new' WHERE id < 10");
release_point($c, 'weft-copy-locked');
wait_for_join($c);
$truncater->query_until(qr/truncated/, '');
pass('TRUNCATE goes on');
$truncater->quit;
wait_for_group('g', $a, $b, $c);

is(query($c, 'SELECT count(*), max(v), min(w) FROM t WHERE id <= 1000'),
	'1000|t!|5', 'the rows are there');
is(query($c, 'SELECT v FROM p'), 'truncated', 'truncated later');
is(query($c, 'SELECT v FROM truncated'), 'new', 'truncated before');
same_on_all([ $a, $b, $c ], \@tables, 'joined');

$_->stop foreach $a, $b, $c;
done_testing();
