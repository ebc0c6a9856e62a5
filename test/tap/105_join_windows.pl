# A joining node dies within every step, after the step's work on other members is done
# and before its own work is committed.  The join continues, or starts again, and in the end
# all members have the same rows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);
my $point = 'weft-join-step';
my $next = 1;

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v int)');
create_group($a, 'g');
join_group($b, $a, 'g');

# Rows that a and b have stored meanwhile.
sub write_rows
{
	foreach my $node ($a, $b)
	{
		query($node, "INSERT INTO t VALUES ($next, 0)");
		query($node, "UPDATE t SET v = v + 1 WHERE id = $next");
		$next++;
	}
	return;
}

# Lets the node continue until it is held in a step, and crashes it there.  Temporary tables do not
# wait for it, although the schema must not change meanwhile.
sub die_in
{
	my ($step) = @_;

	hold_in_step($c, $step);
	write_rows();
	query($c, "SET lock_timeout = '20s'; CREATE TEMPORARY TABLE mine ()");
	flush_wal($c);
	$c->stop('immediate');
	$c->start;
	return;
}

write_rows();
attach_point($c, $point);
start_join($c, $a, 'g');
foreach my $step (
	qw(register make_own_slots make_slots catch_up subscribe follow announce finish)
  )
{
	die_in($step);
	pass("died in step \"$step\"");
	attach_point($c, $point);

	# what weft.wait_for_join_completion does, after a while
	query($c, 'SELECT weft.launch_join()');
}
release_point($c, $point);
wait_for_join($c);
write_rows();
query($c, "INSERT INTO t VALUES ($next, 0)");
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'all members have the same');
is( states($_),
	'a active, b active, c active',
	$_->name . ' knows all members') foreach $a, $b, $c;
is(query($_, 'SELECT count(*) FROM pg_replication_slots'),
	2, $_->name . ' has a slot for each of the others')
  foreach $a, $b, $c;

$_->stop foreach $c, $b, $a;
done_testing();
