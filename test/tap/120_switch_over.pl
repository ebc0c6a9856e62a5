use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
query_all([ $pub, $sub ], 'CREATE TABLE t (id serial PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
query($pub, "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 1000)");
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
is(switch_over($sub, 'sub'), '', 'over');
diag query($sub,
	'SELECT step, ended_at - started_at, result FROM weft.switch_over_progress ORDER BY started_at'
);
is(accepting('t', $pub, $sub), 'subscriber');
query($sub, "INSERT INTO t (v) VALUES ('new')");
diag query($sub, "SELECT max(id) FROM t");
poll($pub, "SELECT count(*) = 1001 FROM t");
is(switch_back($sub, 'sub'), '', 'back');
diag query($sub,
	'SELECT direction, step, ended_at - started_at, result FROM weft.switch_over_progress ORDER BY started_at'
);
is(accepting('t', $pub, $sub), 'publisher');
query($pub, "INSERT INTO t (v) VALUES ('newer')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'same');
is(left_over($_), '', 'nothing left') foreach $pub, $sub;
done_testing();
