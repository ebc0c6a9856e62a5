# weft.copy_schema with tables of a hostile owner: the tables are created as they are
# on the publisher, and nothing that the owner has written is executed.
#
# WEFT_SEEDS sets the number of seeds (default 3), WEFT_FIRST_SEED the first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use HostileSchema;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $seeds = $ENV{WEFT_SEEDS} // 3;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;

# The names must be valid in all encodings that publishers have.
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query_all(
	[ $pub, $sub ],
	"CREATE ROLE $owner; CREATE TABLE public.bystander (id int PRIMARY KEY)");
query($pub,
	"CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
);
my $before = traces($sub);

# A publisher in another encoding; both have the characters that are used.
query($pub,
	"CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
$pub->safe_psql('latin1',
	"CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
);

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	srand($seed);
	my $root = $seed % 4 < 2 ? 'true' : 'false';
	my $database = $seed % 2 ? 'postgres' : 'latin1';

	# In some databases before 19, backslashes in literals are escapes.
	query($pub,
		"ALTER DATABASE $database SET standard_conforming_strings = "
		  . ($seed % 3 == 2 && major() < 19 ? 'off' : 'on'));
	my @schemas = map { hostile_schema($pub, $database, 3) } 1 .. 2;

	$pub->safe_psql($database,
		"SET client_encoding = 'UTF8'; CREATE PUBLICATION p FOR TABLES IN SCHEMA "
		  . join(', ', @schemas)
		  . " WITH (publish_via_partition_root = $root)");
	my $connstr = $pub->connstr . " dbname=$database";
	my $done = query($sub, <<EOS);
SET client_min_messages = warning;
SELECT quote_literal(concat_ws(' ', object_type, object, note)) FROM weft.copy_schema('$connstr', '{p}') WHERE NOT created AND note <> 'skipped'
EOS
	is($done, '', "seed $seed: everything is created");
	is(traces($sub), $before, "seed $seed: no hostile code is executed");
	same_rows(
		definition($sub),
		definition($pub, $database),
		"seed $seed: the created objects are equal");
	is( query(
			$sub,
			"SELECT (SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace <> 'weft'::regnamespace AND NOT tgisinternal), (SELECT count(*) FROM pg_policy JOIN pg_class c ON c.oid = polrelid WHERE relnamespace <> 'weft'::regnamespace)"
		),
		'0|0',
		"seed $seed: skipped objects do not exist");
	$sub->command_ok(
		[ 'pg_dump', '-s', '-f', '/dev/null', $sub->connstr('postgres') ],
		"seed $seed: pg_dump reports no problem");
	my $drop =
	  "SET client_min_messages = warning; SET client_encoding = 'UTF8';"
	  . join ';', map { "DROP SCHEMA $_ CASCADE" } @schemas;
	query($sub, $drop);
	$pub->safe_psql($database, "$drop; DROP PUBLICATION p");
}

# The simplest one: the head of an object within a literal.
query($pub, <<EOS);
GRANT CREATE ON SCHEMA public TO $owner;
SET ROLE $owner;
CREATE TABLE public.simple (id int PRIMARY KEY, v text DEFAULT '
--
-- Name: x; Type: TABLE; Schema: public; Owner: x
--

ALTER ROLE $owner SUPERUSER;
--
-- Name: y; Type: TABLE; Schema: public; Owner: x
--
');
RESET ROLE;
CREATE PUBLICATION simple FOR TABLE public.simple;
EOS
my $connstr = $pub->connstr . ' dbname=postgres';
is( query(
		$sub,
		"SELECT count(*) FILTER (WHERE NOT created) FROM weft.copy_schema('$connstr', '{simple}')"
	),
	0,
	'a head in a literal');
is(traces($sub), $before, 'is not executed');
my $default =
  "SELECT md5(pg_get_expr(adbin, adrelid)) FROM pg_attrdef WHERE adrelid = to_regclass('public.simple')";
is(query($sub, $default), query($pub, $default), 'and remains unchanged');

my @left = glob $sub->data_dir . '/base/pgsql_tmp/*';
is("@left", '', 'no file is left');
$sub->stop;
$pub->stop;
done_testing();
