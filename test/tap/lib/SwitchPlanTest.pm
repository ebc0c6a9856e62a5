# What the tests of weft.switch_over_plan() share: the pairs of servers, what the plan finds, and
# cases of which each gives a check something to find.
package SwitchPlanTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

our @EXPORT = qw(
  for_each_publisher findings problems has try_cases
);

my %publishers = (stock => {});
my $old = install_path_of(15);
$publishers{15} = { install_path => $old } if $old;

# The servers that are tested, the publisher's version or "stock", and what names of tests begin with.
my ($pub, $sub, $major, $what);

# The findings: check => ["object|severity|problem|remedy"...].
sub findings
{
	my ($arguments, $role) = @_;
	my $separator = '~~';
	my $set = $role ? "SET ROLE $role;" : '';
	my $output = query($sub,
		"$set SELECT concat_ws('$separator', check_name, severity, coalesce(object, ''), coalesce(problem, ''), coalesce(remedy, '')) || '#' FROM weft.switch_over_plan('sub'"
		  . ($arguments // '')
		  . ')');
	my %result;

	foreach my $row (split /#(?:\n|$)/, $output)
	{
		my ($check, $severity, @rest) = split /$separator/, $row, -1;
		push @{ $result{$check} },
		  { severity => $severity, text => join '|', @rest };
	}
	return \%result;
}

# All that is not "ok", but for what is always there.
sub problems
{
	my ($found) = @_;
	return join "\n", sort map {
		my $check = $_;
		map    { "$check|$_->{severity}|$_->{text}" }
		  grep { $_->{severity} ne 'ok' }
		  @{ $found->{$check} }
	} keys %$found;
}

# One test: nothing is found, but for sessions of this test that are just ending.
sub no_problem
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my $problems;

	do
	{
		$problems = problems(findings());
	} while ($problems =~ /^sessions[|]/ && time < $deadline);
	return is($problems, '', $name);
}

# Does any finding fit?
sub has
{
	my ($found, $check, $severity, $object, $problem) = @_;

	return grep {
			 $_->{severity} eq $severity
		  && $_->{text} =~ /^(public\.)?\Q$object\E\|/
		  && index($_->{text}, $problem) > 0
	} @{ $found->{$check} };
}

# Runs a test with a stock publisher of this version, and with the oldest one: test(publisher,
# subscriber, what names of tests begin with, the publisher's version or "stock").  The plan finds
# nothing then.
sub for_each_publisher
{
	my ($test) = @_;

	foreach my $version (sort keys %publishers)
	{
		$major = $version;
		$what = $major eq 'stock' ? '' : "publisher $major: ";
		create_pair();
		no_problem("${what}nothing to complain about");
		$test->($pub, $sub, $what, $major);
		$sub->stop;
		$pub->stop;
	}
	return;
}

sub create_pair
{
	$pub =
	  new_publisher("publisher_$major", %{ $publishers{$major} }, stock => 1);
	$sub = new_subscriber("subscriber_$major",
		conf => 'allow_system_table_mods = on');
	query_all([ $pub, $sub ], <<EOS);
CREATE TABLE t (id serial PRIMARY KEY, a int, b text);
CREATE TABLE "Tä b" (id int PRIMARY KEY);
CREATE TABLE ref (id int PRIMARY KEY, t int REFERENCES t);
CREATE ROLE app LOGIN;
EOS
	query($pub, <<EOS);
INSERT INTO t (a) SELECT generate_series(1, 1000);
CREATE PUBLICATION pub FOR TABLE t, "Tä b", ref;
EOS
	subscribe($pub, $sub, 'sub', 'pub');
	wait_for_apply($pub, $sub, 'sub');
	query($sub, "ANALYZE t; SELECT weft.sync_sequences('sub')");
	return;
}

sub run
{
	my ($node, @sql) = @_;
	my $sql = join "\n", map { "$_;" } map { split /; / } grep { $_ } @sql;

	$node->safe_psql('postgres', $sql) if $sql;
	return;
}

# Workers and settings follow with a delay.
my %late =
  map { $_ => 1 } qw(subscription slot lag settings two_phase slots_here);

sub wait_until_fine
{
	my $checks = join ', ', map { "'$_'" } @_, 'subscription', 'slot',
	  'tables_ready', 'lag';

	poll($sub,
		"SELECT bool_and(severity = 'ok') FROM weft.switch_over_plan('sub') WHERE check_name IN ($checks)"
	);
	return;
}

# The cases in groups that can be tried at once: one of each check in a group.
sub groups
{
	my (%count, @together, @alone);

	foreach my $case (@_)
	{
		if (($case->[8] // '') =~ /A/)
		{
			push @alone, [$case];
			next;
		}
		push @{ $together[ $count{ $case->[0] }++ // 0 ] }, $case;
	}
	return (@together, @alone);
}

sub try_group
{
	my ($group) = @_;

	run($sub, map { $_->[5] } @$group);
	# What follows is to arrive late; and a worker that is still there would end after all is undone.
	poll($pub,
		"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'")
	  if grep { "@$_" =~ /SUBSCRIPTION sub DISABLE/ } @$group;
	run($pub, map { $_->[4] } @$group);
	poll($sub,
		"SELECT count(*) > 0 FROM weft.switch_over_plan('sub') WHERE check_name = '$_->[0]' AND severity = '$_->[1]'"
	) foreach grep { $late{ $_->[0] } } @$group;
	my $found = findings();
	my $one_way =
	  grep({ ($_->[8] // '') =~ /[RW]/ } @$group)
	  ? findings(', false')
	  : {};
	my $missing = 0;

	foreach my $case (@$group)
	{
		my ($check, $severity, $object, $problem) = @$case;
		my $flags = $case->[8] // '';

		ok(has($found, $check, $severity, $object, $problem),
			"$what$check: $problem")
		  or $missing++;
		ok(!exists $one_way->{$check}, "$what$check: not without a way back")
		  if $flags =~ /R/;
		ok( has($one_way, $check, 'warning', $object, $problem),
			"$what$check: a warning without a way back") if $flags =~ /W/;
	}
	diag(problems($found)) if $missing;
	run($pub, map { $_->[6] } reverse @$group);
	run($sub, map { $_->[7] } reverse @$group);
	wait_until_fine(grep { $late{$_} } map { $_->[0] } @$group);
	# This is also the state before the next group.
	no_problem("${what}undone: " . join ', ', map { $_->[0] } @$group);
	return;
}

# Each case: [check, severity, object, part of the problem, SQL there, SQL here, SQL there to
# undo it, SQL here, flags].  Flags: R: only for the way back; A: not together with others;
# W: only a warning if there is no way back.  Cases of different checks are tried together.
sub try_cases
{
	my (@cases) = @_;

	# All of them with the oldest publisher, which every query must suit; a sample with the other.
	my $every = $major eq 'stock' && $publishers{15} ? 5 : 1;

	try_group($_)
	  foreach groups(@cases[ grep { $_ % $every == 0 } 0 .. $#cases ]);
	return;
}

1;
