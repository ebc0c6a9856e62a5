# weft.copy_schema creates no table whose expressions could do harm later, when rows
# are applied or inserted with the privileges of the table's owner or of a superuser.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');

# Both have a role that may create objects, and objects of superusers.
query_all([ $pub, $sub ], <<'EOS');
CREATE ROLE hostile;
CREATE SCHEMA hostile AUTHORIZATION hostile;
CREATE SCHEMA trusted;
CREATE FUNCTION trusted.positive(int) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN $1 > 0;
CREATE FUNCTION trusted.untold(int) RETURNS boolean LANGUAGE sql RETURN $1 > 0;
CREATE FUNCTION trusted.for_some(int) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN $1 > 0;
REVOKE EXECUTE ON FUNCTION trusted.for_some(int) FROM PUBLIC;
GRANT USAGE ON SCHEMA trusted TO hostile;
GRANT EXECUTE ON FUNCTION trusted.for_some(int) TO hostile;
CREATE DOMAIN trusted.number AS int CHECK (VALUE > 0);
SET ROLE hostile;
CREATE FUNCTION hostile.trap(text) RETURNS text IMMUTABLE LANGUAGE plpgsql
	AS $$ BEGIN IF current_user <> 'hostile' THEN RAISE WARNING 'the trap was called'; END IF; RETURN $1; END $$;
CREATE OPERATOR hostile.% (RIGHTARG = text, FUNCTION = hostile.trap);
CREATE DOMAIN hostile.number AS int CHECK (hostile.trap(VALUE::text) <> '0');
CREATE TYPE hostile.pair AS (a hostile.number, b int);
CREATE TYPE hostile.mood AS ENUM ('sad', 'happy');
CREATE TYPE hostile.span AS RANGE (SUBTYPE = hostile.number);
CREATE TYPE hostile.spoken AS ENUM ('sad', 'happy');
CREATE FUNCTION hostile.text(hostile.spoken) RETURNS text LANGUAGE sql RETURN hostile.trap(enum_out($1)::text);
CREATE CAST (hostile.spoken AS text) WITH FUNCTION hostile.text(hostile.spoken);
CREATE TABLE hostile.bystander (id int PRIMARY KEY);
EOS

# Tables that are refused, and why.
my %refused = (
	"v text CHECK (lo_from_bytea(0, v::bytea) > 0)" =>
	  'function lo_from_bytea is volatile',
	"v text CHECK (query_to_xml('SELECT 1', true, true, '') IS NOT NULL)" =>
	  'function query_to_xml is volatile',
	"v text CHECK (table_to_xml('hostile.bystander', true, true, '')::text <> v)"
	  => 'function table_to_xml reads tables',
	"v text CHECK (v <> '' AND (v = 'x' OR set_config('role', v, false) = v))"
	  => 'function set_config is volatile',
	"v int CHECK (trusted.untold(v))" =>
	  'function trusted.untold is volatile',
	"v int CHECK (trusted.for_some(v))" =>
	  'function trusted.for_some is not executable by PUBLIC',
	"v text CHECK (hostile.trap(v) <> '')" =>
	  'function hostile.trap belongs to another role',
	"v text CHECK ((OPERATOR(hostile.%) v) <> '')" =>
	  'operator hostile.% belongs to another role',
	"v text GENERATED ALWAYS AS (hostile.trap('x')) STORED" =>
	  'function hostile.trap belongs to another role',
	"v text DEFAULT hostile.trap('x')" =>
	  'function hostile.trap belongs to another role',
	"v xml DEFAULT query_to_xml('SELECT 1', true, true, '')" =>
	  'function query_to_xml is volatile',
	"v text DEFAULT set_config('role', 'none', false)" =>
	  'function set_config is volatile',
	"v hostile.number" => 'type hostile.number belongs to another role',
	"v hostile.number[]" => 'type hostile.number belongs to another role',
	"v hostile.pair" => 'type hostile.pair belongs to another role',
	"v hostile.spoken CHECK (v::text <> '')" =>
	  'type hostile.spoken belongs to another role',
	"v text DEFAULT ('sad'::hostile.spoken)::text" =>
	  'type hostile.spoken belongs to another role',
	"v hostile.mood CHECK (to_jsonb(v) IS NOT NULL)" =>
	  'function to_jsonb may call casts',
	"v hostile.mood CHECK (JSON_ARRAY(v) IS NOT NULL)" =>
	  'a JSON constructor may call casts',
	"v text CHECK (pg_input_is_valid(v, 'hostile.number'))" =>
	  'function pg_input_is_valid reads values of any type',
	"v text CHECK ((pg_input_error_info(v, 'hostile.number')).message IS NULL)"
	  => 'function pg_input_error_info reads values of any type',
	map({ (     "v text CHECK (${_}_in(v::cstring, 'hostile.number'::regtype::oid, -1) IS NOT NULL)"
				  => "function ${_}_in reads values of any type") }
		qw(domain array range record)),
	"v text DEFAULT ('1'::hostile.number)::text" =>
	  'type hostile.number belongs to another role');

# Tables that are not refused.
my @allowed = (
	"v int CHECK (trusted.positive(v) AND v < length('abcdef'))",
	"v timestamptz DEFAULT now() CHECK (v <= now())",
	"v timestamptz DEFAULT clock_timestamp()",
	"v uuid DEFAULT gen_random_uuid()",
	"v float DEFAULT random() * 10",
	"v serial",
	"v trusted.number DEFAULT 5",
	"v hostile.mood DEFAULT 'sad' CHECK (v IN ('sad', 'happy'))",
	"v text COLLATE \"C\" DEFAULT upper('x') CHECK (v ~ '^x' OR v LIKE 'X%')",
	"v int GENERATED ALWAYS AS (id * 2) STORED",
	"v date DEFAULT '2020-01-01'::date CHECK (extract(year FROM v) > 2000)",
	"v jsonb DEFAULT '{}' CHECK (jsonb_typeof(v) = 'object')",
	"v int[] DEFAULT ARRAY[1, 2] CHECK (array_length(v, 1) BETWEEN 1 AND 3)");

my (%expected, @sql);
my $n = 0;
foreach my $column (sort keys %refused)
{
	push @sql,
		'CREATE TABLE hostile.refused_'
	  . ++$n
	  . " (id int PRIMARY KEY, $column)";
	$expected{"hostile.refused_$n"} = $refused{$column};
}
foreach my $column (@allowed)
{
	push @sql,
		'CREATE TABLE hostile.allowed_'
	  . ++$n
	  . " (id int PRIMARY KEY, $column)";
	$expected{"hostile.allowed_$n"} = 'created';
}

# Rules for objects outside CREATE TABLE.
push @sql,
  'CREATE TABLE hostile.indexed (id int PRIMARY KEY, v text)',
  "CREATE INDEX indexed_trap ON hostile.indexed ((hostile.trap('x') || v))",
  "CREATE INDEX indexed_partly ON hostile.indexed (v) WHERE hostile.trap('x') = v",
  'CREATE TABLE hostile.child () INHERITS (hostile.bystander)';
$expected{'hostile.indexed'} = 'created';
$expected{$_} = 'function hostile.trap belongs to another role'
  foreach 'hostile.indexed_trap', 'hostile.indexed_partly';
$expected{'hostile.child'} = 'the object that it belongs to was not created';

query($pub, join ';', 'SET ROLE hostile', @sql);
my @tables =
  map { /^CREATE TABLE (\S+)/ ? $1 : () } @sql;
query($pub, 'CREATE PUBLICATION p FOR TABLE ' . join(', ', @tables));

my ($ret, $out, $err) = $sub->psql('postgres',
	"SELECT object, CASE WHEN created THEN 'created' ELSE note END FROM weft.copy_schema('"
	  . $pub->connstr
	  . " dbname=postgres', '{p}') WHERE object_type IN ('table', 'index')");
is($err, '', 'no trap is called');
my %got = map { split /\|/ } split /\n/, $out;
is($got{$_}, $expected{$_},
	(/_(\d+)$/ ? $sql[ $1 - 1 ] : $_) . ": $expected{$_}")
  foreach sort keys %expected;
is( query(
		$sub,
		"SELECT count(*) FROM pg_inherits WHERE inhparent = 'hostile.bystander'::regclass"
	),
	0,
	'nothing becomes part of a table that is not published');

# A hostile server may send any script.  Here it writes what it likes in, or behind, the
# bound of a partition, and the default of a column.
my ($bound, $default) = ('FOR VALUES IN (1)', "'x'");
my $alter = 'ALTER TABLE ONLY hostile.trapped ALTER COLUMN w SET DEFAULT 1';
my %scripts = (
	"FOR VALUES IN ((set_config('weft_test.x', 'y', false) = 'y')::int)" =>
	  'table attach hostile.part the bound is not a constant',
	"$default CHECK ((v).pg_read_file <> '')" =>
	  'table hostile.new function pg_read_file is not executable by PUBLIC',
	"$default CHECK (postgres.hostile.trap(v) <> '')" =>
	  'table hostile.new name postgres.hostile.trap has more than two parts',
	"$default, w postgres.hostile.number" =>
	  'table hostile.new name postgres.hostile.number has more than two parts',
	"$default, LIKE hostile.trapped INCLUDING CONSTRAINTS" =>
	  'table hostile.new skipped',
	"$default REFERENCES hostile.trapped" => 'table hostile.new skipped',
	"$default, FOREIGN KEY (v) REFERENCES hostile.trapped" =>
	  'table hostile.new skipped',
	"$bound; CREATE STATISTICS hostile.trapped ON id, v FROM hostile.part; $alter"
	  => 'default hostile.trapped w the object that it belongs to was not created',
	"$bound; ALTER TABLE ONLY hostile.part ADD CONSTRAINT trapped CHECK (id > 0); $alter"
	  => 'default hostile.trapped w the object that it belongs to was not created'
);

query($sub,
	"CREATE TABLE hostile.trapped (w text PRIMARY KEY CHECK (hostile.trap(w) <> ''))"
);
query($pub, <<'EOS');
CREATE TABLE hostile.parted (id int, v text) PARTITION BY LIST (id);
CREATE TABLE hostile.part PARTITION OF hostile.parted FOR VALUES IN (1);
CREATE TABLE hostile.new (v text DEFAULT 'x');
CREATE PUBLICATION q FOR TABLE hostile.parted, hostile.new;
EOS
foreach my $script ($bound, $default, sort keys %scripts)
{
	my ($part, $new) =
	  $script =~ /^FOR/ ? ($script, $default) : ($bound, $script);

	query($pub, <<EOS);
CREATE OR REPLACE FUNCTION pg_catalog.pg_get_expr(pg_node_tree, oid) RETURNS text STABLE LANGUAGE sql AS
	\$function\$ SELECT CASE \$2 WHEN 'hostile.part'::regclass THEN \$script\$$part\$script\$
		WHEN 'hostile.new'::regclass THEN \$script\$$new\$script\$ END \$function\$
EOS
	is( query(
			$sub,
			"BEGIN; SELECT concat_ws(' ', object_type, object, note) FROM weft.copy_schema('"
			  . $pub->connstr
			  . " dbname=postgres', '{q}') WHERE NOT created; ROLLBACK"),
		$scripts{$script} // '',
		"from the publisher's server: $script");
}
$_->stop foreach $sub, $pub;
done_testing();
