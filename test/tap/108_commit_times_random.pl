# Random changes of three publishers, whose transactions share commits: whatever the order in which
# the groups arrive, the newest change of each row counts.  The publishers are simulated in Perl.
# Transactions that are neighbours in a group have equal commit times, or such that are 1 us
# apart, or decreasing ones; those of the others lie in between.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use FakePublisher;
use List::Util qw(max shuffle);
use PgOutput;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use TimedPublisher;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $rounds = $ENV{WEFT_ROUNDS} // 3;
my $seed = $ENV{WEFT_SEED} // time() % 1_000_000;
srand($seed);
note("WEFT_SEED=$seed");

# Rows that change, transactions of each publisher, and groups in which these arrive.
my ($rows, $transactions, $groups) = (24, 32, 2);
my ($int4, $text, $relid) = (23, 25, 16001);
my $node = new_member('node', conf => "weft.tune_writers = off\n");
my $pub = FakePublisher->new(log => $node->logfile);

query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
SELECT weft.track_deletes('t');
INSERT INTO weft.conflict_node VALUES ('', 4);
INSERT INTO t VALUES (-1, ''), (-2, ''), (-3, '')
EOS
$pub->relation($relid, 'public', 't', 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ] ]);
subscribe_to($node, $pub, ['t'], 1 => 1, 2 => 2, 3 => 4);

# A change of row "id": [kind, id, value].
sub message
{
	my ($offset, $kind, $id, $v) = @_;
	return $kind eq 'delete'
	  ? msg_delete($relid, key => [ $offset + $id, undef ])
	  : $kind eq 'insert' ? msg_insert($relid, [ $offset + $id, $v ])
	  :                     msg_update($relid, [ $offset + $id, $v ]);
}

# The transactions of a publisher: [time, change ...].  Of one row, a publisher's times never
# decrease, since a transaction that changes a row has waited for the one before.
sub make_transactions
{
	my ($i, $base) = @_;
	my $time = $base + int(rand(20));
	my (%last, %exists, @result);

	foreach my $n (1 .. $transactions)
	{
		my $step = int(rand(8));
		$time +=
			$step < 2 ? 0
		  : $step < 4 ? 1
		  : $step < 6 ? -1
		  : $step < 7 ? -int(rand(15))
		  :             int(rand(15));
		my @ids = (shuffle(1 .. $rows))[ 0 .. int(rand(3)) ];
		$time = max($time, map { $last{$_} // $base } @ids);
		$last{$_} = $time foreach @ids;
		push @result, [
			$time,
			map {
				my $kind =
					!$exists{$_} ? 'insert'
				  : rand() < 0.2 ? 'delete'
				  :                'update';
				$exists{$_} = $kind ne 'delete';
				[ $kind, $_, "node $i, transaction $n" ]
			} @ids
		];
	}
	return \@result;
}

# The newest change of each row.
sub expect
{
	my ($all) = @_;
	my %newest;

	foreach my $i (1 .. 3)
	{
		foreach my $transaction (@{ $all->{$i} })
		{
			my ($time, @changes) = @$transaction;
			foreach my $change (@changes)
			{
				my ($kind, $id, $v) = @$change;
				my $old = $newest{$id};
				$newest{$id} = [ $time, $kind, $v ]
				  unless $old && $old->[0] > $time;
			}
		}
	}
	return join "\n", map { "$_: $newest{$_}->[2]" }
	  grep { $newest{$_}->[1] ne 'delete' } sort { $a <=> $b } keys %newest;
}

# Sends transactions as a group.
my $turn = 0;

sub send_group
{
	my ($i, $offset, @transactions) = @_;
	my @group;

	foreach my $transaction (@transactions)
	{
		my ($time, @changes) = @$transaction;
		push @group, [ $time, map { message($offset, @$_) } @changes ];
	}
	publish_together(
		$i,
		{
			blocker => "id = -$i",
			first =>
			  [ $transactions[0]->[0], msg_update($relid, [ -$i, ++$turn ]) ]
		},
		@group);
	return;
}

my $offset = 0;
foreach my $round (1 .. $rounds)
{
	my $base = microseconds() - 100_000_000;
	my %all = map { $_ => make_transactions($_, $base) } 1 .. 3;
	my $expected = expect(\%all);

	foreach my $order (1 .. 3)
	{
		my %left = map { $_ => [ @{ $all{$_} } ] } 1 .. 3;
		my @order = shuffle((1 .. 3) x $groups);

		foreach my $i (@order)
		{
			my $size = $transactions / $groups;
			send_group($i, $offset, splice @{ $left{$i} }, 0, $size);
		}
		my $got = join "\n",
		  map { my ($id, $v) = split /\|/; ($id - $offset) . ": $v" }
		  split /\n/,
		  query(
			$node,
			"SELECT id, v FROM t WHERE id > $offset AND id <= $offset + $rows ORDER BY id"
		  );
		is($got, $expected, "round $round, order @order");
		$offset += $rows;
	}
}
cmp_ok(query($node, 'SELECT count(*) FROM weft.row_time'),
	'>', $rounds, 'transactions have shared commits');
cmp_ok(
	query($node, 'SELECT sum(length(entries)) / 12 FROM weft.row_time'),
	'>=',
	20 * $rounds,
	'with different times');
is(errors_logged($node), '', 'no errors');
drop_subscription(1 .. 3);
$pub->stop;
done_testing();
