# How far behind a subscription is, where the publisher's WAL ends, and when the subscription will
# have caught up, as weft.stat_subscription shows it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $conf = "synchronous_commit = off\n";
my $sub = new_subscriber('subscriber',
	conf => "weft.ring_size = 64kB\nweft.writers_per_subscription = 2\n");

# The end of a node's WAL, in the terms of publisher_lsn: what is right behind the header of an empty
# page is not sent.
my $end_of_wal = <<'EOS';
SELECT CASE WHEN pos % 8192 <= 40 THEN pos - pos % 8192 ELSE pos END
FROM (SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0') AS pos) p
EOS

# Many transactions, each with 4 kB.
sub write_rows
{
	my ($pub, $from, $to) = @_;

	query($pub, <<"EOS");
DO \$\$
BEGIN
	FOR i IN $from .. $to LOOP
		INSERT INTO t VALUES (i, repeat('x', 4000));
		COMMIT;
	END LOOP;
END \$\$
EOS
	return;
}

sub askers
{
	my ($pub) = @_;
	return
	  "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weft lag of sub' AND datname = 'postgres'";
}

sub begin_with
{
	my ($pub, $options) = @_;

	query_all(
		[ $pub, $sub ],
		'CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL'
	);
	query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
	subscribe($pub, $sub, 'sub', 'pub', $options);
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# --- a subscriber that is held back ---

foreach my $plugin (qw(weft pgoutput))
{
	my $pub = new_publisher(
		"publisher_$plugin",
		conf => $conf,
		stock => $plugin eq 'pgoutput');

	begin_with($pub);
	is(figure($sub, 'sub', 'output_plugin'),
		$plugin, "$plugin: the plugin in use");
	poll_figure($sub, 'sub',
		'apply_lag_bytes = 0 AND publisher_lag_bytes = 0');
	is(figure($sub, 'sub', 'catch_up_time'),
		'00:00:00', "$plugin: nothing to catch up");
	poll($pub, askers(), 0);
	pass("$plugin: no connection to the publisher is left open");

	my $session = open_session($sub);
	$session->query_safe('BEGIN; LOCK TABLE t IN SHARE MODE');
	write_rows($pub, 1, 10000);
	poll_figure($sub, 'sub', 'publisher_lag_bytes > 30000000');
	cmp_ok(figure($sub, 'sub', 'apply_lag_bytes'),
		'<', 4_000_000, "$plugin: little of the backlog is received");
	my $end = query($pub, $end_of_wal);
	poll_figure($sub, 'sub', "publisher_lsn - '0/0' >= $end");
	cmp_ok(figure($sub, 'sub', "publisher_lsn - '0/0'") - $end,
		'<', 1_000_000, "$plugin: the end of the publisher's WAL is known");
	is( figure(
			$sub, 'sub',
			"catch_up_time IS NULL OR catch_up_time > interval '10 min'"),
		't',
		"$plugin: it will not catch up while it is held back");
	my $time = figure($sub, 'sub', 'publisher_lsn_time');
	poll_figure($sub, 'sub', "publisher_lsn_time > '$time'");
	pass("$plugin: the knowledge is renewed");
	is(query($pub, askers()), 1, "$plugin: by one connection");

	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	poll_figure($sub, 'sub',
		'publisher_lag_bytes = 0 AND apply_rate_bytes > 0');
	is(figure($sub, 'sub', 'catch_up_time'),
		'00:00:00', "$plugin: it has caught up");
	poll($pub, askers(), 0);
	pass("$plugin: the connection is closed");

	query($sub, 'DROP SUBSCRIPTION sub; DROP TABLE t');
	$pub->stop;
}

# --- the estimate ---

# Rows take a certain time here, whatever else the machine does.
my $pub = new_publisher('publisher_estimate', conf => $conf);
begin_with($pub, 'num_writers = 1');
query($sub, <<'EOS');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.05);
	RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow();
ALTER TABLE t ENABLE ALWAYS TRIGGER slow;
EOS
disable_subscription($sub, 'sub');
is( figure(
		$sub,
		'sub',
		'leader_pid IS NULL AND publisher_lsn IS NULL AND apply_rate IS NULL'
	),
	't',
	'no figures without an apply worker');
write_rows($pub, 1, 480);
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
poll_figure($sub, 'sub',
	"extract(epoch FROM catch_up_time) BETWEEN 0.1 AND 20");
my $estimated = figure($sub, 'sub', 'extract(epoch FROM catch_up_time)');
my $begin = time;
cmp_ok(figure($sub, 'sub', 'apply_rate'), '>', 4, 'transactions per second');
cmp_ok(figure($sub, 'sub', 'apply_rate'),
	'<', 20, 'as fast as the trigger lets them');
poll_figure($sub, 'sub', 'publisher_lag_bytes = 0');
my $taken = time - $begin;
note("estimated $estimated s, taken $taken s");
cmp_ok($estimated, '>', 0.75 * $taken, 'the estimate is not too short');
cmp_ok($estimated, '<', 1.25 * $taken, 'nor too long');
query($sub, 'DROP SUBSCRIPTION sub; DROP TABLE t');

# --- a publisher that cannot be asked ---

query($pub,
	"DROP TABLE t CASCADE; DROP PUBLICATION pub; CREATE ROLE sender REPLICATION LOGIN; GRANT pg_read_all_data TO sender"
);
query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
query($sub,
		"CREATE SUBSCRIPTION sub CONNECTION '"
	  . $pub->connstr
	  . " dbname=postgres user=sender' PUBLICATION pub");
wait_for_apply($pub, $sub, 'sub');
query($pub, 'ALTER ROLE sender CONNECTION LIMIT 0');
my $session = open_session($sub);
$session->query_safe('BEGIN; LOCK TABLE t IN SHARE MODE');
my $offset = -s $sub->logfile;
write_rows($pub, 1, 3000);
$sub->wait_for_log(
	qr/LOG:  could not ask the publisher of subscription "sub" where its WAL ends: .*too many connections for role "sender"/,
	$offset);
$session->query_safe('COMMIT');
$session->quit;
query($pub, 'ALTER ROLE sender CONNECTION LIMIT -1');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'apply goes on without that');
is(errors_logged($sub), '', 'no errors');

done_testing();
