# Processes are killed between a schema change and the commit of its transaction, and right after the
# commit: the schema change is applied once, with the rows around it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use InjectionTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => "restart_after_crash = on\n");

query($pub, 'CREATE EXTENSION IF NOT EXISTS weft');
query_all([ $pub, $sub ], 'CREATE TABLE old (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
query($sub, 'CREATE EXTENSION weft_injection');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 1');
wait_for_apply($pub, $sub, 'sub');

my %victims = (
	writer => sub { my ($held) = @_; kill_process($held); },
	leader => sub { kill_process(leader_pid($sub, 'sub')); },
	server => sub { $sub->stop('immediate'); $sub->start; },);
my $count = 0;

# A transaction with schema changes and rows.
sub change
{
	my $name = 't' . ++$count;

	query($pub, <<"EOS");
BEGIN;
INSERT INTO old VALUES ($count, 'before');
CREATE TABLE $name (id int PRIMARY KEY);
INSERT INTO $name SELECT generate_series(1, 10);
ALTER TABLE $name ADD COLUMN v int DEFAULT $count;
ALTER TABLE old ADD COLUMN c$count int DEFAULT $count;
UPDATE old SET c$count = id;
INSERT INTO $name VALUES (11, 12);
COMMIT;
EOS
	return $name;
}

# Three tests: everything is there, once.
sub applied_once
{
	my ($name, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until_up($sub);
	wait_for_apply($pub, $sub, 'sub');
	same_everything($pub, $sub, $what);
	is( query(
			$sub,
			"SELECT string_agg(result, ' ') FROM weft.ddl_history WHERE statement ~ '$name\\M' AND statement ~ '^CREATE'"
		),
		'applied',
		"$what: the history has it once");
	return;
}

# --- a leader that waits for a copy from its first message on ---

my $session = open_session($sub);
query($sub, 'CREATE TABLE late (id int PRIMARY KEY)');
query($pub,
	'SET weft.ddl_replication = off; CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)'
);

# The writer ignores this row, but would wait for the table's lock.
wait_for_apply($pub, $sub, 'sub');
$session->query_safe('BEGIN; LOCK TABLE late IN SHARE MODE');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll($sub,
	q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'late'::regclass AND NOT granted}
);
my $offset = -s $sub->logfile;
query($pub,
	'BEGIN; ALTER TABLE late ADD COLUMN v int DEFAULT 7; INSERT INTO late VALUES (2); COMMIT'
);
my $end = query($pub, 'SELECT pg_current_wal_lsn()');
$sub->wait_for_log(qr/a schema change must wait until tables are copied/,
	$offset);
$offset = -s $sub->logfile;
attach_point($sub, 'weft-leader-checks', 'hold_end');
my ($leader) = held_at($sub, 'weft-leader-checks');
detach_point($sub, 'weft-leader-checks');
attach_point($sub, 'weft-leader-checks');
release($sub, $leader);
wait_until_gone($sub, $leader);
held_at($sub, 'weft-leader-checks');
poll($pub,
	"SELECT sent_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub' AND state = 'streaming'"
);
release_point($sub, 'weft-leader-checks');
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'WeftLeaderDrain'}
);
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($pub, $sub, 'sub');
same_everything($pub, $sub, 'a leader that waits from its first message on');
unlike(
	slurp_file($sub->logfile, $offset),
	qr/without a socket/,
	'... does not fail');

foreach my $writers (1, 16)
{
	query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $writers)");
	foreach my $point ('weft-writer-commits', 'weft-writer-committed')
	{
		foreach my $victim (sort keys %victims)
		{
			wait_for_apply($pub, $sub, 'sub');
			attach_point($sub, $point);
			my $name = change();
			my ($held) = held_at($sub, $point);
			$victims{$victim}->($held);
			applied_once($name, "$victim of $writers, $point");
		}
	}
}

# Without writers, the leader itself executes schema changes.  It waits for a session in the
# middle of the transaction.
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
query($pub, 'CREATE TABLE locked (id int)');
foreach my $victim ('leader', 'server')
{
	wait_for_apply($pub, $sub, 'sub');
	my $session = open_session($sub);
	$session->query_safe('BEGIN; LOCK TABLE locked IN SHARE MODE');
	$count++;
	query($pub,
		"BEGIN; CREATE TABLE t$count (id int); INSERT INTO t$count VALUES (1); ALTER TABLE locked ADD COLUMN c$count int; COMMIT"
	);
	poll($sub,
		"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'locked'::regclass AND NOT granted"
	);
	$victims{$victim}->();
	$session->{run}->kill_kill;
	applied_once("t$count", "$victim, without writers");
}

unlike(errors_logged($pub), qr/TRAP|PANIC/, 'no crash of the publisher');
unlike(slurp_file($sub->logfile), qr/TRAP: /, 'no failed assertion');

$sub->stop;
$pub->stop;
done_testing();
