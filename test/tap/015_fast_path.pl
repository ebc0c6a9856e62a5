# What the fast path remembers between changes: places of rows, and rows that it
# collects to store them together.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE places (id int PRIMARY KEY, v int, filler text);
CREATE TABLE parted (a text, b numeric, v int, PRIMARY KEY (a, b));
CREATE TABLE gathered (id int PRIMARY KEY, code int UNIQUE, body text);
CREATE TABLE log (v int);
EOS
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

sub applied_alike
{
	my ($what, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, $what);
	return;
}

# Rows that are changed again and again, while everything that could invalidate a
# remembered place happens to the table.
query($pub,
	"INSERT INTO places SELECT i, 0, repeat('x', 200) FROM generate_series(1, 300) i"
);
my $update = 'UPDATE places SET v = v + 1 WHERE id % 3 = 0';
query($pub, $update) for 1 .. 3;
applied_alike('before', 'places');
foreach my $sql (
	'VACUUM FULL places',
	'CLUSTER places USING places_pkey',
	'VACUUM (FREEZE) places',
	'ALTER TABLE places ALTER v TYPE bigint',
	'ALTER TABLE places ALTER v TYPE int',
	'REINDEX TABLE places',
	'ALTER TABLE places SET UNLOGGED',
	'ALTER TABLE places SET LOGGED')
{
	query($sub, $sql);
	query($pub, $update) for 1 .. 2;
	applied_alike("after $sql", 'places');
}

# The file is truncated, and other rows take the places of the old ones.
query($pub, 'DELETE FROM places WHERE id > 20');
applied_alike('most rows are deleted', 'places');
query($sub, 'VACUUM (TRUNCATE) places');
query($pub,
	"INSERT INTO places SELECT i, -i, repeat('y', 300) FROM generate_series(1000, 1200) i"
);
query($pub, 'UPDATE places SET id = 2000 + id WHERE id <= 20');
query($pub,
	"INSERT INTO places SELECT i, 5, 'new' FROM generate_series(1, 20) i");
query($pub, $update) for 1 .. 3;
applied_alike('other rows have taken the places', 'places');
query($pub,
	"TRUNCATE places; INSERT INTO places SELECT i, i, 'z' FROM generate_series(1, 300) i"
);
query($pub, $update) for 1 .. 3;
applied_alike('the table is new', 'places');

# Rows that are changed in the order in which they are stored, and then not: the next
# place holds another row, none, or an older version.
query_all(
	[ $pub, $sub ],
	'CREATE TABLE in_order (id int, k text, v int, PRIMARY KEY (k, id)) WITH (fillfactor = 70)'
);
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'sub');
query($pub,
	"INSERT INTO in_order SELECT i, md5(i::text), 0 FROM generate_series(1, 3000) i"
);
my $all = 'UPDATE in_order SET v = v + 1';
my @changes = (
	'all rows' => $all,
	'again, within pages' => "$all; $all",
	'every other row' => "$all WHERE id % 2 = 0",
	'all rows, some of which have moved' => $all,
	'rows are missing' => 'DELETE FROM in_order WHERE id % 7 = 0',
	'remaining rows' => $all,
	'keys that take those of their neighbours' =>
	  "UPDATE in_order SET id = id + 1 WHERE id % 7 = 6; $all",
	'backwards' =>
	  "DO \$\$ BEGIN FOR i IN REVERSE 3000 .. 1 LOOP $all WHERE id = i; END LOOP; END \$\$",
	'new ones in the gaps' =>
	  "INSERT INTO in_order SELECT i, 'new', i FROM generate_series(1, 500) i; $all",
	'the end of the table' => 'DELETE FROM in_order WHERE id > 1000',
	'all that is left' => 'DELETE FROM in_order');
while (my ($what, $sql) = splice @changes, 0, 2)
{
	query($sub, 'VACUUM in_order') if $what =~ /left|new/;
	query($pub, "BEGIN; $sql; COMMIT");
	applied_alike("in order: $what", 'in_order');
}

# Keys with several columns, and rows that outgrow their page.
query($pub,
	"INSERT INTO parted SELECT 'key ' || i % 10, i / 10.0, 0 FROM generate_series(1, 100) i"
);
query($pub, 'UPDATE parted SET v = v + 1 WHERE b > 3') for 1 .. 5;
query($pub, "UPDATE parted SET a = a || '''' WHERE v = 5 AND b < 5");
query($pub, 'UPDATE parted SET v = v * 2') for 1 .. 3;
query($pub, 'UPDATE places SET filler = repeat(md5(id::text), v % 50)')
  for 1 .. 3;
applied_alike('keys of several columns', qw(parted places));

# Rows that are inserted and immediately changed, deleted, and inserted again; more
# of them than are stored at a time, and large ones.
query($pub, $_)
  foreach
  "BEGIN; INSERT INTO gathered VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'); UPDATE gathered SET body = 'd' WHERE id = 2; DELETE FROM gathered WHERE id = 3; INSERT INTO gathered VALUES (3, 2000, 'e'); UPDATE gathered SET id = 4 WHERE id = 3; INSERT INTO gathered VALUES (3, 3, 'f'); COMMIT",
  "INSERT INTO gathered SELECT i, i, repeat('g', i) FROM generate_series(10, 500) i",
  "INSERT INTO gathered SELECT i, i, repeat(md5(i::text), 3000) FROM generate_series(1001, 1040) i",
  "BEGIN; INSERT INTO gathered SELECT i, i, (SELECT string_agg(md5((i * k)::text), '') FROM generate_series(1, 4000) k) FROM generate_series(1101, 1105) i; UPDATE gathered SET code = -id WHERE id > 1100; INSERT INTO log VALUES (1); INSERT INTO gathered VALUES (1106, 1106, NULL); COMMIT",
  'BEGIN; DELETE FROM gathered WHERE id BETWEEN 100 AND 200; INSERT INTO gathered SELECT i, i, NULL FROM generate_series(100, 200) i; COMMIT';
applied_alike('inserted and changed at once', qw(gathered log));

# A violation among collected rows is reported like any other, and the conflicting
# row can be removed.
query($sub, "INSERT INTO gathered VALUES (-1, 5005, 'in the way')");
my $log = -s $sub->logfile;
query($pub,
	'BEGIN; INSERT INTO log SELECT generate_series(1, 10); INSERT INTO gathered SELECT i, i, NULL FROM generate_series(5001, 5010) i; COMMIT'
);
$sub->wait_for_log(qr/ERROR: .*(duplicate key|conflict detected).*?gathered/s,
	$log);
like(
	slurp_file($sub->logfile, $log),
	qr/key \(code\)=\(5005\)/i,
	'a violation names the key');
is( query(
		$sub, 'SELECT count(*) FROM gathered WHERE id BETWEEN 5001 AND 5010'),
	0,
	'and nothing of the transaction is there');
query($sub, 'DELETE FROM gathered WHERE id = -1');
applied_alike('what was in the way is removed', qw(gathered log));

$pub->stop;
$sub->stop;
done_testing();
