# The last error of a subscription, as weft.stat_subscription shows it, and the name under which
# pg_stat_activity shows the processes of a subscription.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub =
  new_publisher('publisher', conf => 'max_prepared_transactions = 10');
my $sub = new_subscriber('subscriber',
	conf => "log_error_verbosity = default\nlc_messages = C\n");

# 18 reports a conflict.
my $collision =
  major() < 18
  ? 'duplicate key value violates unique constraint "t_pkey"'
  : 'conflict detected on relation "public.t": conflict=insert_exists';

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

sub last_error
{
	my ($columns, $role) = @_;
	return query($sub,
		($role ? "SET ROLE $role; " : '')
		  . "SELECT $columns FROM weft.stat_subscription WHERE subname = 'sub'"
	);
}

# Makes row "id" collide; returns once apply has failed.
sub collide
{
	my ($id, $statement) = @_;
	my $before = query($sub, 'SELECT clock_timestamp()');

	query($sub, "INSERT INTO t VALUES ($id, 0)");
	query($pub, $statement);
	poll($sub,
		"SELECT last_error_time > '$before' FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	return;
}

# Skips what has failed, by the LSN that the view shows.
# The last error may be one of the publisher's, which has no LSN, until the worker has tried once more.
sub skip_failed
{
	my $lsn = poll_for($sub,
		"SELECT last_error_lsn FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
	wait_for_apply($pub, $sub, 'sub');
	return;
}

sub skip_and_compare
{
	my ($id, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	skip_failed();
	is(query($sub, "SELECT v FROM t WHERE id = $id"),
		0, "$what: what has failed is skipped");
	return;
}

is(last_error('last_error, last_error_time, last_error_lsn'),
	'||', 'no error yet');
poll(
	$sub,
	"SELECT backend_type, count(*) FROM pg_stat_activity WHERE application_name = 'sub' GROUP BY 1 ORDER BY 1",
	"logical replication apply worker|1\nweft writer|4");
pass('leader and writers have the name of the subscription');

# --- applied by a writer ---

my $leader = leader_pid($sub, 'sub');
collide(1, 'INSERT INTO t VALUES (1, 1)');
# The slot may still be in use when the next leader starts; that error has no LSN.
poll_figure($sub, 'sub', "last_error = '$collision'");
pass('the message');
my $lsn = poll_for($sub,
	"SELECT last_error_lsn FROM weft.stat_subscription WHERE subname = 'sub' AND leader_pid <> $leader"
);
pass('it outlives the apply worker');
ok( slurp_file($sub->logfile) =~ /CONTEXT: .*finished at (\S+)/ && $1 eq $lsn,
	'the LSN is that of the log');

# Values of rows are not for everybody.
query($sub,
	'CREATE ROLE other; CREATE ROLE monitor IN ROLE pg_read_all_stats');
is(last_error('last_error, last_error_time, last_error_lsn', 'other'),
	'||', 'other roles do not see it');
is(last_error('last_error IS NOT NULL', 'monitor'),
	't', 'members of pg_read_all_stats do');
skip_and_compare(1, 'writer');
isnt(last_error('last_error'), '', 'it stays after that');

# --- applied by the server's own code ---

query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
collide(2, 'INSERT INTO t VALUES (2, 2)');
skip_and_compare(2, 'native');

query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	"SELECT leader_pid IS NULL FROM weft.stat_subscription WHERE subname = 'sub'"
);
query($sub,
	'ALTER SUBSCRIPTION sub SET (disable_on_error = on, num_writers = 4)');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
collide(3, 'INSERT INTO t VALUES (3, 3)');
poll($sub, "SELECT NOT subenabled FROM pg_subscription");
is(last_error('last_error'),
	$collision, 'of a subscription that has been disabled');
query($sub,
	'ALTER SUBSCRIPTION sub SET (disable_on_error = off); ALTER SUBSCRIPTION sub ENABLE'
);
skip_and_compare(3, 'disabled');

# --- text that is not valid, which the publisher has stored while its database had no encoding ---

query_all([ $pub, $sub ], 'CREATE TABLE texts (id int PRIMARY KEY, v text)');
query($pub, 'ALTER PUBLICATION pub ADD TABLE texts');
query($sub,
	'ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = false)');
wait_for_apply($pub, $sub, 'sub');
my $encoding = query($pub,
	'SELECT encoding FROM pg_database WHERE datname = current_database()');
my $number = 0;
foreach my $case (
	[ 4, 'off' ],
	[ 0, 'off' ],
	[ 4, 'on' ],
	[ 0, 'on' ],
	[ 0, 'parallel' ])
{
	my ($writers, $streaming) = @$case;
	my $what =
	  "$writers writers, streaming $streaming: text that is not valid";
	my $before = query($sub, 'SELECT clock_timestamp()');

	$number++;
	set_conf($pub,
		debug_logical_replication_streaming => $streaming eq 'off'
		? 'buffered'
		: 'immediate');
	query($sub,
		"ALTER SUBSCRIPTION sub SET (num_writers = $writers, streaming = $streaming)"
	);
	query($pub, "INSERT INTO texts VALUES (10 + $number, 'before')");
	query($pub, 'UPDATE pg_database SET encoding = 0');
	query($pub,
		"INSERT INTO texts VALUES (20 + $number, 'caf'), (30 + $number, 'caf' || chr(195)), (40 + $number, 'caf')"
	);
	query($pub, "UPDATE pg_database SET encoding = $encoding");
	query($pub, "INSERT INTO texts VALUES (50 + $number, 'behind')");
	poll($sub,
		"SELECT last_error_time > '$before' AND last_error ~ '^invalid logical replication message' FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	is( query($sub, "SELECT id FROM texts WHERE id % 10 = $number"),
		10 + $number,
		"$what stops the subscription");
	skip_failed();
	is( query(
			$sub,
			"SELECT id - $number, v FROM texts WHERE id % 10 = $number ORDER BY 1"
		),
		"10|before\n50|behind",
		"$what is skipped");
}
set_conf($pub, debug_logical_replication_streaming => 'buffered');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 4, streaming = off)');

# --- a password ---

query($pub, <<'EOS');
CREATE ROLE sender REPLICATION LOGIN PASSWORD 'topsecret';
GRANT pg_read_all_data TO sender;
EOS
my $hba = slurp_file($pub->data_dir . '/pg_hba.conf');
unlink $pub->data_dir . '/pg_hba.conf';
$pub->append_conf('pg_hba.conf', "local all sender scram-sha-256\n$hba");
$pub->reload;
my $before = query($sub, 'SELECT clock_timestamp()');
query($sub,
		"ALTER SUBSCRIPTION sub CONNECTION '"
	  . $pub->connstr
	  . " dbname=postgres user=sender password=wrongsecret'");
poll($sub,
	"SELECT last_error_time > '$before' FROM weft.stat_subscription WHERE subname = 'sub'"
);
like(
	last_error('last_error'),
	qr/could not connect to the publisher.*password authentication failed/,
	'a wrong password');
unlike(query($sub, 'SELECT s::text FROM weft.stat_subscription s'),
	qr/secret/, 'it is not shown');
is(last_error('last_error_lsn'), '', 'no LSN');
query($sub,
		"ALTER SUBSCRIPTION sub CONNECTION '"
	  . $pub->connstr
	  . " dbname=postgres user=sender password=topsecret'");
wait_for_apply($pub, $sub, 'sub');

# Its own connection, with which the leader asks during a backlog, uses the password, too.
my $session = open_session($sub);
$session->query_safe('BEGIN; LOCK TABLE t IN SHARE MODE');
query($pub, 'INSERT INTO t VALUES (10, 10)');
poll(
	$pub,
	"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weft lag of sub' AND usename = 'sender' AND state = 'idle'",
	1);
pass('the publisher is asked with the password');
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($pub, $sub, 'sub');

done_testing();
