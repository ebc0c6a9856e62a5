# Transactions that are applied while they are in progress on the publisher.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my @tables = qw(large other fired);
my $pub =
  new_publisher('publisher', conf => 'logical_decoding_work_mem = 64kB');
my $sub = new_subscriber('subscriber', conf => "restart_after_crash = on\n");

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE large (id int PRIMARY KEY, v int, t text);
CREATE TABLE other (id int PRIMARY KEY, v int);
CREATE TABLE fired (id int PRIMARY KEY, v int);
EOS
query($pub, <<EOS);
INSERT INTO large SELECT -i, 0, 'old' FROM generate_series(1, 1000) i;
INSERT INTO other SELECT -i, 0 FROM generate_series(1, 10) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
wait_for_apply($pub, $sub, 'sub');

# Sessions on the publisher, each with a transaction in progress.
my @sessions = map { open_session($pub) } 1 .. 4;
my $next_id = 1;

# A transaction continues with this many new rows, which no other transaction has.
sub insert_rows
{
	my ($session, $count) = @_;
	my $last = $next_id + $count - 1;

	$session->query_safe(
		"INSERT INTO large SELECT i, i, repeat('x', 50) FROM generate_series($next_id, $last) i"
	);
	$next_id = $last + 1;
	return;
}

sub streams
{
	my ($condition) = @_;
	return "SELECT count(*) FROM weft.stat_stream WHERE $condition";
}

my $applied = "state = 'applying' AND applied_changes > 0";

# The part of the transaction that has been streamed is applied.  It is most of the
# transaction: the publisher may keep some of it back.
my $all_applied =
  "$applied AND applied_changes = received_changes AND received_changes > 3000";

# No streamed transaction has left anything behind.
sub nothing_left
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	poll($sub, streams('true'), 0);
	poll(
		$sub,
		"SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'weft stream writer' AND l.locktype = 'relation'",
		0);
	my @files = glob($sub->data_dir . '/base/pgsql_tmp/*.fileset/*');
	is("@files", '', "$what: no file is left");
	return;
}

sub commit_and_compare
{
	my ($what, @committing) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$_->query_safe('COMMIT') foreach @committing;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what: equal");
	nothing_left($what);
	return;
}

sub native_transactions
{
	return query($sub,
		"SELECT native_transactions FROM weft.stat_subscription WHERE subname = 'sub'"
	);
}

# Applied while it is in progress, beside others, and visible at its end.
{
	my ($session) = @sessions;

	$session->query_safe('BEGIN; UPDATE large SET v = 1 WHERE id < 0');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	is(query($sub, 'SELECT count(*) FROM large WHERE id > 0 OR v = 1'),
		0, 'nothing is visible while it is in progress');
	query($pub, 'UPDATE other SET v = v + 1');
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, 'SELECT sum(v) FROM other'),
		10, 'an ordinary transaction overtakes it');
	is( query(
			$sub,
			"SELECT state, writer >= 64, spool_bytes > 100000 FROM weft.stat_stream WHERE subname = 'sub'"
		),
		'applying|t|t',
		'the view shows it');
	$session->query_safe('DELETE FROM large WHERE id BETWEEN -500 AND -1');
	commit_and_compare('one', $session);

	$session->query_safe('BEGIN');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	$session->query_safe('ROLLBACK');
	nothing_left('rolled back');
	commit_and_compare('rolled back');
}

# Aborted parts, nested ones, and more of them than a writer has savepoints for.
{
	my ($session) = @sessions;
	my ($start, $end);

	$session->query_safe('BEGIN');
	insert_rows($session, 2000);
	$session->query_safe('SAVEPOINT half');
	insert_rows($session, 2000);
	$session->query_safe('UPDATE large SET v = -1 WHERE id > 0');
	poll($sub, streams($all_applied), 1);
	$session->query_safe('ROLLBACK TO half');
	insert_rows($session, 2000);
	poll($sub, streams("$applied AND applied_changes = received_changes"), 1);
	commit_and_compare('half is aborted', $session);

	$session->query_safe('BEGIN');
	foreach my $level (1 .. 100)
	{
		$session->query_safe("SAVEPOINT s$level");
		insert_rows($session, 20);
		$session->query_safe("UPDATE large SET v = $level WHERE id = -501");
	}
	$session->query_safe('ROLLBACK TO s71');
	insert_rows($session, 500);
	$session->query_safe('RELEASE s41; ROLLBACK TO s31');
	insert_rows($session, 500);
	poll($sub, streams("$applied AND applied_changes = received_changes"), 1);
	commit_and_compare('nested 100 deep', $session);

	($start, $end) = ($next_id, $next_id + 2999);
	$next_id = $end + 1;
	query($pub, <<"EOS");
DO \$\$
BEGIN
	FOR i IN $start .. $end LOOP
		BEGIN
			INSERT INTO large VALUES (i, i, repeat('y', 100));
			IF i % 3 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END
\$\$
EOS
	commit_and_compare('thousands of subtransactions');
}

# More transactions than stream writers, with all stream writers, one and none.
foreach my $writers (2, 1, 0)
{
	set_conf($sub, 'weft.max_stream_writers' => $writers);
	foreach my $session (@sessions)
	{
		$session->query_safe('BEGIN');
		insert_rows($session, 5000);
	}
	poll($sub, streams('received_changes > 3000'), 4);
	poll($sub, streams($all_applied), $writers);
	insert_rows($_, 100) foreach @sessions;
	$sessions[3]->query_safe('ROLLBACK');
	commit_and_compare("$writers writers", @sessions[ 0 .. 2 ]);
}
set_conf($sub, 'weft.max_stream_writers' => 2);
is(native_transactions(), 0, 'all of them were taken over');

# Truncated, and with a trigger that fires: applied alone, in their turn.
{
	my ($session) = @sessions;

	query($sub, <<'EOS');
CREATE TABLE seen (id int, large_rows bigint);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
	INSERT INTO public.seen SELECT NEW.id, count(*) FROM public.large WHERE id > 0;
	RETURN NEW;
END
$$;
CREATE TRIGGER see AFTER INSERT ON fired FOR EACH ROW EXECUTE FUNCTION see();
ALTER TABLE fired ENABLE REPLICA TRIGGER see;
EOS
	$session->query_safe('BEGIN; INSERT INTO fired VALUES (1, 1)');
	insert_rows($session, 5000);
	$session->query_safe('INSERT INTO fired VALUES (2, 2)');
	query($pub, 'DELETE FROM large WHERE id = 1');
	commit_and_compare('a trigger', $session);
	is( query($sub, 'SELECT id, large_rows FROM seen ORDER BY id'),
		query(
			$pub,
			"SELECT 1, count(*) - 5000 FROM large WHERE id > 0 UNION ALL SELECT 2, count(*) FROM large WHERE id > 0 ORDER BY 1"
		),
		'it fires once, in its turn');

	$session->query_safe('BEGIN; TRUNCATE large');
	insert_rows($session, 5000);
	query($pub, 'UPDATE other SET v = v + 1');
	commit_and_compare('truncated', $session);
}

# Local users block apply: one has locked a row, one waits for the table.
{
	my ($session) = @sessions;
	my $local = open_session($sub);
	my $log_start = -s $sub->logfile;

	$local->query_safe('BEGIN; SELECT FROM other WHERE id = -1 FOR UPDATE');
	$session->query_safe('BEGIN');
	insert_rows($session, 2000);
	$session->query_safe('UPDATE other SET v = 0 WHERE id = -1');
	insert_rows($session, 3000);
	poll($sub, streams("state = 'spooled' AND received_changes > 3000"), 1);
	$local->query_safe('COMMIT');
	commit_and_compare('a row is locked', $session);

	$session->query_safe('BEGIN');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	$local->query_safe(
		"SET lock_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'");
	$local->query_until(qr/start/,
		"\\echo start\nALTER TABLE large ADD COLUMN here int DEFAULT 0;\n");
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock')"
	);
	query($pub,
		'UPDATE large SET v = 5 WHERE id = (SELECT max(id) FROM large)');
	wait_for_apply($pub, $sub, 'sub');
	$local->quit;
	is( query(
			$sub,
			"SELECT count(*) FROM information_schema.columns WHERE table_name = 'large' AND column_name = 'here'"
		),
		1,
		'a session that waits for the table gets it');
	ok( slurp_file($sub->logfile, $log_start) =~
		  /ERROR:  deadlock detected.*Streamed remote transaction/s,
		'the log gives the reason');
	is(errors_logged($sub, $log_start), '', 'but not as an error');
	query($sub, 'ALTER TABLE large DROP COLUMN here');
	commit_and_compare('the table is wanted', $session);
}

# The writer is killed, then the server, in mid-transaction; the subscription is disabled.
{
	my ($session) = @sessions;

	$session->query_safe('BEGIN');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	my $pid = query($sub,
		'SELECT pid FROM weft.stat_writer JOIN weft.stat_stream USING (subid, writer)'
	);
	query($sub, "SELECT pg_terminate_backend($pid)");
	poll($sub, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");

	# Earlier changes may be before the position that is confirmed already: then the
	# publisher streams the transaction only when it has more changes.
	insert_rows($session, 1000);
	poll($sub, streams($all_applied), 1);
	commit_and_compare('its writer is terminated', $session);

	$session->query_safe('BEGIN');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	$pid = query($sub,
		'SELECT pid FROM weft.stat_writer JOIN weft.stat_stream USING (subid, writer)'
	);
	kill 'KILL', $pid;
	poll($sub,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid AND backend_type = 'weft stream writer'"
	);
	insert_rows($session, 1000);
	poll($sub, streams($all_applied), 1);
	$session->query_safe('SAVEPOINT a');
	insert_rows($session, 1000);
	$session->query_safe('ROLLBACK TO a');
	commit_and_compare('its writer is killed', $session);

	$session->query_safe('BEGIN');
	insert_rows($session, 5000);
	poll($sub, streams($all_applied), 1);
	disable_subscription($sub, 'sub');
	nothing_left('disabled');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	commit_and_compare('disabled and enabled', $session);
}

$_->quit foreach @sessions;
done_testing();
