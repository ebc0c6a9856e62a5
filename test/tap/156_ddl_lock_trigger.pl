# A row that comes before a schema change has a trigger which writes to the locked table: the schema change waits for
# the row, the row for the gate worker, and that for the schema change.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOQ');
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE audit (id int PRIMARY KEY, n int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN INSERT INTO public.audit VALUES (NEW.id, 0); RETURN NULL; END';
EOQ
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;
wait_for_group('g', @nodes);
query($b, <<'EOQ');
SET weft.ddl_replication = off;
CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE t ENABLE REPLICA TRIGGER note;
EOQ

# Waits until this number of processes of b waits for the table.
sub poll_waiting
{
	my ($count) = @_;

	poll($b,
		"SELECT count(*) = $count FROM pg_locks WHERE relation = 'audit'::regclass AND NOT granted"
	);
	return;
}

# The writer of b has written its row.  A session there that wants to write to the table goes on behind the schema
# change, or has to begin again.
sub check_rows
{
	my ($writer, $id, $default, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @nodes);
	is(query($b, "SELECT n FROM audit WHERE id = $id"),
		'0', "$what: the trigger has written its row");
	finish($writer, may_fail => 1);
	unlike(
		$writer->{output},
		qr/ERROR(?!.*before a schema change of the node group)/,
		"$what: a session waits, or begins again");
	query($b, "INSERT INTO audit (id) VALUES (100 + $id)");
	is(query($b, "SELECT n FROM audit WHERE id = 100 + $id"),
		$default, "$what: the table has its new definition");
	return;
}

# The requester commits the row while its schema change is in progress, so it comes before that.
my $change = open_session($a);
$change->query_safe('BEGIN; ALTER TABLE audit ALTER n SET DEFAULT 7');
my $writer = start_query($b, 'INSERT INTO audit VALUES (51, 0)');
query($a, 'INSERT INTO t VALUES (1)');
poll_waiting(2);
$change->query_safe('COMMIT');
check_rows($writer, 1, 7, 'a row of the requester');

# Another member commits it, and the schema change has seen it.  (Nobody waits for a member's first transaction.)
query($c, 'INSERT INTO t VALUES (3)');
wait_for_group('g', @nodes);
$change->query_safe('BEGIN; ALTER TABLE audit ALTER n SET DEFAULT 8');
$writer = start_query($b, 'INSERT INTO audit VALUES (52, 0)');
query($c, 'INSERT INTO t VALUES (2)');
poll($a, 'SELECT count(*) = 1 FROM t WHERE id = 2');
poll_waiting(2);
$change->query_safe('ALTER TABLE audit ALTER n SET DEFAULT 9; COMMIT');
check_rows($writer, 2, 9, 'a row of another member');

# The same while a schema change of one statement is executed: it has the locks of the group, and waits for a reader.
my $reader = open_session($a);
$reader->query_safe('BEGIN; SELECT FROM audit');
my $statement = start_query($a, 'ALTER TABLE audit ALTER n SET DEFAULT 10');
poll($a,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'audit'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted"
);
$writer = start_query($b, 'INSERT INTO audit VALUES (53, 0)');
query($c, 'INSERT INTO t VALUES (4)');
poll($a, 'SELECT count(*) = 1 FROM t WHERE id = 4');
poll_waiting(2);
$reader->query_safe('COMMIT');
finish($statement);
check_rows($writer, 4, 10, 'a row of another member, behind one statement');
$_->quit foreach $reader, $change;

done_testing();
