# A member waits for another one as its synchronous standby.  When that one starts to follow it, and both note
# something about each other before, that does not wait for the subscription which it holds up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
wait_for_group('g', $a, $b);
foreach ([ $a, 'weft_g_a_b' ], [ $b, 'weft_g_b_a' ])
{
	my ($node, $standby) = @$_;

	$node->append_conf('postgresql.conf',
		"synchronous_standby_names = '$standby'");
	$node->reload;
}
poll($_,
	q(SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'))
  foreach $a, $b;

# As if they had never met.
foreach my $node ($a, $b)
{
	query($node, <<'EOS');
SET synchronous_commit = local;
DELETE FROM weft.node_copy c USING weft.node_entry n WHERE c.identity = n.identity AND NOT n.is_local;
DELETE FROM weft.known_origin;
EOS
}
$_->restart foreach $a, $b;
foreach my $node ($a, $b)
{
	my $name = $node->name;

	query($node,
		"SET statement_timeout = '60s'; INSERT INTO t VALUES (ascii('$name'), '$name')"
	);
	pass("$name: a commit that waits for the other one ends");
}
# The timeout would have ended the wait with no more than a warning, and without the row on the other one.
is(query($_, 'SELECT count(*) FROM t'), 2, $_->name . ' has both rows')
  foreach $a, $b;

$_->stop foreach $a, $b;
done_testing();
