# What is compared and how: mapping of tables, row filters, hashes and ranges.
#
# weft_test_compare() compares tables at rest, without a cut.  The subscription is disabled
# once the tables are copied, and then differences are planted here.
#
# The settings of the two databases differ in everything on which the text of a value depends.
#
# With a stock publisher of this version, and with the oldest that is supported if it is installed
# (WEFT_PG15_BINDIR, or where Debian installs it).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'only Weft compares' unless weft();

my $old = install_path_of(15);
my $icu = ($ENV{with_icu} // '') eq 'yes';

# Each is a row, whose column has the first value there and the second one here.  Copied values
# are those of the publisher.  The last says whether that is a difference.
my @values = (
	[ 'float8', "'-0'", "'0'", 1 ],
	[ 'float8', "'NaN'", "'NaN'", 0 ],
	[ 'float8', "'NaN'", "'Infinity'", 1 ],
	[ 'float8', "'0.1'", "'0.10000000000000002'", 1 ],
	[ 'float4', "'1e10'", "'10000001024'", 1 ],
	[ 'numeric', "'1.0'", "'1.00'", 1 ],
	[ 'numeric', "'1.50'", "'01.50'", 0 ],
	[ 'int8', "'4294967296'", "'1'", 1 ],
	[ 'int8', "'-1'", "'0'", 1 ],
	[ 'int8', "'0'", 'NULL', 1 ],
	[ 'int4', "'0'", 'NULL', 1 ],
	[ 'int2', "'1'", "'-1'", 1 ],
	[ 'oid', "'4000000000'", "'4000000001'", 1 ],
	[ 'bool', "'f'", 'NULL', 1 ],
	[ 'text', "'NULL'", 'NULL', 1 ],
	[ 'text', "''", 'NULL', 1 ],
	[ 'text', "'a'", "'a '", 1 ],
	[ 'text', "'é'", "'e'", 1 ],
	[ 'varchar', "'x'", "'X'", 1 ],
	[ 'char(4)', "'ab'", "'ab  '", 0 ],
	[ 'char(4)', "'ab'", "' ab'", 1 ],
	[ 'bytea', "'\\x00ff5c27'", "'\\x00ff5c28'", 1 ],
	[ 'bytea', "'\\x41'", "'A'", 0 ],
	[ 'timestamptz', "'2020-06-01 12:00+00'", "'2020-06-01 17:30+05:30'", 0 ],
	[
		'timestamptz', "'2020-06-01 12:00+00'",
		"'2020-06-01 12:00:00.000001+00'", 1
	],
	[ 'timestamp', "'2020-06-01 12:00'", "'2020-01-06 12:00'", 1 ],
	[ 'date', "'2020-06-01'", "'2020-01-06'", 1 ],
	[ 'timetz', "'12:00+00'", "'13:00+01'", 1 ],
	[ 'interval', "'1 day'", "'24:00:00'", 1 ],
	[ 'interval', "'90 minutes'", "'1 hour 30 minutes'", 0 ],
	[ 'money', "'12.34'", "'12.35'", 1 ],
	[ 'json', q('{"a":1,"b":2}'), q('{"b":2,"a":1}'), 1 ],
	[ 'jsonb', q('{"a":1,"b":2}'), q('{"b":2,"a":1}'), 0 ],
	[ 'jsonb', q('{"a":1.0}'), q('{"a":1.00}'), 1 ],
	[ 'int4[]', "'[0:1]={1,2}'", "'{1,2}'", 1 ],
	[ 'text[]', "'{NULL}'", q('{"NULL"}'), 1 ],
	[ 'uuid', "'a0eebc999c0b4ef8bb6d6bb9bd380a11'", 'NULL', 1 ],
	[ 'inet', "'10.0.0.1'", "'10.0.0.1/32'", 0 ],
	[ 'mood', "'sad'", "'happy'", 1 ],
	[ 'mood', "'sad'", "'sad'", 0 ],
	[ 'pair', q('("a ""b"" \\\\ ,",)'), q('("a ""b"" \\\\ ,","")'), 1 ],
	[ 'pair', q('(,)'), 'NULL', 1 ],
	[ 'pair', q('(x,y)'), q('("x","y")'), 0 ],
	[ 'int4range', "'[1,3]'", "'[1,4)'", 0 ],
	[ 'int4range', "'[1,3]'", "'[1,3)'", 1 ],
	[ 'short', "'d'", "'e'", 1 ],);

sub types_table
{
	my ($reverse) = @_;
	my @columns = map { "c$_ $values[$_][0]" } 0 .. $#values;
	@columns = reverse @columns if $reverse;
	return
	  'CREATE TABLE types (id int PRIMARY KEY, ' . join(', ', @columns) . ')';
}

# What both sides have in common, and what only one of them has.
my $common = <<'EOC';
CREATE DOMAIN short AS text CHECK (length(VALUE) < 5);
CREATE TYPE pair AS (a text, b text);
CREATE TABLE ranged (id int PRIMARY KEY, v int);
CREATE TABLE two_keys (a text COLLATE "C", b int8, v text, PRIMARY KEY (a, b));
CREATE TABLE mood_keys (m mood, id int, v int, PRIMARY KEY (m, id));
CREATE TABLE numeric_keys (id numeric PRIMARY KEY, v int);
CREATE TABLE keyless (v int, t text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE full_with_key (id int PRIMARY KEY, v int);
ALTER TABLE full_with_key REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL, c int);
CREATE UNIQUE INDEX by_index_key ON by_index (b, a) INCLUDE (c);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE SCHEMA "Ünï ""S""";
CREATE TABLE "Ünï ""S"""."t't" ("ID ""x""" int PRIMARY KEY, "select" text, t text);
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE listed (id int PRIMARY KEY, a int, b int);
CREATE TABLE filtered (id int PRIMARY KEY, region text, n int);
CREATE TABLE inserted (id int PRIMARY KEY);
CREATE TABLE copying (id int PRIMARY KEY);
CREATE TABLE forgotten (id int PRIMARY KEY);
CREATE TABLE secret (id int PRIMARY KEY);
CREATE TABLE policed (id int PRIMARY KEY);
CREATE TABLE wide (id int PRIMARY KEY, t text, b bytea, j jsonb);
CREATE TABLE many (id int PRIMARY KEY);
EOC

my $many = join ', ', map { "ADD c$_ int DEFAULT $_" } 1 .. 160;

my $there = <<'EOC';
CREATE TABLE widened (id int PRIMARY KEY, gone int, a int, b varchar(10), c char(3), d bool);
ALTER TABLE widened DROP gone;
CREATE TABLE split (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (500);
CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (500) TO (100000);
CREATE TABLE joined (id int PRIMARY KEY, v int);
CREATE TABLE leaves (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF leaves FOR VALUES FROM (0) TO (100);
INSERT INTO leaves SELECT i, i FROM generate_series(1, 9) i;
INSERT INTO widened SELECT i, i, 'b' || i, 'c', i % 2 = 0 FROM generate_series(1, 20) i;
INSERT INTO ranged SELECT i, i FROM generate_series(1, 3000) i;
INSERT INTO two_keys SELECT chr(97 + i % 20), i, 'v' FROM generate_series(1, 2000) i;
INSERT INTO mood_keys SELECT CASE i % 3 WHEN 0 THEN 'sad' WHEN 1 THEN 'ok' ELSE 'happy' END::mood, i, i
	FROM generate_series(1, 2000) i;
INSERT INTO numeric_keys SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO keyless SELECT i % 1000, 'x' FROM generate_series(1, 3000) i;
INSERT INTO full_with_key SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO by_index SELECT i, i, i % 3, i FROM generate_series(1, 10) i;
INSERT INTO "Ünï ""S"""."t't" SELECT i, 'select', 'é' FROM generate_series(1, 1200) i;
INSERT INTO parent SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO child SELECT i, i FROM generate_series(11, 20) i;
INSERT INTO listed SELECT i, i, i FROM generate_series(1, 10) i;
INSERT INTO filtered SELECT i, CASE i % 3 WHEN 0 THEN 'north' WHEN 1 THEN 'south' END, i FROM generate_series(1, 30) i;
INSERT INTO split SELECT i, i FROM generate_series(1, 1000) i;
INSERT INTO joined SELECT i, i FROM generate_series(1, 3000) i;
INSERT INTO wide SELECT i, repeat('t', 20000 * i), convert_to(repeat('b', 40000 * i), 'UTF8'),
	jsonb_build_array(repeat('j', 20000)) FROM generate_series(1, 3) i;
INSERT INTO many VALUES (1), (2);
CREATE PUBLICATION p FOR TABLE types, ranged, two_keys, mood_keys, numeric_keys, keyless,
	full_with_key, by_index, "Ünï ""S"""."t't", ONLY parent, child, copying, forgotten, secret, policed,
	wide, widened, joined, many;
CREATE PUBLICATION p_list FOR TABLE listed (id, a);
CREATE PUBLICATION p_filter FOR TABLE filtered WHERE (region = 'north' AND n > 3);
CREATE PUBLICATION p_filter2 FOR TABLE filtered WHERE (id = 1 OR region IS NULL);
CREATE PUBLICATION p_root FOR TABLE split WITH (publish_via_partition_root);
CREATE PUBLICATION p_leaf FOR TABLE leaves;
CREATE PUBLICATION p_insert FOR TABLE inserted WITH (publish = 'insert');
EOC

my $here = <<'EOC';
CREATE TABLE widened (extra int DEFAULT 7, d text, c text, b text, a int8, id int8 PRIMARY KEY);
CREATE TABLE split (v int, id int PRIMARY KEY);
CREATE TABLE joined (id int, v int, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE joined_1 PARTITION OF joined FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE joined_2 PARTITION OF joined FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE leaf (id int PRIMARY KEY, v int);
EOC

# What weft_test_compare() returns, without the rows.
sub compare
{
	my ($sub, $table, $rows) = @_;
	$rows //= 1000;
	return query($sub,
		"SELECT side, key, found FROM weft_test_compare('s', '$table', $rows) WHERE found IS NOT NULL ORDER BY 1, 2"
	);
}

sub divided
{
	my ($sub, $table, $rows) = @_;
	return query($sub,
		"SELECT side, key FROM weft_test_compare('s', '$table', $rows) LIMIT 1"
	);
}

sub status
{
	my ($sub, $table) = @_;
	return query($sub,
		"SELECT status || ': ' || coalesce(reason, '') FROM weft_test_tables('s') WHERE name = '$table'"
	);
}

sub start_publisher
{
	my ($name, %params) = @_;
	my $pub = new_publisher($name, stock => 1, %params);

	query($pub, <<'EOC');
ALTER DATABASE postgres SET timezone = 'America/New_York';
ALTER DATABASE postgres SET datestyle = 'German';
ALTER DATABASE postgres SET bytea_output = 'escape';
ALTER DATABASE postgres SET extra_float_digits = -5;
ALTER DATABASE postgres SET intervalstyle = 'sql_standard';
EOC
	query($pub,
			"CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); $common "
		  . types_table(0)
		  . "; $there ALTER TABLE many $many;");
	query(
		$pub,
		"SET datestyle = 'ISO, MDY'; SET client_encoding = 'UTF8';" . join '',
		map { "INSERT INTO types (id, c$_) VALUES ($_, $values[$_][1]);" }
		  0 .. $#values);
	return $pub;
}

sub start_subscriber
{
	my ($name, $pub) = @_;
	my $sub = new_subscriber($name);

	query($sub, 'CREATE EXTENSION weft_test');
	query($sub,
			"CREATE TYPE mood AS ENUM ('happy', 'sad', 'ok'); $common "
		  . types_table(1)
		  . "; $here ALTER TABLE many $many;");
	query($sub, <<'EOC');
ALTER DATABASE postgres SET timezone = 'Asia/Kolkata';
ALTER DATABASE postgres SET datestyle = 'SQL, DMY';
ALTER DATABASE postgres SET bytea_output = 'hex';
ALTER DATABASE postgres SET intervalstyle = 'iso_8601';
ALTER DATABASE postgres SET search_path = public, pg_catalog;
EOC
	query($sub,
		"CREATE SUBSCRIPTION s CONNECTION '@{[ $pub->connstr ]} dbname=postgres'"
		  . ' PUBLICATION p, p_list, p_filter, p_filter2, p_root, p_leaf, p_insert'
	);
	wait_for_apply($pub, $sub, 's');
	disable_subscription($sub, 's');
	return $sub;
}

sub test_all
{
	my ($version, %params) = @_;
	my $pub = start_publisher("pub$version", %params);
	my $sub = start_subscriber("sub$version", $pub);

	test_equal($sub, $version);
	test_values($sub, $version);
	test_keys($sub, $version);
	test_mapping($pub, $sub, $version);
	test_filters($pub, $sub, $version);
	test_statuses($pub, $sub, $version);
	$sub->stop;
	$pub->stop;
	return;
}

# Nothing is planted yet.
sub test_equal
{
	my ($sub, $version) = @_;

	is( query(
			$sub,
			"SELECT string_agg(name || ' ' || status, ',') FROM weft_test_tables('s') WHERE status <> 'comparable'"
		),
		'public.inserted partly published',
		"$version: all tables but one can be compared");
	foreach my $table (
		qw(types ranged two_keys mood_keys numeric_keys keyless full_with_key by_index
		parent child listed filtered split joined leaf wide widened many),
		'"Ünï ""S"""."t\'\'t"')
	{
		my $name = $table =~ /^"/ ? $table : "public.$table";
		is(compare($sub, $name), '', "$version: nothing planted in $table");
	}
	return;
}

sub test_values
{
	my ($sub, $version) = @_;
	my @expected;

	foreach my $i (0 .. $#values)
	{
		query($sub,
				"SET datestyle = 'ISO, MDY';"
			  . "UPDATE public.types SET c$i = $values[$i][2] WHERE id = $i");
		push @expected, qq(here|{"id": "$i"}|1), qq(there|{"id": "$i"}|1)
		  if $values[$i][3];
	}
	is( compare($sub, 'public.types'),
		join("\n", sort @expected),
		"$version: differences of all types, and nothing else");
	is( query(
			$sub,
			q(SELECT "row"::jsonb ->> 'c0', "row"::jsonb ->> 'c1' FROM weft_test_compare('s', 'public.types') WHERE key = '{"id": "0"}' ORDER BY side)
		),
		"0|\n-0|",
		"$version: rows show exact texts, and nulls");

	# a small change in large values
	query($sub, <<'EOC');
UPDATE public.wide SET t = overlay(t PLACING 'x' FROM 15000) WHERE id = 1;
UPDATE public.wide SET b = set_byte(b, 79999, 1) WHERE id = 2;
UPDATE public.wide SET j = jsonb_set(j, '{1}', '1') WHERE id = 3;
EOC
	is( query(
			$sub,
			q(SELECT side, key, whole, length("row") < 60000 FROM weft_test_compare('s', 'public.wide') WHERE found IS NOT NULL ORDER BY 1, 2)
		),
		join(
			"\n",
			map {
				my $side = $_;
				map { qq($side|{"id": "$_"}|f|t) } 1 .. 3
			} qw(here there)),
		"$version: large values, which are cut");
	is( query(
			$sub,
			q(SELECT count(DISTINCT "row"::jsonb ->> 't') FROM weft_test_compare('s', 'public.wide') WHERE key = '{"id": "1"}')
		),
		'2',
		"$version: what is left of different large values differs");
	query($sub, 'UPDATE public.many SET c60 = c61, c61 = c60 WHERE id = 2');
	is( compare($sub, 'public.many'),
		qq(here|{"id": "2"}|1\nthere|{"id": "2"}|1),
		"$version: values of two among many columns change places");
	return;
}

sub test_keys
{
	my ($sub, $version) = @_;

	query($sub, <<'EOC');
UPDATE public.ranged SET v = v + 1 WHERE id = 1;
DELETE FROM public.ranged WHERE id = 3000;
INSERT INTO public.ranged VALUES (-5, 0), (100000, 0);
UPDATE public.ranged SET v = 3001 - v WHERE id IN (1500, 1501);
EOC
	my $found = join "\n",
	  (map { qq(here|{"id": "$_"}|1) } -5, 1, 100000, 1500, 1501),
	  (map { qq(there|{"id": "$_"}|1) } 1, 1500, 1501, 3000);
	is(compare($sub, 'public.ranged', $_),
		$found, "$version: ranges of $_ rows")
	  foreach 1, 10, 100, 1000, 100000;
	like(
		divided($sub, 'public.ranged', 100),
		qr/^ranges\|(2[5-9]|[34][0-9])$/,
		"$version: about as many ranges as asked for");
	like(divided($sub, 'public.joined', 100),
		qr/^ranges\|/,
		"$version: ranges of a table that is partitioned here");
	is(compare($sub, 'public.joined', 100),
		'', "$version: and nothing is found");

	query($sub, <<'EOC');
UPDATE public.two_keys SET v = 'w' WHERE b = 77;
DELETE FROM public.two_keys WHERE b = 100;
EOC
	like(
		divided($sub, 'public.two_keys', 50),
		qr/^ranges\|([2-5][0-9])$/,
		"$version: ranges of two columns");
	is( compare($sub, 'public.two_keys', 50),
		qq(here|{"a": "r", "b": "77"}|1\nthere|{"a": "a", "b": "100"}|1\nthere|{"a": "r", "b": "77"}|1),
		"$version: keys of two columns");

	query($sub, <<'EOC');
UPDATE public.mood_keys SET v = 0 WHERE id = 77;
UPDATE public.mood_keys SET m = 'happy' WHERE id = 6;
EOC
	is(divided($sub, 'public.mood_keys', 100),
		'buckets|32', "$version: enums have no common order");
	is( compare($sub, 'public.mood_keys', 100),
		join("\n",
			qq(here|{"m": "happy", "id": "6"}|1),
			qq(here|{"m": "happy", "id": "77"}|1),
			qq(there|{"m": "happy", "id": "77"}|1),
			qq(there|{"m": "sad", "id": "6"}|1)),
		"$version: buckets");

	query($sub, "UPDATE public.numeric_keys SET id = 5.0 WHERE id = 5");
	is( compare($sub, 'public.numeric_keys', 2),
		qq(here|{"id": "5.0"}|1\nthere|{"id": "5"}|1),
		"$version: keys with another text are other keys");

	query($sub, <<'EOC');
DELETE FROM public.keyless WHERE ctid = (SELECT max(ctid) FROM public.keyless WHERE v = 7);
INSERT INTO public.keyless VALUES (8, 'x'), (1, NULL), (1, NULL);
EOC
	like(divided($sub, 'public.keyless', 100),
		qr/^buckets\|/, "$version: no ranges without a key");
	is( query(
			$sub,
			q(SELECT DISTINCT side, key IS NULL, "row" COLLATE "C" FROM weft_test_compare('s', 'public.keyless', 100) WHERE found IS NOT NULL ORDER BY 1, 2, 3)
		),
		join("\n",
			'here|t|{"t": "x", "v": "8"}',
			'here|t|{"t": null, "v": "1"}',
			'there|t|{"t": "x", "v": "7"}'),
		"$version: rows without a key are counted");

	query($sub, 'UPDATE public.by_index SET c = 0 WHERE id = 4');
	is( compare($sub, 'public.by_index'),
		qq(here|{"a": "4", "b": "1"}|1\nthere|{"a": "4", "b": "1"}|1),
		"$version: the replica identity is the key");
	query($sub, 'UPDATE public.full_with_key SET v = 0 WHERE id = 4');
	is( compare($sub, 'public.full_with_key'),
		qq(here|{"id": "4"}|1\nthere|{"id": "4"}|1),
		"$version: with REPLICA IDENTITY FULL, the primary key is");
	return;
}

sub columns_of
{
	my ($sub, $table) = @_;
	return query($sub,
		"SELECT columns, missing, key FROM weft_test_tables('s', '{$table}')"
	);
}

sub test_mapping
{
	my ($pub, $sub, $version) = @_;

	is(columns_of($sub, 'public.widened'),
		'id,a,b,c,d||id', "$version: other types, columns and order here");
	query($sub, 'UPDATE public.widened SET extra = 1 WHERE id = 1');
	is(compare($sub, 'public.widened', 5),
		'', "$version: extra column is not compared");
	query($sub, "UPDATE public.widened SET d = 'true' WHERE id = 2");
	query($sub, "UPDATE public.widened SET c = 'c' WHERE id = 3");
	query($sub, 'INSERT INTO public.widened (id) VALUES (3000000000)');
	is( compare($sub, 'public.widened', 5),
		join("\n",
			(map { qq(here|{"id": "$_"}|1) } 2, 3, 3000000000),
			(map { qq(there|{"id": "$_"}|1) } 2, 3)),
		"$version: texts of different types; a key that the publisher cannot have"
	);

	query($sub, 'ALTER TABLE public.widened DROP a');
	is(columns_of($sub, 'public.widened'),
		'id,b,c,d|a|id', "$version: column does not exist here");
	is(columns_of($sub, 'public.listed'), 'id,a||id',
		"$version: column list");
	query($sub, 'UPDATE public.listed SET b = 5');
	is(compare($sub, 'public.listed'),
		'', "$version: column outside of the list");

	is( query(
			$sub,
			"SELECT there, here FROM weft_test_tables('s', '{public.child, public.split, public.joined}') ORDER BY 1"
		),
		join("\n",
			'ONLY public.child t|ONLY public.child t',
			'ONLY public.joined t|public.joined t',
			'public.split t|ONLY public.split t'),
		"$version: what is read of children and partitions");
	query($sub, 'INSERT INTO public.child VALUES (50, 50)');
	is(compare($sub, 'public.parent'),
		'', "$version: child is no part of its parent");
	is( compare($sub, 'public.child'),
		'here|{"id": "50"}|1',
		"$version: but a table of its own");
	query($sub, 'UPDATE public.split SET v = 0 WHERE id = 600');
	is( compare($sub, 'public.split', 100),
		qq(here|{"id": "600"}|1\nthere|{"id": "600"}|1),
		"$version: published as its root");
	query($sub, 'DELETE FROM public.leaf WHERE id = 3');
	is( compare($sub, 'public.leaf'),
		'there|{"id": "3"}|1',
		"$version: published as a partition");

	query($sub,
		q(UPDATE "Ünï ""S"""."t't" SET t = 'e' WHERE "ID ""x""" = 1000));
	is( compare($sub, q("Ünï ""S"""."t''t"), 100),
		qq(here|{"ID \\"x\\"": "1000"}|1\nthere|{"ID \\"x\\"": "1000"}|1),
		"$version: quoted names that are not ASCII");
	return;
}

sub test_filters
{
	my ($pub, $sub, $version) = @_;

	is(query($sub, "SELECT count(*) FROM public.filtered"),
		'20', "$version: filtered rows are copied");
	query($sub, <<'EOC');
INSERT INTO public.filtered VALUES (1000, 'south', 1), (1001, 'north', 2), (1002, NULL, 0);
UPDATE public.filtered SET n = 100 WHERE id = 6;
UPDATE public.filtered SET region = 'south' WHERE id = 9;
EOC
	is( compare($sub, 'public.filtered'),
		join("\n",
			(map { qq(here|{"id": "$_"}|1) } 1002, 6),
			(map { qq(there|{"id": "$_"}|1) } 6, 9)),
		"$version: only rows of the row filters are compared");

	query($pub,
		'CREATE PUBLICATION p_filter3 FOR TABLE filtered (id, region, n)');
	query($sub,
		'ALTER SUBSCRIPTION s ADD PUBLICATION p_filter3 WITH (refresh = false)'
	);
	unlike(
		query(
			$sub,
			"SELECT here FROM weft_test_tables('s', '{public.filtered}')"),
		qr/WHERE/,
		"$version: one publication without a filter");
	query($sub,
		'ALTER SUBSCRIPTION s DROP PUBLICATION p_filter3 WITH (refresh = false)'
	);
	query($pub, "ALTER PUBLICATION p_filter3 SET TABLE filtered (id, n)");
	query($sub,
		'ALTER SUBSCRIPTION s ADD PUBLICATION p_filter3 WITH (refresh = false)'
	);
	like(
		status($sub, 'public.filtered'),
		qr/^partly published: .*different columns/,
		"$version: different column lists");
	query($pub, "DROP PUBLICATION p_filter3");
	query($pub,
		"CREATE PUBLICATION p_filter3 FOR TABLE filtered WHERE (id > 5) WITH (publish = 'insert')"
	);
	like(
		status($sub, 'public.filtered'),
		qr/^partly published: .*same rows/,
		"$version: different filters for INSERT and UPDATE");
	query($sub,
		'ALTER SUBSCRIPTION s DROP PUBLICATION p_filter3 WITH (refresh = false)'
	);
	query($pub, 'DROP PUBLICATION p_filter3');

	query($sub, 'ALTER TABLE public.filtered ALTER region TYPE varchar');
	like(
		status($sub, 'public.filtered'),
		qr/^row filter: .*another type here/,
		"$version: type of the filter's column differs");
	query($sub, 'ALTER TABLE public.filtered DROP region');
	like(
		status($sub, 'public.filtered'),
		qr/^row filter: .*does not exist here/,
		"$version: filter's column does not exist here");
	return;
}

sub test_statuses
{
	my ($pub, $sub, $version) = @_;

	query($sub, <<'EOC');
UPDATE pg_subscription_rel SET srsubstate = 'd' WHERE srrelid = 'public.copying'::regclass;
DELETE FROM pg_subscription_rel WHERE srrelid = 'public.forgotten'::regclass;
CREATE ROLE app;
GRANT CREATE ON DATABASE postgres TO app;
GRANT pg_create_subscription TO app;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO app;
REVOKE ALL ON public.secret FROM app;
CREATE TABLE public.strange (id int);
EOC
	query($sub, <<'EOC');
ALTER TABLE public.policed ENABLE ROW LEVEL SECURITY;
ALTER SUBSCRIPTION s SET (password_required = false, run_as_owner = true);
ALTER SUBSCRIPTION s OWNER TO app;
EOC
	like(
		status($sub, 'public.copying'),
		qr/^not ready:/,
		"$version: not ready");
	like(
		status($sub, 'public.forgotten'),
		qr/^not subscribed: .*REFRESH/,
		"$version: not subscribed");
	like(
		status($sub, 'public.secret'),
		qr/^no right: .*SELECT/,
		"$version: no right here");
	like(
		status($sub, 'public.policed'),
		qr/^no right: .*Row-level security/,
		"$version: row-level security here");
	like(
		query(
			$sub,
			"SELECT status FROM weft_test_tables('s', '{public.strange}')"),
		qr/^not subscribed/,
		"$version: a table that is asked for has a status, whatever it is");
	query($pub, 'ALTER PUBLICATION p DROP TABLE ranged');
	query($pub, 'CREATE TABLE news (id int PRIMARY KEY)');
	query($pub, 'ALTER PUBLICATION p ADD TABLE news');
	like(
		status($sub, 'public.ranged'),
		qr/^not published:/,
		"$version: not published");
	like(
		status($sub, 'public.news'),
		qr/^not subscribed: .*no such table here/,
		"$version: no such table here");

	query($pub, <<'EOC');
CREATE ROLE reader LOGIN;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
REVOKE ALL ON two_keys FROM reader;
REVOKE ALL ON mood_keys FROM reader;
GRANT SELECT (m, id) ON mood_keys TO reader;
ALTER TABLE by_index ENABLE ROW LEVEL SECURITY;
EOC
	query($sub,
		"ALTER SUBSCRIPTION s CONNECTION '@{[ $pub->connstr ]} dbname=postgres user=reader'"
	);
	like(
		status($sub, "public.$_"),
		qr/^no right: .* on the publisher/,
		"$version: no right on $_ of the publisher"
	) foreach qw(two_keys mood_keys by_index);
	like(
		status($sub, qq("Ünï ""S"""."t''t")),
		qr/^no right: /,
		"$version: no right on a schema of the publisher");
	is(status($sub, 'public.types'),
		'comparable: ', "$version: others can be compared");
	return;
}

# Databases with different encodings, nondeterministic collations, and types of extensions.
sub test_other_databases
{
	my $pub = new_publisher('pub_other', stock => 1);
	my $sub = new_subscriber('sub_other');
	my $tables = <<'EOC';
CREATE TABLE letters (id text COLLATE "C" PRIMARY KEY, t text, v varchar(10), c char(3), a text[], n int);
EOC
	my $citext =
	  -e qx(pg_config --sharedir) =~ s/\s+$//r . '/extension/citext.control';

	$tables .= <<'EOC' if $icu;
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE folded (id text COLLATE folded PRIMARY KEY, t text COLLATE folded);
EOC
	$tables .= <<'EOC' if $citext;
CREATE EXTENSION citext;
CREATE TABLE insensitive (id citext PRIMARY KEY, t citext);
EOC
	$pub->safe_psql('postgres',
		"CREATE DATABASE other ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
	);
	$sub->safe_psql('postgres',
		"CREATE DATABASE other ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
	);
	$_->safe_psql('other', "SET client_encoding = 'UTF8'; $tables")
	  foreach $pub, $sub;
	$pub->safe_psql('other', <<'EOC');
SET client_encoding = 'UTF8';
INSERT INTO letters SELECT i || 'é', 'ü\' || i, 'ß', 'ä', ARRAY['ö', 'ø'], i FROM generate_series(1, 500) i;
CREATE PUBLICATION p FOR ALL TABLES;
EOC
	$pub->safe_psql('other',
		"INSERT INTO folded SELECT 'k' || i, 'T' FROM generate_series(1, 500) i"
	) if $icu;
	$pub->safe_psql('other',
		"INSERT INTO insensitive SELECT 'k' || i, 'T' FROM generate_series(1, 500) i"
	) if $citext;
	$sub->safe_psql('other',
		"CREATE EXTENSION weft; CREATE EXTENSION weft_test; CREATE SUBSCRIPTION s CONNECTION '@{[ $pub->connstr ]} dbname=other' PUBLICATION p"
	);
	$sub->safe_psql('other',
		"SELECT weft.wait_for_subscription('s', '1min')");

	my $compare = sub {
		my ($table, $rows) = @_;
		return $sub->safe_psql('other',
			"SELECT side, key, found FROM weft_test_compare('s', '$table', $rows) WHERE found IS NOT NULL ORDER BY 1, 2"
		);
	};
	is($compare->('letters', 1000), '', 'other encoding: nothing planted');
	is($compare->('letters', 50),
		'', 'other encoding: nothing planted, in parts');
	is( $sub->safe_psql(
			'other', "SELECT side FROM weft_test_compare('s', 'letters', 50)"
		),
		'buckets',
		'other encoding: text has no common order');
	$sub->safe_psql('other', <<'EOC');
UPDATE letters SET t = 'ü\\' || n WHERE n = 1;
UPDATE letters SET v = 'ss' WHERE n = 2;
UPDATE letters SET c = 'a' WHERE n = 3;
UPDATE letters SET a = ARRAY['ö', 'o'] WHERE n = 4;
EOC
	is( $compare->('letters', 50),
		join("\n",
			(map { qq(here|{"id": "${_}é"}|1) } 1 .. 4),
			(map { qq(there|{"id": "${_}é"}|1) } 1 .. 4)),
		'other encoding: differences');

	foreach my $case ([ 'folded', $icu, 'ICU' ],
		[ 'insensitive', $citext, 'citext' ])
	{
		my ($table, $supported, $what) = @$case;
	  SKIP:
		{
			skip "the server has no $what", 2 unless $supported;
			is($compare->($table, 50), '', "$table: nothing planted");
			$sub->safe_psql('other', <<"EOC");
UPDATE $table SET t = 't' WHERE id = 'k1';
UPDATE $table SET id = 'K2' WHERE id = 'k2';
EOC
			is( $compare->($table, 50),
				join("\n",
					'here|{"id": "K2"}|1',
					'here|{"id": "k1"}|1',
					'there|{"id": "k1"}|1',
					'there|{"id": "k2"}|1'),
				"$table: equal, but not the same");
		}
	}
	$sub->stop;
	$pub->stop;
	return;
}

# Row filters that a publisher might send.
sub test_hostile_filters
{
	my $sub = new_subscriber('filters');
	my $filter = sub {
		my ($text) = @_;
		$text =~ s/'/''/g;
		return query($sub,
			"SELECT coalesce(filter, problem) FROM weft_test_row_filter('public.t', '$text')"
		);
	};

	query($sub, <<'EOC');
CREATE EXTENSION weft_test;
CREATE SCHEMA evil;
CREATE TABLE evil.traces (t text);
-- not rolled back
CREATE SEQUENCE evil.calls;
CREATE FUNCTION evil.trace(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
	$$BEGIN PERFORM nextval('evil.calls'); RETURN true; END$$;
CREATE FUNCTION public.length(text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
	$$BEGIN PERFORM evil.trace('length'); RETURN 5; END$$;
CREATE FUNCTION public.only_here(text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT evil.trace($1)';
CREATE FUNCTION evil.equal(text, text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS
	$$BEGIN RETURN evil.trace('equal'); END$$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
CREATE DOMAIN evil.trap AS text CHECK (evil.trace(VALUE));
CREATE TYPE evil.comp AS (t evil.trap);
CREATE TABLE public.t (id int, name text, c evil.comp, d evil.trap, loose text COLLATE "C");
ALTER DATABASE postgres SET search_path = evil, public, pg_catalog;
EOC
	is( $filter->('(length(name) > 3)'),
		'(length(name) > 3)',
		'function of the same name is the built-in one');
	is( $filter->(
			"((id > 5) OR ((name = 'a''b'::text) AND (id IS NOT NULL)))"),
		"((id > 5) OR ((name = 'a''b'::text) AND (id IS NOT NULL)))",
		'usual filter');
	is( $filter->(
			"(id = ANY (ARRAY[1, 2, 3])) AND name LIKE 'a%' AND loose < 'm'"),
		"((id = ANY (ARRAY[1, 2, 3])) AND (name ~~ 'a%'::text) AND (loose < 'm'::text))",
		'lists, patterns, order of bytes');
	is( $filter->(
			"CASE WHEN id > 1 THEN COALESCE(name, 'x') ELSE 'y' END = 'z'"),
		"(CASE WHEN (id > 1) THEN COALESCE(name, 'x'::text) ELSE 'y'::text END = 'z'::text)",
		'CASE');

	my %refused = (
		"evil.trace('x')" => qr/function that is not built-in/,
		"public.only_here('x')" => qr/function that is not built-in/,
		"only_here('x')" => qr/function only_here.* does not exist/,
		"name OPERATOR(evil.=) 'x'" => qr/operator that is not built-in/,
		"'(x)'::evil.comp IS NULL" => qr/type that is not built-in/,
		"'x'::evil.trap = 'x'" => qr/type that is not built-in/,
		"CAST('x' AS evil.trap) = 'x'" => qr/type that is not built-in/,
		"c = '(x)'" => qr/type that is not built-in/,
		"d = 'x'" => qr/type that is not built-in/,
		"ARRAY['(x)']::evil.comp[] IS NULL" => qr/type that is not built-in/,
		"id > 1) OR (id < (SELECT count(*) FROM evil.traces)" =>
		  qr/syntax error|not an expression/,
		"EXISTS (SELECT evil.trace('x'))" => qr/more than columns/,
		"true FROM evil.traces" => qr/not an expression/,
		"true, true" => qr/not an expression/,
		"true; DROP TABLE evil.traces" => qr/not an expression/,
		"true INTO stolen" => qr/not an expression/,
		"true AS x" => qr/not an expression/,
		"DISTINCT true" => qr/not an expression/,
		"true UNION SELECT true" => qr/not an expression/,
		"true LIMIT 1" => qr/not an expression/,
		"true FOR UPDATE" => qr/not an expression/,
		"random() > 0.5" => qr/not immutable/,
		"now() > '2020-01-01'" => qr/not immutable/,
		"current_user = 'x'" => qr/more than columns/,
		"pg_sleep(1) IS NULL" => qr/not immutable/,
		"count(*) > 1" => qr/aggregate/,
		"t IS NULL" => qr/does not exist here/,
		"t.id > 1" => qr/does not exist here/,
		"ctid = '(0,1)'" => qr/does not exist here/,
		"tableoid = 1" => qr/does not exist here/,
		"id" => qr/must be type boolean/,
		"nosuch > 1" => qr/does not exist here/,
		"\$1 > 1" => qr/more than columns|no parameter/,
		'' => qr/not an expression/,
		'(' x 100000 => qr/stack depth|memory exhausted|syntax error/,);
	$refused{"name < 'm'"} = qr/depends on a collation/ if $icu;
	query($sub, 'ALTER TABLE t ALTER name TYPE text COLLATE "en-x-icu"')
	  if $icu;
	$refused{"upper(name) = 'M'"} = qr/depends on a collation/ if $icu;

	foreach my $text (sort keys %refused)
	{
		like($filter->($text), $refused{$text},
			'refused: ' . substr($text, 0, 40));
	}
	is(query($sub, 'SELECT is_called FROM evil.calls'),
		'f', 'nothing of it has been executed');
	$sub->stop;
	return;
}

test_hostile_filters();
test_other_databases();
test_all('own');
SKIP:
{
	skip 'PostgreSQL 15 is not installed', 1 unless $old;
	test_all('15', install_path => $old);
}
done_testing();
