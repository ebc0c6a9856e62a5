# Prepared transactions, and large transactions that are sent while they are in
# progress, mixed with ordinary ones.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my @tables = qw(small large);
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE small (id int PRIMARY KEY, v int, code int UNIQUE);
CREATE TABLE large (id bigserial PRIMARY KEY, client int, t text);
CREATE INDEX ON large (client);
EOS
query($pub, <<EOS);
INSERT INTO small SELECT i, 0, i FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS

# Each client prepares under its own name, one transaction at a time.  Rows are locked
# in ascending order, so nothing deadlocks.
my $random = <<'EOS';
\set a random(1, 50)
\set b random(51, 100)
\set rows random(1, 300)
\set dice random(1, 4)
\set name random(1, 1000000000)
EOS
my $pay = <<'EOS';
UPDATE small SET v = v - :rows WHERE id = :a;
UPDATE small SET v = v + :rows WHERE id = :b;
EOS
my $insert =
  "INSERT INTO large (client, t) SELECT :client_id, repeat(i::text, 100) FROM generate_series(1, :rows) i;\n";

my $ordinary = "$random BEGIN;\n${pay}COMMIT;\n";
my $exchange = <<"EOS";
$random BEGIN;
SELECT pg_advisory_xact_lock(:a % 2);
UPDATE small SET code = -code WHERE id = :a;
UPDATE small SET code = NULL WHERE id = :b;
UPDATE small SET code = abs(code) WHERE id = :a;
COMMIT;
EOS
my $aborting_parts = <<"EOS";
$random BEGIN;
SAVEPOINT one;
$insert
SAVEPOINT two;
$insert
ROLLBACK TO two;
$pay
RELEASE one;
SAVEPOINT three;
UPDATE large SET t = 'updated' WHERE client = :client_id AND id % 10 = :dice;
SAVEPOINT four;
$insert
\\if :dice < 3
ROLLBACK TO three;
$insert
\\endif
COMMIT;
EOS
my $aborted = "$random BEGIN;\n$insert$pay$insert\nROLLBACK;\n";
my $deleting =
  "$random BEGIN;\nDELETE FROM large WHERE client = :client_id;\n${insert}COMMIT;\n";
my $prepared = <<"EOS";
$random BEGIN;
$pay
\\if :dice < 3
SAVEPOINT one;
$insert
ROLLBACK TO one;
$insert
\\endif
PREPARE TRANSACTION 'p_:client_id';
INSERT INTO large (client, t) VALUES (:client_id, 'between');
\\if :dice % 2 = 0
COMMIT PREPARED 'p_:client_id';
\\else
ROLLBACK PREPARED 'p_:client_id';
\\endif
EOS

my $aborted_with_parts =
  "$random BEGIN;\nSAVEPOINT one;\n${insert}ROLLBACK TO one;\n${insert}SAVEPOINT two;\n$insert$pay\nROLLBACK;\n";

my %without_prepare = (
	$ordinary => 10,
	$exchange => 2,
	$aborting_parts => 3,
	$aborted => 1,
	$aborted_with_parts => 1,
	$deleting => 2);

# If a transaction has aborted parts, an assertion of version 18 fails in the walsender
# (pgoutput_stream_abort of 18.6), whatever the subscriber.  Sending all changes at once
# avoids that code.
my $buffered = 'buffered';
$buffered = 'immediate'
  if $pub->pg_version >= 18 and query($pub, 'SHOW debug_assertions') eq 'on';
my %with_prepare = (%without_prepare, $prepared => 5);

foreach my $case (
	[ 'off', 'true', 'buffered' ],
	[ 'on', 'true', $buffered ],
	[ 'parallel', 'false', $buffered ],
	[ 'parallel', 'true', 'immediate' ])
{
	my ($streaming, $two_phase, $mode) = @$case;
	my $what = "streaming = $streaming, two_phase = $two_phase, $mode";
	my $log_start = -s $sub->logfile;

	set_conf(
		$pub,
		logical_decoding_work_mem => '64kB',
		debug_logical_replication_streaming => $mode);
	query($sub, 'TRUNCATE small, large');
	subscribe($pub, $sub, 'sub', 'pub',
		"streaming = $streaming, two_phase = $two_phase");
	wait_for_apply($pub, $sub, 'sub');
	if ($two_phase eq 'true')
	{
		poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription");
		wait_for_apply($pub, $sub, 'sub');
	}
	query_all(
		[ $pub, $sub ],
		"SELECT pg_create_logical_replication_slot('history', 'test_decoding')"
	);

	finish(
		start_pgbench(
			$pub,
			$two_phase eq 'true' ? \%with_prepare : \%without_prepare,
			'-c' => 8,
			'-t' => 50,
			'--random-seed=8'));
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what: equal");

	my $commits = decode_commits($pub, 'history');
	my $applied = decode_commits($sub, 'history');
	query_all([ $pub, $sub ], "SELECT pg_drop_replication_slot('history')");
	is(first_difference($commits, $applied),
		undef, "$what: the same transactions were committed");
	is(query($sub, 'SELECT count(*) FROM pg_prepared_xacts'),
		0, "$what: nothing is left prepared");

	# A table that is first seen within a transaction in progress, then used by other
	# transactions before and after that one ends, whichever way it ends.
	foreach my $end ('COMMIT', 'ROLLBACK', "PREPARE TRANSACTION 'fresh'")
	{
		next if $end =~ /PREPARE/ and $two_phase ne 'true';
		query_all(
			[ $pub, $sub ],
			'CREATE TABLE fresh (id serial PRIMARY KEY, t text); CREATE TABLE altered (id int PRIMARY KEY, v int, w int)'
		);
		query($pub, 'ALTER TABLE altered DROP COLUMN w');
		query($sub,
			'ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = false)'
		);
		wait_for_apply($pub, $sub, 'sub');

		my $session = open_session($pub);
		my $many =
		  "INSERT INTO fresh (t) SELECT repeat('f', 100) FROM generate_series(1, 2000)";
		$session->query_safe(
			"BEGIN; $many; ALTER TABLE altered ADD COLUMN w int; INSERT INTO altered SELECT i, i, i FROM generate_series(1, 2000) i"
		);
		query($pub, "INSERT INTO fresh (t) VALUES ('while in progress')");
		$session->query_safe($many);
		query($pub, "UPDATE fresh SET t = 'again' WHERE t ~ '^while'");
		wait_for_apply($pub, $sub, 'sub');
		is(query($sub, 'SELECT t FROM fresh'),
			'again', "$what: not blocked by a transaction in progress");
		$session->query_safe($end);
		query($pub, "INSERT INTO fresh (t) VALUES ('after the end')");

		if ($end =~ /PREPARE/)
		{
			poll($sub, 'SELECT count(*) = 1 FROM pg_prepared_xacts');

			# it must outlive the processes that have prepared it
			query($sub,
				"SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE subname = 'sub'"
			);
			query($pub, "COMMIT PREPARED 'fresh'");
		}
		$session->query_safe('INSERT INTO altered (id, v) VALUES (5000, 1)');
		$session->quit;
		wait_for_apply($pub, $sub, 'sub');
		same_tables(
			$pub, $sub,
			[ 'fresh', '(SELECT id, v FROM altered)' ],
			"$what: a table first seen in a transaction in progress, $end");
		query_all([ $pub, $sub ], 'DROP TABLE fresh, altered');
	}

	is(errors_logged($sub, $log_start), '', "$what: no errors");
	query($sub, 'DROP SUBSCRIPTION sub');
	poll($sub,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'weft stream writer', 'logical replication parallel worker')"
	);
	ok( !glob($sub->data_dir . '/base/pgsql_tmp/*'),
		"$what: no temporary files are left");
}

$pub->stop;
$sub->stop;
done_testing();
