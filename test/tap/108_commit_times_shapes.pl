# Transactions that share a commit keep the times of all rows that they change: in tables with
# keys of many types, in large numbers, by the server's own code, and where counters are merged.
# The publisher is simulated in Perl; it writes each transaction's commit time into its rows.

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

my ($int4, $int8, $text) = (23, 20, 25);
my $node = new_member('node',
	conf => "weft.tune_writers = off\nweft.ring_size = 64MB\n");
my $pub = FakePublisher->new(log => $node->logfile);

# Keys: type, its OID, and the text of the i-th value.
my @keys = (
	[ 'text', $text, sub { "key $_[0]" } ],
	[ 'text COLLATE nocase', $text, sub { "KEY $_[0]" } ],
	# stored compressed
	[ 'text', $text, sub { "$_[0]" . 'x' x 4000 } ],
	[ 'char(10)', 1042, sub { "key $_[0]" } ],
	[ '"char"', 18, sub { chr(ord('0') + $_[0]) } ],
	[ 'name', 19, sub { "key $_[0]" } ],
	[ 'numeric', 1700, sub { "$_[0].50" } ],
	[ 'float8', 701, sub { "$_[0].25" } ],
	[ 'smallint', 21, sub { -$_[0] } ],
	[ 'bigint', $int8, sub { $_[0] << 40 } ],
	[ 'uuid', 2950, sub { sprintf '00000000-0000-0000-0000-%012d', $_[0] } ],
	[
		'timetz', 1266,
		sub { sprintf '12:00:%02d+0%d', $_[0], $_[0] % 3 }
	],
	[ 'interval', 1186, sub { "$_[0] days 01:00:00" } ],
	[ 'inet', 869, sub { "10.0.0.$_[0]/24" } ],
	[ 'int[]', 1007, sub { "{$_[0],NULL,7}" } ],
	[ 'point_key', 0, sub { "($_[0],\"a \"\"b\"\"\")" } ],);

query($node, <<'EOS');
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE point_key AS (x int, y text);
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE many (id int PRIMARY KEY, v text);
CREATE TABLE pair (a int, v text, b text, PRIMARY KEY (b, a));
CREATE TABLE generated (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (1000);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (1000) TO (2000);
CREATE TABLE counter (id int PRIMARY KEY, v text, n int NOT NULL);
ALTER TABLE counter REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('counter', '{n}');
INSERT INTO weft.conflict_node VALUES ('', 2);
EOS
$keys[-1]->[1] = query($node, "SELECT 'point_key'::regtype::oid");

my $next_relid = 16001;
my @tables;

sub publish_table
{
	my ($name, $replident, @columns) = @_;
	$pub->relation($next_relid, 'public', $name, $replident, \@columns);
	push @tables, $name;
	return $next_relid++;
}
my $t =
  publish_table('t', 'd', [ 'id', $int4, 1 ], [ 'v', $text, 0 ]);
my $many =
  publish_table('many', 'd', [ 'id', $int4, 1 ], [ 'v', $text, 0 ]);
my $generated =
  publish_table('generated', 'd', [ 'id', $int4, 1 ], [ 'v', $text, 0 ]);
my $pair = publish_table(
	'pair', 'd',
	[ 'a', $int4, 1 ],
	[ 'v', $text, 0 ],
	[ 'b', $text, 1 ]);
my $part =
  publish_table('part', 'd', [ 'id', $int4, 1 ], [ 'v', $text, 0 ]);
my $leaf =
  publish_table('part_1', 'd', [ 'id', $int4, 1 ], [ 'v', $text, 0 ]);
my $counter = publish_table(
	'counter', 'f',
	[ 'id', $int4, 1 ],
	[ 'v', $text, 1 ],
	[ 'n', $int4, 1 ]);

foreach my $i (0 .. $#keys)
{
	my ($type, $oid) = @{ $keys[$i] };
	query($node, "CREATE TABLE key_$i (k $type PRIMARY KEY, v text)");
	push @{ $keys[$i] },
	  publish_table("key_$i", 'd', [ 'k', $oid, 1 ], [ 'v', $text, 0 ]);
}

subscribe_to($node, $pub, \@tables, 1 => 1, 3 => 1);

my $time = microseconds() - 100_000_000;

publish(1, ++$time, msg_insert($t, [ 0, $time ]));
arrived(1);

# Sends transactions of s1, each [time, change ...], as a group.
sub send_group
{
	my (@transactions) = @_;

	$time++;
	publish_together(
		1,
		{
			blocker => 'id = 0',
			first => [ $time, msg_update($t, [ 0, $time ]) ]
		},
		@transactions);
	return;
}

# Every row's v is the time of its last change, in microseconds.
sub check
{
	my ($what) = @_;
	foreach my $table (@tables)
	{
		is( query(
				$node,
				"SELECT count(*) FROM $table WHERE weft.row_commit_timestamp(tableoid, ctid)"
				  . " IS DISTINCT FROM '2000-01-01 00:00:00+00'::timestamptz + v::bigint * interval '1 microsecond'"
			),
			0,
			"$what: times of $table");
	}
	return;
}

# Is the number of commits lower than that of transactions?
sub check_shared
{
	my ($what, $table, $transactions) = @_;
	my $commits = query($node,
		"SELECT count(DISTINCT xmin::text) FROM $table WHERE v <> '0'");
	cmp_ok($commits, '<', $transactions,
		"$what: $transactions transactions have shared $commits commits");
	return;
}

# The times decrease from one transaction to the next.
my $members = 20;
foreach my $kind ('insert', 'update', 'new key')
{
	my @transactions;
	my $shift = $kind eq 'new key' ? 30 : 0;
	$time += 1000;
	foreach my $i (1 .. $members)
	{
		my $at = $time + 500 - $i;
		my @changes;
		foreach my $key (@keys)
		{
			my ($type, $oid, $value, $relid) = @$key;
			my @new = ($value->($i + $shift), $at);
			push @changes,
				$kind eq 'insert' ? msg_insert($relid, \@new)
			  : $kind eq 'update' ? msg_update($relid, \@new)
			  :   msg_update($relid, \@new, key => [ $value->($i), undef ]);
		}
		my @pair = ($i % 3, $at, "b$i");
		my @generated = ($i, $at);
		push @changes,
		  $kind eq 'insert'
		  ? (msg_insert($pair, \@pair), msg_insert($generated, \@generated))
		  : (msg_update($pair, \@pair), msg_update($generated, \@generated));
		push @transactions, [ $at, @changes ];
	}
	send_group(@transactions);
	check($kind);
	check_shared($kind, 'pair', $members);
	is(query($node, "SELECT count(*) FROM key_$_"),
		$members, "$kind: no row of key_$_ is missing")
	  foreach 0 .. $#keys;
}

# More rows than one row of weft.row_time lists, and more than a group lists.
foreach my $count (700, 4200)
{
	foreach my $round (1 .. 3)
	{
		my @transactions;
		my $id = 10_000 * $count + 10_000 * $round;
		foreach my $i (1 .. 6)
		{
			my $n = $i == 2 ? $count : 1;
			$time += 10;
			push @transactions,
			  [ $time, map { msg_insert($many, [ $id++, $time ]) } 1 .. $n ];
		}
		send_group(@transactions);
	}
	check("$count rows");
}
cmp_ok(query($node, 'SELECT max(part) FROM weft.row_time'),
	'>', 0, 'a group has needed several rows of weft.row_time');

# The server's own code routes rows to partitions, some of which are listed by then.
my @transactions;
foreach my $i (1 .. 10)
{
	my @times = map { $time += 10 } 1 .. 5;
	push @transactions,
	  [ $times[0], msg_insert($t, [ $i, $times[0] ]) ],
	  [ $times[1], msg_insert($leaf, [ $i, $times[1] ]) ],
	  [ $times[2], msg_update($part, [ $i, $times[2] ]) ],
	  [ $times[3], msg_insert($part, [ 1000 + $i, $times[3] ]) ],
	  [ $times[4], msg_update($t, [ $i, $times[4] ]) ];
}
send_group(@transactions);
check('partitions');

# Of row i, s3 has a newer version than the first transaction of s1 that changes it: only the
# counter is merged.  The second one, perhaps in the same group, is newer, and must
# remain so when s3's next change comes.
$time += 1000;
my $base = $time;
publish(1, $base, map { msg_insert($counter, [ $_, $base, 0 ]) } 1 .. 20);
arrived(1);
publish(
	3,
	$base + 100,
	map {
		msg_update($counter, [ $_, $base + 100, 1 ], old => [ $_, $base, 0 ])
	} 1 .. 20);
arrived(3);
send_group(
	map {
		(   [
				$base + 50,
				msg_update(
					$counter,
					[ $_, $base + 50, 10 ],
					old => [ $_, $base, 0 ])
			],
			[
				$base + 300,
				msg_update(
					$counter,
					[ $_, $base + 300, 110 ],
					old => [ $_, $base + 50, 10 ])
			],
			[ $base + 400, msg_insert($t, [ 100 + $_, $base + 400 ]) ])
	} 1 .. 20);
publish(
	3,
	$base + 200,
	map {
		msg_update(
			$counter,
			[ $_, $base + 200, 1001 ],
			old => [ $_, $base + 100, 1 ])
	} 1 .. 20);
arrived(3);
is( query(
		$node, "SELECT count(*), min(v), max(v), min(n), max(n) FROM counter"
	),
	join('|', 20, $base + 300, $base + 300, 1111, 1111),
	'counters are merged, and the newest change has won');

# What a snapshot sees, it sees with its exact time, even if that has been removed since: so
# does a node that joins.
my $of_t = <<'EOS';
SELECT count(*) FROM t WHERE id > 0 AND weft.row_commit_timestamp(tableoid, ctid)
	IS DISTINCT FROM '2000-01-01 00:00:00+00'::timestamptz + v::bigint * interval '1 microsecond'
EOS
my $of_join = <<'EOS';
SELECT count(*) FROM weft.member_recent_rows('t', '{id}', '2000-01-01') r JOIN t ON t.id::text = r.row_key[1]
WHERE id > 0 AND r.changed IS DISTINCT FROM '2000-01-01 00:00:00+00'::timestamptz + v::bigint * interval '1 microsecond'
EOS
my $session = open_session($node);
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT');
is(query($node, $of_t), 0, 'times are exact');
query($node, 'DELETE FROM weft.row_time');
cmp_ok(query($node, $of_t), '>', 0, 'times have been removed');
is($session->query_safe($of_t), 0, 'a snapshot still sees them');
is($session->query_safe($of_join), 0, 'so does a joining node');
$session->query_safe('COMMIT');
$session->quit;

is( query(
		$node,
		"SELECT count(weft.member_row_version('part'::regclass, '(0,1)'))"),
	0,
	'a partitioned table has no rows of its own');

is(errors_logged($node), '', 'no errors');
drop_subscription(1, 3);
$pub->stop;
done_testing();
