# Transactions that share a commit keep their own times: conflicts are decided by them, in
# whatever order the changes arrive.  The publishers are simulated in Perl.

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

my ($int4, $text, $relid, $other_relid) = (23, 25, 16001, 16002);
my $node = new_member('node', conf => "weft.tune_writers = off\n");
my $pub = FakePublisher->new(log => $node->logfile);

query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, v text);
SELECT weft.track_deletes('t');
INSERT INTO weft.conflict_node VALUES ('', 2);
EOS
$pub->relation($relid, 'public', 't', 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ] ]);
$pub->relation($other_relid, 'public', 'u', 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ] ]);

# s1 sends the groups, s3 what is in conflict with them; s2's node is this one.
subscribe_to($node, $pub, [qw(t u)], 1 => 1, 3 => 1);

sub insert { return msg_insert($relid, [@_]) }
sub update { return msg_update($relid, [@_]) }
sub del    { return msg_delete($relid, key => [ $_[0], undef ]) }

my $turn = 0;

# Every row's tail is what its test is about: the last change by s1, in a group, and one
# by s3 that is this much later.  "before" and "after" it say in which order they arrive.
query($node,
	"INSERT INTO t SELECT i, 'old' FROM generate_series(0, 10000) i");

# Sends transactions of s1, each [time, change ...], as a group.  The last argument may be a function
# to be called once they are in the ring.
sub send_group
{
	my (@transactions) = @_;
	my %options = (
		blocker => 'id = 0',
		first => [ microseconds(), update(0, 'turn ' . ++$turn) ]);

	$options{meanwhile} = pop @transactions
	  if ref $transactions[-1] eq 'CODE';
	publish_together(1, \%options, @transactions);
	return;
}

# A first transaction, and the base of all times: in the past here.
publish(1, microseconds(), update(0, 'first'));
arrived(1);

my %steps = (
	'equal times' => [ map { 0 } 0 .. 49 ],
	'one microsecond apart' => [ 0 .. 49 ],
	'decreasing times' => [ map { 49 - $_ } 0 .. 49 ],
	'far apart, in no order' => [ map { ($_ * 7919) % 50 * 90_000 } 0 .. 49 ]
);

my $id = 10;
foreach my $case (map { ([ $_, 0 ], [ $_, 1 ]) } sort keys %steps)
{
	my ($what, $updates) = @$case;
	my @offsets = @{ $steps{$what} };
	$what .= $updates ? ', updates' : ', inserts';
	foreach my $order ('group first', 'group last')
	{
		my $base = microseconds() - 100_000_000;
		my $first = $id;
		my (@old, @group, @others, %expected);

		query($node, "DELETE FROM t WHERE id > 0");
		query($node, 'TRUNCATE weft.tombstone');
		# three rows for each member, which s3 changes 1 us earlier, at the same time and
		# 1 us later
		foreach my $member (0 .. $#offsets)
		{
			my $time = $base + $offsets[$member];
			my @changes;
			foreach my $difference (-1, 0, 1)
			{
				push @old, insert($id, 'old') if $updates;
				push @changes,
				  $updates ? update($id, 'group') : insert($id, 'group');
				push @others,
				  [
					$time + $difference,
					$updates ? update($id, 'other') : insert($id, 'other')
				  ];
				# s3's node has the higher number
				$expected{$id} = $difference < 0 ? 'group' : 'other';
				$id++;
			}
			push @group, [ $time, @changes ];
		}
		if ($updates)
		{
			publish(1, $base - 10, @old);
			arrived(1);
		}
		my $commits;
		my $count = sub {
			return query($node,
				"SELECT count(DISTINCT xmin::text) FROM t WHERE v = 'group'");
		};
		if ($order eq 'group first')
		{
			send_group(@group);
			$commits = $count->();
			my $wrong = query(
				$node,
				"SELECT count(*) FROM t, (VALUES " . join(
					', ',
					map {
						my $m = int(($_ - $first) / 3);
						"($_, " . ($base + $offsets[$m]) . ')'
					  }
					  sort keys %expected)
				  . ") e (id, us) WHERE e.id = t.id AND weft.row_commit_timestamp(t.tableoid, t.ctid)"
				  . " IS DISTINCT FROM '2000-01-01 00:00:00+00'::timestamptz + us * interval '1 microsecond'"
			);
			is($wrong, 0, "$what: each row's time is exact");
			publish(3, @$_) foreach @others;
			arrived(3);
		}
		else
		{
			publish(3, @$_) foreach @others;
			arrived(3);
			send_group(@group);
			$commits = 1;
		}
		cmp_ok($commits, '<', 25,
			"$what, $order: transactions have shared a commit ($commits)");
		my %got = map { split /\|/ }
		  split /\n/, query($node, 'SELECT id, v FROM t WHERE id > 0');
		my @wrong = grep { ($got{$_} // 'missing') ne $expected{$_} }
		  sort keys %expected;
		is("@wrong", '', "$what, $order: the newer change has won");
	}
}

# A group meets rows that a session has changed: members of it are older, and others newer,
# which the times of their neighbours must not hide.
query($node, 'DELETE FROM t WHERE id > 0; TRUNCATE weft.tombstone');
my $before_all = microseconds();
query($node, "INSERT INTO t SELECT i, 'local' FROM generate_series(1, 60) i");
my $after_all = microseconds();
send_group(
	map {
		[ $_ % 2 ? $before_all - $_ : $after_all + 1, update($_, 'group') ]
	} 1 .. 60);
is( query(
		$node,
		"SELECT string_agg(v, ' ' ORDER BY id) FROM t WHERE id BETWEEN 1 AND 6"
	),
	'local group local group local group',
	"a session's rows against a group");
is( query(
		$node,
		"SELECT count(*) FROM t WHERE id > 0 AND (v = 'group') <> (id % 2 = 0)"
	),
	0,
	'all of them');

# What happens to the rows of a group afterwards does not change their times.
query($node, 'DELETE FROM t WHERE id > 0; TRUNCATE weft.tombstone');
my $base = microseconds() - 60_000_000;
publish(1, $base, map { insert($_, 'old') } 1 .. 40);
arrived(1);
send_group(map { [ $base + 1000 - $_, update($_, 'group') ] } 1 .. 40);
my $times =
  q{SELECT string_agg(id || ' ' || extract(epoch FROM weft.row_commit_timestamp(tableoid, ctid)), ',' ORDER BY id) FROM t WHERE id > 0};
my $before = query($node, $times);
my $expected = query($node,
	"SELECT string_agg(i || ' ' || extract(epoch FROM '2000-01-01 00:00:00+00'::timestamptz + ($base + 1000 - i) * interval '1 microsecond'), ',' ORDER BY i) FROM generate_series(1, 40) i"
);
is($before, $expected, 'updates by the fast path have their times');
is( query(
		$node,
		"SELECT count(*) FROM t WHERE id > 0 AND weft.member_row_version(tableoid, ctid) IS DISTINCT FROM ($base + 1000 - id) || ' 1'"
	),
	0,
	'a repair sees the same');
my $session = open_session($node);
$session->query_safe(
	"BEGIN; UPDATE t SET v = 'local'; DELETE FROM t; ROLLBACK; BEGIN; SELECT FROM t FOR UPDATE; COMMIT"
);
$session->query_safe('VACUUM FULL t');
$session->quit;
is(query($node, $times), $before, 'after a rollback, locks and VACUUM FULL');
$node->stop('immediate');
$node->start;
is(query($node, $times), $before, 'after a crash');
publish(3, $base + 1000 - $_, update($_, 'other')) foreach 1 .. 20;
publish(3, $base + 999 - $_, update($_, 'other'))  foreach 21 .. 40;
arrived(3);
is( query(
		$node,
		"SELECT string_agg(v, ' ' ORDER BY id) FROM t WHERE id BETWEEN 19 AND 22"
	),
	'other other group group',
	'and conflicts are decided by them');
is( query(
		$node,
		"SELECT count(*) FROM t WHERE id > 0 AND (v = 'other') <> (id <= 20)"
	),
	0,
	'all of them');

# A trigger changes a row that an earlier transaction of the group has changed.  The leader did not
# know of the trigger when the transactions arrived, so it has not made them run alone.
query($node, <<'EOS');
DELETE FROM t WHERE id > 0;
TRUNCATE weft.tombstone;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE public.t SET v = 'trigger' WHERE id = new.id;
	RETURN new;
END $$;
EOS
$base = microseconds() - 50_000_000;
publish(1, $base, insert(1, 'old'), insert(2, 'old'));
arrived(1);
send_group(
	[ $base + 1000, update(1, 'group'), update(2, 'group') ],
	[ $base + 3000, msg_insert($other_relid, [ 1, 'x' ]) ],
	sub {
		query($node, <<'EOS');
CREATE TRIGGER touch BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION touch();
ALTER TABLE u ENABLE ALWAYS TRIGGER touch;
EOS
	});
my $both = "SELECT string_agg(v, ' ' ORDER BY id) FROM t WHERE id > 0";
is(query($node, $both), 'trigger group', 'the trigger has fired');
publish(3, $base + 2000, update(1, 'other'), update(2, 'other'));
arrived(3);
is( query($node, $both),
	'trigger other',
	"a trigger's change has the time of its transaction");

is(errors_logged($node), '', 'no errors');
drop_subscription(1, 3);
$pub->stop;
done_testing();
