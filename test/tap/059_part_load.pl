# Three nodes accept writes to the same rows.  Again and again one of them parts under
# this load, at the request of any member, and joins again.  It keeps writing while it
# parts, and some open transactions span the end.  Once all changes have arrived, the
# remaining nodes have the same rows: everything that the parting node had committed
# before it was asked to part, and no transaction in part.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_FIRST_SEED the first
# (default 1), WEFT_ROUNDS how often a node parts with each seed (default 1).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seeds = $ENV{WEFT_SEEDS} // 2;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $rounds = $ENV{WEFT_ROUNDS} // 1;
my @nodes = map { new_member($_) } qw(a b c);
my @tables = qw(account history);

# Each transaction writes to both tables; "n" is the number of its rows.
my $schema = <<'EOS';
CREATE TABLE account (id int PRIMARY KEY, owner text NOT NULL, stamp bigint NOT NULL);
CREATE TABLE history (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	node text NOT NULL, stamp bigint NOT NULL, n int NOT NULL);
EOS
my $script = <<'EOS';
\set hot random(1, 40)
\set stamp random(1, 1000000000000)
BEGIN;
INSERT INTO history (node, stamp, n) VALUES (':name', :stamp, 2);
UPDATE account SET owner = ':name', stamp = :stamp WHERE id = :hot;
INSERT INTO history (node, stamp, n) VALUES (':name', :stamp, 2);
COMMIT;
EOS

my %load;

sub start_load
{
	my ($node) = @_;
	my $name = $node->name;

	$load{$name} = start_pgbench(
		$node, { $script =~ s/:name/$name/gr => 1 },
		'-c' => 2,
		'-T' => 600);
	return;
}

sub end_all_loads
{
	end_load($load{$_}) foreach sort keys %load;
	%load = ();
	return;
}

sub transactions
{
	my ($member, $from) = @_;
	return query($member,
		sprintf "SELECT count(*) FROM history WHERE node = '%s'",
		$from->name);
}

# Waits until some more of a node's transactions have reached a member.
sub load_goes_on
{
	my ($member, $from) = @_;

	poll(
		$member,
		sprintf "SELECT count(*) >= %d FROM history WHERE node = '%s'",
		transactions($member, $from) + 200,
		$from->name);
	return;
}

# One node parts while all nodes are being written to.
sub part_amid_load
{
	my ($what, $parting, $asked, @staying) = @_;

	start_load($_) foreach @nodes;
	foreach my $from (@nodes)
	{
		load_goes_on($_, $from) foreach @nodes;
	}

	# one that is open the whole time; nobody may see half of it
	my $open = open_session($parting);
	$open->query_safe(
		"BEGIN; INSERT INTO history (node, stamp, n) VALUES ('open', 0, 2)");
	my $before = query(
		$parting,
		sprintf
		  "SELECT array_agg(id) FROM (SELECT id FROM history WHERE node = '%s' ORDER BY id LIMIT 2000) h",
		$parting->name);
	# In the end, parting drops triggers, and waits for the locks.
	my $part = open_session($asked);
	$part->query_until(
		qr/begun/,
		sprintf "\\echo begun\nSELECT weft.part_node('%s');\n\\echo parted\n",
		$parting->name);
	my ($first) = grep { $_ != $asked } @staying;
	poll($first,
		sprintf "SELECT count(*) = 0 FROM weft.node WHERE node_name = '%s'",
		$parting->name);
	$open->query_safe(
		"INSERT INTO history (node, stamp, n) VALUES ('open', 0, 2); COMMIT");
	$open->quit;
	$part->query_until(qr/parted/, '');
	is($part->{stderr}, '', "$what: no error");
	$part->quit;
	load_goes_on($parting, $parting);
	load_goes_on($staying[0], $staying[1]);
	end_all_loads();

	wait_for_group('g', @staying);
	same_on_all(\@staying, \@tables, $what);
	is( query(
			$staying[0],
			"SELECT count(*) FROM unnest('$before'::uuid[]) i WHERE i NOT IN (SELECT id FROM history)"
		),
		0,
		"$what: no change that was written before is missing");
	is( query(
			$_,
			'SELECT count(*) FROM (SELECT FROM history GROUP BY node, stamp HAVING count(*) <> max(n))'
		),
		0,
		"$what: no transaction in part on " . $_->name) foreach @staying;
	cmp_ok(
		transactions($parting, $parting),
		'>',
		transactions($staying[0], $parting),
		"$what: it continued to write");
	return;
}

# It joins again while the others write.
sub join_amid_load
{
	my ($what, $joining, $target, @staying) = @_;

	query($joining, 'DROP TABLE account, history');
	start_load($_) foreach @staying;
	join_group($joining, $target, 'g');
	start_load($joining);
	load_goes_on($_, $joining) foreach @staying;
	end_all_loads();
	wait_for_group('g', @nodes);
	same_on_all(\@nodes, \@tables, "$what, joined again");
	return;
}

query($nodes[0], $schema);
query($nodes[0],
	"INSERT INTO account SELECT i, 'nobody', 0 FROM generate_series(1, 40) i"
);
create_group($nodes[0], 'g');
join_group($_, $nodes[0], 'g') foreach @nodes[ 1, 2 ];

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	srand $seed;
	foreach my $round (1 .. $rounds)
	{
		my $parting = $nodes[ rand @nodes ];
		my $asked = $nodes[ rand @nodes ];
		my @staying = grep { $_ != $parting } @nodes;
		my $what = sprintf 'seed %d, round %d, "%s" parted by "%s"',
		  $seed, $round, $parting->name, $asked->name;

		part_amid_load($what, $parting, $asked, @staying);
		join_amid_load($what, $parting, $staying[ rand @staying ], @staying);
	}
}
$_->stop foreach @nodes;
done_testing();
