# weft.repair() after weft.compare_node(): three members, rows that differ because of writes that
# were not replicated or conflicts that were resolved otherwise.  The newer version wins, or a
# named node; repaired rows have the same version on all members.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use RepairTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes =
  map { new_member($_, conf => "restart_after_crash = on\n") } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int, x text);
CREATE TABLE u (id int PRIMARY KEY, val text UNIQUE);
CREATE TABLE counters (id int PRIMARY KEY, total bigint NOT NULL);
CREATE TABLE log (x text);
ALTER TABLE counters REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, 0, 'first' FROM generate_series(1, 100) i;
INSERT INTO u VALUES (1, 'x'), (5, 'five');
INSERT INTO counters VALUES (1, 0);
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
join_group($c, $a, 'g');
query($_, "SELECT weft.set_delta_columns('counters', '{total}')")
  foreach @nodes;

# Compares one node with another one; returns the number of the comparison.
sub compare
{
	my ($node, $other) = @_;
	my ($ret, $id, $err) = $node->psql(
		'postgres',
		sprintf("CALL weft.compare_node('%s')", $other->name),
		timeout => 300);
	die $err if $ret;
	note($err);
	return $id;
}

# What has become of rows of t: "id result".
sub outcome
{
	my ($node, $id, $table) = @_;
	$table //= 't';
	return query($node,
		"SELECT string_agg(concat_ws(' ', key ->> 'id', coalesce(repair_result, 'pending')), ', ' ORDER BY (key ->> 'id')::int)"
		  . " FROM weft.difference WHERE comparison = $id AND relation = '$table'::regclass"
	);
}

sub reason
{
	my ($node, $id, $key) = @_;
	return query($node,
		"SELECT repair_reason FROM weft.difference WHERE comparison = $id AND relation = 't'::regclass AND key ->> 'id' = '$key'"
	);
}

# Rows with their versions, as conflict detection sees them.
sub versions
{
	my ($node, $condition) = @_;
	return query($node,
		"SELECT id, v, x, weft.member_row_version(tableoid, ctid) FROM t WHERE $condition ORDER BY id"
	);
}

sub all_equal
{
	my ($what) = @_;
	my @found;

	wait_for_group('g', @nodes);
	foreach my $pair ([ $b, $a ], [ $c, $a ])
	{
		my $id = compare(@$pair);
		push @found,
		  query($pair->[0],
			"SELECT relation, key, kind FROM weft.difference WHERE comparison = $id"
		  );
	}
	is(join("\n", @found), "\n", $what);
	return;
}

# Rows that a join has copied have no versions.
query($b, "UPDATE t SET x = 'second'; UPDATE u SET val = val");
wait_for_group('g', @nodes);

# A different node wrote each of these last.
query($a, "UPDATE t SET v = 1, x = 'a' WHERE id IN (1, 2)");
query($b, "UPDATE t SET v = 1, x = 'b' WHERE id IN (5, 15)");
query($c, "UPDATE t SET v = 1, x = 'c' WHERE id IN (6, 8)");
wait_for_group('g', @nodes);
query($c, 'DELETE FROM t WHERE id = 4');

# On node a, an update of another node is lost: a keeps the older version, of node c.
query($c, "UPDATE t SET v = 1, x = 'older' WHERE id IN (11, 12, 13)");
wait_for_group('g', @nodes);
query($a,
	"SELECT weft.alter_node_set_conflict_resolver('', 'update_origin_differs', 'keep_local')"
);
query($b, "UPDATE t SET v = 2, x = 'newer' WHERE id IN (11, 12, 13)");
wait_for_group('g', @nodes);
query($a,
	"SELECT weft.alter_node_set_conflict_resolver('', 'update_origin_differs', 'last_update_wins')"
);
is(query($a, 'SELECT DISTINCT x FROM t WHERE id IN (11, 12, 13)'),
	'older', 'a node has lost an update');

query($b,
	'SET weft.ddl_replication = off; CREATE TABLE fired (id int, op text); CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$BEGIN INSERT INTO fired VALUES (coalesce(new.id, old.id), tg_op); RETURN new; END$$'
);
query($b,
	"SET weft.ddl_replication = off; CREATE TRIGGER r AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION fire(); ALTER TABLE t ENABLE REPLICA TRIGGER r"
);
my $good = join ', ', 1, 2, 5, 6, 15;
my $before = versions($a, "id IN ($good)");
is(versions($b, "id IN ($good)"),
	$before, 'versions are the same on all nodes');

as_other_origin($b, <<'EOS');
UPDATE t SET x = 'wrong' WHERE id IN (1, 5, 6, 8);
DELETE FROM t WHERE id IN (2, 15);
INSERT INTO t VALUES (3 + 1000, 0, 'extra'), (4, 0, 'back');
UPDATE u SET val = 'y' WHERE id = 1;
INSERT INTO u VALUES (2, 'x');
UPDATE counters SET total = 7;
INSERT INTO log VALUES ('extra');
EOS
as_other_origin($a, "UPDATE t SET x = 'wrong on a' WHERE id IN (7, 10)");
as_other_origin($b, "UPDATE t SET x = 'wrong on b' WHERE id = 10");
query($b, 'DELETE FROM fired');

my $id = compare($b, $a);
is( outcome($b, $id),
	'1 pending, 2 pending, 4 pending, 5 pending, 6 pending, 7 pending, 8 pending, 10 pending, 11 pending, 12 pending, 13 pending, 15 pending, 1003 pending',
	'differences');

# dry run
my $rows_before = query($b, 'SELECT xmin, * FROM t ORDER BY id');
my ($ret, undef, $err) =
  $b->psql('postgres', "CALL weft.repair($id, apply => false)");
like($err, qr/comparison $id: nothing was written/, 'dry run');
is(query($b, 'SELECT xmin, * FROM t ORDER BY id'),
	$rows_before, 'it writes nothing');
like(
	reason($b, $id, 1),
	qr/^would be updated: .* by node 1$/,
	'it says what would be updated');
like(reason($b, $id, 2), qr/^would be inserted: .* by node 1$/, 'inserted');
like(reason($b, $id, 4), qr/^would be deleted: .* by node 3$/, 'deleted');
like(
	reason($b, $id, 5),
	qr/^would be updated: .* by node 2$/,
	'a row of this node');
like(
	reason($b, $id, 11),
	qr/^this node has the newer version .* by node 2\): repair the other node$/,
	'and left');

# Meanwhile the row is changed on another node.
query($c, "UPDATE t SET v = 3, x = 'meanwhile' WHERE id = 8");
wait_for_group('g', @nodes);

my $untouched = query($a, 'SELECT xmin, * FROM t ORDER BY id');
my $untouched_c = query($c, 'SELECT xmin, * FROM t ORDER BY id');
like(
	repair($b, $id),
	qr/comparison $id: 6 repaired, 1 vanished, 9 kept, 1 not repaired/,
	'the newer version wins');
is( outcome($b, $id),
	'1 repaired, 2 repaired, 4 repaired, 5 repaired, 6 repaired, 7 kept, 8 vanished, 10 kept, 11 kept, 12 kept, 13 kept, 15 repaired, 1003 kept',
	'each row has an outcome');
like(
	reason($b, $id, 1003),
	qr/^neither node knows when/,
	'a row of an unknown time is left');
like(reason($b, $id, 10), qr/^neither node knows when/, 'on both sides');
is(versions($b, "id IN ($good)"),
	$before, 'repaired rows have the times and origins of the true ones');
is( query($b, 'SELECT id, op FROM fired ORDER BY 1, 2'),
	"1|UPDATE\n2|INSERT\n4|DELETE\n5|UPDATE\n6|UPDATE\n8|UPDATE\n15|INSERT",
	'triggers fire as for replication');
is( query(
		$b,
		"SELECT repair_reason FROM weft.difference WHERE comparison = $id AND relation = 'counters'::regclass"
	),
	'the table has counters (weft.set_delta_columns), which are sums of changes that may be under way',
	'counters are left');
is( query(
		$b,
		"SELECT repair_reason FROM weft.difference WHERE comparison = $id AND relation = 'log'::regclass"
	),
	'rows of a table without a key have no versions',
	'and rows without a key');
is(outcome($b, $id, 'u'), '1 failed, 2 kept', 'a unique value is in use');
wait_for_group('g', @nodes);
is(query($a, 'SELECT xmin, * FROM t ORDER BY id'),
	$untouched, 'nothing is sent to other nodes');
is(query($c, 'SELECT xmin, * FROM t ORDER BY id'),
	$untouched_c, 'nothing is sent to third nodes');

# A named winner.  One row is changed in between, and the winner does not know it yet.
pause_subscription($a, 'weft_g_b_a');
query($b, "UPDATE t SET v = 4, x = 'changed since' WHERE id = 13");
(undef, undef, $err) =
  $b->psql('postgres', "CALL weft.repair($id, apply => true, winner => 'c')");
like($err, qr/node "c" was not compared/,
	'the winner must be one of the two');
like(
	repair($b, $id, "winner => 'b'"),
	qr/comparison $id: 6 repaired, 1 vanished, 10 kept, 0 not repaired/,
	'if this node wins, nothing is written');
like(
	repair($b, $id, "winner => 'a', batch_size => 3"),
	qr/comparison $id: 13 repaired, 1 vanished, 3 kept, 0 not repaired/,
	'if the other node wins, its rows are taken over');
like(
	reason($b, $id, 13),
	qr/^the row was changed here since/,
	'but not if the row was changed here');
is( versions($b, 'id IN (7, 10, 11, 12)'),
	versions($a, 'id IN (7, 10, 11, 12)'),
	'with their versions, known or not');
is(query($b, 'SELECT count(*) FROM t WHERE id = 1003'),
	0, 'also that there is no row');
is(query($b, 'SELECT * FROM u ORDER BY id'),
	"1|x\n5|five", 'and unique values');
query($a, 'ALTER SUBSCRIPTION weft_g_b_a ENABLE');
as_other_origin($b,
	"SET weft.ddl_replication = off; UPDATE counters SET total = 0; ALTER TABLE log REPLICA IDENTITY FULL; DELETE FROM log; ALTER TABLE log REPLICA IDENTITY DEFAULT"
);
wait_for_group('g', @nodes);

# Node c has the right rows: they are repaired on a, and then on b, from a.
$id = compare($a, $c);
like(
	repair($a, $id),
	qr/comparison $id: 4 repaired, 0 vanished, 0 kept, 0 not repaired/,
	'the third node has the newer versions');
$id = compare($b, $a);
like(
	repair($b, $id),
	qr/comparison $id: 4 repaired, 0 vanished, 0 kept, 0 not repaired/,
	'and passes them on');
all_equal('all members are equal');
is(versions($_, 'true'), versions($c, 'true'), 'with equal versions')
  foreach $a, $b;

# Later updates are decided as if the rows had been replicated: an older one that arrives late
# loses, a newer one wins.
as_other_origin($b, "UPDATE t SET x = 'wrong' WHERE id IN (20, 21)");
pause_subscription($b, 'weft_g_c_b');
pause_subscription($a, 'weft_g_c_a');
query($c, "UPDATE t SET x = 'late' WHERE id = 20");
query($a, "UPDATE t SET x = 'last' WHERE id = 20");
query($c, "UPDATE t SET x = 'last' WHERE id = 21");
wait_for_apply($a, $b, 'weft_g_a_b');
as_other_origin($b, "UPDATE t SET x = 'wrong' WHERE id = 20");
$id = plant(
	$b, 'weft_g_a_b',
	[ 't', 'different', '{"id": "20"}' ],
	[ 't', 'different', '{"id": "21"}' ]);
query($b, "UPDATE weft.comparison SET node = 'a' WHERE comparison = $id");
like(repair($b, $id),
	qr/2 repaired/, 'rows are repaired while changes are under way');
query($b, 'ALTER SUBSCRIPTION weft_g_c_b ENABLE');
query($a, 'ALTER SUBSCRIPTION weft_g_c_a ENABLE');
wait_for_group('g', @nodes);
is(query($_, 'SELECT id, x FROM t WHERE id IN (20, 21) ORDER BY id'),
	"20|last\n21|last", 'the last update wins on ' . $_->name)
  foreach @nodes;

# kill -9 in the middle
is(errors_logged($_), '', 'no errors on ' . $_->name) foreach @nodes;
query($a,
	"INSERT INTO t SELECT i, 0, 'many' FROM generate_series(2001, 2060) i");
query($_->[0],
	"DO \$\$BEGIN FOR i IN 1..3 LOOP UPDATE t SET v = i WHERE id BETWEEN $_->[1] + i * 10 AND $_->[1] + i * 10 + 9; COMMIT; END LOOP; END\$\$"
) foreach [ $a, 1991 ], [ $c, 2021 ];
wait_for_group('g', @nodes);
as_other_origin($b,
	"UPDATE t SET x = 'wrong' WHERE id > 2000 AND id % 3 = 0; DELETE FROM t WHERE id > 2000 AND id % 3 = 1"
);
$id = compare($b, $a);

# A session inserts a row that is missing.  Therefore the process waits in the middle of a batch,
# after those with rows that are different.
my $session = open_session($b);
$session->query_safe("BEGIN; INSERT INTO t VALUES (2059, 0, 'session')");
my $repair = start_repair($b, $id,
	"batch_size => 5, lock_timeout => '5 min', max_pause => '5 min'");
my $pid = poll_for($b,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft repair' AND wait_event_type = 'Lock'"
);
query($b, 'CHECKPOINT');
kill 9, $pid;
finish_repair($repair);
poll($b, 'SELECT true');
$session->quit;
wait_for_group('g', @nodes);
my %offset = map { $_->name => -s $_->logfile } @nodes;
my $true = versions($a, 'id > 2000');
my $done = query($b,
	"SELECT string_agg(key ->> 'id', ', ') FROM weft.difference WHERE comparison = $id AND repair_result = 'repaired'"
);
my $count = () = $done =~ /\d+/g;
cmp_ok($count, '>=', 20, 'before a crash, rows are repaired');
cmp_ok($count, '<', 40, 'but not all');
is( versions($b, "id IN ($done)"),
	versions($a, "id IN ($done)"),
	'after a crash, what is recorded as repaired is');
is( query(
		$b,
		"SELECT count(*) FROM t WHERE id > 2000 AND (id % 3 <> 0 OR x = 'many')"
	),
	20 + $count,
	'and nothing else');
like(
	repair($b, $id),
	qr/40 repaired, 0 vanished, 0 kept, 0 not/,
	'the rest is repaired');
is(versions($b, 'id > 2000'), $true, 'with the right versions');

# Damage and repairs under load, which changes the same rows.  Each node remembers what its
# sessions have written to rows that no session inserts or deletes: the last of it must win.
my $numbers = "\\set a random(1, 90)\n\\set q random(1, 30)\n";
my @others = (
	"$numbers DELETE FROM t WHERE id = :q;\n" => 2,
	"$numbers INSERT INTO t VALUES (:q, 0, 'new') ON CONFLICT DO NOTHING;\n"
	  => 4,
	"$numbers INSERT INTO u VALUES (:a, 'v' || :q) ON CONFLICT DO NOTHING;\n"
	  => 4,
	"$numbers DELETE FROM u WHERE id = :a;\n" => 2);

sub update_script
{
	my ($name) = @_;
	return
	  "$numbers \\set r random(1, 1000000000)\nWITH u AS (UPDATE t SET v = v + 1, x = '$name' || :r WHERE id = :a RETURNING id, x) INSERT INTO written SELECT * FROM u;\n";
}

# What the last write to each of these rows should have left, by the rules of conflicts.
sub last_written
{
	my %last;
	foreach my $number (0 .. $#nodes)
	{
		foreach (
			split /\n/,
			query(
				$nodes[$number],
				'SELECT id, x, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM written WHERE id > 40'
			))
		{
			my ($id, $x, $time) = split /\|/;
			my $known = $last{$id};
			$last{$id} = [ $time, $number, $x ]
			  if !$known
			  || $time > $known->[0]
			  || $time == $known->[0] && $number > $known->[1];
		}
	}
	return \%last;
}

query($_, 'CREATE UNLOGGED TABLE written (id int, x text)') foreach @nodes;
my @load = map {
	start_pgbench($_, { update_script($_->name) => 10, @others },
		'-c', 2, '-T', 3600, '--rate=60', '--max-tries=0')
} @nodes;
foreach my $i (0 .. 2)
{
	my ($node, $other) = @nodes[ $i, ($i + 1) % 3 ];
	as_other_origin($node,
		"UPDATE t SET x = 'damage' WHERE id <= 100 AND id % 7 = $i; DELETE FROM t WHERE id <= 100 AND id % 7 = $i + 3; INSERT INTO t SELECT i, 0, 'damage' FROM generate_series(1, 40) i ON CONFLICT DO NOTHING"
	);
	$id = compare($node, $other);

	# Meanwhile a session changes rows that differ, and the other node does not know of it yet.
	my $back = subscription_name('g', $node, $other);
	my $changed = 'id > 90 AND id % 7 = ' . $i;
	pause_subscription($other, $back);
	query($node,
		"WITH u AS (UPDATE t SET v = v + 1, x = 'session' WHERE $changed RETURNING id, x) INSERT INTO written SELECT * FROM u"
	);
	my $message = repair($node, $id);
	like($message, qr/NOTICE:  comparison $id: /, 'repaired under load');
	note($message);
	is(query($node, "SELECT DISTINCT x FROM t WHERE $changed"),
		'session', 'what is newer is not overwritten');
	query($other, "ALTER SUBSCRIPTION $back ENABLE");
}
end_load($_) foreach @load;
wait_for_group('g', @nodes);
foreach my $pair ([ $a, $b ], [ $b, $c ], [ $c, $a ])
{
	$id = compare(@$pair);
	note(repair($pair->[0], $id));
}

# Only rows whose true version nobody knows are left: those with which sessions or damage
# have filled gaps.
foreach my $pair ([ $b, $a ], [ $c, $a ])
{
	my ($node, $other) = @$pair;
	$id = compare($node, $other);
	is( query(
			$node,
			"SELECT string_agg(key::text, ' ') FROM weft.difference WHERE comparison = $id AND relation = 't'::regclass AND (key ->> 'id')::int > 40"
		),
		'',
		'what has a known version is repaired on ' . $node->name);
	repair($node, $id, "winner => 'a'")
	  if query($node,
		"SELECT count(*) FROM weft.difference WHERE comparison = $id");
}
my $last = last_written();
my %found =
  map { split /\|/, $_, 2 } split /\n/, query($a, 'SELECT id, x FROM t');
cmp_ok(scalar keys %$last, '>', 0, 'the load has written');
is( join(', ',
		map  { "$_: $last->{$_}[2], not " . ($found{$_} // 'missing') }
		grep { ($found{$_} // '') ne $last->{$_}[2] }
		sort keys %$last),
	'',
	'the last write has won');
same_on_all(\@nodes, [qw(t u)], 'after the load');

# Later updates on all nodes at once converge.
query($_, "UPDATE t SET v = v + 1, x = '@{[ $_->name ]}' WHERE id % 2 = 0")
  foreach @nodes;
query($b, 'DELETE FROM t WHERE id % 5 = 0');
query($c, 'UPDATE t SET v = 9 WHERE id % 5 = 0');
wait_for_group('g', @nodes);
same_on_all(\@nodes, [qw(t u)], 'later updates');

is(errors_logged($_, $offset{ $_->name }),
	'', 'no errors on ' . $_->name . ' after the crash')
  foreach @nodes;

done_testing();
