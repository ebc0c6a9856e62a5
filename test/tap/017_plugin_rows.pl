# The output plugin weft, in batches, sends exactly what pgoutput sends for the
# same WAL: the same messages in the same order, byte for byte.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PluginMessages;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $seed = $ENV{WEFT_SEED} // time;
srand $seed;
note("WEFT_SEED=$seed");

my $pub = new_publisher('publisher', conf => <<'EOC');
autovacuum = off
log_min_messages = debug1
max_replication_slots = 30
max_wal_senders = 30
track_commit_timestamp = on
wal_sender_timeout = 0
EOC

####
#### Tables and publications
####

# The test asks below which of these Weft writes itself.
my $text =
  q{(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %d))};
my $gencols = major() >= 18 ? ', publish_generated_columns = stored' : '';

query($pub, <<"EOS");
CREATE SCHEMA s;
CREATE SCHEMA later;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN words AS text;
CREATE TYPE own;
CREATE FUNCTION own_in(cstring) RETURNS own LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION own_out(own) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE FUNCTION own_send(own) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS 'int4send';
CREATE TYPE own (INPUT = own_in, OUTPUT = own_out, SEND = own_send, LIKE = int4);

CREATE TABLE types (
	id int PRIMARY KEY, i2 int2, i8 int8, f4 float4, f8 float8, n numeric, b bool, c "char",
	t text, v varchar(20), p char(10), na name, by bytea, d date, ti time, tz timetz,
	ts timestamp, tt timestamptz, iv interval, u uuid, j json, jb jsonb, ip inet, ci cidr,
	ma macaddr, m money, bi bit(5), vb varbit, po point, bo box, r int4range, mr int4multirange,
	o oid, x xid, ar int[], at text[], mo mood, pa pair, ps positive, w words, tv tsvector,
	ms mood[], pp pair[], l pg_lsn, rc regclass, acl aclitem, ow own);
CREATE TABLE accounts (id int PRIMARY KEY, v int, filler char(84));
CREATE TABLE journal (id bigserial PRIMARY KEY, t text, ts timestamptz DEFAULT now());
CREATE TABLE toasted (id int PRIMARY KEY, v int, plain text, extern text, b bytea, main text);
ALTER TABLE toasted ALTER extern SET STORAGE EXTERNAL, ALTER main SET STORAGE MAIN;
CREATE TABLE changing (id int PRIMARY KEY, a int, b text, c int);
CREATE TABLE whole (id int, t text, n numeric);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int, k text NOT NULL, v int);
CREATE UNIQUE INDEX by_index_k ON by_index (k);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k;
CREATE TABLE nothing (id int, t text);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE no_key (id int, t text);
CREATE TABLE filtered (id int PRIMARY KEY, v int);
CREATE TABLE listed (id int PRIMARY KEY, a int, b text);
CREATE TABLE generated (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED);
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_high (v text, id int NOT NULL);
ALTER TABLE parted ATTACH PARTITION parted_high FOR VALUES FROM (100) TO (200);
CREATE TABLE rooted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE rooted_low PARTITION OF rooted FOR VALUES FROM (0) TO (100);
CREATE TABLE rooted_high (v text, id int NOT NULL);
ALTER TABLE rooted ATTACH PARTITION rooted_high FOR VALUES FROM (100) TO (200);
CREATE TABLE joining (id int PRIMARY KEY, v text);
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (PRIMARY KEY (id), extra int) INHERITS (parent);
CREATE TABLE s.in_schema (id int PRIMARY KEY, v text);
CREATE TABLE moving (id int PRIMARY KEY, v text);
CREATE TABLE unpublished (id int PRIMARY KEY, v text);
CREATE TABLE no_columns ();

CREATE PUBLICATION pub FOR TABLE types, accounts, journal, toasted, changing, whole,
	by_index, filtered WHERE (id % 2 = 0), listed (id, b), generated, parted, joining, parent;
CREATE PUBLICATION inserts FOR TABLE nothing, no_key, no_columns WITH (publish = 'insert');
CREATE PUBLICATION schema FOR TABLES IN SCHEMA s;
CREATE PUBLICATION root FOR TABLE rooted WITH (publish_via_partition_root = true$gencols);
CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert');

SELECT pg_replication_origin_create('elsewhere');
EOS

####
#### What is compared
####

# For each comparison, the plugin's options and whatever else is special about it.
my $some = 'pub,inserts,schema,root';
my %cases = (
	text => { publication_names => $some },
	binary => { publication_names => $some, binary => 'true' },
	all => {
		publication_names => 'everything',
		binary => 'true',
		origin => 'none'
	},
	all_and_some => {
		publication_names => "inserts,schema,everything",
		binary => 'on',
		messages => 'true'
	},
	latin1_text => { publication_names => $some, encoding => 'LATIN1' },
	latin1_binary =>
	  { publication_names => $some, binary => 'true', encoding => 'LATIN1' },
	sql_ascii => {
		publication_names => $some,
		encoding => 'SQL_ASCII',
		binary => 'false'
	},
	streamed => {
		publication_names => $some,
		binary => 'true',
		streaming => 'parallel',
		settings => '-c logical_decoding_work_mem=64kB'
	},
	streamed_at_once => {
		publication_names => $some,
		streaming => 'on',
		messages => 'true',
		settings => '-c debug_logical_replication_streaming=immediate'
	},
	two_phase =>
	  { publication_names => $some, binary => 'true', two_phase => 'true' },
	two_phase_streamed => {
		publication_names => $some,
		two_phase => 'true',
		streaming => 'on',
		settings => '-c logical_decoding_work_mem=64kB'
	});
# the walsender of this slot is running while everything is being changed
$cases{live} = { %{ $cases{binary} } };

sub plugin_options
{
	my ($case) = @_;
	my %options = (proto_version => 4, %{ $cases{$case} });
	delete @options{qw(encoding settings)};
	return %options;
}

sub environment
{
	my ($case) = @_;
	return (
		PGCLIENTENCODING => $cases{$case}{encoding} // 'UTF8',
		PGOPTIONS => $cases{$case}{settings} // '');
}

# pgoutput's messages, as [position, message].  pg_recvlogical sets search_path,
# and the names of some objects depend on it.
sub theirs
{
	my ($case) = @_;
	my %options = plugin_options($case);
	my $list = join ', ', map { "'$_', '$options{$_}'" } sort keys %options;
	local %ENV = (%ENV, environment($case));
	my $slot = $options{two_phase} ? 'theirs_two_phase' : 'theirs';

	return map { my ($lsn, $hex) = split /\|/; [ $lsn, pack 'H*', $hex ] }
	  split /\n/,
	  query($pub, <<"EOS");
SET search_path = '';
SELECT lsn, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('$slot', NULL, NULL, $list)
EOS
}

sub recvlogical
{
	my ($case, $file, @more) = @_;
	my %options = (weft_batch_version => 2, plugin_options($case));

	return (
		$pub->installed_command('pg_recvlogical'), '-d',
		$pub->connstr('postgres'), '-S',
		$case, '--start',
		'--no-loop', '-s',
		'1', '-f',
		$file, @more,
		map { ('-o', "$_=$options{$_}") } sort keys %options);
}

sub ours
{
	my ($case, $end) = @_;
	local %ENV = (%ENV, environment($case));
	my ($output, $errors) = ('', '');

	IPC::Run::run(
		[ recvlogical($case, '-', '--endpos', $end) ],
		'<',
		\undef,
		'>',
		\$output,
		'2>',
		\$errors,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)
	) or die "pg_recvlogical failed: $errors";
	return parse_batches($output);
}

# How the log reports which way rows of a table are written; "where" is ' in a stream' for
# those of transactions in progress.
sub written
{
	my ($log, $table, $change, $where) = @_;
	my %number = (insert => 0, update => 1, delete => 2);
	my %by;

	$where //= '';
	$by{$_}++
	  foreach $log =~
	  /table "$table", change $number{$change}$where: rows are written by (.*)/g;
	return join ' or ', sort keys %by;
}

foreach my $case (sort keys %cases)
{
	query(
		$pub,
		sprintf
		  "SELECT pg_create_logical_replication_slot('$case', 'weft', false, %s)",
		$cases{$case}{two_phase} // 'false');
}
query($pub, <<'EOS');
SELECT pg_create_logical_replication_slot('theirs', 'pgoutput');
SELECT pg_create_logical_replication_slot('theirs_two_phase', 'pgoutput', false, true);
EOS

my $live_file = "$PostgreSQL::Test::Utils::tmp_check/live";
my $live;
{
	local %ENV = (%ENV, environment('live'));
	$live = IPC::Run::start([ recvlogical('live', $live_file) ], '<', \undef);
}

####
#### What is done
####

my $long = sprintf $text, 400;
my $some_types = <<'EOS';
(i2, i8, f4, f8, n, b, c, t, v, p, na, by, d, ti, tz, ts, tt, iv, u, j, jb, ip, ci, ma, m, bi, vb,
	po, bo, r, mr, o, x, ar, at, mo, pa, ps, w, tv, ms, pp, l, rc, acl, ow)
EOS
my $random_types = <<'EOS';
(SELECT (random() * 60000 - 30000)::int2, (random() * 1e18)::int8 - 5e17::int8, random() * 1e10,
	random() / 1e10, (random() * 1e9)::numeric ^ 2, random() < 0.5, chr(40 + (random() * 50)::int)::"char",
	md5(random()::text) || 'äöü', repeat('é', (random() * 10)::int), 'p' || (random() * 99)::int,
	'name' || (random() * 99)::int, decode(md5(random()::text), 'hex'),
	'2000-01-01'::date + (random() * 10000)::int, random() * interval '1 day', '12:00+02'::timetz,
	now() + random() * interval '100 years', now() - random() * interval '100 years',
	random() * interval '10 years', gen_random_uuid(), json_build_object('a', random()),
	jsonb_build_object('ä', ARRAY[random(), random()]), '10.0.0.1'::inet + (random() * 1000)::int,
	'10.1.0.0/16'::cidr, '08:00:2b:01:02:03'::macaddr, (random() * 1e6)::numeric::money,
	(random() * 31)::int::bit(5), B'1010110', point(random(), random()),
	box(point(0, 0), point(random(), 1)), int4range(1, 5 + (random() * 10)::int),
	'{[1,3), [5,9)}'::int4multirange, (random() * 1e9)::int::oid, '77'::xid,
	ARRAY[1, NULL, (random() * 1e9)::int], ARRAY['a', NULL, md5(random()::text)],
	(ARRAY['sad', 'ok', 'happy'])[1 + (random() * 2)::int]::mood, ROW((random() * 9)::int, 'x, "y"')::pair,
	1 + (random() * 9)::int, 'words ' || random(), to_tsvector('simple', 'some words ' || random()),
	ARRAY['sad', 'ok']::mood[], ARRAY[ROW(1, NULL), NULL]::pair[], '0/1234'::pg_lsn, 'accounts'::regclass,
	makeaclitem(10, 10, 'SELECT', false), ((random() * 2e9)::int - 1000000000)::text::own)
EOS

# A prepared transaction with these statements.
my $prepared = 0;

sub prepare
{
	my ($end, $statements) = @_;
	$prepared++;
	return
		"BEGIN; $statements; PREPARE TRANSACTION 'p$prepared';\n"
	  . "INSERT INTO accounts VALUES (1000000 + $prepared, 0, 'between');\n"
	  . "$end PREPARED 'p$prepared';\n";
}

my @parts = (
	[
		'types' => <<"EOS"
INSERT INTO types SELECT generate_series(1, 20);
UPDATE types SET $some_types = $random_types;
UPDATE types SET t = NULL, i8 = NULL, ow = NULL WHERE id % 3 = 0;
UPDATE types SET id = id + 1000 WHERE id <= 5;
UPDATE types SET i2 = -32768, i8 = -9223372036854775808, f4 = 'NaN', f8 = '-Infinity', n = 'NaN',
	t = '', v = '', by = '', d = 'infinity', ts = '-infinity', tt = 'infinity', ar = '{}', w = '',
	ow = '-2147483648', o = 4294967295 WHERE id = 10;
UPDATE types SET i2 = 32767, i8 = 9223372036854775807, f4 = '-0', f8 = 'Infinity', n = '-Infinity',
	d = '4713-01-01 BC', ts = '294276-12-31', c = '\\200', m = -1 WHERE id = 11;
DELETE FROM types WHERE id = 12;
EOS
	],
	[
		'pgbench' => <<'EOS'
INSERT INTO accounts SELECT i, 0, '' FROM generate_series(1, 50) i;
UPDATE accounts SET v = v + 1 WHERE id = 1;
BEGIN;
UPDATE accounts SET v = v + 1 WHERE id = 2;
UPDATE accounts SET v = v + 1, filler = NULL WHERE id = 3;
INSERT INTO journal (t) VALUES ('äöü'), (NULL), ('');
DELETE FROM accounts WHERE id = 50;
COMMIT;
COPY accounts FROM stdin;
60	1	copied
61	\N	\N
\.
INSERT INTO accounts VALUES (60, 5, 'again'), (62, 0, 'new') ON CONFLICT (id) DO UPDATE SET v = 99;
INSERT INTO accounts VALUES (60, 5, 'again') ON CONFLICT DO NOTHING;
EOS
	],
	[
		'TOAST' => <<"EOS"
INSERT INTO toasted VALUES (1, 0, $long, $long, $long\::bytea, $long), (2, 0, repeat('x', 100000),
	repeat('y', 100000), repeat('z', 100000)::bytea, repeat('m', 2000)), (3, 0, 'short', 'short', 'short', 'short');
UPDATE toasted SET v = v + 1;
UPDATE toasted SET plain = $long;
UPDATE toasted SET extern = repeat('e', 5000) WHERE id = 2;
UPDATE toasted SET plain = repeat('compressible ', 200), b = $long\::bytea, v = v + 1;
UPDATE toasted SET id = id + 100, v = v + 1;
ALTER TABLE toasted REPLICA IDENTITY FULL;
UPDATE toasted SET v = v + 1;
DELETE FROM toasted WHERE id = 101;
ALTER TABLE toasted REPLICA IDENTITY DEFAULT;
UPDATE toasted SET v = v + 1;
INSERT INTO toasted SELECT i, i, $long, $long, NULL, NULL FROM generate_series(200, 205) i;
EOS
	],
	[
		'replica identities' => <<'EOS'
INSERT INTO whole SELECT i, 'text ' || i, i / 7.0 FROM generate_series(1, 10) i;
UPDATE whole SET t = NULL WHERE id < 3;
UPDATE whole SET id = 11 WHERE id = 4;
DELETE FROM whole WHERE id = 5;
INSERT INTO by_index SELECT i, 'key ' || i, i FROM generate_series(1, 10) i;
UPDATE by_index SET v = 0;
UPDATE by_index SET k = 'another ' || id WHERE id < 4;
DELETE FROM by_index WHERE id > 8;
INSERT INTO nothing VALUES (1, 'a'), (2, 'b');
UPDATE nothing SET t = 'c';
DELETE FROM nothing WHERE id = 1;
INSERT INTO no_key VALUES (1, 'a'), (2, 'b');
UPDATE no_key SET t = 'c';
DELETE FROM no_key WHERE id = 1;
INSERT INTO no_columns DEFAULT VALUES;
ALTER TABLE whole REPLICA IDENTITY NOTHING;
INSERT INTO whole VALUES (20);
ALTER TABLE whole ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT;
UPDATE whole SET t = 'default';
UPDATE whole SET id = id + 50 WHERE id < 9;
ALTER TABLE whole DROP CONSTRAINT whole_pkey, REPLICA IDENTITY FULL;
DELETE FROM whole WHERE id = 20;
EOS
	],
	[
		'columns' => <<'EOS'
INSERT INTO changing SELECT i, i, 'b' || i, i FROM generate_series(1, 10) i;
UPDATE changing SET a = a + 1;
ALTER TABLE changing DROP COLUMN c;
UPDATE changing SET a = a + 1;
ALTER TABLE changing ADD COLUMN d text DEFAULT 'fast default', ADD COLUMN e int;
UPDATE changing SET a = a + 1 WHERE id < 5;
INSERT INTO changing VALUES (11, 1, 'new', NULL, 3);
ALTER TABLE changing ALTER COLUMN a TYPE bigint;
UPDATE changing SET a = a + 5000000000 WHERE id > 5;
BEGIN;
UPDATE changing SET a = 1 WHERE id = 1;
ALTER TABLE changing ALTER COLUMN b TYPE varchar(100), ALTER COLUMN e TYPE text USING 'e' || e;
UPDATE changing SET a = 2 WHERE id = 1;
ALTER TABLE changing RENAME COLUMN b TO bb;
UPDATE changing SET a = 3 WHERE id = 1;
SAVEPOINT one;
ALTER TABLE changing ADD COLUMN f int DEFAULT 77;
UPDATE changing SET a = 4 WHERE id IN (1, 2);
ROLLBACK TO one;
UPDATE changing SET a = 5 WHERE id IN (1, 2);
COMMIT;
ALTER TABLE changing RENAME TO changed;
UPDATE changed SET a = 6 WHERE id = 1;
ALTER TABLE changed RENAME TO changing;
DELETE FROM changing WHERE id = 1;
VACUUM FULL changing;
UPDATE changing SET a = 7 WHERE id = 2;
TRUNCATE changing;
INSERT INTO changing (id, a) VALUES (1, 1), (2, 2);
ALTER TABLE changing ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED;
INSERT INTO changing (id, a) VALUES (3, 3);
UPDATE changing SET a = 9;
ALTER TABLE changing DROP COLUMN g;
UPDATE changing SET a = 10;
EOS
	],
	[
		'types that change' => <<'EOS'
UPDATE types SET ow = '-5', t = 'with' WHERE id < 10;
ALTER TYPE own SET (SEND = NONE);
UPDATE types SET ow = '-6', t = 'without' WHERE id < 10;
CREATE OR REPLACE FUNCTION own_out(own) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'oidout';
UPDATE types SET ow = '-7', t = 'unsigned' WHERE id < 10;
CREATE OR REPLACE FUNCTION own_out(own) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
ALTER TYPE own SET (SEND = own_send);
UPDATE types SET ow = '-8', t = 'with' WHERE id < 10;
ALTER TYPE mood ADD VALUE 'glad' BEFORE 'happy';
UPDATE types SET mo = 'glad' WHERE id < 8;
ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy';
UPDATE types SET mo = 'unhappy', ms = '{unhappy}' WHERE id < 8;
ALTER TYPE mood RENAME VALUE 'unhappy' TO 'sad';
ALTER TYPE mood RENAME TO temper;
UPDATE types SET mo = 'sad', ms = '{sad}' WHERE id < 8;
ALTER TYPE temper RENAME TO mood;
EOS
	],
	[
		'filters, generated columns, partitions' => <<'EOS'
INSERT INTO filtered SELECT i, 0 FROM generate_series(1, 10) i;
UPDATE filtered SET v = 1;
UPDATE filtered SET id = id + 101 WHERE id < 5;
DELETE FROM filtered WHERE id > 5;
INSERT INTO listed SELECT i, 0, 'b' || i FROM generate_series(1, 10) i;
UPDATE listed SET a = 1;
DELETE FROM listed WHERE id > 5;
INSERT INTO generated SELECT i, i FROM generate_series(1, 10) i;
UPDATE generated SET v = v + 1;
DELETE FROM generated WHERE id > 5;
INSERT INTO parted SELECT i, 'v' || i FROM generate_series(90, 110) i;
UPDATE parted SET v = 'w' WHERE id % 3 = 0;
UPDATE parted SET id = 150 WHERE id = 95;
DELETE FROM parted WHERE id > 105;
INSERT INTO rooted SELECT i, 'v' || i FROM generate_series(90, 110) i;
UPDATE rooted SET v = 'w' WHERE id % 3 = 0;
UPDATE rooted SET id = 150 WHERE id = 95;
DELETE FROM rooted WHERE id > 105;
INSERT INTO joining VALUES (200, 'alone');
ALTER TABLE parted ATTACH PARTITION joining FOR VALUES FROM (200) TO (300);
INSERT INTO joining VALUES (201, 'joined');
INSERT INTO parted VALUES (202, 'joined');
ALTER TABLE parted DETACH PARTITION joining;
INSERT INTO joining VALUES (203, 'alone again');
ALTER TABLE rooted ATTACH PARTITION joining FOR VALUES FROM (200) TO (300);
INSERT INTO joining VALUES (204, 'elsewhere');
UPDATE rooted SET v = 'there' WHERE id = 203;
ALTER TABLE rooted DETACH PARTITION joining;
UPDATE joining SET v = 'and alone';
INSERT INTO parent VALUES (1, 'parent');
INSERT INTO child VALUES (1, 'child', 5);
UPDATE parent SET v = 'both';
DELETE FROM parent;
EOS
	],
	[
		'publications' => <<'EOS'
INSERT INTO s.in_schema VALUES (1, 'in schema');
INSERT INTO moving VALUES (1, 'not yet');
ALTER TABLE moving SET SCHEMA s;
INSERT INTO s.moving VALUES (2, 'now');
UPDATE s.moving SET v = 'now' WHERE id = 1;
ALTER TABLE s.moving SET SCHEMA public;
INSERT INTO moving VALUES (3, 'not any more');
ALTER SCHEMA s RENAME TO t;
INSERT INTO t.in_schema VALUES (2, 'renamed');
ALTER SCHEMA t RENAME TO s;
INSERT INTO s.in_schema VALUES (3, 'renamed back');
ALTER PUBLICATION schema DROP TABLES IN SCHEMA s;
INSERT INTO s.in_schema VALUES (4, 'dropped');
ALTER PUBLICATION schema ADD TABLES IN SCHEMA s;
INSERT INTO s.in_schema VALUES (5, 'added');
ALTER PUBLICATION schema SET TABLES IN SCHEMA s, later;
CREATE TABLE later.created (id int PRIMARY KEY, v text);
INSERT INTO later.created VALUES (1, 'created');
UPDATE accounts SET v = 1000 WHERE id = 1;
ALTER PUBLICATION pub DROP TABLE accounts;
UPDATE accounts SET v = 1001 WHERE id = 1;
ALTER PUBLICATION pub ADD TABLE accounts WHERE (id % 2 = 0);
UPDATE accounts SET v = 1002 WHERE id < 4;
ALTER PUBLICATION pub DROP TABLE accounts;
ALTER PUBLICATION pub ADD TABLE accounts (id, v);
UPDATE accounts SET v = 1003 WHERE id < 4;
BEGIN;
ALTER PUBLICATION pub DROP TABLE accounts;
UPDATE accounts SET v = 1004 WHERE id < 4;
ALTER PUBLICATION pub ADD TABLE accounts;
UPDATE accounts SET v = 1005 WHERE id < 4;
COMMIT;
UPDATE accounts SET v = 1006 WHERE id < 4;
ALTER PUBLICATION pub SET (publish = 'insert, delete');
UPDATE accounts SET v = 1007 WHERE id < 4;
INSERT INTO accounts VALUES (70, 1, 'inserted');
TRUNCATE journal;
DELETE FROM accounts WHERE id = 70;
ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate');
UPDATE accounts SET v = 1008 WHERE id < 4;
DELETE FROM accounts WHERE id = 4;
BEGIN;
SAVEPOINT a;
ALTER PUBLICATION pub SET (publish = 'insert');
UPDATE accounts SET v = 1009 WHERE id < 4;
ROLLBACK TO a;
UPDATE accounts SET v = 1010 WHERE id < 4;
COMMIT;
ALTER PUBLICATION pub RENAME TO renamed;
ALTER PUBLICATION renamed RENAME TO pub;
UPDATE accounts SET v = 1011 WHERE id < 4;
ALTER PUBLICATION inserts ADD TABLE accounts WHERE (id > 1000);
INSERT INTO accounts VALUES (71, 1, 'inserted'), (1071, 1, 'inserted');
ALTER PUBLICATION inserts DROP TABLE accounts;
EOS
	],
	[
		'transactions' => <<"EOS"
INSERT INTO unpublished VALUES (1, 'alone');
BEGIN;
INSERT INTO unpublished VALUES (2, 'first');
INSERT INTO journal (t) VALUES ('second');
INSERT INTO unpublished VALUES (3, 'third');
UPDATE accounts SET v = 0 WHERE id = 3;
COMMIT;
BEGIN; COMMIT;
BEGIN;
INSERT INTO journal (t) VALUES ('kept');
SAVEPOINT a;
INSERT INTO journal (t) VALUES ('lost');
UPDATE accounts SET v = 1 WHERE id = 3;
ROLLBACK TO a;
SAVEPOINT b;
UPDATE accounts SET v = 2 WHERE id = 3;
RELEASE b;
COMMIT;
BEGIN;
INSERT INTO journal (t) VALUES ('lost');
ROLLBACK;
SELECT pg_logical_emit_message(true, 'prefix', 'transactional');
SELECT pg_logical_emit_message(false, 'prefix', 'not transactional');
BEGIN;
SELECT pg_logical_emit_message(true, 'prefix', 'first');
UPDATE accounts SET v = 3 WHERE id = 3;
SELECT pg_logical_emit_message(true, 'prefix', 'behind');
SELECT pg_logical_emit_message(false, 'prefix', 'before');
COMMIT;
BEGIN;
UPDATE accounts SET v = 4 WHERE id = 3;
SELECT pg_logical_emit_message(true, '', '');
TRUNCATE journal, unpublished;
INSERT INTO journal (t) VALUES ('after TRUNCATE');
COMMIT;
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 3000) i;
UPDATE accounts SET v = v + 1;
BEGIN;
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 2000) i;
ALTER TABLE journal ADD COLUMN more int DEFAULT 5;
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 2000) i;
COMMIT;
UPDATE journal SET t = 'few' WHERE id % 100 = 0;
BEGIN;
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 2000) i;
ALTER TABLE journal DROP COLUMN more;
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 2000) i;
ROLLBACK;
UPDATE journal SET t = 'few' WHERE id % 100 = 1;
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT pg_replication_origin_xact_setup('0/ABCDEF', now());
UPDATE accounts SET v = v + 1 WHERE id IN (1, 2, 3);
COMMIT;
BEGIN;
SELECT pg_replication_origin_xact_setup('0/ABCDFF', now());
INSERT INTO journal (t) SELECT 'many ' || i FROM generate_series(1, 2000) i;
COMMIT;
INSERT INTO unpublished VALUES (10, 'from elsewhere');
SELECT pg_replication_origin_session_reset();
UPDATE accounts SET v = v + 1 WHERE id IN (1, 2, 3);
EOS
	],
	[
		'prepared transactions' => join '',
		prepare(
			'COMMIT',
			'INSERT INTO accounts VALUES (500, 1, NULL); UPDATE accounts SET v = 2 WHERE id = 500'
		),
		prepare('ROLLBACK', 'UPDATE accounts SET v = 2 WHERE id = 1'),
		prepare('COMMIT', "INSERT INTO unpublished VALUES (500)"),
		prepare(
			'COMMIT',
			"INSERT INTO journal (t) SELECT 'many' FROM generate_series(1, 3000)"
		),
		prepare(
			'ROLLBACK',
			"INSERT INTO journal (t) SELECT 'many' FROM generate_series(1, 3000)"
		),
		prepare(
			'COMMIT',
			"SAVEPOINT a; UPDATE accounts SET v = 7 WHERE id = 2; ROLLBACK TO a; UPDATE accounts SET v = 8 WHERE id = 2; UPDATE types SET mo = 'ok' WHERE id = 7"
		)
	],
	[
		# tables without a replica identity are not updated from here on
		'all tables' => <<'EOS'
ALTER PUBLICATION everything SET (publish = 'insert, update, delete, truncate');
INSERT INTO unpublished VALUES (1000, 'x'), (1001, 'y');
UPDATE unpublished SET v = 'z';
DELETE FROM unpublished WHERE id = 1000;
UPDATE accounts SET v = 0 WHERE id < 10;
UPDATE generated SET v = v + 1;
UPDATE listed SET a = a + 1;
UPDATE filtered SET v = v + 1;
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
INSERT INTO temporary VALUES (1);
UPDATE accounts SET v = 1 WHERE id < 10;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
INSERT INTO unlogged VALUES (1);
CREATE MATERIALIZED VIEW view AS SELECT id FROM accounts;
REFRESH MATERIALIZED VIEW view;
CREATE TABLE created AS SELECT id, v FROM accounts;
UPDATE accounts SET v = 2 WHERE id < 10;
EOS
	]);

# Any of these, in any order.
my $next_id = 5000;
my @random = (
	(   sub { 'UPDATE accounts SET v = v + 1 WHERE id = ' . int(rand 50) },
		sub { 'INSERT INTO accounts VALUES (' . $next_id++ . ", 1, 'x')" },
		sub { 'DELETE FROM accounts WHERE id = ' . int(rand 6000) },
		sub { "INSERT INTO journal (t) VALUES ('random')" },
		sub { 'UPDATE types SET i8 = i8 # 1 WHERE id = ' . int(rand 20) }
	) x 4,
	sub {
		'UPDATE accounts SET id = '
		  . $next_id++
		  . ' WHERE id = '
		  . int(rand 50);
	},
	sub {
		"UPDATE types SET $some_types = $random_types WHERE id = "
		  . int(rand 20);
	},
	sub { "UPDATE toasted SET plain = $long WHERE id = 102" },
	sub { 'UPDATE toasted SET v = v + 1 WHERE id = 102' },
	sub { 'UPDATE whole SET n = n + 1 WHERE id = ' . int(rand 20) },
	sub { 'DELETE FROM whole WHERE id = ' . int(rand 20) },
	sub { 'INSERT INTO whole VALUES (' . int(rand 20) . ", 'w', 1.5)" },
	sub { 'INSERT INTO filtered VALUES (' . $next_id++ . ', 1)' },
	sub { 'INSERT INTO listed VALUES (' . $next_id++ . ", 1, 'l')" },
	sub { 'UPDATE generated SET v = v + 1 WHERE id = ' . int(rand 5) },
	sub { 'INSERT INTO unpublished VALUES (' . $next_id++ . ", 'u')" },
	sub { 'INSERT INTO s.in_schema VALUES (' . $next_id++ . ", 'u')" },
	sub { 'TRUNCATE journal' },
	sub {
		'ALTER TABLE accounts ADD COLUMN a'
		  . $next_id++
		  . " text DEFAULT 'd'";
	},
	sub { 'ALTER TABLE journal ADD COLUMN j' . $next_id++ . ' int' },
	sub {
		'ALTER TABLE accounts ALTER v TYPE '
		  . (rand() < 0.5 ? 'int' : 'bigint');
	},
	sub { 'ALTER TABLE whole REPLICA IDENTITY FULL' },
	sub {
		'ALTER TABLE s.in_schema RENAME TO in_schema' . $next_id
		  . "; ALTER TABLE s.in_schema$next_id RENAME TO in_schema";
	},
	sub {
		"ALTER PUBLICATION pub SET (publish = '"
		  . ('insert', 'insert, update', 'update, delete')[ rand 3 ] . "')";
	},
	(   sub {
			"ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')";
		}) x 2,
	sub {
		'ALTER PUBLICATION pub SET TABLE accounts, types, whole, filtered WHERE (v > 0)';
	},
	(   sub {
			'ALTER PUBLICATION pub SET TABLE accounts, types, journal, toasted, whole, filtered WHERE (id % 2 = 0), listed (id, b), generated';
		}) x 2,
	sub {
		'ALTER TYPE own SET (SEND = '
		  . (rand() < 0.5 ? 'NONE' : 'own_send') . ')';
	},
	sub { 'UPDATE types SET ow = (random() * 1e6)::int::text::own' },
	sub { 'CREATE TEMP TABLE t' . $next_id++ . ' (id int)' },
	sub { "SELECT pg_logical_emit_message(true, 'prefix', 'random')" });

sub random_transactions
{
	my ($count) = @_;
	my $sql = "SELECT setseed(${\rand});\n";

	foreach my $i (1 .. $count)
	{
		my $many = 1 + int rand 6;
		my $lost = rand() < 0.1;
		my $saved = 0;

		$sql .= "BEGIN;\n" if $many > 1;
		foreach my $j (1 .. $many)
		{
			my $statement;

			if ($many > 1 && rand() < 0.2)
			{
				$sql .= "SAVEPOINT a;\n";
				$saved = 1;
			}
			# What the server itself may fail to decode is left out.  It takes a row of a catalog
			# that was updated in a subtransaction and, after ROLLBACK TO, again, for one that
			# is gone ("could not map filenumber").  Of a transaction that was aborted, it may
			# find no version of a rewritten table or of a publication that has not been pruned
			# ("does not exist").  And how far it decodes what was rolled back depends on which
			# catalogs are read, so messages from there may be missing in a stream.
			do
			{
				$statement = $random[ rand @random ]->();
			  } while ($saved && $statement =~ /ALTER|TRUNCATE|emit_message/
				|| $lost && $statement =~ /ALTER v TYPE|ALTER PUBLICATION/);
			$sql .= "$statement;\n";
			$sql .= "ROLLBACK TO a;\n" if $saved && rand() < 0.1;
		}
		$sql .= $lost ? "ROLLBACK;\n" : "COMMIT;\n" if $many > 1;
	}
	return $sql;
}

# An error is a valid end of a random transaction, too.
push @parts, [ random => random_transactions(300), may_fail => 1 ];

foreach my $part (@parts)
{
	my ($what, $sql, %params) = @$part;
	my ($rc, $stdout, $stderr) = $pub->psql(
		'postgres', $sql,
		on_error_stop => !$params{may_fail},
		on_error_die => 0);
	die "$what: $stderr" if $rc != 0 && !$params{may_fail};
	note("$what: $stderr") if $stderr;
}
my $end = query($pub,
	"SELECT pg_logical_emit_message(true, 'none', '') IS NULL; SELECT pg_current_wal_flush_lsn()"
);
$end =~ s/^.*\n//;

####
#### What is sent
####

foreach my $case (grep { $_ ne 'live' } sort keys %cases)
{
	my $log_start = -s $pub->logfile;
	my ($theirs, $ours) = ([ theirs($case) ], [ ours($case, $end) ]);
	($theirs, $ours) = map { without_aborted(@$_) } $theirs, $ours
	  if $case =~ /streamed/;
	same_messages($case, $theirs, $ours);

	my $log = slurp_file($pub->logfile, $log_start);
	unlike($log, qr/since ours differ/, "$case: no difference was found");
	if ($case =~ /streamed/)
	{
		like(written($log, 'journal', 'insert', ' in a stream'),
			qr/Weft/, "$case: Weft wrote rows in streams");
	}
	if ($case eq 'streamed_at_once')
	{
		is(written($log, $_, 'insert', ' in a stream'),
			'pgoutput', "$case: pgoutput wrote rows of $_ in streams")
		  foreach qw(filtered listed generated);
	}
	next if $case eq 'streamed_at_once' || $case =~ /^all/;

	# That is, pgoutput is not compared with itself.
	foreach my $table (qw(types accounts journal toasted changing by_index))
	{
		like(written($log, $table, 'update'),
			qr/Weft/, "$case: Weft wrote updates of $table");
	}
	foreach my $table (
		qw(filtered listed generated parted_low parted_high rooted_low))
	{
		is(written($log, $table, 'insert'),
			'pgoutput', "$case: pgoutput wrote rows of $table");
	}
	is(written($log, 'no_key', 'insert'),
		'Weft', "$case: inserts only: by Weft");
	is(written($log, 'unpublished', 'insert'),
		'pgoutput', "$case: unpublished changes are left to pgoutput");
}

# It has been running all the time.
poll($pub,
	"SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'live'"
);
$live->signal('INT');
$live->finish;
same_messages(
	'live',
	with_relations(theirs('live')),
	with_relations(parse_batches(slurp_file($live_file))));

done_testing();
