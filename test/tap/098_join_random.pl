# A node joins while the others write, with random settings on each member and random
# types of keys.  Once all changes have arrived, all members have the same rows, and agree
# on the time and node of the last change of each row that was changed since the join began.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_FIRST_SEED the first (default 1).

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
my $num_keys = 60;
my $num_busy =
  20;    # of these, changed all the time; the others only before the copy
my $num_tables = 5;

my ($a, $b, $c) = map { new_member($_) } qw(a b c);
my %settings = (
	datestyle =>
	  [ 'ISO, YMD', 'SQL, DMY', 'SQL, MDY', 'German', 'Postgres, DMY' ],
	timezone => [
		'UTC', 'Asia/Kolkata',
		'Australia/Lord_Howe', 'America/New_York',
		'Israel'
	],
	intervalstyle =>
	  [ 'postgres', 'postgres_verbose', 'sql_standard', 'iso_8601' ],
	extra_float_digits => [ -15, 0, 1, 3 ],
	bytea_output => [ 'hex', 'escape' ],
	client_encoding => [ 'UTF8', 'LATIN1', 'WIN1252' ],
	lc_monetary => [ 'C', 'C.UTF-8' ],
	quote_all_identifiers => [ 'on', 'off' ],
	idle_in_transaction_session_timeout => [ '0', '1s' ]);

# Types of keys, each with a value for i.
my %types = (
	timestamptz =>
	  "timestamptz '2026-10-25 00:30:00+00' + i * interval '30 min'",
	'timestamptz[]' =>
	  "ARRAY[timestamptz '2026-03-04 00:30:00+00' + i * interval '30 min']",
	tstzrange =>
	  "tstzrange('2026-03-04 00:30:00+00', timestamptz '2026-03-04 00:30:00+00' + i * interval '1 day')",
	date => "date '2026-01-12' + i",
	mood => "('m' || i)::x.mood",
	'mood[]' => "ARRAY[('m' || i)::x.mood, 'm1']",
	good_mood => "('m' || i)::x.mood",
	late => "timestamptz '2026-03-04 00:30:00+00' + i * interval '3 hours'",
	pair =>
	  "ROW(('m' || i)::x.mood, timestamptz '2026-03-04 00:30:00+00' + i * interval '30 min')::x.pair",
	numeric => '(i * 1.10)::numeric',
	float8 => 'sqrt(i)',
	'text COLLATE x.nocase' => "'Key ' || i || '\xc3\xbc'",
	bytea => "decode('00ff5c27' || lpad(to_hex(i), 2, '0'), 'hex')",
	interval => "i * interval '1 day 02:03:04.5' - interval '1 year 1 mon'",
	money => '(i * -1234.56)::numeric::money',
	varbit => 'i::bit(8)::varbit',
	jsonb => "jsonb_build_object('k', i, 'f', sqrt(i))");

sub pick { return $_[ rand @_ ] }

# The schema of a seed; tables are called t1 and so on.
sub make_schema
{
	my $labels = join ', ', map { "'m$_'" } 1 .. $num_keys;
	my $schema = <<"EOS";
SET client_encoding = 'UTF8';
CREATE SCHEMA x;
CREATE SEQUENCE x.stamp;
CREATE TYPE x.mood AS ENUM ($labels);
CREATE DOMAIN x.good_mood AS x.mood CHECK (VALUE <> 'm1' OR VALUE = 'm1');
CREATE DOMAIN x.late AS timestamptz CHECK (VALUE > '2026-01-01 00:00:00+00');
CREATE TYPE x.pair AS (m x.mood, t timestamptz);
CREATE COLLATION x.nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE FUNCTION x.op(node text, t text, i int, j int, kind int) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE
	v text := node || nextval('x.stamp');
BEGIN
	CASE
	WHEN kind <= 2 THEN
		EXECUTE format('INSERT INTO x.%1\$I (k, v) VALUES (x.key_%1\$s(\$1), \$2) ON CONFLICT DO NOTHING', t) USING i, v;
	WHEN kind <= 7 THEN
		EXECUTE format('UPDATE x.%1\$I SET v = \$2 WHERE k::text = x.key_%1\$s(\$1)::text', t) USING i, v;
	WHEN kind <= 8 THEN
		EXECUTE format('DELETE FROM x.%1\$I WHERE k::text = x.key_%1\$s(\$1)::text', t) USING i;
	ELSE
		EXECUTE format('UPDATE x.%1\$I SET k = x.key_%1\$s(\$3), v = \$2 WHERE k::text = x.key_%1\$s(\$1)::text', t) USING i, v, j;
	END CASE;
EXCEPTION WHEN unique_violation THEN
	NULL;
END \$\$;
EOS
	my @described;

	foreach my $i (1 .. $num_tables)
	{
		my $type = pick(sort keys %types);
		my $base = $type =~ s/ COLLATE.*//r;
		my $key =
		  pick('PRIMARY KEY (k)', 'PRIMARY KEY (n, k)', 'UNIQUE (k, n)');
		my $full = rand() < 0.3;

		$schema .=
			"SET search_path = x, pg_catalog;\n"
		  . "CREATE FUNCTION x.key_t$i(i int) RETURNS $base STABLE LANGUAGE sql SET search_path = x, pg_catalog AS \$\$ SELECT ($types{$type})::$base \$\$;\n"
		  . "CREATE TABLE x.t$i (v text, k $type NOT NULL, n int NOT NULL DEFAULT 1, CONSTRAINT t${i}_key $key);\n";
		$schema .=
		  "ALTER TABLE x.t$i REPLICA IDENTITY USING INDEX t${i}_key;\n"
		  if $key =~ /UNIQUE/;
		$schema .= "ALTER TABLE x.t$i REPLICA IDENTITY FULL;\n"
		  if $full && $key !~ /UNIQUE/;
		push @described, "$type $key";
	}
	return ($schema, join '; ', @described);
}

sub choose_settings
{
	my ($node) = @_;
	my %chosen = map { $_ => pick(@{ $settings{$_} }) } sort keys %settings;

	query(
		$node,
		join '; ',
		map { "ALTER DATABASE postgres SET $_ = '$chosen{$_}'" }
		  sort keys %chosen);
	return;
}

# Changes rows from one key to another.
sub start_load
{
	my ($node, $first, $last) = @_;
	my $name = $node->name;

	return start_pgbench(
		$node,
		{
			"\\set t random(1, $num_tables)\n\\set i random($first, $last)\n\\set j random($first, $last)\n\\set kind random(1, 10)\n"
			  . "SELECT x.op('$name', 't' || :t, :i, :j, :kind);\n" => 1
		},
		'-c' => 2,
		'-T' => 600);
}

# Waits until a node has made some more changes.
sub wait_for_changes
{
	my ($node, $count) = @_;
	my $last = query($node, 'SELECT last_value FROM x.stamp');
	poll($node, "SELECT last_value >= $last + $count FROM x.stamp");
	return;
}

# The rows of a table, with time and node of the last change if it was made since then.
sub versions
{
	my ($node, $table, $since) = @_;
	return query($node, <<"EOS");
SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'postgres';
SET extra_float_digits = 3; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET quote_all_identifiers = off;
SELECT t.k::text COLLATE "C", t.v, CASE WHEN c.roident = 65535 OR changed < '$since' THEN 'earlier'
	ELSE changed || ' ' || coalesce(o.node_name, weft.local_node()) END
FROM x.$table t, weft.row_commit_timestamp(t.tableoid, t.ctid) changed, pg_xact_commit_timestamp_origin(t.xmin) c LEFT JOIN weft.member_origins() o ON o.roident = c.roident
ORDER BY 1
EOS
}

sub run_seed
{
	my ($seed) = @_;
	srand $seed;
	my ($schema, $described) = make_schema();
	my $target = pick($a, $b);

	note("seed $seed: $described");
	choose_settings($_) foreach ($a, $b, $c);
	query_all([ $a, $b, rand() < 0.5 ? $c : () ],
		'SET weft.ddl_replication = off; ' . $schema);
	query($a, "SELECT weft.refresh_node_group('g')");
	query($a,
		"SELECT x.op('a', 't' || t, i, i, 1) FROM generate_series(1, $num_tables) t, generate_series(1, $num_keys) i"
	);
	wait_for_group('g', $a, $b);

	# The snapshot must wait for this transaction; nothing is applied there meanwhile.
	my @loads = map { start_load($_, 1, $num_busy) } ($a, $b);
	my @early = map { start_load($_, $num_busy + 1, $num_keys) } ($a, $b);
	wait_for_changes($_, 20) foreach ($a, $b);
	my $session = open_session($target);
	$session->query_safe(
		'SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT txid_current()'
	);
	start_join($c, $target, 'g');
	poll($c, "SELECT step = 'copy' FROM weft.join_entry");
	my $since = query($c,
		"SET timezone = 'UTC'; SET datestyle = 'ISO'; SELECT recent_since FROM weft.join_entry"
	);
	wait_for_changes($_, 100) foreach ($a, $b);
	end_load($_) foreach @early;
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_join($c);
	push @loads, start_load($c, 1, $num_busy);
	wait_for_changes($_, 20) foreach ($a, $b, $c);
	end_load($_) foreach @loads;
	wait_for_group('g', $a, $b, $c);

	foreach my $i (1 .. $num_tables)
	{
		my $expected = versions($a, "t$i", $since);
		is(versions($_, "t$i", $since),
			$expected, "seed $seed: t$i on \"" . $_->name . '"')
		  foreach ($b, $c);
	}

	# Reduces the group to two nodes.
	query($a, "SELECT weft.part_node('c')");
	query_all(
		[ $a, $b, $c ],
		'SET weft.ddl_replication = off; SET client_min_messages = warning; DROP SCHEMA x CASCADE'
	);
	return;
}

create_group($a, 'g');
join_group($b, $a, 'g');
run_seed($_) foreach ($first_seed .. $first_seed + $seeds - 1);
$_->stop foreach ($a, $b, $c);
done_testing();
