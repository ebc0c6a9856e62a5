# Indexes that cannot be built after an initial copy has stored the rows: they are filled
# row by row, as in the server's own copy.  If that fails, too, the next attempt is left
# to the server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber', conf => <<'EOC');
maintenance_work_mem = 1MB
max_parallel_maintenance_workers = 0
temp_file_limit = 64kB
EOC

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE large (id int PRIMARY KEY, t text, v int);
CREATE TABLE parted (id int PRIMARY KEY, t text) PARTITION BY RANGE (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (100) TO (1000000);
CREATE TABLE twice (id int, v int);
CREATE TABLE picky (id int PRIMARY KEY, v int);
EOS
query($pub, <<'EOS');
INSERT INTO large SELECT i, repeat(md5(i::text), 3), i FROM generate_series(1, 30000) i;
INSERT INTO parted SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, 30000) i;
INSERT INTO twice SELECT i / 2, i FROM generate_series(1, 10000) i;
INSERT INTO picky SELECT i, i FROM generate_series(1, 10000) i;
CREATE PUBLICATION pub FOR TABLE large, parted, twice WITH (publish_via_partition_root = true);
CREATE PUBLICATION picky FOR TABLE picky;
EOS
query($sub, <<'EOS');
CREATE ROLE owner;
CREATE UNIQUE INDEX ON large (t);
CREATE INDEX ON large (v) WHERE v % 100 = 0;
CREATE INDEX ON parted (t);
CREATE FUNCTION who(int) RETURNS text IMMUTABLE PARALLEL SAFE LANGUAGE sql AS 'SELECT $1 || current_user::text';
CREATE INDEX large_who ON large (who(v), t);
GRANT CREATE ON SCHEMA public TO owner;
ALTER TABLE large OWNER TO owner;
ALTER TABLE twice ADD UNIQUE (id) DEFERRABLE;
CREATE FUNCTION only_while_copying(int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_copy WHERE pid = pg_catalog.pg_backend_pid()) THEN
		RAISE EXCEPTION 'nothing is copied';
	END IF;
	RETURN $1;
END
$$;
CREATE INDEX ON picky (only_while_copying(v));
EOS

####
#### Sorting needs more space than it may have
####

my $offset = -s $sub->logfile;
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
# these tests sort, too
set_conf($sub, temp_file_limit => -1);
same_tables($pub, $sub, [qw(large parted twice)], 'temp_file_limit: equal');
is(errors_logged($sub, $offset), '', 'temp_file_limit: no errors');
is( query(
		$sub,
		"SET enable_seqscan = off; SELECT v FROM large WHERE who(v) = '7owner'"
	),
	7,
	'temp_file_limit: expressions have the rights of the owner') if weft();
query($sub, 'DROP INDEX large_who');
query($sub, 'ALTER TABLE twice DROP CONSTRAINT twice_id_key');
indexes_sound($sub, 'temp_file_limit');
nothing_left($pub, 'temp_file_limit');

if (weft())
{
	foreach my $table (qw(large parted twice))
	{
		cmp_ok(copied_by($sub, "public.$table", $offset),
			'>', 0, "temp_file_limit: Weft has copied $table");
	}
	my $log = slurp_file($sub->logfile, $offset);
	foreach my $index (qw(large_t_idx parted_1_t_idx))
	{
		like(
			$log,
			qr/index "$index" could not be built after an initial copy, so it is filled row by row: temporary file size exceeds/,
			"temp_file_limit: the log says it of $index");
	}
	unlike(
		$log,
		qr/index "parted_0_t_idx" could not be built/,
		'temp_file_limit: indexes that can be built are built');
}

####
#### Neither building nor filling succeeds
####

$offset = -s $sub->logfile;
subscribe($pub, $sub, 'picky', 'picky');
poll($sub,
	"SELECT srsubstate IN ('s', 'r') FROM pg_subscription_rel WHERE srrelid = 'picky'::regclass"
);
is(query($sub, 'SELECT count(*) FROM picky'),
	10000, 'the server copies it the next time');
is( left_to_server($sub, 'public.picky', $offset),
	'its indexes could not be built in an earlier attempt',
	'... and the log says why') if weft();

$sub->stop;
$pub->stop;
done_testing();
