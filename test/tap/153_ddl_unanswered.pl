# The leader asks the publisher whether its table weft.ddl_queue is the extension's.  If the publisher crashes before it
# answers, no schema change is lost: the next leader asks again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query($pub, 'CREATE EXTENSION IF NOT EXISTS weft');
query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

foreach my $column ('one', 'two')
{
	my $log = -s $sub->logfile;

	# A new leader asks, and waits for the lock.
	pause_subscription($sub, 'sub');
	query($pub, "ALTER TABLE t ADD COLUMN $column int");
	my $session = open_session($pub);
	$session->query_safe(
		'BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	my $asking = poll_for(
		$pub,
		q{SELECT pid FROM pg_stat_activity WHERE query ~ 'ddl_queue' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()},
		sub { $_[0] =~ /^\d+$/ });
	query($pub, "SELECT pg_terminate_backend($asking)");
	$sub->wait_for_log(
		qr/could not ask the publisher of subscription "sub" about its table "weft.ddl_queue"/,
		$log);
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	same_everything($pub, $sub, "column $column");
	unlike(
		slurp_file($sub->logfile, $log),
		qr/are not taken for schema changes/,
		'... the table is genuine');
}

done_testing();
