# A table is rewritten on the member that is copied, after the joining node's snapshot and before its rows are read: an
# older snapshot sees none of them.  The join fails then, however the schema change came there; and if an extension has
# exchanged the table's file.  What gives a table another file and keeps its rows, or truncates it, does not stop the join.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $point = 'weft-copy-locked';
my ($a, $b) = map { new_member($_) } qw(a b);
my $c = new_member('c', conf => "weft.min_parallel_copy_size = 0\n");

query($a, <<'EOS');
CREATE TABLE first (id int PRIMARY KEY, v text);
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (500);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (500) TO (5000);
CREATE TABLE truncated (id int PRIMARY KEY, v text);
CREATE TABLE refilled (id int PRIMARY KEY, v text);
INSERT INTO first SELECT i, 'first' FROM generate_series(1, 1000) i;
INSERT INTO t SELECT i, 't' FROM generate_series(1, 1000) i;
INSERT INTO p SELECT i, 'p' FROM generate_series(1, 1000) i;
INSERT INTO truncated SELECT i, 'truncated' FROM generate_series(1, 1000) i;
INSERT INTO refilled SELECT i, 'refilled' FROM generate_series(1, 1000) i;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');

# The new node has its snapshot, and copies the first table.
sub join_and_hold
{
	return hold_in_first_table($c, $a, 'g', qw(first t p1));
}

sub fails
{
	my ($tables, $what, $how) = @_;
	$how //= 'were rewritten by schema changes';
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	release_point($c, $point);
	my ($result, $out, $err) =
	  $c->psql('postgres', $GroupTest::wait_for_join);
	like(
		$err,
		qr/tables $how on node "a" while they were copied: $tables(?: \(|$)/m,
		$what);
	return;
}

# The same columns, and the same types
my $rewrite = "ALTER TABLE t ALTER v TYPE text USING v || '!'";

join_and_hold();
query($a, "SET weft.ddl_lock = none; $rewrite");
fails('public.t', 'a replicated schema change of the copied member');

wait_for_group('g', $a, $b);
join_and_hold();
query($b, "SET weft.ddl_lock = none; $rewrite");
wait_for_apply($b, $a, 'weft_g_b_a');
is(query($a, 'SELECT v FROM t WHERE id = 1'),
	't!!', 'the other member has changed it');
fails('public.t', 'a schema change of another member');

join_and_hold();
query($_, "SET weft.ddl_replication = off; $rewrite") foreach $a, $b;
fails('public.t', 'one that is not replicated');

join_and_hold();
query($_,
	"SET weft.ddl_replication = off; ALTER TABLE p ALTER v TYPE text USING v || '!'"
) foreach $a, $b;
fails('public.p1, public.p2', 'one of a partitioned table');

join_and_hold();
query($_,
	'SET weft.ddl_replication = off; ALTER TABLE t ADD r float8 DEFAULT random()'
) foreach $a, $b;
fails('public.t', 'a column with a volatile default');

# As pg_repack does it: the rows are copied, and then the copy's file becomes the table's.  REPACK (CONCURRENTLY) does it
# in one transaction.
foreach my $between ('COMMIT; BEGIN', '')
{
	join_and_hold();
	query($a, <<"EOS");
SET weft.ddl_replication = off;
SET allow_system_table_mods = on;
BEGIN;
CREATE TABLE copy AS SELECT * FROM t;
$between;
LOCK TABLE t;
UPDATE pg_class SET relfilenode = pg_relation_filenode(CASE oid WHEN 't'::regclass THEN 'copy'::regclass ELSE 't' END)
	WHERE oid IN ('t'::regclass, 'copy'::regclass);
REINDEX TABLE t;
COMMIT;
DROP TABLE copy;
EOS
	is(query($a, 'SELECT count(*) FROM t'), 1000, 'the file was exchanged');
	fails('public.t', "another file, '$between'", 'got other files');
}

# --- no harm ---

query($_, 'SET weft.ddl_replication = off; ALTER TABLE t ADD w int DEFAULT 5')
  foreach $a, $b;
join_and_hold();
query($a,
	'SET weft.ddl_lock = none; ALTER TABLE truncated ADD CHECK (id > 0)');
query($a, 'VACUUM FULL t');
query($a, 'CLUSTER p1 USING p1_pkey');
query($a, 'TRUNCATE truncated');
query($a, "INSERT INTO truncated VALUES (1, 'new')");
query($a,
	"BEGIN; TRUNCATE refilled; INSERT INTO refilled VALUES (1, 'new'); COMMIT"
);
query($a, "INSERT INTO t SELECT i, 'new' FROM generate_series(2001, 2010) i");
query($a, "UPDATE p SET v = 'new' WHERE id < 10");
release_point($c, $point);
wait_for_join($c);
wait_for_group('g', $a, $b, $c);
is(query($c, 'SELECT count(*) FROM t'), 1010, 'the rows are there');
is(query($c, "SELECT string_agg(v, ' ') FROM $_"),
	'new', "and what was $_ is not")
  foreach qw(truncated refilled);
same_on_all([ $a, $c ], [qw(first t p truncated refilled)], 'joined');

$_->stop foreach $a, $b, $c;
done_testing();
