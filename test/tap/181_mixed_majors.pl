# A group whose members have adjacent major versions: joining in both directions, rows, conflicts, schema changes,
# comparisons; what is refused says why.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
my $previous = previous_server();
plan skip_all => 'needs the previous major version, which Weft supports, too'
  unless $previous;

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $node->name . ": $sql");
	return;
}

my $old = new_member('old', install_path => $previous);
my $new = new_member('new');
my ($old_major, $new_major) =
  map {
	query($_, q(SELECT current_setting('server_version_num')::int / 10000))
  } $old, $new;
is($old_major + 1, $new_major, 'the versions are adjacent');

# --- a newer node joins, with the schema ---

query($old, <<'EOS');
CREATE TABLE account (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, node text);
CREATE TABLE ledger (node text, id int, PRIMARY KEY (node, id));
CREATE SEQUENCE entry;
CREATE TABLE part (id int, k text, g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE part_a PARTITION OF part FOR VALUES IN ('a');
CREATE TABLE part_b PARTITION OF part DEFAULT;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE typed (id uuid PRIMARY KEY, m mood, p positive NOT NULL, n numeric(10, 2), r int4range, j jsonb, a text[],
	t timestamptz, f float8, UNIQUE (p));
CREATE VIEW happy AS SELECT * FROM typed WHERE m = 'happy';
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.f := 1; RETURN NEW; END';
CREATE TRIGGER touch BEFORE INSERT ON typed FOR EACH ROW EXECUTE FUNCTION touch();
INSERT INTO account SELECT g FROM generate_series(1, 100) g;
INSERT INTO part SELECT g, chr(97 + g % 3) FROM generate_series(1, 1000) g;
INSERT INTO typed SELECT md5(g::text)::uuid, 'happy', g, g / 3.0, int4range(g, g + 5), jsonb_build_object('g', g), ARRAY[g::text], now()
	FROM generate_series(1, 100) g;
EOS
create_group($old, 'g');
my $load = start_ledger($old);
join_group($new, $old, 'g');
my $new_load = start_ledger($new);
my $third = new_member('third', install_path => $previous);
my $new_dsn = dsn($new);

# --- an older node does not copy the schema of a newer one ---

query($third, sprintf "SELECT weft.create_node('third', \$\$%s\$\$)",
	dsn($third));
fails(
	$third,
	"SELECT weft.join_node_group(\$\$$new_dsn\$\$, 'g')",
	qr/ERROR:  node "third", with PostgreSQL $old_major, cannot copy the schema of node "new", with PostgreSQL $new_major.*HINT:  .*Join through/s
);
is(leftovers($third), '', 'nothing is left');

# --- it does join through one of its own version; and through the newer one if it has the schema ---

join_group($third, $old, 'g');
my $fourth = new_member('fourth', install_path => $previous);
$fourth->command_ok(
	[
		'sh',
		'-c',
		"'$previous/bin/pg_dump' -s -N weft --no-publications --no-subscriptions -d '"
		  . $old->connstr('postgres')
		  . "' | sed -e '/^CREATE EXTENSION/d' | '$previous/bin/psql' -X -q -d '"
		  . $fourth->connstr('postgres') . "'"
	],
	'the schema is copied by hand');
join_group($fourth, $new, 'g');
my @nodes = ($old, $new, $third, $fourth);
my @tables = qw(account ledger part typed);

end_ledger($load);
end_ledger($new_load);
wait_for_group('g', @nodes);
same_on_all(\@nodes, \@tables, 'all have joined');
check_ledgers(\@nodes, 'all have joined');

# --- conflicts ---

my @loads =
  map { start_pgbench($_, { <<'EOS' => 1 }, '-t' => 500, '-c' => 2) } @nodes;
\set id random(1, 20)
\set n random(1, 3)
UPDATE account SET v = v + 1 WHERE id = :id;
DELETE FROM part WHERE id = :id AND k = chr(97 + :n);
INSERT INTO part VALUES (:id, chr(97 + :n)) ON CONFLICT DO NOTHING;
EOS
finish($_) foreach @loads;
wait_for_group('g', @nodes);
same_on_all(\@nodes, \@tables, 'conflicts');

# --- schema changes, in both directions ---

foreach my $node ($old, $new)
{
	my $name = $node->name;

	query($node, $_) foreach split /\n/, <<EOS;
CREATE TABLE from_$name (id int PRIMARY KEY, v int NOT NULL, s serial, i bigint GENERATED ALWAYS AS IDENTITY, FOREIGN KEY (v) REFERENCES account)
INSERT INTO from_$name (id, v) SELECT g, g FROM generate_series(1, 10) g
ALTER TABLE from_$name ADD COLUMN w text NOT NULL DEFAULT 'w', ADD CONSTRAINT w_check CHECK (w <> '') NOT VALID
ALTER TABLE from_$name VALIDATE CONSTRAINT w_check
CREATE INDEX CONCURRENTLY from_${name}_w ON from_$name (w)
ALTER TABLE from_$name ALTER COLUMN v TYPE bigint
ALTER TABLE from_$name ALTER COLUMN v DROP NOT NULL
ALTER TABLE from_$name ALTER COLUMN v SET NOT NULL
CREATE FUNCTION f_$name(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT \$1 + 1'
CREATE VIEW v_$name AS SELECT id, f_$name(id) AS f FROM from_$name
CREATE TABLE part_$name PARTITION OF part FOR VALUES IN ('$name')
ALTER TYPE mood ADD VALUE '$name'
GRANT SELECT ON from_$name TO PUBLIC
ALTER TABLE from_$name RENAME COLUMN w TO x
UPDATE from_$name SET x = 'y' WHERE id = 1
EOS
	wait_for_group('g', @nodes);
	query($_,
		"INSERT INTO from_$name (id, v) VALUES (10 + ascii('@{[$_->name]}'), 5)"
	) foreach @nodes;
	wait_for_group('g', @nodes);
	same_on_all(
		\@nodes,
		[ "from_$name", "v_$name" ],
		"schema changes of $name");
	poll($_,
		"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('from_${name}_w')"
	) foreach @nodes;
	is( query(
			$_,
			q(SELECT count(*) FROM weft.ddl_history WHERE result NOT IN ('captured', 'applied'))
		),
		0,
		"schema changes of $name succeed on " . $_->name) foreach @nodes;
}

# --- comparisons ---

foreach my $pair ([ $old, $new ], [ $new, $old ])
{
	my ($here, $there) = @$pair;
	my $name = $there->name;

	is(query($here, "SELECT * FROM weft.schema_differences('$name')"),
		'', $here->name . " has no schema differences to $name");
	query($here, "CALL weft.compare_node('$name')");
	is( query(
			$here,
			q(SELECT coalesce(sum(differences), 0) || ' ' || string_agg(DISTINCT status, ',') FROM weft.comparison_table)
		),
		'0 done',
		$here->name . " compares its tables with those of $name");
}

# --- parting, from the other version ---

query($new, q(SELECT weft.part_node('third')));
query($old, q(SELECT weft.part_node('new')));
is(states($old), 'fourth active, old active',
	'members of both versions part');
wait_for_group('g', $old, $fourth);
same_on_all([ $old, $fourth ], \@tables, 'the others go on');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } @nodes),
	0, 'no server has failed');
$_->stop foreach @nodes;
done_testing();
