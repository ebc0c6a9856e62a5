# An initial copy is held after a helper has copied the rows of a range and before it has
# reported them, or after all rows are copied and before the indexes are built.  Whichever
# process fails or dies there, in the end each row is there once, and the indexes are valid;
# before that, nobody sees any row.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber', conf => "restart_after_crash = on\n");
my $sync_worker = "backend_type = 'logical replication tablesync worker'";

# Without a key, a row that is copied twice is stored twice.
query_all([ $pub, $sub ], 'CREATE TABLE many (id int, t text)');
query($pub, <<'EOS');
INSERT INTO many SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 10000) i;
CREATE PUBLICATION pub FOR TABLE many;
EOS
query($sub, 'CREATE INDEX ON many (id); CREATE INDEX ON many (t)');

my $log;

sub start_copy
{
	my ($options) = @_;

	$log = -s $sub->logfile;
	subscribe($pub, $sub, 'sub', 'pub', $options);
	return;
}

# The table is copied, and nothing is left behind.
sub copied
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['many'], "$what: each row is there once");
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	query($sub, 'DROP SUBSCRIPTION sub; TRUNCATE many');
	return;
}

sub nothing_visible
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(query($sub, 'SELECT count(*) FROM many'),
		0, "$what: no row is visible before");
	return;
}

# The helper fails, or is terminated, alone.
foreach my $point ('weft-copy-range-done', 'weft-copy-indexes')
{
	foreach my $action ('error', 'end')
	{
		attach_point($sub, $point, $action);
		start_copy();
		$sub->wait_for_log(
			qr/(ERROR:  error injected|FATAL:  process ended) at $point/,
			$log);
		nothing_visible("$point, $action");
		detach_point($sub, $point);
		copied("$point, $action");
	}
}

# The worker that began the copy is terminated.  It exists for as long as a helper does.
{
	my $point = 'weft-copy-range-done';

	attach_point($sub, $point);
	start_copy();
	my @helpers = held_at($sub, $point, 3);
	my $worker =
	  query($sub, "SELECT pid FROM pg_stat_activity WHERE $sync_worker");
	terminate($sub, $worker);
	poll($sub,
		"SELECT wait_event = 'BgworkerShutdown' FROM pg_stat_activity WHERE pid = $worker"
	);
	nothing_visible('terminated');
	release_point($sub, $point);
	wait_until_gone($sub, $worker);
	copied('terminated');
}

# The server crashes.
foreach my $point ('weft-copy-range-done', 'weft-copy-indexes')
{
	attach_point($sub, $point);
	start_copy();
	my ($pid) = held_at($sub, $point, $point =~ /range/ ? 3 : 1);
	nothing_visible("$point, killed");
	flush_wal($sub);
	kill_process($pid);
	wait_until_up($sub);
	copied("$point, killed");
}

# What the copy has left unfinished does not prevent an error from disabling the subscription.
{
	my $point = 'weft-copy-indexes';

	attach_point($sub, $point, 'error');
	start_copy('disable_on_error = true');
	poll($sub, 'SELECT NOT subenabled FROM pg_subscription');
	nothing_visible('disabled');
	detach_point($sub, $point);
	indexes_sound($sub, 'disabled');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	copied('enabled again');
}

$sub->stop;
$pub->stop;
done_testing();
