# The output plugin weft: when it is used; nothing is lost or late because the plugin
# holds it back; a subscription that uses the plugin continues without Weft.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my @tables = qw(accounts journal);

query_all(
	[ $pub, $sub ],
	'CREATE TABLE accounts (id int PRIMARY KEY, v int);'
	  . ' CREATE TABLE journal (id bigserial PRIMARY KEY, v text)');
query($pub, <<'EOS');
CREATE TABLE unpublished (t text);
INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR TABLE accounts, journal;
EOS

my %load = ( <<'EOS' => 1);
\set id random(1, 100)
BEGIN;
UPDATE accounts SET v = v + 1 WHERE id = :id;
INSERT INTO journal (v) VALUES (repeat('x', :id));
COMMIT;
EOS

# The number of transactions of each client.
sub load
{
	my ($transactions, $seed) = @_;
	finish(
		start_pgbench(
			$pub, \%load,
			'-c' => 4,
			'-t' => $transactions,
			"--random-seed=$seed"));
	return;
}

sub plugin_of
{
	my ($slot) = @_;
	return query($pub,
		"SELECT plugin FROM pg_replication_slots WHERE slot_name = '$slot'");
}

# Everything that the publisher has written is confirmed, even if the end of its
# WAL contains nothing published.
sub confirmed
{
	my ($what) = @_;
	my $end = query($pub,
		"SELECT pg_logical_emit_message(true, 'none', '') IS NULL; SELECT pg_current_wal_flush_lsn()"
	);
	$end =~ s/^.*\n//;
	poll($pub,
		"SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'sub'"
	);
	return pass($what);
}

# Which plugin a slot uses.
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
is(plugin_of('sub'), 'weft', "the slot uses Weft's plugin");
is( query(
		$sub,
		"SELECT output_plugin FROM weft.stat_subscription WHERE subname = 'sub'"
	),
	'weft',
	'and the view says so');
confirmed('an idle subscriber confirms WAL without published changes');

# A backlog that ends with many unpublished changes.
foreach my $round (1 .. 3)
{
	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	load(1500, $round);
	query($pub,
		"INSERT INTO unpublished SELECT repeat('y', 1000) FROM generate_series(1, 3000)"
	) if $round > 1;
	my $rows = query($pub, 'SELECT count(*) FROM journal');

	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	poll($sub, "SELECT count(*) = $rows FROM journal");
	same_tables($pub, $sub, \@tables,
		"backlog $round: everything arrives without further traffic");
	confirmed("backlog $round: keepalives are trusted again afterwards");
}

# The leader is killed while transactions are held back for it.
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
load(5000, 9);
my $start = query($sub, 'SELECT max(id) FROM journal');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
foreach my $kill (1 .. 4)
{
	poll($sub, "SELECT max(id) > $start + $kill * 2000 FROM journal");
	query($sub,
		"SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE subname = 'sub' AND pid IS NOT NULL"
	);
}
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables,
	'the leader was terminated four times in a backlog');

# A synchronous subscriber: transactions without published changes wait for a
# keepalive.
query($pub, 'ALTER SYSTEM SET synchronous_standby_names = sub');
query($pub, 'SELECT pg_reload_conf()');
poll($pub,
	"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'"
);
query($pub, "INSERT INTO unpublished VALUES ('waits for nobody')")
  for 1 .. 20;
query($pub, "INSERT INTO journal (v) VALUES ('waits for the subscriber')");
query($pub, 'ALTER SYSTEM RESET synchronous_standby_names');
query($pub, 'SELECT pg_reload_conf()');
pass('synchronous commits are confirmed');

# Without writers, and without Weft, with the same slot.
foreach my $case (
	[ 'without writers', 'weft.writers_per_subscription', '0' ],
	[ 'without Weft', 'shared_preload_libraries', "''" ])
{
	my ($what, $name, $value) = @$case;
	my $before = $name eq 'shared_preload_libraries' ? "'weft'" : undef;

	$sub->adjust_conf('postgresql.conf', $name, $value);
	$sub->restart;
	load(100, 5);
	$pub->wait_for_catchup('sub');
	same_tables($pub, $sub, \@tables, "$what: the subscription continues");
	$sub->adjust_conf('postgresql.conf', $name, $before);
	$sub->restart;
	load(100, 6);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what, and back again");
}

# A publisher that does not allow the plugin, or has no Weft.
SKIP:
{
	skip 'this minor release allows any plugin',
	  1
	  unless query($pub,
		"SELECT current_setting('output_plugin_libraries', true) IS NOT NULL"
	  );
	set_conf($pub, output_plugin_libraries => 'pgoutput');
	subscribe($pub, $sub, 'sub2', 'pub', 'copy_data = off');
	is(plugin_of('sub2'), 'pgoutput', 'a publisher that does not allow it');
	query($sub, 'DROP SUBSCRIPTION sub2');
}
is(errors_logged($sub), '', 'no errors on the subscriber')
  or diag errors_logged($sub);

done_testing();
