# Schema changes that need no lock do not stop writers: pgbench writes on all members of a group
# while columns, indexes and tables are added.  No transaction fails.  For each kind of statement,
# the longest transaction of a client is reported, and how much longer than the statement it was.
#
# WEFT_TEST_STATEMENTS sets the number of statements, of seven kinds; with WEFT_TEST_PAUSE, each of
# them waits for the one before to be everywhere, and a pause that is that many milliseconds longer
# than the statement is an error.

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
my @prefixes =
  map { "$PostgreSQL::Test::Utils::tmp_check/pauses_$_" } 0 .. 2;
foreach my $i (0 .. 2)
{
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
		'--log-prefix' => $prefixes[$i],
		'-T' => 3600);
}
poll($_, 'SELECT sum(n) > 100 FROM t') foreach @nodes;

# Each statement with its kind, when it ran, and when it had been made everywhere.
my @made;
my @sessions = map { open_session($_) } @nodes;

sub wait_until_made
{
	wait_for_group('g', @nodes);
	poll($_, 'SELECT count(*) = 0 FROM weft.ddl_concurrent') foreach @nodes;
	$_->{everywhere} //= time foreach @made;
	return;
}

foreach my $i (1 .. $statements)
{
	# The indexes that are dropped were created on the same member.
	my $session = $sessions[ int($i / 7) % 3 ];
	my $sql = (
		"ALTER TABLE t ADD COLUMN c$i int DEFAULT $i",
		"CREATE TABLE t$i (id int PRIMARY KEY)",
		"CREATE INDEX t_v$i ON t (v)",
		"ALTER TABLE t ADD COLUMN d$i text",
		"DROP INDEX IF EXISTS t_v" . ($i - 2),
		"CREATE INDEX CONCURRENTLY t_c$i ON t (v, n)",
		"DROP INDEX CONCURRENTLY IF EXISTS t_c" . ($i - 1))[ $i % 7 ];
	my ($kind) = $sql =~ /^((?:[A-Z]+ )+)/;
	my $start = time;

	$session->query_safe($sql);
	push @made, { kind => $kind, start => $start, duration => time - $start };
	wait_until_made() if $ENV{WEFT_TEST_PAUSE} || $i % 7 == 4;
}
wait_until_made();
$_->quit foreach @sessions;
end_load($_) foreach @loads;
wait_for_group('g', @nodes);
same_everything($a, $_, 'a and ' . $_->name) foreach ($b, $c);
is(errors($_), $errors{ $_->name }, 'no errors on ' . $_->name)
  foreach @nodes;

# A transaction may have waited for the longest of the statements that were being made meanwhile.
my $excess = -1;
my %slowest;
foreach my $transaction (map { logged_transactions($_) } @prefixes)
{
	my ($start, $end) = @$transaction;
	my $longest;

	foreach my $statement (@made)
	{
		next
		  if $statement->{start} > $end || $statement->{everywhere} < $start;
		$longest = $statement
		  unless $longest && $longest->{duration} > $statement->{duration};
	}
	next unless $longest;
	my $pause = $end - $start;
	my $of_kind = $slowest{ $longest->{kind} } //= {};

	$of_kind->{pause} = max($pause, $of_kind->{pause} // 0);
	$of_kind->{excess} =
	  max($pause - $longest->{duration}, $of_kind->{excess} // -1);
	$excess = max($excess, $of_kind->{excess});
}
foreach my $load (@loads)
{
	like(
		$load->{output},
		qr/number of failed transactions: 0 /,
		'no transaction of ' . $load->{node}->name . ' fails');
}
foreach my $kind (sort keys %slowest)
{
	my @durations =
	  map { $_->{duration} } grep { $_->{kind} eq $kind } @made;

	note(
		sprintf
		  '%-26s %3d times, up to %4.0f ms; longest pause %4.0f ms, longer than the statement by %4.0f ms',
		$kind,
		scalar @durations,
		map { $_ * 1000 } max(@durations),
		$slowest{$kind}{pause},
		$slowest{$kind}{excess});
}
cmp_ok($excess * 1000,
	'<', $ENV{WEFT_TEST_PAUSE}, 'no pause is much longer than a statement')
  if $ENV{WEFT_TEST_PAUSE};

done_testing();
