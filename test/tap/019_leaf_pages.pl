# Rows that are found with a list of the index's leaf pages: while pages are split,
# emptied and reused, while the index is rebuilt, and with look-ahead over various
# changes that follow.

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

# How each table derives its keys from 1 .. 30000; keys in between are added later.
my %key = (
	small => 'i',
	middle => 'i * 3',
	large => '(i - 15000) * 1000000007::bigint',
	backwards => 'i * 3');
my @tables = sort keys %key;

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE small (id smallint PRIMARY KEY, v int, body text);
CREATE TABLE middle (id int PRIMARY KEY, v int, body text) WITH (fillfactor = 90);
CREATE TABLE large (id bigint, v int, body text);
CREATE UNIQUE INDEX large_key ON large (id) INCLUDE (v);
ALTER TABLE large ALTER id SET NOT NULL, REPLICA IDENTITY USING INDEX large_key;
CREATE TABLE backwards (id int NOT NULL, v int, body text);
CREATE UNIQUE INDEX backwards_key ON backwards (id DESC);
ALTER TABLE backwards REPLICA IDENTITY USING INDEX backwards_key;
EOS
foreach my $table (@tables)
{
	query($pub,
		"INSERT INTO $table SELECT $key{$table}, 0, 'x' FROM generate_series(1, 30000) i"
	);
}
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 2');
wait_for_apply($pub, $sub, 'sub');

# Changes of scattered single rows, the same in each run of the test.
my $seed = 20261122;

sub random
{
	my ($below) = @_;
	$seed = ($seed * 1103515245 + 12345) % 2**31;
	return int($seed / 2**31 * $below);
}

sub scattered
{
	my ($count, $sql) = @_;
	my @changes;

	foreach my $n (1 .. $count)
	{
		my $i = 1 + random(30000);
		foreach my $table (@tables)
		{
			my $id = $key{$table} =~ s/\bi\b/$i/gr;
			push @changes, $sql =~ s/TABLE/$table/gr =~ s/ID/$id/gr;
		}
	}
	return @changes;
}

# Lets a backlog build up, and be applied; optionally runs something on the subscriber
# before that.
sub apply_backlog
{
	my ($what, $changes, $meanwhile) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	disable_subscription($sub, 'sub');
	query($pub, join ";\n", 'SET synchronous_commit = off', @$changes);
	query($sub, $meanwhile) if $meanwhile;
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, $what);
	return;
}

sub entries_read
{
	my ($index) = @_;
	return query($sub,
		"SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = '$index'"
	);
}

my $touch = 'UPDATE TABLE SET v = v + 1 WHERE id = ID';
foreach my $binary ('false', 'true')
{
	query($sub, "ALTER SUBSCRIPTION sub SET (binary = $binary)");
	my $log = -s $sub->logfile;
	my $before = entries_read('middle_pkey');

	apply_backlog("rows here and there, binary = $binary",
		[ scattered(4000, $touch) ]);
	my $written = slurp_file($sub->logfile, $log);
	like(
		$written,
		qr/lowest keys of \d+ leaf pages of index "$_" are known/,
		"binary = $binary: a list is read of $_"
	) foreach qw(small_pkey middle_pkey large_key backwards_key);

	# A writer logs its counters when it ends.
	disable_subscription($sub, 'sub');
	cmp_ok(entries_read('middle_pkey') - $before,
		'<', 2500, "binary = $binary: most rows are found without the index");
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
}

apply_backlog(
	'one transaction',
	[
		'BEGIN',
		scattered(3000, $touch),
		scattered(100, 'DELETE FROM TABLE WHERE id = ID'), 'COMMIT'
	]);

# New keys between existing ones split the pages, while rows on these pages are
# changed.
my @splits;
foreach my $part (0 .. 29)
{
	my $between = sprintf 'generate_series(%d, %d) i', $part * 1000,
	  $part * 1000 + 999;

	push @splits,
	  "INSERT INTO middle SELECT $key{middle} + 1, 0, 'y' FROM $between",
	  "INSERT INTO large SELECT $key{large} + 7, 0, 'y' FROM $between",
	  "INSERT INTO backwards SELECT $key{backwards} + 1, 0, 'y' FROM $between",
	  scattered(40, $touch);
}
apply_backlog('pages are split', \@splits);
apply_backlog('rows of split pages', [ scattered(1500, $touch) ]);

# Whole pages lose their rows, are deleted, and are reused for other keys.
apply_backlog(
	'pages are emptied',
	[
		map({ "DELETE FROM $_ WHERE id BETWEEN 3000 AND 27000" }
			qw(small middle backwards)),
		"DELETE FROM large WHERE id > 0",
		scattered(500, $touch)
	]);
query($sub, 'VACUUM small, middle, large, backwards');
apply_backlog(
	'other keys take their pages',
	[
		"INSERT INTO middle SELECT i, 0, 'z' FROM generate_series(100000, 130000) i",
		"INSERT INTO large SELECT -i, 0, 'z' FROM generate_series(1, 30000) i",
		"INSERT INTO small SELECT i, 0, 'z' FROM generate_series(3000, 27000, 2) i",
		scattered(1500, $touch),
		map({ 'UPDATE middle SET v = v + 1 WHERE id = '
				  . (100000 + random(30001)) } 1 .. 1500)
	],
	'VACUUM small, middle, large, backwards');

# Rows get other keys, and each change adds an entry beside those of older versions.
query($sub, 'CREATE INDEX ON middle (v); CREATE INDEX ON small (v)');
apply_backlog(
	'several entries of a row',
	[
		map({ "UPDATE middle SET v = v + 1 WHERE id % 500 = $_" }
			(1 .. 20) x 3),
		scattered(1000, $touch)
	]);
apply_backlog(
	'keys change hands',
	[
		'UPDATE middle SET id = -id WHERE id % 100 = 0',
		'UPDATE middle SET id = -id WHERE id BETWEEN 1 AND 2999',
		'UPDATE middle SET id = 3000 + id WHERE id BETWEEN -2999 AND -1',
		scattered(1000, $touch)
	]);

# The index, or the table, gets a new file.
foreach my $sql (
	'REINDEX INDEX middle_pkey',
	'VACUUM FULL middle',
	'CLUSTER large USING large_key',
	'ALTER TABLE small SET UNLOGGED')
{
	apply_backlog("after $sql", [ scattered(800, $touch) ], $sql);
}
my $load = start_pgbench(
	$pub,
	{
		"\\set i random(1, 30000)\nUPDATE middle SET v = v + 1 WHERE id = :i;\n"
		  => 1
	},
	'-c', 2, '-t', 3000);
while (running($load))
{
	query($sub, $_)
	  foreach 'REINDEX INDEX CONCURRENTLY middle_pkey', 'VACUUM FULL middle';
}
finish($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['middle'], 'rebuilt while rows are changed');
query($pub,
	"TRUNCATE middle; INSERT INTO middle SELECT i, 0, '' FROM generate_series(1, 30000) i"
);
apply_backlog('the table is new', [ scattered(1000, $touch) ]);

is(errors_logged($sub), '', 'no errors');
$pub->stop;
$sub->stop;
done_testing();
