# How many writers are in use: all of them, or the number that tuning finds best.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher', conf => 'synchronous_commit = off');
my $sub = new_subscriber('subscriber', conf => <<'EOC');
log_min_messages = debug1
weft.ring_size = 1MB
weft.tune_writers = off
EOC

query_all([ $pub, $sub ], 'CREATE TABLE t (id bigserial PRIMARY KEY, v int)');
# A wait in a writer during which others can continue.
query($sub, <<'EOS');
CREATE FUNCTION slow() RETURNS bool LANGUAGE sql VOLATILE RETURN pg_sleep(0.001) IS NOT NULL;
ALTER TABLE t ADD CHECK (slow());
EOS
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 8');
wait_for_apply($pub, $sub, 'sub');

# Applies a backlog; returns what is logged meanwhile, and the number of writers that
# have applied anything.
sub apply_backlog
{
	my ($transactions) = @_;
	my $log = -s $sub->logfile;

	disable_subscription($sub, 'sub');
	finish(
		start_pgbench(
			$pub, { "INSERT INTO t (v) VALUES (1);\n" => 1 },
			'-c' => 4,
			'-t' => $transactions / 4));
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
	my $used = query($sub,
		'SELECT count(*) FROM weft.stat_writer WHERE transactions > 0');
	same_tables($pub, $sub, ['t'], 'all is applied');
	return (slurp_file($sub->logfile, $log), $used);
}

my $found = qr/writers in use: (\d+), transactions in a commit: up to \d+/;
my ($log, $used) = apply_backlog(16000);
is($used, 8, 'not tuned: all writers are used');
unlike($log, $found, 'and nothing is tried');

set_conf($sub, 'weft.tune_writers' => 'on');
($log, $used) = apply_backlog(40000);
# On a busy machine, tuning may need more than one trial.
my %writers = map { $_ => 1 } $log =~ /$found/g;
ok($writers{8}, 'tuned: while writers wait, more of them are faster');

$pub->stop;
$sub->stop;
done_testing();
