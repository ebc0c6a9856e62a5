# Several subscriptions and subscribers: a switch-over never opens what another one has closed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');
my $other = new_subscriber('other');
my @nodes = ($pub, $sub, $other);

query_all(\@nodes,
	'CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)');
query($pub, 'CREATE PUBLICATION pub_a FOR TABLE a; CREATE PUBLICATION pub_b FOR TABLE b');

sub who
{
	my ($table, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(accepting($table, @nodes), $expected, "$what: who accepts writes to $table");
	return;
}

# Two subscribers: the first one that succeeds has the publisher.
subscribe($pub, $sub, 'sub', 'pub_a');
subscribe($pub, $other, 'other', 'pub_a');
wait_for_apply($pub, $sub, 'sub');
wait_for_apply($pub, $other, 'other');
is(switch_over($sub, 'sub'), '', 'one subscriber takes over');
query($other, 'INSERT INTO a VALUES (1000)');
like(
	switch_over($other, 'other'),
	qr/the fence of the publisher .* belongs to another switch-over/,
	'another one cannot');
query($other, 'DELETE FROM a');
who('a', 'subscriber other', 'after a failure of the other');
like(
	switch_over($other, 'other', "verify => 'none'"),
	qr/belongs to another switch-over/,
	'nor if nothing differs');
who('a', 'subscriber other', 'after a second failure of the other');
is(switch_back($sub, 'sub'), '', 'switched back');
who('a', 'publisher other', 'after the way back');

# Two subscriptions of one database.
subscribe($pub, $sub, 'sub_b', 'pub_b');
wait_for_apply($pub, $sub, 'sub_b');
like(
	switch_over($sub, 'sub'),
	qr/another subscription replicates from the same database/,
	'another subscription would be left behind');
is( query($sub,
		"SELECT object || ' ' || severity FROM weft.switch_over_plan('sub') WHERE check_name = 'same_publisher'"
	),
	'sub_b error',
	'it is in the plan');

# The slot of the other one has another name there: the plan does not see it.
query($sub, 'ALTER SUBSCRIPTION sub_b DISABLE');
query($sub, 'ALTER SUBSCRIPTION sub_b SET (slot_name = NONE)');
is(switch_over($sub, 'sub'), '', 'switched over');
query($sub, 'ALTER SUBSCRIPTION sub_b SET (slot_name = sub_b)');
query($sub, 'ALTER SUBSCRIPTION sub_b ENABLE');
query($sub, 'INSERT INTO b VALUES (1000)');
like(
	switch_over($sub, 'sub_b'),
	qr/belongs to another switch-over/,
	'refused to another subscription');
who('a', 'subscriber other', 'after a failure of another subscription');
who('b', 'publisher subscriber other', 'which is not concerned');
done_testing();
