# An initial copy and other sessions' locks: REINDEX on the publisher; sessions on the
# subscriber that read the table, or wait for it.
#
# The copy is held by functions of the subscriber that wait for an advisory lock of the
# test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE plain (id int PRIMARY KEY, t text);
CREATE TABLE used (id int PRIMARY KEY, v int, t text, j jsonb, EXCLUDE (v WITH =));
CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
EOS
query($pub, <<'EOS');
INSERT INTO plain SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 20000) i;
INSERT INTO used SELECT i, -i, md5(i::text), jsonb_build_object('i', i) FROM generate_series(1, 20000) i;
INSERT INTO parted SELECT i, i FROM generate_series(1, 20000) i;
CREATE PUBLICATION plain FOR TABLE plain;
CREATE PUBLICATION used FOR TABLE used;
CREATE PUBLICATION parted FOR TABLE parted WITH (publish_via_partition_root = true);
EOS
query($sub, <<'EOS');
CREATE FUNCTION wait_for_lock(key int, value int) RETURNS int
IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_lock_shared(key);
	PERFORM pg_catalog.pg_advisory_unlock_shared(key);
	RETURN value;
END
$$;
ALTER TABLE plain ADD CHECK (id <= 10000 OR wait_for_lock(1, id) > 0),
	ADD CHECK (id <= 17000 OR wait_for_lock(2, id) > 0);
ALTER TABLE used ADD CHECK (wait_for_lock(1, id) > 0);
ALTER TABLE parted ADD CHECK (wait_for_lock(1, id) > 0);
CREATE INDEX used_held ON used (wait_for_lock(2, v));
CREATE INDEX used_partial ON used (t) WHERE id % 7 = 0;
CREATE UNIQUE INDEX used_unique ON used (t) INCLUDE (v);
CREATE INDEX used_gin ON used USING gin (j);
CREATE INDEX used_hash ON used USING hash (t);
CREATE INDEX used_brin ON used USING brin (id);
EOS

my $holder = open_session($sub);

sub hold
{
	$holder->query_safe("SELECT pg_advisory_lock($_)") foreach @_;
	return;
}

sub let_go
{
	$holder->query_safe("SELECT pg_advisory_unlock($_)") foreach @_;
	return;
}

sub held
{
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'advisory')"
	);
	return;
}

# Runs a statement that may have to wait; returns its session.
sub start_statement
{
	my ($node, $sql) = @_;
	my $session = open_session($node);

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	return $session;
}

sub synchronized
{
	poll($sub,
		"SELECT bool_and(srsubstate IN ('s', 'r')) FROM pg_subscription_rel");
	return;
}

sub drop_subscription
{
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE plain, used, parted');
	return;
}

####
#### Indexes on the publisher
####

foreach my $helpers (0, 1)
{
	my $what = $helpers ? 'a helper' : "the table's worker";
	my $file =
	  "SELECT relfilenode FROM pg_class WHERE oid = 'plain_pkey'::regclass";
	my $before = query($pub, $file);

	set_conf($sub, 'weft.max_copy_workers' => $helpers);
	hold(1, 2);
	my $offset = -s $sub->logfile;
	subscribe($pub, $sub, 'sub', 'plain');
	held();
	is( query(
			$pub,
			"SELECT count(*) FROM pg_locks WHERE relation = 'plain_pkey'::regclass"
		),
		1,
		"$what: only processes that copy a range lock the index");

	# It waits for one range, and not for the ranges that follow.
	my $reindex = start_statement($pub, 'REINDEX INDEX plain_pkey');
	poll($pub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'plain_pkey'::regclass AND NOT granted)"
	);
	let_go(1);
	poll($pub, "SELECT ($file) <> $before");
	held();
	isnt(query($sub, "SELECT phase FROM weft.copy_progress"),
		'done', "$what: REINDEX does not wait for the whole copy");
	query($pub,
		"SET statement_timeout = '60s'; UPDATE plain SET t = 'new' WHERE id = $helpers + 1"
	);
	let_go(2);
	$reindex->quit;
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['plain'], "$what: equal");
	is(copied_by($sub, 'public.plain', $offset),
		1, "$what: one process has copied it");
	is(errors_logged($sub, $offset), '', "$what: no errors");
	nothing_left($pub, $what);
	drop_subscription();
}
set_conf($sub, 'weft.max_copy_workers' => 16);

####
#### Readers on the subscriber
####

# One session is idle in its transaction; one analyzes the table that it has read; nobody
# waits for locks for long.
sub read_while_copying
{
	my ($table, $partition) = @_;
	my $offset = -s $sub->logfile;
	my $idle = open_session($sub);
	my $analyzing = open_session($sub);

	set_conf($sub, lock_timeout => '10ms');
	$idle->query_safe("BEGIN; SELECT count(*) FROM $partition");
	$analyzing->query_safe(
		"SET lock_timeout = 0; BEGIN; SELECT count(*) FROM $partition");
	hold(1, 2);
	subscribe($pub, $sub, 'sub', $table);
	held();
	$analyzing->query_until(qr/begun/, "\\echo begun\nANALYZE $partition;\n");
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE relation = '$partition'::regclass AND NOT granted)"
	);
	let_go(1);

	# Only "used" has an index that can be blocked.
	if ($table eq 'used')
	{
		poll($sub,
			"SELECT EXISTS (SELECT FROM weft.copy_progress WHERE phase = 'indexing')"
		);
		held();
		is( query(
				$sub,
				"SET statement_timeout = '60s'; SET lock_timeout = 0; SELECT count(*) FROM $table"
			),
			0,
			"$table: others can read it");
	}
	let_go(2);
	synchronized();
	$idle->query_safe('COMMIT');
	$idle->quit;
	$analyzing->query_safe('COMMIT');
	$analyzing->quit;
	set_conf($sub, lock_timeout => 0);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [$table], "$table: equal");
	indexes_sound($sub, $table);
	cmp_ok(copied_by($sub, "public.$table", $offset),
		'>', 0, "$table: Weft has copied it");
	is(errors_logged($sub, $offset), '', "$table: no errors");
	like(
		slurp_file($sub->logfile, $offset),
		qr/indexes of table "$table" are filled row by row/,
		"$table: the log shows what was done");
	return;
}

read_while_copying('used', 'used');
foreach my $case (
	[ 'gin', 'bitmapscan', "j @> '{\"i\": 7}'" ],
	[ 'hash', 'indexscan', "t = md5('7')" ],
	[ 'brin', 'bitmapscan', 'id BETWEEN 7 AND 9' ],
	[ 'partial', 'indexscan', "t = md5('7') AND id % 7 = 0" ])
{
	my ($index, $scan, $condition) = @$case;
	my $sql = "SELECT count(*) FROM used WHERE $condition";
	my $others = join '', map { "DROP INDEX used_$_;" }
	  grep { $_ ne $index } qw(unique gin hash brin partial held);
	my $expected = query($pub, $sql);

	is( query(
			$sub, "BEGIN; $others SET enable_seqscan = off; $sql; ROLLBACK"),
		$expected,
		"used: a $index index has all rows");
}
my ($ret, $stdout, $stderr) =
  $sub->psql('postgres', "INSERT INTO used (id, v) VALUES (30000, -7)");
like(
	$stderr,
	qr/conflicting key value violates exclusion constraint/,
	'used: an exclusion constraint covers all rows');
drop_subscription();

read_while_copying('parted', 'parted_1');
drop_subscription();

$holder->quit;
$sub->stop;
$pub->stop;
done_testing();
