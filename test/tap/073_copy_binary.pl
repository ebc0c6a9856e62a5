# Which columns an initial copy requests in binary although the subscription does not:
# only those whose values are then the same as if they were sent as text.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');

# Type => expression for row i, and the format.
my %types = (
	'int' => [ 'i', 'binary' ],
	'timestamptz' =>
	  [ "'2026-01-01'::timestamptz + i * interval '1 s'", 'binary' ],
	'interval' => [ "i * interval '1 month 1 second'", 'binary' ],
	'numeric(10,2)[]' => [ 'ARRAY[i / 7.0, NULL]', 'binary' ],
	'int4multirange' => [ 'int4multirange(int4range(i, i + 2))', 'binary' ],
	'oidvector' => [ "(i || ' ' || i)::oidvector", 'binary' ],
	'money' => [ 'i::money', 'text' ],
	'money[]' => [ 'ARRAY[i::money]', 'text' ],
	'name' => [ "md5(i::text)::name", 'text' ],
	'name[]' => [ "ARRAY[md5(i::text)::name]", 'text' ],
	'regclass' => [ "'pg_class'::regclass", 'text' ],
	'regrole[]' => [ "ARRAY['pg_monitor'::regrole]", 'text' ],
	'aclitem' => [ "makeaclitem(10, 10, 'SELECT', i % 2 = 0)", 'text' ],
	'pg_class' => [
		"(SELECT c FROM pg_class c WHERE c.oid = CASE i WHEN 1 THEN 'pg_class'::regclass ELSE 'pg_type'::regclass END)",
		'text'
	],
	# OIDs of these differ: there are more of them here
	'mood' => [ "'ok'::mood", 'text' ],
	'mood[]' => [ "'{sad,ok}'::mood[]", 'text' ],
	'pair' => [ "ROW(i, 'ok')::pair", 'text' ],
	'moods' => [ "moods('sad', 'ok')", 'text' ]);
$types{xml} = [ "'<a/>'::xml", 'text' ]
  if $pub->psql('postgres', "SELECT '<a/>'::xml") == 0;

query($sub, "CREATE TYPE other_$_ AS ENUM ('a')") foreach 1 .. 3;
query_all([ $pub, $sub ], <<'EOS');
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (i int, m mood);
CREATE TYPE moods AS RANGE (subtype = mood);
EOS

my %tables;
foreach my $type (sort keys %types)
{
	my $table = 't_' . keys %tables;

	$tables{$table} = $type;
	query_all([ $pub, $sub ],
		"CREATE TABLE $table (id int PRIMARY KEY, v $type)");
	query($pub,
		"INSERT INTO $table SELECT i, $types{$type}[0] FROM generate_series(1, 200) i"
	);
}
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');

my $offset = -s $sub->logfile;
subscribe($pub, $sub, 'sub', 'pub', 'binary = false');
wait_for_apply($pub, $sub, 'sub');
my $log = slurp_file($sub->logfile, $offset);
foreach my $table (sort keys %tables)
{
	my ($type, $format) = ($tables{$table}, $types{ $tables{$table} }[1]);

	same_tables($pub, $sub, [$table], "$type: equal");
	next unless weft();
	like(
		$log,
		qr/table "public\.$table" of .* was copied by .*\n.*DETAIL: .* bytes in $format format/,
		"$type: copied as $format");
}
is(errors_logged($sub, $offset), '', 'no errors');

$sub->stop;
$pub->stop;
done_testing();
