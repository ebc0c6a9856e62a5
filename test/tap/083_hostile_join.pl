# A node joins a group whose first member has tables of a hostile owner: the tables are
# the same on the new node, and nothing that the owner has written in names and literals
# is executed.
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
		  . ($seed % 2 || major() >= 19 ? 'on' : 'off'));
	my @schemas = map { hostile_schema($a, 'postgres', 2) } 1 .. 2;

	create_group($a, 'g');
	join_group($b, $a, 'g');
	is(traces($b), $before, "seed $seed: no hostile code is executed");
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
# Functions of that owner, which are called while the schema is restored.
query($a, <<'EOS');
ALTER DATABASE postgres RESET standard_conforming_strings;
CREATE SCHEMA traps AUTHORIZATION hostile;
SET ROLE hostile;
CREATE FUNCTION traps.trap(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	RAISE WARNING 'the trap was called by %', current_user;
	PERFORM pg_catalog.set_config('search_path', 'traps', false);
	RETURN $1;
END $$;
CREATE FUNCTION traps.inlined(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT traps.trap($1)';
CREATE DOMAIN traps.checked AS text CHECK (traps.trap(VALUE) <> '');
CREATE TYPE traps.pair AS (a traps.checked, b int);
CREATE FUNCTION traps.add(traps.checked, text) RETURNS traps.checked IMMUTABLE LANGUAGE sql AS 'SELECT ($1 || $2)::traps.checked';
CREATE AGGREGATE traps.gather(text) (SFUNC = traps.add, STYPE = traps.checked, INITCOND = 'x');
CREATE TABLE traps.generated (id int PRIMARY KEY, v text GENERATED ALWAYS AS (traps.trap('x')) STORED,
	w text GENERATED ALWAYS AS (traps.inlined('x')) STORED);
CREATE TABLE traps.checks (id int PRIMARY KEY, v text CHECK (traps.trap(v) = v));
CREATE TABLE traps.defaults (id int PRIMARY KEY, v traps.pair DEFAULT '(x,1)');
CREATE TABLE traps.parts (id traps.checked PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE traps.part PARTITION OF traps.parts FOR VALUES IN ('x', 'y');
CREATE INDEX ON traps.checks ((traps.trap('x') || v));
INSERT INTO traps.generated SELECT 1;
INSERT INTO traps.checks VALUES (1, 'x');
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
my %callers =
  map { $_ => 1 } slurp_file($b->logfile) =~ /the trap was called by (\w+)/g;
is(join(' ', keys %callers),
	'hostile', 'functions of others have no rights but their owner\'s');
my $rows = <<'EOS';
SET ROLE hostile;
SET client_min_messages = error;
SELECT (SELECT count(*) FROM traps.generated), (SELECT count(*) FROM traps.checks),
	(SELECT count(*) FROM pg_inherits WHERE inhparent = 'traps.parts'::regclass)
EOS
is(query($b, $rows), '1|1|1', 'the tables are there');

$_->stop foreach $a, $b;
done_testing();
