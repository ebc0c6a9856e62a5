# What the server's apply loop receives, and when: nothing while transactions are in
# flight, and a keepalive before the message that was kept meanwhile.  That keepalive must
# not announce the end of this message, which the loop has not applied yet: the loop would
# report it as flushed, and the publisher would not send it again after a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "autovacuum = off\nrestart_after_crash = on");
my $point = 'weft-leader-hands-over';

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub,
	'INSERT INTO t VALUES (1, 0); CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub',
	'two_phase = true, streaming = off, synchronous_commit = on');
poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription");
wait_for_apply($pub, $sub, 'sub');

query($pub,
	"BEGIN; INSERT INTO t VALUES (2, 0); PREPARE TRANSACTION 'prepared'");
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM pg_prepared_xacts'),
	1, 'the transaction is prepared');

# T1 is in flight, kept from its row by a local user, when COMMIT PREPARED arrives.
my $local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE');
my $before_update = query($pub, 'SELECT pg_current_wal_insert_lsn()');
query($pub, 'UPDATE t SET v = 1 WHERE id = 1');
attach_point($sub, $point);

# the server may have written something of its own meanwhile
my ($after_update) = split /\n/,
  query($pub,
	"SELECT pg_current_wal_insert_lsn(); COMMIT PREPARED 'prepared'");
is( poll_for(
		$sub,
		"SELECT wait_event FROM pg_stat_activity WHERE wait_event IN ('WeftLeaderDrain', '$point')"
	),
	'WeftLeaderDrain',
	'nothing is handed over while a transaction is in flight');
is(query($sub, 'SELECT count(*) FROM pg_prepared_xacts'),
	1, 'so it is not committed yet');

# The loop receives the keepalive, answers it, and asks for the next message.
$local->query_safe('COMMIT');
$local->quit;
my ($leader) = held_at($sub, $point);
poll($pub,
	"SELECT flush_lsn > '$before_update' FROM pg_stat_replication WHERE application_name = 'sub'"
);
is( query(
		$pub,
		"SELECT flush_lsn <= '$after_update' FROM pg_stat_replication WHERE application_name = 'sub'"
	),
	't',
	'the end of a message that is not applied is not flushed');

kill_process($leader);
wait_until_up($sub);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'nothing is lost in a crash');
is(query($sub, 'SELECT count(*) FROM pg_prepared_xacts'),
	0, 'and nothing is left prepared');

$sub->stop;
$pub->stop;
done_testing();
