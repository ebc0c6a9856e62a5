# The initial copy with helpers: tables of all kinds equal the publisher's, even if the
# publisher changes them during the copy.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');

####
#### Tables of all kinds
####

query_all([ $pub, $sub ], <<'EOS');
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN share AS numeric(5, 2) CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE typed (id int PRIMARY KEY, m mood, s share, r regclass, w text[]);
CREATE TABLE large (id int PRIMARY KEY, t text);
ALTER TABLE large ALTER t SET STORAGE EXTERNAL;
CREATE TABLE filtered (id int PRIMARY KEY, v int);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE "Odd "" name" ("a, FROM" int PRIMARY KEY, "b)" text, c text);
CREATE TABLE child_of (id int);
CREATE TABLE child (extra int) INHERITS (child_of);
EOS
query($pub, <<'EOS');
CREATE TABLE plain (id int PRIMARY KEY, a text, b numeric, c timestamptz, d bytea, e jsonb, f float8);
CREATE TABLE listed (a int PRIMARY KEY, b int, secret text);
CREATE TABLE parted (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a');
CREATE TABLE parted_b PARTITION OF parted FOR VALUES IN ('b');
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (3000);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (3000) TO (100000);
INSERT INTO plain SELECT i, md5(i::text), i / 7.0, '2026-01-01'::timestamptz + i * interval '1 s',
	sha256(int4send(i)), jsonb_build_object('i', i, 't', repeat('x', i % 50)), sqrt(i)
	FROM generate_series(1, 30000) i;
INSERT INTO plain (id) VALUES (0), (-1);
INSERT INTO typed SELECT i, (enum_range(NULL::mood))[1 + i % 3], i % 101,
	CASE WHEN i % 2 = 0 THEN 'pg_class'::regclass END, ARRAY[md5(i::text), NULL, E'a\tb\\c\n']
	FROM generate_series(1, 10000) i;
INSERT INTO large SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 1000) i;
INSERT INTO filtered SELECT i, i FROM generate_series(1, 10000) i;
INSERT INTO listed SELECT i, -i, 'secret' FROM generate_series(1, 10000) i;
INSERT INTO "Odd "" name" SELECT i, 'b' || i, NULL FROM generate_series(1, 5000) i;
INSERT INTO parted SELECT i, CASE WHEN i % 5 = 0 THEN 'b' ELSE 'a' END, i FROM generate_series(1, 10000) i;
INSERT INTO parts SELECT i, i FROM generate_series(1, 10000) i;
INSERT INTO child_of SELECT generate_series(1, 3000);
INSERT INTO child SELECT i, i FROM generate_series(1, 2000) i;
DELETE FROM plain WHERE id % 10 = 3;
UPDATE plain SET a = 'updated' WHERE id % 10 = 4;
CREATE PUBLICATION tables FOR TABLE plain, typed, large, empty, listed (a, b),
	"Odd "" name", parts, ONLY child_of, child;
CREATE PUBLICATION filter FOR TABLE filtered WHERE (v % 3 = 0 OR v = 1) WITH (publish = 'insert');
CREATE SEQUENCE filtered_id START 100000;
CREATE PUBLICATION root FOR TABLE parted WITH (publish_via_partition_root = true);
EOS

# Other columns, in another order, with more indexes; partitioned differently.
query($sub, <<'EOS');
CREATE FUNCTION twice(int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql AS 'SELECT $1 * 2';
CREATE TABLE plain (f float8, e jsonb, here text DEFAULT 'here', d bytea, gone int, c timestamptz,
	b numeric, a text, id int PRIMARY KEY, twice int GENERATED ALWAYS AS (twice(id)) STORED,
	CHECK (id > -10));
ALTER TABLE plain DROP gone;
CREATE INDEX ON plain (a);
CREATE INDEX ON plain (b, c) WHERE a <> 'updated';
CREATE INDEX ON plain USING gin (e);
CREATE INDEX ON plain USING hash (a);
CREATE INDEX ON plain (twice(id));
CREATE INDEX ON plain USING brin (c);
CREATE UNIQUE INDEX ON large (md5(t));
CREATE TABLE listed (b int, a int PRIMARY KEY, EXCLUDE USING btree (b WITH =));
CREATE TABLE parted (id int, v bigint, region text, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 (v bigint, id int NOT NULL, region text);
ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE INDEX ON parted (v);
CREATE TABLE parts_1 (id int PRIMARY KEY, v int);
CREATE TABLE parts_2 (v int, id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_2_1 PARTITION OF parts_2 FOR VALUES FROM (0) TO (5000);
CREATE TABLE parts_2_2 PARTITION OF parts_2 FOR VALUES FROM (5000) TO (20000);
EOS

my %columns = (
	plain => 'id, a, b, c, d, e, f',
	typed => '*',
	large => '*',
	empty => '*',
	filtered => '*',
	listed => 'a, b',
	'"Odd "" name"' => '*',
	parted => 'id, region, v::bigint',
	parts_1 => 'id, v',
	parts_2 => 'id, v',
	'ONLY child_of' => '*',
	child => '*');

# Columns that are not published are not compared.
sub check_tables
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $table (sort keys %columns)
	{
		my $there = $table;
		$there .= ' WHERE v % 3 = 0 OR v = 1' if $table eq 'filtered';
		same_rows(
			rows($sub, $table, $columns{$table}),
			rows($pub, $there, $columns{$table}),
			"$what: $table");
	}
	return;
}

# Logical decoding of the subscriber's WAL shows the rows, too.
query($sub,
	"SELECT pg_create_logical_replication_slot('decoding', 'test_decoding')");

sub check_decoding
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	# only what is flushed is decoded
	flush_wal($sub);
	foreach my $table (qw(plain large typed))
	{
		is( query($sub,
				<<EOS), query($pub, "SELECT count(*) FROM $table") . '|f', "decoding: $table");
SELECT count(*), bool_or(data ~ 'unchanged-toast')
FROM pg_logical_slot_peek_changes('decoding', NULL, NULL)
WHERE data ~ '^table public.$table: INSERT: '
EOS
	}
	query($sub, "SELECT pg_drop_replication_slot('decoding')");
	return;
}

# Empties the subscriber.
sub start_again
{
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub,
		'TRUNCATE plain, typed, large, empty, filtered, listed, "Odd "" name", parted, parts_1, parts_2, child_of'
	);
	return;
}

foreach my $binary ('false', 'true')
{
	my $what = "binary = $binary";
	my $offset = -s $sub->logfile;

	# with binary, types must be the same
	query($sub, 'ALTER TABLE parted ALTER v TYPE int') if $binary eq 'true';
	subscribe($pub, $sub, 'sub', 'tables, root, filter', "binary = $binary");
	wait_for_apply($pub, $sub, 'sub');
	check_tables($what);
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	is( query(
			$sub,
			"SELECT count(*), count(*) FILTER (WHERE twice = id * 2 AND here = 'here') FROM plain"
		),
		join('|', (query($pub, 'SELECT count(*) FROM plain')) x 2),
		"$what: columns that only the subscriber has");
	is(errors_logged($sub, $offset), '', "$what: no errors");
	check_decoding() if $binary eq 'false';

	if (weft())
	{
		foreach my $table (
			qw(plain typed large filtered listed parted parts_1 parts_2),
			'Odd " name')
		{
			cmp_ok(copied_by($sub, "public.$table", $offset),
				'>', 0, "$what: $table is not left to the server");
		}
	}
	start_again();
}

####
#### A load meanwhile
####

my $load = start_pgbench(
	$pub,
	{
		<<'EOS' => 1 },
\set a random(-1, 30000)
\set b random(1, 10000)
BEGIN;
UPDATE plain SET a = repeat(md5(random()::text), 1 + :a % 30) WHERE id = :a;
UPDATE parted SET v = v + 1, region = CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END WHERE id = :b;
INSERT INTO filtered VALUES (nextval('filtered_id'), (random() * 100)::int);
UPDATE large SET t = repeat(md5(random()::text), 300) WHERE id = :b;
UPDATE parts SET v = v + 1, id = CASE WHEN :b > 9990 THEN id ELSE id + 10000 END WHERE id = :b;
UPDATE parts SET id = id - 10000 WHERE id = :b + 10000;
COMMIT;
EOS
	'-c' => 4,
	'-T' => 600,
	'--max-tries=0');

foreach my $round (1 .. 4)
{
	subscribe($pub, $sub, 'sub', 'tables, root, filter');
	poll($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");
	start_again() unless $round == 4;
}
stop_load($load);
wait_for_apply($pub, $sub, 'sub');
check_tables('under load');
indexes_sound($sub, 'under load');
nothing_left($pub, 'under load');

$sub->stop;
$pub->stop;
done_testing();
