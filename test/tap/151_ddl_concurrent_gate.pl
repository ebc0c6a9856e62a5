# In a node group, a schema change with a group lock follows CREATE INDEX CONCURRENTLY, whose worker on another
# member has not locked the table yet when the group lock holds it there: the worker gives way, and nothing fails.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use InjectionTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
need_injection_points();

my @nodes = map { new_member($_) } qw(a b);
my ($a, $b) = @nodes;

query($a,
	'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 100) i'
);
create_group($a, 'g');
join_group($b, $a, 'g');
wait_for_group('g', @nodes);
query($b, 'CREATE EXTENSION weft_injection');

attach_point($b, 'weft-ddl-worker-lock');
query($a, 'CREATE INDEX CONCURRENTLY t_v ON t (v)');
my ($worker) = held_at($b, 'weft-ddl-worker-lock');
my $session = open_session($a);
$session->query_safe('BEGIN; ALTER TABLE t ALTER COLUMN v TYPE bigint');
release_point($b, 'weft-ddl-worker-lock');
# it has looked for a deadlock, and does not look again
poll($b,
	"SELECT coalesce(min(clock_timestamp() - waitstart) > interval '0.5 s', false) FROM pg_locks WHERE pid = $worker AND NOT granted"
);
$session->query_safe('COMMIT');
$session->quit;
wait_for_group('g', @nodes);
poll($b,
	"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('t_v')");
same_on_all(\@nodes, ['t'], 'rows are the same');
is( query(
		$_,
		q(SELECT string_agg(result || ' ' || coalesce(detail, ''), ', ') FROM weft.ddl_history WHERE result NOT IN ('captured', 'applied'))
	),
	'',
	$_->name . ': all schema changes have succeeded') foreach @nodes;
is( query(
		$b,
		"SELECT string_agg(format_type(atttypid, atttypmod), '') FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'v'"
	),
	'bigint',
	'the column has its new type');
my $log = slurp_file($b->logfile);
unlike($log, qr/deadlock detected/, 'nobody was canceled by a deadlock');
like($log, qr/gives way to a later one/, 'the worker has given way');

$_->stop foreach $b, $a;
done_testing();
