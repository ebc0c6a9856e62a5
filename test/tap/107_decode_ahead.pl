# While it is far behind, the publisher decodes a stretch of WAL in one go
# (publish/decode_ahead.c): the same arrives; the publisher can be stopped at any time; an
# error in the middle costs nothing; a standby does it only once it is promoted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher', conf => <<'EOC');
hot_standby_feedback = on
log_min_messages = debug1
logical_decoding_work_mem = 256kB
EOC
my $sub = new_subscriber('subscriber', conf => 'autovacuum = off');

query_all([ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v int, w text)');
query($pub, <<'EOS');
INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR TABLE t;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	"SELECT count(*) = 0 FROM pg_subscription WHERE subtwophasestate <> 'e'");

my $has_injection = ($ENV{enable_injection_points} // '') eq 'yes'
  && query(
	$pub,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
  );
query($pub, 'CREATE EXTENSION injection_points') if $has_injection;

# Many transactions, some of which are rolled back, and records of all lengths.
my $next_id = 1000;

sub make_transactions
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
		IF i % 100 = 0 THEN
			PERFORM pg_logical_emit_message(true, 'long', repeat('x', 300000));
			COMMIT;
		END IF;
	END LOOP;
END \$\$;
EOS
	return;
}

# The same, a prepared transaction, a streamed one, and the end of a segment.
sub make_backlog
{
	disable_subscription($sub, 'sub');
	make_transactions(300);
	query($pub, <<"EOS");
SET synchronous_commit = local;
BEGIN;
DELETE FROM t WHERE id > $next_id AND id % 10 = 0;
PREPARE TRANSACTION 'p$next_id';
SELECT pg_switch_wal();
INSERT INTO t SELECT $next_id + 20000 + i, i, 'large' FROM generate_series(1, 5000) i;
COMMIT PREPARED 'p$next_id';
EOS
	return;
}

# The stretches that were decoded, by their lengths.
sub stretches
{
	my ($node, $log_start) = @_;
	my $log = slurp_file($node->logfile, $log_start);
	my @lengths;
	while ($log =~ m!decoded ahead from LSN (\w+)/(\w+) to (\w+)/(\w+)!g)
	{
		push @lengths, (hex($3) << 32) + hex($4) - (hex($1) << 32) - hex($2);
	}
	return @lengths;
}

# Between two stretches, the server's reader reads for the walsender's loop, which learns its
# position from that.
sub all_alternate
{
	my ($log_start) = @_;
	my $log = slurp_file($pub->logfile, $log_start);
	my %ends;

	while ($log =~ m{decoded ahead from LSN (\S+) to (\S+)}g)
	{
		return 0 if $ends{$1};
		$ends{$2} = 1;
	}
	return 1;
}

sub enable
{
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	return;
}

make_backlog();
my $log_start = -s $pub->logfile;
enable();
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'a backlog');
cmp_ok(scalar(stretches($pub, $log_start)),
	'>', 0, 'it was decoded in stretches');
ok(all_alternate($log_start), 'and single records between them');
my ($last) =
  slurp_file($pub->logfile, $log_start) =~
  /.*decoded ahead from LSN \S+ to (\S+)/s;
cmp_ok(
	query(
		$pub, "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '$last')"),
	'>=', 65536,
	'the last records are left to the server');

# Stopped while it is behind: the server waits until the subscriber has everything.
set_conf($pub, 'weft.decode_ahead' => '256kB');
make_backlog();
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

# not if it is turned off
set_conf($pub, 'weft.decode_ahead' => 0);
disable_subscription($sub, 'sub');
make_transactions(100);
$log_start = -s $pub->logfile;
enable();
wait_for_apply($pub, $sub, 'sub');
is(scalar(stretches($pub, $log_start)),
	0, 'weft.decode_ahead = 0 turns it off');
set_conf($pub, 'weft.decode_ahead' => '128kB');

SKIP:
{
	skip 'the server was built without injection points', 8
	  unless $has_injection;

	# an error in the middle of a stretch
	my $point = 'weft-plugin-decodes-ahead';
	make_backlog();
	query($pub, "SELECT injection_points_attach('$point', 'error')");
	$log_start = -s $pub->logfile;
	enable();
	$pub->wait_for_log(
		qr/ERROR: .*error triggered for injection point $point/, $log_start);
	query($pub, "SELECT injection_points_detach('$point')");
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], 'nothing is lost by an error');
	cmp_ok(scalar(stretches($pub, $log_start)),
		'>', 0, 'and the next walsender goes on');

	# In the middle of a stretch, the subscriber becomes a synchronous standby: sessions
	# may wait for replies.
	disable_subscription($sub, 'sub');
	set_conf($pub, 'weft.decode_ahead' => '4MB');
	make_transactions(300);
	query($pub, "SELECT injection_points_attach('$point', 'wait')");
	$log_start = -s $pub->logfile;
	enable();
	waits_for($pub, $point);
	set_conf($pub, synchronous_standby_names => 'sub');
	query($pub, "SELECT injection_points_detach('$point')");
	query($pub, "SELECT injection_points_wakeup('$point')");
	wait_for_apply($pub, $sub, 'sub');
	my @stretches = sort { $a <=> $b } stretches($pub, $log_start);
	cmp_ok(scalar(@stretches), '>', 3,
		'decoding goes on for a synchronous standby');
	cmp_ok($stretches[-1], '<=', 128 * 1024, 'in short stretches');
	set_conf($pub, synchronous_standby_names => '');
	set_conf($pub, 'weft.decode_ahead' => '128kB');

	# The publisher is a standby, which is promoted while its walsender is behind.
	$pub->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($pub, 'backup', has_streaming => 1);
	$standby->start;
	my $slot = IPC::Run::start(
		[
			'pg_recvlogical', '-d', $standby->connstr('postgres'),
			'-P', 'weft', '-S', 'on_standby', '--create-slot'
		]);
	poll($standby,
		"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'on_standby' AND restart_lsn IS NOT NULL"
	);
	query($pub, 'SELECT pg_log_standby_snapshot()');
	$slot->finish;
	wait_for_apply($pub, $sub, 'sub');
	disable_subscription($sub, 'sub');
	my $connection = $standby->connstr('postgres') =~ s/'/''/gr;
	query($sub, <<"EOS");
ALTER SUBSCRIPTION sub SET (slot_name = NONE);
DROP SUBSCRIPTION sub;
TRUNCATE t;
CREATE SUBSCRIPTION sub CONNECTION '$connection' PUBLICATION pub
	WITH (create_slot = false, slot_name = on_standby, copy_data = false, enabled = false);
EOS
	query($pub, 'TRUNCATE t; SELECT pg_switch_wal()');
	make_transactions(300);
	$pub->wait_for_replay_catchup($standby);
	query($standby,
		"SELECT injection_points_attach('weft-plugin-page', 'wait')");
	$log_start = -s $standby->logfile;
	enable();
	waits_for($standby, 'weft-plugin-page');
	$standby->promote;
	is(scalar(stretches($standby, $log_start)),
		0, 'a standby decodes one record at a time');
	$pub->stop;
	$pub = $standby;
	make_transactions(300);
	query($standby, <<'EOS');
SELECT injection_points_detach('weft-plugin-page');
SELECT injection_points_wakeup('weft-plugin-page');
EOS
	wait_for_apply($standby, $sub, 'sub');
	same_tables($standby, $sub, ['t'], 'nothing is lost by a promotion');
	cmp_ok(scalar(stretches($standby, $log_start)),
		'>', 0, 'and then the same walsender decodes in stretches');
	is(errors_logged($standby), '', 'without errors');
}

$sub->stop;
$pub->stop;
done_testing();
