# Local users and writers block each other.
#
# A writer that has applied its transaction waits for all earlier ones while it holds
# its locks.  If an earlier transaction needs these locks, directly or because it waits
# for a local user who needs them, only the writer can know of the cycle.  It must
# give way at once, and nobody may get an error.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

# Weft takes a second or two at most; the machine may be busy with other things, see
# in_time().
my $limit = 20;

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'deadlock_timeout = 1s');
my @tables = qw(a b codes bulk);

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, v int);
CREATE TABLE codes (id int PRIMARY KEY, code int UNIQUE);
CREATE TABLE bulk (id int PRIMARY KEY, t text);
EOS
query($pub, <<EOS);
INSERT INTO a SELECT i, 0 FROM generate_series(1, 10) i;
INSERT INTO b SELECT i, 0 FROM generate_series(1, 10) i;
INSERT INTO codes SELECT i, i FROM generate_series(1, 10) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
subscribe($pub, $sub, 'sub', 'pub');
warm_up();

my $local = open_session($sub);
my $serial = 0;

# The first transaction that changes a table waits for all before it.  Therefore, change
# each table once.
sub warm_up
{
	wait_for_apply($pub, $sub, 'sub');
	query($pub, "UPDATE $_ SET id = id WHERE id = 10") foreach @tables;
	query($pub, "INSERT INTO bulk VALUES (0)");
	query($pub, "DELETE FROM bulk");
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# Waits until a session other than $local has locked the row.  The native worker never
# runs ahead.
sub row_is_locked
{
	my ($table, $id) = @_;
	return unless weft();
	poll($sub,
		"SELECT NOT EXISTS (SELECT FROM $table WHERE id = $id FOR UPDATE SKIP LOCKED)"
	);
	return;
}

# Wait until an apply process waits for a lock of the session $local.
sub apply_is_blocked
{
	my $pid = $local->query_safe('SELECT pg_backend_pid()');
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker') AND $pid = ANY (pg_blocking_pids(pid)))"
	);
	return;
}

# How long a change takes if nothing is in its way.
sub usual_time
{
	my $start = time;

	query($pub, 'UPDATE a SET v = v WHERE id = 10');
	wait_for_apply($pub, $sub, 'sub');
	return time - $start;
}

# One test: this many seconds are within the limit.  If the machine is so slow that it
# takes long even if nothing is in the way, they must not be out of proportion.
sub in_time
{
	my ($passed, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $allowed = $params{limit} // $limit;

	$allowed = max($allowed, 20 * ($params{usual} // usual_time()))
	  if $passed >= $allowed;
	cmp_ok($passed, '<', $allowed, $what);
	return;
}

# The local user's next command must succeed in time, and so must everything
# else after the local commit.
sub goes_through
{
	my ($sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $start = time;
	$local->query_safe($sql);
	my $local_user = time - $start;

	$start = time;
	$local->query_safe('COMMIT');
	wait_for_apply($pub, $sub, 'sub');
	my $writers = time - $start;

	in_time($local_user, "$what: the local user continues");
	in_time($writers, "$what: then the writers continue");
	same_tables($pub, $sub, \@tables, "$what: equal");
	return;
}

my $log_start = -s $sub->logfile;

# Rows.
$serial++;
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
query($pub, "UPDATE a SET v = $serial WHERE id = 1");
query($pub, "UPDATE b SET v = $serial WHERE id = 2");
apply_is_blocked();
row_is_locked('b', 2);
goes_through('UPDATE b SET v = -1 WHERE id = 2', 'rows');

# The same with more writers in between, all of which the local user waits for.
$serial++;
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
query($pub, "UPDATE a SET v = $serial WHERE id = 1");
query($pub, "UPDATE b SET v = $serial WHERE id = $_") foreach 2 .. 4;
apply_is_blocked();
row_is_locked('b', $_) foreach 2 .. 4;
goes_through(
	'UPDATE b SET v = -1 WHERE id = 4; UPDATE b SET v = -1 WHERE id = 3; UPDATE b SET v = -1 WHERE id = 2',
	'rows of three writers');

# Tables.
foreach my $sql (
	'LOCK TABLE b IN ACCESS EXCLUSIVE MODE',
	"ALTER TABLE b ADD COLUMN extra int DEFAULT 5",
	'ALTER TABLE b DROP COLUMN extra',
	'CREATE INDEX ON b (v)',
	'LOCK TABLE b IN SHARE ROW EXCLUSIVE MODE')
{
	$serial++;
	$local->query_safe('BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE');
	query($pub, "UPDATE a SET v = $serial WHERE id = 1");
	query($pub, "UPDATE b SET v = $serial WHERE id = 2");
	apply_is_blocked();
	row_is_locked('b', 2);
	goes_through($sql, $sql) unless $sql =~ /ADD COLUMN/;

	# the publisher's table lacks the column, compare only when it is gone
	if ($sql =~ /ADD COLUMN/)
	{
		my $start = time;
		$local->query_safe("$sql; COMMIT");
		wait_for_apply($pub, $sub, 'sub');
		in_time(time - $start, $sql);
	}
}

# A reader blocks a session that waits for a table lock, so the writer's next lock would
# queue behind that session.
{
	my $reader = open_session($sub);

	$serial++;
	$reader->query_safe('BEGIN; SELECT count(*) FROM b');
	$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
	query($pub, "UPDATE a SET v = $serial WHERE id = 1");
	query($pub, "UPDATE b SET v = $serial WHERE id = 2");
	apply_is_blocked();
	row_is_locked('b', 2);

	my $start = time;
	my $pid = $local->query_safe('SELECT pg_backend_pid()');
	$local->query_until(qr/start/,
		"\\echo start\nLOCK TABLE b IN ACCESS EXCLUSIVE MODE;\nCOMMIT;\n");
	poll($sub,
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"
	);
	$reader->query_safe('COMMIT');
	$reader->quit;
	$local->query_safe('SELECT 1');
	wait_for_apply($pub, $sub, 'sub');
	in_time(time - $start, 'a table lock behind a reader');
	same_tables($pub, $sub, \@tables, 'a table lock behind a reader: equal');
}

# The writer that must give way waits for a row of an earlier transaction, not for its
# turn.
$serial++;
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
query($pub, "UPDATE a SET v = $serial WHERE id = 1");
query($pub,
	"BEGIN; UPDATE b SET v = $serial WHERE id = 2; UPDATE a SET v = v + 1 WHERE id = 1; COMMIT"
);
apply_is_blocked();
row_is_locked('b', 2);
goes_through(
	'UPDATE b SET v = -1 WHERE id = 2',
	'a writer that waits for a dependency');

# The writer that must give way waits for a lock of the same local user.  Natively its
# transaction would not have begun, so this is not a true deadlock.
$serial++;
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id IN (1, 3)');
query($pub, "UPDATE a SET v = $serial WHERE id = 1");
query($pub,
	"BEGIN; UPDATE b SET v = $serial WHERE id = 2; UPDATE a SET v = $serial WHERE id = 3; COMMIT"
);
apply_is_blocked();
goes_through(
	'UPDATE b SET v = -1 WHERE id = 2',
	'a writer that waits for the local user');

# The same through a second local user, whose transaction does not end.
{
	my $other = open_session($sub);

	$serial++;
	$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
	$other->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 3');
	query($pub, "UPDATE a SET v = $serial WHERE id = 1");
	query($pub,
		"BEGIN; UPDATE b SET v = $serial WHERE id = 2; UPDATE a SET v = $serial WHERE id = 3; COMMIT"
	);
	apply_is_blocked();

	my $start = time;
	$local->query_safe('UPDATE b SET v = -1 WHERE id = 2');
	my $passed = time - $start;
	$local->query_safe('COMMIT');
	$other->query_safe('COMMIT');
	$other->quit;
	wait_for_apply($pub, $sub, 'sub');
	in_time($passed,
		'a writer that waits for another local user: the local user continues'
	);
	same_tables($pub, $sub, \@tables,
		'a writer that waits for another local user: equal');
}

# An earlier transaction needs a unique value that a later one has already stored.
# The deadlock detector does not see the cycle: the earlier one waits for the lock of the
# later one, the later one for its turn.
$local->query_safe('BEGIN; UPDATE codes SET code = code WHERE id = 1');
query($pub, 'UPDATE codes SET code = 100 WHERE id = 1');
query($pub, 'UPDATE codes SET code = NULL WHERE id = 1');
query($pub, 'UPDATE codes SET code = 100 WHERE id = 2');
apply_is_blocked();
goes_through('SELECT 1', 'a unique value moves between rows');

# The same by insert and delete, with several transactions that take the value.
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
$serial++;
query($pub, "UPDATE a SET v = $serial WHERE id = 1");
foreach my $id (11 .. 14)
{
	query($pub, "INSERT INTO codes VALUES ($id, 200)");
	query($pub, "DELETE FROM codes WHERE id = $id");
}
apply_is_blocked();
goes_through('SELECT 1', 'a unique value that is removed and taken again');

# A writer whose transaction is larger than the ring cannot read its end before the
# earlier transactions have ended.
if (weft())
{
	disable_subscription($sub, 'sub');
	set_conf($sub, 'weft.ring_size' => '64kB');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	warm_up();

	foreach my $case ([ 'SELECT 1', 'becomes the oldest' ],
		[ 'UPDATE b SET v = -1 WHERE id = 2', 'is in the way' ])
	{
		my ($sql, $what) = @$case;

		$serial++;
		$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
		query($pub, "UPDATE a SET v = $serial WHERE id = 1");
		query($pub,
			"BEGIN; UPDATE b SET v = $serial WHERE id = 2; INSERT INTO bulk SELECT $serial * 1000 + i, repeat('x', 1000) FROM generate_series(1, 500) i; COMMIT"
		);
		apply_is_blocked();
		row_is_locked('b', 2);
		poll($sub,
			'SELECT ring_used > ring_size / 2 FROM weft.stat_subscription');
		goes_through($sql,
			"a writer that waits for the rest of its transaction and $what");
	}
}

is(errors_logged($sub, $log_start), '', 'nobody got an error');
if (weft())
{
	cmp_ok(query($sub, 'SELECT misspeculations FROM weft.stat_subscription'),
		'>', 0, 'writers have given way');
}

# The leader ends while a writer waits for a local user.  The next one must not
# wait for the old writer, nor apply anything twice.
{
	$serial++;
	$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
	query($pub, "UPDATE a SET v = $serial WHERE id = 1");
	query($pub, "INSERT INTO bulk VALUES (-$serial)");
	apply_is_blocked();
	my $leader = leader_pid($sub, 'sub');
	my @writers = writer_pids($sub);
	query($sub, "SELECT pg_terminate_backend($leader)");
	poll($sub, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid IN ($_)")
	  foreach join ', ', $leader, @writers;
	apply_is_blocked();
	goes_through('SELECT 1', 'the leader ends under load');
}

# A true deadlock, between the oldest transaction and a local user: the server detects
# it and chooses a victim, which may be the local user.
$local->quit;
$local = open_session($sub, on_error_stop => 0);
$serial++;
$local->query_safe('BEGIN; UPDATE b SET v = v WHERE id = 2');
query($pub,
	"BEGIN; UPDATE a SET v = $serial WHERE id = 1; UPDATE b SET v = $serial WHERE id = 2; COMMIT"
);
apply_is_blocked();
my $start = time;
$local->query('UPDATE a SET v = v WHERE id = 1');
$local->query('COMMIT');
wait_for_apply($pub, $sub, 'sub');
in_time(time - $start, 'a true deadlock ends', limit => 2 * $limit);
same_tables($pub, $sub, \@tables, 'a true deadlock: equal');
$local->quit;

# Local users and the load at random: nobody is blocked for long.
query($sub, 'CREATE TABLE referring (id int REFERENCES a)');
my %local_scripts = (
	"\\set i random(1, 10)\nBEGIN;\nINSERT INTO referring VALUES (:i);\nSELECT FROM b WHERE id = :i FOR SHARE;\nCOMMIT;\n"
	  => 10,
	"\\set i random(1, 10)\nBEGIN;\nUPDATE a SET v = v WHERE id = :i;\nUPDATE b SET v = v WHERE id = 11 - :i;\nCOMMIT;\n"
	  => 10,
	"BEGIN;\nLOCK TABLE a IN SHARE ROW EXCLUSIVE MODE;\nLOCK TABLE b IN ACCESS EXCLUSIVE MODE;\nCOMMIT;\n"
	  => 1);
my %remote_scripts = (
	"\\set i random(1, 10)\nUPDATE a SET v = v + 1 WHERE id = :i;\n" => 1,
	"\\set i random(1, 10)\nUPDATE b SET v = v + 1 WHERE id = :i;\n" => 1,
	"\\set i random(1, 10)\n\\set j random(1, 1000)\nUPDATE codes SET code = NULL WHERE code = :j;\nUPDATE codes SET code = :j WHERE id = :i AND NOT EXISTS (SELECT FROM codes WHERE code = :j);\n"
	  => 1);
my $remote = start_pgbench(
	$pub, \%remote_scripts,
	'-c' => 1,
	'-t' => 2000,
	'--random-seed=5');
my $locals = start_pgbench(
	$sub, \%local_scripts,
	'-c' => 4,
	'-T' => 5,
	'--max-tries=0',
	'--random-seed=5');
finish($remote);
finish($locals);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'local users under load: equal');

# Dropping the subscription does not wait for a local user either.
$local = open_session($sub);
my $usual = usual_time();
$local->query_safe('BEGIN; UPDATE a SET v = v WHERE id = 1');
query($pub, 'UPDATE a SET v = 0 WHERE id = 1');
query($pub, 'UPDATE b SET v = 0 WHERE id = 1');
apply_is_blocked();
$start = time;
query($sub, 'DROP SUBSCRIPTION sub');
in_time(time - $start, 'DROP SUBSCRIPTION during a wait', usual => $usual);
poll($sub,
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker')"
);
$local->query_safe('COMMIT');
$local->quit;

$pub->stop;
$sub->stop;
done_testing();
