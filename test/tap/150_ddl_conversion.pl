# Schema changes whose text cannot be repeated: those that create a table from a query, and those
# that compute values of existing rows.  They are converted, or refused on the publisher.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub =
  new_publisher('publisher', conf => "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber');
my $other = new_subscriber('other');

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub, $other;
query_all([ $pub, $sub, $other ], <<'EOS');
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE SCHEMA "od""d";
EOS

query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
subscribe_with_pgoutput($pub, $other, 'other', 'pub');

sub caught_up
{
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($pub, $other, 'other');
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	caught_up();
	same_everything($pub, $sub, "$what, plugin weft");
	same_everything($pub, $other, "$what, pgoutput");
	return;
}

# Fails on the publisher, which says why; nothing happens to the stream.
sub refused
{
	my ($sql, $pattern) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $pub->psql('postgres', $sql);

	like($err, $pattern, "refused: $sql");
	return;
}

# What has been captured last.
sub captured
{
	return query($pub,
		"SELECT statement FROM weft.ddl_history WHERE result = 'captured' ORDER BY id DESC LIMIT 1"
	);
}

# --- tables made of queries ---

query($pub,
	q{CREATE TABLE made AS SELECT g AS id, random() AS r, clock_timestamp() AS t, gen_random_uuid() AS u FROM generate_series(1, 1000) g}
);
is( captured(),
	'CREATE TABLE public.made (id integer, r double precision, t timestamp with time zone, u pg_catalog.uuid)',
	'a definition is published');
query($pub, $_)
  foreach (
	'SELECT g AS id, random() AS r INTO made_into FROM generate_series(1, 10) g',
	q{CREATE TABLE "od""d"."a ""b""; DROP TABLE made; --" ("c ""1", "d'2", "select") WITH (fillfactor = 70, toast.autovacuum_enabled = false)
		AS SELECT 'x'::varchar(5), 'y'::char(3), B'101'::bit(3)},
	q{CREATE TABLE typed AS SELECT 'sad'::mood AS m, 7::small AS s, 1.5::numeric(10,2) AS n, ARRAY[1,2]::int[] AS a, '{"a": 1}'::jsonb AS j,
		'1 day'::interval day AS i, 'x'::text COLLATE "C" AS c, now()::timestamp(2) AS t, '\\x01'::bytea AS b, 'unknown' AS z, B'1'::varbit AS vb,
		'char'::"char" AS ch, 'y'::bpchar AS bp, 'pg_class'::regclass AS rc},
	'CREATE TABLE empty_made AS SELECT 1 AS a, 2 AS b WITH NO DATA',
	'CREATE TABLE no_columns AS SELECT FROM generate_series(1, 3)',
	'CREATE TABLE renamed (x) AS SELECT 1 AS a, 2 AS b',
	'CREATE TABLE "ordinary" USING heap AS VALUES (1, 2), (3, 4)',
	'CREATE TABLE IF NOT EXISTS made AS SELECT 1 AS other',
	'CREATE TABLE IF NOT EXISTS made_if AS SELECT 1 AS a',
	'CREATE TEMP TABLE local AS SELECT 1 AS a; INSERT INTO local VALUES (2)',
	'CREATE TEMP TABLE local ON COMMIT DROP AS SELECT 1 AS a',
	'CREATE UNLOGGED TABLE fast AS SELECT 1 AS a; DROP TABLE fast',
	'PREPARE p(int, text) AS SELECT $1 + g AS a, $2 AS b FROM generate_series(1, 5) g; CREATE TABLE made_execute AS EXECUTE p(10, random()::text)',
	'PREPARE p AS SELECT 1 AS a; CREATE TABLE made_execute_empty AS EXECUTE p WITH NO DATA',
	'EXPLAIN (ANALYZE, COSTS off) CREATE TABLE made_explain AS SELECT 1 AS a',
	'EXPLAIN ANALYZE CREATE TABLE made_explain_empty AS SELECT 1 AS a WITH NO DATA',
	'EXPLAIN CREATE TABLE not_made AS SELECT 1 AS a',
	'EXPLAIN (ANALYZE false) CREATE TABLE not_made AS SELECT 1 AS a',
	'CREATE TABLE ctes AS WITH added AS (INSERT INTO made_if VALUES (2) RETURNING a) SELECT * FROM added',
	'SET search_path = "od""d"; CREATE TABLE made AS SELECT 1 AS a',
	q{SET default_toast_compression = 'pglz'; CREATE TABLE long_values AS SELECT string_agg(md5(g::text), '') AS v FROM generate_series(1, 1000) g},
	'CREATE TABLE numbers AS SELECT generate_series(1, 100) AS n; CREATE TABLE doubled AS SELECT n * 2 AS n FROM numbers; DROP TABLE numbers',
  );
query($pub, <<'EOS');
DO $$
DECLARE
	factor int := 3;
BEGIN
	FOR i IN 1..2 LOOP
		EXECUTE format('CREATE TABLE %I AS SELECT g * $1 AS a FROM generate_series(1, 3) g', 'loop ' || i) USING factor;
	END LOOP;
	CREATE TABLE of_variables AS SELECT factor AS a, found AS b;
END $$;
EOS
all_the_same('tables made of queries');

# --- in transactions ---

query($pub, <<'EOS');
BEGIN;
INSERT INTO made (id) VALUES (5000);
CREATE TABLE kept AS SELECT g AS id FROM generate_series(1, 10) g;
SAVEPOINT a;
CREATE TABLE gone AS SELECT g AS id FROM generate_series(1, 10) g;
INSERT INTO gone VALUES (11);
ROLLBACK TO a;
CREATE TABLE gone AS SELECT 'other'::text AS v;
ALTER TABLE kept ADD COLUMN v text DEFAULT 'v';
CREATE TABLE from_kept AS SELECT * FROM kept;
ALTER TABLE from_kept REPLICA IDENTITY FULL;
UPDATE from_kept SET v = 'changed' WHERE id < 3;
COMMIT;
BEGIN;
CREATE TABLE never AS SELECT 1 AS a;
ROLLBACK;
EOS
query($pub, <<'EOS');
BEGIN;
CREATE TABLE streamed AS SELECT g AS id, repeat('x', 100) AS v FROM generate_series(1, 3000) g;
SAVEPOINT a;
CREATE TABLE streamed_gone AS SELECT * FROM streamed;
ROLLBACK TO a;
CREATE TABLE streamed_too AS SELECT * FROM streamed;
COMMIT;
EOS
all_the_same('in transactions');

# --- within other statements ---

# The function of the query creates a table, too, and its subtransaction is rolled back once.
query($pub, <<'EOS');
CREATE FUNCTION nest(n int) RETURNS int LANGUAGE plpgsql AS $f$
BEGIN
	BEGIN
		EXECUTE 'CREATE TABLE nested_gone AS SELECT 1 AS a';
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		EXECUTE 'CREATE TABLE nested_' || n || ' AS SELECT g AS a FROM generate_series(1, 3) g';
	END;
	RETURN n;
END $f$;
CREATE TABLE nesting AS SELECT nest(g) AS a FROM generate_series(1, 3) g;
DROP FUNCTION nest;
EOS
all_the_same('nested');

# An event trigger fills the table that has just been created, and makes others.
query($pub, <<'EOS');
CREATE FUNCTION fill() RETURNS event_trigger LANGUAGE plpgsql AS $f$
DECLARE
	made text;
BEGIN
	FOR made IN SELECT object_identity FROM pg_event_trigger_ddl_commands()
			WHERE object_identity !~ '_(also|copy|gone)$' LOOP
		BEGIN
			EXECUTE 'INSERT INTO ' || made || ' VALUES (1)';
			EXECUTE 'CREATE TABLE ' || made || '_gone AS SELECT 3 AS a';
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			EXECUTE 'INSERT INTO ' || made || ' VALUES (2)';
		END;
		EXECUTE 'CREATE TABLE ' || made || '_also (a int)';
		EXECUTE 'INSERT INTO ' || made || '_also VALUES (3)';
		EXECUTE 'CREATE TABLE ' || made || '_copy AS SELECT * FROM ' || made;
	END LOOP;
END $f$;
CREATE EVENT TRIGGER fill ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS') EXECUTE FUNCTION fill();
CREATE TABLE filled (a int);
CREATE TABLE filled_as AS SELECT 10 AS a;
DROP EVENT TRIGGER fill;
DROP FUNCTION fill;
EOS
all_the_same('filled by an event trigger');
is(query($sub, 'SELECT count(*) FROM filled_copy'),
	1, 'rows before the statement ends');

# --- defaults that are stable ---

query($pub, <<'EOS');
CREATE TABLE filled_table (id int PRIMARY KEY, n int, ts timestamp, v text);
INSERT INTO filled_table SELECT g, g, now(), g FROM generate_series(1, 10) g;
CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (10) TO (100);
INSERT INTO part SELECT g FROM generate_series(1, 20) g;
CREATE TABLE parent (id int);
CREATE TABLE child () INHERITS (parent);
INSERT INTO child VALUES (1);
CREATE TABLE dates (d date) PARTITION BY RANGE (d);
CREATE TABLE dates_old PARTITION OF dates FOR VALUES FROM (MINVALUE) TO ('2020-01-01'::date + 1);
CREATE TABLE dates_apart (d date);
CREATE TABLE words (w text) PARTITION BY LIST (w);
CREATE TABLE words_today PARTITION OF words FOR VALUES IN ('today', 'to' || 'morrow');
EOS
my $before = query($pub, 'SELECT now()');
query($pub, $_)
  foreach (
	'ALTER TABLE filled_table ADD COLUMN a timestamptz DEFAULT now()',
	'ALTER TABLE filled_table ADD b timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP, ADD c text DEFAULT session_user, ADD d date DEFAULT CURRENT_DATE',
	q{ALTER TABLE filled_table ADD COLUMN e timestamptz DEFAULT 'now', ADD f int DEFAULT pg_backend_pid() CHECK (f > 0), ADD g int DEFAULT 7},
	q{SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; SET extra_float_digits = -10; SET TimeZone = 'Asia/Kolkata';
		ALTER TABLE filled_table ADD h interval DEFAULT now() - '2000-01-01', ADD i float8 DEFAULT extract(epoch FROM now())::float8,
			ADD j timestamptz DEFAULT now(), ADD k timestamp DEFAULT now() + '-1 day 02:00:00'::interval},
	'ALTER TABLE filled_table ADD l text DEFAULT nullif(current_user, current_user), ADD m varchar(3) DEFAULT current_database()::varchar(3)',
	'ALTER TABLE filled_table ADD o timestamptz DEFAULT now(), ALTER n TYPE bigint',
	q{ALTER TABLE filled_table ADD n1 timestamptz DEFAULT ' now', ADD n2 tstzrange DEFAULT '[now,)', ADD n3 timestamptz[] DEFAULT '{NOW}', ADD n4 text DEFAULT 'unknown now'},
	q{ALTER TABLE filled_table ALTER n4 TYPE varchar USING replace(n4, 'unknown', 'known')},
	'ALTER TABLE filled_table ADD once int, ADD twice timestamptz DEFAULT now(), ALTER twice SET DEFAULT clock_timestamp()',
	q{ALTER TABLE filled_table ADD p text[] DEFAULT ARRAY[current_user::text, 'it''s "x"', NULL]},
	'ALTER TABLE filled_table ADD COLUMN IF NOT EXISTS a timestamptz DEFAULT clock_timestamp()',
	'ALTER TABLE part ADD COLUMN a timestamptz DEFAULT now()',
	'ALTER TABLE parent ADD COLUMN a timestamptz DEFAULT now()',
	'CREATE TABLE truths (truth bool) PARTITION BY LIST (truth)',
	q{CREATE TABLE true_ones PARTITION OF truths FOR VALUES IN ('a' < 'b')},
	'INSERT INTO filled_table (id) VALUES (100)',
	'INSERT INTO part (id) VALUES (90)',
	'ALTER TABLE filled_table ADD q int GENERATED ALWAYS AS (id * 2) STORED',
	'ALTER TABLE filled_table ALTER q DROP EXPRESSION',
	q{ALTER TABLE filled_table ALTER ts TYPE timestamptz, ALTER v TYPE date USING ('2020-01-' || v)::date},
	'ALTER TABLE filled_table ALTER ts TYPE text USING to_char(ts, \'YYYY-MM-DD HH24:MI:SS.US TZH\')',
  );
all_the_same('stable defaults');
like(
	query(
		$sub,
		q{SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum WHERE adrelid = 'filled_table'::regclass AND attname = 'a'}
	),
	qr/now\(\)/,
	'the default itself stays');
is( query(
		$sub,
		"SELECT count(*), count(DISTINCT a), min(a) > '$before' FROM filled_table WHERE id < 100"
	),
	'10|1|t',
	'all rows have one value');

# --- volatile ones are refused ---

my $history = query($pub, 'SELECT count(*) FROM weft.ddl_history');
my $schema = schema_of($pub);

query($pub, <<'EOS');
SET weft.ddl_replication = off;
CREATE FUNCTION vague(int) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
CREATE FUNCTION steady(int) RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN $1; END';
CREATE FUNCTION clear(int, text DEFAULT random()::text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $2; END';
EOS
refused(@$_)
  foreach (
	(   map {
			[ $_ => qr/partition of "dates" whose bounds are not constant/ ]
		} q{CREATE TABLE dates_new PARTITION OF dates FOR VALUES FROM ('2021-01-01') TO (now())},
		q{CREATE TABLE dates_new PARTITION OF dates FOR VALUES FROM ('today') TO (MAXVALUE)},
		q{ALTER TABLE dates ATTACH PARTITION dates_apart FOR VALUES FROM (current_date) TO ('tomorrow')}
	),
	[
		'ALTER TABLE filled_table ADD COLUMN z uuid DEFAULT gen_random_uuid()'
		  => qr/column "z" gets another value in each row.*volatile, and table "filled_table" has rows.*HINT/s
	],
	[
		'ALTER TABLE filled_table ADD y int, ADD COLUMN z serial' =>
		  qr/column "z" gets another value/
	],
	[
		'ALTER TABLE filled_table ADD COLUMN z int GENERATED ALWAYS AS IDENTITY'
		  => qr/column "z" gets another value/
	],
	[
		'ALTER TABLE filled_table ADD COLUMN z timestamptz DEFAULT clock_timestamp()'
		  => qr/column "z" gets another value/
	],
	[
		'ALTER TABLE filled_table ADD COLUMN z text DEFAULT vague(1)' =>
		  qr/column "z" gets another value/
	],
	[
		'ALTER TABLE filled_table ADD COLUMN z text DEFAULT clear(1)' =>
		  qr/column "z" gets another value/
	],
	[
		'ALTER TABLE part ADD COLUMN z float8 DEFAULT random()' =>
		  qr/column "z" gets another value.*table "part_0"/s
	],
	[
		'ALTER TABLE parent ADD COLUMN z float8 DEFAULT random()' =>
		  qr/column "z" gets another value.*table "child"/s
	],
	[
		'BEGIN; SET LOCAL weft.ddl_replication = off; CREATE DOMAIN vague_domain AS timestamptz DEFAULT now(); SET LOCAL weft.ddl_replication = on;
			ALTER TABLE filled_table ADD COLUMN z vague_domain' =>
		  qr/type has a default that is not immutable/
	],
	[
		'ALTER TABLE filled_table ALTER n TYPE text USING vague(n::int)' =>
		  qr/column "n" gets another type.*more than the row/s
	],
	[
		'ALTER TABLE filled_table ALTER n TYPE text USING steady(n::int)' =>
		  qr/column "n" gets another type/
	],
	[
		'ALTER TABLE filled_table ALTER n TYPE timestamptz USING now()' =>
		  qr/column "n" gets another type/
	],
	[
		q{ALTER TABLE filled_table ALTER n TYPE timestamptz USING coalesce(NULL, timestamptz ' now')}
		  => qr/column "n" gets another type/
	],
	[
		'ALTER TABLE filled_table ALTER n TYPE interval USING age(a::timestamp)'
		  => qr/column "n" gets another type/
	],
	[
		'ALTER TABLE filled_table ALTER n TYPE text USING current_setting(\'port\')'
		  => qr/column "n" gets another type/
	],
	[
		'BEGIN; CREATE TABLE here (id int); INSERT INTO here VALUES (1); ALTER TABLE here ADD z serial'
		  => qr/column "z" gets another value/
	],
	[
		'ALTER TABLE filled_table SET UNLOGGED' => qr/becomes unlogged/
	],
	[
		'CREATE UNLOGGED TABLE fast (id int); ALTER TABLE fast SET LOGGED' =>
		  qr/becomes logged/
	],);
query($pub, 'DROP TABLE fast');
query($pub, <<'EOS');
SET weft.ddl_replication = off;
DROP FUNCTION vague, steady, clear;
EOS
is(schema_of($pub), $schema, 'nothing has happened');
is(query($pub, 'SELECT count(*) FROM weft.ddl_history'),
	$history, '... and nothing is published');

# Without rows, they pass.
query($pub, $_)
  foreach (
	'CREATE TABLE hollow (id int PRIMARY KEY)',
	'INSERT INTO hollow VALUES (1)',
	'DELETE FROM hollow',
	'ALTER TABLE hollow ADD COLUMN u uuid DEFAULT gen_random_uuid(), ADD s serial, ADD i int GENERATED ALWAYS AS IDENTITY',
	'ALTER TABLE hollow ALTER id TYPE text USING random()',
	'INSERT INTO hollow (id) VALUES (1)',
	'BEGIN; CREATE TABLE fresh (id int); ALTER TABLE fresh ADD z serial; INSERT INTO fresh VALUES (1); COMMIT',
	'CREATE TEMP TABLE mine (id int); INSERT INTO mine VALUES (1); ALTER TABLE mine ADD z serial',
	'ALTER TABLE ONLY parent ADD CONSTRAINT positive CHECK (id > 0) NO INHERIT',
	'ALTER TABLE filled_table ADD COLUMN r text',
	'ALTER TABLE filled_table ALTER r SET DEFAULT gen_random_uuid()::text',
	'UPDATE filled_table SET r = DEFAULT',
	'SELECT setval(\'hollow_s_seq\', 100)',);
all_the_same('without rows');

# Those who may not alter the table are told that, and lock nothing.
query_all([ $pub, $sub, $other ], 'CREATE ROLE stranger');
my $session = open_session($pub);
$session->query_safe(
	'BEGIN; LOCK TABLE filled_table IN ACCESS EXCLUSIVE MODE');
refused(
	q{SET lock_timeout = '10s'; SET ROLE stranger; ALTER TABLE filled_table ADD z serial},
	qr/must be owner of table filled_table/);
$session->query_safe('COMMIT');

# A session that inserts meanwhile is waited for.
query($pub, 'CREATE TABLE racy (id int)');
$session->query_safe('BEGIN; INSERT INTO racy VALUES (1)');
my $altering = open_session($pub);
$altering->query_until(qr/begun/, <<'EOS');
\echo begun
DO $$
BEGIN
	ALTER TABLE racy ADD z serial;
EXCEPTION WHEN feature_not_supported THEN
	CREATE TEMP TABLE result AS SELECT SQLERRM AS error;
END $$;
EOS
poll($pub,
	q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'racy'::regclass AND NOT granted}
);
$session->query_safe('COMMIT');
like(
	$altering->query_safe('SELECT error FROM result'),
	qr/column "z" gets another value/,
	'rows of a session that was waited for');
$_->quit foreach $session, $altering;
all_the_same('after sessions that waited');

# --- sequences have no rows that could be missing ---

query($pub, $_)
  foreach 'CREATE SEQUENCE swift',
  'ALTER SEQUENCE swift SET UNLOGGED',
  'ALTER SEQUENCE swift INCREMENT 7',
  'ALTER SEQUENCE swift SET LOGGED',
  'CREATE UNLOGGED SEQUENCE quick',
  'ALTER SEQUENCE quick RENAME TO quicker',
  q{CREATE TABLE of_quicker (id int DEFAULT nextval('quicker'))},
  'CREATE UNLOGGED TABLE unlogged_serial (id serial)',
  'DROP TABLE unlogged_serial';
all_the_same('unlogged sequences');

is( query(
		$pub,
		q{SELECT nextval('swift') > 0; CREATE TABLE counted (id int); SELECT lastval() = currval('swift')}
	),
	"t\nt",
	'a schema change does not use a sequence of the session');
query($pub, 'GRANT CREATE ON SCHEMA public TO stranger');
refused(
	'SET ROLE stranger; BEGIN; CREATE TABLE uncounted (id int); SELECT lastval()',
	qr/lastval is not yet defined/);
query($pub, 'REVOKE CREATE ON SCHEMA public FROM stranger');

# --- what depends on temporary and unlogged tables ---

$schema = schema_of($pub);
my $here = 'CREATE TEMP TABLE here (a int); CREATE TEMP SEQUENCE nums;';
my $fast = 'BEGIN; CREATE UNLOGGED TABLE fast (a int);';
refused(@$_)
  foreach (
	[
		"$here CREATE TABLE like_here (LIKE here INCLUDING ALL)" =>
		  qr/LIKE the table "here", which is temporary or unlogged.*AS TABLE here WITH NO DATA/s
	],
	[
		"$fast CREATE TABLE like_fast (b int, LIKE fast)" =>
		  qr/LIKE the table "fast"/
	],
	[
		"$fast CREATE TABLE of_fast () INHERITS (fast)" =>
		  qr/CREATE TABLE, because table of_fast depends on an object that is unlogged/
	],
	[
		"$here CREATE TABLE of_here (a here[])" =>
		  qr/because table of_here depends on an object that is temporary/
	],
	[
		"$here CREATE TABLE of_nums (a int DEFAULT nextval('nums'))" =>
		  qr/because default value for column a of table of_nums depends on/
	],
	[
		"$here ALTER TABLE racy ALTER id SET DEFAULT nextval('nums')" =>
		  qr/because default value for column id of table racy depends on/
	],
	[
		"$here ALTER TABLE racy ADD COLUMN a here" =>
		  qr/because column a of table racy depends on/
	],
	[
		"$here CREATE FUNCTION pg_temp.positive(int) RETURNS bool LANGUAGE sql AS 'SELECT \$1 > 0';
			ALTER TABLE racy ADD CHECK (pg_temp.positive(id))" =>
		  qr/because constraint racy_id_check on table racy depends on/
	],
	[
		"$fast CREATE TYPE of_fast AS (f fast); CREATE TABLE of_type OF of_fast"
		  => qr/because table of_type depends on an object that is unlogged/
	],);
is(schema_of($pub), $schema, 'nothing of that has happened');
query($pub, $_)
  foreach (
	"$here CREATE DOMAIN here_domain AS here[]; CREATE DOMAIN here_second AS here_domain;
		ALTER DOMAIN here_domain SET NOT NULL; ALTER DOMAIN here_second RENAME TO here_third;
		CREATE TYPE here_type AS (h here_third); DROP TYPE here_type;
		DROP TABLE here CASCADE",
	"$here CREATE TABLE like_here AS TABLE here WITH NO DATA; CREATE TEMP TABLE there (LIKE here)",
	"CREATE FUNCTION pg_temp.next(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT \$1 + 1';
		CREATE INDEX racy_next ON racy (pg_temp.next(id)); DROP INDEX racy_next",
	'CREATE TABLE mixed (id int) PARTITION BY LIST (id)',
	'CREATE TABLE mixed_1 PARTITION OF mixed FOR VALUES IN (1)',
	'CREATE UNLOGGED TABLE mixed_2 PARTITION OF mixed FOR VALUES IN (2)',
	'CREATE INDEX ON mixed (id)',
	'ALTER TABLE mixed DETACH PARTITION mixed_2',
	'ALTER TABLE mixed ATTACH PARTITION mixed_2 FOR VALUES IN (2)',
	'DROP TABLE mixed_2',);
all_the_same('objects that depend on temporary ones');

# --- names that the server chooses ---

# On the publisher only, other names are in use.
query($pub, <<'EOS');
SET weft.ddl_replication = off;
CREATE TABLE obstacle (id int CONSTRAINT named_v_check CHECK (id > 0),
	CONSTRAINT named_part_part_fkey CHECK (id > 1));
CREATE INDEX named_pkey ON obstacle (id);
CREATE INDEX named_w_key ON obstacle (id);
CREATE INDEX named_part_lower_idx ON obstacle (id);
CREATE INDEX named_part_id_idx ON obstacle (id);
CREATE SEQUENCE named_id_seq;
CREATE SEQUENCE named_i_seq;
EOS
query($pub, $_)
  foreach (
	'CREATE TABLE named (id serial PRIMARY KEY, i int GENERATED ALWAYS AS IDENTITY, v int CHECK (v > 0), w int UNIQUE)',
	'ALTER TABLE named ADD CHECK (v < 100), ADD CHECK (v < 200), ADD UNIQUE (w, v)',
	'CREATE TABLE named_root (id int, part int, v text) PARTITION BY RANGE (id)',
	'CREATE TABLE named_part PARTITION OF named_root FOR VALUES FROM (1) TO (10)',
	'CREATE INDEX ON named_root (lower(v))',
	'CREATE INDEX ON named_root (id)',
	'ALTER TABLE named_root ADD FOREIGN KEY (part) REFERENCES named',
	'CREATE TABLE named_late (v text, part int, id int)',
	'ALTER TABLE named_root ATTACH PARTITION named_late FOR VALUES FROM (10) TO (20)',
	'CREATE DOMAIN named_domain AS int CHECK (VALUE > 0) CHECK (VALUE < 10)',
	'SET weft.ddl_replication = off; DROP TABLE obstacle; DROP SEQUENCE named_id_seq, named_i_seq',
  );
all_the_same('names that the server chooses');
query($pub, $_)
  foreach 'ALTER INDEX named_part_lower_idx1 SET (fillfactor = 80)',
  'ALTER TABLE named RENAME CONSTRAINT named_v_check1 TO named_v_positive',
  'ALTER TABLE named DROP CONSTRAINT named_w_key1',
  'ALTER SEQUENCE named_id_seq1 INCREMENT 2',
  'ALTER TABLE named ADD CHECK (v > 7)';
all_the_same('... and statements with them');

# What has such a name on the subscriber is left alone.
query($sub, 'CREATE SEQUENCE taken_id_seq');
my $begin = query($sub, 'SELECT clock_timestamp()');
query($pub, 'CREATE TABLE taken (id serial)');
my ($problem) = apply_error($sub, 'sub', $begin);
like(
	$problem,
	qr/relation "taken_id_seq" already exists/,
	'a name that is in use on the subscriber');
query($sub, 'DROP SEQUENCE taken_id_seq');
all_the_same('... until it is not');

# --- tables that join a publication ---

query($other, 'DROP SUBSCRIPTION other');
query_all([ $pub, $sub, $other ], 'CREATE SCHEMA published');
query($pub,
	'CREATE TABLE published.root (id int PRIMARY KEY) PARTITION BY RANGE (id)'
);
query($pub, <<'EOS');
CREATE TABLE outside (id int PRIMARY KEY);
CREATE TABLE outside_empty (id int PRIMARY KEY);
INSERT INTO outside VALUES (1);
CREATE PUBLICATION several FOR TABLES IN SCHEMA published WITH (ddl = table);
EOS
refused(
	'ALTER TABLE outside SET SCHEMA published',
	qr/table "outside" joins publication "several".*rows, which were not published/s
);
refused(
	'ALTER TABLE published.root ATTACH PARTITION outside FOR VALUES FROM (0) TO (10)',
	qr/table "outside" joins publication "several"/);
query($pub,
	'ALTER TABLE published.root ATTACH PARTITION outside_empty FOR VALUES FROM (0) TO (10)'
);
query($pub, 'DROP PUBLICATION several');
query($pub,
	'CREATE PUBLICATION by_root FOR TABLE published.root WITH (ddl = table, publish_via_partition_root)'
);
refused(
	'ALTER TABLE published.root ATTACH PARTITION outside FOR VALUES FROM (10) TO (20)',
	qr/table "outside" joins publication "by_root"/);
query($pub, 'DROP PUBLICATION by_root');

# --- what else executes a query ---

query($pub,
	'ALTER PUBLICATION pub SET (ddl = all); CREATE TABLE filled_by_all AS SELECT 1 AS a'
);
refused(
	'EXPLAIN ANALYZE CREATE MATERIALIZED VIEW mv AS SELECT 1 AS a',
	qr/materialized view that EXPLAIN ANALYZE creates/);
query($pub,
	'CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM filled_by_all');
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT n FROM mv'), 1, 'a materialized view');

# --- functions that change rows, which are replicated as well ---

query($pub, 'CREATE TABLE noted (id int PRIMARY KEY, n int)');
foreach my $change (
	'INSERT INTO public.noted VALUES ($1, 0)',
	'UPDATE public.noted SET n = n + 1',
	'DELETE FROM public.noted')
{
	query($pub,
		"CREATE FUNCTION take_note(int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN $change; RETURN true; END'"
	);
	$begin = query($sub, 'SELECT clock_timestamp()');
	query($pub, 'ALTER TABLE filled_by_all ADD CHECK (take_note(a))');
	($problem) = apply_error($sub, 'sub', $begin);
	is( $problem,
		'the schema change calls a function that changes rows of table "noted"',
		"not twice: $change");
	query($sub,
		q{CREATE OR REPLACE FUNCTION take_note(int) RETURNS bool LANGUAGE sql AS 'SELECT true'}
	);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['noted'], '... after the function was replaced');
	query_all(
		[ $pub, $sub ],
		'SET weft.ddl_replication = off; ALTER TABLE filled_by_all DROP CONSTRAINT filled_by_all_a_check; DROP FUNCTION take_note'
	);
}

# Foreign keys are checked by locking rows, as this function does.
query($pub, <<'EOS');
INSERT INTO noted VALUES (5, 5);
CREATE FUNCTION lock_notes(int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN PERFORM id FROM public.noted FOR UPDATE; RETURN true; END';
ALTER TABLE filled_by_all ADD CONSTRAINT locking CHECK (lock_notes(a));
EOS
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub, q{SELECT count(*) FROM pg_constraint WHERE conname = 'locking'}
	),
	1,
	'a function that locks rows is called');

# --- a subscriber that publishes on ---

query($sub, 'CREATE PUBLICATION onward FOR TABLE made_if WITH (ddl = table)');
query($other, 'CREATE DATABASE chain');
my $connstr = $sub->connstr('postgres');
$other->safe_psql('chain', <<"EOS");
CREATE EXTENSION weft;
CREATE TABLE made_if (a int);
CREATE SUBSCRIPTION chain CONNECTION \$\$$connstr\$\$ PUBLICATION onward;
EOS
ok( $other->poll_query_until(
		'chain',
		q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}),
	'the next subscriber has copied');
query($pub, 'ALTER TABLE made_if ADD COLUMN t timestamptz DEFAULT now()');
query($pub, 'INSERT INTO made_if VALUES (77)');
ok( $other->poll_query_until(
		'chain', q{SELECT count(*) = 1 FROM made_if WHERE a = 77}),
	'a converted schema change is passed on');
is( $other->safe_psql('chain', 'SELECT a, t FROM made_if ORDER BY a'),
	query($pub, 'SELECT a, t FROM made_if ORDER BY a'),
	'... with the values of the first publisher');
$other->safe_psql('chain', 'DROP SUBSCRIPTION chain');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub, $other;

$_->stop foreach $sub, $other, $pub;
done_testing();
