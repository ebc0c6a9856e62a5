# A table is synchronized at least up to the position from which the publisher sends, though the
# origin of the subscription is older: changes that were skipped while the table was copied are
# not sent again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use FailoverTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
plan skip_all => 'the server was built without injection points'
  unless ($ENV{enable_injection_points} // '') eq 'yes';

my $pub = new_publisher('publisher', conf => 'synchronous_commit = local');
my $sub = new_subscriber('subscriber', conf => <<'EOC');
autovacuum = off
weft.copy_workers_per_table = 0
wal_receiver_status_interval = 1s
EOC

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, w text); CREATE TABLE u (id int PRIMARY KEY, v int)'
);
query($pub, <<'EOS');
CREATE EXTENSION injection_points;
INSERT INTO t SELECT i, 'x' FROM generate_series(1, 10) i;
INSERT INTO u VALUES (1, 0);
CREATE PUBLICATION pub FOR TABLE u;
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# The copy is under way, and stands still.
my $holder = hold_copy($sub, 'NEW.id = 5');
query($pub, 'ALTER PUBLICATION pub ADD TABLE t');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_held_copy($sub);
is( query(
		$sub,
		"SELECT count(*) FROM pg_stat_progress_copy WHERE relid = 't'::regclass"
	),
	1,
	'the table is being copied');

# A change after its snapshot: the leader skips it, and confirms that.
query($pub, "INSERT INTO t VALUES (0, 'skipped by the leader')");
my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
poll($pub,
	"SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'sub'"
);

# The leader is busy, so that the copy ends, and nothing after it begins.
my $lock = open_session($sub);
$lock->query_safe('BEGIN; SELECT FROM u FOR UPDATE');
query($pub, 'UPDATE u SET v = 1');
writer_waits_for_lock($sub);
$holder->query_safe('SELECT pg_advisory_unlock(1)');
poll($sub,
	"SELECT srsubstate = 'f' FROM pg_subscription_rel WHERE srrelid = 't'::regclass"
);

# The server crashes.  When it is back, the publisher needs long to send anything.
kill_server($sub);
$_->{run}->kill_kill foreach $lock, $holder;
my $point = 'weft-plugin-page';
query($pub, "SELECT injection_points_attach('$point', 'wait')");
$sub->start;
waits_for($pub, $point);
poll($sub,
	"SELECT srsubstate IN ('s', 'r') FROM pg_subscription_rel WHERE srrelid = 't'::regclass"
);
query($pub,
	"SELECT injection_points_detach('$point'); SELECT injection_points_wakeup('$point')"
);
wait_for_apply($pub, $sub, 'sub');
is( query($sub, 'SELECT w FROM t WHERE id = 0'),
	'skipped by the leader',
	'no change is lost');
is(query($sub, 'SELECT count(*) FROM t'), 11, 'nor anything else');
$sub->stop;
$pub->stop;
done_testing();
