# While it is far behind, the publisher decodes a stretch of WAL in one go
# (publish/decode_ahead.c): the same arrives; the publisher can be stopped at any time; an
# error in the middle costs nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher',
	conf => "log_min_messages = debug1\nlogical_decoding_work_mem = 1MB");
my $sub = new_subscriber('subscriber', conf => 'autovacuum = off');
my $schema = 'CREATE TABLE t (id int PRIMARY KEY, v int, w text)';

query_all([ $pub, $sub ], $schema);
query($pub,
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i; CREATE PUBLICATION pub FOR TABLE t'
);
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT count(*) = 0 FROM pg_subscription WHERE subtwophasestate <> 'e'");

# Many transactions, some of which are rolled back, and records of all lengths.
my $next_id = 1000;

sub make_backlog
{
	my ($number) = @_;
	$next_id += 100000;
	query($pub, <<"EOS");
SET synchronous_commit = local;
DO \$\$
BEGIN
	FOR i IN 1 .. $number LOOP
		UPDATE t SET v = v + 1 WHERE id = 1 + i % 100;
		INSERT INTO t VALUES ($next_id + i, i, repeat('x', i % 3000));
		BEGIN
			INSERT INTO t VALUES ($next_id - i, i, 'rolled back');
			IF i % 3 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
		END;
		IF i % 7 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
		IF i % 400 = 0 THEN
			PERFORM pg_logical_emit_message(true, 'long', repeat('x', 300000));
			COMMIT;
		END IF;
	END LOOP;
END \$\$;
BEGIN;
DELETE FROM t WHERE id > $next_id AND id % 10 = 0;
PREPARE TRANSACTION 'p$next_id';
SELECT pg_switch_wal();
INSERT INTO t SELECT $next_id + 20000 + i, i, 'large' FROM generate_series(1, 20000) i;
COMMIT PREPARED 'p$next_id';
EOS
	return;
}

sub stretches
{
	my ($log_start) = @_;
	my $log = slurp_file($pub->logfile, $log_start);
	my @stretches = $log =~ /decoded ahead from LSN/g;
	return scalar @stretches;
}

sub enable
{
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	return;
}

disable_subscription($sub, 'sub');
make_backlog(1200);
my $log_start = -s $pub->logfile;
enable();
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'a backlog');
cmp_ok(stretches($log_start), '>', 0, 'it was decoded in stretches');

# stopped while it is behind: the server waits until the subscriber has everything
disable_subscription($sub, 'sub');
make_backlog(1200);
$log_start = -s $pub->logfile;
enable();
$pub->wait_for_log(qr/decoded ahead from LSN/, $log_start);
$pub->stop('fast');
pass('the publisher can be stopped');
unlike(
	slurp_file($pub->logfile, $log_start),
	qr/TRAP|was terminated by signal|replication timeout/,
	'without an accident');
$pub->start;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'nothing is lost by that');

# not if it is turned off, and not if somebody may wait for replies
set_conf($pub, 'weft.decode_ahead' => 0);
disable_subscription($sub, 'sub');
make_backlog(300);
$log_start = -s $pub->logfile;
enable();
wait_for_apply($pub, $sub, 'sub');
is(stretches($log_start), 0, 'weft.decode_ahead = 0 turns it off');
set_conf(
	$pub,
	'weft.decode_ahead' => '256kB',
	synchronous_standby_names => 'sub');
disable_subscription($sub, 'sub');
make_backlog(300);
$log_start = -s $pub->logfile;
enable();
wait_for_apply($pub, $sub, 'sub');
is(stretches($log_start), 0,
	'a synchronous standby gets one record at a time');
set_conf($pub, synchronous_standby_names => '');

# an error in the middle of a stretch
SKIP:
{
	skip 'the server was built without injection points', 2
	  unless ($ENV{enable_injection_points} // '') eq 'yes';
	query($pub, 'CREATE EXTENSION injection_points');
	disable_subscription($sub, 'sub');
	make_backlog(600);
	query($pub,
		"SELECT injection_points_attach('weft-plugin-decodes-ahead', 'error')"
	);
	$log_start = -s $pub->logfile;
	enable();
	$pub->wait_for_log(
		qr/ERROR: .*error triggered for injection point weft-plugin-decodes-ahead/,
		$log_start);
	query($pub,
		"SELECT injection_points_detach('weft-plugin-decodes-ahead')");
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], 'nothing is lost by an error');
	cmp_ok(stretches($log_start), '>', 0, 'and the next walsender goes on');
}

$sub->stop;
$pub->stop;
done_testing();
