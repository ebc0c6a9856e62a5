# Rows that are found with a list of the index's leaf pages by keys that are not one integer:
# uuids, texts, several columns, descending order, and keys that a list cannot tell apart.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'log_min_messages = debug1');
my $rows = 30000;

# For each table: its key, and what it is made of for a row i.
my %shape = (
	uuids => [ 'a uuid', 'md5(i::text)::uuid' ],
	uuids_down => [ 'a uuid', 'md5(i::text)::uuid', 'a DESC' ],
	words => [ 'a text COLLATE "C"', "md5(i::text) || 'x'" ],
	pairs => [ 'a int, b int', 'i % 10, i' ],
	triples => [ 'a int, b smallint, c bigint', 'i % 3, i % 100, i' ],
	mixed => [
		'a bigint, b text COLLATE "C"',
		'i % 1000 - 500, md5(i::text)',
		'a DESC, b'
	],
	word_first => [ 'a text COLLATE "C", b int', 'left(md5(i::text), 9), i' ],
	times => [
		'a timestamptz, b int',
		"'2026-01-01'::timestamptz + i * '1 s'::interval, i"
	],
	bytes => [ 'a bytea', "decode(md5(i::text), 'hex')" ],
	big_words => [
		'a text COLLATE "C"',
		"repeat(md5(i::text), CASE WHEN i % 100 = 0 THEN 30 ELSE 1 END)"
	],
	alike => [ 'a text COLLATE "C"', "'the same first bytes ' || i" ],
	numbers => [ 'a numeric', 'i' ]);
my @tables = sort keys %shape;
my @listed = grep { !/alike|numbers/ } @tables;

foreach my $table (@tables)
{
	my ($columns, $values, $index) = @{ $shape{$table} };

	my $key = join ', ', map { (split)[0] } split /, /, $columns;
	$index //= $key;
	$columns = join ', ', map { "$_ NOT NULL" } split /, /, $columns;
	query_all(
		[ $pub, $sub ],
		"CREATE TABLE $table ($columns, i int, v int, body text); CREATE UNIQUE INDEX ${table}_key ON $table ($index); ALTER TABLE $table REPLICA IDENTITY USING INDEX ${table}_key"
	);
	query($pub,
		"INSERT INTO $table SELECT $values, i, 0, 'x' FROM generate_series(1, $rows) i; CREATE INDEX ON $table (i); ANALYZE $table"
	);
}
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 2');
wait_for_apply($pub, $sub, 'sub');

# Changes of scattered single rows, the same in each run of the test.
my $seed = 20261123;

sub scattered
{
	my ($count, $sql) = @_;
	my @changes;

	foreach my $n (1 .. $count)
	{
		$seed = ($seed * 1103515245 + 12345) % 2**31;
		my $i = 1 + int($seed / 2**31 * $rows);
		push @changes, map { $sql =~ s/TABLE/$_/gr =~ s/ROW/$i/gr } @tables;
	}
	return @changes;
}

# Lets a backlog build up, and be applied.
sub apply_backlog
{
	my ($what, @changes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	disable_subscription($sub, 'sub');
	query($pub, join ";\n", 'SET synchronous_commit = off', @changes);
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, $what);
	return;
}

sub entries_read
{
	my ($table) = @_;
	return query($sub,
		"SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = '${table}_key'"
	);
}

my $touch = 'UPDATE TABLE SET v = v + 1 WHERE i = ROW';
foreach my $binary ('false', 'true')
{
	query($sub, "ALTER SUBSCRIPTION sub SET (binary = $binary)");
	my $log = -s $sub->logfile;
	my %before = map { $_ => entries_read($_) } @listed;

	apply_backlog("rows here and there, binary = $binary",
		scattered(2000, $touch));
	my $written = slurp_file($sub->logfile, $log);
	like(
		$written,
		qr/lowest keys of \d+ leaf pages of index "${_}_key" are known/,
		"binary = $binary: a list is read of $_") foreach @listed;
	like(
		$written,
		qr/too many leaf pages of index "alike_key" begin with the same 16 bytes/,
		"binary = $binary: no list of keys that begin alike");
	unlike(
		$written,
		qr/index "numbers_key"/,
		"binary = $binary: no list of numeric keys");

	# A writer logs its counters when it ends.
	disable_subscription($sub, 'sub');
	cmp_ok(entries_read($_) - $before{$_},
		'<', 1500,
		"binary = $binary: most rows of $_ are found without the index")
	  foreach @listed;
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
}
apply_backlog(
	'one transaction',
	'BEGIN',
	scattered(700, $touch),
	scattered(100, 'DELETE FROM TABLE WHERE i = ROW'), 'COMMIT');

# New keys between existing ones split pages; others are emptied.
my @splits;
foreach my $part (0 .. 9)
{
	foreach my $table (@tables)
	{
		my $values = $shape{$table}[1] =~ s/\bi\b/($rows + i)/gr;
		push @splits,
		  sprintf
		  "INSERT INTO %s SELECT %s, $rows + i, 0, 'y' FROM generate_series(%d, %d) i",
		  $table, $values, $part * 1000 + 1, $part * 1000 + 1000;
		push @splits, "DELETE FROM $table WHERE i % 10 = $part AND i < 20000"
		  if $part < 5;
	}
	push @splits, scattered(30, $touch);
}
apply_backlog('pages are split and emptied', @splits);
apply_backlog('rows of split pages', scattered(700, $touch));
is(errors_logged($sub), '', 'no errors');
$pub->stop;
$sub->stop;
done_testing();
