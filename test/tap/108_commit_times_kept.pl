# How long the times of rows whose transactions share a commit are kept: while a change may
# arrive that they decide about.  First with publishers that are simulated in Perl, whose
# commit times the test chooses, then with real ones, which are asked while they are idle.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use FakePublisher;
use PgOutput;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TimedPublisher;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my ($int4, $text, $relid) = (23, 25, 16001);
my $node = new_member('node',
	conf => "weft.tune_writers = off\nweft.row_time_retention = 1s\n");
my $pub = FakePublisher->new(log => $node->logfile);

query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
SELECT weft.track_deletes('t');
INSERT INTO weft.conflict_node VALUES ('', 2);
EOS
$pub->relation($relid, 'public', 't', 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ] ]);
subscribe_to($node, $pub, ['t'], 1 => 1, 3 => 1);

sub update { return msg_update($relid, [@_]) }

# Updates rows "first" to "last" in transactions of s1 that share a commit; the
# row i has the time base - i.
my $turn = 0;

sub send_group
{
	my ($base, $first, $last) = @_;

	publish_together(
		1,
		{
			blocker => 'id = 0',
			first => [ $base, update(0, 'turn ' . ++$turn) ]
		},
		map { [ $base - $_, update($_, 'group') ] } $first .. $last);
	return;
}

# Counts what is stored of the groups of a subscription.
sub kept
{
	my ($where, $subscription) = @_;
	return query($where, count_kept($subscription));
}

sub count_kept
{
	my ($subscription) = @_;
	return <<EOS;
SELECT count(*) FROM weft.row_time r, pg_subscription s, pg_replication_origin o
WHERE s.subname = '$subscription' AND o.roname = 'pg_' || s.oid
	AND (pg_xact_commit_timestamp_origin((r.xid % 4294967296)::text::xid)).roident = o.roident
EOS
}

# Makes all times look as old as this, and waits until a writer has looked at them: the
# same transaction removes an old tombstone first.
sub look_at
{
	my ($where, $age) = @_;

	query($where, <<EOS);
BEGIN;
UPDATE weft.row_time SET recorded_at = clock_timestamp() - interval '$age';
INSERT INTO weft.tombstone (relation, key, commit_time, node_id, recorded_at)
	VALUES (1, gen_random_uuid(), '2000-01-01', 1, '2000-01-01');
COMMIT
EOS
	poll($where,
		'SELECT count(*) = 0 FROM weft.tombstone WHERE relation = 1');
	return;
}

my $base = microseconds() - 1_000_000_000;
publish(
	1,
	$base - 1_000_000,
	map { msg_insert($relid, [ $_, 'old' ]) } 0 .. 100);
arrived(1);
send_group($base, 1, 40);
my $stored = kept($node, 's1');
cmp_ok($stored, '>', 0, 'a group has stored times');
look_at($node, '1 day');
is(kept($node, 's1'), $stored, 'kept: of s3 nothing is known');

publish(3, $base + 900_000, update(100, 'other'));
arrived(3);
look_at($node, '1 day');
is(kept($node, 's1'),
	$stored, 'kept: s3 has not passed them by the retention');

# These arrive late, and find exact times: row i has the time base - i.
publish(3, $base - $_ + 1, update($_, 'other')) foreach 2 .. 10;
publish(3, $base - $_ - 1, update($_, 'other')) foreach 11 .. 20;
arrived(3);
is( query(
		$node,
		"SELECT string_agg(DISTINCT v, ' ') || min(id) || max(id) FROM t WHERE id BETWEEN 2 AND 10"
	),
	'other210',
	'1 us later: the late change wins');
is( query(
		$node,
		"SELECT string_agg(DISTINCT v, ' ') || min(id) || max(id) FROM t WHERE id BETWEEN 11 AND 20"
	),
	'group1120',
	'1 us earlier: it loses');

# A group commits with the time of its last row, which is earlier than those of the others.  The
# last group ends with row 40, wherever it begins.
publish(3, $base - 39 + 1_000_000, update(100, 'other'));
arrived(3);
look_at($node, '1 day');
is(kept($node, 's1'),
	$stored,
	'kept: s3 has not passed the other rows of a group by the retention');

publish(3, $base + 1_000_001, update(100, 'other'));
arrived(3);
look_at($node, '1 day');
poll($node, count_kept('s1'), 0);
is(kept($node, 's1'),
	0, 'removed: s3 has passed them; s1 itself does not count');

# As old as a tombstone that is removed.
send_group($base + 100_000_000, 1, 40);
$stored = kept($node, 's1');
look_at($node, '6 days');
is(kept($node, 's1'), $stored, 'kept again');
look_at($node, '8 days');
poll($node, count_kept('s1'), 0);
is(kept($node, 's1'), 0, 'removed: older than weft.tombstone_retention');

# Without another subscription, no conflict can need them.
send_group($base + 200_000_000, 1, 40);
$stored = kept($node, 's1');
look_at($node, '1 day');
is(kept($node, 's1'), $stored, 'kept once more');
drop_subscription(3);
look_at($node, '1 day');
poll($node, count_kept('s1'), 0);
is(kept($node, 's1'), 0, 'removed: s3 is gone');
drop_subscription(1);
$pub->stop;
is(errors_logged($node), '', 'no errors');
$node->stop;

# Three members, of which only the first one's sessions write.
my $nodes = [
	new_members(
		3, conf => "weft.tune_writers = off\nweft.row_time_retention = 1s\n")
];
create_tables($nodes, 'CREATE TABLE t (id int PRIMARY KEY, v int)', 't');
connect_members($nodes, 'num_writers = 1');
my ($n1, $n2, $n3) = @$nodes;
query($n1, 'INSERT INTO t SELECT i, 0 FROM generate_series(0, 100) i');
quiet($nodes);

# The updates of rows 1 to 50 find each other in the ring of n2.
my $session = open_session($n2);
$session->query_safe('BEGIN; SELECT FROM t WHERE id = 0 FOR UPDATE');
query($n1, 'UPDATE t SET v = v + 1 WHERE id = 0');
writer_waits_for_lock($n2);
query($n1, join "\n",
	map { "UPDATE t SET v = v + 1 WHERE id = $_;" } 1 .. 50);
my $end = $n1->lsn('flush');
poll($n2,
	"SELECT received_lsn >= '$end' FROM pg_stat_subscription WHERE subname = 'from_n1' AND worker_type = 'apply'"
);
$n3->stop('immediate');
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($n1, $n2, 'from_n1');
is(query($n2, 'SELECT count(*) FROM t WHERE v = 1'),
	51, 'the group has arrived');
my $of_group = kept($n2, 'from_n1');
cmp_ok($of_group, '>', 0, 'with its times');
look_at($n2, '1 day');
is(kept($n2, 'from_n1'), $of_group, 'kept while a member is down');

$n3->start;
quiet($nodes);
poll($n2, count_kept('from_n1'), 0);
is(kept($n2, 'from_n1'),
	0, 'removed: the idle member was asked for its clock');
is(query($_, 'SELECT sum(v) FROM t'), 51, $_->name . ' has all changes')
  foreach @$nodes;

done_testing();
