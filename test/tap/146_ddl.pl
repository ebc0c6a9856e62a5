# Schema changes are replicated, in their place among the rows: with Weft's output plugin and
# with pgoutput, of tables and of what belongs to them.

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
my $other = new_subscriber('other', conf => 'track_commit_timestamp = on');

query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub, $other;

sub caught_up
{
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($pub, $other, 'other');
	return;
}

# Two tests each: both subscribers have what the publisher has.
sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	caught_up();
	same_everything($pub, $sub, "$what, plugin weft");
	same_everything($pub, $other, "$what, pgoutput");
	return;
}

sub states
{
	my ($node) = @_;
	return query($node,
		'SELECT srrelid::regclass, srsubstate FROM pg_subscription_rel ORDER BY srrelid::regclass::text'
	);
}

# --- the choice ---

sub labels
{
	return query($pub,
		"SELECT pubname, label FROM pg_publication JOIN pg_seclabel ON objoid = oid AND classoid = 'pg_publication'::regclass ORDER BY 1"
	);
}

sub members
{
	my ($publication) = @_;
	return query($pub,
		"SELECT prrelid::regclass FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid WHERE pubname = '$publication' ORDER BY prrelid::regclass::text"
	);
}

query($pub, 'CREATE TABLE listed (id int PRIMARY KEY)');
query($pub,
	"CREATE PUBLICATION list FOR TABLE listed WITH (ddl = table, publish = 'insert, update')"
);
is(labels(), 'list|ddl=table', 'the choice is a label');
is(members('list'), "listed\nweft.ddl_queue",
	'the table of schema changes belongs to the publication');
query($pub, 'ALTER PUBLICATION list SET TABLE listed');
is(members('list'), "listed\nweft.ddl_queue", '... and stays there');
my ($dump) = run_command(
	[ 'pg_dump', '--schema-only', '-d', $pub->connstr('postgres') ]);
like(
	$dump,
	qr/SECURITY LABEL FOR weft ON PUBLICATION list IS 'ddl=table'/,
	'a dump has the choice');
query($pub, 'CREATE DATABASE restored');
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
append_to_file($file, $dump);
$pub->command_ok(
	[
		'psql', '-Xq',
		'-v', 'ON_ERROR_STOP=1',
		'-d', $pub->connstr('restored'),
		'-f', $file
	],
	'... and is restored');
is( $pub->safe_psql(
		'restored',
		'SELECT prrelid::regclass FROM pg_publication_rel ORDER BY prrelid::regclass::text'
	),
	"listed\nweft.ddl_queue",
	'... with the table of schema changes');
query($pub, 'DROP DATABASE restored');
query($pub, 'SECURITY LABEL FOR weft ON PUBLICATION list IS NULL');
is(members('list'), 'listed', 'it leaves the publication with the label');
query($pub, "SECURITY LABEL FOR weft ON PUBLICATION list IS 'ddl=table'");
is(members('list'), "listed\nweft.ddl_queue",
	'a restored label adds it again');
query($pub, 'ALTER PUBLICATION list SET (ddl = none)');
is(labels() . members('list'), 'listed', 'ddl = none');

foreach my $bad (
	[ 'WITH (ddl = some)' => qr/invalid value for publication parameter/ ],
	[ 'WITH (ddl = all, ddl = all)' => qr/conflicting or redundant options/ ],
	[
		"WITH (ddl = table, publish = 'update')" =>
		  qr/it does not publish inserts/
	],)
{
	my ($ret, $out, $err) =
	  $pub->psql('postgres',
		"CREATE PUBLICATION bad FOR ALL TABLES $bad->[0]");
	like($err, $bad->[1], "refused: $bad->[0]");
}
query($pub, 'DROP PUBLICATION list; DROP TABLE listed');

# --- each kind of statement ---

query_all([ $pub, $sub, $other ],
	'CREATE TABLE old (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
subscribe_with_pgoutput($pub, $other, 'other', 'pub',
	'binary = true, detect_conflicts = on');
caught_up();
my $before = query($sub, 'SELECT now()');

my @statements = (
	'CREATE TABLE plain (id int PRIMARY KEY, v text)',
	q{INSERT INTO plain SELECT g, 'row ' || g FROM generate_series(1, 100) g},
	'ALTER TABLE plain ADD COLUMN n int NOT NULL DEFAULT 7',
	'UPDATE plain SET n = id WHERE id < 50',
	'ALTER TABLE plain ALTER COLUMN n TYPE bigint USING n * 2',
	'ALTER TABLE plain RENAME COLUMN v TO w',
	'UPDATE plain SET w = n',
	'ALTER TABLE plain ADD CONSTRAINT positive CHECK (n > 0)',
	'ALTER TABLE plain RENAME CONSTRAINT positive TO above_zero',
	q{ALTER TABLE plain ALTER COLUMN w SET DEFAULT 'x'},
	'INSERT INTO plain (id, n) VALUES (1000, 1)',
	'CREATE INDEX plain_w ON plain (w, n DESC) WHERE n > 3',
	'CREATE UNIQUE INDEX plain_u ON plain ((id + 1))',
	'ALTER INDEX plain_w RENAME TO plain_v',
	'ALTER INDEX plain_v SET (fillfactor = 70)',
	'DROP INDEX plain_u',
	'CREATE INDEX CONCURRENTLY plain_c ON plain (n)',
	'ALTER TABLE plain REPLICA IDENTITY FULL',
	'ALTER TABLE plain SET (fillfactor = 50)',
	'CREATE TABLE child (id int PRIMARY KEY, plain int REFERENCES plain ON DELETE CASCADE)',
	'INSERT INTO child VALUES (1, 1), (2, 2)',
	'ALTER TABLE child DROP CONSTRAINT child_plain_fkey',
	q{CREATE TYPE mood AS ENUM ('sad', 'happy')},
	q{ALTER TYPE mood ADD VALUE 'glad' BEFORE 'happy'},
	'CREATE TYPE pair AS (a int, b text)',
	'ALTER TYPE pair ADD ATTRIBUTE c mood',
	'CREATE DOMAIN small AS int CHECK (VALUE < 10)',
	'ALTER DOMAIN small ADD CONSTRAINT not_five CHECK (VALUE <> 5)',
	'CREATE SEQUENCE counter INCREMENT 5',
	'ALTER SEQUENCE counter MAXVALUE 1000 CYCLE',
	q{CREATE TABLE typed (id serial PRIMARY KEY, m mood, p pair, s small, c int DEFAULT nextval('counter'),
		g int GENERATED ALWAYS AS (id * 2) STORED, i int GENERATED BY DEFAULT AS IDENTITY)},
	q{INSERT INTO typed (m, p, s) VALUES ('glad', '(1,x,sad)', 3), ('sad', NULL, 4)},
	'CREATE TABLE part (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)',
	'CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (100)',
	'CREATE TABLE part_high PARTITION OF part DEFAULT PARTITION BY HASH (id)',
	'CREATE TABLE part_high_0 PARTITION OF part_high FOR VALUES WITH (MODULUS 1, REMAINDER 0)',
	q{INSERT INTO part SELECT g, g FROM generate_series(0, 200) g},
	'ALTER TABLE part ADD COLUMN n int DEFAULT 3',
	'UPDATE part SET n = 4 WHERE id % 3 = 0',
	'ALTER TABLE part DETACH PARTITION part_low',
	'INSERT INTO part_low VALUES (99999)',
	'DELETE FROM part_low WHERE id = 99999',
	'ALTER TABLE part ATTACH PARTITION part_low FOR VALUES FROM (0) TO (100)',
	'CREATE TABLE copied (LIKE plain INCLUDING ALL)',
	'CREATE TABLE heir () INHERITS (child)',
	'INSERT INTO heir VALUES (10, 10)',
	'ALTER TABLE heir RENAME TO heiress',
	'ALTER TABLE typed DROP COLUMN s',
	'INSERT INTO typed (m) VALUES (NULL)',
	'DROP DOMAIN small',
	'DROP TABLE copied',
	'CREATE TABLE emptied AS SELECT 1 AS one WITH NO DATA',
	'INSERT INTO emptied VALUES (4)',
	'TRUNCATE child',
	'CREATE TEMP TABLE here (id int)',
	'CREATE UNLOGGED TABLE fast (id int); DROP TABLE fast',
	'VACUUM ANALYZE plain',
	'REINDEX TABLE plain',
	'CREATE ROLE some_role; DROP ROLE some_role',
	'CREATE VIEW not_replicated AS SELECT 1; DROP VIEW not_replicated',);
query($pub, $_) foreach @statements;
all_the_same('all kinds');
is(states($sub), states($other),
	'the same tables belong to both subscriptions');
like(states($sub), qr/^typed\|r$/m,
	'a new table belongs to the subscription');
unlike(states($sub), qr/copied/, '... a dropped one does not');
unlike(states($sub), qr/^part\|/m,
	'... a partitioned one does as its partitions');

query($pub,
	'DROP TABLE heiress, child, typed, part; DROP TYPE pair, mood; DROP SEQUENCE counter'
);
all_the_same('dropped');

# --- within transactions ---

query($pub, <<'EOS');
BEGIN;
INSERT INTO old SELECT g, 'before' FROM generate_series(1, 10) g;
CREATE TABLE mixed (id int PRIMARY KEY);
INSERT INTO mixed VALUES (1);
SAVEPOINT a;
ALTER TABLE mixed ADD COLUMN gone int;
CREATE TABLE never (id int);
INSERT INTO mixed VALUES (2, 2);
INSERT INTO never VALUES (1);
ROLLBACK TO a;
INSERT INTO mixed VALUES (3);
SAVEPOINT b;
ALTER TABLE mixed ADD COLUMN v text DEFAULT 'v';
INSERT INTO mixed VALUES (4, 'four');
RELEASE b;
UPDATE mixed SET v = 'one' WHERE id = 1;
ALTER TABLE old DROP COLUMN v, ADD COLUMN w int;
UPDATE old SET w = id;
INSERT INTO old VALUES (11, 12);
ALTER TABLE old RENAME TO older;
DELETE FROM older WHERE id = 2;
COMMIT;
BEGIN;
DROP TABLE mixed;
ROLLBACK;
EOS
all_the_same('mixed with rows');

# --- streamed while in progress, with aborted parts ---

query($pub, <<'EOS');
BEGIN;
CREATE TABLE streamed (id int PRIMARY KEY, v text);
INSERT INTO streamed SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g;
SAVEPOINT a;
ALTER TABLE streamed ADD COLUMN gone int;
INSERT INTO streamed SELECT g, repeat('y', 100), 1 FROM generate_series(2001, 4000) g;
ROLLBACK TO a;
ALTER TABLE streamed ADD COLUMN n int DEFAULT 5;
INSERT INTO streamed SELECT g, repeat('z', 100), g FROM generate_series(4001, 6000) g;
CREATE INDEX ON streamed (n);
COMMIT;
EOS
all_the_same('streamed');

# --- where a statement comes from ---

query(
	$pub,
	q{CREATE TABLE first (id int); INSERT INTO first VALUES (1); ALTER TABLE first ADD COLUMN b int /* ; */ ; -- comment;
INSERT INTO first VALUES (2, 2);}
);
query($pub, <<'EOS');
DO $$
BEGIN
	FOR i IN 1..3 LOOP
		EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY)', 'made ' || i);
		EXECUTE format('INSERT INTO %I VALUES (%s)', 'made ' || i, i);
	END LOOP;
	CREATE TABLE fixed (id int);
	ALTER TABLE fixed ADD COLUMN v text DEFAULT 'a;b';
	INSERT INTO fixed VALUES (1);
END $$;
EOS
# Functions are not replicated with ddl = table.
query($pub, <<'EOS');
CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
	EXECUTE 'CREATE TABLE ' || quote_ident(name) || $t$ (id int, v text DEFAULT 'it''s; $$')$t$;
END $f$;
CREATE FUNCTION make_sql() RETURNS void LANGUAGE sql
	AS 'CREATE TABLE of_sql (id int); ALTER TABLE of_sql ADD v int;';
SELECT make('t"; DROP TABLE older; --'), make_sql();
DROP FUNCTION make, make_sql;
EOS
all_the_same('of functions');

# Statements that an event trigger executes come after the one that has fired it.
query($pub, <<'EOS');
CREATE FUNCTION follow() RETURNS event_trigger LANGUAGE plpgsql AS $f$
DECLARE
	made text;
BEGIN
	FOR made IN SELECT object_identity FROM pg_event_trigger_ddl_commands()
			WHERE object_identity !~ '_(also|deep|gone)$' LOOP
		EXECUTE 'CREATE TABLE ' || made || '_also () INHERITS (' || made || ')';
		BEGIN
			EXECUTE 'CREATE TABLE ' || made || '_gone (id int)';
			RAISE EXCEPTION USING ERRCODE = 'P9999';
		EXCEPTION WHEN SQLSTATE 'P9999' THEN
			EXECUTE 'CREATE TABLE ' || made || '_deep (id int)';
		END;
	END LOOP;
END $f$;
CREATE EVENT TRIGGER follow ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION follow();
CREATE TABLE watched (id int);
INSERT INTO watched_also VALUES (1);
DROP EVENT TRIGGER follow;
DROP FUNCTION follow;
EOS
all_the_same('of an event trigger');

# An extension's script is not replicated, nor are statements of a session that opts out.
query($pub, <<'EOS');
SET weft.ddl_replication = off;
CREATE TABLE alone (id int);
DROP TABLE alone;
EOS
all_the_same('not replicated');

# --- refused ---

foreach my $refused (
	[
		'ALTER TABLE older ADD COLUMN r uuid DEFAULT gen_random_uuid()' =>
		  qr/column "r" gets another value in each row/
	],
	[
		'ALTER TABLE older ADD COLUMN r serial' =>
		  qr/column "r" gets another value/
	],
	[
		q{BEGIN; ALTER TABLE older ADD r int; PREPARE TRANSACTION 'p'} =>
		  qr/cannot PREPARE a transaction that has replicated schema changes/
	],)
{
	my ($ret, $out, $err) = $pub->psql('postgres', $refused->[0]);
	like($err, $refused->[1], "refused: $refused->[0]");
}
query($pub, $_)
  foreach (
	q{BEGIN; SAVEPOINT a; ALTER TABLE older ADD r int; ROLLBACK TO a; INSERT INTO older VALUES (90, 1); PREPARE TRANSACTION 'p'},
	q{COMMIT PREPARED 'p'});
query($pub, 'ALTER TABLE first ADD COLUMN r int DEFAULT 3 + 4');
query($pub,
	'CREATE TABLE empty (id int); ALTER TABLE empty ADD COLUMN r uuid DEFAULT gen_random_uuid()'
);
all_the_same('refused');

# --- history ---

my $statement = 'ALTER TABLE first ADD COLUMN r int DEFAULT 3 + 4';
is( query(
		$pub,
		"SELECT result, tag, statement FROM weft.ddl_history WHERE statement = '$statement'"
	),
	"captured|ALTER TABLE|$statement",
	'history of the publisher');
is( query(
		$sub,
		"SELECT subname, result, tag, lsn > '0/0', recorded_at > '$before' FROM weft.ddl_history WHERE statement = '$statement'"
	),
	'sub|applied|ALTER TABLE|t|t',
	'history of the subscriber');

# --- a statement that fails ---

query($sub, 'CREATE TABLE clash (other text)');
$before = query($sub, 'SELECT clock_timestamp()');
my $log = -s $sub->logfile;
query($pub,
	'BEGIN; INSERT INTO older VALUES (100, 1); CREATE TABLE clash (id int); INSERT INTO clash VALUES (1); COMMIT'
);
my ($message, $lsn) = apply_error($sub, 'sub', $before);
is($message, 'relation "clash" already exists', 'the statement fails');
my $logged = slurp_file($sub->logfile, $log);
like(
	$logged,
	qr/CONTEXT: .*applying schema change \d+ of role "[^"]+": CREATE TABLE clash \(id int\)/s,
	'... the log has the statement');
like(
	$logged,
	qr/HINT: .*ALTER SUBSCRIPTION sub SKIP \(lsn = '\Q$lsn\E'\)/,
	'... and the remedy');
is(query($sub, 'SELECT count(*) FROM older WHERE id = 100'),
	0, 'nothing of its transaction is applied');
query($sub, 'DROP TABLE clash');
all_the_same('after the cause is removed');

# An unqualified name must not lead to another schema.
query($pub, 'SET weft.ddl_replication = off; CREATE SCHEMA missing_there');
$before = query($sub, 'SELECT clock_timestamp()');
query($pub,
	'SET search_path = missing_there, public; CREATE TABLE of_schema (id int)'
);
($message, $lsn) = apply_error($sub, 'sub', $before);
is( $message,
	'table "missing_there.of_schema" does not exist after the schema change',
	'a schema is missing');
is(query($sub, q{SELECT to_regclass('public.of_schema')}),
	'', '... and no other one is used');
query_all([ $sub, $other ], 'CREATE SCHEMA missing_there');
all_the_same('after the schema is created');

query($sub, 'CREATE TABLE clash2 (id int)');
$before = query($sub, 'SELECT clock_timestamp()');
query($pub, 'CREATE TABLE clash2 (id int)');
($message, $lsn) = apply_error($sub, 'sub', $before);
query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
query($pub, 'INSERT INTO older VALUES (101, 1)');
all_the_same('after SKIP');
# The subscription does not know the table yet.
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
all_the_same('after REFRESH');

# --- under load ---

my $load = start_pgbench(
	$pub,
	{
		q{INSERT INTO mixed (id) VALUES ((random() * 1e9)::int) ON CONFLICT DO NOTHING;}
		  => 1
	},
	'-n', '-c', '4', '-t', '300');
query($pub, "ALTER TABLE mixed ADD COLUMN c$_ int DEFAULT $_")
  foreach 1 .. 10;
query($pub, "ALTER TABLE mixed DROP COLUMN c$_") foreach 1 .. 5;
query($pub, 'CREATE TABLE made_under_load AS SELECT 1 AS a WITH NO DATA');
finish($load);
all_the_same('under load');

# --- while a table is being copied ---

# Makes a table whose copy waits for a session on the subscriber; returns that.
sub make_table_being_copied
{
	my ($table) = @_;
	my $session = open_session($sub);

	query_all([ $sub, $other ], "CREATE TABLE $table (id int PRIMARY KEY)");
	query($pub, <<"EOS");
SET weft.ddl_replication = off;
CREATE TABLE $table (id int PRIMARY KEY);
INSERT INTO $table SELECT generate_series(1, 100);
EOS
	caught_up();
	$session->query_safe("BEGIN; LOCK TABLE $table IN SHARE MODE");
	query($_->[0], "ALTER SUBSCRIPTION $_->[1] REFRESH PUBLICATION")
	  foreach [ $sub, 'sub' ], [ $other, 'other' ];
	poll($sub,
		"SELECT count(*) > 0 FROM pg_locks WHERE relation = '$table'::regclass AND NOT granted"
	);
	return $session;
}

my $session = make_table_being_copied('late');
$log = -s $sub->logfile;
query($pub,
	'BEGIN; INSERT INTO late VALUES (1000); ALTER TABLE late ADD COLUMN v int DEFAULT 1; INSERT INTO late VALUES (1001, 2); COMMIT'
);
$sub->wait_for_log(qr/a schema change must wait until tables are copied/,
	$log);
pass('a schema change waits for copies');
$session->query_safe('COMMIT');
$session->quit;
all_the_same('after the copy');

$session = make_table_being_copied('later');
query($pub,
	'BEGIN; INSERT INTO later SELECT generate_series(1000, 6000); ALTER TABLE later ADD COLUMN v int DEFAULT 1; INSERT INTO later VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET v = 3; COMMIT'
);
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'WeftLeaderDrain'}
);
$session->query_safe('COMMIT');
$session->quit;
all_the_same('streamed, after the copy');

# --- a publication of some tables ---

query($other, 'DROP SUBSCRIPTION other');
query_all([ $pub, $other ], $_)
  foreach q{CREATE TYPE shade AS ENUM ('light')},
  'CREATE DOMAIN deep AS shade[]; CREATE TYPE made_of_deep AS (d deep)',
  'CREATE TABLE chosen (id int PRIMARY KEY, s shade)',
  'CREATE TABLE chosen_too (id int PRIMARY KEY, s made_of_deep[])';
query($pub, 'CREATE PUBLICATION list FOR TABLE chosen WITH (ddl = table)');
subscribe($pub, $other, 'other', 'list');
wait_for_apply($pub, $other, 'other');
query($pub,
	'CREATE PUBLICATION list_too FOR TABLE chosen_too WITH (ddl = table)');
query($pub, q{ALTER TYPE shade ADD VALUE 'bright'});
is( query(
		$pub,
		q{SELECT message->'publications' @> '["list_too"]' FROM (SELECT message::jsonb FROM weft.ddl_queue ORDER BY id DESC LIMIT 1) q}
	),
	't',
	'a type in a type in a type of a listed table');
query($pub, 'DROP PUBLICATION list_too');
query($pub, $_)
  foreach (
	'ALTER TABLE chosen ADD COLUMN v text',
	'CREATE INDEX chosen_v ON chosen (v)',
	q{ALTER TYPE shade ADD VALUE 'dark'},
	q{INSERT INTO chosen VALUES (1, 'dark', 'v')},
	'CREATE TABLE not_chosen (id int)',
	'ALTER TABLE not_chosen ADD COLUMN v int',
	'CREATE INDEX ON not_chosen (v)',
	'ALTER TABLE chosen RENAME TO elected',
	'ALTER INDEX chosen_v RENAME TO elected_v',
	'ALTER TABLE elected ALTER COLUMN v SET DEFAULT 3',
	'INSERT INTO elected (id) VALUES (2)');
wait_for_apply($pub, $other, 'other');
same_tables($pub, $other, ['elected'], 'a listed table: rows');
my $columns =
  q{SELECT attname, format_type(atttypid, atttypmod), (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum)
	FROM pg_attribute WHERE attrelid IN ('elected'::regclass, 'elected_v'::regclass) AND attnum > 0 ORDER BY attrelid, attnum};
is(query($other, $columns), query($pub, $columns), '... and columns');
is(query($other, q{SELECT to_regclass('not_chosen')}), '', 'one that is not');
my ($ret, $out, $err) =
  $other->psql('postgres', q{CALL weft.compare_subscription('other')});
like($err, qr/1 of 1 tables were compared, 0 differences/, 'a comparison');
query($pub, 'DROP TABLE elected, not_chosen, chosen_too');
wait_for_apply($pub, $sub, 'sub');
same_everything($pub, $sub, 'the subscription to all tables');

# --- a subscriber that publishes what it has applied ---

query($pub, 'CREATE TABLE chained (id int PRIMARY KEY)');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'CREATE PUBLICATION onward FOR TABLE chained WITH (ddl = table)');
query($other, 'CREATE DATABASE chain');
my $connstr = $sub->connstr('postgres');
$other->safe_psql('chain', <<"EOS");
CREATE EXTENSION weft;
CREATE TABLE chained (id int PRIMARY KEY);
CREATE SUBSCRIPTION chain CONNECTION \$\$$connstr\$\$ PUBLICATION onward;
EOS
query($pub,
	'ALTER TABLE chained ADD COLUMN v int; INSERT INTO chained VALUES (1, 2)'
);
ok( $other->poll_query_until(
		'chain', q{SELECT r::text = '(1,2)' FROM chained r}),
	'a schema change is passed on');
$other->safe_psql('chain', 'DROP SUBSCRIPTION chain');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub, $other;

$_->stop foreach $sub, $other, $pub;
done_testing();
