# What a joining node copies with helpers: existing, empty tables with their
# indexes, and tables that the join creates.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);
query_all([ $b, $c ], 'CREATE EXTENSION amcheck');
my $indexes =
	"SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
  . " WHERE c.relnamespace = 'public'::regnamespace";
my $schema = <<'EOS';
CREATE TABLE plain (id int PRIMARY KEY, t text UNIQUE, n numeric);
CREATE INDEX ON plain (n, t);
CREATE TABLE "Odd ""name" ("a b" int PRIMARY KEY, "select" text, twice int GENERATED ALWAYS AS ("a b" * 2) STORED);
CREATE TABLE large_values (id int PRIMARY KEY, t text);
CREATE TABLE parted (id int, t text, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE small (id int PRIMARY KEY, t text);
CREATE TABLE "triggered" (id int PRIMARY KEY, t text);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER nothing BEFORE INSERT ON "triggered" FOR EACH ROW EXECUTE FUNCTION nothing();
ALTER TABLE "triggered" ENABLE ALWAYS TRIGGER nothing;
EOS
my @tables =
  (qw(plain large_values parted_0 parted_1 small triggered), '"Odd ""name"');
query_all([ $a, $b ], $schema);
query($a, <<'EOS');
INSERT INTO plain SELECT i, md5(i::text), i / 7.0 FROM generate_series(1, 20000) i;
INSERT INTO "Odd ""name" SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
INSERT INTO large_values SELECT i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 200) j) FROM generate_series(1, 200) i;
INSERT INTO parted SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
INSERT INTO small VALUES (1, 'one');
INSERT INTO "triggered" SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
EOS
create_group($a, 'g');

# Sessions of a may wait for the joining node, so it does not wait for long itself.
my $reader = open_session($b);
$reader->query_safe('BEGIN; SELECT count(*) FROM small');
start_join($b, $a, 'g');
my ($result, $out, $err) = $b->psql('postgres', $GroupTest::wait_for_join);
like(
	$err,
	qr/canceling statement due to lock timeout/,
	'a table that somebody else has locked is not waited for');
$reader->quit;

foreach my $node ($b, $c)
{
	my $what = $node == $b ? 'tables were there' : 'the join creates tables';
	my $from = $node == $b ? 'a' : 'b';

	join_group($node, $node == $b ? $a : $b, 'g');
	same_on_all([ $a, $node ], \@tables, "$what: equal");
	indexes_sound($node, $what);
	is(query($node, $indexes), query($a, $indexes), "$what: all indexes");
	foreach my $table (qw(plain parted_0 parted_1), 'Odd "name')
	{
		cmp_ok(copied_by($node, "public.$table"),
			'>', 0, "$what: $table is copied as initially");
	}
	is(copied_by($node, 'public.large_values'),
		1, "$what: values stored out of line are copied by one process");
	is(copied_by($node, 'public.small'),
		0, "$what: a small table is not worth helpers");
	my $reason = $node == $b ? 'it has triggers that fire on a replica' : '';
	is(left_to_server($node, 'public.triggered'),
		$reason, "$what: the error says what prevents the join");
	nothing_left($node == $b ? $a : $b, $what);
	is( query(
			$node,
			'SELECT count(*) FROM weft.copy_progress WHERE subid IS NULL'),
		0,
		"$what: no copy is shown any more");
}

# Copied rows are older than any change; therefore the change wins.
query($a, "UPDATE plain SET t = 'from a' WHERE id = 1");
query($b, "UPDATE plain SET t = 'from b' WHERE id = 2");
query($c,
	"UPDATE plain SET t = 'from c' WHERE id = 3; DELETE FROM plain WHERE id = 4"
);
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], \@tables, 'changes after the join');
is( query(
		$a, 'SELECT string_agg(t, \',\' ORDER BY id) FROM plain WHERE id < 5'
	),
	'from a,from b,from c',
	'every change took effect');

$_->stop foreach $a, $b, $c;
done_testing();
