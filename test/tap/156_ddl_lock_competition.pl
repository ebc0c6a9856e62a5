# Two members change the same tables at the same time, with the lock of the group, while pgbench writes to these
# tables on all members: one waits for the other, or finds what it has made; nobody hangs, there is no deadlock,
# and both have the same schema in the end.
#
# WEFT_TEST_ATTEMPTS sets how often they compete.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $attempts = $ENV{WEFT_TEST_ATTEMPTS} // 12;
my @nodes =
  map { new_member($_, conf => "max_worker_processes = 40\n") } qw(a b c);
my ($a, $b, $c) = @nodes;

# What both do, and how many of them fail.
my @kinds = (
	{
		name => 'the same change',
		sql => [
			('ALTER TABLE t ADD CONSTRAINT same%1$d CHECK (id <> -%1$d)') x 2
		],
		failures => 1
	},
	{
		name => 'two changes of a table',
		sql => [
			map {
				"ALTER TABLE t ADD CONSTRAINT ${_}%1\$d CHECK (id <> -%1\$d)"
			} qw(one two)
		],
		failures => 0
	},
	{
		name => 'two tables in different orders',
		sql => [
			map {
				"BEGIN; ALTER TABLE $_->[0] ALTER v SET DEFAULT %1\$d; ALTER TABLE $_->[1] ALTER v SET DEFAULT %1\$d; COMMIT"
			}[ 't', 'other' ],
			[ 'other', 't' ]
		],
		failures => 0
	},
	{
		name => 'a type and a name',
		sql => [
			'ALTER TABLE other ALTER n TYPE %3$s',
			'ALTER TABLE other RENAME w%1$d TO w%2$d'
		],
		failures => 0
	});

query($a, <<'EOS');
CREATE TABLE t (id bigint PRIMARY KEY, v int);
CREATE TABLE other (id bigint PRIMARY KEY, v int, n int, w3 int);
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
poll($_,
	"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
) foreach @nodes;

# The members write different rows; a transaction for each, since one that uses the tables in another order than a
# schema change can be part of a deadlock, as on a single server.
my $script = <<'EOS';
\set id random(1, 1000000000000)
INSERT INTO t VALUES (:id::bigint * 10 + :node);
INSERT INTO other VALUES (:id::bigint * 10 + :node);
EOS
my $number = 0;
my @prefixes =
  map { "$PostgreSQL::Test::Utils::tmp_check/competition_" . $_->name }
  @nodes;
my @loads = map {
	start_pgbench(
		$_, { $script =~ s/:node/$number/gr => 1 },
		'-c' => 2,
		'-j' => 1,
		'-R' => 100,
		'-l',
		'--log-prefix' => $prefixes[ $number++ ],
		'-T' => 3600)
} @nodes;
poll($_, 'SELECT count(*) > 100 FROM t') foreach @nodes;

my %longest;
foreach my $i (1 .. $attempts)
{
	my $kind = $kinds[ $i % @kinds ];
	my ($first, $second) = $i % 8 < 4 ? ($a, $b) : ($c, $b);
	my @values = ($i, $i + @kinds, $i % 8 < 4 ? 'bigint' : 'int');
	my $start = time;
	my @changes = (
		start_query($first, sprintf $kind->{sql}[0], @values),
		start_query($second, sprintf $kind->{sql}[1], @values));
	my @failed = grep {
		!eval { finish($_); 1 }
	} @changes;

	$longest{ $kind->{name} } =
	  max($longest{ $kind->{name} } // 0, time - $start);
	is(scalar @failed, $kind->{failures}, "$i: $kind->{name}")
	  or diag(map { $_->{output} } @changes);
	like(
		$_->{output},
		qr/"same$i" for relation "t" already exists/,
		"$i: the other one finds the change") foreach @failed;
}
end_load($_) foreach @loads;
foreach my $node (@nodes)
{
	poll($node, 'SELECT count(*) = 0 FROM weft.ddl_lock_status');
}
pass('no lock is left');
wait_for_group('g', @nodes);
same_everything($a, $_, 'a and ' . $_->name) foreach $b, $c;
unlike(
	slurp_file($_->logfile),
	qr/deadlock detected/,
	'no deadlock on ' . $_->name) foreach @nodes;
foreach my $load (@loads)
{
	like(
		$load->{output},
		qr/number of failed transactions: 0 /,
		'no transaction of ' . $load->{node}->name . ' fails');
}
note(sprintf '%-31s longest attempt %.0f ms', $_, $longest{$_} * 1000)
  foreach sort keys %longest;
note(
	sprintf 'longest pause of a writer %.0f ms',
	1000 * max(
		map { $_->[1] - $_->[0] }
		map { logged_transactions($_) } @prefixes));
cmp_ok(max(values %longest), '<', 30, 'the longest attempt was bounded');

done_testing();
