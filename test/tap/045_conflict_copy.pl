# Rows that were copied are older than every change that comes behind, though
# they were stored here later than many of these were made.

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

# the copy takes its time, so that there are changes meanwhile
query($n2, <<'EOS');
CREATE FUNCTION dawdle() RETURNS bool LANGUAGE sql AS $$ SELECT pg_sleep(0.002) IS NOT NULL $$;
ALTER TABLE t ADD CONSTRAINT dawdle CHECK (dawdle());
EOS
subscribe($n1, $n2, 'from_n1', 'pub', 'origin = none, detect_conflicts = on');
poll($n2, "SELECT count(*) > 0 FROM pg_stat_progress_copy");
query($n1, 'UPDATE t SET v = 1 WHERE id <= 10');
query($n1, 'DELETE FROM t WHERE id BETWEEN 11 AND 20');
wait_for_apply($n1, $n2, 'from_n1');
same_tables($n1, $n2, ['t'], 'what was changed while it was copied');
query($n1, 'UPDATE t SET v = v + 1 WHERE id <= 10');
wait_for_apply($n1, $n2, 'from_n1');
same_tables($n1, $n2, ['t'], 'and afterwards');

# Rows that are brought by other means, under an origin of their own.
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
same_tables($n1, $n2, ['t'], 'rows of an origin that is no subscription');
is(history($n2, 'conflict_type'), '', 'there was no conflict');

done_testing();
