# A node joins while changes are on their way to the member that it copies from, where
# they lose conflicts against copied rows.  The new node must decide as the others do,
# whatever the keys are made of: its time zone differs, its enum has other OIDs, and rows
# are identified by a replica identity index.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my %zone = (a => 'Asia/Tokyo', b => 'UTC', c => 'America/New_York');
my ($a, $b, $c) =
  map { new_member($_, conf => "timezone = '$zone{$_}'\n") } qw(a b c);

# Key columns that can be found by their text only under equal settings, and columns
# whose values are OIDs.
my %keys = (
	by_time => [
		'timestamptz',
		"timestamptz '2026-03-29 01:30:00+00' + i * interval '1 hour'"
	],
	by_times => [
		'timestamptz[]',
		"ARRAY[timestamptz '2026-03-29 01:30:00+00' + i * interval '1 hour']"
	],
	by_enum => [ 'mood', "(enum_range(NULL::mood))[i]" ],
	by_enums => [ 'mood[]', "ARRAY[(enum_range(NULL::mood))[i], 'm1']" ],
	by_domain => [ 'good_mood', "(enum_range(NULL::mood))[i]::good_mood" ],
	by_pair => [
		'pair',
		"ROW((enum_range(NULL::mood))[i], timestamptz '2026-01-01 00:00:00+00' + i * interval '1 day')::pair"
	],
	by_range => [
		'tstzrange',
		"tstzrange('2026-01-01 00:00:00+00', timestamptz '2026-01-01 00:00:00+00' + i * interval '1 day')"
	],
	by_enum_range =>
	  [ 'moods', "moods('m0', (enum_range(NULL::mood))[i], '[]')" ],
	by_class => [
		'regclass',
		"('public.by_' || (ARRAY['time', 'times', 'enum', 'enums', 'domain', 'pair', 'range'])[i])::regclass"
	],
	by_money => [ 'money', '(i * 1234.5)::numeric::money' ],
	by_bits => [ 'varbit', "i::bit(5)::varbit" ],
	by_text => [ 'text COLLATE nocase', "'Key ' || i" ],
	identity => [
		'timestamptz',
		"timestamptz '2026-03-29 01:30:00+00' + i * interval '1 hour'"
	]);
my @tables = sort keys %keys;

# The new node has different OIDs in any case: it creates the objects later.
query($a, <<'EOS');
CREATE TYPE mood AS ENUM ('m0', 'm1', 'm2', 'm3', 'm4', 'm5', 'm6', 'm7');
CREATE DOMAIN good_mood AS mood NOT NULL CHECK (VALUE <> 'm7');
CREATE TYPE pair AS (m mood, t timestamptz);
CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = moodses);
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
EOS
foreach my $table (@tables)
{
	my $type = $keys{$table}[0];
	query($a,
		$table eq 'identity'
		? "CREATE TABLE identity (k $type NOT NULL, v text, n int NOT NULL DEFAULT 1, UNIQUE (k, n)); ALTER TABLE identity REPLICA IDENTITY USING INDEX identity_k_n_key"
		: "CREATE TABLE $table (k $type, v text, n int DEFAULT 1, PRIMARY KEY (n, k))"
	);
}
foreach my $table (@tables)
{
	query($a,
		"INSERT INTO $table SELECT $keys{$table}[1], 'old' FROM generate_series(1, 7) i"
	);
}
create_group($a, 'g');
join_group($b, $a, 'g');

# The join cannot take its snapshot while this transaction runs, and as long as it tries,
# "a" applies nothing from "b".
my $session = open_session($a);
$session->query_safe('BEGIN; SELECT txid_current()');
start_join($c, $a, 'g');
poll($c, "SELECT step = 'copy' FROM weft.join_entry");
poll($a,
	"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'weft_g_a_c'"
);

# On "b" first, so it loses: both change row 1; only "b" changes row 2; "b" deletes and "a"
# changes row 3; "b" changes and "a" deletes row 4.
sub change
{
	my ($node, $commands) = @_;
	my $script = '';
	foreach my $table (@tables)
	{
		foreach my $command (@$commands)
		{
			my ($kind, $row, $v) = @$command;
			$script .=
			  "WITH k AS (SELECT $keys{$table}[1] AS k FROM generate_series($row, $row) i) "
			  . (
				$kind eq 'delete'
				? "DELETE FROM $table t USING k WHERE t.k::text = k.k::text;\n"
				: "UPDATE $table t SET v = '$v' FROM k WHERE t.k::text = k.k::text;\n"
			  );
		}
	}
	query($node, $script);
	return;
}
change(
	$b,
	[
		[ 'update', 1, 'from b' ],
		[ 'update', 2, 'from b' ],
		[ 'delete', 3 ],
		[ 'update', 4, 'from b' ]
	]);
change($a,
	[ [ 'update', 1, 'from a' ], [ 'update', 3, 'from a' ], [ 'delete', 4 ] ]
);
is(query($a, "SELECT count(*) FROM by_time WHERE v = 'from b'"),
	0, 'changes of "b" are not on "a" yet');
$session->query_safe('COMMIT');
$session->quit;
wait_for_join($c);
wait_for_group('g', $a, $b, $c);

# Without the keys, some of which cannot be sorted: what became of the rows.
foreach my $table (@tables)
{
	my $query = "SELECT v, count(*) FROM $table GROUP BY 1 ORDER BY 1";
	is( query($_, $query),
		"from a|2\nfrom b|1\nold|3",
		"$table: \"" . $_->name . '" decides as the others do'
	) foreach ($a, $b, $c);
}

# The same key has the same hash everywhere: row 4, which "a" has deleted, and so has
# everybody else, but for "c", which has copied that.
sub tombstones
{
	my ($node) = @_;
	my $names = join ', ', map { "'public.$_'" } @tables;
	return split /\n/,
	  query($node,
		"SELECT DISTINCT relation::regclass::text, key FROM weft.tombstone WHERE 'public.' || relation::regclass::text IN ($names)"
	  );
}
my @deleted = tombstones($a);
is(scalar @deleted, @tables, 'each deleted key has one hash');
foreach my $node ($b, $c)
{
	my %there = map { $_ => 1 } tombstones($node);
	is(join("\n", grep { !$there{$_} } @deleted),
		'', 'the same hashes on "' . $node->name . '"');
}

$_->stop foreach ($a, $b, $c);
done_testing();
