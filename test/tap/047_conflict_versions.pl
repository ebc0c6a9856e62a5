# Conflicts in a given order: unique values that are released again, counters of
# deleted rows, nodes that have parted, commit times that the server has forgotten, rows
# that jsonb cannot hold, and rows that refer to deleted ones.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my @nodes = new_members(3);
my ($n1, $n2, $n3) = @nodes;
my @tables = qw(taken given counter plain parent child odd);

create_tables(\@nodes, <<'EOS', @tables);
CREATE TABLE taken (id int PRIMARY KEY, u int UNIQUE, v text);
CREATE TABLE given (id int PRIMARY KEY, u int UNIQUE, v text);
CREATE FUNCTION give() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN NEW.u := NEW.u + 100; RETURN NEW; END';
CREATE TRIGGER give BEFORE UPDATE ON given FOR EACH ROW EXECUTE FUNCTION give();
CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL, x numeric NOT NULL, v text);
ALTER TABLE counter REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('counter', '{n,x}');
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE parent (id bigint PRIMARY KEY, code text UNIQUE);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent,
	code text REFERENCES parent (code));
CREATE TABLE odd (id int PRIMARY KEY, j json, v text);
EOS
connect_members(\@nodes);

# Enables some links, one after the other.
sub link_up
{
	foreach my $link (@_)
	{
		my ($from, $to) = @$link;
		my $name = 'from_' . $from->name;

		query($to, "ALTER SUBSCRIPTION $name ENABLE");
		wait_for_apply($from, $to, $name);
	}
	return;
}

# All nodes have the same rows, and they are these.
sub check
{
	my ($table, $expected, $what) = @_;

	join_again(\@nodes);
	quiet(\@nodes);
	is(rows($_, $table), $expected, "$what: " . $_->name) foreach @nodes;
	return;
}

####
#### Unique values
####

# taken briefly, within a transaction: by the older one of two, and by the newer one
cut_off(\@nodes);
query($n1,
	'BEGIN; INSERT INTO taken VALUES (1, 1); UPDATE taken SET u = 101 WHERE id = 1; COMMIT'
);
query($n2, 'INSERT INTO taken VALUES (2, 1)');
query($n2, 'INSERT INTO taken VALUES (3, 3)');
query($n1,
	'BEGIN; INSERT INTO taken VALUES (4, 3); UPDATE taken SET u = 104 WHERE id = 4; COMMIT'
);
check('taken', "(1,101,)\n(2,1,)\n(4,104,)", 'in a transaction');

# the same with a trigger that changes the value, so the statement does not show it
cut_off(\@nodes);
query($n2, 'INSERT INTO given VALUES (3, 3)');
query($n1,
	"BEGIN; INSERT INTO given VALUES (4, 3); UPDATE given SET v = 'x' WHERE id = 4; COMMIT"
);
check('given', '(4,103,x)', 'in a transaction, by a trigger');

# The newest row takes the value from the other two, and has released it when a third
# node receives one of them.
query($n1, 'DELETE FROM taken');
quiet(\@nodes);
cut_off(\@nodes);
query($n1, 'INSERT INTO taken VALUES (1, 1)');
query($n2, 'INSERT INTO taken VALUES (2, 1)');
query($n3, 'INSERT INTO taken VALUES (3, 1)');
link_up([ $n3, $n2 ]);
query($n2, 'UPDATE taken SET u = 2 WHERE id = 3');
check('taken', '(3,2,)', 'given up');
like(
	history(
		$n2,
		'conflict_type, resolution, index_name, local_row IS NULL',
		"relation = 'public.taken' AND subname = 'from_n1' AND remote_row ->> 'id' = '1'"
	),
	qr/^insert_exists\|keep_local\|taken_u_key\|t$/m,
	'the history has the rows that disappeared');

# A row that has lost comes back if it is changed after the time at which it lost.
query($n1, 'DELETE FROM taken');
query($n1, "INSERT INTO taken VALUES (1, 1), (2, 2)");
quiet(\@nodes);
cut_off(\@nodes);
query($n1, 'UPDATE taken SET u = 5 WHERE id = 1');
query($n2, 'UPDATE taken SET u = 5 WHERE id = 2');
query($n3, 'UPDATE taken SET u = 6 WHERE id = 1');
check('taken', "(1,6,)\n(2,5,)", 'a row that has lost is changed later');

####
#### Counters
####

query($n1,
	"INSERT INTO counter SELECT i, 10, 10, '' FROM generate_series(1, 4) i");
quiet(\@nodes);
cut_off(\@nodes);
query($n1, 'UPDATE counter SET n = n + 1 WHERE id = 1');
query($n2, 'DELETE FROM counter WHERE id = 1');
query($n3, 'UPDATE counter SET n = n + 4, x = x + 0.5 WHERE id = 1');
query($n3, 'UPDATE counter SET n = n + 2 WHERE id = 1');
# n1 gets the delete in between, n2 the older update last
link_up([ $n2, $n1 ], [ $n3, $n1 ], [ $n3, $n2 ], [ $n1, $n2 ], [ $n1, $n3 ]);
check('counter WHERE id = 1', '(1,17,10.5,"")', 'a deleted counter');

# the same, but nothing brings the row back
cut_off(\@nodes);
query($n1, 'UPDATE counter SET n = n + 1 WHERE id = 2');
query($n3, 'UPDATE counter SET n = n + 4 WHERE id = 2');
query($n2, 'DELETE FROM counter WHERE id = 2');
check('counter WHERE id = 2', '', 'a counter that stays deleted');

# no differences
query($n1, "UPDATE counter SET x = 'NaN' WHERE id = 3");
quiet(\@nodes);
query($n2, 'UPDATE counter SET x = 3, n = n + 1 WHERE id = 3');
quiet(\@nodes);
query($n3, "UPDATE counter SET x = x + 1 WHERE id = 3");
quiet(\@nodes);
query($n3, "UPDATE counter SET x = 'infinity' WHERE id = 4");
quiet(\@nodes);
query($n1, "UPDATE counter SET x = 0 WHERE id = 4");
check(
	'counter WHERE id IN (3, 4)',
	qq((3,11,4,"")\n(4,10,0,"")),
	'not a number');
is( query($_, 'SELECT count(*) FROM weft.deleted_counter'),
	query(
		$_,
		"SELECT count(*) FROM weft.deleted_counter WHERE column_name IN ('n', 'x')"
	),
	$_->name . ' keeps columns') foreach @nodes;

####
#### Foreign keys
####

query($n1, "INSERT INTO parent VALUES (1, 'a'), (2, 'b'), (3, 'c')");
quiet(\@nodes);
cut_off(\@nodes);
query($n1, 'DELETE FROM parent WHERE id IN (1, 2)');
query($n2, 'INSERT INTO child VALUES (1, 1, NULL)');
query($n2, "INSERT INTO child VALUES (2, NULL, 'b')");
query($n2, 'INSERT INTO child VALUES (3, 3, NULL)');
query($n2, 'UPDATE child SET parent = 2 WHERE id = 3');
# a row that has not arrived yet is not an orphan
query($n3, "INSERT INTO parent VALUES (4, 'd')");
query($n2, "INSERT INTO parent VALUES (4, 'd')");
query($n2, "INSERT INTO child VALUES (4, 4, 'd')");
check('child', "(1,1,)\n(2,,b)\n(3,2,)\n(4,4,d)", 'children');
is( history(
		$n1,
		'conflict_type, resolution, index_name, key, local_node',
		"relation = 'public.child'"),
	<<'EOS' =~ s/\n\z//r,
parent_missing|apply_remote|parent_pkey|{"id": 1}|1
parent_missing|apply_remote|parent_code_key|{"id": 2}|1
parent_missing|apply_remote|parent_pkey|{"id": 3}|1
EOS
	'references to deleted rows are recorded');
is( query(
		$n1,
		"SELECT conflicts FROM weft.stat_conflict WHERE subname = 'from_n2' AND conflict_type = 'parent_missing'"
	),
	3,
	'and counted');
is( $n1->psql(
		'postgres',
		"SELECT weft.alter_node_set_conflict_resolver('', 'parent_missing', 'skip')"
	),
	3,
	'there is nothing to resolve');

####
#### What jsonb cannot have
####

query($n1, "INSERT INTO odd VALUES (1, '{}')");
quiet(\@nodes);
cut_off(\@nodes);
query($n1, q(UPDATE odd SET j = '{"a": "\u0000"}', v = 'n1'));
query($n2, q(UPDATE odd SET j = '{"b": "\u0000"}', v = 'n2'));
check('odd', q[(1,"{""b"": ""\\\\u0000""}",n2)],
	'json with a null character');
is( history($n1, q(key, local_row, remote_row), "relation = 'public.odd'"),
	q({"id": 1}|{"j": "{\"a\": \"\\\\u0000\"}", "v": "n1", "id": "1"}|{"j": "{\"b\": \"\\\\u0000\"}", "v": "n2", "id": "1"}),
	'is text in the history');
like(
	slurp_file($n1->logfile),
	qr/LOG:  could not convert a conflicting row of subscription "from_n2" to jsonb/,
	'and the log says so');

####
#### Times that the server has forgotten
####

query($n1, "INSERT INTO plain SELECT i, 'new' FROM generate_series(1, 4) i");
quiet(\@nodes);
cut_off(\@nodes);
query($n2, "UPDATE plain SET v = 'older' WHERE id = 1");
query($n1, 'DELETE FROM plain WHERE id = 1');
link_up([ $n1, $n3 ]);
is( query(
		$n3, 'SELECT count(*) FROM weft.tombstone WHERE commit_time IS NULL'),
	0,
	'writers store the time of a tombstone');

# a writer also stores the time of a session's tombstone
set_conf($n1, 'weft.conflict_history_retention' => '1 s');
link_up([ $n3, $n1 ]);
poll($n1,
	'SELECT count(*) = 0 FROM weft.tombstone WHERE commit_time IS NULL');
pass('and those of sessions');
set_conf($n1, 'weft.conflict_history_retention' => '1 d');
check('plain', "(2,new)\n(3,new)\n(4,new)", 'deletes');

####
#### A node that has gone
####

# n3's rows are newer than the changes of n2, which n1 receives later.
cut_off(\@nodes);
query($n2, "UPDATE plain SET v = 'n2, older' WHERE id IN (2, 3)");
query($n3, "UPDATE plain SET v = 'n3, newer' WHERE id = 2");
query($n3, 'DELETE FROM plain WHERE id = 3');
query($n1, "UPDATE plain SET v = 'n1, older' WHERE id = 4");
query($n3, "UPDATE plain SET v = 'n3, newer' WHERE id = 4");
link_up([ $n3, $n1 ], [ $n3, $n2 ]);

foreach my $node ($n1, $n2)
{
	query($node, 'DROP SUBSCRIPTION from_n3');
	query($node, "DELETE FROM weft.conflict_node WHERE subname = 'from_n3'");
}
# on n2, another origin gets the number of the dropped one
query($n2,
	"CREATE SUBSCRIPTION other CONNECTION '' PUBLICATION none WITH (connect = false, slot_name = NONE)"
);
link_up([ $n2, $n1 ], [ $n1, $n2 ]);
is( rows($_, 'plain'),
	"(2,\"n3, newer\")\n(4,\"n3, newer\")",
	$_->name
	  . ' still has the node and time of rows that a departed node has written'
) foreach $n1, $n2;
is( history(
		$n1,
		'conflict_type, resolution, local_node',
		"relation = 'public.plain' AND remote_row ->> 'v' = 'n2, older'"),
	"update_origin_differs|keep_local|3\nupdate_missing|keep_local|3",
	'the history names it');
query($n2, 'DROP SUBSCRIPTION other');

####
#### What is refused
####

my ($result, $output, $errors) = $n1->psql('postgres',
	"ALTER TABLE counter ADD CHECK (n > 0); SELECT weft.set_delta_columns('counter', '{n}')"
);
like(
	$errors,
	qr/column "n" of relation "counter" cannot be a delta column\nDETAIL:  The sum of changes made on several members might violate check constraint "counter_n_check"/,
	'a counter with a check constraint');
query($n1, 'ALTER TABLE counter DROP CONSTRAINT counter_n_check');
query($n1, 'CREATE UNIQUE INDEX counter_x ON counter ((x + 1))');
($result, $output, $errors) =
  $n1->psql('postgres', "SELECT weft.set_delta_columns('counter', '{x}')");
like(
	$errors,
	qr/column "x" of relation "counter" cannot be a delta column\nDETAIL:  The column is part of a unique index/,
	'a counter with a unique index');
query($n1, 'DROP INDEX counter_x');
query($n1,
	"CREATE SUBSCRIPTION other CONNECTION '' PUBLICATION none WITH (connect = false, slot_name = NONE, two_phase = on)"
);
($result, $output, $errors) =
  $n1->psql('postgres',
	'ALTER SUBSCRIPTION other SET (detect_conflicts = on)');
like(
	$errors,
	qr/conflicts of subscription "other" cannot be detected because "two_phase" is enabled/,
	'detect_conflicts for a subscription that has two_phase');
query($n1, 'DROP SUBSCRIPTION other');

####
#### A copy that was made by hand
####

# Rows that are loaded under an origin of their own are older than all others.
query($n1, 'CREATE TABLE seeded (id int PRIMARY KEY, v text)');
query($n1, "INSERT INTO seeded VALUES (1, 'a'), (2, 'b')");
query($n1, 'ALTER PUBLICATION pub ADD TABLE seeded');
query($n2, <<'EOS');
CREATE TABLE seeded (id int PRIMARY KEY, v text);
SELECT pg_replication_origin_create('seed');
SELECT pg_replication_origin_session_setup('seed');
INSERT INTO seeded VALUES (1, 'a'), (2, 'b');
EOS
query($n2,
	'ALTER SUBSCRIPTION from_n1 REFRESH PUBLICATION WITH (copy_data = off)');
query($n1, "UPDATE seeded SET v = 'c' WHERE id = 1");
query($n1, 'DELETE FROM seeded WHERE id = 2');
wait_for_apply($n1, $n2, 'from_n1');
is(rows($n2, 'seeded'), '(1,c)', 'the rows are changed');
is( query(
		$n2,
		"SELECT count(*) FROM weft.conflict_history WHERE relation = 'public.seeded'"
	),
	0,
	'without a conflict');

is(errors_logged($_), '', $_->name . ' has logged no error') foreach @nodes;

####
#### A server that does not track commit times any more, or a dump restored on one
####

query($n1, 'INSERT INTO taken VALUES (50, 50), (51, 51)');
$n1->stop;
$n1->append_conf('postgresql.conf', 'track_commit_timestamp = off');
$n1->start;
query($n1, 'UPDATE taken SET u = 52 WHERE id = 50');
query($n1, 'DELETE FROM taken WHERE id = 51');
is(rows($n1, 'taken WHERE id >= 50'), '(50,52,)', 'sessions can write there');
done_testing();
