# Only what requires action by a user is logged as an error.

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

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE u (id int PRIMARY KEY);
EOS
query($pub, 'CREATE PUBLICATION pub FOR TABLE t, u');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 8');
wait_for_apply($pub, $sub, 'sub');

# An error, with a backlog behind it that other writers are applying.
query($sub, 'INSERT INTO t VALUES (-1)');
my $blocker = open_session($sub);
$blocker->query_safe('BEGIN; LOCK TABLE u');
my $start = -s $sub->logfile;
query($pub, 'INSERT INTO t VALUES (-1)');
foreach my $i (1 .. 20)
{
	query($pub,
		"INSERT INTO u VALUES ($i); INSERT INTO t SELECT $i * 1000 + j FROM generate_series(1, 100) j"
	);
}
poll($sub, 'SELECT apply_error_count >= 2 FROM pg_stat_subscription_stats');
$blocker->query_safe('COMMIT');
$blocker->quit;
query($sub, 'DELETE FROM t WHERE id = -1');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [ 't', 'u' ], 'everything is applied in the end');

my $log = slurp_file($sub->logfile, $start);
like(
	$log,
	qr/ERROR:  (?:duplicate key value violates unique constraint "t_pkey"|conflict detected on relation "public.t")/,
	'the error is logged');
unlike($log, qr/FATAL/,
	'but nothing about writers that are ended because of it');
my @others = grep { !/duplicate key value|conflict detected/ } split /\n/,
  errors_logged($sub, $start);
is("@others", '', 'nor any other error');

# A writer that a user terminates logs that.
$start = -s $sub->logfile;
my ($pid) = writer_pids($sub);
query($sub, "SELECT pg_terminate_backend($pid)");
poll($sub,
	"SELECT count(*) = 8 AND bool_and(pid <> $pid) FROM pg_stat_activity WHERE backend_type = 'weft writer'"
);
my @fatal = slurp_file($sub->logfile, $start) =~
  /(\[\d+\] FATAL:  terminating .* due to administrator command)/g;
is(scalar @fatal, 1, 'only a writer that a user terminates logs that')
  or diag @fatal;

done_testing();
