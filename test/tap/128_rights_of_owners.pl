# Subscriptions whose owners are ordinary roles: comparing, repairing, copying a table again and
# setting sequences work as far as native replication does, run nobody's code with more
# rights than apply would, and show nothing to strangers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use RightsTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $both = [ $pub, $sub ];

# --- who is who ---

# Anna owns the subscription, and may act as Mallory; of Dora, only her tables are
# replicated.  Mallory may create objects in schema public.
query($pub, <<'EOC');
CREATE ROLE reader LOGIN REPLICATION;
CREATE ROLE md5_reader LOGIN REPLICATION;
EOC
ask_for_passwords($pub, 'reader', 'md5_reader');
query($sub, <<'EOC');
CREATE ROLE anna LOGIN;
CREATE ROLE mallory LOGIN;
CREATE ROLE dora LOGIN;
CREATE ROLE stranger LOGIN;
GRANT pg_create_subscription TO anna;
GRANT CREATE ON DATABASE postgres TO anna;
GRANT mallory, dora TO anna WITH INHERIT FALSE, SET TRUE;
GRANT CREATE ON SCHEMA public TO mallory;
CREATE SCHEMA anna AUTHORIZATION anna;
CREATE SCHEMA mallory AUTHORIZATION mallory;
CREATE SCHEMA dora AUTHORIZATION dora;
GRANT USAGE ON SCHEMA mallory, dora TO anna;
EOC
query($pub, <<'EOC');
CREATE SCHEMA anna;
CREATE SCHEMA mallory;
CREATE SCHEMA dora;
CREATE TABLE anna.t (id serial PRIMARY KEY, v text);
CREATE TABLE mallory.t (id int PRIMARY KEY, v text, d int);
CREATE TABLE dora.t (id int PRIMARY KEY, v text);
CREATE TABLE dora.hidden (id int PRIMARY KEY, v text);
INSERT INTO anna.t (v) SELECT 'v' FROM generate_series(1, 10);
INSERT INTO mallory.t SELECT i, 'v', i FROM generate_series(1, 10) i;
INSERT INTO dora.t SELECT i, 'v' FROM generate_series(1, 10) i;
INSERT INTO dora.hidden SELECT i, 'v' FROM generate_series(1, 10) i;
CREATE SEQUENCE dora.numbers;
SELECT nextval('dora.numbers'), nextval('anna.t_id_seq');
GRANT USAGE ON SCHEMA anna, mallory, dora TO reader, md5_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA anna, mallory, dora TO reader, md5_reader;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA anna, dora TO reader, md5_reader;
CREATE PUBLICATION p FOR TABLE anna.t, mallory.t, dora.t, dora.hidden;
EOC
as_role($sub, 'anna', <<'EOC');
CREATE TABLE anna.t (id serial PRIMARY KEY, v text);
CREATE TABLE anna.secret (v text);
INSERT INTO anna.secret VALUES ('secret');
EOC
set_traps($sub, 'mallory', 'anna');
as_role($sub, 'mallory', <<'EOC');
CREATE DOMAIN mallory.number AS int CHECK (mallory.trap('domain', VALUE) IS NOT NULL);
CREATE TABLE mallory.t (id int PRIMARY KEY, v text CHECK (mallory.trap('check')), d mallory.number,
	here text DEFAULT mallory.trap('default', 'x'::text),
	made text GENERATED ALWAYS AS (mallory.trap('generated', v)) STORED);
CREATE INDEX ON mallory.t (v) WHERE mallory.trap('predicate');
CREATE INDEX ON mallory.t (mallory.trap('expression', v));
CREATE STATISTICS mallory.s ON mallory.trap('statistics', v), id FROM mallory.t;
CREATE TRIGGER always BEFORE INSERT OR UPDATE OR DELETE ON mallory.t FOR EACH ROW EXECUTE FUNCTION mallory.trap_trigger();
CREATE TRIGGER replica AFTER INSERT OR UPDATE OR DELETE ON mallory.t FOR EACH ROW EXECUTE FUNCTION mallory.trap_trigger();
ALTER TABLE mallory.t ENABLE ALWAYS TRIGGER always, ENABLE REPLICA TRIGGER replica;
ALTER TABLE mallory.t ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON mallory.t USING (mallory.trap('policy'));
-- What would be found before pg_catalog's on a careless search_path.
CREATE FUNCTION public.equal(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT mallory.trap('operator') $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.equal);
CREATE FUNCTION public.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT mallory.trap('function', 0::bigint) $$;
CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE sql AS $$ SELECT mallory.trap('format', $1) $$;
EOC
as_role($sub, 'dora', <<'EOC');
CREATE TABLE dora.t (id int PRIMARY KEY, v text);
CREATE TABLE dora.hidden (id int PRIMARY KEY, v text);
CREATE SEQUENCE dora.numbers;
EOC
query($sub,
	'ALTER ROLE anna SET search_path = public, pg_catalog; ALTER ROLE mallory SET search_path = public, pg_catalog'
);
my $careless = 'SET search_path = public, pg_catalog;';

# --- as Anna ---

my $logged = log_everything($pub);
my $offset = -s $sub->logfile;
as_role($sub, 'anna',
		"CREATE SUBSCRIPTION s CONNECTION '"
	  . conninfo($pub, 'reader')
	  . "' PUBLICATION p");
wait_for_apply($pub, $sub, 's');
my @everywhere =
  qw(domain check generated predicate expression always replica);
only_ran_as(
	$sub, $offset, 'mallory',
	[ @everywhere, 'default' ],
	'the initial copy');
my $logged_here = log_everything($sub);

# Rows here that differ, without anything that replicates or fires.
sub plant
{
	query($sub, <<'EOC');
SET session_replication_role = replica;
ALTER TABLE mallory.t DISABLE TRIGGER ALL;
UPDATE anna.t SET v = 'wrong' WHERE id = 3;
UPDATE mallory.t SET v = 'wrong' WHERE id = 4;
DELETE FROM mallory.t WHERE id IN (5, 100);
INSERT INTO mallory.t VALUES (100, 'wrong', 1);
UPDATE dora.t SET v = 'wrong' WHERE id = 6;
ALTER TABLE mallory.t ENABLE ALWAYS TRIGGER always, ENABLE REPLICA TRIGGER replica;
EOC
	return -s $sub->logfile;
}

sub found
{
	my ($comparison) = @_;
	return query($sub,
		"SELECT string_agg(relation || ' ' || kind || coalesce(' ' || repair_result, ''), ', ' ORDER BY relation::text, kind) FROM weft.difference WHERE comparison = $comparison"
	);
}
my $differences =
  'anna.t different, dora.t different, mallory.t different, mallory.t missing here, mallory.t missing there';
my $repaired = join ', ', map { "$_ repaired" } split /, /, $differences;

# Dora has second thoughts.
my $before = plant();
my $comparison = as_role($sub, 'anna', "CALL weft.compare_subscription('s')");
is(found($comparison), $differences, 'an owner compares');
only_ran_as($sub, $before, 'mallory', ['predicate'], 'an owner compares');

my $rows =
  'SELECT (SELECT count(*) FROM weft.comparison), (SELECT count(*) FROM weft.comparison_table),'
  . ' (SELECT count(*) FROM weft.difference), (SELECT count(*) FROM weft.comparison_candidate),'
  . ' (SELECT count(*) FROM weft.stat_comparison)';
is(as_role($sub, 'anna', $rows), '1|4|5|0|1', 'the owner sees the results');
foreach my $role (qw(stranger mallory dora))
{
	is(as_role($sub, $role, $rows), '0|0|0|0|0', "$role does not");
}

$before = -s $sub->logfile;
like(
	as_role(
		$sub, 'anna',
		"SELECT string_agg(statement, ' ') FROM weft.repair($comparison)"),
	qr/UPDATE ONLY mallory\.t SET v = 'v' WHERE id = '4'/,
	'the owner gets the statements');
is(join(' ', map { $_->[0] } trapped($sub, $before)),
	'', 'which runs no code of others');
my ($ret, $out, $err) =
  call_as($sub, 'anna', "CALL weft.repair($comparison, apply => true)");
is($ret, 0, 'an owner repairs') or diag($err);
is(found($comparison), $repaired, 'everything is repaired');
only_ran_as(
	$sub, $before, 'mallory',
	[ @everywhere, 'default' ],
	'an owner repairs');
same_tables($pub, $sub, [qw(anna.t dora.t dora.hidden)], 'rows are the same');

$before = plant();
as_role($sub, 'anna', "SELECT weft.resync_table('s', '$_')")
  foreach qw(anna.t mallory.t dora.t);
wait_for_apply($pub, $sub, 's');
only_ran_as(
	$sub, $before, 'mallory',
	[ @everywhere, 'default' ],
	'tables that are copied again');
same_tables($pub, $sub, [qw(anna.t dora.t)], 'an owner copies tables again');
is( rows($sub, 'mallory.t', 'id, v'),
	rows($pub, 'mallory.t', 'id, v'),
	'Mallory has the rows, too');

is( as_role(
		$sub,
		'anna',
		"SELECT sequence, after > before, problem FROM weft.sync_sequences('s') ORDER BY sequence::text"
	),
	"anna.t_id_seq|t|\ndora.numbers|f|role \"anna\" lacks the right UPDATE on sequence dora.numbers here",
	'an owner sets the sequences that it may');

# --- without the right to act as a table's owner, or to see its rows ---

plant();
query($sub, 'REVOKE dora FROM anna');
$comparison = as_role($sub, 'anna', "CALL weft.compare_subscription('s')");
is( query(
		$sub,
		"SELECT reason FROM weft.comparison_table WHERE comparison = $comparison AND table_name = 'dora.t'"
	),
	'The subscription\'s owner "anna" cannot SET ROLE to "dora", which owns the table.',
	'a table of somebody else is not compared');
is( query(
		$sub,
		"SELECT count(*) FROM weft.difference WHERE comparison = $comparison AND relation = 'dora.t'::regclass"
	),
	0,
	'nothing of it is found out');
refused(
	$sub,
	'anna',
	"SELECT weft.resync_table('s', 'dora.t')",
	qr/table "t" cannot be copied again.*"anna" cannot SET ROLE to "dora"/s,
	'copying a table of somebody else again');
query($sub, 'GRANT dora TO anna WITH INHERIT FALSE, SET TRUE');
$comparison = as_role($sub, 'anna', "CALL weft.compare_subscription('s')");
query($sub, 'REVOKE dora FROM anna');
as_role($sub, 'anna', "CALL weft.repair($comparison, apply => true)");
is( query(
		$sub,
		"SELECT string_agg(repair_result || ': ' || repair_reason, ', ') FROM weft.difference WHERE comparison = $comparison AND repair_result <> 'repaired'"
	),
	'failed: The subscription\'s owner "anna" cannot SET ROLE to "dora", which owns the table.',
	'a row of somebody else is not repaired');
query($sub,
	'GRANT dora TO anna WITH INHERIT FALSE, SET TRUE; ALTER TABLE mallory.t FORCE ROW LEVEL SECURITY'
);
$before = plant();
$comparison = as_role($sub, 'anna', "CALL weft.compare_subscription('s')");
like(
	query(
		$sub,
		"SELECT status || ': ' || reason FROM weft.comparison_table WHERE comparison = $comparison AND table_name = 'mallory.t'"
	),
	qr/^skipped: Row-level security applies to the table's owner here/,
	'rows are not silently left out');
refused(
	$sub, 'anna',
	"SELECT weft.resync_table('s', 'mallory.t')",
	qr/Row-level security applies/,
	'replacing rows that are not all visible');
query($sub, 'ALTER TABLE mallory.t NO FORCE ROW LEVEL SECURITY');

# --- a superuser calls: Mallory gets nothing of it ---

$before = plant();
$comparison = query($sub, "$careless CALL weft.compare_subscription('s')");
query($sub, "$careless SELECT count(*) FROM weft.repair($comparison)");
query($sub, "$careless CALL weft.repair($comparison, apply => true)");
query($sub, "$careless SELECT count(*) FROM weft.switch_over_plan('s')");
query($sub, "$careless SELECT weft.resync_table('s', 'mallory.t')");
wait_for_apply($pub, $sub, 's');
query($sub, "$careless SELECT count(*) FROM weft.sync_sequences('s')");
only_ran_as(
	$sub, $before, 'mallory',
	[ @everywhere, 'default' ],
	'a superuser calls');
is( query(
		$sub,
		'SELECT count(*) FROM mallory.t WHERE here IS DISTINCT FROM \'x\''),
	0,
	'the rows are complete');

# --- run_as_owner: native apply gives Anna's rights away, but no others ---

query($sub,
	'GRANT ALL ON mallory.t, dora.t, dora.hidden TO anna; ALTER TABLE mallory.t DISABLE ROW LEVEL SECURITY'
);
query($sub, 'REVOKE SELECT ON dora.hidden FROM anna');
as_role($sub, 'anna', "ALTER SUBSCRIPTION s SET (run_as_owner = true)");
$before = plant();
$comparison = query($sub, "CALL weft.compare_subscription('s')");
is(found($comparison), $differences, 'run_as_owner: compared');
like(
	query(
		$sub,
		"SELECT reason FROM weft.comparison_table WHERE comparison = $comparison AND table_name = 'dora.hidden'"
	),
	qr/The subscription's owner has no SELECT privilege/,
	'a table that the owner of the subscription may not read');
query($sub, "CALL weft.repair($comparison, apply => true)");
is(found($comparison), $repaired, 'run_as_owner: repaired');
query($sub, "SELECT weft.resync_table('s', 'mallory.t')");
wait_for_apply($pub, $sub, 's');
my @traps = trapped($sub, $before);
my %users = map { $_->[1] => 1 } @traps;
like(
	join(' ', sort keys %users),
	qr/^anna( mallory)?$/,
	'run_as_owner: runs as the owner of the subscription');
is(join(' ', grep { /(conninfo|superuser) yes/ } map { $_->[2] } @traps),
	'', 'and not as a superuser');
query($sub, 'REVOKE DELETE ON dora.t FROM anna');
refused(
	$sub,
	'anna',
	"SELECT weft.resync_table('s', 'dora.t')",
	qr/lacks the right to delete its rows/,
	'run_as_owner: a table whose rows it may not delete');
as_role($sub, 'anna', "ALTER SUBSCRIPTION s SET (run_as_owner = false)");

# --- others ---

my $oid = query($sub, "SELECT 'mallory.t'::regclass::oid");
my $not_owner = qr/must be owner of subscription s/;
foreach my $role (qw(stranger mallory))
{
	refused($sub, $role, $_, $not_owner, $_)
	  foreach (
		"CALL weft.compare_subscription('s')",
		"CALL weft.compare_subscription('s', resume => $comparison)",
		"SELECT weft.resync_table('s', $oid)",
		"SELECT * FROM weft.sync_sequences('s')",
		"SELECT * FROM weft.switch_over_plan('s')",
		"CALL weft.switch_over('s', NULL)",
		"CALL weft.switch_back('s')",
		"CALL weft.switch_over_cancel('s')");
	refused($sub, $role, $_, qr/comparison $comparison does not exist/, $_)
	  foreach (
		"SELECT * FROM weft.repair($comparison)",
		"CALL weft.repair($comparison, apply => true)");
	refused(
		$sub, $role,
		'SELECT weft.switch_step()',
		qr/permission denied|no switch-over is in progress/,
		'a step of a switch-over');
	refused(
		$sub, $role,
		"CALL weft.compare_node('x')",
		qr/this node has no subscription to a node "x"/,
		'comparing nodes');
}

# A member of a group does not give its connection to others, and a table that a stranger
# names is not even locked.
my $holder = open_session($sub);
$holder->query_safe('BEGIN; LOCK TABLE mallory.t IN ACCESS EXCLUSIVE MODE');
refused($sub, 'stranger',
	"SET lock_timeout = '60s'; SELECT weft.resync_table('s', $oid)",
	$not_owner, 'waiting for a lock');
$holder->query_safe('ROLLBACK');
$holder->quit;

# --- passwords ---

as_role($sub, 'anna', 'ALTER SUBSCRIPTION s DISABLE');
foreach my $case (
	[
		'a wrong password',
		conninfo($pub, 'reader', "${RightsTest::secret}-wrong"),
		qr/password authentication failed/
	],
	[
		'a dead host',
		"host=/nonexistent dbname=postgres user=reader password=${RightsTest::secret}-dead",
		qr/connection to server on socket/
	],
	[
		'no need of a password',
		$pub->connstr
		  . " dbname=postgres user="
		  . query($pub, 'SELECT current_user')
		  . " password=${RightsTest::secret}-unused",
		qr/password is required/
	])
{
	my ($what, $connection, $pattern) = @$case;

	$connection =~ s/'/''/g;
	# not in the log by this
	query($sub,
		"SET log_statement = none; SET log_min_duration_statement = -1; SET log_min_messages = error; SET log_min_error_statement = panic; ALTER SUBSCRIPTION s CONNECTION '$connection'"
	);
	refused($sub, 'anna', $_, $pattern, "$what: $_")
	  foreach (
		"SELECT * FROM weft.sync_sequences('s')",
		"SELECT * FROM weft.switch_over_plan('s')",
		"CALL weft.switch_over('s', NULL)");
	as_role($sub, 'anna', 'ALTER SUBSCRIPTION s ENABLE');
	refused($sub, 'anna', "CALL weft.compare_subscription('s')",
		$pattern, "$what: comparing");
	as_role($sub, 'anna', 'ALTER SUBSCRIPTION s DISABLE');
}
query($sub,
	"SET log_statement = none; SET log_min_duration_statement = -1; SET log_min_messages = error; SET log_min_error_statement = panic; ALTER SUBSCRIPTION s CONNECTION '"
	  . conninfo($pub, 'md5_reader')
	  . "'");
as_role($sub, 'anna', 'ALTER SUBSCRIPTION s ENABLE');
plant();
like(as_role($sub, 'anna', "CALL weft.compare_subscription('s')"),
	qr/^\d+$/, 'a password by MD5');
as_role($sub, 'anna', "SELECT weft.resync_table('s', 'anna.t')");
wait_for_apply($pub, $sub, 's');

is(says_password($pub, $logged), '', 'no password on the publisher');
is(says_password($sub, $logged_here), '', 'no password on the subscriber');
done_testing();
