# Schema changes that need no lock do not stop writers: pgbench writes on all members of a group
# while columns, indexes and tables are added.  No transaction fails.  The longest pause of a client
# is reported, with the longest statement.
#
# WEFT_TEST_STATEMENTS sets the number of statements; with WEFT_TEST_PAUSE, a pause that is that many
# milliseconds longer than the longest statement is an error.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $statements = $ENV{WEFT_TEST_STATEMENTS} // 24;
my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

sub errors
{
	return query($_[0],
		'SELECT coalesce(sum(errors), 0) FROM weft.stat_subscription');
}

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, n bigint NOT NULL, v text);
INSERT INTO t SELECT i, 0, 'x' FROM generate_series(1, 3000) i;
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $c);
wait_for_group('g', @nodes);
my %errors = map { $_->name => errors($_) } @nodes;

# The members write different rows, so that there are no conflicts.
my @loads;
foreach my $i (0 .. 2)
{
	my $prefix = "$PostgreSQL::Test::Utils::tmp_check/pauses_$i";

	push @loads,
	  start_pgbench(
		$nodes[$i],
		{
			"\\set id random(1, 1000) * 3 - $i\nUPDATE t SET n = n + 1 WHERE id = :id;\n"
			  => 1
		},
		'-c' => 2,
		'-j' => 1,
		'-R' => 100,
		'-l',
		'--log-prefix' => $prefix,
		'-T' => 600);
}
poll($_, 'SELECT sum(n) > 100 FROM t') foreach @nodes;

my ($longest, $which) = (0, '');
foreach my $i (1 .. $statements)
{
	# The indexes that are dropped were created on the same member.
	my $node = $nodes[ int($i / 7) % 3 ];
	my $sql = (
		"ALTER TABLE t ADD COLUMN c$i int DEFAULT $i",
		"CREATE TABLE t$i (id int PRIMARY KEY)",
		"CREATE INDEX t_v$i ON t (v)",
		"ALTER TABLE t ADD COLUMN d$i text",
		"DROP INDEX IF EXISTS t_v" . ($i - 2),
		"CREATE INDEX CONCURRENTLY t_c$i ON t (v, n)",
		"DROP INDEX CONCURRENTLY IF EXISTS t_c" . ($i - 1))[ $i % 7 ];
	my $start = time;

	query($node, $sql);
	my $duration = time - $start;
	($longest, $which) = ($duration, $sql) if $duration > $longest;
	wait_for_group('g', @nodes) if $i % 7 == 4;
}
wait_for_group('g', @nodes);
poll($_, 'SELECT count(*) = 0 FROM weft.ddl_concurrent') foreach @nodes;
end_load($_) foreach @loads;
wait_for_group('g', @nodes);
same_everything($a, $_, 'a and ' . $_->name) foreach ($b, $c);
is(errors($_), $errors{ $_->name }, 'no errors on ' . $_->name)
  foreach @nodes;

# The longest transaction that pgbench has logged: time, in microseconds.
my $pause = 0;
foreach my $i (0 .. 2)
{
	foreach my $file (glob "$PostgreSQL::Test::Utils::tmp_check/pauses_$i.*")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			my $time = (split / /, $line)[2] / 1000;
			$pause = $time if $time > $pause;
		}
	}
}
foreach my $load (@loads)
{
	like(
		$load->{output},
		qr/number of failed transactions: 0 /,
		'no transaction of ' . $load->{node}->name . ' fails');
}
note(sprintf 'longest pause %.0f ms, longest statement %.0f ms: %s',
	$pause, $longest * 1000, $which);
ok( $pause < $longest * 1000 + $ENV{WEFT_TEST_PAUSE},
	'no pause is much longer than a statement') if $ENV{WEFT_TEST_PAUSE};

done_testing();
