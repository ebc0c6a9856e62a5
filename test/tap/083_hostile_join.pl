# A node joins a group whose first member has tables of a hostile owner: its tables are
# what they are there, and nothing that the owner has written in names and literals is
# run.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_FIRST_SEED the first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use HostileSchema;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seeds = $ENV{WEFT_SEEDS} // 2;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my ($a, $b) = map { new_member($_) } qw(a b);

query_all([ $a, $b ], "CREATE ROLE $owner");
query($a, <<'EOS');
CREATE TABLE public.bystander (id int PRIMARY KEY);
CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
EOS
my $before = traces($a);

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	srand($seed);
	query($a,
		'ALTER DATABASE postgres SET standard_conforming_strings = '
		  . ($seed % 2 ? 'on' : 'off'));
	my @schemas = map { hostile_schema($a, 'postgres', 2) } 1 .. 2;

	create_group($a, 'g');
	join_group($b, $a, 'g');
	is(traces($b), $before, "seed $seed: nothing hostile is run");
	same_rows(definition($b), definition($a),
		"seed $seed: the schemas are equal");

	query($a, "SELECT weft.part_node('b')");
	foreach my $node ($b, $a)
	{
		query($node, "SELECT weft.leave_node_group()") if $node == $a;
		query($node, "SELECT weft.drop_node('" . $node->name . "')");
		query($node,
			"SET client_min_messages = warning; SET client_encoding = 'UTF8';"
			  . join(';', map { "DROP SCHEMA $_ CASCADE" } @schemas));
	}
	query($b, 'DROP TABLE public.bystander; DROP FUNCTION public.nothing()');
}
$_->stop foreach $a, $b;
done_testing();
