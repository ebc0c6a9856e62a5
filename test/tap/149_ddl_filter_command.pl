# weft.ddl_filter, weft.ddl_replication, weft.replicate_ddl_command(), and what sessions are told.

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

query($pub, 'CREATE EXTENSION weft');
my $superuser = query($pub, 'SELECT current_user');

query_all([ $pub, $sub ], $_)
  foreach 'CREATE ROLE alice',
  'CREATE ROLE mallory',
  'CREATE SCHEMA his AUTHORIZATION mallory',
  'CREATE TABLE secret (id int PRIMARY KEY)';
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = all)');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# Whether statements of the publisher, each in a session of its own, are captured.
sub captured
{
	my ($settings, @statements) = @_;
	my $before = query($pub, 'SELECT count(*) FROM weft.ddl_queue');

	query($pub, join(';', $settings, $_)) foreach @statements;
	return query($pub, 'SELECT count(*) FROM weft.ddl_queue') - $before;
}

sub refused
{
	my ($sql, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $pub->psql('postgres', $sql);

	like($err, $pattern, $what);
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_facts($pub, $sub, $what);
	return;
}

# --- the filter: its value ---

my $list = q{SELECT setting FROM pg_settings WHERE name = 'weft.ddl_filter'};
foreach my $good (
	q{''}, q{'view'},
	q{'Materialized View , grant,comment'}, q{'view', 'scratch.*'},
	q{'"My ""odd"", Schema".*,  ünï.*, _x$1.*'}, q{'"view".*'})
{
	my ($ret, $out, $err) =
	  $pub->psql('postgres', "SET weft.ddl_filter = $good");
	is($err, '', "a filter: $good");
}
foreach my $bad (
	q{'nosuch'}, q{'view,'},
	q{','}, q{'view,,index'},
	q{'role'}, q{'create view'},
	q{'*'}, q{'.*'},
	q{'"".*'}, q{'"open.*'},
	q{'a.b'}, q{'a.*.*'},
	q{'1a.*'}, q{'a b.*'},
	q{'"a"'}, q{'"a" .*'},
	q{'"a".* b'}, q{'materialized  view'},
	"'" . ('x' x 64) . ".*'")
{
	refused(
		"SET weft.ddl_filter = $bad",
		qr/invalid value for parameter "weft.ddl_filter".*neither a kind of schema changes nor a schema/s,
		"no filter: $bad");
}
refused(
	q{SET ROLE mallory; SET weft.ddl_filter = 'view'},
	qr/permission denied to set parameter "weft.ddl_filter"/,
	'an ordinary role cannot set it');

# --- the filter: its effect ---

sub filtered
{
	my ($filter, $expected, @statements) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(captured("SET weft.ddl_filter = '$filter'", @statements),
		$expected, "$filter: $expected of @statements");
	return;
}

query($pub, 'CREATE SCHEMA "My, ""Schema"""');
query($pub, 'CREATE SCHEMA scratch');
filtered(
	'view', 0,
	'CREATE VIEW v AS SELECT 1',
	'ALTER VIEW v RENAME TO w',
	'DROP VIEW w');
filtered(
	'index', 1,
	'CREATE TABLE indexed (id int)',
	'CREATE INDEX indexed_i ON indexed (id)',
	'DROP INDEX indexed_i');
filtered(
	'view, table', 0,
	'CREATE TABLE t (id int)',
	'CREATE TABLE t2 AS SELECT 1 AS a WITH NO DATA',
	'DROP TABLE t, t2');
filtered(
	'grant, comment',
	2,
	'CREATE TABLE t3 (id int)',
	'GRANT SELECT ON t3 TO alice',
	'REVOKE SELECT ON t3 FROM alice',
	q{COMMENT ON TABLE t3 IS 'x'},
	q{COMMENT ON TABLE t3 IS NULL},
	'DROP TABLE t3');
filtered(
	'function, routine, owned',
	1,
	q{CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'},
	'DROP OWNED BY alice',
	'DROP ROUTINE IF EXISTS nosuch',
	'DROP ROUTINE f()',
	'CREATE TABLE t4 (id int)');
filtered(
	'scratch.*',
	0,
	'CREATE TABLE scratch.t (id int PRIMARY KEY)',
	'CREATE INDEX ON scratch.t (id)',
	q{COMMENT ON TABLE scratch.t IS 'x'},
	'CREATE VIEW scratch.v AS SELECT * FROM scratch.t',
	q{CREATE FUNCTION scratch.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'},
	'CREATE TRIGGER g BEFORE INSERT ON scratch.t EXECUTE FUNCTION scratch.f()',
	q{CREATE TYPE scratch.e AS ENUM ('x')},
	'GRANT USAGE ON SCHEMA scratch TO alice',
	'GRANT SELECT ON scratch.t TO alice',
	'DROP SCHEMA scratch CASCADE',
	'CREATE SCHEMA scratch');
filtered('scratch.*', 1, 'CREATE TABLE scratchy (id int)');
filtered(
	'"My, ""Schema""".*',
	1,
	'CREATE TABLE "My, ""Schema""".t (id int)',
	'CREATE TABLE t5 (id int)',
	'DROP TABLE "My, ""Schema""".t');
filtered(
	'scratch.*', 2,
	'CREATE TABLE scratch.a (id int)',
	'CREATE TABLE mixed (id int)',
	'DROP TABLE scratch.a, mixed');
is( query(
		$pub,
		q{SELECT message->>'statement' FROM weft.ddl_queue ORDER BY id DESC LIMIT 1}
	),
	'DROP TABLE IF EXISTS public.mixed',
	'a statement about both is published in part');
query($pub, q{SET weft.ddl_filter = 'index'; DROP TABLE indexed});
all_the_same('filters');

is( captured(
		'SET weft.ddl_replication = off',
		'CREATE VIEW v AS SELECT 1',
		'CREATE EXTENSION hstore',
		'DROP EXTENSION hstore',
		'DROP VIEW v'),
	0,
	'weft.ddl_replication = off');

# --- weft.replicate_ddl_command(): what it does ---

sub command
{
	my ($text, $publications) = @_;
	return sprintf q{SELECT weft.replicate_ddl_command($cmd$%s$cmd$, '%s')},
	  $text, $publications // '{pub}';
}

query($pub, 'ALTER PUBLICATION pub SET (ddl = table)');
query($pub, command($_))
  foreach 'CREATE VIEW commanded AS SELECT 1 AS a',
  q{CREATE FUNCTION "f;"() RETURNS text LANGUAGE sql AS $$ SELECT 'a;b' $$},
  'CREATE TABLE of_command (id int PRIMARY KEY, v text)',
  'CREATE ROLE commanded',
  'GRANT commanded TO alice',
  'ALTER ROLE commanded NOSUPERUSER',
  'GRANT SELECT ON commanded TO commanded',
  'CREATE SCHEMA c CREATE TABLE t (id int)',
  'CREATE EXTENSION hstore',
  'CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM of_command';
query($pub, q{INSERT INTO of_command VALUES (1, 'x')});
query($pub, command('REFRESH MATERIALIZED VIEW counted'));
query($pub, command($_))
  foreach 'REINDEX TABLE of_command', 'ANALYZE of_command',
  'CLUSTER of_command USING of_command_pkey';
query($pub,
	q{SET weft.ddl_replication = off; SET weft.ddl_filter = 'view'; }
	  . command('CREATE VIEW anyway AS SELECT 1'));
query($pub,
		q{BEGIN; SAVEPOINT s; }
	  . command('CREATE VIEW undone AS SELECT 1')
	  . q{; ROLLBACK TO s; COMMIT});
query($pub,
	q{DO $do$ BEGIN PERFORM weft.replicate_ddl_command('CREATE VIEW of_do AS SELECT 1', '{pub, pub}'); END $do$}
);
query($pub,
	q{SET search_path = his, public; }
	  . command('CREATE VIEW placed AS SELECT 1'));
all_the_same('commands');
same_tables($pub, $sub, ['of_command'], '... rows');
is(query($sub, 'SELECT n FROM counted'),
	1, '... a materialized view is refreshed');
is(query($sub, q{SELECT pg_has_role('alice', 'commanded', 'MEMBER')}),
	't', '... a role is a member');

# SESSION_USER is the publisher's, not the subscription's owner.
query_all([ $pub, $sub ], 'CREATE ROLE boss SUPERUSER');
query($pub, 'SET SESSION AUTHORIZATION boss; ' . command($_))
  foreach 'GRANT commanded TO SESSION_USER',
  q{ALTER ROLE SESSION_USER SET work_mem = '3MB'},
  'CREATE ROLE bossed ROLE SESSION_USER';
wait_for_apply($pub, $sub, 'sub');
my $memberships =
  q{SELECT r.rolname, m.rolname, (SELECT setconfig FROM pg_db_role_setting WHERE setrole = m.oid) FROM pg_auth_members JOIN pg_roles r ON r.oid = roleid JOIN pg_roles m ON m.oid = member WHERE r.rolname IN ('bossed', 'commanded') ORDER BY 1, 2};
is( query($sub, $memberships),
	query($pub, $memberships),
	'SESSION_USER in commands about roles');

# Other publications that want the statement get it as well, and no subscriber gets it twice.
query($pub, 'CREATE PUBLICATION another FOR ALL TABLES WITH (ddl = all)');
query($pub, command('CREATE VIEW once AS SELECT 1'));
is( query(
		$pub,
		q{SELECT message->>'publications' FROM weft.ddl_queue WHERE message->>'statement' = 'CREATE VIEW once AS SELECT 1'}
	),
	'["pub","another"]',
	'others get the statement as well');
query($pub, 'DROP PUBLICATION another');
query($pub, command('DROP VIEW IF EXISTS nosuch'));

# A table that the publication does not include does not join.
query($pub, 'CREATE PUBLICATION list FOR TABLE secret WITH (ddl = table)');
query($pub, command('CREATE TABLE not_listed (id int)', '{list}'));
is( query(
		$pub,
		q{SELECT message->>'tables' FROM weft.ddl_queue WHERE (message->'publications')::jsonb ? 'list' ORDER BY id DESC LIMIT 1}
	),
	'[{"publication":"pub","schema":"public","name":"not_listed"}]',
	'a table joins where it is published');
query($pub, 'DROP PUBLICATION list');
all_the_same('more commands');

# --- weft.replicate_ddl_command(): what it refuses ---

foreach my $bad (
	[ command('SELECT 1') => qr/cannot replicate SELECT/ ],
	[
		command('INSERT INTO secret VALUES (1)') =>
		  qr/cannot replicate INSERT/
	],
	[ command('TRUNCATE secret') => qr/cannot replicate TRUNCATE TABLE/ ],
	[
		command('COPY secret FROM PROGRAM \'id\'') =>
		  qr/cannot replicate COPY/
	],
	[ command('DO $$ BEGIN END $$') => qr/cannot replicate DO/ ],
	[ command('CALL p()') => qr/cannot replicate CALL/ ],
	[ command('COMMIT') => qr/cannot replicate COMMIT/ ],
	[ command('SET ROLE mallory') => qr/cannot replicate SET/ ],
	[
		command('SET SESSION AUTHORIZATION mallory') =>
		  qr/cannot replicate SET/
	],
	[ command('RESET ALL') => qr/cannot replicate RESET/ ],
	[ command('LISTEN x') => qr/cannot replicate LISTEN/ ],
	[ command('PREPARE p AS SELECT 1') => qr/cannot replicate PREPARE/ ],
	[ command('DISCARD ALL') => qr/cannot replicate DISCARD ALL/ ],
	[ command('LOCK secret') => qr/cannot replicate LOCK TABLE/ ],
	[ command('VACUUM secret') => qr/cannot replicate VACUUM/ ],
	[
		command('ALTER SYSTEM SET work_mem = 1') =>
		  qr/cannot replicate ALTER SYSTEM/
	],
	[ command('CREATE DATABASE x') => qr/cannot replicate CREATE DATABASE/ ],
	[
		command(q{CREATE TABLESPACE x LOCATION '/x'}) =>
		  qr/cannot replicate CREATE TABLESPACE/
	],
	[
		command('DROP SUBSCRIPTION x') =>
		  qr/cannot replicate DROP SUBSCRIPTION/
	],
	[
		command('ALTER PUBLICATION pub SET (ddl = none)') =>
		  qr/cannot replicate ALTER PUBLICATION/
	],
	[
		command('DROP EXTENSION IF EXISTS nosuch; DROP TABLE secret') =>
		  qr/the command must be one statement/
	],
	[ command('') => qr/the command must be one statement/ ],
	[ command('/* ; */') => qr/the command must be one statement/ ],
	[ command('CREATE TABLE') => qr/syntax error/ ],
	[
		command(q{CREATE ROLE x PASSWORD 'secret'}) =>
		  qr/cannot replicate CREATE ROLE.*it contains a password/s
	],
	[
		command(q{ALTER ROLE alice PASSWORD 'secret'}) =>
		  qr/cannot replicate ALTER ROLE/
	],
	[
		command(q{CREATE USER MAPPING FOR alice SERVER x}) =>
		  qr/cannot replicate CREATE USER MAPPING/
	],
	[
		command('CREATE TEMP TABLE x (id int)') =>
		  qr/CREATE TABLE has changed nothing that can be replicated/
	],
	[
		command('CREATE UNLOGGED TABLE x (id int)') =>
		  qr/has changed nothing that can be replicated/
	],
	[
		command('CREATE INDEX CONCURRENTLY ON secret (id)') =>
		  qr/cannot be executed from a function/
	],
	[
		command('CREATE VIEW x AS SELECT 1', '{}') =>
		  qr/no publication is given/
	],
	[
		command('CREATE VIEW x AS SELECT 1', '{pub, NULL}') =>
		  qr/the name of a publication must not be null/
	],
	[
		command('CREATE VIEW x AS SELECT 1', '{nosuch}') =>
		  qr/publication "nosuch" does not exist/
	],
	[
		q{SELECT weft.replicate_ddl_command(NULL, '{pub}')} =>
		  qr/must not be null/
	],
	[
		q{SELECT weft.replicate_ddl_command('CREATE VIEW x AS SELECT 1', NULL)}
		  => qr/must not be null/
	],
	[
		'SET default_transaction_read_only = on; '
		  . command('CREATE VIEW x AS SELECT 1') =>
		  qr/cannot execute CREATE VIEW in a read-only transaction/
	],)
{
	refused(@$bad, "refused: $bad->[0]");
}
query($pub, 'CREATE PUBLICATION silent FOR TABLE secret');
refused(
	command('CREATE VIEW x AS SELECT 1', '{silent}'),
	qr/publication "silent" does not publish schema changes/,
	'a publication that does not want any');

# Afterwards, statements are what they were.
is(captured('', 'CREATE VIEW x AS SELECT 1', 'DROP VIEW x'),
	0, 'a failed command leaves nothing');
refused(
	command('CREATE TABLE nosuch.x (id int)')
	  . '; CREATE VIEW x AS SELECT 1; DROP VIEW x',
	qr/schema "nosuch" does not exist/,
	'a statement that fails');
is( query(
		$pub,
		q{SELECT count(*) FROM weft.ddl_queue WHERE message->>'statement' ~ ' x( |$)'}
	),
	0,
	'... and none of those after it is published');

# --- who may ---

my $his = command('CREATE TABLE his.t (id int)');
refused(
	"SET ROLE mallory; $his",
	qr/permission denied for function replicate_ddl_command/,
	'not everybody may execute it');
query($pub,
	'GRANT USAGE ON SCHEMA weft TO mallory; GRANT EXECUTE ON FUNCTION weft.replicate_ddl_command TO mallory'
);
refused(
	"SET ROLE mallory; $his",
	qr/must be owner of publication pub/,
	'the owner of the publication decides');
query($pub, 'GRANT CREATE ON DATABASE postgres TO mallory');
query($pub, $_)
  foreach 'SET ROLE mallory; CREATE TABLE his.listed (id int PRIMARY KEY)',
  'SET ROLE mallory; CREATE PUBLICATION his FOR TABLE his.listed WITH (ddl = table)';
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET PUBLICATION pub, his');
wait_for_apply($pub, $sub, 'sub');

# He is mallory on the subscriber, too.
query(
	$pub,
	'SET ROLE mallory; '
	  . command(
		'CREATE VIEW his.of_mallory AS SELECT current_user AS who', '{his}'));
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		q{SELECT relowner::regrole FROM pg_class WHERE relname = 'of_mallory'}
	),
	'mallory',
	'a command is executed as the role that has called the function');
refused(
	'SET ROLE mallory; ' . command('DROP TABLE public.secret', '{his}'),
	qr/must be owner of table secret/,
	'he may do no more here');
my $before = query($sub, 'SELECT clock_timestamp()');
query($sub,
	'REVOKE ALL ON SCHEMA his FROM mallory; ALTER SCHEMA his OWNER TO '
	  . $superuser);
query(
	$pub,
	'SET ROLE mallory; '
	  . command(
		'CREATE VIEW his."more; DROP TABLE secret" AS SELECT 1', '{his}'));
my ($message, $lsn) = apply_error($sub, 'sub', $before);
is($message, 'permission denied for schema his', '... nor there');
query($sub,
	'ALTER SCHEMA his OWNER TO mallory; GRANT ALL ON SCHEMA his TO mallory');
wait_for_apply($pub, $sub, 'sub');

# A function that somebody else's privileges are needed for cannot be reached through his code.
query($pub, <<'EOS');
SET ROLE mallory;
CREATE FUNCTION his.trap() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
EOS
refused(
	'SET ROLE mallory; '
	  . command(
		'CREATE EVENT TRIGGER trap ON ddl_command_end EXECUTE FUNCTION his.trap()',
		'{his}'),
	qr/permission denied to create event trigger "trap"/,
	'an event trigger needs a superuser');

# Statements in a function that runs as its owner are its owner's.
query($pub, <<'EOS');
CREATE FUNCTION for_all(name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ BEGIN
	PERFORM weft.replicate_ddl_command(format('CREATE TABLE public.%I (id int)', name), '{pub}');
END $$;
SET ROLE mallory;
SELECT for_all('x (id int); DROP TABLE secret; --');
EOS
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		q{SELECT relowner::regrole, (SELECT count(*) FROM pg_class WHERE relname = 'secret') FROM pg_class WHERE relname = 'x (id int); DROP TABLE secret; --'}
	),
	"$superuser|1",
	'a function that is executed as its owner');

# --- what sessions are told ---

sub told
{
	my ($sql) = @_;
	my ($ret, $out, $err) = $pub->psql('postgres', $sql);

	return join ' ', $err =~ /NOTICE:  (\w+)/g;
}

query($pub, 'ALTER PUBLICATION pub SET (ddl = none)');
my $never =
  'CREATE ROLE r1; CREATE ROLE r2; GRANT r1 TO r2; CREATE DATABASE d1; DROP DATABASE d1; DROP ROLE r1, r2;'
  . 'CREATE UNLOGGED TABLE u1 (id int) TABLESPACE pg_default; CREATE UNLOGGED TABLE u2 (id int); DROP TABLE u1, u2;'
  . 'CREATE TABLE u3 (id int) TABLESPACE pg_default; CREATE INDEX ON u3 (id) TABLESPACE pg_default; DROP TABLE u3;'
  . 'CREATE TEMP TABLE u4 (id int)';
is(told($never), '', 'nobody is told without a publication');
query($pub, 'ALTER PUBLICATION pub SET (ddl = table)');
is(told($never), 'unlogged tablespaces', 'told once, level table');
query($pub, 'ALTER PUBLICATION pub SET (ddl = all)');
is( told($never),
	'roles databases unlogged tablespaces',
	'told once, level all');
is(told("SET weft.ddl_replication = off; $never"),
	'', 'nobody is told who does not replicate');
wait_for_apply($pub, $sub, 'sub');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub;
$_->stop foreach $sub, $pub;
done_testing();
