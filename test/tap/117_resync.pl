# weft.resync_table(): a table is copied again while others are applied.  Readers, whatever
# their snapshot is, see all the old rows or all the new ones; whatever happens to the copy,
# no row is lost or doubled.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use InjectionTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $rows = $ENV{WEFT_ROWS} // 20000;
my $pub = new_publisher('publisher', conf => 'restart_after_crash = on');
my $sub = copy_subscriber('subscriber', conf => 'restart_after_crash = on');

# Without a unique index, rows that are copied to old ones are stored twice.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE);
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE);
CREATE TABLE nokey (id int, v text);
ALTER TABLE nokey REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
CREATE TABLE fires (id int PRIMARY KEY, v text);
CREATE TABLE tags (id int PRIMARY KEY, v int[]);
CREATE TABLE other (id int PRIMARY KEY, n int);
EOS
query($pub, <<"EOS");
INSERT INTO t SELECT i, 'new', i FROM generate_series(1, $rows) i;
INSERT INTO child SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO nokey SELECT i, 'new' FROM generate_series(1, $rows) i;
INSERT INTO parted SELECT i, 'new' FROM generate_series(1, $rows) i;
INSERT INTO numbered (v) SELECT 'new' FROM generate_series(1, 1000) i;
INSERT INTO fires SELECT i, 'new' FROM generate_series(1, 1000) i;
INSERT INTO tags SELECT i, ARRAY[i] FROM generate_series(1, 1000) i;
INSERT INTO other SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true);
EOS
query($sub, <<'EOS');
CREATE INDEX ON t (v);
CREATE INDEX ON tags USING gin (v);
CREATE TABLE fired (op text, n int);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.fired VALUES (TG_OP, coalesce(NEW.id, OLD.id));
	RETURN NULL;
END
$$;
CREATE TRIGGER t AFTER INSERT OR DELETE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER quiet AFTER INSERT OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION fire();
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER TABLE fires ENABLE ALWAYS TRIGGER t');

my @tables = qw(t child nokey parted numbered fires tags other);
my $number = 0;

# Changes all rows of a table here, and adds some.
sub spoil
{
	my ($table) = @_;
	query($sub, <<"EOS");
BEGIN;
UPDATE $table SET v = 'old';
INSERT INTO $table SELECT i, 'old' FROM generate_series(10 * $rows, 10 * $rows + 99) i;
COMMIT;
TRUNCATE fired;
EOS
	return;
}

sub resync
{
	my ($table) = @_;
	query($sub, "SELECT weft.resync_table('sub', '$table')");
	return;
}

sub resynced
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	query($pub, "UPDATE other SET n = n + 1");
	all_applied($pub, $sub, \@tables, $what);
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	is( query($sub,
			"SELECT string_agg(roname, ' ') FROM pg_replication_origin WHERE roname !~ '^pg_\\d+\$'"
		),
		'',
		"$what: no replication origin is left");
	return;
}

# Ordinary and partitioned tables, with helpers and without.
foreach my $table (qw(t nokey parted))
{
	foreach my $workers (3, 0)
	{
		my $what = "$table, $workers helpers";
		set_conf($sub, 'weft.copy_workers_per_table', $workers);
		spoil($table);
		my $offset = -s $sub->logfile;
		resync($table);
		resynced($what);
		is(copied_by($sub, "public.$table", $offset) > 0 ? 1 : 0,
			$workers > 0 ? 1 : 0, "$what: who copies");
	}
}
set_conf($sub, 'weft.copy_workers_per_table', 3);
is(query($sub, "SELECT count(*) FROM child"), 100, 'foreign keys do not cascade');
is(query($sub, "SELECT count(*) FROM fired"), 0, 'only triggers for replicas fire');

# Triggers that fire on replicas, identity columns, and an index that helpers must not fill.
resync($_) foreach qw(fires);
wait_for_apply($pub, $sub, 'sub');
is( query(
		$sub,
		"SELECT string_agg(op || ' ' || c, ', ' ORDER BY op) FROM (SELECT op, count(*) c FROM fired GROUP BY op) o"
	),
	'DELETE 1000, INSERT 1000',
	'triggers that fire on replicas see each row');
query($sub, "UPDATE numbered SET v = 'old' WHERE id < 10; DELETE FROM tags WHERE id > 500");
my $offset = -s $sub->logfile;
resync('numbered');
wait_for_apply($pub, $sub, 'sub');
resync('tags');
resynced('identity column, GIN');
like(
	left_to_server($sub, 'public.tags', $offset),
	qr/an index that only one process/,
	'helpers do not fill a GIN index');

done_testing();
