# A table that is copied catches up with the leader, and with nothing behind: the next transaction may change
# the schema, and the leader waits in front of that until the copy is done; or it may need a lock that a session
# has, and then the leader would wait for the session.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'schema changes are not replicated natively' unless weft();

# The leader goes past where the copy begins, by a keepalive; no transaction of the publication ends there.
sub pass_copy
{
	my ($pub, $sub) = @_;

	query($pub, 'INSERT INTO unpublished VALUES (1)');
	my $lsn = query($pub, 'SELECT pg_current_wal_lsn()');
	poll($sub,
		"SELECT latest_end_lsn >= '$lsn' FROM pg_stat_subscription WHERE worker_type = 'apply'"
	);
	return;
}

foreach my $streaming (0, 1)
{
	my $what = $streaming ? 'streamed' : 'not streamed';
	my $conf = "logical_decoding_work_mem = 64kB\n";
	$conf .= "debug_logical_replication_streaming = immediate\n"
	  if $streaming;
	my $pub = new_publisher("publisher_$streaming", conf => $conf);
	my $sub = new_subscriber("subscriber_$streaming");

	query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub;
	query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
	query($pub, <<'EOS');
INSERT INTO t SELECT generate_series(1, 10);
CREATE TABLE unpublished (id int);
CREATE PUBLICATION pub FOR TABLE t WITH (ddl = table);
EOS
	my $session = hold_copy($sub, 'true');
	subscribe($pub, $sub, 'sub', 'pub', 'streaming = on');
	wait_for_held_copy($sub);

	# The copy is done on the publisher, and not yet on the subscriber.
	$session->query_safe(
		'BEGIN; LOCK TABLE pg_subscription_rel IN SHARE MODE; SELECT pg_advisory_unlock(1)'
	);
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'pg_subscription_rel'::regclass AND NOT granted)"
	);

	pass_copy($pub, $sub);
	my $log = -s $sub->logfile;
	query($pub,
		'BEGIN; INSERT INTO t VALUES (100); ALTER TABLE t ADD COLUMN v int DEFAULT 1; INSERT INTO t VALUES (101, 2); COMMIT'
	);
	if ($streaming)
	{
		poll($sub,
			q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'WeftLeaderDrain'}
		);
	}
	else
	{
		$sub->wait_for_log(
			qr/a schema change must wait until tables are copied/, $log);
	}
	query($pub, 'INSERT INTO t VALUES (102, 3)');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	is( query($sub, 'SELECT * FROM t ORDER BY id'),
		query($pub, 'SELECT * FROM t ORDER BY id'),
		"$what: the same rows");
	unlike(slurp_file($sub->logfile),
		qr/ERROR/, "$what: the copy meets no error");
}

# There is no leader for a while, which could say how far to go.
{
	my $pub = new_publisher('publisher_alone');
	my $sub = new_subscriber('subscriber_alone',
		conf => "wal_retrieve_retry_interval = 8s\n");

	query($_, 'CREATE EXTENSION IF NOT EXISTS weft') foreach $pub, $sub;
	query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
	query($pub, <<'EOS');
INSERT INTO t SELECT generate_series(1, 10);
CREATE PUBLICATION pub FOR TABLE t WITH (ddl = table);
EOS
	my $session = hold_copy($sub, 'true');
	subscribe($pub, $sub, 'sub', 'pub', 'disable_on_error = true');
	wait_for_held_copy($sub);
	my ($leader) = leave_untold($pub, $sub, $session);
	query($pub,
		'INSERT INTO t VALUES (100); ALTER TABLE t ADD COLUMN v int DEFAULT 1; INSERT INTO t VALUES (101, 2)'
	);
	kill 'TERM', $leader or die "could not end $leader";
	kill 'CONT', $leader or die "could not continue $leader";
	wait_for_apply($pub, $sub, 'sub');
	is( query($sub, 'SELECT * FROM t ORDER BY id'),
		query($pub, 'SELECT * FROM t ORDER BY id'),
		'no leader: the same rows');
	is(query($sub, 'SELECT subenabled FROM pg_subscription'),
		't', 'no leader: the subscription is not disabled');
}

# The next transaction is of another table, which a session has locked.
my $pub = new_publisher('publisher_locked');
my $sub = new_subscriber('subscriber_locked');

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)'
);
query($pub, <<'EOS');
INSERT INTO t VALUES (1);
CREATE TABLE unpublished (id int);
CREATE PUBLICATION pub FOR TABLE t, other;
EOS
my $session = hold_copy($sub, 'true');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_held_copy($sub);
poll($sub,
	"SELECT srsubstate = 'r' FROM pg_subscription_rel WHERE srrelid = 'other'::regclass"
);
pass_copy($pub, $sub);

# The table has been told how far it is to go, and the publisher does not send anything yet.
my ($leader, $sender) = leave_untold($pub, $sub, $session);
kill 'STOP', $sender or die "could not stop $sender";
kill 'CONT', $leader or die "could not continue $leader";
poll($sub,
	"SELECT wait_event = 'LogicalSyncStateChange' FROM pg_stat_activity WHERE pid = $leader"
);

$session->query_safe('BEGIN; LOCK TABLE other IN SHARE MODE');
query($pub, 'INSERT INTO other VALUES (1)');
kill 'CONT', $sender or die "could not continue $sender";
poll($sub,
	"SELECT srsubstate IN ('s', 'r') FROM pg_subscription_rel WHERE srrelid = 't'::regclass"
);
is(query($sub, 'SELECT count(*) FROM other'),
	0, 'a table has caught up, although another one is locked');
query($pub, 'INSERT INTO t VALUES (2)');
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM other'), 1, 'then that goes on');
is(query($sub, 'SELECT count(*) FROM t'), 2, 'and so does the first one');

done_testing();
