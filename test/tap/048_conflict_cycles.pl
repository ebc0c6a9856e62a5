# Writers of several subscriptions, each of which holds the row that the next one needs: the server
# ends one of them, which must let the others go on before it begins again.  Otherwise it has
# its own rows back before they are awake, and the cycle closes again, for minutes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $rounds = $ENV{WEFT_ROUNDS} // 5;
my @nodes = new_members(4);
my ($here, @others) = @nodes;

create_tables(
	\@nodes,
	'CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE held (id int PRIMARY KEY, v text);',
	't',
	'held');
connect_members(\@nodes);
query($here, <<'EOS');
INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO held SELECT i, 'base' FROM generate_series(1, 3) i;
EOS
quiet(\@nodes);

my $session = open_session($here);
my $pid = $session->query_safe('SELECT pg_backend_pid()');

sub misspeculations
{
	return query($here, 'SELECT sum(misspeculations) FROM weft.stat_writer');
}

# Three transactions change all rows, each in another order.  Their writers wait for the session, which then lets all of
# them go on at once.
sub close_cycles
{
	my ($round) = @_;

	$session->query_safe('BEGIN; SELECT FROM held FOR UPDATE');
	foreach my $i (1 .. 3)
	{
		query($others[ $i - 1 ], <<EOS);
DO \$\$
DECLARE
	r int;
BEGIN
	UPDATE held SET v = 'v' WHERE id = $i;
	FOR r IN SELECT id FROM t ORDER BY md5(id || ' $i $round') LOOP
		UPDATE t SET n = n + 1 WHERE id = r;
	END LOOP;
END \$\$
EOS
	}
	poll($here,
		"SELECT count(*) = 3 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND $pid = ANY (pg_blocking_pids(pid))"
	);
	$session->query_safe('ROLLBACK');
	quiet(\@nodes);
	return;
}

my $most = 0;
foreach my $round (1 .. $rounds)
{
	my $before = misspeculations();

	close_cycles($round);
	my $retries = misspeculations() - $before;
	$most = $retries if $retries > $most;
}
note("a round cost $most retries at most");
cmp_ok($most, '>', 0, 'there were deadlocks');
cmp_ok($most, '<', 30, 'few retries end them');
same_tables($here, $_, ['t'], 'all have the same rows: ' . $_->name)
  foreach @others;
unlike(errors_logged($here), qr/./, 'no worker has failed');

$session->quit;
$_->stop foreach @nodes;
done_testing();
