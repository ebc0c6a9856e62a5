# Two members of a group change the schema at the same time, each without having seen the other's
# statement.  All such pairs either leave both schemas equal, or an error says that they conflict.
#
# Each pair has objects of its own, in a schema of its own, so many pairs are made at the same time, and each error
# is about one of them.  First come pairs that are known to be hard, then random ones.
#
# WEFT_TEST_SEED sets the first seed, WEFT_TEST_SEEDS how many, WEFT_TEST_PAIRS the random pairs of each.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seeds = $ENV{WEFT_TEST_SEEDS} // 1;
my $first = $ENV{WEFT_TEST_SEED} // int(rand(1_000_000));
my $pairs = $ENV{WEFT_TEST_PAIRS} // 30;
my ($a, $b) = map { new_member($_) } qw(a b);
my $number = 0;

# S is the pair's schema.
my $setup = <<'EOS';
CREATE SCHEMA S;
CREATE TYPE S.mood AS ENUM ('sad');
CREATE TABLE S.t (id int PRIMARY KEY, v varchar(5), n int NOT NULL DEFAULT 0);
CREATE INDEX t_v ON S.t (v);
CREATE STATISTICS S.st ON id, n FROM S.t;
CREATE VIEW S.w AS SELECT id FROM S.t;
CREATE FUNCTION S.f(int) RETURNS int LANGUAGE sql RETURN 0;
GRANT SELECT ON S.t TO regress_one;
EOS

# What a member may execute.  Those of a group are about the same thing.
my @groups = (
	[
		'ALTER TABLE S.t ADD COLUMN c int',
		'ALTER TABLE t ADD COLUMN c int',
		'ALTER TABLE S.t ADD COLUMN c text',
		'ALTER TABLE S.t ADD COLUMN IF NOT EXISTS d int DEFAULT 3',
		'ALTER TABLE S.t ALTER v TYPE varchar(10)',
		'ALTER TABLE S.t ALTER v TYPE varchar(20)',
		'ALTER TABLE t ALTER v TYPE text',
		'ALTER TABLE S.t ALTER n DROP NOT NULL',
		'ALTER TABLE S.t ALTER n SET STATISTICS 10',
		'ALTER TABLE t ALTER n SET STATISTICS 20',
		'ALTER TABLE S.t ALTER v SET STORAGE external',
		'ALTER TABLE S.t SET (fillfactor = 50)',
		'ALTER TABLE t SET (fillfactor = 60)',
		'ALTER TABLE S.t RESET (fillfactor)',
		'CREATE VIEW S.x AS SELECT * FROM S.t',
		'CREATE MATERIALIZED VIEW S.m AS SELECT * FROM t',
		'CREATE TABLE S.y (LIKE S.t INCLUDING ALL)',
		'CREATE INDEX i ON S.t (n)',
		'CREATE INDEX i ON t (v)',
		'CREATE INDEX ON S.t (n)',
		'CREATE INDEX ON S.t (n DESC)',
		'DROP INDEX S.t_v',
		"COMMENT ON TABLE S.t IS 'one'",
		"COMMENT ON TABLE t IS E'two\\\\'",
		"COMMENT ON COLUMN S.t.v IS 'one'",
		'GRANT SELECT ON S.t TO regress_two',
		'GRANT UPDATE (v) ON t TO regress_one',
		'REVOKE SELECT ON t FROM regress_one',
		'GRANT SELECT ON ALL TABLES IN SCHEMA S TO regress_two',
		'CREATE STATISTICS ON v, n FROM S.t',
		'CREATE STATISTICS (ndistinct) ON v, n FROM t',
		'ALTER STATISTICS S.st SET STATISTICS 5',
		'ALTER STATISTICS st SET STATISTICS 6',
		'SET weft.ddl_lock = none; ALTER TABLE S.t DROP COLUMN v',
		'SET weft.ddl_lock = none; ALTER TABLE S.t RENAME TO t2',
		'SET weft.ddl_lock = none; ALTER TABLE S.t RENAME v TO c',
		'SET weft.ddl_lock = none; ALTER TABLE t ALTER n SET DEFAULT 1',
		'SET weft.ddl_lock = none; ALTER TABLE S.t ALTER n SET DEFAULT 2',
		'SET weft.ddl_lock = none; ALTER TABLE S.t OWNER TO regress_one',
		'SET weft.ddl_lock = none; ALTER TABLE S.t ALTER v SET NOT NULL',
	],
	[
		'CREATE OR REPLACE VIEW S.w AS SELECT id, 1 AS x FROM S.t',
		'CREATE OR REPLACE VIEW w AS SELECT id, 2 AS x FROM S.t',
		'CREATE VIEW S.x AS SELECT * FROM S.w',
		'DROP VIEW S.w',
		"COMMENT ON VIEW S.w IS 'w'",
		'GRANT SELECT ON S.w TO regress_one',
		'DROP VIEW S.w; CREATE VIEW S.w AS SELECT id, 3 AS x FROM S.t',
		'SET weft.ddl_lock = none; ALTER VIEW S.w OWNER TO regress_one',
		'SET weft.ddl_lock = none; ALTER VIEW S.w RENAME TO w2',
	],
	[
		'CREATE OR REPLACE FUNCTION S.f(int) RETURNS int LANGUAGE sql RETURN 1',
		'CREATE OR REPLACE FUNCTION f(integer) RETURNS int LANGUAGE sql RETURN 2',
		'CREATE FUNCTION S.f(text) RETURNS int LANGUAGE sql RETURN 3',
		'CREATE OR REPLACE FUNCTION S.f(text) RETURNS int LANGUAGE sql RETURN 4',
		'CREATE FUNCTION S.g() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM S.t; END',
		'ALTER FUNCTION S.f(int) STABLE',
		'ALTER FUNCTION f(int) IMMUTABLE',
		'DROP FUNCTION S.f(int)',
		'DROP FUNCTION IF EXISTS f(int), S.f(text)',
		"COMMENT ON FUNCTION S.f(int) IS 'f'",
		"COMMENT ON FUNCTION f IS 'g'",
		'REVOKE EXECUTE ON FUNCTION S.f(int) FROM public',
		'GRANT EXECUTE ON FUNCTION S.f(int) TO regress_two',
		'SET weft.ddl_lock = none; ALTER FUNCTION S.f(int) OWNER TO regress_one',
		'SET weft.ddl_lock = none; ALTER FUNCTION S.f(int) RENAME TO f2',
	],
	[
		"ALTER TYPE S.mood ADD VALUE 'one'",
		"ALTER TYPE mood ADD VALUE 'two'",
		"ALTER TYPE S.mood ADD VALUE 'two' BEFORE 'sad'",
		"ALTER TYPE S.mood ADD VALUE IF NOT EXISTS 'one'",
		"COMMENT ON TYPE S.mood IS 'one'",
		"COMMENT ON TYPE mood IS 'two'",
	],
	[
		'CREATE TABLE S.x (id int PRIMARY KEY)',
		'CREATE TABLE IF NOT EXISTS x (id int PRIMARY KEY, v text)',
		'CREATE TABLE S.x (id int PRIMARY KEY); ALTER TABLE S.x ADD COLUMN v text',
		'CREATE TABLE S.x (id serial PRIMARY KEY)',
		'CREATE SEQUENCE S.x_id_seq INCREMENT 2',
		'CREATE VIEW S.x AS SELECT 1 AS one',
		'CREATE OR REPLACE VIEW x AS SELECT 2 AS one',
		'CREATE DOMAIN S.x AS int',
		'CREATE DOMAIN x AS text',
		'CREATE TYPE S.x AS (a int)',
		'ALTER DEFAULT PRIVILEGES IN SCHEMA S GRANT SELECT ON TABLES TO regress_one',
		'ALTER DEFAULT PRIVILEGES IN SCHEMA S REVOKE SELECT ON TABLES FROM regress_one',
		'ALTER DEFAULT PRIVILEGES IN SCHEMA S GRANT UPDATE ON TABLES TO regress_two',
		'GRANT SELECT ON ALL TABLES IN SCHEMA S TO regress_two',
		'REVOKE ALL ON ALL TABLES IN SCHEMA S FROM regress_one',
		"COMMENT ON SCHEMA S IS 'one'",
		"COMMENT ON SCHEMA S IS 'two'",
		'GRANT USAGE ON SCHEMA S TO regress_one',
		'REVOKE USAGE ON SCHEMA S FROM regress_one',
	],);

# Pairs that had different schemas once, or where both are to be executed, or that must fail.
my @conflicts = (
	[ "COMMENT ON TABLE t IS 'one'", "COMMENT ON TABLE S.t IS E'two\\\\'" ],
	[
		'CREATE VIEW S.x AS SELECT * FROM S.t',
		'ALTER TABLE S.t ADD COLUMN c int'
	],
	[
		'CREATE TABLE S.x (id int)',
		'GRANT SELECT ON ALL TABLES IN SCHEMA S TO regress_two'
	],
	[
		'SET weft.ddl_lock = none; ALTER FUNCTION S.f(int) RENAME TO f2',
		'CREATE OR REPLACE FUNCTION S.f(int) RETURNS int LANGUAGE sql RETURN 1'
	],
	[
		"ALTER TYPE S.mood ADD VALUE 'one'; ALTER TYPE S.mood ADD VALUE 'two'",
		"ALTER TYPE S.mood ADD VALUE 'two'; ALTER TYPE S.mood ADD VALUE 'one'"
	],
	[
		'ALTER DEFAULT PRIVILEGES IN SCHEMA S GRANT SELECT ON TABLES TO regress_one',
		'CREATE TABLE S.x (id int)'
	],
	[
		'ALTER STATISTICS S.st SET STATISTICS 5',
		'ALTER STATISTICS S.st SET STATISTICS 6'
	],
	[
		'CREATE STATISTICS ON v, n FROM S.t',
		'CREATE STATISTICS (ndistinct) ON v, n FROM t'
	],
	[
		'ALTER TABLE S.t SET (fillfactor = 50)',
		'ALTER TABLE S.t RESET (fillfactor)'
	],);
my @both = (
	[
		'ALTER TABLE S.t ADD COLUMN c int, ADD COLUMN e int',
		'ALTER TABLE S.t ADD COLUMN d text'
	],
	[
		'CREATE OR REPLACE FUNCTION S.f(int) RETURNS int LANGUAGE sql RETURN 1',
		'CREATE OR REPLACE FUNCTION S.f(text) RETURNS int LANGUAGE sql RETURN 2'
	],
	[ 'CREATE INDEX i ON S.t (n)', "COMMENT ON TABLE S.t IS 'one'" ],
	[
		'CREATE INDEX i ON S.t (n)',
		'SET weft.ddl_lock = none; ALTER TABLE S.t ADD CONSTRAINT p CHECK (n > -1)'
	],
	[
		'GRANT SELECT ON S.t TO regress_two',
		'GRANT UPDATE ON S.t TO regress_one'
	],
	[
		'ALTER TABLE S.t ALTER v TYPE varchar(9)',
		'ALTER TABLE S.t ALTER n DROP NOT NULL'
	],
	[
		"DROP VIEW S.w; CREATE VIEW S.w AS SELECT 1 AS one; COMMENT ON VIEW S.w IS 'w'",
		"DROP VIEW S.w; CREATE VIEW S.w AS SELECT 1 AS one; COMMENT ON VIEW S.w IS 'w'"
	],
	[
		'CREATE TABLE S.x (id serial PRIMARY KEY); GRANT SELECT ON S.x TO public',
		'CREATE TABLE S.x (id serial PRIMARY KEY); GRANT SELECT ON S.x TO public'
	],
	[
		'CREATE OR REPLACE VIEW S.w AS SELECT id, 1 AS x FROM S.t',
		'GRANT SELECT ON S.w TO regress_one'
	],
	[
		'ALTER TABLE S.t ADD COLUMN IF NOT EXISTS v text',
		'CREATE SCHEMA IF NOT EXISTS S; CREATE TABLE IF NOT EXISTS S.t (id int)'
	],
	[
		'CREATE FUNCTION S.f(text) RETURNS int LANGUAGE sql RETURN 3',
		'DROP FUNCTION IF EXISTS f(int), S.f(text)'
	],
	[
		'CREATE VIEW S.x AS SELECT 1 AS one',
		'DROP VIEW IF EXISTS S.x, S.w, S.none'
	],
	[
		"ALTER TYPE S.mood ADD VALUE IF NOT EXISTS 'sad'",
		'CREATE INDEX IF NOT EXISTS t_v ON S.t (n); DROP VIEW IF EXISTS S.none'
	],);

# Everything in a schema, one line for each fact; privileges in any order.
my $facts = <<'EOQ';
SET search_path = '';
WITH s AS (SELECT oid, nspname, nspowner, nspacl FROM pg_namespace WHERE nspname ~* 'pair'),
c AS (SELECT c.*, nspname FROM pg_class c JOIN s ON s.oid = relnamespace)
SELECT string_agg(nspname || chr(1) || line, chr(2) ORDER BY nspname, line COLLATE "C") FROM (
	SELECT nspname, format('schema %s %s', nspowner::regrole,
		(SELECT array_agg(x::text ORDER BY x::text COLLATE "C") FROM unnest(nspacl) x)) AS line FROM s
	UNION ALL
	SELECT nspname, format('relation %s %s %s %s %s', relname, relkind, relowner::regrole, reloptions,
		(SELECT array_agg(x::text ORDER BY x::text COLLATE "C") FROM unnest(relacl) x)) FROM c
	UNION ALL
	SELECT nspname, format('column %s.%s %s %s %s %s %s %s', relname, attname,
		format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attstattarget, attstorage,
		(SELECT array_agg(x::text ORDER BY x::text COLLATE "C") FROM unnest(attacl) x))
		FROM c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
			LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	UNION ALL
	SELECT nspname, format('constraint %s %s %s', relname, conname, pg_get_constraintdef(o.oid))
		FROM c JOIN pg_constraint o ON conrelid = c.oid
	UNION ALL
	SELECT nspname, pg_get_indexdef(indexrelid) FROM c JOIN pg_index ON indrelid = c.oid
	UNION ALL
	SELECT nspname, format('view %s %s', relname, pg_get_viewdef(oid)) FROM c WHERE relkind IN ('v', 'm')
	UNION ALL
	SELECT nspname, format('sequence %s %s', relname, seqincrement)
		FROM c JOIN pg_sequence ON seqrelid = c.oid
	UNION ALL
	SELECT nspname, format('function %s %s %s', pg_get_functiondef(p.oid), proowner::regrole,
		(SELECT array_agg(x::text ORDER BY x::text COLLATE "C") FROM unnest(proacl) x))
		FROM s JOIN pg_proc p ON pronamespace = s.oid
	UNION ALL
	SELECT nspname, format('type %s %s %s', typname, typtype, typbasetype::regtype)
		FROM s JOIN pg_type ON typnamespace = s.oid
	UNION ALL
	SELECT nspname, format('enum %s %s', typname, array_agg(enumlabel ORDER BY enumsortorder))
		FROM s JOIN pg_type t ON typnamespace = s.oid JOIN pg_enum ON enumtypid = t.oid GROUP BY 1, typname
	UNION ALL
	SELECT nspname, format('statistics %s %s', pg_get_statisticsobjdef(x.oid), stxstattarget)
		FROM s JOIN pg_statistic_ext x ON stxnamespace = s.oid
	UNION ALL
	SELECT nspname, format('default privileges %s %s',  defaclobjtype,
		(SELECT array_agg(x::text ORDER BY x::text COLLATE "C") FROM unnest(defaclacl) x))
		FROM s JOIN pg_default_acl ON defaclnamespace = s.oid
	UNION ALL
	SELECT s.nspname, format('comment on %s %s: %s', i.type, i.identity, description)
		FROM pg_description d CROSS JOIN pg_identify_object(classoid, objoid, objsubid) i
			JOIN s ON quote_ident(s.nspname) = coalesce(i.schema, i.identity)
) f
EOQ

# The name of a pair's schema, as SQL has it, and itself.
sub schema_name
{
	my ($i) = @_;
	my @names = ("pair$i", "Pair $i", "pair$i\\", "pair$i'\"");
	my $name = $names[ $i % @names ];

	return (
		  $name =~ /^\w+$/ && $name !~ /[A-Z]/
		? $name
		: '"' . ($name =~ s/"/""/gr) . '"',
		$name);
}

sub facts_of
{
	my ($node) = @_;
	my %facts;

	foreach my $line (split /\x02/, query($node, $facts))
	{
		my ($schema, $fact) = split /\x01/, $line;
		$facts{$schema} .= "$fact\n";
	}
	return \%facts;
}

sub subscription
{
	my ($to) = @_;
	return subscription_name('g', $to == $a ? ($b, $a) : ($a, $b));
}

# Let both get what the other one has; skip what fails.  Return the schemas of the pairs to which that belongs.
sub exchange
{
	my @failed;
	my %last = map {
		$_->name => query($_,
			"SELECT coalesce(last_error_lsn::text, '') FROM weft.stat_subscription"
		)
	} ($a, $b);

	query($_, 'ALTER SUBSCRIPTION ' . subscription($_) . ' ENABLE')
	  foreach ($a, $b);
	foreach my $node ($a, $b)
	{
		my $name = subscription($node);
		my $last = $last{ $node->name };
		my $from = $node == $a ? $b : $a;
		my $end = last_row($from);
		my $id;

		while (1)
		{
			my $state = poll_for($node, <<"EOQ");
SELECT CASE WHEN EXISTS (SELECT FROM last WHERE id = $end) THEN 'done'
	WHEN last_error_lsn::text IS DISTINCT FROM nullif('$last', '') THEN last_error_lsn::text END
FROM weft.stat_subscription WHERE subname = '$name'
EOQ
			last if $state eq 'done';
			$id = query($node,
				"SELECT max(id) FROM weft.ddl_applied WHERE subname = '$name' AND result = 'failed' AND lsn = '$state'"
			);
			push @failed,
			  query($from,
				"SELECT message->'settings'->>'search_path' FROM weft.ddl_queue WHERE id = $id"
			  );
			query($node, "ALTER SUBSCRIPTION $name SKIP (lsn = '$state')");
			$last = $state;
		}
	}
	return @failed;
}

# The row that says that there is nothing more of a member.
sub last_row
{
	my ($node) = @_;
	return 2 * $number + ($node == $a);
}

# Execute pairs of statements at the same time.
sub try_pairs
{
	my ($what, @pairs) = @_;
	my @started;
	my $sql = '';

	foreach my $pair (@pairs)
	{
		my ($schema, $name) = schema_name(++$number);

		push @started, { schema => $schema, name => $name, pair => $pair };
		$sql .= $setup =~ s/\bS\b/$schema/gr;
	}
	query($a, $sql);
	wait_for_group('g', $a, $b);
	pause_subscription($_, subscription($_)) foreach ($a, $b);
	foreach my $i (0, 1)
	{
		my $node = ($a, $b)[$i];

		query(
			$node,
			join "\n",
			map {
				my $schema = $_->{schema};
				my $text = $_->{pair}[$i] =~ s/\bS\b/$schema/gr;
				"SET search_path = $schema; $text; RESET ALL;"
			} @started);

		query($node, 'INSERT INTO last VALUES (' . last_row($node) . ')');
	}
	my @failed = exchange();
	my ($one, $two) = (facts_of($a), facts_of($b));

	foreach my $pair (@started)
	{
		my $text = join ' | ', @{ $pair->{pair} };
		my @errors = grep { $_ eq $pair->{schema} } @failed;

		$pair->{text} = "$what: $pair->{schema}: $text";
		$pair->{errors} = \@errors;
		$pair->{equal} = $one->{ $pair->{name} } eq $two->{ $pair->{name} };
		$pair->{facts} = [ $one->{ $pair->{name} }, $two->{ $pair->{name} } ];
	}
	return @started;
}

query($_, 'CREATE ROLE regress_one; CREATE ROLE regress_two')
  foreach ($a, $b);
query($a, 'CREATE TABLE last (id int PRIMARY KEY)');
create_group($a, 'g');
join_group($b, $a, 'g');

# A position of the other one is known only once it has made something.
query($_, 'INSERT INTO last VALUES (-' . ord($_->name) . ')')
  foreach ($a, $b);
wait_for_group('g', $a, $b);

foreach my $pair (try_pairs('conflict', @conflicts))
{
	is(scalar(@{ $pair->{errors} }),
		2, "$pair->{text}: an error on both members")
	  or diag(explain($pair->{errors}), @{ $pair->{facts} });
}
foreach my $pair (try_pairs('both', @both))
{
	ok($pair->{equal} && !@{ $pair->{errors} }, "$pair->{text}: equal")
	  or diag(explain($pair->{errors}), @{ $pair->{facts} });
}

foreach my $seed ($first .. $first + $seeds - 1)
{
	my @pairs;
	my %seen;

	srand $seed;
	foreach (1 .. $pairs)
	{
		my $group = $groups[ rand() < 0.5 ? 0 : int rand @groups ];

		push @pairs, [ map { $group->[ int rand @$group ] } 1 .. 2 ];
	}
	foreach my $pair (try_pairs("seed $seed", @pairs))
	{
		$seen{ @{ $pair->{errors} } ? 'failed' : 'equal' }++;
		ok($pair->{equal} || @{ $pair->{errors} }, $pair->{text})
		  or diag(@{ $pair->{facts} });
	}
	note("seed $seed: " . join ', ', map { "$seen{$_} $_" } sort keys %seen);
}

# There is no third member that could bring what an error may have come of, so nobody waits.
my $before = query($b, 'SELECT clock_timestamp()');
query($b,
	'SET weft.ddl_replication = off; ALTER TABLE last ADD CONSTRAINT only_b CHECK (id <> -1)'
);
query($a, 'INSERT INTO last VALUES (-1)');
my ($error) = apply_error($b, subscription($b), $before);
like(
	$error,
	qr/violates check constraint "only_b"/,
	'an error that has nothing to do with the schema of others');
query($b,
	'SET weft.ddl_replication = off; ALTER TABLE last DROP CONSTRAINT only_b'
);
wait_for_group('g', $a, $b);
ok(!$b->log_contains('wait for a schema change of another member'),
	'... nobody has waited for another member');

done_testing();
