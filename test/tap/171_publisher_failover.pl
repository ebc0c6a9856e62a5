# The publisher's server is lost while clients write to it, and its standby is promoted.  The
# slot has "failover", and synchronized_standby_slots names the standby: the subscriber never has
# anything that the new publisher lacks, loses nothing that was acknowledged (the standby is
# synchronous for that), and applies nothing twice.
#
# WEFT_FAILOVERS is the number of rounds.  WEFT_FAILOVER_SEED repeats the random choices.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FailoverTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $rounds = $ENV{WEFT_FAILOVERS} || 2;
my $seed = $ENV{WEFT_FAILOVER_SEED} || time;
srand($seed);
note("WEFT_FAILOVER_SEED=$seed");

my $pub = new_publisher('pub0',
	conf => "logical_decoding_work_mem = 64kB\nhot_standby_feedback = on");
my $sub = new_subscriber('subscriber', conf => <<'EOC');
autovacuum = off
wal_receiver_status_interval = 1s
EOC

# Without a key: what is applied twice is seen.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE ledger (round int, client int, n int);
CREATE TABLE account (id int PRIMARY KEY, v int);
CREATE TABLE big (round int, n int);
EOS
query($pub, <<'EOS');
INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR TABLE ledger, account, big;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
wait_for_apply($pub, $sub, 'sub');

# The option can be altered, and the slot's plugin is Weft's.
sub slot
{
	my ($node) = @_;
	return query($node,
		"SELECT plugin, failover FROM pg_replication_slots WHERE slot_name = 'sub'"
	);
}
is(slot($pub), 'weft|f', 'a slot without failover');
disable_subscription($sub, 'sub');
poll($pub,
	"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'");
query($sub, 'ALTER SUBSCRIPTION sub SET (failover = true)');
is(slot($pub), 'weft|t', 'it can be altered');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
wait_for_apply($pub, $sub, 'sub');

# Make the standby $name one to which the publisher may fail over.
sub protect
{
	my ($standby, $name) = @_;

	set_conf(
		$pub,
		synchronized_standby_slots => $name,
		synchronous_standby_names => $name);
	poll($pub,
		"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = '$name'"
	);
	foreach my $i (1 .. 1000)
	{
		query($pub, 'SELECT pg_log_standby_snapshot()');
		last
		  if query($standby,
			"SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'sub' AND synced AND NOT temporary AND invalidation_reason IS NULL"
		  );
		die 'the slot is not synchronized' if $i == 1000;
		usleep(100_000);
	}
	return;
}

# While the standby gets nothing, the plugin must send nothing.
my $standby = new_standby($pub, 'pub1', conf => <<'EOC');
sync_replication_slots = on
synchronized_standby_slots = ''
synchronous_standby_names = ''
EOC
protect($standby, 'pub1');

# A backlog, so that the plugin would decode ahead, and hold transactions back.
disable_subscription($sub, 'sub');
query($pub,
	'SET synchronous_commit = local; INSERT INTO big SELECT 0, i FROM generate_series(1, 5000) i'
);
$pub->wait_for_catchup($standby, 'flush');
kill 'STOP', standby_sender($pub, 'pub1');
my $known = query($pub,
	"SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'pub1'");
foreach my $i (1 .. 200)
{
	query($pub,
		"SET synchronous_commit = local; INSERT INTO big SELECT -$i, i FROM generate_series(1, 100) i"
	);
}
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
waits_for($pub, 'WaitForStandbyConfirmation');
is( query(
		$pub,
		"SELECT sent_lsn <= '$known' FROM pg_stat_replication WHERE application_name = 'sub'"
	),
	't',
	'nothing is sent that the standby does not have');
is(query($sub, 'SELECT count(*) FROM big WHERE round < 0'),
	0, 'and nothing is applied');
kill 'CONT', standby_sender($pub, 'pub1');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['big'], 'then it is sent');

my @all;
foreach my $round (1 .. $rounds)
{
	my $name = "pub$round";
	my $receiver;

	if ($round > 1)
	{
		$standby = new_standby($pub, $name, conf => <<'EOC');
sync_replication_slots = on
synchronized_standby_slots = ''
synchronous_standby_names = ''
EOC
		protect($standby, $name);
	}
	my ($host1, $host2) = ($pub->host, $standby->host);
	my ($port1, $port2) = ($pub->port, $standby->port);
	query($sub,
		"ALTER SUBSCRIPTION sub CONNECTION 'host=$host1,$host2 port=$port1,$port2 dbname=postgres target_session_attrs=read-write application_name=sub'"
	);

	my $load = start_ledger($pub, $round, 4, '-T', 300);
	$load->{run}->pump_nb;
	poll($sub, "SELECT count(*) > 100 FROM ledger WHERE round = $round");
	query($pub,
		"SET synchronous_commit = local; INSERT INTO big SELECT $round, i FROM generate_series(1, 3000) i"
	);

	# The standby falls behind: nothing is sent to it, or it takes nothing.
	my $how = int(rand 3);
	usleep(rand 500_000);
	if ($how == 1)
	{
		kill 'STOP', standby_sender($pub, $name);
	}
	elsif ($how == 2)
	{
		$receiver = standby_receiver($standby);
		kill 'STOP', $receiver;
	}
	# Of these transactions, clients do not wait for the standby.
	query($pub,
		"SET synchronous_commit = local; INSERT INTO ledger VALUES ($round, -1, $_)"
	) foreach 1 .. 20;
	usleep(rand 1_000_000);

	kill_server($pub);
	kill 'CONT', $receiver if $receiver;
	finish($load, may_fail => 1);
	push @all, acknowledged($load);
	my $had = query($sub, 'SELECT l FROM ledger l');
	promote($standby);
	note(
		sprintf
		  'round %d, %s: %d transactions acknowledged so far, the subscriber had %d at the failover',
		$round,
		('nothing stopped', 'its sender stopped', 'its receiver stopped')
		  [$how],
		scalar @all,
		scalar split /\n/,
		$had);
	my @ahead = missing_from($standby, split /\n/, $had);
	is( "@ahead[0 .. ($#ahead < 9 ? $#ahead : 9)]",
		'',
		"round $round: the subscriber has nothing that the new publisher lacks"
	);
	my @lost = missing_from($standby, @all);
	is( "@lost[0 .. ($#lost < 9 ? $#lost : 9)]",
		'',
		"round $round: the standby has what was acknowledged");

	$pub = $standby;
	query($pub, "INSERT INTO ledger VALUES ($round, -2, 0)");
	wait_for_apply($pub, $sub, 'sub');
	my @missing = missing_from($sub, @all);
	is( "@missing[0 .. ($#missing < 9 ? $#missing : 9)]",
		'',
		"round $round: none of "
		  . @all
		  . ' acknowledged transactions is lost');
	is(doubled($sub), '', "round $round: none is there twice");
	same_tables(
		$pub, $sub,
		[ 'ledger', 'account', 'big' ],
		"round $round: the same rows");
	is(slot($pub), 'weft|t', "round $round: the slot is as it was");
}

$sub->stop;
$pub->stop;
done_testing();
