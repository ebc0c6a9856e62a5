# weft.repair() of two members: what the versions of rows, deletes and unique values decide, on this node
# and afterwards, and what sessions do meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use RepairTest;
use Test::More;
use WeftTest;

need_injection_points();

my @nodes = map { new_member($_) } qw(a b);
my ($a, $b) = @nodes;

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, x text);
CREATE TABLE u (id int PRIMARY KEY, val text UNIQUE);
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
query($b, <<'EOS');
INSERT INTO t SELECT i, 'first' FROM generate_series(1, 20) i;
INSERT INTO u SELECT i, 'v' || i FROM generate_series(1, 9) i;
EOS
wait_for_group('g', @nodes);

# Node a or b does not apply changes of its own rows.
sub keep_local
{
	my ($node, $on) = @_;
	my $resolver = $on ? 'keep_local' : 'last_update_wins';
	query($node,
		"SELECT weft.alter_node_set_conflict_resolver('', kind, '$resolver')"
		  . " FROM unnest('{update_origin_differs,delete_origin_differs}'::text[]) kind"
	);
	return;
}

# Differences between b and a, in the words of weft.compare_node(), which takes longer.
sub differ
{
	my $id = plant($b, 'weft_g_a_b', @_);
	query($b, "UPDATE weft.comparison SET node = 'a' WHERE comparison = $id");
	return $id;
}

sub deleted
{
	my ($node) = @_;
	return query($node,
		'SELECT DISTINCT relation::regclass::text, key, weft.member_delete_version(relation, key)'
		  . ' FROM weft.tombstone ORDER BY 1, 2');
}

sub versions
{
	my ($node, $condition) = @_;
	return query($node,
		"SELECT id, x, weft.member_row_version(tableoid, ctid) FROM t WHERE $condition ORDER BY id"
	);
}

# Rows that are deleted, or give up values, leave the same traces as on the other node.
keep_local($b, 1);
query($a,
	"DELETE FROM t WHERE id = 1; UPDATE u SET val = 'taken' WHERE id = 1; DELETE FROM u WHERE id = 2"
);
wait_for_group('g', @nodes);
keep_local($b, 0);
is( query(
		$b,
		'SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT count(*) FROM weft.tombstone)'
	),
	'20|9|0',
	'a node has lost deletes');
my $id = differ(
	[ 't', 'missing there', '{"id": "1"}' ],
	[ 'u', 'different', '{"id": "1"}' ],
	[ 'u', 'missing there', '{"id": "2"}' ]);
like(
	repair($b, $id),
	qr/3 repaired, 0 vanished, 0 kept, 0 not/,
	'they are repaired');
my $traces = deleted($a);
my $count = () = $traces =~ /\n/g;
is($count, 3, 'a has four tombstones');
is(deleted($b), $traces, 'and b has the same');

# A value that a newer row has had.  The other node does not know of it yet.
pause_subscription($a, 'weft_g_b_a');
as_other_origin($b, 'DELETE FROM u WHERE id = 4');
query($b, "INSERT INTO u VALUES (40, 'v4'); DELETE FROM u WHERE id = 40");
$id = differ([ 'u', 'missing here', '{"id": "4"}' ]);
like(
	repair($b, $id),
	qr/0 repaired, 0 vanished, 0 kept, 1 not/,
	'a row that has lost its unique value does not come back');
like(
	results($b, $id),
	qr/a newer row has, or has had, a unique value/,
	'which is said');
query($a, 'ALTER SUBSCRIPTION weft_g_b_a ENABLE');
wait_for_group('g', @nodes);
same_on_all(\@nodes, [qw(t u)], 'the other node loses it, too');

# A session inserts and deletes the row again while it is repaired.
as_other_origin($b, 'DELETE FROM t WHERE id IN (5, 6, 7)');
my $session = open_session($b);
$session->query_safe(
	"BEGIN; INSERT INTO t VALUES (5, 'session'); DELETE FROM t WHERE id = 5");
$id = differ([ 't', 'missing here', '{"id": "5"}' ]);
my $patient = "lock_timeout => '5 min', max_pause => '5 min'";
my $run = start_repair($b, $id, $patient);
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft repair' AND wait_event_type = 'Lock'"
);
$session->query_safe('COMMIT');
like(
	finish_repair($run),
	qr/0 repaired, 0 vanished, 0 kept, 1 not/,
	'a row that a session deletes meanwhile is not stored');
is( results($b, $id),
	'1 failed the row was deleted meanwhile',
	'because it is deleted');
$session->quit;

# The same between the decision and the write; and a row that is inserted there.
$id = differ(
	[ 't', 'missing here', '{"id": "6"}' ],
	[ 't', 'missing here', '{"id": "7"}' ]);
attach_point($b, 'weft-repair-version');
$run = start_repair($b, $id, $patient);
my ($pid) = held_at($b, 'weft-repair-version');
query($b, "INSERT INTO t VALUES (6, 'session'), (7, 'session')");
query($b, 'DELETE FROM t WHERE id = 7');
release_point($b, 'weft-repair-version');
like(
	finish_repair($run),
	qr/0 repaired, 0 vanished, 2 kept, 0 not/,
	'what is written between decision and write is kept');
wait_for_group('g', @nodes);
same_on_all(\@nodes, [qw(t u)], 'after sessions');

# A named winner overwrites only what was compared: a row was missing here, and has been deleted
# since; a row was here, and has been written again with the same values.
as_other_origin($b,
	"DELETE FROM t WHERE id IN (8, 9); UPDATE t SET x = 'wrong' WHERE id = 10"
);
$id = differ(
	[ 't', 'missing here', '{"id": "8"}' ],
	[ 't', 'missing here', '{"id": "9"}' ]);
pause_subscription($a, 'weft_g_b_a');
query($b, "INSERT INTO t VALUES (8, 'session')");
query($b, 'DELETE FROM t WHERE id = 8');
like(
	repair($b, $id, "winner => 'a'"),
	qr/1 repaired, 0 vanished, 1 kept, 0 not/,
	'a named winner does not bring a row back that was deleted since');
query($a, 'ALTER SUBSCRIPTION weft_g_b_a ENABLE');
wait_for_group('g', @nodes);

# The other node loses an update.
keep_local($a, 1);
query($a, "UPDATE t SET x = 'older' WHERE id = 12");
wait_for_group('g', @nodes);
query($b, "UPDATE t SET x = 'newer' WHERE id = 12");
wait_for_group('g', @nodes);
keep_local($a, 0);

# Rows of a node without a subscription, and of a clock that is ahead.
query($a, <<'EOS');
SELECT pg_replication_origin_create('left');
INSERT INTO weft.past_origin SELECT roident, 77, '1000000' FROM pg_replication_origin WHERE roname = 'left';
SELECT pg_replication_origin_create('another');
INSERT INTO weft.past_origin SELECT roident, 78, '1000000' FROM pg_replication_origin WHERE roname = 'another';
EOS
foreach my $change (
	[ 'left', 10, 'now()' ],
	[ 'left', 11, "now() + '1 h'" ],
	[ 'another', 13, 'now()' ])
{
	my ($origin, $key, $time) = @$change;
	query($a, <<EOS);
SELECT pg_replication_origin_session_setup('$origin');
BEGIN;
SELECT pg_replication_origin_xact_setup('0/1', $time);
UPDATE t SET x = 'of a node that has left' WHERE id = $key;
COMMIT;
EOS
}
is(errors_logged($_), '', 'no errors on ' . $_->name) foreach $a, $b;
$id = differ(
	[ 't', 'different', '{"id": "11"}' ],
	[ 't', 'different', '{"id": "10"}' ]);

# What the last commit does not flush is not flushed soon.
set_conf($b, wal_writer_delay => '10s', wal_writer_flush_after => '1GB');
my $said = repair($b, $id);

# Nothing of it is lost in a crash, and what is replayed finds its origin.
$b->stop('immediate');
$b->start;
set_conf($b, wal_writer_delay => '200ms', wal_writer_flush_after => '1MB');
like(
	$said,
	qr/1 repaired, 0 vanished, 1 kept, 0 not/,
	'rows of a node that has left are repaired');
is(versions($b, 'id = 10'), versions($a, 'id = 10'), 'with their versions');
like(versions($b, 'id = 10'), qr/ 77$/, 'which tell that node');
like(
	results($b, $id),
	qr/^1 kept .*clock is behind.*\n2 repaired$/,
	'but not if this clock is behind');

# If its origin is dropped, then the next one has its number, but not its node.
my $number = query($b,
	"SELECT roident FROM pg_replication_origin WHERE roname LIKE 'weft_repair_%_77'"
);
query($b,
	"SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roident = $number"
);
$id = differ([ 't', 'different', '{"id": "13"}' ]);
like(repair($b, $id), qr/1 repaired/, 'rows of another node are repaired');
is( query(
		$b,
		"SELECT roname LIKE 'weft_repair_%_78' FROM pg_replication_origin WHERE roident = $number"
	),
	't',
	'an origin has the same number');
is( versions($b, 'id = 13'),
	versions($a, 'id = 13'),
	'and stands for that node');

# Commit times are lost.
foreach my $value (qw(off on))
{
	$b->append_conf('postgresql.conf', "track_commit_timestamp = $value");
	$b->restart;
}
wait_for_group('g', @nodes);
is(query($_->[0], 'SELECT x FROM t WHERE id = 12'),
	$_->[1], 'an update is lost on a, and is here on b')
  foreach [ $a, 'older' ], [ $b, 'newer' ];
$id = differ([ 't', 'different', '{"id": "12"}' ]);
like(
	repair($b, $id),
	qr/0 repaired, 0 vanished, 1 kept, 0 not/,
	'a row of a forgotten time does not count as older');
like(results($b, $id), qr/does not know any more/, 'which is said');
is(query($b, 'SELECT x FROM t WHERE id = 12'), 'newer', 'it stays');

done_testing();
