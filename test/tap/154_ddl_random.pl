# Random transactions of schema changes and changes of rows, from several sessions at once, while the
# subscriber's processes, or the subscriber, crash: in the end, catalogs and rows are the same, and
# each schema change was applied once.
#
# Each seed has other settings: number of writers, streaming, output plugin, detection of conflicts.
#
# WEFT_SEEDS sets the number of seeds (default 3), WEFT_FIRST_SEED the first (default 1),
# WEFT_TRANSACTIONS those of each session (default 30), WEFT_CRASHES the crashes of a seed (default 2).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlGenerator;
use DdlTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $seeds = $ENV{WEFT_SEEDS} // 3;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $transactions = $ENV{WEFT_TRANSACTIONS} // 30;
my $crashes = $ENV{WEFT_CRASHES} // 2;
my $num_sessions = 3;

# An assertion of version 18 fails in the walsender if a part of a transaction was aborted, and
# nothing of it had been sent when it was written to disk (see 008_two_phase_streaming.pl).
# Therefore transactions stay in memory there, and are not streamed; TAP 153 streams some.
my $pub = new_publisher('publisher',
	conf => major() >= 18 ? '' : "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber',
	conf => "restart_after_crash = on\ntrack_commit_timestamp = on\n");

query($pub, 'CREATE EXTENSION IF NOT EXISTS weft');
query_all([ $pub, $sub ], 'CREATE TABLE shared (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');

# Begin to run a script in a session.
sub start_session
{
	my ($name, $sql) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";
	my $session = { name => $name, file => $file, output => '' };
	my @command = (
		$pub->installed_command('psql'),
		'-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $pub->connstr('postgres'),
		'-f', $file);

	open my $fh, '>', $file or die "could not open $file: $!";
	print $fh $sql;
	close $fh;
	$session->{run} = IPC::Run::start(\@command, '<', \undef,
		'>', '/dev/null', '2>', \$session->{output});
	return $session;
}

# Statements that succeed are what the generator promises.
sub finish_session
{
	my ($session) = @_;

	ok($session->{run}->finish, "$session->{name}: the script succeeds")
	  or diag($session->{output});
	return;
}

# One of the subscriber's processes, or all of them.
sub crash
{
	my ($generator) = @_;
	my $victim = $generator->pick('writer', 'leader', 'server');

	usleep(1000 * $generator->below(1500));
	if ($victim eq 'server')
	{
		note('the subscriber crashes');
		$sub->stop('immediate');
		$sub->start;
		return;
	}
	my $type =
	  $victim eq 'writer'
	  ? 'weft writer'
	  : 'logical replication apply worker';
	my $pid = $generator->pick(
		split /\n/,
		query(
			$sub,
			"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type' ORDER BY pid"
		));
	note("a $victim crashes");
	kill_process($pid) if $pid;
	wait_until_up($sub);
	return;
}

# The schema changes that are in the history with a result, behind an id.
sub ids
{
	my ($node, $result, $after) = @_;
	return query($node,
		"SELECT id FROM weft.ddl_history WHERE result = '$result' AND id > $after ORDER BY id"
	);
}

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	my $chance = DdlGenerator->new($seed, '');
	my $detects = $chance->below(3) == 0;
	my $writers = $chance->pick($detects ? () : 0, 1, 4, 16);
	my $streaming = $chance->pick('off', 'on', 'parallel');
	my $options =
	  "num_writers = $writers, streaming = $streaming, detect_conflicts = "
	  . ($detects ? 'on' : 'off');
	my $plugin = $chance->pick('weft', 'pgoutput');
	my $what = "seed $seed ($options, $plugin)";

	if ($plugin eq 'weft')
	{
		subscribe($pub, $sub, 'sub', 'pub', "$options, copy_data = false");
	}
	else
	{
		subscribe_with_pgoutput($pub, $sub, 'sub', 'pub',
			"$options, copy_data = false");
	}
	my $before =
	  query($pub, 'SELECT coalesce(max(id), 0) FROM weft.ddl_queue');
	my @generators =
	  map { DdlGenerator->new($seed * 100 + $_, "s${seed}_${_}_") }
	  1 .. $num_sessions;

	my $snapshot = keep_catalogs($pub);
	my @sessions = map {
		start_session("seed_${seed}_$_",
			$generators[ $_ - 1 ]->script($transactions))
	} 1 .. $num_sessions;

	crash($chance)     foreach 1 .. $crashes;
	finish_session($_) foreach @sessions;
	$snapshot->quit;
	wait_until_up($sub);
	wait_for_apply($pub, $sub, 'sub');
	same_everything($pub, $sub, $what);
	my $captured = ids($pub, 'captured', $before);
	cmp_ok(() = $captured =~ /\n/g,
		'>', $transactions, "$what: there were schema changes");
	is(ids($sub, 'applied', $before),
		$captured, "$what: each was applied once");
	is(ids($sub, 'failed', $before), '', "$what: none has failed");

	query($pub, $_->cleanup) foreach @generators;
	wait_for_apply($pub, $sub, 'sub');
	same_everything($pub, $sub, "$what, dropped");
	query($sub, 'DROP SUBSCRIPTION sub');
	last unless Test::More->builder->is_passing;
}

unlike(slurp_file($_->logfile),
	qr/TRAP: /, $_->name . ': no failed assertion')
  foreach $pub, $sub;

$_->stop foreach $sub, $pub;
done_testing();
