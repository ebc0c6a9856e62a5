# weft.compare_subscription() finds what an oracle finds: random tables, random rows, random
# differences, under load.
#
# The two sides of a table differ in the order of their columns, in columns that were dropped or
# are generated, in partitions, and in some types.  Rows are identified by a primary key, another index, or
# not at all; there are row filters and column lists; the subscriber may have duplicates, and
# nulls in keys.  The load changes rows that nobody else touches, so that
# everything that differs at a cut still does when both sides are at rest.  Then the oracle,
# which knows nothing of cuts and hashes, reads both sides, and compares them row by row.
#
# WEFT_SECONDS sets for how long it goes on (default: one round), WEFT_FIRST_SEED the seed of the
# first round (default 1), WEFT_ROWS the number of rows of the largest tables (default 3000).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use JSON::PP;
use List::Util qw(shuffle first);
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seconds = $ENV{WEFT_SECONDS} // 0;
my $seed = $ENV{WEFT_FIRST_SEED} // 1;
my $most_rows = $ENV{WEFT_ROWS} // 3000;

# Rows 1 to HOT are updated by the load, and the next HOT are deleted and inserted.
use constant HOT => 20;

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'track_commit_timestamp = on');
my $both = [ $pub, $sub ];
my $json = JSON::PP->new->utf8;

query_all($both, <<'EOC');
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad,', 'ünsure');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN short AS varchar(20);
EOC
# The same labels, in another order.
query($sub,
	q{ALTER TYPE mood RENAME TO old_mood; CREATE TYPE mood AS ENUM ('ünsure', 'glad,', 'ok', 'sad'); DROP TYPE old_mood}
);

my $settings =
  "SET timezone = 'GMT'; SET datestyle = 'ISO'; SET bytea_output = 'hex'; SET extra_float_digits = 3; SET lc_monetary = 'C'; SET intervalstyle = 'postgres'; SET search_path = ''";

# The type on the publisher, that on the subscriber, and values.
my $long = "repeat('lön', 5000)";
my @types = (
	[ 'int', 'int', qw(0 1 -1 2147483647) ],
	[ 'int', 'bigint', qw(0 1 -1 -2147483648) ],
	[ 'smallint', 'int', qw(0 7 -7) ],
	[ 'bigint', 'bigint', qw(0 1 4294967296 -4294967297) ],
	[ 'boolean', 'boolean', qw(true false) ],
	[
		'text', 'text', "''", "' '",
		"'NULL'", "E'\\\\N'", "'é'", "'a\"b''c'",
		$long, "$long || 'x'"
	],
	[ 'text', 'varchar(30000)', "''", "'a'", "'a '", $long ],
	[ 'varchar(50)', 'text', "''", "'b'", "'B'" ],
	[ 'char(5)', 'char(5)', "''", "'a'", "'ab'" ],
	[ 'char(5)', 'text', "''", "'a'", "'ab'" ],
	[ 'public.short', 'public.short', "''", "'a'", "'ä'" ],
	[
		'numeric', 'numeric',
		qw(0 0.0 1.0 1.00 -12345678901234567890.123), "'NaN'"
	],
	[ 'numeric(10,2)', 'numeric', qw(0 1.5 -3) ],
	[ 'float8', 'float8', "0", "'-0'", "'NaN'", '0.1', '1e300' ],
	[ 'float4', 'float4', "0", "'-0'", "'Infinity'", '0.1' ],
	[
		'timestamptz', 'timestamptz',
		"'2026-01-01 00:00+00'", "'2026-01-01 00:00+01'",
		"'infinity'", "'2026-01-01 00:00:00.000001+00'"
	],
	[ 'date', 'date', "'2026-01-01'", "'0044-03-15 BC'", "'-infinity'" ],
	[ 'interval', 'interval', "'1 day'", "'24 hours'", "'-1 mon'" ],
	[ 'uuid', 'uuid', "md5('1')::uuid", "md5('2')::uuid" ],
	[
		'bytea', 'bytea', "''", "'\\x00ff'",
		"decode(repeat('ab', 40000), 'hex')",
		"decode(repeat('ab', 40000) || 'ac', 'hex')"
	],
	[
		'json', 'json',
		q('{"a": 1, "b": 2}'),
		q('{"b": 2, "a": 1}'),
		"'[]'", "'null'"
	],
	[
		'jsonb', 'jsonb',
		q('{"é": 1, "zz": 2}'),
		q('{"é": 1.0, "zz": 2}'),
		"'[]'", "'null'"
	],
	[ 'int[]', 'int[]', "'{}'", "'{1,NULL}'", "'[0:1]={1,NULL}'" ],
	[ 'text[]', 'text[]', "'{}'", "'{\"\"}'", "'{NULL}'", "'{\"NULL\"}'" ],
	[ 'public.mood', 'public.mood', "'sad'", "'glad,'", "'ünsure'" ],
	[ 'public.mood[]', 'public.mood[]', "'{sad,ok}'", "'{ok,sad}'" ],
	[
		'public.pair',
		'public.pair',
		"ROW(1, 'x')::public.pair",
		"ROW(NULL, NULL)::public.pair",
		"ROW(1, '')::public.pair"
	],
	[ 'int4range', 'int4range', "'[1,5)'", "'[1,5]'", "'empty'" ],
	[ 'money', 'money', "1.5::numeric::money", "'-2'::int::money" ],
	[ 'point', 'point', "'(0,-0)'", "'(0,0)'" ],
	[ 'tsvector', 'tsvector', "'a:1 b:2'", "'a:1 b:3'" ],
	[ 'inet', 'inet', "'1.2.3.4'", "'1.2.3.4/24'" ]);

# A key's types, and the key of row number :i.
my @keys = (
	[ 'int', 'int', ':i' ],
	[ 'int', 'bigint', ':i - 100' ],
	[ 'bigint', 'int', ':i' ],
	[ 'bigint', 'bigint', ':i * 10000000000' ],
	[ 'text', 'text', "'k' || :i || 'ä'''" ],
	[ 'text COLLATE "C"', 'text COLLATE "C"', "'k' || :i" ],
	[ 'varchar(30)', 'text', "'K\\' || :i" ],
	[ 'char(12)', 'char(12)', "'k ' || :i" ],
	[ 'uuid', 'uuid', "md5((:i)::text)::uuid" ],
	[ 'numeric', 'numeric', ":i / 10.0" ],
	[ 'float8', 'float8', ":i / 3.0::float8" ],
	[
		'timestamptz', 'timestamptz',
		"'2026-01-01 00:00+00'::timestamptz + :i * interval '61 seconds'"
	],
	[ 'date', 'date', "'1900-01-01'::date + :i" ],
	[ 'bytea', 'bytea', "decode(md5((:i)::text), 'hex')" ],
	[ 'public.pair', 'public.pair', "ROW(:i, 'x')::public.pair" ]);

my @names = (
	'a', 'B', 'c d', 'e"f', "g'h", 'i,j',
	'käse', 'select', 't', 'k\l', '%s', 'n',
	'count', '$1', 'x' x 63);

sub one_of { return $_[ int rand @_ ] }
sub chance { return rand() < $_[0] }
sub quoted { return '"' . $_[0] =~ s/"/""/gr . '"' }

# --- a random table ---

sub random_table
{
	my ($schema, $number) = @_;
	my $name = "t$number" . one_of('', ' x', '"', "'", 'Ä', '.%s');
	my @free = shuffle @names;
	my %table = (
		name => $name,
		full_name => quoted($schema) . '.' . quoted($name),
		identity => one_of(qw(pk pk pk full index nothing bag bag_nothing)),
		rows => chance(0.4) ? $most_rows : 100 + int rand 200);
	my $keyed = $table{identity} !~ /^bag/;

	foreach my $i (0 .. ($keyed && chance(0.3) ? 1 : 0))
	{
		my $key = one_of(@keys);
		my %column = (
			name => shift @free,
			pub => $key->[0],
			sub => $key->[1],
			expression => $key->[2],
			key => $keyed);
		# the second column of a key alone would not be unique
		$column{expression} = $key->[2] =~ s/:i/(:i % 7)/r if $i > 0;
		push @{ $table{columns} }, \%column;
	}
	foreach (1 .. 1 + int rand 5)
	{
		# these have no equality, so apply cannot find whole rows
		my ($on_pub, $on_sub, @values) = @{
			one_of(
				$keyed ? @types : grep { $_->[0] !~ /^(json|point)$/ } @types)
		};
		push @{ $table{columns} },
		  {
			name => shift @free,
			pub => $on_pub,
			sub => $on_sub,
			values => \@values
		  };
	}

	# an ordinary integer by which rows are found by this test, and filtered
	push @{ $table{columns} },
	  { name => 'i', pub => 'int', sub => 'int', expression => ':i' };
	$table{filter} = '("i" % 3 <> 1)'
	  if $table{identity} eq 'full' and chance(0.5);
	$table{listed} = chance(0.3) && $table{identity} ne 'full' && $keyed;
	foreach my $column (@{ $table{columns} })
	{
		$column->{listed} =
		  !$table{listed} || $column->{expression} || chance(0.5);
	}
	$table{free} = \@free;

	# The subscriber need not have the constraint.
	$table{loose} = chance(0.3)
	  && !grep { $_->{pub} =~ /^(json|point)$/ } @{ $table{columns} };
	# Whole rows are found here only if they have no other values.
	$table{extra} = chance(0.3) && !$table{loose} && $keyed;
	$table{partitioned} = one_of('', '', 'pub', 'sub', 'both');
	# partitions have identities of their own
	$table{partitioned} =~ s/pub|both/sub/
	  if $table{identity} =~ /full|nothing/;
	$table{partitioned} = ''
	  if $table{columns}[0]{pub} =~ /pair/
	  or $table{identity} =~ /index|bag/;
	return \%table;
}

sub definition
{
	my ($table, $side) = @_;
	my @columns =
	  map { quoted($_->{name}) . " $_->{$side}" } @{ $table->{columns} };
	my @key =
	  map { quoted($_->{name}) } grep { $_->{key} } @{ $table->{columns} };
	my $key = join(', ', @key);
	my $name = $table->{full_name};
	my $constraint = 'PRIMARY KEY';
	my $sql;

	push @columns, 'dropped_1 text', 'dropped_2 int NOT NULL DEFAULT 5';
	push @columns, "only_here text DEFAULT 'x'"
	  if $side eq 'sub' and $table->{extra};
	push @columns, 'computed int GENERATED ALWAYS AS (7) STORED'
	  if chance(0.3);
	@columns = shuffle @columns;
	$constraint = 'UNIQUE'
	  if $side eq 'pub' and $table->{identity} eq 'index';
	push @columns, "$constraint ($key)"
	  if $key and !($side eq 'sub' and $table->{loose});
	$sql = "CREATE TABLE $name (" . join(', ', @columns) . ')';

	if ($table->{partitioned} =~ /$side|both/)
	{
		my $by = quoted($table->{columns}[0]{name});
		$sql .= " PARTITION BY HASH ($by)";
		foreach my $n (0 .. 2)
		{
			my $part = $name =~ s/"$/_$n"/r;
			$sql .=
			  ";\nCREATE TABLE $part PARTITION OF $name FOR VALUES WITH (MODULUS 3, REMAINDER $n)";
		}
	}
	$sql .= ";\nALTER TABLE $name DROP dropped_1, DROP dropped_2;\n";
	if ($side eq 'pub' and $table->{identity} eq 'index')
	{
		$sql .= "ALTER TABLE $name ALTER $_ SET NOT NULL;\n" foreach @key;
	}
	return $sql;
}

# How the publisher identifies rows.
sub identity
{
	my ($table) = @_;
	my $name = $table->{full_name};

	return "ALTER TABLE $name REPLICA IDENTITY FULL"
	  if $table->{identity} =~ /^(full|bag)$/;
	return "ALTER TABLE $name REPLICA IDENTITY NOTHING"
	  if $table->{identity} =~ /nothing/;
	return '' if $table->{identity} eq 'pk';
	return <<EOC;
DO \$\$ BEGIN EXECUTE 'ALTER TABLE ' || quote_ident(nspname) || '.' || quote_ident(relname) || ' REPLICA IDENTITY USING INDEX '
	|| (SELECT quote_ident(i.relname) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = c.oid)
	FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = '@{[ $name =~ s/'/''/gr ]}'::regclass; END \$\$
EOC
}

# An expression for a column's value in row number :i.
sub value_of
{
	my ($column) = @_;

	return "($column->{expression})" if $column->{expression};
	return 'NULL' if chance(0.1);
	return one_of(@{ $column->{values} });
}

sub insert
{
	my ($table, $numbers) = @_;
	my @columns = @{ $table->{columns} };
	my @names = map { quoted($_->{name}) } @columns;
	my @values;

	# one list of values for all rows would make them too much alike
	foreach my $column (@columns)
	{
		my $type = $column->{pub} =~ s/ COLLATE "C"//r;
		my @choice = map { '(' . value_of($column) . ")::$type" } 1 .. 3;
		push @values, $column->{expression}
		  ? $choice[0]
		  : "CASE :i % 3 WHEN 0 THEN $choice[0] WHEN 1 THEN $choice[1] ELSE $choice[2] END";
	}
	return
		"INSERT INTO $table->{full_name} ("
	  . join(', ', @names)
	  . ') SELECT '
	  . (join(', ', @values) =~ s/:i\b/i/gr)
	  . " FROM $numbers i";
}

# --- load and planted differences ---

# Statements for pgbench, with the number of the row in :hot or :cold.
sub load_of
{
	my ($table) = @_;
	my $column = first { $_->{values} } @{ $table->{columns} };
	my $value = value_of($column);
	my $name = $table->{full_name};
	my $set = quoted($column->{name});
	my $other = value_of($column);
	my $again = insert($table, '(SELECT :cold) x(i)') =~
	  s/FROM \(SELECT :cold\) x\(i\) i$/FROM (SELECT :cold AS i) x/r;

	# Apply would not find the row here, or the publisher does not say which one it is.
	return
	  "\\set cold random(100000, 2000000)\n$again ON CONFLICT DO NOTHING;\n"
	  if $table->{identity} =~ /nothing/
	  or $table->{loose} and $table->{identity} =~ /pk|index/;
	return
		"UPDATE $name SET $set = $value WHERE \"i\" = :hot;\n"
	  . "UPDATE $name SET $set = $other WHERE \"i\" = :hot;\n"
	  . "BEGIN;\nDELETE FROM $name WHERE \"i\" = :cold;\n$again ON CONFLICT DO NOTHING;\nEND;\n";
}

# Changes a few rows here.
sub plant
{
	my ($table) = @_;
	my $name = $table->{full_name};
	my $least = 2 * HOT + 1;
	my @picks = map { $least + int rand($table->{rows} - $least) } 1 .. 12;
	my $fresh = $table->{rows} + 1000;
	my @sql;

	foreach (1 .. int rand 4)
	{
		push @sql, "DELETE FROM $name WHERE \"i\" = " . pop @picks;
	}
	foreach (1 .. int rand 4)
	{
		push @sql,
		  insert($table, 'generate_series(' . $fresh . ',' . $fresh . ')');
		$fresh++;
	}
	foreach (1 .. int rand 5)
	{
		my $column = one_of(grep { $_->{values} } @{ $table->{columns} });
		push @sql,
			"UPDATE $name SET "
		  . quoted($column->{name}) . ' = '
		  . value_of($column)
		  . ' WHERE "i" = '
		  . pop @picks;
	}
	if ($table->{loose} or $table->{identity} =~ /^bag/)
	{
		my @shared = map { quoted($_->{name}) } @{ $table->{columns} };
		my $list = join(', ', @shared);
		push @sql,
		  "INSERT INTO $name ($list) SELECT $list FROM $name WHERE \"i\" = "
		  . pop @picks
		  foreach 1 .. int rand 3;
		# keys that are null; a partitioned table takes them, too
		my @nulls =
		  map { $_->{key} && chance(0.7) ? 'NULL' : quoted($_->{name}) }
		  @{ $table->{columns} };
		push @sql,
			"INSERT INTO $name ($list) SELECT "
		  . join(', ', @nulls)
		  . " FROM $name WHERE \"i\" = "
		  . pop @picks
		  if chance(0.7);
	}
	return join('', map { "$_;\n" } @sql);
}

# --- the oracle ---

# Returns the rows of a side, each as an array of texts.
sub read_rows
{
	my ($node, $table, @columns) = @_;
	my $list = join(', ', map { quoted($_->{name}) } @columns);
	my $where = $table->{filter} ? " WHERE $table->{filter}" : '';
	my $out = $node->safe_psql('postgres',
		"$settings; COPY (SELECT $list FROM $table->{full_name}$where) TO STDOUT"
	);
	my %escapes = (
		b => "\b",
		f => "\f",
		n => "\n",
		r => "\r",
		t => "\t",
		v => "\013",
		'\\' => '\\');

	return map {
		[
			map { $_ eq '\N' ? undef : s/\\([bfnrtv\\])/$escapes{$1}/gr }
			  split /\t/,
			$_, -1
		]
	} split /\n/, $out;
}

sub text_of
{
	my (@values) = @_;
	return
	  join('|', map { defined $_ ? "'" . short($_) . "'" : 'null' } @values);
}

# Long texts are not stored entirely, so only their beginnings are compared here.
sub short
{
	my ($text) = @_;
	return length $text > 2000 ? substr($text, 0, 1000) . '...' : $text;
}

sub true_differences
{
	my ($table) = @_;
	my @columns = grep { $_->{listed} } @{ $table->{columns} };
	my @key = grep { $columns[$_]{key} } 0 .. $#columns;
	my (%groups, @found);

	foreach my $side (0, 1)
	{
		foreach my $row (read_rows($both->[$side], $table, @columns))
		{
			my $whole = join("\x01", map { $_ // "\x02" } @$row);
			my $group =
			  @key ? join("\x01", map { $row->[$_] // "\x02" } @key) : $whole;
			push @{ $groups{$group}{$whole}[$side] }, $row;
		}
	}
	foreach my $group (values %groups)
	{
		my @left = ([], []);
		foreach my $sides (values %$group)
		{
			my ($p, $s) = map { $_ // [] } @$sides[ 0, 1 ];
			my $common = @$p < @$s ? @$p : @$s;
			push @{ $left[0] }, @$p[ $common .. $#$p ];
			push @{ $left[1] }, @$s[ $common .. $#$s ];
		}
		while (@key and @{ $left[0] } and @{ $left[1] })
		{
			my ($p, $s) = (shift @{ $left[0] }, shift @{ $left[1] });
			my @changed = grep {
				text_of($p->[$_]) ne text_of($s->[$_])
				  or ($p->[$_] // '') ne ($s->[$_] // '')
			} 0 .. $#columns;
			push @found,
			  join(' ',
				'different',
				join(',', sort map { $columns[$_]{name} } @changed),
				text_of(@$p), text_of(@$s));
		}
		push @found, 'missing here ' . text_of(@$_)  foreach @{ $left[0] };
		push @found, 'missing there ' . text_of(@$_) foreach @{ $left[1] };
	}
	return sort @found;
}

# What the comparison says, in the same form.
sub found_differences
{
	my ($id, $table) = @_;
	my @columns = grep { $_->{listed} } @{ $table->{columns} };
	my @names = map { $_->{name} } @columns;
	my @found;
	my $out = $sub->safe_psql('postgres',
		"SELECT json_build_object('kind', kind, 'count', row_count, 'columns', columns, 'p', publisher_row, 's', local_row, 'k', key) FROM weft.difference WHERE comparison = $id AND relation = '@{[ $table->{full_name} =~ s/'/''/gr ]}'::regclass"
	);

	foreach my $line (split /\n/, $out)
	{
		my $difference = $json->decode($line);
		my @sides;
		foreach my $side (qw(p s))
		{
			my $row = $difference->{$side};
			die "wrong columns in $line" if $row and keys %$row != @names;
			push @sides,
			  $row
			  ? text_of(map { bytes($row->{ characters($_) }) } @names)
			  : undef;
		}
		my $what = $difference->{kind};
		$what .=
		  ' ' . join(',', sort map { bytes($_) } @{ $difference->{columns} })
		  if $what eq 'different';
		push @found, join(' ', $what, grep { defined $_ } @sides)
		  foreach 1 .. $difference->{count};
	}
	return sort @found;
}

sub bytes
{
	my ($text) = @_;
	utf8::encode($text) if defined $text;
	return $text;
}

sub characters
{
	my ($text) = @_;
	utf8::decode($text);
	return $text;
}

# --- a round ---

sub compare
{
	my ($arguments) = @_;
	my ($ret, $id, $err) = $sub->psql(
		'postgres',
		"CALL weft.compare_subscription('s'$arguments)",
		timeout => 300);

	note($err);
	is($ret, 0, "compare$arguments") or die $err;
	is( query(
			$sub,
			"SELECT table_name, status, reason FROM weft.comparison_table WHERE comparison = $id AND (status <> 'done' OR NOT complete)"
		),
		'',
		'all tables are compared');
	return $id;
}

sub check
{
	my ($id, $tables, $what) = @_;

	foreach my $table (@$tables)
	{
		my $expected = join("\n", true_differences($table));
		my $got = join("\n", found_differences($id, $table));
		is($got, $expected,
				"seed $seed, $what: $table->{full_name}, "
			  . scalar(split /\n/, $expected)
			  . ' differences')
		  or diag(
			map  { "$_ => " . ($table->{$_} // '') . "\n" }
			grep { !ref $table->{$_} } sort keys %$table);
	}
	return;
}

sub round
{
	srand($seed);
	my $schema = one_of('s', 'S "q"', 'sü');
	my @tables = map { random_table($schema, $_) } 1 .. 8;
	my @published;

	query_all($both, 'CREATE SCHEMA ' . quoted($schema));
	foreach my $table (@tables)
	{
		my $list =
		  $table->{listed}
		  ? ' ('
		  . join(', ',
			map  { quoted($_->{name}) }
			grep { $_->{listed} } @{ $table->{columns} })
		  . ')'
		  : '';
		my $filter = $table->{filter} ? " WHERE $table->{filter}" : '';

		query($pub, definition($table, 'pub') . identity($table));
		query($sub, definition($table, 'sub'));
		query($pub, insert($table, "generate_series(1, $table->{rows})"));
		push @published, "$table->{full_name}$list$filter";
	}
	query_all($both, 'ANALYZE') if chance(0.5);
	query($pub,
			'CREATE PUBLICATION p FOR TABLE '
		  . join(', ', @published)
		  . ' WITH (publish_via_partition_root = true)');
	subscribe($pub, $sub, 's', 'p');
	wait_for_apply($pub, $sub, 's');

	my %scripts = map {
		my $o = HOT;
		my $e = 2 * HOT;
		my $f = HOT + 1;
		("\\set hot random(1, $o)\n\\set cold random($f, $e)\n"
			  . load_of($_) => 1)
	} @tables;
	my $load =
	  start_pgbench($pub, \%scripts, '-c', 2, '-T', 3600, '--rate=100',
		'--max-tries=100');
	query($sub, plant($_)) foreach @tables;
	my $jobs = 1 + int rand 4;
	my $id = compare(
		", jobs => $jobs"
		  . (
			chance(0.5)
			? ', max_rows_per_second => ' . (1000 + int rand 4000)
			: ''));
	ok(running($load), 'the load was running');
	end_load($load);
	wait_for_apply($pub, $sub, 's');
	check($id, \@tables, 'under load');
	check(compare(''), \@tables, 'at rest') if $seconds;
	query($sub,
			'DROP SUBSCRIPTION s; DROP SCHEMA '
		  . quoted($schema)
		  . ' CASCADE; DELETE FROM weft.comparison');
	query($pub,
		'DROP PUBLICATION p; DROP SCHEMA ' . quoted($schema) . ' CASCADE');
	return;
}

my $end = time + $seconds;
do
{
	round();
	$seed++;
} while (time < $end and Test::More->builder->is_passing);

is(errors_logged($pub), '', 'no errors on the publisher');
is(errors_logged($sub), '', 'no errors on the subscriber');
done_testing();
