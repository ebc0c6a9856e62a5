# weft.stat_relation: which path rows of each table take, and how many took it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FeatureTest;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

start_nodes();

my $key = 'no primary key or replica identity index can be used';
my $default = 'a column that is not published has a default';

# The expected output for each table.  The tables named here differ on the subscriber.
my %path = (
	plain => 'fast|',
	kept => 'fast|',
	uniq => 'fast|',
	defaulted => "fast|INSERT: $default",
	keyless => "fast|UPDATE and DELETE: $key",
	neither => "general|INSERT: $default; UPDATE and DELETE: $key",
	triggered => 'general|a trigger fires on a replica',
	generated => 'general|there is a generated column',
	secured => 'general|row-level security is enabled',
	partitioned => 'general|the table is not an ordinary table');
my @tables = sort keys %path;
my @loaded = grep { !/^(kept|uniq)$/ } @tables;

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE plain (id int PRIMARY KEY, v int);
CREATE TABLE kept (id int PRIMARY KEY, v int);
CREATE TABLE uniq (id int PRIMARY KEY, v int UNIQUE);
CREATE TABLE defaulted (id int PRIMARY KEY, v int);
CREATE TABLE keyless (id int, v int);
CREATE TABLE neither (id int, v int);
CREATE TABLE triggered (id int PRIMARY KEY, v int);
CREATE TABLE generated (id int PRIMARY KEY, v int);
CREATE TABLE secured (id int PRIMARY KEY, v int);
EOS
query($pub, <<'EOS');
CREATE TABLE partitioned (id int PRIMARY KEY, v int);
ALTER TABLE keyless REPLICA IDENTITY FULL;
ALTER TABLE neither REPLICA IDENTITY FULL;
EOS
query($sub, <<'EOS');
CREATE TABLE partitioned (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE partitioned_0 PARTITION OF partitioned FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE partitioned_1 PARTITION OF partitioned FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE defaulted ADD COLUMN extra int DEFAULT 5;
ALTER TABLE neither ADD COLUMN extra int DEFAULT 5;
ALTER TABLE generated ADD COLUMN doubled int GENERATED ALWAYS AS (v * 2) STORED;
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
-- it asks for the statistics of its own writer
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM count(*) FROM weft.stat_relation;
	RETURN NULL;
END $$;
CREATE TRIGGER look AFTER INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION look();
ALTER TABLE triggered ENABLE ALWAYS TRIGGER look;
EOS
query($pub, 'CREATE PUBLICATION pub FOR TABLE ' . join(', ', @tables));
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
query($pub,
	"SELECT pg_create_logical_replication_slot('history', 'test_decoding')");

# The publisher's changes, counted by table and kind.
my %expected =
  map { $_ => { INSERT => 0, UPDATE => 0, DELETE => 0 } } @tables;

sub expect_changes
{
	foreach my $commit (@{ decode_commits($pub, 'history') })
	{
		$expected{ $_->[0] }{ $_->[1] }++ foreach decode_changes($commit);
	}
	return
	  join "\n",
	  map { join '|', $_, @{ $expected{$_} }{qw(INSERT UPDATE DELETE)} }
	  @tables;
}

# New writers replace the old ones, which report all their counts before they end.
# The leader stays.
sub renew_writers
{
	my ($number) = @_;

	query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $number)");
	poll($sub, "SELECT num_writers = $number FROM weft.stat_subscription");
	return;
}

sub stat_relation
{
	my ($columns) = @_;
	return query($sub,
		qq{SELECT relation, $columns FROM weft.stat_relation ORDER BY relation::text COLLATE "C"}
	);
}

# --- a load ---

query($pub, 'INSERT INTO kept VALUES (1, 0); INSERT INTO uniq VALUES (1, 1)');
my %scripts;
foreach my $table (@loaded)
{
	my $conflict =
	  $table =~ /^(keyless|neither)$/ ? '' : 'ON CONFLICT DO NOTHING';

	$scripts{"$random INSERT INTO $table VALUES (:a, :c) $conflict;\n"} = 2;
	$scripts{"$random UPDATE $table SET v = :c WHERE id = :a;\n"} = 1;
	$scripts{
		"$random BEGIN;\nINSERT INTO $table VALUES (:a, :c) $conflict;\nDELETE FROM $table WHERE id = :a;\nCOMMIT;\n"
	} = 1;
}
finish(load(\%scripts));
# The load alone may find no row to update.
query($pub, <<"EOS") foreach @loaded;
INSERT INTO $_ VALUES (5001, 1);
UPDATE $_ SET v = 2 WHERE id = 5001;
DELETE FROM $_ WHERE id = 5001;
EOS
wait_for_apply($pub, $sub, 'sub');

my $changes = expect_changes();
my $leader = leader_pid($sub, 'sub');
is( join("\n", grep { /\|0(\||$)/ && !/^(kept|uniq)/ } split /\n/, $changes),
	'',
	'there are changes of all kinds in all tables');
poll($sub,
		"SELECT sum(inserts + updates + deletes) >= "
	  . join("+", map { values %$_ } values %expected)
	  . ' FROM weft.stat_relation');
pass('changes are reported while writers wait');
renew_writers(2);
is(stat_relation('inserts, updates, deletes'),
	$changes, 'changes are counted by table and kind');
is( stat_relation('path, reason'),
	join("\n", map { "$_|$path{$_}" } @tables),
	'the path of each table, and the reason');
is( query(
		$sub,
		"SELECT relation, general_rows, inserts, updates, deletes FROM weft.stat_relation WHERE path = 'general' AND general_rows <> inserts + updates + deletes"
	),
	'',
	'all rows of some tables take the general path');
is( query(
		$sub,
		"SELECT bool_and(general_rows >= CASE relation WHEN 'defaulted'::regclass THEN inserts WHEN 'keyless'::regclass THEN updates + deletes ELSE 0 END AND general_rows < inserts + updates + deletes) FROM weft.stat_relation WHERE relation IN ('plain'::regclass, 'defaulted'::regclass, 'keyless'::regclass)"
	),
	't',
	'some or no rows of the others do');
is(query($sub, 'SELECT DISTINCT subname FROM weft.stat_relation'),
	'sub', 'the subscription is named');

# --- a transaction that is applied twice ---

my $general = query($sub,
	"SELECT general_rows FROM weft.stat_relation WHERE relation = 'plain'::regclass"
);
my $local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
query($pub, 'BEGIN; UPDATE kept SET v = 1; DELETE FROM uniq; COMMIT');
writer_waits_for_lock($sub);
query($pub, <<'EOS');
BEGIN;
INSERT INTO plain VALUES (1001, 1), (1002, 2), (1003, 3);
UPDATE plain SET v = 4 WHERE id = 1001;
INSERT INTO uniq VALUES (2, 1);
COMMIT;
EOS
poll($sub,
	"SELECT count(*) = 1 FROM weft.stat_writer WHERE state = 'waiting to retry'"
);
$local->query_safe('COMMIT');
$local->quit;
wait_for_apply($pub, $sub, 'sub');
renew_writers(3);
is(stat_relation('inserts, updates, deletes'),
	expect_changes(), 'rows that were rolled back are not counted');
is( query(
		$sub,
		"SELECT general_rows - $general FROM weft.stat_relation WHERE relation = 'plain'::regclass"
	),
	4,
	'rows that were retried took the general path');
is(leader_pid($sub, 'sub'), $leader, 'the leader has not been restarted');

# --- a table that changes ---

query($sub, <<'EOS');
CREATE TRIGGER look AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION look();
ALTER TABLE plain ENABLE ALWAYS TRIGGER look;
EOS
query($pub, 'INSERT INTO plain VALUES (2001, 1)');
poll($sub,
	"SELECT path = 'general' AND reason ~ 'trigger' FROM weft.stat_relation WHERE relation = 'plain'::regclass"
);
pass('a new trigger is noticed');
query($sub, 'DROP TRIGGER look ON plain');
query($pub, 'INSERT INTO plain VALUES (2002, 1)');
poll($sub,
	"SELECT path = 'fast' AND reason IS NULL FROM weft.stat_relation WHERE relation = 'plain'::regclass"
);
pass('so is a dropped trigger');

query($sub, 'DROP TABLE secured');
is( query(
		$sub,
		"SELECT count(*) FROM weft.stat_relation WHERE reason ~ 'row-level'"),
	0,
	'a table that was dropped is not shown');

# --- what is not shown, and when counting starts again ---

query($sub, 'CREATE DATABASE other');
is( $sub->safe_psql(
		'other',
		'SET client_min_messages = warning; CREATE EXTENSION weft; SELECT count(*) FROM weft.stat_relation'
	),
	0,
	'tables of another database are not shown');

query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
poll($sub, 'SELECT count(*) = 0 FROM weft.stat_get_relation()');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
query($pub, 'INSERT INTO plain VALUES (3001, 1)');
# the writer may tell the path before it has counted
poll($sub, 'SELECT sum(inserts) = 1 FROM weft.stat_relation');
is(stat_relation('path, reason, inserts, updates, deletes'),
	'plain|fast||1|0|0', 'a new leader starts counting from zero');

query($sub, 'DROP SUBSCRIPTION sub');
is(query($sub, 'SELECT count(*) FROM weft.stat_get_relation()'),
	0, 'a dropped subscription leaves nothing behind');
query($pub, "SELECT pg_drop_replication_slot('history')");
is(errors_logged($sub), '', 'no errors');
stop_nodes();
done_testing();
