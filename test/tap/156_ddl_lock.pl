# Schema changes of a node group that lock their tables: writers of all members wait and do not fail.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes =
  map {
	new_member($_,
		conf =>
		  "max_worker_processes = 40\nlogical_decoding_work_mem = 64kB\n")
  } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOS');
CREATE TABLE t (id bigint PRIMARY KEY, v text, n int);
CREATE TABLE other (id int PRIMARY KEY, v int);
INSERT INTO other VALUES (1, 0);
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
foreach my $node (@nodes)
{
	query($node, "ALTER PUBLICATION weft_g SET (ddl = 'all')");
}
foreach my $node (@nodes)
{
	poll($node,
		"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
	);
}

# Execute in a session what must fail.
sub fails
{
	my ($session, $statement, $pattern, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->query($statement);
	like($session->{stderr}, $pattern, $name);
	$session->{stderr} = '';
	return;
}

sub same_schemas
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @nodes);
	same_schema($a, $_, "$what: " . $_->name) foreach $b, $c;
	return;
}

sub no_locks
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $node (@nodes)
	{
		poll($node, 'SELECT count(*) = 0 FROM weft.ddl_lock_status');
	}
	pass("$what: no lock is left");
	return;
}

# --- one statement ---

query($a, 'INSERT INTO t VALUES (1, 1, 1)');
wait_for_group('g', @nodes);
query($a, 'ALTER TABLE t ALTER n TYPE bigint');
no_locks('a type');
same_schemas('a type');
query($b, 'INSERT INTO t VALUES (2, 2, 3000000000)');
wait_for_group('g', @nodes);
is(query($c, 'SELECT n FROM t WHERE id = 2'),
	3000000000, 'rows after the change');

# --- a name ---

my $other = open_session($a);
$other->query_safe(
	'SET weft.ddl_lock = always; BEGIN; CREATE TABLE u (id int PRIMARY KEY)');
my $second = start_query($b,
	'SET weft.ddl_lock = always; CREATE TABLE u (id text PRIMARY KEY)');
poll($a,
	"SELECT count(*) = 1 FROM weft.ddl_lock_status WHERE state = 'waiting' AND node = 'b' AND waits_for = 'node a'"
);
$other->query_safe('COMMIT');
$other->quit;
finish($second, may_fail => 1);
like(
	$second->{output},
	qr/"u" already exists/,
	'two members create the same name');
no_locks('a name');
same_schemas('a new table');

# --- writers wait, readers do not ---

my $writer = $b->background_psql('postgres');
$writer->query_safe('BEGIN; INSERT INTO t VALUES (10, 10, 10)');
my $change = start_query($a,
	'ALTER TABLE t ALTER n SET DEFAULT 7, ALTER v SET NOT NULL');
poll($b,
	"SELECT state = 'closing' AND tables = '{t}' AND node = 'a' AND waits_for ~ 'sessions' FROM weft.ddl_lock_status"
);
is(query($b, 'SELECT count(*) FROM t WHERE id = 1'), 1, 'readers go on');
my @blocked = (
	start_query($a, "INSERT INTO t (id, v) VALUES (11, 'x')"),
	start_query($c, "INSERT INTO t (id, v) VALUES (12, 'x')"),

	# The gate is not closed there yet, so this one may go ahead, with the old definition.
	start_query($b, "INSERT INTO t (id, v) VALUES (13, 'x')"));
foreach my $node ($a, $c)
{
	poll($node,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^INSERT INTO t' AND wait_event_type = 'Lock'"
	);
}
$writer->query_safe('COMMIT');
$writer->quit;
finish($change);
finish($_) foreach @blocked;
no_locks('writers that wait');
same_schemas('writers that wait');
is(query($a, 'SELECT id, n FROM t WHERE id IN (11, 12) ORDER BY 1'),
	"11|7\n12|7", 'the writers waited, and have used the new definition');

# --- transactions that have read a table, and write to it behind the schema change ---

my $errors = query($b, 'SELECT sum(errors) FROM weft.stat_subscription');
my @readers = map { open_session($_, on_error_stop => 0) } $a, $b;
$_->query_safe('BEGIN; SELECT count(*) FROM t') foreach @readers;
$writer = $c->background_psql('postgres');
$writer->query_safe('BEGIN; INSERT INTO t VALUES (40, 40, 40)');
$change = start_query($a, 'ALTER TABLE t ALTER n SET DEFAULT 8');
foreach my $node ($a, $b)
{
	poll($node, "SELECT state = 'closed' FROM weft.ddl_lock_status");
}
$_->query_until(qr/begun/,
	"\\echo begun\nINSERT INTO t VALUES (41, 41, 41);\n")
  foreach @readers;
foreach my $node ($a, $b)
{
	poll($node,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^INSERT INTO t' AND wait_event_type = 'Lock'"
	);
}
$writer->query_safe('COMMIT');
$writer->quit;
finish($change);
foreach my $reader (@readers)
{
	$reader->query('ROLLBACK');
	like(
		$reader->{stderr},
		qr/canceling statement due to user request|deadlock detected/,
		'a transaction that has read the table does not stop the schema change'
	);
	$reader->quit;
}
no_locks('readers that write');
same_schemas('readers that write');
is(query($b, 'SELECT sum(errors) FROM weft.stat_subscription'),
	$errors, 'no apply worker has failed');

# --- schema changes without a lock, which read the table, or are about its privileges ---

my $requester = open_session($a);
$requester->query_safe(
	'BEGIN; ALTER TABLE t ALTER n SET DEFAULT 9, ADD CONSTRAINT small CHECK (id < 1000000000000000)'
);
my @unlocked = (
	start_query($b, 'CREATE VIEW view_of_t AS SELECT id, n FROM t'),
	start_query($b, 'GRANT SELECT (id) ON t TO public'),
	start_query($c, 'CREATE TABLE like_t (LIKE t INCLUDING DEFAULTS)'),
	start_query($c, 'GRANT INSERT ON t TO public'));
foreach my $node ($b, $c)
{
	poll($node,
		"SELECT count(*) = 2 FROM pg_stat_activity WHERE query ~ '^(CREATE|GRANT)' AND wait_event_type = 'Lock'"
	);
}
$requester->query_safe('COMMIT');
$requester->quit;
finish($_) foreach @unlocked;
no_locks('schema changes without a lock');
same_schemas('schema changes without a lock');
query($a, 'DROP VIEW view_of_t');
wait_for_group('g', @nodes);

# --- an abort ---

query($a, 'BEGIN; ALTER TABLE t DROP COLUMN v; ROLLBACK');
no_locks('an abort');
query($_, 'UPDATE other SET v = v + 1') foreach @nodes;
query($c, "INSERT INTO t VALUES (20, 'y', 1)");
same_schemas('an abort');

# --- several statements in a transaction ---

query($c, <<'EOS');
BEGIN;
ALTER TABLE t RENAME n TO m;
ALTER TABLE other ALTER v TYPE bigint;
ALTER TABLE t ALTER m TYPE numeric;
COMMIT;
EOS
no_locks('a transaction');
same_schemas('a transaction');

# --- what cannot be locked ---

my ($result, $out, $err) = $a->psql('postgres',
	"BEGIN; UPDATE other SET v = 0; ALTER TABLE other ALTER v SET NOT NULL; COMMIT"
);
like($err, qr/because this transaction has already changed it/, 'own rows');
no_locks('own rows');

# --- tables that the transaction has used ---

query($a, <<'EOS');
BEGIN;
ALTER TABLE other ADD COLUMN x int;
UPDATE other SET x = id;
ALTER TABLE other ALTER x SET NOT NULL;
COMMIT;
EOS
no_locks('a migration');
same_schemas('a migration');
is(query($_, 'SELECT count(*) FROM other WHERE x = id'),
	1, 'rows of a migration on ' . $_->name)
  foreach @nodes;
query($b, <<'EOS');
BEGIN;
CREATE TABLE migration (id int PRIMARY KEY);
UPDATE other SET v = 3;
INSERT INTO other SELECT i, 3, i FROM generate_series(100, 3000) i;
INSERT INTO t (id, v) VALUES (30, 'z');
ALTER TABLE other ALTER v SET NOT NULL, ALTER v SET DEFAULT 2;
INSERT INTO migration VALUES (1);
ALTER TABLE t ADD CONSTRAINT migrated CHECK (id <> 0);
INSERT INTO t (id, v) VALUES (31, 'z');
COMMIT;
EOS
no_locks('rows of two tables');
same_schemas('rows of two tables');
query($c, <<'EOS');
BEGIN;
ALTER TABLE other ADD COLUMN y int;
SAVEPOINT s;
UPDATE other SET y = 1;
ALTER TABLE other ALTER y SET NOT NULL;
ROLLBACK TO s;
UPDATE other SET y = 2;
ALTER TABLE other ALTER y SET NOT NULL;
COMMIT;
EOS
no_locks('a savepoint');
same_schemas('a savepoint');
same_on_all(\@nodes, [qw(t other migration)], 'rows before the lock');
($result, $out, $err) = $a->psql('postgres', <<'EOS');
BEGIN;
SAVEPOINT s;
ALTER TABLE other ADD COLUMN z int;
ROLLBACK TO s;
UPDATE other SET v = 4;
ALTER TABLE other ALTER v SET DEFAULT 1;
EOS
like(
	$err,
	qr/because this transaction has already changed it/,
	'a schema change that was rolled back does not count');
no_locks('a savepoint before rows');

# The lock ends with the subtransaction that has requested it, and not with another one.
my $session = open_session($a, on_error_stop => 0);
$session->query_safe(
	'BEGIN; SAVEPOINT s; ALTER TABLE other ALTER v SET DEFAULT 5; SAVEPOINT s2; ALTER TABLE other ALTER v SET DEFAULT 6; ROLLBACK TO s2'
);
($result, $out, $err) =
  $a->psql('postgres', "SET lock_timeout = '300ms'; UPDATE other SET v = 6");
like($err, qr/lock timeout/, 'a rollback to a later savepoint opens no gate');
$session->query_safe('ROLLBACK TO s');
no_locks('a rollback to the savepoint before the lock');
query($a, 'UPDATE other SET v = 6');
query($b, 'ALTER TABLE other ALTER v SET DEFAULT 6');
wait_for_group('g', @nodes);
$session->query_safe('ALTER TABLE other ALTER v SET DEFAULT 7; COMMIT');
no_locks('a lock after a savepoint');
same_schemas('a lock after a savepoint');
is( query(
		$b,
		"SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'other'::regclass"
	),
	'7',
	'the schema change after the savepoint');

# A lock that could not be had is requested again.
my $holder = open_session($b);
$holder->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
fails(
	$session,
	"SET weft.ddl_lock_timeout = '5s'; BEGIN; SAVEPOINT s; ALTER TABLE t ALTER v SET DEFAULT 8",
	qr/timed out waiting for transactions that have changed the tables/,
	'a lock that could not be had');
$session->query_safe('ROLLBACK TO s');
fails(
	$session,
	'ALTER TABLE t ALTER v SET DEFAULT 9',
	qr/timed out waiting for transactions that have changed the tables/,
	'a lock that could not be had after a rollback to a savepoint');
$session->query_safe('ROLLBACK; RESET weft.ddl_lock_timeout');
$holder->query_safe('ROLLBACK');
$holder->quit;
no_locks('a lock that could not be had');

# --- roles without rights ---

query($_, 'CREATE ROLE nobody; CREATE ROLE poor') foreach @nodes;
query($a, <<'EOS');
CREATE TYPE mood AS ENUM ('fine');
CREATE FUNCTION harmless() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE SCHEMA closed;
CREATE TABLE parent (id int) PARTITION BY LIST (id);
CREATE TABLE rest PARTITION OF parent DEFAULT;
EOS
wait_for_group('g', @nodes);
$b->stop;
$session->query_safe('SET ROLE nobody; BEGIN; SAVEPOINT s');
foreach (
	[ 'DROP TABLE t', 'table t' ],
	[ 'ALTER TABLE t ALTER v SET DEFAULT 1', 'table t' ],
	[ 'CREATE POLICY p ON t', 'table t' ],
	[ 'CREATE UNIQUE INDEX ON t (v)', 'table t' ],
	[
		'CREATE TABLE part PARTITION OF parent FOR VALUES IN (1)',
		'table parent'
	],
	[ "ALTER TYPE mood RENAME VALUE 'fine' TO 'bad'", 'type mood' ],
	[ 'DROP TYPE mood', 'type mood' ],
	[ 'DROP FUNCTION harmless() CASCADE', 'function harmless' ],
	[ 'DROP SCHEMA closed', 'schema closed' ])
{
	my ($statement, $object) = @$_;

	fails(
		$session, $statement,
		qr/must be owner of $object/,
		"without rights: $statement asks no member");
	$session->query_safe('ROLLBACK TO s');
}
$session->query(<<'EOS');
CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
DROP FUNCTION pg_temp.f() CASCADE;
DROP FUNCTION IF EXISTS nothing() CASCADE;
EOS
unlike($session->{stderr}, qr/ERROR/, 'temporary objects need no member');
$session->{stderr} = '';
$session->query_safe('ROLLBACK; RESET ROLE');
$b->start;
query($a, 'GRANT TRIGGER ON t TO poor; DROP TABLE parent');
query($a, <<'EOS');
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
SET ROLE poor;
CREATE TRIGGER of_another AFTER INSERT ON t EXECUTE FUNCTION fire();
EOS
query($a, 'DROP TRIGGER of_another ON t');
no_locks('rights');
same_schemas('rights');

# Rows that wait for the transaction.
$session->query_safe('BEGIN; ALTER TABLE other ADD COLUMN late int');
query($b, 'UPDATE other SET v = v + 1');
fails(
	$session,
	'ALTER TABLE other ALTER late SET DEFAULT 3',
	qr/holds a lock that changes of node "b" need/,
	'rows of another member are needed');
$session->query('ROLLBACK');
wait_for_group('g', @nodes);
$session->query_safe(
	'BEGIN; ALTER TABLE other ADD COLUMN late int; ALTER TABLE other ALTER late SET DEFAULT 3; COMMIT'
);
no_locks('a retry');
same_schemas('a retry');

# A session that has a table which is to be locked, and waits for the transaction; and one that has a row which
# another member's writer needs.
$session->query_safe('BEGIN; ALTER TABLE other ADD COLUMN more int');
$holder = open_session($a);
$holder->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
$holder->query_until(qr/begun/, "\\echo begun\nUPDATE other SET v = 1;\n");
poll($a,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^UPDATE other' AND wait_event_type = 'Lock'"
);
fails(
	$session,
	'ALTER TABLE t ALTER v SET DEFAULT 1',
	qr/waits for the transaction of the schema change/,
	'a session waits for the transaction');
$session->query_safe('ROLLBACK');
$holder->query_safe('ROLLBACK');
$session->query_safe('BEGIN; ALTER TABLE other ADD COLUMN more int');
$holder->query_safe('BEGIN; UPDATE t SET v = v WHERE id = 1');
$holder->query_until(qr/begun/, "\\echo begun\nUPDATE other SET v = 1;\n");
query($b, "UPDATE t SET v = 'b' WHERE id = 1");
fails(
	$session,
	'ALTER TABLE other ALTER more SET DEFAULT 1',
	qr/holds a lock that changes of node "b" need/,
	'a writer waits for a session that waits for the transaction');
$session->query_safe('ROLLBACK');
$holder->query_safe('ROLLBACK');
$holder->quit;
no_locks('sessions that wait');
wait_for_group('g', @nodes);

# --- a table that is not on all members when the lock begins ---

$holder = open_session($b);
$holder->query_safe('BEGIN; LOCK TABLE other IN ACCESS EXCLUSIVE MODE');
query($a,
	'UPDATE other SET v = 9; CREATE TABLE fresh (id int PRIMARY KEY, v int)');
$session->query_until(qr/begun/,
	"\\echo begun\nBEGIN; ALTER TABLE fresh ALTER v TYPE bigint;\n");
poll($b, 'SELECT count(*) = 1 FROM weft.ddl_lock_status');
$holder->query_safe('COMMIT');
$holder->quit;
poll($b,
	"SELECT state = 'confirmed' AND tables = '{fresh}' FROM weft.ddl_lock_status"
);
$session->query_safe('COMMIT');
$session->quit;
no_locks('a new table');
same_schemas('a table that comes during the lock');

# --- a table that is dropped, and created again ---

query($a,
	'CREATE TABLE gone (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.gone (id int PRIMARY KEY)'
);
wait_for_group('g', @nodes);
query($a, 'DROP TABLE gone; SET weft.ddl_lock = none; DROP SCHEMA s CASCADE');
no_locks('a dropped table');
wait_for_group('g', @nodes);
is( query(
		$_,
		"SELECT schema_name FROM weft.dropped_column WHERE table_name = 'gone'"
	),
	's',
	'only what is dropped without a lock is noted on ' . $_->name
) foreach @nodes;
pause_subscription($b, subscription_name('g', $a, $b));
query($a, 'CREATE TABLE gone (id int PRIMARY KEY)');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
set_conf($b, 'weft.ddl_wait_timeout' => '1ms');
my $before = query($b, 'SELECT clock_timestamp()');
query($c, 'INSERT INTO gone VALUES (1)');
my ($error) = apply_error($b, subscription_name('g', $c, $b), $before);
like($error, qr/"public.gone" does not exist/, 'its rows are not ignored');
set_conf($b, 'weft.ddl_wait_timeout' => '1min');
query($b, 'ALTER SUBSCRIPTION ' . subscription_name('g', $a, $b) . ' ENABLE');
wait_for_group('g', @nodes);
is(query($b, 'SELECT count(*) FROM gone'), 1, 'they arrive');

# --- CONCURRENTLY ---

query($a, 'CREATE UNIQUE INDEX other_unique ON other (id, v)');
foreach my $sql (
	'CREATE UNIQUE INDEX CONCURRENTLY ON other (v)',
	'CREATE INDEX CONCURRENTLY ON other ((1 / v))',
	'DROP INDEX CONCURRENTLY other_unique',
	"SET weft.ddl_lock = always;\nCREATE INDEX CONCURRENTLY ON other (v)")
{
	($result, $out, $err) = $a->psql('postgres', $sql);
	like(
		$err,
		qr/cannot use CONCURRENTLY for a schema change that locks table "other"/,
		$sql);
}
query($a, <<'EOS');
CREATE UNLOGGED TABLE mine (id int);
CREATE UNIQUE INDEX CONCURRENTLY ON mine (id);
DROP TABLE mine;
EOS

# Their turn may come while the gate is closed.
foreach my $i (1 .. 5)
{
	query($a, "CREATE INDEX CONCURRENTLY t_v$i ON t (v)");
	query($a, "ALTER TABLE t ADD CONSTRAINT p$i CHECK (id <> -1000 - $i)");
}
no_locks('concurrent statements');
same_schemas('concurrent statements');

# --- settings ---

query($a,
	"SET weft.ddl_lock = none; ALTER TABLE other ADD CONSTRAINT positive CHECK (v > -1000)"
);
same_schemas('without a lock');
query($a,
	"BEGIN; SET LOCAL weft.ddl_lock = always; ALTER TABLE other ADD w int; UPDATE other SET w = 1; ALTER TABLE other ALTER w SET NOT NULL; COMMIT"
);
no_locks('always');
same_schemas('always');

# --- rows before the change, in one transaction ---

query($a, 'CREATE TABLE sp (id int PRIMARY KEY, v int)');
wait_for_group('g', @nodes);
($result, $out, $err) = $a->psql('postgres', <<'EOS');
BEGIN;
SAVEPOINT s;
ALTER TABLE sp ALTER v TYPE int;
ROLLBACK TO s;
INSERT INTO sp VALUES (99, 1);
ALTER TABLE sp ADD CHECK (v < 1000000);
EOS
like(
	$err,
	qr/because this transaction has already changed it/,
	'a lock that has ended with a savepoint does not count');

# Other members may not know yet that the lock has ended.
query($a, <<'EOS');
BEGIN;
SAVEPOINT s;
ALTER TABLE sp ALTER v TYPE int;
ROLLBACK TO s;
INSERT INTO sp VALUES (100, 1);
COMMIT;
EOS
query($a, 'ALTER TABLE sp ADD CHECK (v < 1000000)');
no_locks('a savepoint');
same_schemas('a savepoint');
same_on_all(\@nodes, ['sp'], 'a savepoint');

# --- a writer passes at one table, while an index is built on another one ---

query($a,
	'CREATE TABLE one (id int PRIMARY KEY); CREATE TABLE two (id int PRIMARY KEY REFERENCES one, v int); INSERT INTO one VALUES (1)'
);
wait_for_group('g', @nodes);
my $lock = open_session($b);
$lock->query_safe('BEGIN; LOCK TABLE sp IN SHARE MODE');
query($c, <<'EOS');
INSERT INTO sp VALUES (102, 1);
BEGIN; INSERT INTO two VALUES (1, 1); INSERT INTO one VALUES (200); COMMIT;
EOS
my $index = open_session($b);
$index->query_safe(
	'BEGIN; SET LOCAL weft.ddl_replication = off; CREATE INDEX one_id ON one (id)'
);
$change = start_query($a,
	'ALTER TABLE two ADD FOREIGN KEY (v) REFERENCES one NOT VALID');
poll($b,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'two'::regclass AND mode = 'ShareRowExclusiveLock' AND granted AND pid IN (SELECT pid FROM weft.ddl_gates())"
);
$lock->query_safe('COMMIT');
$lock->quit;
poll($b, 'SELECT count(*) = 1 FROM sp WHERE id = 102');

# The writer has checked the foreign key, which locks the other table, and gives up after a while.  In its next attempt
# it has everything in its caches.
my $attempt =
  "SELECT min(virtualtransaction) FROM pg_locks WHERE relation = 'two'::regclass AND mode = 'RowShareLock' AND granted";
my $first_attempt = poll_for($b, $attempt);
poll($b, "SELECT ($attempt) <> '$first_attempt'");
$index->query_safe('COMMIT');
$index->quit;
finish($change);
no_locks('an index');
wait_for_group('g', @nodes);
is( query(
		$b,
		"ALTER TABLE one DROP CONSTRAINT one_pkey CASCADE; SET enable_seqscan = off; SELECT count(*) FROM one WHERE id = 200"
	),
	1,
	'the index has the row');
query($b, 'DROP TABLE two, one');

# --- a session has a table that the gate worker wants, and wants one that it has; a writer has passed there ---

query($a,
	'CREATE TABLE three (id int PRIMARY KEY, v int); CREATE TABLE four (id int PRIMARY KEY)'
);
wait_for_group('g', @nodes);
$lock = open_session($b);
$lock->query_safe('BEGIN; LOCK TABLE sp IN SHARE MODE');
my $later = open_session($b);
$later->query_safe('BEGIN; LOCK TABLE other IN SHARE MODE');
query($c, <<'EOS');
INSERT INTO sp VALUES (103, 1);
BEGIN; INSERT INTO three VALUES (2, NULL); UPDATE other SET v = 7 WHERE id = 1; COMMIT;
EOS
$holder = open_session($b);
$holder->query_safe(
	"SET deadlock_timeout = '30s'; BEGIN; INSERT INTO four VALUES (1)");
$change = start_query($a,
	'ALTER TABLE three ADD FOREIGN KEY (v) REFERENCES four NOT VALID');
my $of_three =
  "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'three'::regclass AND granted AND pid";
poll($b,
	"$of_three IN (SELECT pid FROM weft.ddl_gates()) AND mode = 'ShareRowExclusiveLock'"
);
$lock->query_safe('COMMIT');
$lock->quit;
poll($b,
	"$of_three NOT IN (SELECT pid FROM weft.ddl_gates()) AND mode = 'RowShareLock'"
);
$holder->query_safe('INSERT INTO three VALUES (1, 1)');
pass('a session that uses the tables in another order goes on');
is( query(
		$b,
		"$of_three IN (SELECT pid FROM weft.ddl_gates()) AND mode = 'ShareUpdateExclusiveLock'"
	),
	't',
	'what the writer has passed is kept from others');
$holder->query_safe('COMMIT');
$holder->quit;
poll($b,
	"SELECT state = 'closed' AND cardinality(tables) = 2 FROM weft.ddl_lock_status"
);
$later->query_safe('COMMIT');
$later->quit;
finish($change);
no_locks('two orders');
same_schemas('two orders');
same_on_all(\@nodes, [qw(three four sp other)], 'two orders');
query($b, 'DROP TABLE three, four');

# --- rows that the gate waits for, and a schema change without a lock that waits for the gate ---

query($a,
	'CREATE TABLE five (id int PRIMARY KEY, v int); INSERT INTO five VALUES (1, 1)'
);
wait_for_group('g', @nodes);
$lock = open_session($a);
$lock->query_safe('BEGIN; LOCK TABLE sp IN SHARE MODE');
query($c,
	'BEGIN; INSERT INTO sp VALUES (104, 1); INSERT INTO five VALUES (2, 2); UPDATE five SET v = 3 WHERE id = 1; COMMIT'
);
$change = start_query($b, 'ALTER TABLE five ALTER v TYPE bigint');
poll($a,
	"SELECT state = 'closed' AND tables = '{five}' FROM weft.ddl_lock_status"
);
my @behind = map { start_query($a, $_) }
  ('ALTER TABLE five ADD COLUMN w int', 'CREATE INDEX five_v ON five (v)');
poll($a,
	q(SELECT count(*) = 2 FROM pg_locks WHERE relation = 'five'::regclass AND NOT granted)
);
$lock->query_safe('COMMIT');
$lock->quit;
finish($change);
finish($_) foreach @behind;
no_locks('behind a gate');
same_schemas('behind a gate');
same_on_all(\@nodes, [qw(five sp)], 'behind a gate');
query($b, 'DROP TABLE five');

# --- a schema ---

query($a, 'CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v int)');
wait_for_group('g', @nodes);
$requester = open_session($a);
$requester->query_safe('BEGIN; ALTER TABLE s.t RENAME v TO w');
my $grant =
  start_query($b, 'GRANT SELECT ON ALL TABLES IN SCHEMA s TO public');
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^GRANT' AND wait_event_type = 'Lock'"
);
$requester->query_safe('COMMIT');
$requester->quit;
finish($grant);
no_locks('privileges in a schema');
same_schemas('privileges in a schema');
$lock = open_session($a);
$lock->query_safe('BEGIN; LOCK TABLE s.t IN SHARE MODE');
query($c, 'INSERT INTO s.t VALUES (1, 1)');
my $rename = start_query($b, 'ALTER SCHEMA s RENAME TO s2');
poll($b,
	"SELECT tables = '{s.t}' AND state = 'closed' FROM weft.ddl_lock_status");
$lock->query_safe('COMMIT');
$lock->quit;
finish($rename);
no_locks('a schema');
same_schemas('a schema');
same_on_all(\@nodes, ['s2.t'], 'a schema');

$_->stop foreach @nodes;
done_testing();
