# Copied rows count as older than every change that follows the copy, even if they were
# stored on the subscriber after many of these changes were made.

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

my @nodes = new_members(2);
my ($n1, $n2) = @nodes;

create_tables(\@nodes, <<'EOS', 't');
CREATE TABLE t (id int PRIMARY KEY, v int);
EOS
query($n1, 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i');

# the copy waits for the test, so that there are changes meanwhile
query($n2, <<'EOS');
CREATE FUNCTION wait_for_lock() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_xact_lock_shared(1);
	RETURN true;
END
$$;
ALTER TABLE t ADD CONSTRAINT wait_for_lock CHECK (wait_for_lock());
EOS
my $holder = open_session($n2);
$holder->query_safe('SELECT pg_advisory_lock(1)');
subscribe($n1, $n2, 'from_n1', 'pub', 'origin = none, detect_conflicts = on');
poll($n2,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'advisory'"
);
query($n1, 'UPDATE t SET v = 1 WHERE id <= 10');
query($n1, 'DELETE FROM t WHERE id BETWEEN 11 AND 20');
$holder->quit;
wait_for_apply($n1, $n2, 'from_n1');
same_tables($n1, $n2, ['t'], 'rows that were changed during the copy');
query($n1, 'UPDATE t SET v = v + 1 WHERE id <= 10');
wait_for_apply($n1, $n2, 'from_n1');
same_tables($n1, $n2, ['t'], 'and afterwards');

# Rows that are loaded by other means, under an origin of their own.
query_all(\@nodes, 'TRUNCATE t');
wait_for_apply($n1, $n2, 'from_n1');
query($n1, 'INSERT INTO t SELECT i, 5 FROM generate_series(1, 10) i');
wait_for_apply($n1, $n2, 'from_n1');
cut_off([$n2]);
query($n1, 'UPDATE t SET v = 6');
query($n2, <<'EOS');
SELECT pg_replication_origin_create('copied');
SELECT pg_replication_origin_session_setup('copied');
UPDATE t SET v = 4;
EOS
join_again([$n2]);
wait_for_apply($n1, $n2, 'from_n1');
same_tables($n1, $n2, ['t'],
	'rows of an origin that belongs to no subscription');
is(history($n2, 'conflict_type'), '', 'there was no conflict');

done_testing();
