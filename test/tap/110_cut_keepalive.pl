# Keepalives that arrive while transactions are held at a cut say nothing about what is held behind them: after
# an error in one of those, it comes again, and nothing is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub =
  new_publisher('publisher', conf => "synchronous_standby_names = ''");
my $sub = new_subscriber('subscriber');
$ENV{PGOPTIONS} = '-c synchronous_commit=local';

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($pub,
	'CREATE TABLE unpublished (id int); CREATE PUBLICATION pub FOR TABLE t');
query($sub, 'CREATE EXTENSION weft_test');

# If the publisher believes that it waits for a standby, it sends a keepalive for each transaction of which
# nothing is published.
sub wait_for_standby
{
	my ($name) = @_;

	$pub->adjust_conf('postgresql.conf', 'synchronous_standby_names',
		"'$name'");
	$pub->reload;
	poll($pub,
		"SELECT current_setting('synchronous_standby_names') = '$name'");
	return;
}

# Each in a transaction of its own, followed by other statements.
sub insert_rows
{
	my ($from, $to, $length, $then) = @_;

	query($pub, <<"EOS");
SET synchronous_commit = off;
DO \$\$ BEGIN
	FOR i IN $from..$to LOOP
		INSERT INTO t VALUES (i, repeat('x', $length));
		COMMIT;
		$then
	END LOOP;
END \$\$;
EOS
	return;
}

foreach my $options (
	'num_writers = 0, synchronous_commit = on',
	'num_writers = 2, synchronous_commit = on',
	'')
{
	my $what = $options || 'defaults';

	query_all([ $pub, $sub ], 'TRUNCATE t');
	subscribe($pub, $sub, 'sub', 'pub', $options);
	wait_for_apply($pub, $sub, 'sub');
	query($sub, 'INSERT INTO t VALUES (4000)');

	wait_for_standby('nobody');
	my $session = open_session($sub);
	$session->query_safe('BEGIN');
	is( $session->query_safe("SELECT weft_test_cut_write('sub', 'SELECT 1')"),
		't', "$what: apply is held");
	# The walsender is behind, so it holds transactions back to send them together; and it remains so,
	# because the subscriber does not queue all of this.
	my $walsender = query($pub, 'SELECT pid FROM pg_stat_replication');
	kill 'STOP', $walsender;
	insert_rows(1, 5000, 100, 'INSERT INTO unpublished VALUES (i); COMMIT;');
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	insert_rows(5001, 11000, 8000, '');
	kill 'CONT', $walsender;
	poll($sub, "SELECT received_lsn >= '$end' FROM weft.stat_subscription");
	my $log = -s $sub->logfile;
	$session->query_safe('COMMIT');
	$session->quit;

	foreach my $time ('', ' once more')
	{
		$log = $sub->wait_for_log(
			qr/ERROR:  (duplicate key value|conflict detected)/, $log);
		pass("$what: a transaction that was held fails$time");
	}
	query($sub, 'DELETE FROM t WHERE id = 4000 AND v IS NULL');
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], "$what: nothing is lost");
	# Whoever has waited for it goes on.
	wait_for_standby('');
	query($sub, 'DROP SUBSCRIPTION sub');
}

$_->stop foreach $pub, $sub;
done_testing();
