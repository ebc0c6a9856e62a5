# The subscriber's server is lost while clients write to its publisher, and an asynchronous standby is
# promoted, which lacks some of what the subscriber had.  With weft.confirm_after_standby_slots,
# the publisher still has that: no acknowledged transaction is lost, and none is applied twice.
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

my $pub = new_publisher('publisher',
	conf => "synchronous_commit = local\nlogical_decoding_work_mem = 64kB");
my $sub = new_subscriber('sub0', conf => <<'EOC');
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
CREATE PUBLICATION pub FOR TABLE ledger, account;
CREATE PUBLICATION pub2 FOR TABLE big;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
subscribe($pub, $sub, 'sub2', 'pub2',
	'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, $_) foreach 'sub', 'sub2';

my (@all, $last_lacking, $lacked);
foreach my $round (1 .. $rounds)
{
	my $name = "sub$round";
	my $standby = new_standby($sub, $name);
	my $late = "late$round";
	my ($stopped, $receiver);

	set_conf($sub, 'weft.confirm_after_standby_slots' => $name);
	# natively, now and then
	query($sub,
		"ALTER SUBSCRIPTION $_ SET (num_writers = "
		  . (int(rand 4) == 0 ? 0 : 4) . ')')
	  foreach 'sub', 'sub2';

	my $load = start_ledger($pub, $round, 4, '-T', 300);
	poll($sub, "SELECT count(*) > 100 FROM ledger WHERE round = $round");

	# Something else is going on as well: a streamed transaction, a prepared one, a table that is
	# synchronized.
	query($pub,
		"INSERT INTO big SELECT $round, i FROM generate_series(1, 3000) i; BEGIN; INSERT INTO big VALUES ($round, -1); PREPARE TRANSACTION 'p$round'"
	);
	query_all([ $pub, $sub ], "CREATE TABLE $late (n int)");
	query($pub,
		"INSERT INTO $late SELECT generate_series(1, 20000); ALTER PUBLICATION pub ADD TABLE $late"
	);
	my $adding = open_session($pub);
	$adding->query_until(qr/begun/,
		"\\echo begun\nINSERT INTO $late SELECT 0 FROM generate_series(1, 10), pg_sleep(0.1);\n"
	);
	query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');

	# The standby falls behind: nothing is sent to it, or it takes nothing.
	my $how = int(rand 3);
	usleep(rand 500_000);
	if ($how == 1)
	{
		kill 'STOP', standby_sender($sub, $name);
		usleep(rand 1_500_000);
	}
	elsif ($how == 2)
	{
		$receiver = standby_receiver($standby);
		kill 'STOP', $receiver;
		usleep(rand 1_500_000);
	}
	usleep(rand 500_000);

	my $had = query($sub, 'SELECT l FROM ledger l');
	kill_server($sub);
	kill 'CONT', $receiver if $receiver;
	promote($standby);
	my @lacking = missing_from($standby, split /\n/, $had);
	$lacked += @lacking;
	note(
		sprintf
		  'round %d, %s: the standby was promoted without %d transactions that the subscriber had',
		$round,
		('nothing stopped', 'its sender stopped', 'its receiver stopped')
		  [$how],
		scalar @lacking);

	# The standby has no standby yet.
	set_conf($standby, 'weft.confirm_after_standby_slots' => '');
	usleep(rand 500_000);
	end_load($load);
	query($pub, "COMMIT PREPARED 'p$round'");
	$adding->quit;
	push @all, acknowledged($load);
	wait_for_apply($pub, $standby, $_) foreach 'sub', 'sub2';

	my @missing = missing_from($standby, @all);
	is( "@missing[0 .. ($#missing < 9 ? $#missing : 9)]",
		'',
		"round $round: none of "
		  . @all
		  . ' acknowledged transactions is lost');
	is(doubled($standby), '', "round $round: none is there twice");
	same_tables(
		$pub, $standby,
		[ 'ledger', 'account', 'big', $late ],
		"round $round: the same rows");
	$sub = $standby;
}
note(
	"in total, standbys lacked $lacked transactions when they were promoted");

$sub->stop;
$pub->stop;
done_testing();
