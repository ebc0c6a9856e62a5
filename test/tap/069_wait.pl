# weft.wait_for_subscription() while a transaction is open on a quiet publisher, and what
# it reports about a subscription that does not catch up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher', conf => 'wal_log_hints = on');
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# Its standard error.
sub wait_fails
{
	my ($timeout) = @_;
	my ($ret, $stdout, $stderr) = $sub->psql(
		'postgres',
		"SELECT weft.wait_for_subscription('sub', '$timeout')",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	isnt($ret, 0, "waiting fails");
	return $stderr;
}

# Nobody flushes the WAL of an open transaction: the background writer would do so
# within 15 seconds, with its own record.
my $writer = query($pub,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"
);
kill 'STOP', $writer;
my $session = open_session($pub);
foreach my $i (1 .. 3)
{
	$session->query_safe('BEGIN') if $i == 1;
	$session->query_safe("INSERT INTO t VALUES (1000 + $i, 'open')");
	is( query(
			$pub,
			'SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()'
		),
		't',
		'some WAL is not flushed');
	wait_for_apply($pub, $sub, 'sub');
	pass('an open transaction on a quiet publisher is not waited for');
	query($pub, "INSERT INTO t VALUES ($i, 'committed')") if $i < 3;
}
$session->query_safe('COMMIT');
$session->quit;
kill 'CONT', $writer;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'and committed rows exist');

# Nor is a standby that the publisher waits for.  To see the new function, which nobody has read since it was
# committed, writes a hint bit, and thus WAL: a transaction that has written WAL waits for standbys when it commits.
$session = open_session($pub);
$session->query_safe(
	"SET synchronous_commit = local; BEGIN; INSERT INTO t VALUES (2000, 'open')"
);
query($pub, 'CREATE FUNCTION txid_current(int) RETURNS int RETURN 1');
set_conf($pub, synchronous_standby_names => 'missing');
kill 'STOP', $writer;
$session->query_safe("INSERT INTO t VALUES (2001, 'open')");
is( query(
		$pub,
		'SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()'),
	't',
	'some WAL is not flushed');
wait_for_apply($pub, $sub, 'sub');
pass('a standby that is missing is not waited for');
kill 'CONT', $writer;
set_conf($pub, synchronous_standby_names => '');
$session->query_safe('ROLLBACK');
$session->quit;

# A publisher that is frozen.
my $postmaster = slurp_file($pub->data_dir . '/postmaster.pid') =~ s/\n.*//sr;
kill 'STOP', $postmaster;
like(
	wait_fails('1 s'),
	qr/timed out while waiting for subscription "sub"\nDETAIL:  Its publisher does not answer/,
	'the publisher does not answer');
kill 'CONT', $postmaster;

# An error that occurs again and again.
query($sub, "INSERT INTO t VALUES (10, 'in the way')");
query($pub, "INSERT INTO t VALUES (10, 'to be applied')");
poll($sub, "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats");
like(
	wait_fails('1 s'),
	qr{applied up to LSN (?!0/0 )[0-9A-F]+/[0-9A-F]+ of .*\n.*last error of its apply worker, at \d.*: (?:duplicate key value|conflict detected)},
	'the progress, although the worker has just started, and the reason for the delay'
);

# A subscription that is disabled, before and during the wait.
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
like(
	wait_fails('1 hour'),
	qr/subscription "sub" is disabled\n.*\n.*last error of its apply worker, at \d.*: (?:duplicate key value|conflict detected).*\nHINT:.*ENABLE/s,
	'a disabled subscription is not waited for');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
my $waiting = open_session($sub, on_error_stop => 0);
$waiting->query_until(
	qr/begun/, q{\echo begun
SELECT weft.wait_for_subscription('sub', '1 hour');
});
poll($sub,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'wait_for_subscription' AND wait_event ~ '^Weft'"
);
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub,
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ '^SELECT weft.wait_for_subscription' AND state = 'active'"
);
$waiting->query('SELECT 1');
like(
	$waiting->{stderr},
	qr/subscription "sub" is disabled/,
	'nor one that is disabled meanwhile');
$waiting->quit;

# Apply continues.
query($sub, 'DELETE FROM t WHERE id = 10; ALTER SUBSCRIPTION sub ENABLE');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'enabled again, it catches up');

# A restart does not lose the position.
$sub->restart;
my $blocker = open_session($sub);
$blocker->query_safe('BEGIN; LOCK TABLE t');
query($pub, "INSERT INTO t VALUES (11, 'must wait')");
like(
	wait_fails('1 s'),
	qr{applied up to LSN (?!0/0 )[0-9A-F]+/[0-9A-F]+ of },
	'the progress after a restart');
$blocker->query_safe('COMMIT');
$blocker->quit;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'everything is there');

# A row is waited for until it can be seen: the server's own apply loop has written the commit record, and waits
# for a standby.
query($sub,
	'ALTER SUBSCRIPTION sub SET (num_writers = 0, synchronous_commit = on)');
set_conf($sub, synchronous_standby_names => 'missing');
query($pub, "INSERT INTO t VALUES (12, 'must be seen')");
poll($sub,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type <> 'client backend'"
);
is(query($sub, 'SELECT count(*) FROM t WHERE id = 12'),
	0, 'a row cannot be seen');
like(
	wait_fails('1 s'),
	qr{applied up to LSN (?!0/0 )[0-9A-F]+/[0-9A-F]+ of },
	'a row that cannot be seen yet is not there');
set_conf($sub, synchronous_standby_names => '');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'now it is');

done_testing();
