# Conflicts are decided by when a change was made, not by when it arrives: the same
# changes from three publishers, in every order in which they can arrive, lead to the
# same rows.  The publishers are simulated in Perl, so that they commit at times that
# the test chooses: at the same time, or later than the subscriber's clock, too.

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
use Time::HiRes qw(time);
use TimedPublisher;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my ($int4, $text, $relid) = (23, 25, 16001);
my $node = new_member('node');
my $pub = FakePublisher->new(log => $node->logfile);

query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE);
SELECT weft.track_deletes('t');
INSERT INTO weft.conflict_node VALUES ('', 4);
EOS
$pub->relation($relid, 'public', 't', 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ], [ 'u', $int4, 0 ] ]);
subscribe_to($node, $pub, ['t'], map { $_ => 2 } 1 .. 3);

sub insert { return msg_insert($relid, [ (@_, undef, undef)[ 0 .. 2 ] ]) }
sub update { return msg_update($relid, [ (@_, undef, undef)[ 0 .. 2 ] ]) }
sub del    { return msg_delete($relid, key => [ $_[0], undef, undef ]) }

sub move
{
	my ($from, $to, $v) = @_;
	return msg_update($relid, [ $to, $v, undef ],
		key => [ $from, undef, undef ]);
}

sub permutations
{
	my (@list) = @_;
	return [] unless @list;
	return map {
		my $i = $_;
		map { [ $list[$i], @$_ ] }
		  permutations(@list[ grep { $_ != $i } 0 .. $#list ])
	} 0 .. $#list;
}

# Transactions of one publisher arrive in their order.
sub in_order
{
	my ($list) = @_;
	my %last;
	foreach my $change (@$list)
	{
		return 0 if ($last{ $change->[0] } // 0) > $change->[1];
		$last{ $change->[0] } = $change->[1];
	}
	return 1;
}

# Changes are [ number of the publisher, time, function that creates one ... ].  All
# orders are tried at the same time, each with its own keys: "k" is the first.
my $key = 0;

sub check_orders
{
	my ($what, $expected, @changes) = @_;
	my $base = microseconds() - 1_000_000;
	my @orders = grep { in_order($_) } permutations(@changes);
	my $first = $key + 10;
	my @results;

	foreach my $step (0 .. $#changes)
	{
		$key = $first;
		foreach my $order (@orders)
		{
			my ($i, $time, @make) = @{ $order->[$step] };

			publish($i, $base + $time, map { $_->() } @make);
			$key += 10;
		}
		arrived(1 .. 3);
	}

	$key = $first;
	foreach my $order (@orders)
	{
		push @results,
		  query($node,
			"SELECT coalesce(string_agg(id - $key || v, ' ' ORDER BY id), '') FROM t WHERE id / 10 = $key / 10"
		  );
		diag(join ' ', map { "$_->[0]\@$_->[1]" } @$order)
		  if $results[-1] ne $expected;
		$key += 10;
	}
	is_deeply(
		\@results,
		[ map { $expected } @orders ],
		"$what, in " . @orders . ' orders');
	return;
}

sub k { return $key + ($_[0] // 0) }

check_orders(
	'three inserts',
	'0c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { insert(k(), 'b') } ],
	[ 3, 3, sub { insert(k(), 'c') } ]);
check_orders(
	'the same time',
	'0c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 1, sub { insert(k(), 'b') } ],
	[ 3, 1, sub { insert(k(), 'c') } ]);
check_orders(
	'a delete comes last',
	'',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { update(k(), 'b') } ],
	[ 3, 3, sub { del(k()) } ]);
check_orders(
	'an update is newer than a delete',
	'0c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { del(k()) } ],
	[ 3, 3, sub { update(k(), 'c') } ]);
check_orders(
	'an insert is newer than a delete',
	'0c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { del(k()) } ],
	[ 3, 3, sub { insert(k(), 'c') } ]);
check_orders(
	'two deletes', '',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 3, sub { del(k()) } ],
	[ 3, 2, sub { del(k()) } ]);
check_orders(
	'again and again',
	'0d',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 1, 3, sub { del(k()) } ],
	[ 2, 2, sub { update(k(), 'b') } ],
	[ 3, 4, sub { insert(k(), 'd') } ]);
check_orders(
	'deleted and inserted in one transaction',
	'0c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { update(k(), 'b') } ],
	[ 3, 3, sub { del(k()) }, sub { insert(k(), 'c') } ]);
check_orders(
	'a key changes, the old row later',
	'0c 1b',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { move(k(), k(1), 'b') } ],
	[ 3, 3, sub { update(k(), 'c') } ]);
check_orders(
	'a key changes, the old row before',
	'1c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { update(k(), 'b') } ],
	[ 3, 3, sub { move(k(), k(1), 'c') } ]);
check_orders(
	'a key changes to one that is there',
	'1b',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 3, sub { move(k(), k(1), 'b') } ],
	[ 3, 2, sub { insert(k(1), 'c') } ]);
check_orders(
	'two different keys',
	'1b 2c',
	[ 1, 1, sub { insert(k(), 'a') } ],
	[ 2, 2, sub { move(k(), k(1), 'b') } ],
	[ 3, 3, sub { move(k(), k(2), 'c') } ]);
check_orders(
	'a unique value',
	'1b',
	[ 1, 1, sub { insert(k(), 'a', k(5)) } ],
	[ 2, 2, sub { insert(k(1), 'b', k(5)) } ]);
check_orders(
	'a unique value by an update',
	'1c',
	[ 1, 1, sub { insert(k(), 'a', k(5)) } ],
	[ 2, 2, sub { insert(k(1), 'b', k(6)) } ],
	[ 2, 3, sub { update(k(1), 'c', k(5)) } ]);
check_orders(
	'a row that has lost a unique value is not replaced by an older one',
	'1b',
	[ 1, 1, sub { insert(k(), 'a', k(6)) } ],
	[ 2, 3, sub { insert(k(1), 'b', k(5)) } ],
	[ 3, 2, sub { insert(k(), 'c', k(5)) } ]);

####
#### A publisher whose clock is ahead
####

# Far enough ahead to observe the waiting, however slow the machine is.
my $start = time;
publish(2, microseconds(), insert(4, 'before'));
arrived(2);
query($node, 'SELECT 1');
my $ahead = 12 + 10 * (time - $start);
publish(1, microseconds() + $ahead * 1_000_000, insert(1, 'from the future'));
poll($node,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'WeftWriterClock')}
);
pass("a transaction waits for the subscriber's clock");
publish(2, microseconds(), insert(2, 'from now'));
arrived(2);
is(query($node, 'SELECT v FROM t WHERE id IN (1, 2)'),
	'from now', 'other transactions do not wait for that');
arrived(1);
is( query(
		$node,
		'SELECT clock_timestamp() > pg_xact_commit_timestamp(xmin) FROM t WHERE id = 1'
	),
	't',
	"it is applied once the subscriber's clock has passed its time");
publish(3, microseconds() + 500_000, insert(3, 'remote'));
arrived(3);
my $commit_time = 'SELECT pg_xact_commit_timestamp(xmin) FROM t WHERE id = 3';
my $remote = query($node, $commit_time);
query($node, "UPDATE t SET v = 'local' WHERE id = 3");
is(query($node, "SELECT ($commit_time) > '$remote'"),
	't', "therefore a session's change of it is newer");
is(errors_logged($node), '', 'no errors');

drop_subscription(1 .. 3);
$pub->stop;
done_testing();
