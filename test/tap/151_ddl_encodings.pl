# Schema changes between databases with different encodings.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "wal_retrieve_retry_interval = 200ms\n");

# Subscribe from one database to another one, each in an encoding of its own.
sub subscribe_database
{
	my ($from, $to, $name) = @_;
	my $source = $pub->connstr($from);

	$sub->safe_psql($to,
		"CREATE SUBSCRIPTION $name CONNECTION \$\$$source\$\$ PUBLICATION pub"
	);
	return;
}

# Execute statements in a database, as UTF8.
sub execute
{
	my ($node, $database, $sql) = @_;
	return $node->safe_psql($database, "SET client_encoding = 'UTF8'; $sql");
}

# Wait until a condition holds in a database.
sub poll_database
{
	my ($database, $condition, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok($sub->poll_query_until($database, $condition), $what);
	return;
}

foreach my $encoding ('LATIN1', 'UTF8', 'SQL_ASCII')
{
	my $name = lc $encoding;

	query_all(
		[ $pub, $sub ],
		"CREATE DATABASE $name ENCODING '$encoding' LOCALE 'C' TEMPLATE template0"
	);
	$_->safe_psql($name, 'CREATE EXTENSION weft') foreach $pub, $sub;
	$pub->safe_psql($name,
		'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = all)');
}
subscribe_database('latin1', 'utf8', 'to_utf8');
subscribe_database('utf8', 'latin1', 'to_latin1');
subscribe_database('sql_ascii', 'sql_ascii', 'ascii');

my $e = "\303\251";
my $long = $e x 29;
my $accents = <<"EOS";
CREATE TYPE "${e}num" AS ENUM ('$e', '\303\247a');
CREATE TABLE "t $e" (id int PRIMARY KEY, "$e$e" "${e}num" DEFAULT '$e', w text DEFAULT U&'\\00e9' CHECK (w <> '\303\274'));
INSERT INTO "t $e" VALUES (1);
CREATE INDEX CONCURRENTLY "i $e" ON "t $e" (lower(w), "$e$e") WHERE w <> '\303\266';
COMMENT ON TABLE "t $e" IS 'd${e}j\303\240';
ALTER TABLE "t $e" ADD "$long" int;
ALTER TYPE "${e}num" ADD VALUE 'nov';
CREATE VIEW "v $e" AS SELECT '$e' AS "$e";
EOS
my $facts = <<"EOS";
SET client_encoding = 'UTF8';
SELECT (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum),
	(SELECT string_agg(attname || ' ' || coalesce(pg_get_expr(adbin, adrelid), ''), ',' ORDER BY attnum)
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = to_regclass('"t $e"') AND attnum > 0),
	(SELECT string_agg(pg_get_indexdef(indexrelid), ',' ORDER BY indexrelid) FROM pg_index
		WHERE indrelid = to_regclass('"t $e"') AND indisvalid),
	obj_description(to_regclass('"t $e"')),
	(SELECT t FROM "t $e" t),
	pg_get_viewdef('"v $e"')
EOS
foreach ([ latin1 => 'utf8' ], [ utf8 => 'latin1' ])
{
	my ($from, $to) = @$_;

	foreach my $statement (split /(?<=;)\n/, $accents)
	{
		execute($pub, $from, $statement);
	}
	poll_database(
		$to,
		q{SELECT count(*) = 7 FROM weft.ddl_history WHERE result = 'applied'},
		"from $from to $to");
	is( $sub->safe_psql($to, $facts),
		$pub->safe_psql($from, $facts),
		'... all is the same');
	is( execute(
			$sub,
			$to,
			"SELECT count(*) FROM weft.ddl_history WHERE statement LIKE '%d${e}j\303\240%'"
		),
		1,
		'... in the history');
}

# Sooner or later, names that are too long are truncated.
my $too_long = $e x 32;
execute($pub, 'latin1',
	qq{CREATE TABLE "a$too_long" (id int); CREATE TABLE after (id int)});
my $error = poll_for(
	$sub,
	q{SELECT last_error FROM weft.stat_subscription WHERE subname = 'to_utf8'},
	sub { $_[0] ne '' });
like(
	$error,
	qr/identifier "a.*" is too long/,
	'an identifier that would be truncated');
my $id = $sub->safe_psql('utf8',
	q{SELECT id FROM weft.ddl_history WHERE result = 'failed'});
$sub->safe_psql('utf8', "SELECT weft.skip_ddl('to_utf8', $id)");
poll_database(
	'utf8',
	q{SELECT to_regclass('after') IS NOT NULL},
	'... is skipped');
execute($pub, 'utf8', qq{CREATE TABLE "a$too_long" (id int)});
$error = poll_for(
	$sub,
	q{SELECT last_error FROM weft.stat_subscription WHERE subname = 'to_latin1'},
	sub { $_[0] ne '' });
like(
	$error,
	qr/identifier "a.*" is too long/,
	'an identifier that was truncated');
$id = $sub->safe_psql('latin1',
	q{SELECT id FROM weft.ddl_history WHERE result = 'failed'});
$sub->safe_psql('latin1', "SELECT weft.skip_ddl('to_latin1', $id)");
poll_database(
	'latin1',
	"SELECT result = 'skipped' FROM weft.ddl_history WHERE id = $id ORDER BY recorded_at DESC LIMIT 1",
	'... is skipped');

# A character that the other encoding lacks.
execute($pub, 'utf8', qq{COMMENT ON TABLE "t $e" IS '\320\266'});
like(
	poll_for(
		$sub,
		q{SELECT last_error FROM weft.stat_subscription WHERE subname = 'to_latin1'},
		sub { $_[0] =~ /no equivalent/ }),
	qr/has no equivalent in encoding "LATIN1"/,
	'a character that the other encoding lacks');
$sub->safe_psql('latin1', 'ALTER SUBSCRIPTION to_latin1 DISABLE');

# Without an encoding, bytes remain what they are.
$pub->safe_psql('sql_ascii',
	qq{CREATE TABLE "t $too_long" ("\351" text DEFAULT '\351')});
poll_database('sql_ascii',
	qq{SELECT count(*) = 1 FROM pg_attribute WHERE attname = '\351'},
	'SQL_ASCII');
foreach (
	[ latin1 => 'to_latin1' ],
	[ utf8 => 'to_utf8' ],
	[ sql_ascii => 'ascii' ])
{
	my ($database, $name) = @$_;

	$sub->safe_psql($database, "DROP SUBSCRIPTION $name");
}

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub;

$_->stop foreach $sub, $pub;
done_testing();
