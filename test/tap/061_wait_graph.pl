# Cycles of waits that the server's deadlock detector cannot see, because one of the
# waits is not for a lock: a writer waits for its turn, a stream writer for the leader,
# or the leader for a sync worker.  The head of src/apply/turn.c lists all waits; this
# test makes every cycle of two or three that contains a stream writer or the leader.
# 005_deadlock.pl has those of writers and users.  One cycle is omitted: while there is
# a stream writer, the leader waits for a sync worker only for the moment in which the
# sync worker reports that it has finished.
#
# Whoever is in the way must give way: each cycle ends without help.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @tables = qw(large other later);
my $pub = new_publisher('publisher',
	conf => "logical_decoding_work_mem = 64kB\nmax_connections = 120\n");
my $sub = new_subscriber('subscriber', conf => "deadlock_timeout = 100ms\n");

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE large (id serial PRIMARY KEY, t text);
CREATE TABLE later (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY, v int);
EOS
query($pub, <<EOS);
CREATE EXTENSION dblink;
CREATE PUBLICATION pub FOR TABLE large, other, later;
EOS

# On the subscriber, rows that exist only for a while may block each other, and a
# negative id, once applied, waits for an advisory lock.
query($sub, <<'EOS');
CREATE UNIQUE INDEX ON other (v);
CREATE FUNCTION passes(id int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(-id);
	RETURN true;
END $$;
ALTER TABLE other ADD CHECK (id >= 0 OR passes(id));
ALTER TABLE later ADD CHECK (id = 0 OR passes(-50));
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = on');
wait_for_apply($pub, $sub, 'sub');

my $log_start = -s $sub->logfile;
my ($stream, $user);

# A case with a streamed transaction and a user.  If it fails, it is ended by force, so
# that the next one can be tried.
sub scenario
{
	my ($what, $code) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	note($what);
	$stream = open_session($pub);
	$user = open_session($sub);
	$user->query_safe(
		"SET lock_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'; SET idle_in_transaction_session_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'"
	);
	my $done = eval { $code->(); 1 };
	diag($@) unless $done;

	if (!$done)
	{
		fail($what);
		$_->safe_psql('postgres',
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'logical replication apply worker') AND pid <> pg_backend_pid()"
		) foreach ($pub, $sub);
		return;
	}
	$_->quit foreach $stream, $user;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what: equal");
	return;
}

sub streams
{
	my ($condition) = @_;
	return "SELECT count(*) FROM weft.stat_get_stream() WHERE $condition";
}

my $applied =
  "state = 'applying' AND applied_changes = received_changes AND received_changes > 1000";

# The transaction of $stream begins, and a stream writer has applied the first part.  It
# holds locks on both tables, and a value of the unique index.
sub begin_stream
{
	my ($sql) = @_;

	$stream->query_safe('BEGIN; '
		  . ($sql // 'INSERT INTO other VALUES (100, 7)')
		  . "; INSERT INTO large (t) SELECT repeat('x', 50) FROM generate_series(1, 3000)"
	);
	poll($sub, streams($applied), 1);
	return;
}

# The user waits for the stream writer, in the background, and continues afterwards.
sub user_waits
{
	my (@sql) = @_;
	my $pid = $user->query_safe('SELECT pg_backend_pid()');

	$user->query_until(
		qr/start/, join '',
		"\\echo start\n",
		map { "$_;\n" } @sql);
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity w WHERE backend_type = 'weft stream writer' AND w.pid = ANY (pg_blocking_pids($pid)))"
	);
	return;
}

# Changes that the leader applies itself.
my %native = (
	'a prepared transaction' => sub {
		query($pub,
			"BEGIN; INSERT INTO other VALUES ($_[0], $_[1]); PREPARE TRANSACTION 'p'"
		);
		poll($sub, 'SELECT count(*) FROM pg_prepared_xacts', 1);
		query($pub, "COMMIT PREPARED 'p'");
	},
	'a transaction while one is to be skipped' => sub {
		query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = 'FFFFFF/0')");
		query($pub, "INSERT INTO other VALUES ($_[0], $_[1])");
		wait_for_apply($pub, $sub, 'sub');
		query($sub, 'ALTER SUBSCRIPTION sub SKIP (lsn = NONE)');
	},
	'an ordinary transaction' => sub {
		query($pub, "INSERT INTO other VALUES ($_[0], $_[1])");
		wait_for_apply($pub, $sub, 'sub');
	});
my $id = 1;

sub native_cases
{
	my ($what) = @_;

	# leader -> user -> stream writer -> leader, and the same with the oldest writer
	scenario(
		"$what, a user, a stream writer",
		sub {
			begin_stream('SELECT 1');
			user_waits(
				'BEGIN; LOCK TABLE other IN SHARE ROW EXCLUSIVE MODE',
				'LOCK TABLE large IN SHARE MODE',
				'COMMIT');
			$id++;
			$native{$what}->($id, 1000 + $id);
			$user->query_safe('SELECT 1');
			$stream->query_safe('COMMIT');
		});

	# leader -> stream writer -> leader
	scenario(
		"$what, a stream writer",
		sub {
			begin_stream();
			$id++;
			$native{$what}->($id, 7);
			query($pub, 'UPDATE other SET v = -id WHERE v = 7');
			$stream->query_safe('ROLLBACK');
		});
	return;
}

native_cases('a transaction while one is to be skipped');
native_cases('an ordinary transaction');

# More than 64 streamed transactions: none is left to the server, whose parallel
# workers would need the leader.
sub native_transactions
{
	return query($sub,
		'SELECT native_transactions FROM weft.stat_subscription');
}

scenario(
	'many streams',
	sub {
		my $native = native_transactions();
		my $each = sub {
			my ($from, $to, $sql) = @_;
			$stream->query_safe(
				"SELECT dblink_exec('c' || i, format(\$\$$sql\$\$, i)) FROM generate_series($from, $to) i"
			);
		};

		set_conf($pub, debug_logical_replication_streaming => 'immediate');
		$stream->query_safe("SELECT dblink_connect('c' || i, '"
			  . $pub->connstr
			  . " dbname=postgres') FROM generate_series(1, 75) i");
		$each->(1, 75, "BEGIN; INSERT INTO large (t) VALUES ('many %s')");
		query($pub, 'INSERT INTO other VALUES (500, 500)');
		wait_for_apply($pub, $sub, 'sub');
		poll($sub, streams('true'), 56);
		$each->(1, 40, 'COMMIT');
		$each->(41, 75, "INSERT INTO large (t) VALUES ('again %s')");
		query($pub, 'INSERT INTO other VALUES (501, 501)');
		wait_for_apply($pub, $sub, 'sub');
		poll($sub, streams('received_changes = 2'), 35);

		# those without a place in shared memory end first
		$each->(1, 40, "BEGIN; INSERT INTO large (t) VALUES ('more %s')");
		$each->(35, 40, 'COMMIT');
		$each->(30, 34, 'ROLLBACK');
		$each->(1, 29, 'COMMIT');
		$each->(41, 75, 'COMMIT');
		wait_for_apply($pub, $sub, 'sub');
		is(native_transactions(), $native, 'the server applies none of them');
		set_conf($pub, debug_logical_replication_streaming => 'buffered');
		$stream->query_safe(
			'SELECT dblink_disconnect(\'c\' || i) FROM generate_series(1, 75) i'
		);
	});

# leader -> writer -> parallel worker -> leader: writers are started while one of the
# server's parallel workers has a transaction open, and one of the writers needs a unique
# value that this worker has stored.
scenario(
	'a parallel worker of the server',
	sub {
		my $second = open_session($pub);

		query($sub,
			'ALTER SUBSCRIPTION sub SET (num_writers = 0, streaming = parallel)'
		);
		poll($sub, 'SELECT num_writers FROM weft.stat_subscription', 0);
		$stream->query_safe(
			"BEGIN; INSERT INTO other VALUES (600, 600); INSERT INTO large (t) SELECT repeat('x', 50) FROM generate_series(1, 3000)"
		);
		poll($sub,
			"SELECT EXISTS (SELECT FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE backend_type = 'logical replication parallel worker' AND relation = 'other'::regclass)"
		);
		query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
		poll($sub, 'SELECT num_writers FROM weft.stat_subscription', 3);

		$second->query_safe(
			"BEGIN; INSERT INTO other VALUES (601, 600); INSERT INTO large (t) SELECT repeat('x', 50) FROM generate_series(1, 3000)"
		);
		$second->query_safe('COMMIT');
		$stream->query_safe(
			"INSERT INTO large (t) SELECT repeat('x', 50) FROM generate_series(1, 3000)"
		);
		wait_for_apply($pub, $sub, 'sub');
		$stream->query_safe('ROLLBACK');
		$second->quit;
		query($sub, 'ALTER SUBSCRIPTION sub SET (streaming = on)');
		wait_for_apply($pub, $sub, 'sub');
	});

# A stream writer that takes long to start learns that its transaction is the oldest by
# now: a later transaction, which holds what it needs, gives way.
scenario(
	'a stream writer that starts slowly',
	sub {
		query($pub,
			'INSERT INTO later VALUES (0); INSERT INTO other VALUES (699, 699)'
		);
		wait_for_apply($pub, $sub, 'sub');
		disable_subscription($sub, 'sub');
		query($sub, 'ALTER SUBSCRIPTION sub ENABLE');

		# the first change of a table waits for all before it
		query($pub,
			'INSERT INTO later VALUES (1); UPDATE other SET v = 698 WHERE id = 699'
		);
		wait_for_apply($pub, $sub, 'sub');

		my $committed =
		  'SELECT coalesce(sum(transactions), 0) FROM weft.stat_get_writer() WHERE writer >= 64';
		my $before = query($sub, $committed);

		$user->query_safe(
			'BEGIN; LOCK TABLE pg_subscription IN ACCESS EXCLUSIVE MODE');
		$stream->query_safe(
			"BEGIN; INSERT INTO large (t) SELECT repeat('x', 50) FROM generate_series(1, 3000); INSERT INTO other VALUES (-50, 700); COMMIT"
		);
		query($pub, 'INSERT INTO later VALUES (2)');
		poll($sub,
			"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 50 AND granted)"
		);
		$user->query_safe('COMMIT');
		wait_for_apply($pub, $sub, 'sub');
		is( query($sub, $committed),
			$before + 1,
			'the stream writer has committed');
	});

query($sub, 'DROP SUBSCRIPTION sub');
subscribe($pub, $sub, 'sub', 'pub',
	'streaming = on, two_phase = true, copy_data = false');
poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription");
native_cases('a prepared transaction');

# leader -> writer -> user -> leader: the leader ends while a writer is starting, and
# the user who drops the subscription holds what the writer needs.
{
	$user = open_session($sub);
	$user->query_safe(
		'BEGIN; LOCK TABLE pg_subscription IN ACCESS EXCLUSIVE MODE');
	set_conf($sub, 'weft.writers_per_subscription' => 5);
	poll(
		$sub,
		"SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE relation = 'pg_subscription'::regclass AND NOT granted AND backend_type = 'weft writer'",
		5);
	$user->query_safe(
		'ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub; COMMIT'
	);
	pass('the subscription can be dropped while writers start');
	$user->quit;
	poll(
		$sub,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^weft'",
		0);
}

$pub->stop;
$sub->stop;
done_testing();
