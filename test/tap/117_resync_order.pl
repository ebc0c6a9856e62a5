# weft.resync_table() and transactions that arrive in an unlucky moment: one that the table's
# own worker receives before the leader does, and transactions that the publisher
# sends again after the table is READY, because it has forgotten what it was told.  And a table
# of which only a part is published.

use strict;
use warnings FATAL => 'all';

use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

# Without a unique index, a row that is applied twice is stored twice.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int, v text);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE other (id int PRIMARY KEY);
EOS
query($pub, 'CREATE TABLE part (id int PRIMARY KEY, hidden int, v text)');
query($sub,
	q{CREATE TABLE part (v text, here text DEFAULT 'here', id int PRIMARY KEY)}
);
query($pub, <<'EOS');
INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 100) i;
INSERT INTO part SELECT i, i, 'new' FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR TABLE t, other, part (id, v) WHERE (id > 10);
EOS
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 1');
wait_for_apply($pub, $sub, 'sub');

sub confirmed
{
	my $now = query($pub, 'SELECT pg_current_wal_lsn()');
	poll($pub,
		"SELECT confirmed_flush_lsn >= '$now' FROM pg_replication_slots WHERE slot_name = 'sub'"
	);
	return;
}

# The processes of the subscription have learned that the table is READY.
query($pub, "INSERT INTO t VALUES (0, 'before')");
wait_for_apply($pub, $sub, 'sub');

# The copy is complete, but not committed.  What the publisher knows of the subscription is
# what it finds after its crash.
attach_point($sub, 'weft-replace-copied');
query($sub, "SELECT weft.resync_table('sub', 't')");
my ($held) = held_at($sub, 'weft-replace-copied');
my $state = $pub->data_dir . '/pg_replslot/sub/state';
query($pub, "INSERT INTO other VALUES (1)");
poll($sub, 'SELECT count(*) = 1 FROM other');
confirmed();
query($pub, 'CHECKPOINT');
copy($state, "$state.crash") or die "could not copy $state: $!";

# The leader gets the first transaction, and a position behind it, but not the second.
query($pub, "INSERT INTO t VALUES (-1, 'first')");
query($pub, 'CREATE TABLE nothing ()');
confirmed();
my $sender = query($pub,
	"SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'sub'");
kill 'STOP', $sender;
query($pub, "INSERT INTO t VALUES (-2, 'second')");
my $second = query($pub, 'SELECT pg_current_wal_lsn()');
release_point($sub, 'weft-replace-copied');
poll($sub,
	"SELECT srsubstate IN ('s', 'r') FROM pg_subscription_rel WHERE srrelid = 't'::regclass"
);
is( query(
		$sub,
		"SELECT srsublsn < '$second' FROM pg_subscription_rel WHERE srrelid = 't'::regclass"
	),
	't',
	'the worker of the table stops in front of the second transaction');
kill 'CONT', $sender;
confirmed();
poll($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");
same_tables($pub, $sub, ['t'],
	'the leader applies that, and skips what the worker has applied');

# A position that has been confirmed is lost with the publisher unless a checkpoint has
# written it.
$pub->stop('immediate');
move("$state.crash", $state) or die "could not replace $state: $!";
$pub->start;
query($pub, 'INSERT INTO other VALUES (2)');
poll($sub, 'SELECT count(*) = 2 FROM other');
same_tables(
	$pub, $sub,
	[ 't', 'other' ],
	'nothing that was skipped is applied when it is sent again');

# A row filter, a column list, another order of columns, and a column that only exists here:
# what the publisher does not send is deleted, and not filled again.
query($sub,
	q{UPDATE part SET v = 'old', here = 'mine'; DELETE FROM part WHERE id > 50; INSERT INTO part VALUES ('old', 'mine', 1)}
);
query($sub, q{SELECT weft.resync_table('sub', 'part')});
query($pub,
	q{UPDATE part SET v = 'newer' WHERE id IN (5, 15); DELETE FROM part WHERE id = 20; INSERT INTO part VALUES (0, 0, 'no'), (101, 0, 'yes')}
);
wait_for_apply($pub, $sub, 'sub');
same_rows(
	rows($sub, 'part', 'id, v, here'),
	rows($pub, 'part WHERE id > 10', q{id, v, 'here'}),
	'a part of a table is published');

done_testing();
