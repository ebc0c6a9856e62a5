# Schema changes that an event trigger captures: what it refuses, and those who want to be more than they
# are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CaptureTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $superuser;

sub test_refused
{
	my $before;

	query($pub, <<'EOS');
CREATE TABLE plain (id int PRIMARY KEY, w text DEFAULT 'x', n bigint NOT NULL DEFAULT 7);
INSERT INTO plain SELECT g, 'row ' || g, g FROM generate_series(1, 100) g;
EOS
	$before = number_of_rows();
	foreach my $refused (
		[
			'CREATE TABLE filled AS SELECT 1 AS a' =>
			  qr/cannot replicate CREATE TABLE AS with rows/
		],
		[
			'SELECT 1 AS a INTO filled' =>
			  qr/cannot replicate SELECT INTO with rows/
		],
		[
			'ALTER TABLE plain ADD COLUMN r uuid DEFAULT gen_random_uuid()'
			  => qr/column "r" gets another value in each row/
		],
		[
			'ALTER TABLE plain ADD COLUMN r serial' =>
			  qr/column "r" gets another value in each row/
		],
		[
			'ALTER TABLE plain ADD COLUMN r int GENERATED ALWAYS AS IDENTITY'
			  => qr/column "r" gets another value in each row/
		],
		[
			'ALTER TABLE plain ADD COLUMN r timestamptz DEFAULT now()' =>
			  qr/column "r" gets a value that each server computes/
		],
		[
			'ALTER TABLE plain ADD COLUMN r text DEFAULT current_user' =>
			  qr/column "r" gets a value that each server computes/
		],
		[
			'ALTER TABLE plain ALTER n TYPE float8 USING random()' =>
			  qr/a column gets another value in each row/
		],
		[
			'ALTER TABLE plain ALTER w TYPE varchar(40) USING now()::text' =>
			  qr/a column gets another value in each row/
		],
		[
			q{ALTER TABLE plain ALTER w DROP DEFAULT, ALTER w TYPE timestamptz USING 'now'}
			  => qr/a column gets another value in each row/
		],
		[
			q{ALTER TABLE plain ADD COLUMN r tstzrange DEFAULT '[now,)'} =>
			  qr/a column gets a value that each server computes/
		],
		[
			'ALTER TABLE plain SET UNLOGGED' =>
			  qr/cannot replicate SET LOGGED or SET UNLOGGED/
		],
		[
			'CREATE TEMP TABLE t (id int); DROP TABLE t, plain' =>
			  qr/both permanent objects and temporary or unlogged ones/
		],)
	{
		refused(@$refused);
	}
	query($pub, 'BEGIN; ALTER TABLE plain ADD c int; ROLLBACK');
	my ($ret, $out, $err) = $pub->psql('postgres',
		q{BEGIN; ALTER TABLE plain ADD c int; PREPARE TRANSACTION 'p'});
	like(
		$err,
		qr/cannot PREPARE a transaction that has executed/,
		'a prepared transaction');
	is(number_of_rows(), $before, 'nothing of that is captured');
	query(
		$pub, q{ALTER TABLE plain ADD s int DEFAULT 3 + 4;
		ALTER TABLE plain ADD t text DEFAULT lower('X');
		CREATE TABLE empty (id int); ALTER TABLE empty ADD COLUMN r uuid DEFAULT gen_random_uuid(), ADD q timestamp DEFAULT now()}
	);
	all_the_same('refused');
	return;
}

sub role_of_last
{
	return query($pub,
		q{SELECT message->>'role', message->'powers' FROM weft.ddl_queue ORDER BY id DESC LIMIT 1}
	);
}

sub test_hostile
{
	$superuser = query($pub, 'SELECT current_user');
	query_all([ $pub, $sub ], <<'EOS');
CREATE ROLE alice;
CREATE ROLE mallory;
CREATE SCHEMA hers AUTHORIZATION alice;
CREATE SCHEMA his AUTHORIZATION mallory;
EOS
	query($pub, 'CREATE TABLE secret (id int PRIMARY KEY)');

	foreach my $sql (
		'INSERT INTO weft.ddl_queue VALUES (-1, now(), json_build_object())',
		'SELECT * FROM weft.ddl_queue',
		"SELECT weft.ddl_insert('DROP TABLE', 'DROP TABLE secret', '{drop,table}', '{\"pub\": \"table\"}', '$superuser', '')",
		"SELECT weft.install_ddl_capture('pub', 'none')",
		'SELECT weft.ddl_capture()',
		'CREATE TABLE weft.his (id int)',
		q{SELECT setval('weft.ddl_position_seq', 1)})
	{
		refused("SET ROLE mallory; $sql",
			qr/permission denied for schema weft/);
	}
	query($pub, 'CREATE ROLE writer IN ROLE pg_write_all_data');
	refused(
		'SET ROLE writer; INSERT INTO weft.ddl_queue VALUES (-1, now(), json_build_object())',
		qr/"weft.ddl_queue" cannot be changed/);
	refused('SET session_replication_role = replica; TRUNCATE weft.ddl_queue',
		qr/"weft.ddl_queue" cannot be changed/);

	refused(
		'SET ROLE mallory; CREATE TABLE his.t (id int); DROP OWNED BY mallory',
		qr/cannot replicate DROP OWNED/);

	# The role is the one that executes the statement, whatever the session says.
	query(
		$pub,
		qq{SET ROLE mallory; SET weft_capture.role = '$superuser'; SET weft_capture.search_path = 'public';
		SET weft_capture.stack = '[]'; CREATE TABLE his.t1 (id int)});
	is(role_of_last(), 'mallory|[]', 'the role of a session');
	query($pub, <<'EOS');
SET ROLE mallory;
CREATE FUNCTION his.set_config(text, name, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'alice' $$;
CREATE FUNCTION his.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'alice' $$;
CREATE FUNCTION his.current_query() RETURNS text LANGUAGE sql AS $$ SELECT 'DROP TABLE secret' $$;
CREATE FUNCTION his.is_it(name, name) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
CREATE OPERATOR his.= (FUNCTION = his.is_it, LEFTARG = name, RIGHTARG = name);
SET search_path = his, pg_catalog, public;
CREATE TABLE t2 (id int);
EOS
	is(role_of_last(), 'mallory|[]', 'functions of the same names');
	query($pub, <<"EOS");
CREATE FUNCTION his.define() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS \$f\$
BEGIN
	PERFORM set_config('weft_capture.role', '$superuser', false);
	EXECUTE 'CREATE TABLE his.t3 (id int)';
END \$f\$;
ALTER FUNCTION his.define OWNER TO mallory;
SELECT his.define();
EOS
	is(role_of_last(), 'mallory|[]',
		'a function with the rights of its owner');
	query($pub, 'CREATE TABLE of_superuser (id int)');
	like(role_of_last(), qr/^\Q$superuser\E\|\["superuser"/, 'a superuser');
	refused(
		'SET ROLE mallory; SET weft.ddl_replication = off; CREATE TABLE his.hidden (id int); CREATE TABLE his.broken',
		qr/syntax error/);
	query($pub,
		'SET ROLE mallory; SET weft.ddl_replication = off; CREATE TABLE his.hidden (id int)'
	);
	is( last_statement(),
		'CREATE TABLE his.hidden (id int)',
		'nobody hides what he does');
	query_all([ $pub, $sub ], <<'EOS');
SET ROLE mallory;
CREATE FUNCTION his.hide(tag text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $f$
BEGIN
	PERFORM set_config('weft_capture.stack', jsonb_build_array(jsonb_build_object('captured', true, 'tag', tag,
		'time', extract(epoch FROM statement_timestamp())::text))::text, false);
	RETURN true;
END $f$;
EOS
	query($pub, <<'EOS');
SET ROLE mallory;
CREATE TABLE his.checked (id int);
INSERT INTO his.checked VALUES (1);
DO $f$
BEGIN
	PERFORM his.hide('CREATE EXTENSION');
	CREATE TABLE his.hidden2 (id int);
END $f$;
EOS
	is( last_statement(),
		'CREATE TABLE his.hidden2 (id int)',
		'... with a setting before the statement');
	query($pub,
		q{SET ROLE mallory; ALTER TABLE his.checked ADD COLUMN w int, ADD CHECK (his.hide('x') OR id > 0)}
	);
	like(
		last_statement(),
		qr/^ALTER TABLE his.checked ADD COLUMN w/,
		'... or within it');

	query($pub, $_)
	  foreach (
		q{SET ROLE mallory; CREATE TABLE his."a; DROP TABLE secret; --" (id int, "b""'$$" text DEFAULT '''; DROP TABLE secret; --')},
		q{SET search_path = nowhere, his, hers; CREATE TABLE placed (id int)},
		q{SET search_path = "$user", hers; SET quote_all_identifiers = on; SET DateStyle = 'SQL, DMY'; CREATE TABLE dates (d date DEFAULT '01/02/2003')},
		q{SET transform_null_equals = on; SET check_function_bodies = off; SET plpgsql.extra_errors = 'strict_multi_assignment'; CREATE TABLE odd (a int CHECK (a = NULL))},
		q{CREATE TABLE "ünïcode ❤" ("列" text)});
	foreach my $lines ('PL/pgSQL function x() line 1 at SQL statement',
		"PL/pgSQL function x() line 1 at SQL statement\nSQL statement ")
	{
		refused(
			"SET ROLE mallory; DO \$\$ BEGIN CREATE TABLE his.\"\n$lines\" (id int); END \$\$",
			qr/cannot replicate CREATE TABLE because its text is not known/);
		send_once(
			"SET ROLE mallory; CREATE TABLE his.\"\n$lines\" (id int); DROP TABLE his.\"\n$lines\""
		);
	}
	all_the_same('hostile');
	is( query(
			$sub,
			q{SELECT relowner::regrole FROM pg_class WHERE relname = 't3'}),
		'mallory',
		'the role on the subscriber');

	# An event trigger that the capturing function relies on.
	query($pub, 'ALTER EVENT TRIGGER "!weft_ddl_end_a" DISABLE');
	refused('CREATE TABLE lost (id int)',
		qr/an event trigger of schema "weft" is missing or disabled/);
	query($pub, 'ALTER EVENT TRIGGER "!weft_ddl_end_a" ENABLE ALWAYS');
	return;
}

# Schemas of that name that somebody else has created.
sub test_namesake
{
	$pub->safe_psql('postgres', 'CREATE DATABASE open');
	$pub->safe_psql('open', <<'EOS');
GRANT CREATE ON DATABASE open TO mallory;
CREATE TABLE public.secret (id int PRIMARY KEY);
CREATE PUBLICATION fake FOR ALL TABLES;
SET ROLE mallory;
CREATE SCHEMA weft;
CREATE TABLE weft.ddl_queue (id bigint, captured_at timestamptz, message json);
EOS
	my ($ret, $out, $err) = $pub->psql('open', script('fake', 'table'));
	like(
		$err,
		qr/schema "weft" is not only that of role/,
		'the script does not use the schema of another role');

	my $connstr = $pub->connstr('open');
	query($sub,
		"CREATE SUBSCRIPTION fake CONNECTION \$\$$connstr\$\$ PUBLICATION fake WITH (copy_data = false, ddl = trust_owner)"
	);
	my $log = -s $sub->logfile;
	$pub->safe_psql('open', <<"EOS");
SET ROLE mallory;
INSERT INTO weft.ddl_queue VALUES (1, now(), '{"version": 1, "id": 1, "tag": "DROP TABLE", "role": "$superuser",
	"powers": ["superuser"], "statement": "DROP TABLE secret", "concurrently": false, "publications": ["fake"],
	"settings": {}, "tables": []}');
RESET ROLE;
INSERT INTO secret VALUES (77);
EOS
	poll($sub, 'SELECT count(*) = 1 FROM secret WHERE id = 77');
	like(
		slurp_file($sub->logfile, $log),
		qr/rows of table "weft.ddl_queue" of the publisher of subscription "fake" are not taken for schema changes/,
		'such a table is not trusted');
	query($sub, 'DROP SUBSCRIPTION fake; DELETE FROM secret WHERE id = 77');
	return;
}

# Without the option of the subscription, nothing is executed.
sub test_trust
{
	query($sub, 'ALTER SUBSCRIPTION sub SET (ddl = on)');
	my $log = -s $sub->logfile;
	query($pub,
		'SET weft.ddl_replication = off; CREATE TABLE not_trusted (id int)');
	query($pub,
		'ALTER TABLE not_trusted ADD v int; INSERT INTO secret VALUES (78)');
	wait_for_apply($pub, $sub, 'sub');
	like(
		slurp_file($sub->logfile, $log),
		qr/rows of table "weft.ddl_queue" .* are not taken for schema changes.*HINT: .*trust_owner/s,
		'the owner is not trusted by default');
	query($pub, 'SET weft.ddl_replication = off; DROP TABLE not_trusted');

	query($sub, 'ALTER SUBSCRIPTION sub SET (ddl = trust_owner)');
	query($pub, 'GRANT INSERT ON weft.ddl_queue TO alice');
	$log = -s $sub->logfile;
	query($pub,
		'CREATE TABLE not_trusted (id int); DROP TABLE not_trusted; INSERT INTO secret VALUES (79)'
	);
	wait_for_apply($pub, $sub, 'sub');
	like(
		slurp_file($sub->logfile, $log),
		qr/rows of table "weft.ddl_queue" .* are not taken for schema changes/,
		'nor a table that others may write');
	query($pub, 'REVOKE INSERT ON weft.ddl_queue FROM alice');
	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	query($pub, 'CREATE TABLE trusted_again (id int)');
	all_the_same('trusted again');
	return;
}

sub test_removal
{
	query($pub, query($sub, 'SELECT weft.ddl_capture_removal_script()'));
	is( query(
			$pub,
			q{SELECT (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_namespace WHERE nspname = 'weft')}
		),
		'0|0',
		'nothing is left');
	query($pub,
		'CREATE TABLE after_removal (id int); DROP TABLE after_removal');
	wait_for_apply($pub, $sub, 'sub');
	return;
}

for_each_publisher(
	sub {
		begin_capture();
		test_refused();
		test_hostile();
		test_namesake();
		test_trust();
		test_removal();
	});
done_testing();
