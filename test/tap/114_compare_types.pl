# weft.compare_subscription(): values of all types whose text could depend on a setting, a locale, an
# encoding or a version.  Equal ones are equal, and a planted difference is found.
#
# The publishers are: one like the subscriber; a database in another encoding; and the oldest
# version that is installed (WEFT_PG15_BINDIR, as in 007).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

# A type on the publisher, that on the subscriber, and two values.
my @types = (
	[ 'int', 'bigint', '1', '-1' ],
	[ 'char(5)', 'char(9)', "'a'", "'b'" ],
	[ 'char(5)', 'text', "'a'", "'b'" ],
	[ 'char(5)', 'varchar(9)', "'é'", "'b'" ],
	[ '"char"', '"char"', "'a'", "'b'" ],
	[ 'name', 'name', "'é'", "'b'" ],
	[ 'text', 'varchar(9)', "'é'", "'e'" ],
	[ 'text COLLATE "C"', 'text', "'é'", "'É'" ],
	[ 'numeric', 'numeric', '1.0', '1.00' ],
	[ 'float4', 'float4', "'-0'", '16777217' ],
	[ 'float8', 'float8', '0.1::float8 + 0.2', '0.3' ],
	[ 'float8[]', 'float8[]', "'{0.1,NaN,-0}'", "'{0.1,NaN,0}'" ],
	[ 'money', 'money', "1234.5::numeric::money", "(-3)::int::money" ],
	[ 'money[]', 'money[]', "ARRAY[5::int::money]", "ARRAY[6::int::money]" ],
	[ 'date', 'date', "'2026-02-01'", "'0044-03-15 BC'" ],
	[ 'date[]', 'date[]', "'{2026-02-01}'", "'{2026-01-02}'" ],
	[ 'timestamp', 'timestamp', "'2026-02-01 00:00'", "'infinity'" ],
	[
		'timestamptz', 'timestamptz',
		"'2026-07-01 12:00+02'", "'2026-07-01 12:00+03'"
	],
	[
		'timestamptz[]', 'timestamptz[]',
		"'{2026-07-01 12:00+02}'", "'{2026-07-01 12:00+03}'"
	],
	[
		'tstzrange', 'tstzrange',
		"'[2026-07-01 12:00+02,)'", "'[2026-07-01 12:00+03,)'"
	],
	[
		'tstzmultirange', 'tstzmultirange',
		"'{[2026-07-01 12:00+02,)}'", "'{[2026-07-01 12:00+03,)}'"
	],
	[
		'moment',
		'moment',
		"ROW('2026-07-01 12:00+02', '1 year -1 day', '\\xff', 0.1)",
		"ROW('2026-07-01 12:00+02', '1 year 1 day', '\\xff', 0.1)"
	],
	[
		'moment[]',
		'moment[]',
		"ARRAY[ROW('2026-07-01 12:00+02', NULL, NULL, 0.1)::moment]",
		"ARRAY[ROW('2026-07-01 12:00+02', NULL, NULL, 0.2)::moment]"
	],
	[ 'timetz', 'timetz', "'12:00+02'", "'11:00+01'" ],
	[
		'interval', 'interval',
		"'-1 year 2 mons -3 days 04:05:06.7'", "'24:00'"
	],
	[ 'bytea', 'bytea', "'\\x005cff'", "'\\x005cfe'" ],
	[
		'bytea[]', 'bytea[]',
		"ARRAY['\\x005cff'::bytea]", "ARRAY['\\x005cfe'::bytea]"
	],
	[ 'textrange', 'textrange', "'[a,é)'", "'[a,b)'" ],
	[ 'feeling', 'feeling', "'glad'", "'sád'" ],
	[ 'feeling[]', 'feeling[]', "'{glad,sád}'", "'{sád,glad}'" ],
	[ 'feelings', 'feelings', "'[glad,glad]'", "'empty'" ],
	[ 'json', 'json', q('{"é": 1, "zz": 2}'), q('{"zz": 2, "é": 1}') ],
	# One letter has one byte or two, and longer keys come later.
	[
		'jsonb', 'jsonb',
		q('{"é": 1, "zz": [{"ö": "ü", "yy": null}, {}, []]}'),
		q('{"é": 1, "zz": [{"ö": "yy", "ü": null}, {}, []]}')
	],
	[
		'jsonb', 'jsonb', q('["é", {"a": "b, c"}]'),
		q('[{"a": "b, c"}, "é"]')
	],
	[
		'tsvector', 'tsvector',
		"'é:1A zz:2,3 y'::tsvector", "'é:2,3 zz:1A y'::tsvector"
	],
	[ 'tsquery', 'tsquery', "'é & zz'", "'é | zz'" ],
	[ 'xml', 'xml', q('<?xml version="1.0"?><é/>'), q('<e/>') ],
	[ 'bit varying', 'bit varying', "B'10'", "B'100'" ],
	[ 'uuid', 'uuid', "md5('1')::uuid", "md5('2')::uuid" ],
	[ 'inet', 'inet', "'1.2.3.4'", "'1.2.3.4/24'" ],
	[ 'regtype', 'regtype', "'int'", "'text'" ],
	[ 'citext', 'citext', "'É'", "'é'" ],
	[ 'hstore', 'hstore', q('a=>1, bb=>"é"'), q('a=>1, bb=>"e"') ]);

my $sub = new_subscriber('subscriber', conf => <<'EOC');
TimeZone = 'Asia/Tokyo'
DateStyle = 'German'
IntervalStyle = 'iso_8601'
extra_float_digits = -3
bytea_output = 'escape'
EOC
my $hostile = <<'EOC';
TimeZone = 'America/Lima'
DateStyle = 'SQL, DMY'
IntervalStyle = 'sql_standard'
extra_float_digits = 0
bytea_output = 'escape'
xmlbinary = 'hex'
quote_all_identifiers = on
EOC
my $pub = new_publisher('publisher', conf => $hostile);
my @publishers = ([ $pub, 'postgres', 'same' ], [ $pub, 'latin', 'latin' ]);

if (my $path = install_path_of(15))
{
	my $old = new_publisher('old', install_path => $path, conf => $hostile);
	push @publishers, [ $old, 'postgres', 'old' ];
}
local $ENV{PGCLIENTENCODING} = 'UTF8';
query($pub,
	"CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");

# Extensions and libraries that not all servers have.
foreach my $name (qw(citext hstore))
{
	my @without = grep {
		!$_->safe_psql('postgres',
			"SELECT count(*) FROM pg_available_extensions WHERE name = '$name'"
		)
	} $sub, map { $_->[0] } @publishers;
	@types = grep { $_->[0] ne $name } @types if @without;
}
my $has_xml = !grep { ($_->psql('postgres', "SELECT '<e/>'::xml"))[0] } $sub,
  map { $_->[0] } @publishers;
@types = grep { $_->[0] ne 'xml' } @types unless $has_xml;

sub create_types
{
	my ($node, $database, $schema, @labels) = @_;
	my $labels = join(', ', map { "'$_'" } @labels);

	$node->safe_psql($database,
		"SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS $_"
	  )
	  foreach grep {
		my $name = $_;
		grep { $_->[0] eq $name } @types
	  } qw(citext hstore);
	# the subscriber has the types once, for all publishers
	$node->safe_psql($database,
		<<EOC) if !$node->safe_psql($database, "SELECT count(*) FROM pg_type WHERE typname = 'feeling'");
CREATE TYPE feeling AS ENUM ($labels);
CREATE TYPE feelings AS RANGE (subtype = feeling);
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE TYPE moment AS (t timestamptz, i interval, b bytea, f float8);
EOC
	$node->safe_psql($database, "CREATE SCHEMA $schema");
	return;
}

foreach my $publisher (@publishers)
{
	my ($node, $database, $schema) = @$publisher;
	create_types($node, $database, $schema, 'sád', 'glad');
	create_types($sub, 'postgres', $schema, 'glad', 'sád');
	my ($there, $here) = ('', '');
	foreach my $i (0 .. $#types)
	{
		my ($remote, $local, @values) = @{ $types[$i] };

		$there .=
			"CREATE TABLE $schema.t$i (id int PRIMARY KEY, v $remote);\n"
		  . "INSERT INTO $schema.t$i VALUES (1, $values[0]), (2, $values[1]), (3, NULL), (4, $values[0]);\n";
		$here .= "CREATE TABLE $schema.t$i (id int PRIMARY KEY, v $local);\n";
	}
	$node->safe_psql($database,
		"$there CREATE PUBLICATION $schema FOR ALL TABLES");
	query($sub, $here);
	my $connstr = $node->connstr($database);
	query($sub,
		"CREATE SUBSCRIPTION $schema CONNECTION \$\$$connstr\$\$ PUBLICATION $schema WITH (slot_name = 'slot_$schema')"
	);
	wait_for_apply($node, $sub, $schema);

	my $compare = sub {
		my ($ret, $id, $err) = $sub->psql(
			'postgres',
			"CALL weft.compare_subscription('$schema')",
			timeout => 300);
		is($ret, 0, "$schema: compare") or die $err;
		is( query(
				$sub,
				"SELECT table_name, reason FROM weft.comparison_table WHERE comparison = $id AND status <> 'done'"
			),
			'',
			"$schema: all tables are compared");
		return query($sub,
			"SELECT relation, kind, key ->> 'id', columns, publisher_row ->> 'v', local_row ->> 'v' FROM weft.difference WHERE comparison = $id ORDER BY relation"
		);
	};
	is($compare->(), '', "$schema: equal values of all types are equal");
	query(
		$sub,
		join(
			';',
			map {
				"UPDATE $schema.t$_ SET v = (SELECT v FROM $schema.t$_ WHERE id = 1) WHERE id = 2;"
				  . "UPDATE $schema.t$_ SET v = (SELECT v FROM $schema.t$_ WHERE id = 2) WHERE id = 3"
			} 0 .. $#types));
	my $found = $compare->();
	foreach my $i (0 .. $#types)
	{
		my @lines =
		  map { s/^[^|]*\|//r } grep { /^$schema\.t$i\|/ } split /\n/, $found;
		is( join("\n", map { s/(\{v\}).*/$1/r } sort @lines),
			"different|2|{v}\ndifferent|3|{v}",
			"$schema: differences of type $types[$i][0]") or diag("@lines");
	}
	query($sub, "ALTER SUBSCRIPTION $schema DISABLE");
}

done_testing();
