# weft.copy_schema: what it creates, what it skips, and what it keeps secret.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');
my $connstr = $pub->connstr . ' dbname=postgres password=very_secret';

query($pub, <<'EOS');
CREATE SCHEMA "odd. Schema";
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE "odd. Schema"."a ""table""; Type: X" (id serial PRIMARY KEY, "b;c" text DEFAULT 'a
--
-- no head

;''', UNIQUE ("b;c"));
CREATE TABLE plain (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int CHECK (v > 0),
	g int GENERATED ALWAYS AS (v * 2) STORED, EXCLUDE USING btree (g WITH =));
CREATE INDEX plain_v ON plain (v) WHERE v > 5;
COMMENT ON TABLE plain IS 'a comment';
CREATE TABLE refers (id int PRIMARY KEY REFERENCES plain);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION f();
CREATE RULE r AS ON DELETE TO plain DO ALSO NOTHING;
ALTER TABLE plain ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON plain USING (true);
ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_pkey;
CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (1000) TO (100000);
CREATE INDEX ON parted (v);
CREATE TABLE moody (id int PRIMARY KEY, m mood);
CREATE TABLE there (id int PRIMARY KEY, w text);
CREATE TABLE unpublished (id int PRIMARY KEY);
INSERT INTO "odd. Schema"."a ""table""; Type: X" ("b;c") SELECT i FROM generate_series(1, 1000) i;
INSERT INTO plain (v) SELECT i FROM generate_series(1, 1000) i;
INSERT INTO refers SELECT i FROM generate_series(1, 1000) i;
INSERT INTO parted SELECT i, i FROM generate_series(1, 5000) i;
INSERT INTO there SELECT i, i FROM generate_series(1, 1000) i;
CREATE PUBLICATION one FOR TABLE plain, refers, there, moody, TABLES IN SCHEMA "odd. Schema";
CREATE PUBLICATION two FOR TABLE parted, plain WITH (publish_via_partition_root = true);
EOS
query($sub, 'CREATE TABLE there (id int PRIMARY KEY, w text)');
query($sub, 'CREATE ROLE ordinary');

# Rollback removes what was created.
is(query($sub, <<EOS), "t\nf", 'rollback removes what was created');
SET client_min_messages = warning;
BEGIN;
SELECT count(*) > 0 FROM weft.copy_schema('$connstr', '{one,two}');
ROLLBACK;
SELECT to_regclass('plain') IS NOT NULL;
EOS

my $done = query($sub, <<EOS);
SELECT object_type || ': ' || object || ': ' || CASE WHEN created THEN 'created' ELSE note END
FROM weft.copy_schema('$connstr', '{one,two}') ORDER BY object COLLATE "C", object_type COLLATE "C"
EOS
note($done);
my %expected = (
	'table: public.there' => 'already exists',
	'table: public.plain' => 'created',
	'constraint: public.plain plain_pkey' => 'created',
	'index: public.plain_v' => 'created',
	'comment: public.TABLE plain' => 'created',
	'trigger: public.plain t' => 'skipped',
	'rule: public.plain r' => 'skipped',
	'policy: public.plain p' => 'skipped',
	'row security: public.plain' => 'skipped',
	'fk constraint: public.refers refers_id_fkey' => 'skipped',
	'table: public.parted' => 'created',
	'table: public.parted_2' => 'created',
	'table attach: public.parted_2' => 'created',
	'index attach: public.parted_2_pkey' => 'created',
	'table: public.moody' => 'type "public.mood" does not exist',
	'schema: odd. Schema' => 'created',
	'table: odd. Schema.a "table"; Type: X' => 'created');
foreach my $object (sort keys %expected)
{
	like($done, qr/^\Q$object: $expected{$object}\E$/m, $object);
}
unlike($done, qr/unpublished/, 'no unpublished objects');
is(query($sub, <<'EOS'), '0|0|0|f|2', 'skipped objects do not exist');
SELECT (SELECT count(*) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
		WHERE relnamespace <> 'weft'::regnamespace),
	(SELECT count(*) FROM pg_policy JOIN pg_class c ON c.oid = polrelid
		WHERE relnamespace <> 'weft'::regnamespace),
	(SELECT count(*) FROM pg_constraint
		WHERE contype = 'f' AND connamespace <> 'weft'::regnamespace),
	(SELECT relrowsecurity FROM pg_class WHERE oid = 'plain'::regclass),
	(SELECT count(*) FROM pg_inherits WHERE inhparent = 'parted'::regclass)
EOS
is( query($sub, 'SHOW search_path'),
	'"$user", public',
	'settings are as before');
is(query_default($sub), query_default($pub), 'a default of several lines');

sub query_default
{
	my ($node) = @_;
	return query($node,
		"SELECT md5(pg_get_expr(adbin, adrelid)) FROM pg_attrdef WHERE adnum = 2"
	);
}

# With these objects, everything is copied.
query_all([$sub],
	"CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE moody (id int PRIMARY KEY, m mood)"
);
subscribe($pub, $sub, 'sub', 'one, two');
wait_for_apply($pub, $sub, 'sub');
same_tables(
	$pub,
	$sub,
	[ qw(plain refers there parted), '"odd. Schema"."a ""table""; Type: X"' ],
	'all tables are equal');
is( query(
		$sub,
		"SELECT count(*), bool_and(NOT created) FROM weft.copy_schema('$connstr', '{one}')"
	),
	'5|t',
	'nothing is left to create');

# Errors
my ($ret, $stdout, $stderr) = $sub->psql('postgres',
	"SET ROLE ordinary; SELECT * FROM weft.copy_schema('$connstr', '{one}')");
like($stderr, qr/permission denied/, 'not everybody may call it');
($ret, $stdout, $stderr) = $sub->psql('postgres',
	"SELECT * FROM weft.copy_schema('host=/nowhere password=very_secret', '{one}')"
);
like($stderr, qr/could not connect to the publisher/, 'no publisher');
unlike($stderr, qr/very_secret/, 'no password in the error');
($ret, $stdout, $stderr) =
  $sub->psql('postgres', "SELECT * FROM weft.copy_schema('$connstr', '{}')");
like($stderr, qr/no publication specified/, 'no publication');
my @left = glob $sub->data_dir . '/base/pgsql_tmp/*';
is("@left", '', 'no file is left');
unlike(slurp_file($sub->logfile) =~ s/^.*(STATEMENT|statement): .*$//mgr,
	qr/very_secret/, 'no password in the log');

$sub->stop;
$pub->stop;
done_testing();
