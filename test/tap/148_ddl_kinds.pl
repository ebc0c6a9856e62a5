# Schema changes of every kind are replicated by publications with ddl = all, and not by others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlFacts;
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $other = new_subscriber('other');
my $level_table = new_subscriber('level_table');
my @subscribers = ($sub, $other, $level_table);
my $superuser = query($pub, 'SELECT current_user');

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, @subscribers;
query_all([ $pub, @subscribers ], $_)
  foreach 'CREATE ROLE alice',
  'CREATE ROLE "Bob; DROP TABLE t"',
  'CREATE ROLE owner',
  'CREATE TABLE t (id int PRIMARY KEY, v text)',
  'GRANT CREATE ON SCHEMA public TO alice, owner',
  'GRANT CREATE ON DATABASE postgres TO owner';
query($pub, 'CREATE PUBLICATION everything FOR ALL TABLES WITH (ddl = all)');
query($pub, 'CREATE PUBLICATION tables FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'everything');
subscribe_with_pgoutput($pub, $other, 'other', 'everything');
subscribe($pub, $level_table, 'level_table', 'tables');

sub caught_up
{
	wait_for_apply($pub, $_, $_->name eq 'subscriber' ? 'sub' : $_->name)
	  foreach @subscribers;
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	same_facts($pub, $sub, "$what, plugin weft");
	same_facts($pub, $other, "$what, pgoutput");
	same_tables($pub, $_, ['t'], "$what, rows of " . $_->name)
	  foreach $sub, $other;
	return;
}

my $connstr = $pub->connstr('postgres');

# Each kind with its statements: all of them are replicated, and as many as are given for
# level "table".
my @kinds = (
	[
		schema => 0,
		'CREATE SCHEMA one',
		'CREATE SCHEMA "T;wo" AUTHORIZATION alice',
		'CREATE SCHEMA IF NOT EXISTS one',
		'ALTER SCHEMA one RENAME TO three',
		'ALTER SCHEMA three OWNER TO alice',
		'CREATE SCHEMA viewed CREATE VIEW v AS SELECT 1 AS a GRANT SELECT ON v TO alice',
		'DROP SCHEMA "T;wo"',
		'DROP SCHEMA IF EXISTS nosuch',
	],
	[
		'schema with elements' => 3,
		q{CREATE SCHEMA made CREATE TABLE a (id int PRIMARY KEY) CREATE TABLE b (id int REFERENCES a, "x;y" text) CREATE VIEW c AS SELECT * FROM b CREATE INDEX i ON b (id) CREATE SEQUENCE s GRANT SELECT ON c TO alice},
		'INSERT INTO made.a VALUES (1)',
		'INSERT INTO made.b VALUES (1)',
		'DROP SCHEMA made CASCADE',
	],
	[
		type => 8,
		'CREATE TYPE color AS ENUM (\'red\')',
		'CREATE TYPE span AS RANGE (subtype = float8)',
		'CREATE TYPE pair AS (a int, b text)',
		'CREATE DOMAIN positive AS int CHECK (VALUE > 0)',
		'ALTER TYPE color OWNER TO alice',
		'ALTER TYPE color RENAME VALUE \'red\' TO \'blue\'',
		'ALTER TYPE pair ALTER ATTRIBUTE b TYPE varchar',
		'ALTER DOMAIN positive SET DEFAULT 7',
		'CREATE TYPE hull',
		q{CREATE FUNCTION hull_in(cstring) RETURNS hull LANGUAGE internal IMMUTABLE STRICT AS 'int4in'},
		q{CREATE FUNCTION hull_out(hull) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out'},
		'CREATE TYPE hull (INPUT = hull_in, OUTPUT = hull_out, LIKE = int4)',
		'ALTER TYPE hull SET (STORAGE = plain)',
		'DROP TYPE hull CASCADE',
		'COMMENT ON TYPE color IS \'a color\'',
		'GRANT USAGE ON TYPE color TO alice',
	],
	[
		function => 0,
		q{CREATE FUNCTION twice(i int) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT i * 2; $$},
		q{CREATE OR REPLACE FUNCTION twice(i int) RETURNS int LANGUAGE sql IMMUTABLE AS $a$ SELECT i * 2 /* $$ ; */ $a$},
		q{CREATE FUNCTION modern(i int DEFAULT 3) RETURNS int BEGIN ATOMIC SELECT i; SELECT i + 1; END},
		q{CREATE FUNCTION "odd; name"(text) RETURNS text LANGUAGE plpgsql SET search_path = '' AS $x$ BEGIN RETURN $q$;'"$q$ || $1; END $x$},
		q{SET search_path = public, three; CREATE FUNCTION with_path() RETURNS int LANGUAGE sql SET search_path FROM CURRENT AS 'SELECT 1'},
		'ALTER FUNCTION twice SECURITY DEFINER COST 7',
		'ALTER FUNCTION twice RENAME TO double',
		'ALTER FUNCTION "odd; name" OWNER TO alice',
		'ALTER FUNCTION double SET SCHEMA three',
		'GRANT EXECUTE ON FUNCTION three.double TO alice',
		'REVOKE ALL ON FUNCTION modern FROM PUBLIC',
		'ALTER FUNCTION modern DEPENDS ON EXTENSION plpgsql',
		'ALTER FUNCTION modern NO DEPENDS ON EXTENSION plpgsql',
		q{CREATE PROCEDURE act(INOUT a int) LANGUAGE plpgsql AS $$ BEGIN a := a + 1; COMMIT; END $$},
		'ALTER PROCEDURE act OWNER TO alice',
		'ALTER ROUTINE act RENAME TO acted',
		q{CREATE FUNCTION gone() RETURNS int LANGUAGE sql AS 'SELECT 1'},
		'DROP FUNCTION gone',
	],
	[
		aggregate => 0,
		q{CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0')},
		'ALTER AGGREGATE total(int) RENAME TO total_of',
		'COMMENT ON AGGREGATE total_of(int) IS \'an aggregate\'',
		q{CREATE AGGREGATE counted(*) (SFUNC = int8inc, STYPE = int8, INITCOND = '0')},
		'DROP AGGREGATE counted(*)',
	],
	[
		operator => 0,
		q{CREATE FUNCTION same_length(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT length($1) = length($2)'},
		'CREATE OPERATOR === (LEFTARG = text, RIGHTARG = text, FUNCTION = same_length, COMMUTATOR = ===)',
		'ALTER OPERATOR === (text, text) SET (RESTRICT = eqsel)',
		'ALTER OPERATOR === (text, text) OWNER TO alice',
		'CREATE OPERATOR FAMILY family USING hash',
		q{CREATE FUNCTION length_hash(text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT length($1)'},
		'CREATE OPERATOR CLASS class FOR TYPE text USING hash FAMILY family AS OPERATOR 1 ===, FUNCTION 1 length_hash(text)',
		'ALTER OPERATOR FAMILY family USING hash RENAME TO kin',
		'ALTER OPERATOR FAMILY kin USING hash ADD OPERATOR 1 = (int4, int4)',
		'ALTER OPERATOR CLASS class USING hash OWNER TO alice',
		'CREATE OPERATOR CLASS gone FOR TYPE text USING hash AS OPERATOR 1 ===, FUNCTION 1 length_hash(text)',
		'DROP OPERATOR CLASS gone USING hash',
		'DROP OPERATOR FAMILY gone USING hash',
	],
	[
		cast => 0,
		'CREATE CAST (pair AS text) WITH INOUT AS ASSIGNMENT',
		q{CREATE FUNCTION pair_of(int) RETURNS pair LANGUAGE sql AS 'SELECT ROW($1, NULL)::pair'},
		'CREATE CAST (int AS pair) WITH FUNCTION pair_of(int)',
		'COMMENT ON CAST (int AS pair) IS \'a cast\'',
		'DROP CAST (pair AS text)',
	],
	[
		'collation and conversion' => 0,
		q{CREATE COLLATION plain FROM "C"},
		'ALTER COLLATION plain RENAME TO plainer',
		'ALTER COLLATION plainer OWNER TO alice',
		q{CREATE CONVERSION convert FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8},
		'ALTER CONVERSION convert RENAME TO converted',
	],
	[
		view => 0,
		'CREATE VIEW seen AS SELECT id, v FROM t WHERE id > 3 WITH CHECK OPTION',
		'CREATE OR REPLACE VIEW seen AS SELECT id, v, 1 AS one FROM t',
		'ALTER VIEW seen ALTER COLUMN v SET DEFAULT \'x\'',
		'ALTER TABLE seen ALTER COLUMN one SET DEFAULT 2',
		'ALTER VIEW seen RENAME COLUMN one TO uno',
		'ALTER VIEW seen SET (security_barrier = true)',
		'ALTER VIEW seen RENAME TO watched',
		'ALTER TABLE watched OWNER TO alice',
		q{CREATE VIEW "a ""; view" AS SELECT 'a;b'::text AS "c;d"},
		'CREATE RECURSIVE VIEW deep (n) AS SELECT 1 UNION ALL SELECT n + 1 FROM deep WHERE n < 5',
		'CREATE VIEW gone AS SELECT 1',
		'DROP VIEW gone',
	],
	[
		'materialized view' => 0,
		'CREATE MATERIALIZED VIEW full_of AS SELECT count(*) AS n FROM t',
		'CREATE MATERIALIZED VIEW none_of AS SELECT count(*) AS n FROM t WITH NO DATA',
		'REFRESH MATERIALIZED VIEW none_of',
		'CREATE VIEW over_none AS SELECT n FROM none_of',
		'CREATE MATERIALIZED VIEW unfilled AS WITH w AS (SELECT * FROM full_of) SELECT n, (SELECT max(n) FROM over_none) AS m FROM w',
		'REFRESH MATERIALIZED VIEW none_of WITH NO DATA',
		'REFRESH MATERIALIZED VIEW unfilled WITH NO DATA',
		'CREATE UNIQUE INDEX ON full_of (n)',
		'ALTER MATERIALIZED VIEW full_of RENAME TO filled',
		'ALTER INDEX full_of_n_idx RENAME TO filled_n',
		'ALTER MATERIALIZED VIEW filled SET (fillfactor = 50)',
		'COMMENT ON MATERIALIZED VIEW filled IS \'it is full\'',
		'ALTER TABLE filled CLUSTER ON filled_n',
		'DROP INDEX filled_n',
	],
	[
		trigger => 0,
		q{CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := coalesce(NEW.v, '') || '!'; RETURN NEW; END $$},
		'CREATE TRIGGER "on; t" BEFORE INSERT OR UPDATE OF v ON t FOR EACH ROW WHEN (NEW.id > 3) EXECUTE FUNCTION fire(\'a;b\')',
		'ALTER TRIGGER "on; t" ON t RENAME TO on_t',
		q{INSERT INTO t VALUES (10, 'ten')},
		'ALTER TABLE t DISABLE TRIGGER on_t',
		'CREATE CONSTRAINT TRIGGER later AFTER INSERT ON t DEFERRABLE FOR EACH ROW EXECUTE FUNCTION fire()',
		'COMMENT ON TRIGGER later ON t IS \'later\'',
		'CREATE TRIGGER gone BEFORE DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION fire()',
		'DROP TRIGGER gone ON t',
	],
	[
		rule => 0,
		'CREATE RULE nothing AS ON DELETE TO t WHERE OLD.id = 77 DO INSTEAD NOTHING',
		'ALTER RULE nothing ON t RENAME TO nought',
		'ALTER TABLE t DISABLE RULE nought',
		'CREATE RULE into_seen AS ON INSERT TO watched DO INSTEAD INSERT INTO t VALUES (NEW.id)',
		'DROP RULE into_seen ON watched',
	],
	[
		policy => 0,
		'CREATE POLICY mine ON t FOR SELECT TO alice USING (v = current_user)',
		'ALTER POLICY mine ON t USING (v = \'a;b\')',
		'ALTER POLICY mine ON t RENAME TO hers',
		'ALTER TABLE t ENABLE ROW LEVEL SECURITY',
		'ALTER TABLE t NO FORCE ROW LEVEL SECURITY',
		'CREATE POLICY gone ON t',
		'DROP POLICY gone ON t',
		'ALTER TABLE t DISABLE ROW LEVEL SECURITY',
	],
	[
		extension => 0,
		'CREATE EXTENSION pgcrypto SCHEMA three',
		'CREATE EXTENSION IF NOT EXISTS pgcrypto',
		q{CREATE EXTENSION hstore VERSION '1.7'},
		'ALTER EXTENSION hstore UPDATE',
		'ALTER EXTENSION pgcrypto SET SCHEMA public',
		'CREATE EXTENSION earthdistance CASCADE',
		'DROP EXTENSION cube CASCADE',
		'CREATE FUNCTION of_hstore() RETURNS int LANGUAGE sql AS \'SELECT 1\'',
		'ALTER EXTENSION hstore ADD FUNCTION of_hstore()',
		'ALTER EXTENSION hstore DROP FUNCTION of_hstore()',
		'COMMENT ON EXTENSION hstore IS \'pairs\'',
	],
	[
		comment => 0,
		q{COMMENT ON TABLE t IS 'it''s; a "table" $$'},
		'COMMENT ON COLUMN t.v IS \'a column\'',
		'COMMENT ON CONSTRAINT t_pkey ON t IS \'a key\'',
		'COMMENT ON SCHEMA three IS \'three\'',
		'COMMENT ON COLUMN t.v IS NULL',
	],
	[
		grant => 0,
		'GRANT SELECT, INSERT (v) ON t TO alice, "Bob; DROP TABLE t" WITH GRANT OPTION',
		'REVOKE GRANT OPTION FOR SELECT ON t FROM "Bob; DROP TABLE t"',
		'GRANT USAGE ON SCHEMA three TO alice',
		'GRANT SELECT ON ALL TABLES IN SCHEMA public TO alice',
		'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA three TO alice',
		'GRANT USAGE ON LANGUAGE plpgsql TO alice',
		'REVOKE INSERT (v) ON t FROM alice',
	],
	[
		'default privileges' => 1,
		'ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO alice',
		'ALTER DEFAULT PRIVILEGES FOR ROLE alice IN SCHEMA three GRANT EXECUTE ON FUNCTIONS TO "Bob; DROP TABLE t"',
		'CREATE TABLE of_default (id int)',
		'ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM alice',
	],
	[
		statistics => 0,
		'CREATE STATISTICS three.both (ndistinct, dependencies) ON id, v FROM t',
		'ALTER STATISTICS three.both SET STATISTICS 200',
		'ALTER STATISTICS three.both RENAME TO two',
		'CREATE STATISTICS gone ON id, v FROM t',
		'DROP STATISTICS gone',
	],
	[
		'text search' => 0,
		'CREATE TEXT SEARCH DICTIONARY words (TEMPLATE = simple, STOPWORDS = english)',
		'ALTER TEXT SEARCH DICTIONARY words (ACCEPT = false)',
		'CREATE TEXT SEARCH CONFIGURATION english2 (COPY = english)',
		'ALTER TEXT SEARCH CONFIGURATION english2 ALTER MAPPING FOR asciiword WITH words',
		'ALTER TEXT SEARCH CONFIGURATION english2 OWNER TO alice',
		'CREATE TEXT SEARCH PARSER parser (START = prsd_start, GETTOKEN = prsd_nexttoken, END = prsd_end, LEXTYPES = prsd_lextype)',
		'CREATE TEXT SEARCH TEMPLATE template (INIT = dsimple_init, LEXIZE = dsimple_lexize)',
		'DROP TEXT SEARCH TEMPLATE template',
	],
	[
		'language and access method' => 0,
		'CREATE LANGUAGE other HANDLER plpgsql_call_handler',
		'ALTER LANGUAGE other RENAME TO another',
		'CREATE ACCESS METHOD second TYPE INDEX HANDLER bthandler',
		'CREATE TRANSFORM FOR int LANGUAGE another (FROM SQL WITH FUNCTION prsd_lextype(internal))',
		'DROP TRANSFORM FOR int LANGUAGE another',
	],
	[
		'event trigger' => 0,
		q{CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$},
		'CREATE EVENT TRIGGER noted ON ddl_command_end WHEN TAG IN (\'CREATE TABLE\') EXECUTE FUNCTION note()',
		'ALTER EVENT TRIGGER noted DISABLE',
		'ALTER EVENT TRIGGER noted RENAME TO renoted',
		'CREATE EVENT TRIGGER gone ON sql_drop EXECUTE FUNCTION note()',
		'DROP EVENT TRIGGER gone',
	],
	[
		'foreign data' => 0,
		'CREATE FOREIGN DATA WRAPPER wrapper',
		'ALTER FOREIGN DATA WRAPPER wrapper OPTIONS (ADD a \'b\')',
		'CREATE EXTENSION postgres_fdw',
		"CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '"
		  . $pub->host
		  . "', port '"
		  . $pub->port
		  . "', dbname 'postgres')",
		'ALTER SERVER far OPTIONS (ADD fetch_size \'7\')',
		'CREATE USER MAPPING FOR CURRENT_USER SERVER far',
		'CREATE FOREIGN TABLE distant (id int, "v;" text) SERVER far OPTIONS (table_name \'t\')',
		'ALTER FOREIGN TABLE distant ADD COLUMN w int',
		'CREATE SCHEMA "imp;orted"',
		'IMPORT FOREIGN SCHEMA public LIMIT TO (t, of_default) FROM SERVER far INTO "imp;orted"',
		'DROP FOREIGN TABLE distant',
	],
	[
		owned => 6,
		'SET ROLE owner; CREATE TABLE owned (id int PRIMARY KEY, v int)',
		'SET ROLE owner; CREATE TYPE owned_type AS ENUM (\'a\')',
		'SET ROLE owner; CREATE FUNCTION "owned;"(int) RETURNS int LANGUAGE sql AS \'SELECT 1\'',
		'SET ROLE owner; CREATE SCHEMA owned_schema',
		'SET ROLE owner; CREATE VIEW owned_view AS SELECT * FROM owned',
		'GRANT SELECT, UPDATE (v) ON t TO owner',
		'GRANT EXECUTE ON FUNCTION three.double TO owner',
		'REASSIGN OWNED BY owner TO alice',
		'ALTER TABLE owned OWNER TO owner',
		'ALTER VIEW owned_view OWNER TO owner',
		'ALTER FUNCTION "owned;" OWNER TO owner',
		'DROP OWNED BY owner',
	],
	[
		'several drops' => 5,
		'CREATE VIEW v1 AS SELECT 1 AS a',
		'CREATE VIEW v2 AS SELECT * FROM v1',
		'DROP VIEW v1, v2',
		'CREATE TABLE d1 (id int PRIMARY KEY)',
		'CREATE TABLE d2 (id int PRIMARY KEY REFERENCES d1)',
		'CREATE VIEW v3 AS SELECT * FROM d1',
		'DROP TABLE d1, d2 CASCADE',
		q{CREATE TEMP TABLE here (id int); CREATE TABLE "x, t; --" (id int); DROP TABLE here, "x, t; --"},
	],
	[
		'in functions' => 0,
		q{DO $$ BEGIN EXECUTE 'CREATE VIEW of_do AS SELECT ''a;b'' AS c'; COMMENT ON VIEW of_do IS 'of DO'; END $$},
		q{CREATE VIEW m1 AS SELECT 1 \; CREATE VIEW m2 AS SELECT 2 /* ; */ \; COMMENT ON VIEW m2 IS ';'},
		'BEGIN; CREATE VIEW kept AS SELECT 1; SAVEPOINT s; CREATE VIEW undone AS SELECT 1; GRANT SELECT ON kept TO alice; ROLLBACK TO s; COMMENT ON VIEW kept IS \'kept\'; COMMIT',
	],
	[
		security => 0,
		q{SET ROLE alice; CREATE FUNCTION hers() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'},
		q{SET search_path = three; CREATE FUNCTION placed() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE VIEW placed AS SELECT placed()},
		q{SET search_path = three, public; ALTER VIEW placed RENAME TO put},
	],
	[
		'not at all' => 0,
		'CREATE TEMP VIEW of_session AS SELECT 1',
		'CREATE TEMP TABLE tmp (id int); CREATE INDEX ON tmp (id); COMMENT ON TABLE tmp IS \'x\'; CREATE VIEW over AS SELECT * FROM tmp; GRANT SELECT ON tmp TO alice; CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS \'SELECT 1\'; CREATE TRIGGER g BEFORE INSERT ON tmp FOR EACH ROW EXECUTE FUNCTION fire()',
		'CREATE UNLOGGED TABLE fast (id int); CREATE INDEX ON fast (id); DROP TABLE fast',
		'CREATE ROLE somebody; ALTER ROLE somebody SET work_mem = \'1MB\'; COMMENT ON ROLE somebody IS \'x\'; DROP ROLE somebody',
		'CREATE DATABASE away; ALTER DATABASE away SET work_mem = \'1MB\'; COMMENT ON DATABASE away IS \'x\'',
		'DROP DATABASE away',
		'CREATE PUBLICATION more FOR TABLE t; COMMENT ON PUBLICATION more IS \'x\'; ALTER PUBLICATION more RENAME TO others; DROP PUBLICATION others',
		'CREATE SUBSCRIPTION nowhere CONNECTION \'\' PUBLICATION p WITH (connect = false); ALTER SUBSCRIPTION nowhere SET (slot_name = NONE); DROP SUBSCRIPTION nowhere',
		'SECURITY LABEL FOR weft ON PUBLICATION tables IS \'ddl=table\'',
		'COMMENT ON FUNCTION weft.health(interval, interval) IS \'x\'; GRANT SELECT ON weft.stat_subscription TO alice; REVOKE SELECT ON weft.stat_subscription FROM alice',
		'REFRESH MATERIALIZED VIEW filled',
		'ANALYZE t',
		'CLUSTER t USING t_pkey',
		q{SELECT lo_create(4711)},
		q{COMMENT ON LARGE OBJECT 4711 IS 'x'},
		q{SELECT lo_unlink(4711)},
	],);

sub count_captured
{
	my ($publication) = @_;
	return query($pub,
		"SELECT count(*) FROM weft.ddl_queue WHERE (message->'publications')::jsonb ? '$publication'"
	);
}

foreach my $kind (@kinds)
{
	my ($name, $of_tables, @statements) = @$kind;
	my $captured = count_captured('everything');
	my $captured_tables = count_captured('tables');

	query($pub, $_) foreach @statements;
	caught_up();
	all_the_same($name);
	is(count_captured('tables') - $captured_tables,
		$of_tables, "$name: what level \"table\" replicates")
	  or diag(
		query(
			$pub,
			q{SELECT message->>'statement' FROM weft.ddl_queue WHERE (message->'publications')::jsonb ? 'tables' ORDER BY id DESC LIMIT 10}
		));
	if ($name eq 'not at all')
	{
		is(count_captured('everything'), $captured, 'nothing is replicated');
	}
	else
	{
		cmp_ok(count_captured('everything'),
			'>', $captured, "$name: something is replicated");
	}
}

foreach my $refused (
	[
		'CREATE TEMP TABLE x (id int); GRANT SELECT ON x, t TO alice' =>
		  qr/both temporary and permanent objects/
	],
	[
		q{CREATE FUNCTION x() RETURNS int LANGUAGE sql SET work_mem FROM CURRENT AS 'SELECT 1'}
		  => qr/cannot replicate the current value of parameter "work_mem"/
	],)
{
	my ($ret, $out, $err) = $pub->psql('postgres', $refused->[0]);
	like($err, $refused->[1], "refused: $refused->[0]");
}

# --- level "table": statements about other objects that drop tables, or parts of them ---

# Objects that only some of the servers have, as a name, of what is in "names".
sub existing
{
	my ($node, @names) = @_;
	return query($node,
		"SELECT count(to_regclass(n)) FROM unnest(string_to_array('@names', ' ')) n"
	);
}

my @setup = (
	'CREATE SCHEMA doomed',
	q{CREATE FUNCTION doomed.seven() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 7'},
	'CREATE VIEW doomed.v AS SELECT 1 AS a');
query($pub, $_)         foreach @setup;
query($level_table, $_) foreach @setup;
query($pub, $_)
  foreach 'CREATE TABLE doomed.a (id int PRIMARY KEY)',
  'CREATE TABLE doomed.b (id int PRIMARY KEY REFERENCES doomed.a)',
  'ALTER TABLE doomed.a ADD CONSTRAINT circle FOREIGN KEY (id) REFERENCES doomed.b',
  'CREATE TYPE doomed.kind AS ENUM (\'x\')',
  'CREATE SEQUENCE doomed.numbers',
  'CREATE TABLE survivor (id int PRIMARY KEY, k doomed.kind, n int DEFAULT nextval(\'doomed.numbers\'), s int DEFAULT doomed.seven() CHECK (doomed.seven() = 7))',
  'CREATE INDEX survivor_seven ON survivor ((id + doomed.seven()))',
  'INSERT INTO survivor (id) VALUES (1)';
caught_up();
is(existing($level_table, qw(doomed.a doomed.b survivor_seven)),
	3, 'level table: before');
query($pub, 'DROP SCHEMA doomed CASCADE');
query($pub, 'INSERT INTO survivor (id) VALUES (2)');
caught_up();
all_the_same('DROP SCHEMA of tables');
is( existing(
		$level_table, qw(doomed.a doomed.b doomed.numbers survivor_seven)),
	0,
	'level table: tables, sequences and an index are dropped');
is(existing($level_table, 'doomed.v'), 1, '... but no view');
is( query($level_table, 'SELECT * FROM survivor ORDER BY id'),
	query($pub, 'SELECT * FROM survivor ORDER BY id'),
	'... a table has lost its column and defaults');
query($level_table, 'DROP SCHEMA doomed CASCADE');

query($_, 'GRANT CREATE ON SCHEMA public TO owner')
  foreach $pub, $level_table;
query($pub, $_)
  foreach 'SET ROLE owner; CREATE TABLE of_owner (id int)',
  'REASSIGN OWNED BY owner TO alice';
caught_up();
is( query(
		$level_table,
		q{SELECT relowner::regrole FROM pg_class WHERE relname = 'of_owner'}),
	'alice',
	'level table: REASSIGN OWNED');
query($level_table,
	'CREATE FUNCTION ordered() RETURNS int LANGUAGE sql AS $$ SELECT 7 $$');
query($pub, $_)
  foreach
  'ALTER DEFAULT PRIVILEGES FOR ROLE alice REVOKE ALL ON FUNCTIONS FROM PUBLIC',
  'ALTER DEFAULT PRIVILEGES FOR ROLE alice GRANT SELECT ON TABLES TO owner',
  'ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT USAGE ON TYPES TO alice',
  'SET ROLE alice; CREATE TYPE her_type AS (a int)',
  'SET ROLE alice; CREATE TABLE her_table (id int PRIMARY KEY); GRANT SELECT ON her_table TO owner WITH GRANT OPTION; SET ROLE owner; GRANT SELECT ON her_table TO "Bob; DROP TABLE t"',
  'ALTER TABLE her_table ENABLE ROW LEVEL SECURITY',
  'CREATE POLICY shared ON her_table TO alice, owner, "Bob; DROP TABLE t"',
  'CREATE POLICY whole ON her_table TO PUBLIC',
  'CREATE POLICY own ON her_table TO owner',
  'SET ROLE owner; CREATE TYPE ordered_type AS (a int); CREATE FUNCTION ordered() RETURNS int LANGUAGE sql AS $$ SELECT 7 $$',
  'SET ROLE owner; CREATE TABLE ordered_a (k ordered_type, s int DEFAULT ordered(), id int PRIMARY KEY)',
  'SET ROLE owner; CREATE FUNCTION ordered_row(ordered_a) RETURNS int LANGUAGE sql AS $$ SELECT 7 $$',
  'SET ROLE owner; CREATE VIEW ordered_view AS SELECT ordered_row(a) FROM ordered_a a',
  'SET ROLE owner; CREATE FUNCTION ordered_view_row(ordered_view) RETURNS int LANGUAGE sql AS $$ SELECT 7 $$',
  'SET ROLE owner; CREATE TABLE ordered_b (id int PRIMARY KEY REFERENCES ordered_a)',
  'SET ROLE owner; ALTER TABLE ordered_a ADD FOREIGN KEY (id) REFERENCES ordered_b',
  'DROP OWNED BY owner';
caught_up();
all_the_same('DROP OWNED of grants');

# What a subscriber would not permit is refused.
query_all([ $pub, @subscribers ], $_)
  foreach 'CREATE ROLE newcomer', 'GRANT newcomer TO owner',
  'GRANT CREATE ON SCHEMA public TO owner';
query($pub, 'CREATE POLICY shared_again ON her_table TO newcomer, owner');
query($pub, 'SET ROLE owner; CREATE TABLE kept_by_owner (id int)');
{
	my $err = (
		$pub->psql(
			'postgres', 'SET ROLE owner; REASSIGN OWNED BY owner TO newcomer')
	)[2];
	like(
		$err,
		qr/cannot replicate REASSIGN OWNED.*ALTER TABLE public.kept_by_owner OWNER TO newcomer, which needs the privilege CREATE on schema "public"/s,
		'REASSIGN OWNED to a role without CREATE');
	$err = ($pub->psql('postgres', 'SET ROLE owner; DROP OWNED BY owner'))[2];
	like(
		$err,
		qr/cannot replicate DROP OWNED.*ALTER POLICY .*needs the ownership of the table/s,
		'DROP OWNED of a policy on the table of somebody else');
}
query($pub, 'DROP POLICY shared_again ON her_table');
query($pub, 'DROP TABLE kept_by_owner');
query($pub, 'DROP OWNED BY alice CASCADE');
caught_up();
all_the_same('DROP OWNED CASCADE');
is(existing($level_table, 'of_owner'), 0, 'level table: DROP OWNED');
is( query(
		$level_table,
		q{SELECT statement FROM weft.ddl_history WHERE result = 'applied' AND tag !~ 'TABLE|SCHEMA|INDEX|TYPE|DOMAIN|SEQUENCE'}
	),
	'',
	'level table: nothing else has been replicated');

# --- what depends on temporary and unlogged tables is left out like these ---

query($pub, $_)
  foreach (
	'CREATE UNLOGGED TABLE quick (a int)',
	'CREATE VIEW of_quick AS SELECT * FROM quick',
	'CREATE VIEW of_view AS SELECT * FROM of_quick',
	q{COMMENT ON VIEW of_view IS 'x'},
	'GRANT SELECT ON of_view TO alice',
	'GRANT SELECT ON quick TO alice',
	'CREATE FUNCTION of_row(of_view) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$',
	'ALTER FUNCTION of_row STABLE',
	'ALTER VIEW of_quick RENAME TO of_slow',
	'DROP VIEW of_slow CASCADE',
	q{CREATE FUNCTION quick_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'},
	'CREATE TRIGGER on_quick BEFORE INSERT ON quick FOR EACH ROW EXECUTE FUNCTION quick_trigger()',
	'DROP TABLE quick',
	'CREATE TEMP TABLE here (a int); CREATE FUNCTION of_here(here) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$; COMMENT ON FUNCTION of_here IS $$ x $$; GRANT EXECUTE ON FUNCTION of_here TO alice; GRANT SELECT ON here TO alice; CREATE RULE nothing AS ON INSERT TO t WHERE false DO ALSO DELETE FROM here; DROP TABLE here CASCADE',
	'CREATE STATISTICS pg_temp.s ON id, v FROM t; DROP STATISTICS pg_temp.s',
	'CREATE FUNCTION pg_temp.local() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; CREATE TRIGGER of_session BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.local(); ALTER TRIGGER of_session ON t RENAME TO of_temp; DROP TRIGGER of_temp ON t',
  );
foreach (
	[
		VIEW => 'view changing',
		'CREATE VIEW changing AS SELECT 1 AS a; CREATE UNLOGGED TABLE quick (a int); CREATE OR REPLACE VIEW changing AS SELECT * FROM quick'
	],
	[
		FUNCTION => 'function changing()',
		'CREATE FUNCTION changing() RETURNS SETOF int BEGIN ATOMIC SELECT 1; END; CREATE UNLOGGED TABLE quick (a int); CREATE OR REPLACE FUNCTION changing() RETURNS SETOF int BEGIN ATOMIC SELECT a FROM quick; END'
	])
{
	my ($kind, $object, $statements) = @$_;
	like(
		($pub->psql('postgres', "BEGIN; $statements"))[2],
		qr/cannot replicate CREATE $kind, because \Q$object\E depends on an object that is unlogged/,
		"a $kind that becomes local");
}
caught_up();
all_the_same('objects that depend on temporary and unlogged tables');

# --- publications of some tables ---

query($_, 'DROP SUBSCRIPTION ' . $_->name) foreach $other, $level_table;
query_all([ $pub, $other, $level_table ], $_)
  foreach 'CREATE SCHEMA chosen', 'CREATE SCHEMA unchosen';
query($pub, $_)
  foreach 'CREATE TABLE chosen.a (id int PRIMARY KEY)',
  'CREATE TABLE chosen.b (id int PRIMARY KEY)',
  'CREATE TABLE unchosen.c (id int PRIMARY KEY)';
wait_for_apply($pub, $sub, 'sub');
$_->safe_psql('postgres',
	'CREATE TABLE chosen.a (id int PRIMARY KEY); CREATE TABLE unchosen.c (mine text)'
) foreach $other, $level_table;
query($pub, 'CREATE PUBLICATION chosen FOR TABLE chosen.a WITH (ddl = all)');
query($pub,
	'CREATE PUBLICATION chosen_tables FOR TABLE chosen.a WITH (ddl = table)');
subscribe($pub, $other, 'other', 'chosen');
subscribe($pub, $level_table, 'level_table', 'chosen_tables');
query($other, 'CREATE TABLE chosen.b (mine text)');

query($pub, $_)
  foreach 'CREATE VIEW chosen.v AS SELECT * FROM chosen.a',
  q{CREATE FUNCTION chosen.f() RETURNS int LANGUAGE sql AS 'SELECT 1'},
  'CREATE VIEW unchosen.v AS SELECT 1 AS a',
  q{CREATE FUNCTION unchosen.f() RETURNS int LANGUAGE sql AS 'SELECT 1'},
  q{COMMENT ON TABLE chosen.a IS 'of level all'},
  q{COMMENT ON TABLE unchosen.c IS 'x'},
  'CREATE EXTENSION citext',
  'ALTER TABLE chosen.a ADD COLUMN w int',
  'INSERT INTO chosen.a VALUES (1, 2)';
caught_up();
is(existing($other, qw(chosen.v unchosen.v)),
	1, 'level all, a list: what is in the schemas of its tables');
is( query(
		$other,
		q{SELECT obj_description('chosen.a'::regclass), obj_description('unchosen.c'::regclass), (SELECT count(*) FROM pg_extension WHERE extname = 'citext'), (SELECT count(*) FROM pg_proc WHERE proname = 'f')}
	),
	'of level all||0|1',
	'... and nothing else');
is(existing($level_table, qw(chosen.v unchosen.v)),
	0, 'level table, a list: no view');
same_tables($pub, $_, ['chosen.a'], 'rows of a list: ' . $_->name)
  foreach $other, $level_table;

# The subscribers' own tables of these names stay.
query($pub, 'DROP VIEW chosen.v');
query($pub, 'DROP TABLE chosen.a, unchosen.c');
query($pub, 'INSERT INTO t VALUES (1000)');
caught_up();
is(existing($_, qw(chosen.a unchosen.c)),
	1, 'a table of a list is dropped, another is not: ' . $_->name)
  foreach $other, $level_table;
is(existing($other, 'chosen.b'), 1, '... nor one that is here only');
same_facts($pub, $sub, 'DROP TABLE of several');

# --- rows that the scripts of extensions store ---

SKIP:
{
	skip 'extensions cannot be outside of the installation', 10
	  if $pub->pg_version < 18;
	my $directory = PostgreSQL::Test::Utils::tempdir();

	mkdir "$directory/extension";
	append_to_file("$directory/extension/scripted.control", <<'EOF2');
default_version = '1'
relocatable = false
EOF2
	append_to_file("$directory/extension/scripted--1.sql", <<'EOF2');
CREATE TABLE settings (name text PRIMARY KEY, value text);
CREATE TABLE lines (line text PRIMARY KEY);
INSERT INTO settings VALUES ('a', 'b'), ('server', current_setting('port'));
INSERT INTO lines SELECT 'line ' || g FROM generate_series(1, 10) g;
CREATE TABLE lines_made AS SELECT 1 AS a;
EOF2
	append_to_file("$directory/extension/scripted--1--3.sql", <<'EOF2');
TRUNCATE lines;
EOF2
	append_to_file("$directory/extension/scripted--1--4.sql",
		"COPY lines FROM '$directory/extension/scripted.control';\n");
	append_to_file("$directory/extension/scripted--1--2.sql", <<'EOF2');
ALTER TABLE lines ADD COLUMN length int;
UPDATE lines SET length = length(line);
EOF2
	foreach my $node ($pub, $sub)
	{
		$node->append_conf('postgresql.conf',
			"extension_control_path = '$directory:\$system'");
		$node->reload;
	}
	query($pub, $_)
	  foreach 'CREATE EXTENSION scripted',
	  q{INSERT INTO settings VALUES ('c', 'd')},
	  q{UPDATE lines SET line = 'first' WHERE line = 'line 1'},
	  q{DELETE FROM lines WHERE line = 'line 2'};
	wait_for_apply($pub, $sub, 'sub');
	same_facts($pub, $sub, 'an extension with rows');
	same_tables($pub, $sub, ['lines'], '... has them once');
	is( query($sub, 'SELECT name, value FROM settings ORDER BY name'),
		"a|b\nc|d\nserver|" . $sub->port,
		'... as the script has stored them here');

	foreach my $version (2, 3, 4)
	{
		my ($ret, $out, $err) = $pub->psql('postgres',
			"ALTER EXTENSION scripted UPDATE TO '$version'");
		like(
			$err,
			qr/cannot replicate that the script of an extension changes rows of table "lines"/,
			"a script that changes rows of other tables, $version");
	}
	query($pub,
		q{BEGIN; DROP EXTENSION scripted; CREATE EXTENSION scripted; SAVEPOINT a; DROP EXTENSION scripted; CREATE EXTENSION scripted; ROLLBACK TO a; INSERT INTO lines VALUES ('11'); COMMIT}
	);
	wait_for_apply($pub, $sub, 'sub');
	same_facts($pub, $sub, 'an extension that is created again');
	same_tables($pub, $sub, [ 'lines', 'lines_made' ], '... rows');

	query($pub, $_)
	  foreach 'DROP EXTENSION scripted',
	  <<'EOS', 'CREATE TABLE extending (id int)', 'DROP EVENT TRIGGER extend';
CREATE FUNCTION extend() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'scripted') THEN
		CREATE EXTENSION scripted;
		INSERT INTO lines VALUES ('nested');
	END IF;
END $$;
CREATE EVENT TRIGGER extend ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION extend();
EOS
	wait_for_apply($pub, $sub, 'sub');
	same_facts($pub, $sub, 'CREATE EXTENSION of an event trigger');
	same_tables($pub, $sub, [ 'lines', 'lines_made', 'extending' ],
		'... rows');
}

# --- SESSION_USER as a role ---

# The subscriber publishes what it applies.
query($sub, 'CREATE PUBLICATION onward FOR ALL TABLES WITH (ddl = all)');

query($pub, <<'EOS');
CREATE TABLE of_session (id int PRIMARY KEY);
CREATE FUNCTION of_session() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION as_superuser(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
AS $$ BEGIN EXECUTE statement; END $$;
EOS
foreach my $statement (
	'ALTER TABLE of_session OWNER TO SESSION_USER',
	'ALTER FUNCTION of_session OWNER TO SESSION_USER',
	'GRANT SELECT ON t TO SESSION_USER',
	'ALTER DEFAULT PRIVILEGES FOR ROLE SESSION_USER GRANT SELECT ON TABLES TO owner, SESSION_USER',
	'CREATE POLICY of_session ON t TO SESSION_USER',
	'ALTER POLICY of_session ON t TO owner, SESSION_USER',
	'CREATE SCHEMA AUTHORIZATION SESSION_USER CREATE TABLE s (id int) GRANT SELECT ON s TO SESSION_USER',
  )
{
	query($pub,
		"SET SESSION AUTHORIZATION alice; SELECT as_superuser('$statement')");
}
caught_up();
same_facts($pub, $sub, 'SESSION_USER');
is( query(
		$sub,
		q{SELECT tableowner, nspowner::regrole FROM pg_tables, pg_namespace WHERE tablename = 'of_session' AND nspname = 'alice'}
	),
	'alice|alice',
	'SESSION_USER is the role that it was on the publisher');
is( query(
		$sub,
		q{SELECT DISTINCT message->>'session_role' FROM weft.ddl_queue WHERE message->>'statement' ~ 'SESSION_USER'}
	),
	'alice',
	'... and further on');

# --- statements that were parsed under another setting, which 19 does not have ---

foreach my $string (major() < 19 ? ('a\\tb', 'a\\\'b') : ())
{
	query($pub, <<"EOS");
SET standard_conforming_strings = off;
SET escape_string_warning = off;
CREATE OR REPLACE FUNCTION cached() RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN
	COMMENT ON TABLE t IS '$string';
END \$\$;
SELECT cached();
COMMENT ON TABLE t IS 'another';
SET standard_conforming_strings = on;
SET backslash_quote = off;
SELECT cached();
EOS
	caught_up();
	my $comment = q{SELECT obj_description('t'::regclass)};
	is(query($sub, $comment), query($pub, $comment), "cached: $string");
}
query($pub,
	q{ALTER TABLE t ADD cached_at timestamptz DEFAULT now(), ADD cached text DEFAULT 'a\b'}
);
caught_up();
same_schema($pub, $sub,
	'a backslash in a statement that is applied in another form');
is( query(
		$sub,
		q{SELECT count(*) FROM weft.ddl_queue WHERE message->>'statement' ~ 'ADD cached_at'}
	),
	1,
	'... and published further on');
query($sub, 'DROP PUBLICATION onward');
if (major() < 19)
{
	my ($status, $output, $errors) = $pub->psql('postgres', <<'EOS');
SET standard_conforming_strings = off;
SET escape_string_warning = off;
CREATE OR REPLACE FUNCTION cached() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	CREATE MATERIALIZED VIEW cached AS SELECT 'a\tb' AS v;
END $$;
SELECT cached();
DROP MATERIALIZED VIEW cached;
SELECT cached();
DROP MATERIALIZED VIEW cached;
SET standard_conforming_strings = on;
SELECT cached();
EOS
	like(
		$errors,
		qr/cannot replicate CREATE MATERIALIZED VIEW because its text has another meaning now/,
		'a query of another meaning is refused');
}
query($pub, q{CREATE MATERIALIZED VIEW cached AS SELECT 'a\tb' AS v});
query($pub, 'DROP MATERIALIZED VIEW cached; DROP FUNCTION IF EXISTS cached');

# --- settings that name what the subscriber does not have ---

my $here = <<'EOS';
SET weft.ddl_replication = off;
CREATE ACCESS METHOD only_here TYPE TABLE HANDLER heap_tableam_handler;
CREATE TEXT SEARCH CONFIGURATION only_here (COPY = simple);
EOS
query($_, $here) foreach $pub, $other, $level_table;
query($pub, <<'EOS');
SET default_table_access_method = only_here;
SET default_text_search_config = only_here;
CREATE VIEW settled AS SELECT 1 AS i;
ALTER TABLE t ADD settled int, ALTER v SET DEFAULT 'x';
CREATE TABLE settled_as (id int) USING heap;
CREATE INDEX ON t (settled);
EOS
caught_up();
same_schema($pub, $sub, 'settings that matter to no statement');
foreach my $setting (
	[
		default_table_access_method => 'CREATE TABLE of_method (id int)',
		'CREATE ACCESS METHOD only_here TYPE TABLE HANDLER heap_tableam_handler'
	],
	[
		default_text_search_config =>
		  'ALTER TABLE t ADD CHECK (v IS NULL OR to_tsvector(v) IS NOT NULL)',
		'CREATE TEXT SEARCH CONFIGURATION only_here (COPY = simple)'
	])
{
	my ($name, $statement, $remedy) = @$setting;
	my $before = query($sub, 'SELECT clock_timestamp()');

	query($pub, "SET $name = only_here; $statement");
	my ($message) = apply_error($sub, 'sub', $before);
	like($message, qr/invalid value for parameter "$name"/,
		"$name is needed");
	query($sub, $remedy);
	caught_up();
	same_schema($pub, $sub, $name);
}

# --- Weft itself ---

query($pub, 'DROP PUBLICATION chosen, chosen_tables');
query($pub, 'ALTER EXTENSION weft UPDATE');
query($pub, 'DROP EXTENSION weft');
is( query($pub, q{SELECT count(*) FROM pg_extension WHERE extname = 'weft'}),
	0,
	'DROP EXTENSION weft');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, @subscribers;
$_->stop foreach @subscribers, $pub;
done_testing();
