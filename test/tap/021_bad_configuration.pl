# Bad configuration: settings out of range, too few worker processes, the library not
# preloaded.  Whatever the configuration, num_writers must survive dump and restore, and
# passwords must not be shown.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $connstr = $pub->connstr . ' dbname=postgres';

query_all([ $pub, $sub ], 'CREATE TABLE t (a int PRIMARY KEY, b text)');
query($pub, 'CREATE PUBLICATION p FOR ALL TABLES');

# Inserts the publisher's next row; returns its number.
my $rows = 0;

sub insert_row
{
	$rows++;
	query($pub, "INSERT INTO t VALUES ($rows, 'row $rows')");
	return $rows;
}

# One test: the statement fails with this SQLSTATE, and all the regular
# expressions match the output of psql, including the HINT.
sub fails
{
	my ($node, $sql, $sqlstate, $regexps, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my ($rc, $stdout, $stderr) =
	  $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	my @missing =
	  grep { $stderr !~ $_ } qr/ERROR:  $sqlstate: /, @$regexps;
	my $success = ok($rc != 0 && !@missing, $what);
	diag("psql: exit code $rc: $stderr") unless $success;
	return $stderr;
}

# One test: the subscription catches up with the publisher, and then the tables are
# equal.
sub goes_on
{
	my ($name, $tables, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return same_tables($pub, $sub, $tables, $what)
	  if eval { wait_for_apply($pub, $sub, $name); 1 };
	fail($what);
	diag($@);
	return;
}

sub num_writers_of
{
	my ($node, $name, $database) = @_;
	return $node->safe_psql(
		$database // 'postgres',
		"SELECT v.num_writers FROM weft.stat_subscription v JOIN pg_subscription s ON s.oid = v.subid JOIN pg_database d ON d.oid = s.subdbid WHERE v.subname = '$name' AND datname = current_database()"
	);
}

sub writers_become
{
	my ($node, $number, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( $node->poll_query_until(
			'postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'weft writer'",
			$number),
		$what);
	return;
}

####
#### num_writers, and the parameters
####

my $range = qr/num_writers.*\b0\b.*\b64\b/s;
foreach my $value ('-1', '65', '2147483648', '-9223372036854775809',
	"'abc'", "'6 writers'", "''", '1.5', 'true')
{
	fails(
		$sub,
		"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (connect = false, num_writers = $value)",
		'22023',
		[$range],
		"CREATE SUBSCRIPTION with num_writers = $value");
}
fails(
	$sub,
	"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (connect = false, num_writers)",
	'(22023|42601)',
	[qr/num_writers/],
	'CREATE SUBSCRIPTION with num_writers without a value');
fails(
	$sub,
	"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (connect = false, num_writers = 2, num_writers = 3)",
	'42601',
	[qr/conflicting or redundant options/],
	'CREATE SUBSCRIPTION with num_writers twice');
fails(
	$sub,
	"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (connect = false, num_writers = 2, nosuch = 3)",
	'42601',
	[qr/unrecognized subscription parameter: "nosuch"/],
	'CREATE SUBSCRIPTION with another parameter that does not exist');
is( query(
		$sub,
		q{SELECT (SELECT count(*) FROM pg_subscription), (SELECT count(*) FROM pg_shseclabel)}
	),
	'0|0',
	'no subscription was created');
is(query($pub, 'SELECT count(*) FROM pg_replication_slots'),
	'0', 'nor a slot on the publisher');

subscribe($pub, $sub, 's', 'p', 'num_writers = 6');
insert_row();
goes_on('s', ['t'], 'rows are applied');
is(num_writers_of($sub, 's'), '6', 'num_writers is unchanged');

foreach my $value ('-1', '65', "'abc'")
{
	fails($sub, "ALTER SUBSCRIPTION s SET (num_writers = $value)",
		'22023', [$range], "ALTER SUBSCRIPTION with num_writers = $value");
}
fails(
	$sub,
	'ALTER SUBSCRIPTION s SET (num_writers = 3, nosuch = 1)',
	'42601',
	[qr/unrecognized subscription parameter: "nosuch"/],
	'ALTER SUBSCRIPTION with another parameter that does not exist');
fails($sub, 'ALTER SUBSCRIPTION s SET (num_writers = 65, binary = true)',
	'22023', [$range], 'ALTER SUBSCRIPTION with another parameter');
fails(
	$sub,
	'ALTER SUBSCRIPTION nosuch SET (num_writers = 3)',
	'42704',
	[qr/subscription "nosuch" does not exist/],
	'ALTER SUBSCRIPTION of one that does not exist');
is(query($sub, q{SELECT subbinary FROM pg_subscription}),
	'f', 'the other parameter is not changed');
is(num_writers_of($sub, 's'), '6', 'nor is num_writers');

# The output of pg_dump may also be written by hand.
foreach my $label (
	'num_writers=65', 'num_writers=-1', 'num_writers=', 'x',
	'num_writers=6 ')
{
	fails(
		$sub, "SECURITY LABEL FOR weft ON SUBSCRIPTION s IS '$label'",
		'22023',
		[qr/num_writers.*\b0\b.*\b64\b/s],
		"security label \"$label\"");
}
fails($sub, "SECURITY LABEL FOR weft ON TABLE t IS 'num_writers=6'",
	'0A000', [qr/subscription/], 'security label of a table');
is(num_writers_of($sub, 's'), '6', 'num_writers is still the same');

foreach (
	[ 'weft.writers_per_subscription', '65', '0 .. 64' ],
	[ 'weft.writers_per_subscription', '-1', '0 .. 64' ],
	[ 'weft.max_writers_per_subscription', '65', '1 .. 64' ],
	[ 'weft.max_writers_per_subscription', '0', '1 .. 64' ])
{
	my ($name, $value, $valid) = @$_;
	fails(
		$sub, "ALTER SYSTEM SET $name = $value",
		'22023',
		[qr/\Q"$name" ($valid)\E/],
		"$name = $value");
}
fails($sub, 'ALTER SYSTEM SET weft.ring_size = 1',
	'22023', [qr/"weft.ring_size"/], 'weft.ring_size = 1');
fails($sub, "SET weft.nosuch = 1",
	'42602', [qr/weft/], 'a parameter that does not exist');

# A configuration file with an error does not stop a running server.
$sub->append_conf('postgresql.conf', "weft.writers_per_subscription = 65\n");
my $log_offset = -s $sub->logfile;
$sub->reload;
$sub->wait_for_log(
	qr/65 is outside the valid range for parameter "weft.writers_per_subscription"/,
	$log_offset);
is(query($sub, 'SHOW weft.writers_per_subscription'),
	'4', 'an error in the configuration file is not adopted');
$sub->adjust_conf('postgresql.conf', 'weft.writers_per_subscription', undef);
$sub->reload;
insert_row();
goes_on('s', ['t'], 'the subscription continues');

####
#### num_writers goes with its subscription
####

query($sub, 'ALTER SUBSCRIPTION s RENAME TO renamed');
insert_row();
wait_for_apply($pub, $sub, 'renamed');
is(num_writers_of($sub, 'renamed'), '6', 'num_writers is kept by RENAME');

my $dump = $sub->backup_dir . '/dump.sql';
my $dumpall = $sub->backup_dir . '/dumpall.sql';
mkdir $sub->backup_dir;
$sub->command_ok([ 'pg_dump', '-f', $dump, $sub->connstr('postgres') ],
	'pg_dump');
$sub->command_ok([ 'pg_dumpall', '-f', $dumpall, '-d', $sub->connstr ],
	'pg_dumpall');
like(
	slurp_file($dumpall),
	qr/SECURITY LABEL FOR weft ON SUBSCRIPTION renamed IS 'num_writers=6'/,
	'num_writers is in the output of pg_dumpall');

query($sub, 'CREATE DATABASE restored');
query($pub,
	"SELECT pg_create_logical_replication_slot('restored', 'pgoutput')");
$sub->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump,
		$sub->connstr('restored')
	],
	'restore');
is( $sub->safe_psql(
		'restored',
		q{SELECT l.label FROM pg_shseclabel l JOIN pg_subscription s ON s.oid = l.objoid AND l.classoid = 'pg_subscription'::regclass JOIN pg_database d ON d.oid = s.subdbid WHERE provider = 'weft' AND datname = 'restored'}
	),
	'num_writers=6',
	'num_writers is restored');
$sub->safe_psql('restored', <<'EOC');
ALTER SUBSCRIPTION renamed SET (slot_name = 'restored');
ALTER SUBSCRIPTION renamed ENABLE;
ALTER SUBSCRIPTION renamed REFRESH PUBLICATION WITH (copy_data = false);
EOC
writers_become($sub, '12', 'the restored subscription has as many writers');
is(num_writers_of($sub, 'renamed', 'restored'),
	'6', 'the restored subscription says so');
insert_row();
$sub->safe_psql('restored',
	"SELECT weft.wait_for_subscription('renamed', '${PostgreSQL::Test::Utils::timeout_default}s')"
);
is($sub->safe_psql('restored', 'SELECT count(*) FROM t'),
	$rows, 'the restored subscription is applied');
$sub->safe_psql('restored', 'DROP SUBSCRIPTION renamed');
is(query($sub, 'SELECT count(*) FROM pg_shseclabel'),
	'1', 'num_writers is dropped with its subscription');
query($sub, 'DROP DATABASE restored');

####
#### wait_for_subscription
####

fails(
	$sub,
	q{SELECT weft.wait_for_subscription('nosuch', '1s')},
	'42704',
	[qr/subscription "nosuch" does not exist/],
	'wait_for_subscription of one that does not exist');

# Apply is blocked by a lock, first on a row that is to be changed, then on a table that
# is to be copied.
my $blocker = open_session($sub);
$blocker->query_safe('BEGIN; LOCK TABLE t');
insert_row();
fails(
	$sub,
	q{SELECT weft.wait_for_subscription('renamed', '1s')},
	'[0-9A-Z]{5}',
	[ qr/subscription "renamed"/, qr{LSN.*[0-9A-F]+/[0-9A-F]+}s ],
	'wait_for_subscription that takes too long shows the progress');
$blocker->query_safe('ROLLBACK');
goes_on('renamed', ['t'], 'it arrives once it can');

query_all([ $pub, $sub ], 'CREATE TABLE copied (a int PRIMARY KEY)');
query($pub, 'INSERT INTO copied SELECT generate_series(1, 100)');
$blocker->query_safe('BEGIN; LOCK TABLE copied IN SHARE MODE');
query($sub, 'ALTER SUBSCRIPTION renamed REFRESH PUBLICATION');
fails(
	$sub,
	q{SELECT weft.wait_for_subscription('renamed', '1s')},
	'[0-9A-Z]{5}',
	[ qr/subscription "renamed"/, qr/table/ ],
	'wait_for_subscription says that a table is not copied yet');
$blocker->query_safe('ROLLBACK');
$blocker->quit;
goes_on('renamed', [ 't', 'copied' ], 'it is copied once it can be');

query($sub, 'ALTER SUBSCRIPTION renamed DISABLE');
insert_row();
fails(
	$sub,
	q{SELECT weft.wait_for_subscription('renamed', '1s')},
	'[0-9A-Z]{5}',
	[qr/subscription "renamed"/],
	'wait_for_subscription of one that is disabled');
query($sub, 'ALTER SUBSCRIPTION renamed ENABLE');
wait_for_apply($pub, $sub, 'renamed');

####
#### Weft not preloaded
####

# The same subscription is applied by the server itself, and then by Weft again.
my $hint = qr/HINT:.*shared_preload_libraries/;
$sub->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$sub->restart;
insert_row();
$sub->wait_for_subscription_sync($pub, 's');
same_tables($pub, $sub, ['t'], 'without Weft the subscription continues');
is( query(
		$sub,
		q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'weft writer'}
	),
	'0',
	'there are no writers');
fails($sub, "LOAD 'weft'", '55000', [$hint], 'LOAD');
fails($sub, 'SELECT * FROM weft.stat_subscription',
	'55000', [$hint], 'a view of the extension');
fails($sub, q{SELECT weft.wait_for_subscription('renamed', '1s')},
	'55000', [$hint], 'a function of the extension');
query($sub, 'CREATE DATABASE without');
my ($rc, undef, $stderr) = $sub->psql('without', 'CREATE EXTENSION weft');
ok($rc != 0 && $stderr =~ $hint, 'CREATE EXTENSION');
diag($stderr) unless $stderr =~ $hint;
is( $sub->safe_psql(
		'without',
		'SELECT count(*) FROM pg_namespace WHERE nspname = $$weft$$'),
	'0',
	'nothing of it is created');
fails(
	$sub,
	'ALTER SUBSCRIPTION renamed SET (num_writers = 3)',
	'42601',
	[qr/unrecognized subscription parameter: "num_writers"/],
	'without Weft there is no num_writers');

$sub->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'weft'");
$sub->restart;
insert_row();
goes_on('renamed', ['t'], 'with Weft again the subscription continues');
writers_become($sub, '6', 'with its own number of writers');
query($sub, 'DROP DATABASE without');

####
#### Too few worker processes
####

# The launcher takes one, the apply worker another; the copy of a table needs one,
# too.
query($sub, 'ALTER SUBSCRIPTION renamed SET (num_writers = 8)');
foreach my $processes (6, 3, 2)
{
	$sub->adjust_conf('postgresql.conf', 'max_worker_processes', $processes);
	$log_offset = -s $sub->logfile;
	$sub->restart;
	insert_row() foreach 1 .. 5;
	goes_on('renamed', ['t'],
		"max_worker_processes = $processes: the subscription continues");
	like(
		slurp_file($sub->logfile, $log_offset),
		qr/(WARNING|LOG):  [^\n]*"renamed"[^\n]*\n(?:[^\n]*DETAIL:[^\n]*\n)?[^\n]*HINT:  [^\n]*max_worker_processes/,
		"max_worker_processes = $processes: the log says what to do");
	my $writers = scalar(my @pids = writer_pids($sub));
	cmp_ok(
		$writers, '<=',
		$processes - 2,
		"max_worker_processes = $processes: $writers writers");
	cmp_ok($writers, '>', 0,
		"max_worker_processes = $processes: some writers")
	  if $processes > 3;

	next if $processes == 2;
	query_all([ $pub, $sub ],
		"CREATE TABLE new_$processes (a int PRIMARY KEY)");
	query($pub, "INSERT INTO new_$processes SELECT generate_series(1, 100)");
	query($sub, 'ALTER SUBSCRIPTION renamed REFRESH PUBLICATION');
	goes_on('renamed', ["new_$processes"],
		"max_worker_processes = $processes: a new table is copied");
}
$sub->adjust_conf('postgresql.conf', 'max_worker_processes', '20');
$sub->restart;
insert_row();
wait_for_apply($pub, $sub, 'renamed');
writers_become($sub, '8', 'with enough of them there are all writers');
same_tables($pub, $sub, ['t'], 'and everything is applied');
query($sub, 'DROP SUBSCRIPTION renamed');
writers_become($sub, '0', 'the writers go with the subscription');

####
#### Passwords
####

# A correct one, one that is no longer correct, and one for a publisher that does not
# exist.  They appear in pg_subscription, and in the statement that creates the
# subscription; nowhere else.
my $password = 'sekrit123';
query($pub, <<EOC);
CREATE ROLE replicator LOGIN SUPERUSER REPLICATION PASSWORD '$password';
EOC
unlink $pub->data_dir . '/pg_hba.conf';
$pub->append_conf('pg_hba.conf', <<'EOC');
local all replicator scram-sha-256
host all replicator all scram-sha-256
local all all trust
local replication all trust
host all all all trust
EOC
$pub->reload;

my $secret_offset = -s $sub->logfile;
my @said;
query($sub, 'TRUNCATE t');
query($pub, 'CREATE PUBLICATION q FOR TABLE t');
query($sub,
	"CREATE SUBSCRIPTION secret CONNECTION '$connstr user=replicator password=$password' PUBLICATION q WITH (num_writers = 2)"
);
goes_on('secret', ['t'], 'a subscription with a password works');

sub all_that_shows
{
	return query($sub, <<'EOC');
SELECT s::text FROM weft.stat_subscription s;
SELECT w::text FROM weft.stat_writer w;
SELECT a::text FROM pg_stat_activity a WHERE pid <> pg_backend_pid();
SELECT l::text FROM pg_shseclabel l;
EOC
}

writers_become($sub, '2', 'it has its writers');
push @said, all_that_shows();
like($said[0], qr/secret/, 'the views show the subscription');
like($said[0], qr/weft writer/, 'and its writers');

query($pub, "ALTER ROLE replicator PASSWORD 'another'");
$log_offset = -s $sub->logfile;
query($pub,
	q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'replicator'}
);
$sub->wait_for_log(qr/password authentication failed for user "replicator"/,
	$log_offset);
insert_row();
push @said, all_that_shows(),
  fails($sub, q{SELECT weft.wait_for_subscription('secret', '1s')},
	'[0-9A-Z]{5}', [qr/secret/],
	'wait_for_subscription when the password is wrong');

query($sub,
	"ALTER SUBSCRIPTION secret CONNECTION 'host=/nonexistent port=1 dbname=postgres user=replicator password=$password'"
);
$log_offset = -s $sub->logfile;
$sub->wait_for_log(qr{could not connect.*/nonexistent}, $log_offset);
push @said, all_that_shows(),
  fails($sub, q{SELECT weft.wait_for_subscription('secret', '1s')},
	'[0-9A-Z]{5}', [qr/secret/],
	'wait_for_subscription when there is no publisher');

query($pub, "ALTER ROLE replicator PASSWORD '$password'");
query($sub,
	"ALTER SUBSCRIPTION secret CONNECTION '$connstr user=replicator password=$password'"
);
goes_on('secret', ['t'], 'with the right password it continues');

push @said, slurp_file($sub->logfile, $secret_offset);
is(scalar(grep { /\Q$password\E/ } @said),
	0, 'the password is in no view, error, or log');

unlike(
	slurp_file($sub->logfile),
	qr/PANIC|TRAP:|was terminated by signal|server process/,
	'no process has crashed');

$sub->stop;
$pub->stop;
done_testing();
