# Rows that a member has written before it was copied count as that member's on the node that the copy becomes:
# changes that were on their way are decided there as on all other members, whoever wrote last, and
# whoever deleted; and changes by the same member are no conflicts.  The same for a copy of the copy.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, name text UNIQUE, v text);
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
ALTER TABLE account REPLICA IDENTITY FULL;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
query($_, "SELECT weft.set_delta_columns('account', '{balance}')")
  foreach ($a, $b);
query($a, <<'EOS');
INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g;
INSERT INTO u SELECT g, 'name ' || g, 'a' FROM generate_series(1, 100) g;
INSERT INTO account SELECT g, 100 FROM generate_series(1, 100) g;
EOS
wait_for_group('g', $a, $b);
query($b, <<'EOS');
UPDATE t SET v = 'b' WHERE id > 50;
UPDATE account SET balance = balance + 1 WHERE id > 50;
EOS
wait_for_group('g', $a, $b);

# What a node has recorded about changes of another one.
sub conflicts
{
	my ($to, $from) = @_;
	return query($to, sprintf <<'EOS', subscription_name('g', $from, $to));
SELECT relation, conflict_type, resolution, key, local_node, local_commit_time, remote_node, remote_commit_time
FROM weft.conflict_history WHERE subname = '%s' AND recorded_at > (SELECT t FROM weft_test_start)
ORDER BY remote_commit_time, relation, key::text, conflict_type
EOS
}

# When the rows were written, on the nodes where that was.
sub row_times
{
	my ($node) = @_;
	return query($node, <<'EOS');
SELECT 't', id, weft.row_commit_timestamp(tableoid, ctid) FROM t
UNION ALL SELECT 'u', id, weft.row_commit_timestamp(tableoid, ctid) FROM u ORDER BY 1, 2
EOS
}

# "earlier" makes changes that reach "source" only after it was copied, and lose or win against changes that
# "source" makes later or has made before.
sub copy_during_conflicts
{
	my ($name, $source, $earlier, $first, @members) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	query($source,
		"CREATE TABLE IF NOT EXISTS weft_test_start (t timestamptz PRIMARY KEY)"
	);
	wait_for_group('g', @members);
	query($source,
		sprintf "SELECT weft.prepare_join_from_backup('%s', \$\$%s\$\$)",
		$name, dsn($copy));
	query($source,
		"DELETE FROM weft_test_start; INSERT INTO weft_test_start VALUES (clock_timestamp())"
	);
	pause_subscription($source, subscription_name('g', $earlier, $source));
	my ($r1, $r2, $r3, $r4, $r5, $r6) = map { $first + $_ } 0 .. 5;

	query($earlier, <<EOS);
UPDATE t SET v = 'earlier' WHERE id IN ($r1, $r2, 51);
DELETE FROM t WHERE id = $r3;
UPDATE t SET v = 'earlier' WHERE id = $r4;
INSERT INTO t VALUES (1000 + $first, 'earlier');
DELETE FROM t WHERE id = $r6;
UPDATE u SET name = 'taken $first' WHERE id = $r1;
UPDATE u SET v = 'earlier' WHERE id = $r2;
UPDATE account SET balance = balance + 10 WHERE id IN ($r1, 51);
DELETE FROM account WHERE id = $r2;
EOS
	query($source, <<EOS);
UPDATE t SET v = 'later' WHERE id = $r1;
UPDATE t SET v = 'later' WHERE id = $r3;
DELETE FROM t WHERE id = $r4;
INSERT INTO t VALUES (1000 + $first, 'later');
DELETE FROM t WHERE id = $r6;
UPDATE u SET name = 'taken $first' WHERE id = $r3;
UPDATE account SET balance = balance + 100 WHERE id IN ($r1, $r2, 51);
EOS
	$source->backup("of_$name");
	$copy->init_from_backup($source, "of_$name", has_streaming => 1);
	$copy->start;
	query($source, "UPDATE t SET v = 'last' WHERE id = $r5");
	$source->wait_for_catchup($copy, 'replay');
	$copy->promote;
	query(
		$copy,
		sprintf
		  "SELECT weft.join_node_group(\$\$%s\$\$, from_backup := true)",
		dsn($source));

	# After the copy, in either order on the two.
	query(
		$source,
		sprintf 'ALTER SUBSCRIPTION %s ENABLE',
		subscription_name('g', $earlier, $source));
	wait_for_join($copy);
	wait_for_group('g', @members, $copy);
	same_on_all([ @members, $copy ],
		[qw(t u account)], "$name has what the others have");
	is(row_times($copy), row_times($source),
		"the rows have the same commit times");
	is( query(
			$copy,
			sprintf
			  "SELECT count(*) FROM weft.tombstone k JOIN weft.node_entry n USING (node_id) WHERE n.node_name = '%s' AND k.commit_time IS NOT NULL AND k.relation = 't'::regclass",
			$source->name) > 0,
		1,
		"deletes by sessions of the copied node are remembered as its own");
	isnt(conflicts($source, $earlier), '', "there were conflicts");
	is( conflicts($copy, $earlier),
		conflicts($source, $earlier),
		"$name decides as the node that it was copied from");

	# The copied node goes on with its own rows.
	query($source,
		"UPDATE t SET v = 'own' WHERE id = $r1; UPDATE account SET balance = balance + 1 WHERE id = $r1; DELETE FROM t WHERE id = $r3"
	);
	wait_for_group('g', @members, $copy);
	is(conflicts($copy, $source),
		'', 'no change of the copied node is a conflict with its own rows');
	same_on_all([ @members, $copy ], [qw(t u account)], "$name follows it");

	# Everybody changes everything.  A session may be chosen to end a deadlock with a writer.
	query($_, sprintf <<'EOS', $_->name) foreach ($copy, @members);
DO $$
BEGIN
	LOOP
		BEGIN
			UPDATE t SET v = '%1$s';
			UPDATE account SET balance = balance + 1;
			UPDATE u SET v = '%1$s';
			EXIT;
		EXCEPTION WHEN deadlock_detected THEN
		END;
	END LOOP;
END $$
EOS
	wait_for_group('g', @members, $copy);
	same_on_all([ @members, $copy ], [qw(t u account)],
		"all change all rows");
	return $copy;
}

my $c = copy_during_conflicts('c', $a, $b, 1, $a, $b);
query($c, "INSERT INTO t SELECT g, 'c' FROM generate_series(201, 230) g");
wait_for_group('g', $a, $b, $c);
my $d = copy_during_conflicts('d', $c, $b, 201 - 190, $a, $b, $c);
is(query($d, 'SELECT count(*) FROM weft.past_origin WHERE origin = 0'),
	2, 'rows of two former nodes are in the copy of the copy');

# A node joins from the copy as any other, and gets recent rows with the right times.
my $e = new_member('e');
pause_subscription($d, 'weft_g_b_d');
query($b, "UPDATE t SET v = 'earlier' WHERE id IN (30, 31)");
query($d, "UPDATE t SET v = 'later' WHERE id = 30");
query($d, 'ALTER SUBSCRIPTION weft_g_b_d ENABLE');
join_group($e, $d, 'g');
wait_for_group('g', $a, $b, $c, $d, $e);
same_on_all(
	[ $a, $b, $c, $d, $e ],
	[qw(t u account)],
	'another node has joined');

# Schema changes go on.
query($d, 'ALTER TABLE t ADD COLUMN n int');
query($c, 'CREATE TABLE later (id int PRIMARY KEY)');
wait_for_group('g', $a, $b, $c, $d, $e);
query($a, 'ALTER TABLE t ALTER COLUMN n TYPE bigint');
query($c,
	"INSERT INTO later VALUES (1); INSERT INTO t VALUES (5000, 'c', 5000000000)"
);
wait_for_group('g', $a, $b, $c, $d, $e);
same_on_all([ $a, $b, $c, $d, $e ],
	[qw(t later)], 'schema changes are replicated');

$_->stop foreach ($a, $b, $c, $d, $e);
done_testing();
