# Replicated schema changes against hostile input: nobody can have anything executed as another
# role on the subscriber, whatever the statement, its names, or the messages look like.

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
  new_publisher('publisher', conf => 'max_prepared_transactions = 10');
my $sub = new_subscriber('subscriber');

query($pub, 'CREATE EXTENSION weft');

my $superuser = query($sub, 'SELECT current_user');

# On both sides: alice may create tables, mallory as well; the owner of the subscription may
# become both of them.
query_all([ $pub, $sub ], <<'EOS');
CREATE ROLE alice;
CREATE ROLE mallory;
CREATE SCHEMA hers AUTHORIZATION alice;
CREATE SCHEMA his AUTHORIZATION mallory;
GRANT CREATE ON SCHEMA public TO alice, mallory;
CREATE TABLE secret (id int PRIMARY KEY);
EOS
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

sub everything_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_everything($pub, $sub, $what);
	return;
}

sub refused
{
	my ($node, $sql, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);

	like($err, $pattern, $what);
	return;
}

sub applied
{
	return query($sub, 'SELECT count(*) FROM weft.ddl_history');
}

# Runs a statement on the publisher that fails on the subscriber; returns what was logged.  It
# is skipped.
sub fails
{
	my ($sql, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = query($sub, 'SELECT clock_timestamp()');
	my $log = -s $sub->logfile;

	query($pub, $sql);
	my ($message, $lsn) = apply_error($sub, 'sub', $before);
	like($message, $pattern, $what);
	query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
	wait_for_apply($pub, $sub, 'sub');
	return slurp_file($sub->logfile, $log);
}

# --- messages that anybody may emit ---

my $forged = <<'EOS';
{"version": 1, "id": 1, "tag": "DROP TABLE", "role": "SUPERUSER", "powers": ["superuser"],
"statement": "DROP TABLE secret", "concurrently": false, "publications": ["pub"],
"settings": {}, "tables": []}
EOS
$forged =~ s/SUPERUSER/$superuser/;
foreach my $transactional ('true', 'false')
{
	query($pub,
		"SET ROLE mallory; SELECT pg_logical_emit_message($transactional, 'weft.ddl', '$forged')"
	);
	query($pub,
		"SET ROLE mallory; SELECT pg_logical_emit_message($transactional, '', 'M$forged')"
	);
}
query($pub, 'INSERT INTO secret VALUES (1)');
everything_the_same('emitted messages');
is(applied(), 0, '... they are no schema changes');

# --- the table of schema changes ---

query($pub, 'CREATE ROLE writer IN ROLE pg_write_all_data, pg_read_all_data');
foreach my $role ('mallory', 'writer', 'none')
{
	refused(
		$pub,
		"SET ROLE $role; INSERT INTO weft.ddl_queue VALUES (1, now(), '$forged')",
		qr/permission denied|cannot be changed/,
		"$role cannot insert a schema change");
}
refused(
	$pub,
	'SET ROLE writer; UPDATE weft.ddl_queue SET id = 1',
	qr/cannot be changed|cannot update table/,
	'nor update one');
refused(
	$pub,
	"SET ROLE writer; COPY weft.ddl_queue FROM STDIN;\n1\tnow\t{}\n\\.\n",
	qr/cannot be changed/,
	'nor copy one');
refused(
	$pub,
	'SET session_replication_role = replica; TRUNCATE weft.ddl_queue',
	qr/cannot be changed/,
	'nor truncate the table, as a replica');
refused(
	$pub,
	'SET ROLE mallory; SELECT * FROM weft.ddl_queue',
	qr/permission denied/,
	'nor read it');
is(query($pub, 'SET ROLE mallory; SELECT count(*) FROM weft.ddl_history'),
	0, 'nor what the history shows of it');
refused(
	$pub,
	'SET ROLE mallory; SET weft.ddl_replication = off',
	qr/permission denied/,
	'nor hide what he does');

# --- names, strings and comments ---

query($pub, $_)
  foreach (
	q{SET ROLE mallory; CREATE TABLE his."a; DROP TABLE secret; --" (id int, "b""'$$" text DEFAULT '''; DROP TABLE secret; --')},
	q{SET ROLE mallory; CREATE TABLE his.t1 (a text DEFAULT $x$; DROP TABLE secret; $x$); DROP TABLE his.t1},
	q{SET ROLE mallory; /* ; */ CREATE TABLE his.t2 (a int) /* ; DROP TABLE secret */ ; SELECT 1},
	major() < 19
	? q{SET standard_conforming_strings = off; SET escape_string_warning = off; CREATE TABLE strings (a text DEFAULT 'a\'; DROP TABLE secret; --')}
	: q{CREATE TABLE strings (a text DEFAULT E'a\'; DROP TABLE secret; --')},
	qq{CREATE TABLE "tab\t\\" (a text DEFAULT E'\\n')},
	q{CREATE TABLE "ünïcode ❤" ("列" text)},
	q{SET quote_all_identifiers = on; SET DateStyle = 'SQL, DMY'; CREATE TABLE dates (d date DEFAULT '01/02/2003')},
	q{SET TimeZone = 'Asia/Tokyo'; CREATE TABLE times (t timestamptz DEFAULT '2003-01-01 00:00')},
  );
query($pub,
	q{INSERT INTO his."a; DROP TABLE secret; --" (id) VALUES (1); INSERT INTO strings DEFAULT VALUES; INSERT INTO dates DEFAULT VALUES; INSERT INTO times DEFAULT VALUES}
);
everything_the_same('names, strings and comments');

# --- search_path ---

query($pub, $_)
  foreach (
	'SET search_path = hers; CREATE TABLE placed (id int)',
	'SET search_path = nowhere, his, hers; CREATE TABLE placed (id int); ALTER TABLE placed ADD v int',
	'SET search_path = hers, his; ALTER TABLE placed ADD w int',);
query_all([ $pub, $sub ], 'CREATE SCHEMA mallory AUTHORIZATION mallory');
query($pub,
	q{SET ROLE mallory; SET search_path = "$user", public; CREATE TABLE own (id int)}
);

# A function that is in front of the server's own, when mallory says so.
query_all(
	[ $pub, $sub ],
	q{CREATE FUNCTION his.lower(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'his' $$; ALTER FUNCTION his.lower OWNER TO mallory}
);
query($pub,
	q{SET search_path = his, pg_catalog; CREATE TABLE public.shadow (a text, CHECK (lower(a) <> 'x'))}
);
query($pub,
	q{SET search_path = public; CREATE TABLE public.unshadowed (a text, CHECK (lower(a) <> 'x'))}
);
everything_the_same('search_path');
is( query(
		$sub,
		q{SELECT count(*) FROM pg_class WHERE relname = 'own' AND relnamespace = 'mallory'::regnamespace AND relowner = 'mallory'::regrole}
	),
	1,
	'the role is who it was');

# --- roles ---

query($pub,
	'CREATE ROLE here_only; GRANT CREATE ON SCHEMA public TO here_only');
my $logged = fails(
	'SET ROLE here_only; CREATE TABLE public.of_nobody (id int)',
	qr/role "here_only" does not exist/,
	'a role that does not exist on the subscriber');
like($logged, qr/HINT: .*Create the role here/,
	'... the log says what to do');
fails(
	'DROP TABLE of_nobody',
	qr/table "of_nobody" does not exist/,
	'what was skipped is not there');

# A role of the same name, more powerful on the subscriber.
query($sub, 'CREATE ROLE dba SUPERUSER');
query($pub, 'CREATE ROLE dba; GRANT CREATE ON SCHEMA public TO dba');
fails(
	'SET ROLE dba; CREATE TABLE public.of_dba (id int)',
	qr/role "dba" has more privileges here than on the publisher/,
	'a role that is a superuser on the subscriber only');

# The same, but it only could become such a role.
query($sub, 'CREATE ROLE deputy IN ROLE dba');
query($pub, 'CREATE ROLE deputy; GRANT CREATE ON SCHEMA public TO deputy');
fails(
	'SET ROLE deputy; CREATE TABLE public.of_deputy (id int)',
	qr/role "deputy" has more privileges here than on the publisher/,
	'a role that could become a superuser on the subscriber only');

# The statement cannot do what its role may not do on the subscriber.
query($sub, 'REVOKE CREATE ON SCHEMA public FROM alice');
fails(
	'SET ROLE alice; CREATE TABLE public.of_alice (id int)',
	qr/permission denied for schema public/,
	'a role without the privilege on the subscriber');

# Code in a statement cannot become the owner of the subscription.
query_all([ $pub, $sub ], <<'EOS');
CREATE FUNCTION his.evil(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF current_setting('session_replication_role') = 'replica' THEN
		PERFORM set_config('role', 'none', false);
	END IF;
	RETURN $1;
END $$;
ALTER FUNCTION his.evil OWNER TO mallory;
EOS
query($pub,
	'SET ROLE mallory; CREATE TABLE his.victim (id int); INSERT INTO his.victim VALUES (1)'
);
fails(
	'SET ROLE mallory; ALTER TABLE his.victim ADD CONSTRAINT evil CHECK (his.evil(id) > 0)',
	qr/cannot set parameter "role" within security-restricted operation/,
	'a statement cannot become the owner of the subscription');

# Nor can code that belongs to a table, whoever is the first to need it.  An immutable function is
# executed when an index is opened, and when an expression is planned.
query_all([ $pub, $sub ], <<'EOS');
CREATE FUNCTION his.spy(text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RAISE LOG 'code of % runs as % with %', $1, current_user, current_setting('work_mem');
	RETURN 0;
END $$;
ALTER FUNCTION his.spy OWNER TO mallory;
EOS
my $log_start = -s $sub->logfile;
query($pub, <<'EOS');
SET ROLE mallory;
CREATE TABLE his.spies (id int PRIMARY KEY, v int CHECK (v > his.spy('a check')));
CREATE INDEX ON his.spies ((v + his.spy('an index')));
CREATE INDEX ON his.spies (v) WHERE v > his.spy('a predicate');
CREATE TABLE his.generated (id int PRIMARY KEY, v int,
	g int GENERATED ALWAYS AS (v + his.spy('a generated column')) STORED);
CREATE TABLE his.keyless (id int, v int);
ALTER TABLE his.keyless REPLICA IDENTITY FULL;
CREATE INDEX ON his.keyless ((v + his.spy('an index without a key')));
EOS
query_all([ $pub, $sub ], <<'EOS');
CREATE FUNCTION leave_setting() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('work_mem', '123kB', false);
	RETURN true;
END $$;
EOS
query($pub, <<'EOS');
CREATE TABLE leaving (id int);
INSERT INTO leaving VALUES (1);
BEGIN;
ALTER TABLE leaving ADD CHECK (leave_setting());
SET work_mem = '4MB';
INSERT INTO his.spies VALUES (100, 100);
COMMIT;
EOS
foreach my $i (1 .. 3)
{
	query($pub,
		"INSERT INTO his.spies VALUES ($i, $i); INSERT INTO his.generated VALUES ($i, $i); UPDATE his.spies SET v = v + 10; INSERT INTO his.keyless VALUES ($i, $i); UPDATE his.keyless SET v = v + 10"
	);
	wait_for_apply($pub, $sub, 'sub');
}
my $logged_code = slurp_file($sub->logfile, $log_start);
my @users = $logged_code =~ /code of (?:a|an) [a-z ]+ runs as (\w+)/g;
cmp_ok(scalar @users, '>', 4, 'the code of a table runs');
is_deeply([ grep { $_ ne 'mallory' } @users ], [], '... as its owner');
unlike($logged_code, qr/with 123kB/,
	'... under no settings of a statement before');

# --- messages that no Weft of this version has written ---

# Only a superuser who disables the trigger can insert them.
query($pub, 'ALTER TABLE weft.ddl_queue DISABLE TRIGGER refuse');
my %good = (
	version => 1,
	id => 1,
	tag => '"T"',
	role => qq("$superuser"),
	powers => '["superuser"]',
	statement => '"CREATE TABLE public.made_up (id int)"',
	concurrently => 'false',
	publications => '["pub"]',
	settings => '{}',
	tables => '[]');

sub json_of
{
	my (%values) = @_;
	return
	  '{' . join(', ', map { qq("$_": $values{$_}) } sort keys %values) . '}';
}

foreach my $bad (
	[ '[1]' => qr/malformed: it is no object/ ],
	[ '{"version": "1"}' => qr/malformed: "version" has another type/ ],
	[ '{"version": 1.5}' => qr/malformed: "version" is no integer/ ],
	[ '{}' => qr/malformed: "version" is missing/ ],
	[ json_of(%good, version => 2) => qr/has version 2/ ],
	[
		json_of(%good, tables => '[1]') => qr/malformed: a table is no object/
	],
	[
		json_of(%good, publications => '[1]') =>
		  qr/malformed: a value is no text/
	],
	[
		json_of(%good, settings => '[]') =>
		  qr/malformed: "settings" has another type/
	],
	[
		json_of(%good, statement => '"SELECT 1"') =>
		  qr/SELECT is not replicated/
	],
	[
		json_of(%good,
			statement => '"CREATE TABLE a (); DROP TABLE secret"') =>
		  qr/is not one statement/
	],
	[ json_of(%good, statement => '""') => qr/is not one statement/ ],
	[
		json_of(%good, statement => '"CREATE DATABASE other"') =>
		  qr/CREATE DATABASE is not replicated/
	],)
{
	fails("INSERT INTO weft.ddl_queue VALUES (1, now(), \$\$$bad->[0]\$\$)",
		$bad->[1], "message $bad->[0]");
}
query(
	$pub,
	'INSERT INTO weft.ddl_queue VALUES (1, now(), $$'
	  . json_of(%good, unknown => 1, publications => '["another"]')
	  . '$$), (1, now(), $$'
	  . json_of(
		%good,
		unknown => 1,
		settings => '{"work_mem": "broken", "lc_monetary": "nowhere"}')
	  . '$$)');
wait_for_apply($pub, $sub, 'sub');
is(query($sub, q{SELECT count(*) FROM made_up}),
	0, 'one with an unknown key, an unknown setting and an unknown locale');
query($pub, 'ALTER TABLE weft.ddl_queue ENABLE ALWAYS TRIGGER refuse');

# --- run_as_owner ---

query($sub, 'ALTER SUBSCRIPTION sub SET (run_as_owner = true)');
$logged = fails(
	'SET ROLE mallory; CREATE TABLE his.owned (id int)',
	qr/role "mallory" may not change the schema through subscription "sub"/,
	'run_as_owner: a role that could not become the owner');
like($logged, qr/HINT: .*run_as_owner = false/, '... with a hint');
query($pub,
	'CREATE TABLE of_superuser (id int); INSERT INTO of_superuser VALUES (1)'
);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT id FROM of_superuser'),
	1, 'run_as_owner: one that could');
query($sub, 'ALTER SUBSCRIPTION sub SET (run_as_owner = false)');

# --- an owner who is no superuser ---

query($sub, <<'EOS');
CREATE ROLE keeper LOGIN;
GRANT pg_create_subscription TO keeper;
GRANT mallory TO keeper;
GRANT CREATE ON DATABASE postgres TO keeper;
GRANT ALL ON SCHEMA public TO keeper;
EOS
query($sub, 'ALTER SUBSCRIPTION sub SET (password_required = false)');
query($sub, 'ALTER SUBSCRIPTION sub OWNER TO keeper');
query($pub, 'SET ROLE mallory; CREATE TABLE his.kept (id int)');
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		q{SELECT relowner::regrole FROM pg_class WHERE relname = 'kept'}),
	'mallory',
	'an owner who may become the role');
fails(
	'SET ROLE alice; CREATE TABLE hers.kept (id int)',
	qr/role "keeper" cannot SET ROLE to "alice"/,
	'an owner who may not');
fails(
	'CREATE TABLE of_superuser_too (id int)',
	qr/role "keeper" cannot SET ROLE to "$superuser"/,
	'... nor become a superuser');
query($sub, "ALTER SUBSCRIPTION sub OWNER TO $superuser");

# --- a publication of an ordinary role gets nobody else's statements ---

query($pub, 'GRANT CREATE ON DATABASE postgres TO mallory');
query($pub,
	'SET ROLE mallory; CREATE PUBLICATION spy FOR TABLE his.victim WITH (ddl = table)'
);
refused(
	$pub,
	'SET ROLE mallory; ALTER PUBLICATION spy SET (ddl = all)',
	qr/must be superuser to set "ddl" to "all"/,
	'nor everything');
refused(
	$pub,
	'SET ROLE alice; ALTER PUBLICATION spy SET (ddl = none)',
	qr/must be owner of publication spy/,
	'nor does anybody change it');
query($pub, 'ALTER PUBLICATION pub SET (ddl = none)');
query($pub, 'ALTER TABLE his.victim ADD not_refused serial');
query($pub, 'ALTER PUBLICATION pub SET (ddl = table)');
query($pub,
	q{ALTER TABLE his.victim ADD password text DEFAULT 'of the superuser'});
query($pub, q{SET ROLE mallory; ALTER TABLE his.victim ADD own int});
is( query(
		$pub,
		q{SELECT message->>'statement' FROM weft.ddl_queue WHERE (message->'publications')::jsonb ? 'spy'}
	),
	'ALTER TABLE his.victim ADD own int',
	'a publication gets statements of roles that its owner could be');

# --- a function with another role that is called by the statement, and stores rows ---

query($pub, <<'EOS');
CREATE TABLE public.audit (at timestamptz, tag text);
CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ BEGIN INSERT INTO public.audit VALUES (now(), tg_tag); END $$;
CREATE EVENT TRIGGER note ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
	EXECUTE FUNCTION public.note();
SET ROLE mallory;
SET search_path = his;
CREATE TABLE noted (id int PRIMARY KEY);
RESET ROLE;
DROP EVENT TRIGGER note;
EOS
is( query(
		$pub,
		q{SELECT message->>'role', message->'settings'->>'search_path' FROM weft.ddl_queue WHERE message->>'statement' LIKE 'CREATE TABLE noted%'}
	),
	'mallory|his',
	'an event trigger gives a statement neither its role nor its settings');

# --- schema changes of an extension that has been dropped ---

# A name proves nothing, so they are not executed, but they do not get lost without a word.
sub drop_while_disabled
{
	my ($table, $sql) = @_;

	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	query($pub, "CREATE TABLE $table (id int PRIMARY KEY)");
	query($pub, $sql);
	my $before = query($sub, 'SELECT clock_timestamp()');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	my ($message, $lsn) = apply_error($sub, 'sub', $before);
	like(
		$message,
		qr/published by an extension "weft" that the publisher no longer has/,
		"$sql: a schema change that is still on its way");
	is(query($sub, "SELECT to_regclass('$table')"), '',
		'... is not executed');
	return $lsn;
}

wait_for_apply($pub, $sub, 'sub');
my $log = -s $sub->logfile;
drop_while_disabled('late', 'DROP EXTENSION weft; CREATE EXTENSION weft');
like(
	slurp_file($sub->logfile, $log),
	qr/HINT: .*Make the schema change by hand, and use ALTER SUBSCRIPTION sub SET \(ddl = off\)/,
	'... with a hint');
query($sub,
	'CREATE TABLE late (id int PRIMARY KEY); ALTER SUBSCRIPTION sub SET (ddl = off)'
);
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET (ddl = on)');
query($pub, 'CREATE TABLE of_new_extension (id int)');
wait_for_apply($pub, $sub, 'sub');
isnt(query($sub, q{SELECT to_regclass('of_new_extension')}),
	'', 'those of the new extension are executed');
my $lsn = drop_while_disabled('later', 'DROP EXTENSION weft');
query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
wait_for_apply($pub, $sub, 'sub');
is(query($sub, q{SELECT to_regclass('later')}), '', 'one that is skipped');
query($pub, 'CREATE EXTENSION weft');

# --- a namesake, in a database without the extension ---

$pub->safe_psql('postgres', 'CREATE DATABASE open');
$pub->safe_psql('open', <<"EOS");
GRANT CREATE ON DATABASE open TO mallory;
CREATE TABLE public.secret (id int PRIMARY KEY);
CREATE PUBLICATION fake FOR ALL TABLES;
SET ROLE mallory;
CREATE SCHEMA weft;
CREATE TABLE weft.ddl_queue (id bigint, captured_at timestamptz, message json);
EOS
my $connstr = $pub->connstr('open');
query($sub,
	"CREATE SUBSCRIPTION fake CONNECTION \$\$$connstr\$\$ PUBLICATION fake WITH (copy_data = false)"
);
$forged =~ s/"pub"/"fake"/;
$log = -s $sub->logfile;
$pub->safe_psql('open',
	"SET ROLE mallory; INSERT INTO weft.ddl_queue VALUES (1, now(), '$forged'); RESET ROLE; INSERT INTO secret VALUES (77)"
);
poll($sub, 'SELECT count(*) = 1 FROM secret WHERE id = 77');
like(
	slurp_file($sub->logfile, $log),
	qr/rows of table "weft.ddl_queue" of the publisher of subscription "fake" are not taken for schema changes/,
	'a table of that name is not the one');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub;
$_->stop foreach $sub, $pub;
done_testing();
