# Three nodes that all accept writes: concurrent INSERT, UPDATE and DELETE of a few
# keys, including changes of keys, while the links between the nodes are cut from time
# to time.  Once all changes have arrived, the three nodes have the same rows, and the
# history explains every row that differs from what its last local writer expects.
#
# WEFT_SEEDS sets the number of seeds (default 4), WEFT_FIRST_SEED the first
# (default 1), WEFT_SECONDS the duration of each load (default 2).  If WEFT_FAKETIME is
# the path of libfaketime, the nodes' clocks differ by seconds.

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

my $seeds = $ENV{WEFT_SEEDS} // 4;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $seconds = $ENV{WEFT_SECONDS} // 2;
my $some = 50 * $seconds;

my @nodes = new_members(3, ahead => [ 0, 3, -2 ]);
my @tables = qw(plain wide moving);

# "journal" records what was written where; it is not published.
create_tables(\@nodes, <<'EOS', @tables);
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE wide (a int, b text, v text, body text, PRIMARY KEY (b, a));
ALTER TABLE wide ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE moving (id int PRIMARY KEY, v text);
CREATE TABLE journal (n bigserial, id int, v text, at timestamptz DEFAULT clock_timestamp());
CREATE SEQUENCE stamp;
CREATE FUNCTION op(node text, kind int, a int, b int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	s text := node || '-' || nextval('stamp');
BEGIN
	CASE kind
	WHEN 1, 2 THEN
		INSERT INTO plain VALUES (a, s) ON CONFLICT (id) DO UPDATE SET v = s;
		INSERT INTO journal (id, v) VALUES (a, s);
	WHEN 3, 4, 5 THEN
		UPDATE plain SET v = s WHERE id = a;
		IF found THEN INSERT INTO journal (id, v) VALUES (a, s); END IF;
	WHEN 6 THEN
		DELETE FROM plain WHERE id = a;
		IF found THEN INSERT INTO journal (id) VALUES (a); END IF;
	WHEN 7 THEN
		DELETE FROM plain WHERE id = a;
		INSERT INTO plain VALUES (a, s);
		INSERT INTO journal (id, v) VALUES (a, s);
	WHEN 8 THEN
		UPDATE plain SET v = s WHERE id = a;
		IF found THEN INSERT INTO journal (id, v) VALUES (a, s); END IF;
		PERFORM pg_sleep(random() * 0.01);
		UPDATE plain SET v = s WHERE id = b;
		IF found THEN INSERT INTO journal (id, v) VALUES (b, s); END IF;
	WHEN 9 THEN
		INSERT INTO wide VALUES (a, b % 2, s, repeat(s, 1000))
			ON CONFLICT ON CONSTRAINT wide_pkey DO UPDATE SET v = s;
	WHEN 10, 11 THEN
		UPDATE wide SET v = s WHERE wide.a = op.a;
	WHEN 12 THEN
		UPDATE wide SET body = repeat(s, 1000) WHERE wide.a = op.a;
	WHEN 13 THEN
		DELETE FROM wide WHERE wide.a = op.a;
	WHEN 14 THEN
		INSERT INTO moving VALUES (a, s) ON CONFLICT (id) DO UPDATE SET v = s;
	WHEN 15, 16 THEN
		UPDATE moving SET id = b, v = s WHERE id = a;
	ELSE
		DELETE FROM moving WHERE id = a;
	END CASE;
EXCEPTION WHEN unique_violation THEN
	NULL;
END $$;
EOS
connect_members(\@nodes);

my $script = <<'EOS';
\set kind random(1, 17)
\set a random(1, 8)
\set b random(1, 8)
BEGIN;
SELECT op(current_setting('cluster_name'), :kind, :a, :b);
COMMIT;
EOS

# Without a duration, it runs until end_load() is called.
sub start_load
{
	my ($seed, $time) = @_;
	return map {
		start_pgbench(
			$_, { $script => 1 },
			'-c', 3, '-T', $time // 600,
			'-R', 200, "--random-seed=$seed", '--max-tries=0')
	} @nodes;
}

# Waits until every node has written some more.
sub load_goes_on
{
	my $count = 'SELECT count(*) FROM journal';
	my @before = map { query($_, $count) } @nodes;

	poll($nodes[$_], "SELECT ($count) >= $before[$_] + $some")
	  foreach 0 .. $#nodes;
	return;
}

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	if ($seed % 2 == 0)
	{
		my @loads = start_load($seed);

		load_goes_on();
		cut_off(\@nodes);
		load_goes_on();
		join_again(\@nodes);
		load_goes_on();
		end_load($_) foreach @loads;
	}
	else
	{
		finish($_) foreach start_load($seed, $seconds);
	}
	quiet(\@nodes);

	my $same = 1;
	$same &=
	  same_tables($nodes[0], $nodes[1], \@tables, "seed $seed: n1 and n2");
	$same &=
	  same_tables($nodes[0], $nodes[2], \@tables, "seed $seed: n1 and n3");
	last unless $same;
}

# If the last value that a node has written for a key is not there in the end, then a node
# has decided so in a conflict, or another node has changed the key later.
my %written;
foreach my $node (@nodes)
{
	push @{ $written{ (split /\|/)[0] } }, [ split /\|/, $_, -1 ]
	  foreach split /\n/,
	  query($node,
		'SELECT id, v, extract(epoch FROM at) FROM journal ORDER BY n');
}
my @unexplained;
foreach my $id (sort keys %written)
{
	my ($last) = sort { $b->[2] <=> $a->[2] } @{ $written{$id} };
	my $value = query($nodes[0], "SELECT v FROM plain WHERE id = $id");

	next if $value eq $last->[1];
	my $records = 0;
	$records += query($_,
		"SELECT count(*) FROM weft.conflict_history WHERE relation = 'public.plain' AND key = '{\"id\": $id}'"
	) foreach @nodes;
	push @unexplained, "$id is '$value', written last: '$last->[1]'"
	  unless $records;
}
is("@unexplained", '', 'changes that lost are in the history');

my $conflicts = join '; ', map { conflict_counts($_) } @nodes;
note($conflicts);
like($conflicts, qr/$_/, "there were conflicts of type $_")
  foreach
  qw(insert_exists update_origin_differs update_missing delete_origin_differs delete_missing);
is(errors_logged($_), '', $_->name . ' has logged no error') foreach @nodes;

done_testing();
