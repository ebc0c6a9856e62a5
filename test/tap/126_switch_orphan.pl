# The other server's postmaster is killed while a slot is created there, in a session that does
# not notice: the call ends all the same, and the server can be started again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

# nothing but the session itself writes and flushes WAL there
my $pub = new_publisher('publisher', conf => <<EOC);
autovacuum = off
wal_writer_delay = 10s
EOC
my $sub = new_subscriber('subscriber');
query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION p FOR TABLE t; INSERT INTO t VALUES (1, 1)');
subscribe($pub, $sub, 's', 'p');
wait_for_apply($pub, $sub, 's');
is(switch_over($sub, 's'), '', 'switched over');

# The session waits for a transaction, and is stopped; then it is the last process there.
my $transaction = open_session($pub);
$transaction->query_safe('BEGIN; SELECT pg_current_xact_id()');
my $call = $sub->background_psql('postgres', on_error_stop => 0);
$call->query_until(qr/calling/,
	"\\echo calling\nCALL weft.switch_back('s', $patient);\n");
my $pid = poll_for($pub,
	"SELECT pid FROM pg_stat_activity WHERE application_name = 'weft switch-over' AND query ~ 'pg_create_logical_replication_slot' AND wait_event_type = 'Lock'"
);
my @others = grep { $_ != $pid } server_pids($pub);
kill 'STOP', $pid;
$pub->kill9;
ok(!not_ended(@others), 'all other processes end');
kill 'CONT', $pid;
ok(!not_ended($pid), 'so does a session that waits for WAL');
$call->query('SELECT 1');
like(
	$call->{stderr},
	qr/server closed the connection unexpectedly|unexpected postmaster exit|is lost/,
	'the call has failed');
$call->quit;
eval { $transaction->quit };

$pub->start;
is(switch_back($sub, 's'), '', 'the next call switches back');
query($pub, 'INSERT INTO t VALUES (2, 2)');
wait_for_apply($pub, $sub, 's');
same_tables($pub, $sub, ['t'], 'replicates again');
$pub->stop;
$sub->stop;
done_testing();
