# The worker that executes schema changes which cannot run in a transaction block: it is killed or
# terminated, it has the rights of a role, or there is none.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConcurrentDdlTest;
use InjectionTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $with_injection = ($ENV{enable_injection_points} // '') eq 'yes';
my ($pub, $sub, $other) = start_servers();
my ($ret, $out, $err);

# --- crashes ---

# In the middle of a build.
my $session = hold_table($sub, 't');
query($pub, 'CREATE INDEX CONCURRENTLY crashed ON t (v, w)');
waiting_worker($sub);
$sub->stop('immediate');
eval { $session->quit };
$sub->start;
all_the_same('a crash in the middle of a build');

# The worker is told to end.
$session = hold_table($sub, 't');
query($pub, 'CREATE INDEX CONCURRENTLY terminated ON t (v, w)');
my $pid = waiting_worker($sub);
query($sub, "SELECT pg_terminate_backend($pid)");
$pid = waiting_worker($sub, $pid);
is( query(
		$sub,
		q{SELECT attempts FROM weft.ddl_concurrent WHERE state = 'started'}),
	1,
	'a worker that was told to end has not failed');
query($sub, "SELECT pg_cancel_backend($pid)");
$session->query_safe('COMMIT');
all_the_same('a worker that was terminated, and one that was cancelled');

# The leader ends, and starts again, while the worker is at work.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub, 'CREATE INDEX CONCURRENTLY outlived ON t (v, w)');
$pid = waiting_worker($sub);
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
query($pub, 'INSERT INTO t VALUES (6000, 1)');
wait_for_apply($pub, $sub, 'sub');
is(waiting_worker($sub), $pid, 'the worker outlives the leader');
$session->query_safe('COMMIT');
all_the_same('... and nothing is done twice');

# In the detach of a partition.
$session->query_safe('BEGIN; SELECT count(*) FROM part');
query($pub, 'ALTER TABLE part DETACH PARTITION part_1 CONCURRENTLY');
waiting_worker($sub);
$sub->stop('immediate');
eval { $session->quit };
$sub->start;
all_the_same('a crash in the middle of a DETACH');

SKIP:
{
	skip 'the server was built without injection points', 8
	  unless $with_injection;

	# The build is complete, but not committed.
	attach_point($sub, 'weft-ddl-worker-done');
	query($pub, 'CREATE INDEX CONCURRENTLY complete ON t (id, v, w)');
	my ($held) = held_at($sub, 'weft-ddl-worker-done');
	my $log = -s $sub->logfile;
	kill_process($held);
	$sub->wait_for_log(qr/database system is ready to accept connections/,
		$log);
	poll($sub,
		'SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL'
	);
	all_the_same('a crash when the build is complete');

	# Nothing has been done.
	attach_point($sub, 'weft-ddl-worker-begin');
	query($pub, 'CREATE INDEX CONCURRENTLY not_begun ON t (id, v, w)');
	($held) = held_at($sub, 'weft-ddl-worker-begin');
	$log = -s $sub->logfile;
	kill_process($held);
	$sub->wait_for_log(qr/database system is ready to accept connections/,
		$log);
	poll($sub,
		'SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL'
	);
	all_the_same('a crash before the build');
}

# --- rights ---

# Settings of the role are meant for its sessions.
query($sub, "ALTER ROLE alice SET $_ = '1ms'")
  foreach 'lock_timeout', 'statement_timeout', 'transaction_timeout',
  'idle_in_transaction_session_timeout';
query($sub, "ALTER ROLE alice SET $_")
  foreach 'default_transaction_read_only = on',
  q{default_transaction_isolation = 'serializable'},
  q{search_path = 'nowhere'};
query($sub, q{ALTER DATABASE postgres SET lock_timeout = '1ms'});
query($pub, <<'EOS');
SET ROLE alice;
CREATE TABLE timed (id int PRIMARY KEY);
EOS
wait_for_apply($pub, $sub, 'sub');
$session = open_session($sub);
$session->query_safe('BEGIN; INSERT INTO timed VALUES (1)');
query($pub,
	'SET ROLE alice; CREATE INDEX CONCURRENTLY timed_id ON timed (id)');
waiting_worker($sub);
$session->query_safe('ROLLBACK');
$session->quit;
all_the_same('settings of the role');
query($sub, 'ALTER ROLE alice RESET ALL; ALTER DATABASE postgres RESET ALL');

# The table gets another owner once it is released, and before the schema change is published: at last, the
# build waits for older snapshots.
query_all([ $pub, $sub, $other ], 'GRANT CREATE ON SCHEMA public TO bob');
my $blocker = open_session($pub);
$blocker->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $alice = open_session($pub);
$alice->query_until(qr/begun/,
	"SET ROLE alice;\n\\echo begun\nCREATE INDEX CONCURRENTLY owned ON timed (id, id);\n"
);
poll($pub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^CREATE INDEX CONCURRENTLY owned' AND wait_event_type = 'Lock'}
);
my $giving = open_session($pub);
$giving->query_until(qr/begun/,
	"\\echo begun\nALTER TABLE timed OWNER TO bob;\n");
poll($pub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^ALTER TABLE timed' AND wait_event_type = 'Lock'}
);
$blocker->query_safe('ROLLBACK');
$_->query_safe('SELECT 1') foreach $alice, $giving;
$_->quit foreach $blocker, $alice, $giving;
all_the_same('another owner');

# The worker's session belongs to the role of the statement.  The function would fail on the
# publisher if it were not called by a superuser's session there.
query_all([ $pub, $sub, $other ], <<'EOS');
CREATE FUNCTION show(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$
BEGIN
	IF $1 = 1 THEN
		BEGIN
			RESET SESSION AUTHORIZATION;
			RAISE LOG 'session user of the build: %', session_user;
		EXCEPTION WHEN OTHERS THEN
			RAISE LOG 'session user of the build: %, %', session_user, SQLERRM;
		END;
	END IF;
	RETURN $1;
END $f$;
EOS
query($pub, <<'EOS');
SET ROLE alice;
CREATE TABLE hers (id int PRIMARY KEY);
INSERT INTO hers VALUES (1), (2);
EOS
my $log = -s $sub->logfile;
query($pub,
	'SET ROLE alice; CREATE INDEX CONCURRENTLY hers_show ON hers (show(id))');
all_the_same('as another role');
like(
	slurp_file($sub->logfile, $log),
	qr/session user of the build: alice/,
	'the worker is a session of the role');
unlike(
	slurp_file($sub->logfile, $log),
	qr/session user of the build: (?!alice)/,
	'... and of nobody else');

query($sub, 'CREATE ROLE writer IN ROLE pg_write_all_data, pg_read_all_data');
foreach my $sql (
	'INSERT INTO weft.ddl_concurrent VALUES (1)',
	'TRUNCATE weft.ddl_concurrent',
	'DELETE FROM weft.ddl_concurrent')
{
	($ret, $out, $err) =
	  $sub->psql('postgres', "SET session_replication_role = replica; $sql");
	like($err, qr/cannot be changed|cannot delete/, "refused: $sql");
}

# --- no background worker is available ---

# The launcher and the leader have all of them.
$other->append_conf('postgresql.conf', 'max_worker_processes = 2');
$log = -s $other->logfile;
$other->restart;
query($pub, 'CREATE INDEX CONCURRENTLY no_worker ON t (v, v, id)');
query($pub, 'INSERT INTO t VALUES (7000, 1)');
$other->wait_for_log(
	qr/no background worker is available for schema change \d+ of subscription "other"/,
	$log);
wait_for_apply($pub, $other, 'other');
is(query($other, 'SELECT count(*) FROM t WHERE id = 7000'),
	1, 'rows do not wait for a background worker');
like(states($other), qr{waiting\|0$}, '... and the schema change does');
$other->append_conf('postgresql.conf', 'max_worker_processes = 30');
$other->restart;
all_the_same('a background worker is available again');

stop_servers();
done_testing();
