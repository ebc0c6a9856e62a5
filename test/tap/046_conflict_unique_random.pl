# Three nodes that all accept writes, on tables with unique indexes besides the key,
# with counters, and with a foreign key.  Transactions take unique values and release
# them, delete rows that others add to, and delete parents of new children.  Then the
# links are opened one by one, in random order.  Once all changes have arrived, the
# three nodes have the same rows, and the history explains every orphan.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_FIRST_SEED the first
# (default 1), WEFT_ROUNDS the number of rounds for each seed (default 3).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $seeds = $ENV{WEFT_SEEDS} // 2;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $rounds = $ENV{WEFT_ROUNDS} // 3;
my @nodes = new_members(3);
my @tables = qw(taken counter parent child);

create_tables(\@nodes, <<'EOS', @tables);
CREATE TABLE taken (id int PRIMARY KEY, u int UNIQUE, w text, v text);
CREATE UNIQUE INDEX taken_w ON taken (lower(w)) WHERE w <> '';
CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL, x numeric NOT NULL, v text);
ALTER TABLE counter REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('counter', '{n,x}');
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, v text);
CREATE SEQUENCE stamp;
CREATE FUNCTION op(kind int, a int, b int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	s text := current_setting('cluster_name') || '-' || nextval('stamp');
BEGIN
	CASE kind
	WHEN 1, 2, 3 THEN
		INSERT INTO taken VALUES (a, b, chr(96 + b), s);
	WHEN 4, 5 THEN
		UPDATE taken SET u = b, v = s WHERE id = a;
	WHEN 6 THEN
		UPDATE taken SET w = upper(chr(96 + b)), v = s WHERE id = a;
	WHEN 7 THEN
		UPDATE taken SET v = s WHERE id = a;
	WHEN 8 THEN
		DELETE FROM taken WHERE id = a;
	WHEN 9 THEN
		UPDATE taken SET id = b, v = s WHERE id = a;
	WHEN 10 THEN
		-- only to give them up again
		INSERT INTO taken VALUES (a, b, chr(96 + b), s);
		UPDATE taken SET u = b + 100, w = NULL WHERE id = a;
	WHEN 11, 12, 13 THEN
		UPDATE counter SET n = n + b, x = x + b / 10.0, v = s WHERE id % 8 + 1 = a;
	WHEN 14 THEN
		DELETE FROM counter WHERE id % 8 + 1 = a;
	WHEN 15 THEN
		INSERT INTO parent VALUES (a, s) ON CONFLICT (id) DO UPDATE SET v = s;
	WHEN 16, 17 THEN
		INSERT INTO child VALUES (nextval('stamp'), a, s);
	WHEN 18 THEN
		UPDATE child SET parent = b, v = s WHERE id = (SELECT min(id) FROM child WHERE parent = a);
	WHEN 19 THEN
		DELETE FROM child WHERE parent = a;
		DELETE FROM parent WHERE id = a;
	ELSE
		DELETE FROM parent WHERE id = a;
	END CASE;
EXCEPTION WHEN unique_violation OR foreign_key_violation THEN
	NULL;
END $$;
EOS

# children of different nodes have different keys
query($nodes[$_], "ALTER SEQUENCE stamp INCREMENT 3 RESTART @{[ $_ + 1 ]}")
  foreach 0 .. $#nodes;
connect_members(\@nodes);

# Some transactions of one node.
sub transactions
{
	my $count = 12 + int rand 8;
	my @result;

	foreach (1 .. $count)
	{
		my @ops = map {
			sprintf 'SELECT op(%d, %d, %d);',
			  1 + int(rand 30) % 20,
			  1 + int rand 8,
			  1 +
			  int rand 8
		} 1 .. 1 + int rand 3;
		push @result, @ops > 1 ? ('BEGIN;', @ops, 'COMMIT;') : @ops;
	}
	return join "\n", @result;
}

my $counters = 0;

# Each node works alone, then they receive each other's changes one by one.
sub alone
{
	my $first = $counters + 1;
	my @links;

	$counters += 8;
	query(
		$nodes[ rand @nodes ],
		"INSERT INTO counter SELECT i, 10, 0, '' FROM generate_series($first, $counters) i"
	);
	quiet(\@nodes);
	cut_off(\@nodes);
	foreach my $turn (1 .. 2)
	{
		query($_, transactions()) foreach sort { rand() <=> 0.5 } @nodes;
	}
	foreach my $to (@nodes)
	{
		push @links, map { [ $_, $to ] } grep { $_ != $to } @nodes;
	}
	foreach (@links)
	{
		my $other = int rand @links;
		($links[0], $links[$other]) = ($links[$other], $links[0]);
	}
	foreach my $link (@links)
	{
		my ($from, $to) = @$link;
		my $name = 'from_' . $from->name;

		query($to, transactions()) if rand() < 0.2;
		query($to, "ALTER SUBSCRIPTION $name ENABLE");
		wait_for_apply($from, $to, $name) if rand() < 0.7;
	}
	quiet(\@nodes);
	return;
}

# All at once.
sub together
{
	my ($seed) = @_;
	my $script = <<'EOS';
\set k1 random(1, 20)
\set k2 random(1, 20)
\set a random(1, 8)
\set b random(1, 8)
\set c random(1, 8)
BEGIN;
SELECT op(:k1, :a, :b);
SELECT op(:k2, :c, :b);
COMMIT;
EOS
	my @loads = map {
		start_pgbench($_, { $script => 1 },
			'-c', 3, '-t', 150, "--random-seed=$seed")
	} @nodes;
	finish($_) foreach @loads;
	quiet(\@nodes);
	return;
}

my $orphans = 0;
my $failed = 0;

sub check
{
	my ($what) = @_;
	my $unexplained =
	  q{SELECT string_agg(c::text, ' ' ORDER BY c) FROM child c WHERE parent IS NOT NULL AND NOT EXISTS (SELECT FROM parent p WHERE p.id = c.parent)};

	foreach my $other (@nodes[ 1, 2 ])
	{
		same_tables($nodes[0], $other, \@tables,
			"$what: n1 and " . $other->name)
		  or $failed = 1;
	}
	foreach my $id (
		split /\n/,
		query(
			$nodes[0],
			'SELECT id FROM child c WHERE NOT EXISTS (SELECT FROM parent p WHERE p.id = c.parent)'
		))
	{
		my $records = 0;

		$orphans++;
		$records += query($_,
			"SELECT count(*) FROM weft.conflict_history WHERE relation = 'public.child' AND key = '{\"id\": $id}' AND conflict_type = 'parent_missing'"
		) foreach @nodes;
		ok($records > 0, "$what: the history has orphan $id");
	}
	note(
		$_->name . ":\n"
		  . query(
			$_,
			"SELECT concat_ws(' ', subname, conflict_type, resolution, index_name, key, local_row, local_commit_time, local_node, '<->', remote_row, remote_commit_time, remote_node) FROM weft.conflict_history WHERE relation = 'public.taken' ORDER BY id"
		  )) foreach $failed ? @nodes : ();

	# Orphans do not block sessions, but would be reported again.
	query($nodes[0],
		'DELETE FROM child c WHERE NOT EXISTS (SELECT FROM parent p WHERE p.id = c.parent)'
	);
	quiet(\@nodes);
	return;
}

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	srand $seed;
	foreach my $round (1 .. $rounds)
	{
		alone();
		check("seed $seed, round $round");
		last if $failed;
	}
	last if $failed;
	together($seed);
	check("seed $seed, together");
	last if $failed;
}

note("orphans: $orphans");
note(join '; ', map { conflict_counts($_) } @nodes);
is(errors_logged($_), '', $_->name . ' has logged no error') foreach @nodes;
done_testing();
