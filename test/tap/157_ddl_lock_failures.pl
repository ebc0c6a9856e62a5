# Schema changes of a node group that lock their tables: what happens when somebody fails.

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

my @nodes = map {
	new_member($_,
		conf => "max_worker_processes = 40\nrestart_after_crash = on\n")
} qw(a b c);
my ($a, $b, $c) = @nodes;

query($a,
	'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)'
);
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;

sub all_stream
{
	poll($_,
		"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
	) foreach @nodes;
	return;
}

# No lock is left, the schemas are the same, and all members can write.
my $next = 100;

sub recovered
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	poll($_, 'SELECT count(*) = 0 FROM weft.ddl_lock_status') foreach @nodes;
	foreach my $node (@nodes)
	{
		$next++;
		query($node, "INSERT INTO t (id, v) VALUES ($next, 1)");
	}
	wait_for_group('g', @nodes);
	same_schema($a, $_, "$what: schema of " . $_->name)
	  foreach grep { $_ != $a } @nodes;
	same_on_all(\@nodes, ['t'], $what);
	return;
}

# A session that has made a schema change, and not committed it: all other members' gates are confirmed.
sub change
{
	my ($node, $sql) = @_;
	my $session = open_session($node, on_error_stop => 0);

	$session->query("BEGIN; $sql");
	foreach my $other (grep { $_ != $node } @nodes)
	{
		is( query(
				$other,
				'SELECT node, tables, state FROM weft.ddl_lock_status'),
			$node->name . '|{t}|confirmed',
			'the lock on ' . $other->name);
	}
	return $session;
}

sub end_session
{
	my ($session) = @_;
	$session->{run}->kill_kill;
	return;
}

sub backend_of
{
	my ($node) = @_;
	return query($node,
		"SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"
	);
}

all_stream();

# --- a member is down ---

$c->stop;
my ($result, $out, $err) =
  $a->psql('postgres', 'ALTER TABLE t ALTER v TYPE bigint');
like(
	$err,
	qr/could not connect to node "c"/,
	'a member that is down is named');
query($a,
	'CREATE TEMP TABLE own (i int); CREATE UNIQUE INDEX ON own (i); DROP TABLE own; DROP TABLE IF EXISTS nothing'
);
pass('temporary tables do not need the other members');
$c->start;
all_stream();
recovered('a member was down');

# --- a subscription is disabled ---

my $name = subscription_name('g', $b, $c);
query($c, "ALTER SUBSCRIPTION $name DISABLE");
($result, $out, $err) =
  $a->psql('postgres', 'ALTER TABLE t ALTER v TYPE bigint');
like(
	$err,
	qr/node "c" does not apply changes of node "b"/,
	'a disabled subscription is named');
query($c, "ALTER SUBSCRIPTION $name ENABLE");
all_stream();
recovered('a subscription was disabled');

# --- a time-out ---

my $session = open_session($b);
$session->query_safe('BEGIN; UPDATE t SET v = v');
($result, $out, $err) = $a->psql('postgres',
	"SET weft.ddl_lock_timeout = '5s'; ALTER TABLE t ALTER v TYPE bigint");
like(
	$err,
	qr/node "b".*timed out waiting for transactions/s,
	'a transaction that does not end');
$session->query_safe('COMMIT');
$session->quit;
recovered('a time-out');

# --- a transaction that is prepared without its schema change ---

$session = change($a, 'SAVEPOINT s; ALTER TABLE t ADD CHECK (v > -1000)');
$session->query("ROLLBACK TO s; PREPARE TRANSACTION 'p'");
poll($_, 'SELECT count(*) = 0 FROM weft.ddl_lock_status') foreach @nodes;
query($a, "ROLLBACK PREPARED 'p'");
recovered('a prepared transaction');
$session->quit;

# --- a member is frozen ---

my @pids = server_pids($c);
kill 'STOP', @pids;
($result, $out, $err) = $a->psql('postgres',
	"SET weft.ddl_lock_timeout = '5s'; ALTER TABLE t ALTER v TYPE bigint");
kill 'CONT', @pids;
like($err, qr/node "c" does not answer/, 'a member that is frozen is named');
recovered('a member was frozen');

# --- the requester is frozen ---

set_conf($_, 'weft.ddl_lock_timeout' => '5s') foreach $b, $c;
$session = open_session($a);
$session->query_safe(
	"SET weft.ddl_lock_timeout = '5s'; BEGIN; ALTER TABLE t ADD CHECK (v > 0)"
);
@pids = server_pids($a);
kill 'STOP', @pids;
query($b, 'INSERT INTO t VALUES (40, 40)');
poll($_, 'SELECT count(*) = 0 FROM weft.ddl_lock_status') foreach $b, $c;
kill 'CONT', @pids;
$session->query_safe('ROLLBACK');
$session->quit;
set_conf($_, 'weft.ddl_lock_timeout' => '1min') foreach $b, $c;
recovered('the requester was frozen');

# --- gates ---

($result, $out, $err) = $a->psql('postgres', <<'EOS');
SELECT weft.ddl_gate_open(2, 'a', 0, ARRAY(SELECT generate_series(1000001, 1000600)::oid), 10000);
SELECT weft.ddl_gate_open(2, 'a', 0, ARRAY(SELECT generate_series(1000601, 1001200)::oid), 10000);
EOS
like($err, qr/can lock at most 1024 tables/, 'too many tables');
query($a, 'CREATE DATABASE d');
$a->safe_psql('d', 'CREATE EXTENSION weft');
$session = open_session($a);
$session->query_safe(
	"SET weft.ddl_lock_timeout = '5s'; SELECT weft.ddl_gate_open(3, 'a', 0, '{}', 5000)"
);
is( query($a, 'SELECT weft.ddl_gate_is_open(3)')
	  . $a->safe_psql('d', 'SELECT weft.ddl_gate_is_open(3)'),
	'tf',
	'databases have gates of their own');
poll($a, 'SELECT NOT weft.ddl_gate_is_open(3)');
pass('what is not confirmed in time ends, though the session goes on');
$session->quit;
recovered('gates');

# --- rows slip through at c, after b has confirmed its gate ---

my @requests = map { open_session($_) } $a, $b;
$_->query_safe("SELECT weft.member_ddl_gate(5, 'a', 0, '{public.t}', 60000)")
  foreach @requests;
poll($b, "SELECT state = 'closed' FROM weft.ddl_lock_status");
my $round = $requests[1]
  ->query_safe('SELECT round FROM weft.member_ddl_closed(5, 0, 60000)');
$requests[1]->query_safe("SELECT weft.member_ddl_confirm(5, $round)");
is(query($b, 'SELECT state FROM weft.ddl_lock_status'),
	'confirmed', 'one member has confirmed');
query($c, 'INSERT INTO t VALUES (80, 80)');
poll($b,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND (wait_event = 'WeftGate' OR wait_event_type = 'Lock')"
);
$requests[1]
  ->query_safe('SELECT round FROM weft.member_ddl_closed(5, 0, 60000)');
poll($b, 'SELECT count(*) = 1 FROM t WHERE id = 80');
pass('rows pass once the gate has to be closed again');
$_->quit foreach @requests;
recovered('rows that have slipped through');

# --- the session ends ---

$session = change($a, 'ALTER TABLE t ADD CHECK (v > 0)');
$session->query('ROLLBACK');
$session->quit;
recovered('an abort after the confirmation');

$session = change($a, 'ALTER TABLE t ADD CHECK (v > 0)');
query($a, 'SELECT pg_terminate_backend(' . backend_of($a) . ')');
end_session($session);
recovered('the session was terminated');

# --- a session ends that waits for another schema change ---

$session = change($a, 'ALTER TABLE t ADD CHECK (v > 0)');
my $second = open_session($b, on_error_stop => 0);
$second->query_until(qr/begun/,
	"\\echo begun\nALTER TABLE t ALTER v SET DEFAULT 4;\n");
poll($a,
	"SELECT count(*) = 1 FROM weft.ddl_lock_status WHERE state = 'waiting'");
query($b,
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'SET DEFAULT 4' AND pid <> pg_backend_pid()"
);
end_session($second);
poll($a,
	"SELECT count(*) = 0 FROM weft.ddl_lock_status WHERE state = 'waiting'");
$session->query('COMMIT');
$session->quit;
recovered('a session that waited was terminated');

# --- the session is killed, and its server recovers ---

$session = change($a, 'ALTER TABLE t ADD CHECK (v > 0)');
kill 'KILL', backend_of($a);
end_session($session);
poll($a, 'SELECT true');
all_stream();
recovered('the session was killed');

# --- the requester's server is killed ---

$session = change($a, 'ALTER TABLE t ADD CHECK (v > 0)');
$a->stop('immediate');
end_session($session);
is(query($b, 'SELECT state FROM weft.ddl_lock_status'),
	'confirmed', 'a member keeps the lock while the requester is down');
$a->start;
all_stream();
recovered('the server of the requester was killed');

# --- a member is killed while it holds the lock ---

$session = change($a,
	'ALTER TABLE t ADD COLUMN w int NOT NULL DEFAULT 5, ALTER v SET NOT NULL'
);
$b->stop('immediate');
$b->start;
($result, $out, $err) = $b->psql('postgres',
	"SET lock_timeout = '500ms'; INSERT INTO t VALUES (50, 50)");
like(
	$err,
	qr/lock timeout|before a schema change of the node group/,
	'a restarted member still holds back writers');
$session->query('COMMIT');
$session->quit;
all_stream();
recovered('a member was killed');
is(query($b, 'SELECT count(*) FROM t WHERE id = 50'),
	0, 'nobody has written meanwhile');

# --- the statement fails on a member ---

query($b, 'SET weft.ddl_replication = off; CREATE INDEX same_name ON t (v)');
$session = open_session($a);
my $before = query($b, 'SELECT clock_timestamp()');
query($a, 'ALTER TABLE t ADD CONSTRAINT same_name UNIQUE (id, v)');
my ($message) = apply_error($b, subscription_name('g', $a, $b), $before);
like(
	$message,
	qr/"same_name" already exists/,
	'the statement fails on a member');
($result, $out, $err) = $b->psql('postgres',
	"SET lock_timeout = '500ms'; INSERT INTO t VALUES (60, 60)");
like(
	$err,
	qr/lock timeout|before a schema change of the node group/,
	'that member holds back writers');

# Rows of c are newer than the schema change.
query($c, 'INSERT INTO t VALUES (61, 61)');
foreach my $attempt (1 .. 2)
{
	$before = query($b, 'SELECT clock_timestamp()');
	apply_error($b, subscription_name('g', $a, $b), $before);
}
is(query($b, 'SELECT count(*) FROM t WHERE id = 61'),
	0, 'rows of other members wait, too');
query($b, 'SET weft.ddl_replication = off; DROP INDEX same_name');
$session->quit;
all_stream();
recovered('the statement failed on a member');

# --- another member's schema change has taken the gate over when that of the lock arrives ---

query($a,
	'CREATE TABLE u (id int PRIMARY KEY); ALTER TABLE t ADD COLUMN gone int');
wait_for_group('g', @nodes);
$session = change($c, 'ALTER TABLE t DROP COLUMN gone');
my $reader = open_session($b);
$reader->query_safe('BEGIN; LOCK TABLE u IN ACCESS SHARE MODE');
query($a, 'ALTER TABLE u ADD COLUMN v int');
poll($b,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'u'::regclass AND NOT granted"
);
$session->query('COMMIT');
poll($b,
	"SELECT count(*) > 0 FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted"
);
wait_for_apply($c, $a, subscription_name('g', $c, $a));

# A schema change of c that comes after a row of a, which waits for the gate of b.
query($a,
	'INSERT INTO t (id, v) VALUES (85, 85); CREATE TABLE of_a (id int)');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c, 'CREATE TABLE of_c (id int)');
$reader->query_safe('COMMIT');
$_->quit foreach $reader, $session;
recovered('two schema changes for one gate');

# --- a node joins: it waits for a lock, and locks wait for it ---

my $d = new_member('d', conf => "max_worker_processes = 40\n");
$session = change($a, 'ALTER TABLE t ADD CHECK (v > -1)');
start_join($d, $a, 'g');
poll($a,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND query ~ 'member_register' AND pid <> pg_backend_pid()"
);
is( states($a),
	'a active, b active, c active',
	'a node that joins waits for a lock');

# The new node's slot on b waits for this.
my $holder = open_session($b);
$holder->query_safe('BEGIN; SELECT pg_current_xact_id()');
$session->query('COMMIT');
poll($a, "SELECT state = 'joining' FROM weft.node WHERE node_name = 'd'");
my %attempts = (
	'a time-out' =>
	  "SET weft.ddl_lock_timeout = '1s'; ALTER TABLE t ALTER v SET DEFAULT 2",
	'a transaction that the join may wait for' =>
	  'BEGIN; INSERT INTO t (id, v) VALUES (70, 70); ALTER TABLE t ALTER v SET DEFAULT 2',
);
foreach my $what (sort keys %attempts)
{
	($result, $out, $err) = $a->psql('postgres', $attempts{$what});
	like($err, qr/node "d" is joining or parting/, $what);
}
$session->query_until(qr/begun/,
	"\\echo begun\nSET weft.ddl_lock_timeout = '1h'; ALTER TABLE t ALTER v SET DEFAULT 3;\n"
);
poll($a,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'WeftGate' AND query ~ 'DEFAULT 3'"
);
$holder->query_safe('COMMIT');
$holder->quit;
wait_for_join($d);
$session->query_safe('SELECT 1');
$session->quit;
push @nodes, $d;
recovered('a join');

# --- a publisher outside of the group ---

my $outside = new_publisher('outside');
query($outside, 'CREATE EXTENSION weft');
query($_, 'CREATE TABLE fed (id int PRIMARY KEY)') foreach $outside, $a;
query($outside, 'CREATE PUBLICATION p FOR TABLE fed WITH (ddl = table)');
subscribe($outside, $a, 'outside', 'p');
wait_for_apply($outside, $a, 'outside');
$before = query($a, 'SELECT clock_timestamp()');
query($outside,
	'ALTER TABLE fed ADD COLUMN v int; INSERT INTO fed VALUES (1, 1)');
($err) = apply_error($a, 'outside', $before);
like(
	$err,
	qr/subscription "outside" cannot change the schema of a member of a node group/,
	'a schema change that the other members would not get');
query($a, 'ALTER TABLE fed ADD COLUMN v int');
query($a,
		'SELECT weft.skip_ddl($$outside$$, '
	  . query($outside, 'SELECT max(id) FROM weft.ddl_queue')
	  . ')');
wait_for_apply($outside, $a, 'outside');
is(query($a, 'SELECT v FROM fed'), 1, '... is made on a member, and skipped');
query($a, 'DROP SUBSCRIPTION outside');
recovered('a publisher outside of the group');

$outside->stop;
$_->stop foreach @nodes;
done_testing();
