# Three members change the same rows.  A writer of one of them is held between reading a
# row and acting on it, and another writer, or a session, acts in between.  All members end
# with the same rows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my @nodes = new_members(3);
my ($n1, $n2, $n3) = @nodes;

create_tables(
	\@nodes,
	'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE taken (id int PRIMARY KEY, u int UNIQUE)',
	't',
	'taken');
connect_members(\@nodes);
query($n1, <<'EOS');
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
INSERT INTO taken VALUES (1, 101), (2, 102);
EOS
quiet(\@nodes);

sub go_on
{
	my ($node, $name) = @_;
	query($node, "ALTER SUBSCRIPTION $name ENABLE");
	return;
}

sub all_same
{
	my ($table, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	quiet(\@nodes);
	is(rows($_, $table), $expected, "$what: " . $_->name) foreach @nodes;
	return;
}

# A newer row with another key had the value, and was deleted itself: an older row that has
# the value now loses it.  On n3, the older row was found to be without conflict and is about
# to be stored, when the newer one arrives.  The newer one has lost, and leaves only its claim.
# The claim is committed before the older row is stored, or after.
foreach my $claim ('committed', 'uncommitted')
{
	my $id = $claim eq 'committed' ? 1 : 2;
	my $other = $id + 10;

	pause_subscription($n2, 'from_n1');
	pause_subscription($n3, 'from_n2');
	attach_point($n3, 'weft-conflict-store');
	query($n1, "INSERT INTO taken VALUES ($other, 7)");
	my ($older) = held_at($n3, 'weft-conflict-store');
	detach_point($n3, 'weft-conflict-store');
	query($n2, "UPDATE taken SET u = 7 WHERE id = $id");
	query($n3, "DELETE FROM taken WHERE id = $id");

	attach_point($n3, 'weft-conflict-lost');
	go_on($n3, 'from_n2');
	held_at($n3, 'weft-conflict-lost');
	if ($claim eq 'committed')
	{
		release_point($n3, 'weft-conflict-lost');
		wait_for_apply($n2, $n3, 'from_n2');
		release($n3, $older);
	}
	else
	{
		release($n3, $older);
		writer_waits_for_lock($n3);
		release_point($n3, 'weft-conflict-lost');
	}
	go_on($n2, 'from_n1');
	all_same(
		'taken',
		$id == 1 ? '(2,102)' : '',
		"the claim is $claim: the older row has lost");
}

# A row is missing when its delete arrives at n3 and waits for its turn.  When its turn has
# come, but before it is decided, the row arrives from the member that has created it.
{
	pause_subscription($n3, 'from_n2');
	query($n2, 'INSERT INTO t VALUES (20, 0)');
	wait_for_apply($n2, $n1, 'from_n2');

	# the first change of a table waits for everything before it
	query($n1, 'UPDATE t SET v = 1 WHERE id = 10');
	wait_for_apply($n1, $n3, 'from_n1');

	my $local = open_session($n3);
	$local->query_safe('BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE');
	query($n1, 'UPDATE t SET v = 1 WHERE id = 1');
	writer_waits_for_lock($n3);
	query($n1, 'DELETE FROM t WHERE id = 20');
	waits_for($n3, 'WeftWriterCommitOrder');
	attach_point($n3, 'weft-conflict-turn');
	$local->query_safe('COMMIT');
	$local->quit;
	held_at($n3, 'weft-conflict-turn');
	go_on($n3, 'from_n2');
	poll($n3, 'SELECT count(*) = 1 FROM t WHERE id = 20');
	release_point($n3, 'weft-conflict-turn');
	all_same('t WHERE id = 20', '', 'a row that arrives after its delete');
	is( history($n3, 'conflict_type, resolution', "relation = 'public.t'"),
		'delete_origin_differs|apply_remote',
		'the delete has found it');
}

# A row that is older than its delete arrives at n3 from one member, and the delete from
# another one.  Neither finds the other before it writes; what writes second does.
foreach my $id (21, 22)
{
	my ($row, $delete);

	pause_subscription($n3, "from_n$_") foreach 1, 2;
	query($n1, "INSERT INTO t VALUES ($id, 0)");
	wait_for_apply($n1, $n2, 'from_n1');
	query($n2, "DELETE FROM t WHERE id = $id");
	attach_point($n3, 'weft-conflict-store');
	attach_point($n3, 'weft-conflict-missing');
	go_on($n3, 'from_n1');
	($row) = held_at($n3, 'weft-conflict-store');
	go_on($n3, 'from_n2');
	($delete) = held_at($n3, 'weft-conflict-missing');
	detach_point($n3, "weft-conflict-$_") foreach 'store', 'missing';

	if ($id == 21)
	{
		release($n3, $delete);
		wait_for_apply($n2, $n3, 'from_n2');
		release($n3, $row);
	}
	else
	{
		release($n3, $row);
		wait_for_apply($n1, $n3, 'from_n1');
		release($n3, $delete);
	}
	all_same("t WHERE id = $id",
		'', "row $id and its delete do not miss each other");
}

# A session has deleted a row, and commits while an older change of the row waits for it:
# that change finds the tombstone.
{
	my $local = open_session($n3);

	$local->query_safe('BEGIN; DELETE FROM t WHERE id = 5');
	query($n1, 'UPDATE t SET v = 1 WHERE id = 5');
	writer_waits_for_lock($n3);
	$local->query_safe('COMMIT');
	$local->quit;
	all_same('t WHERE id = 5', '', 'a newer delete');
}

# The same, but another writer has deleted the row, left a tombstone, and is about to
# commit.
{
	pause_subscription($n3, 'from_n1');
	pause_subscription($n2, 'from_n1');
	query($n1, 'UPDATE t SET v = 1 WHERE id = 6');
	attach_point($n3, 'weft-writer-commits');
	query($n2, 'DELETE FROM t WHERE id = 6');
	my ($writer) = held_at($n3, 'weft-writer-commits');
	go_on($_, 'from_n1') foreach $n2, $n3;
	writer_waits_for_lock($n3);
	release_point($n3, 'weft-writer-commits');
	all_same('t WHERE id = 6', '', 'a newer delete of another member');
}

is(errors_logged($_), '', $_->name . ' has logged no error') foreach @nodes;
$_->stop foreach @nodes;
done_testing();
