# The commit of a transaction fails in a deferred trigger, or the server crashes in one, after another deferred
# trigger has rolled back a subtransaction.  The subscription must not go on after the transaction: the abort of a
# subtransaction advances a replication origin whose position is set.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

# The server's own apply worker loses these transactions.
plan skip_all => 'this is about Weft alone' unless weft();

# The second trigger takes this lock, if it is told to.
my $lock = 42;

my $pub = new_publisher('publisher',
	conf =>
	  "logical_decoding_work_mem = 64kB\ntrack_commit_timestamp = on\n");
my $sub = new_subscriber('subscriber',
	conf => "restart_after_crash = on\ntrack_commit_timestamp = on\n");

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE many (id int PRIMARY KEY, t text)'
);
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');

# Triggers of one event fire in the order of their names.
query($sub, <<EOS);
CREATE TABLE rolled_back (id int);
CREATE TABLE switch (command text);
CREATE FUNCTION abort_part() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS '
BEGIN
	BEGIN
		INSERT INTO rolled_back VALUES (NEW.id);
		RAISE EXCEPTION ''rolled back'';
	EXCEPTION WHEN raise_exception THEN NULL;
	END;
	RETURN NULL;
END';
CREATE FUNCTION obey() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS '
DECLARE
	wanted text;
BEGIN
	FOR wanted IN SELECT command FROM switch LOOP
		IF wanted = ''fail'' THEN
			RAISE EXCEPTION ''the switch is on'';
		END IF;
		PERFORM pg_advisory_xact_lock($lock);
	END LOOP;
	RETURN NULL;
END';
CREATE CONSTRAINT TRIGGER a_abort_part AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION abort_part();
CREATE CONSTRAINT TRIGGER b_obey AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION obey();
ALTER TABLE t ENABLE ALWAYS TRIGGER a_abort_part;
ALTER TABLE t ENABLE ALWAYS TRIGGER b_obey;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');

sub position
{
	return query($sub,
		'SELECT remote_lsn FROM pg_replication_origin_status WHERE local_id > 0'
	);
}

# Nothing is lost, and nothing of the subtransactions is left.
sub compare
{
	my ($id, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, "SELECT count(*) FROM t WHERE id = $id"),
		1, "$what: the row has arrived");
	same_tables($pub, $sub, [qw(t many)], "$what: equal");
	is(query($sub, 'SELECT count(*) FROM rolled_back'),
		0, "$what: the subtransaction was rolled back");
	return;
}

my $next = 1;

# A transaction that ends with this statement.  With many rows, it is streamed.
sub transaction
{
	my ($rows, $end) = @_;
	my $id = $next++;

	query($pub,
		"BEGIN; INSERT INTO many SELECT 100000 * $id + i, repeat('x', 50) FROM generate_series(1, $rows) i;"
		  . " INSERT INTO t VALUES ($id, 1); $end");
	return $id;
}

my @cases = (
	[ 'a transaction', 1, 'COMMIT' ],
	[ 'a streamed transaction', 10_000, 'COMMIT' ]);

# The server applies other prepared transactions.  An assertion of the server fails if a deferred trigger
# rolls back a subtransaction during PREPARE TRANSACTION (RollbackAndReleaseCurrentSubTransaction of 18.6).
push @cases,
  [ 'a streamed prepared transaction', 10_000, "PREPARE TRANSACTION 'p'" ]
  if query($sub, 'SHOW debug_assertions') eq 'off';

foreach my $case (@cases)
{
	my ($what, $rows, $end) = @$case;
	my $prepared = $end =~ /PREPARE/;
	my $log = -s $sub->logfile;
	my $before = position();

	query($sub, "INSERT INTO switch VALUES ('fail')");
	my $id = transaction($rows, $end);
	$sub->wait_for_log(qr/ERROR:  the switch is on/, $log);
	is(position(), $before, "$what fails: the origin stays");
	query($sub, 'DELETE FROM switch');
	query($pub, "COMMIT PREPARED 'p'") if $prepared;
	compare($id, "$what fails");

	# The server crashes while the second trigger waits.  The abort record of the subtransaction is flushed
	# by a later commit.
	my $holder = open_session($sub);
	$holder->query_safe("SELECT pg_advisory_lock($lock)");
	query($sub, "INSERT INTO switch VALUES ('wait')");
	$id = transaction($rows, $end);
	poll($sub,
		"SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
	);
	flush_wal($sub);
	$sub->stop('immediate');
	$holder->{run}->finish;
	$sub->start;
	wait_until_up($sub);
	query($sub, 'DELETE FROM switch');
	query($pub, "COMMIT PREPARED 'p'") if $prepared;
	compare($id, "a crash in $what");
}

# Several transactions that share a commit: none of them is lost.
{
	my $log;

	disable_subscription($sub, 'sub');
	query($sub, "INSERT INTO switch VALUES ('fail')");
	query($pub, "INSERT INTO many VALUES (-$_)") foreach 1 .. 10;
	my $id = transaction(1, 'COMMIT');
	query($pub, "INSERT INTO many VALUES (-$_)") foreach 11 .. 20;
	$log = -s $sub->logfile;
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	$sub->wait_for_log(qr/ERROR:  the switch is on/, $log);
	query($sub, 'DELETE FROM switch');
	compare($id, 'a group of transactions fails');
}

# Rows have the publisher's commit times.
my $times = '(SELECT id, pg_xact_commit_timestamp(xmin) FROM t) x';
same_rows(rows($sub, $times), rows($pub, $times), 'commit times are equal');

done_testing();
