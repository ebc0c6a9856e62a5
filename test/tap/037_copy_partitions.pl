# What an initial copy copies is decided when it begins, whatever happens on the
# publisher in the meantime: partitions are attached, detached, dropped or truncated,
# another table gets the name of the table that is copied, or somebody waits to lock a
# partition.
#
# The copy is held on the subscriber, by a function that waits for an advisory lock of
# the test.

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
my $sub = copy_subscriber('subscriber');

# Wide rows, so that there are many ranges.
query($pub, <<'EOS');
CREATE TABLE parted (id int, t text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10000);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (10000) TO (20000) PARTITION BY RANGE (id);
CREATE TABLE parted_1_0 PARTITION OF parted_1 FOR VALUES FROM (10000) TO (15000);
CREATE TABLE parted_1_1 PARTITION OF parted_1 FOR VALUES FROM (15000) TO (20000);
CREATE TABLE later (id int PRIMARY KEY, t text);
INSERT INTO parted SELECT i, repeat(md5(i::text), 10) FROM generate_series(0, 19999) i;
INSERT INTO later SELECT i, repeat(md5(i::text), 10) FROM generate_series(20000, 39999) i;
CREATE PUBLICATION pub FOR TABLE parted WITH (publish_via_partition_root = true);
CREATE PUBLICATION filtered FOR TABLE parted WHERE (id % 2 = 0)
	WITH (publish_via_partition_root = true, publish = 'insert');
CREATE SCHEMA live;
CREATE SCHEMA next;
CREATE TABLE live.named (id int PRIMARY KEY, t text);
CREATE TABLE next.named (id int PRIMARY KEY, t text);
INSERT INTO live.named SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 20000) i;
INSERT INTO next.named SELECT i, repeat(md5(i::text), 10) FROM generate_series(20001, 40000) i;
CREATE PUBLICATION named FOR TABLE live.named;
EOS
query($sub, <<'EOS');
CREATE FUNCTION wait_for_lock(value int) RETURNS int
IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_lock_shared(1);
	PERFORM pg_catalog.pg_advisory_unlock_shared(1);
	RETURN value;
END
$$;
CREATE TABLE parted (id int PRIMARY KEY, t text);
CREATE SCHEMA live;
CREATE TABLE live.named (id int PRIMARY KEY, t text);
ALTER TABLE parted ADD CHECK (wait_for_lock(id) > -1);
ALTER TABLE live.named ADD CHECK (wait_for_lock(id) > -1);
EOS

my $holder = open_session($sub);

sub hold
{
	$holder->query_safe('SELECT pg_advisory_lock(1)');
	return;
}

sub let_go
{
	$holder->query_safe('SELECT pg_advisory_unlock(1)');
	return;
}

# The copy has begun; with Weft, a range.
sub held
{
	my ($processes) = @_;
	$processes = 1 unless weft();
	poll($sub,
		"SELECT count(*) >= $processes FROM pg_stat_activity WHERE wait_event = 'advisory'"
	);
	return;
}

sub drop_subscription
{
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE parted, live.named');
	return;
}

# Runs a statement that must wait for the copy; returns its session.
sub start_waiting
{
	my ($sql) = @_;
	my $session = open_session($pub);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	poll($pub,
		"SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $pid AND NOT granted)"
	);
	return $session;
}

####
#### Partitions that come and go
####

foreach my $publication ('pub', 'filtered')
{
	my $what = "partitions ($publication)";
	my $where = $publication eq 'filtered' ? 'WHERE id % 2 = 0' : '';
	my $offset = -s $sub->logfile;
	my $expected = rows($pub, "parted $where");

	hold();
	subscribe($pub, $sub, 'sub', $publication);
	held(3);

	# Its old rows are not copied; otherwise all of them would have to be.
	query($pub,
		'ALTER TABLE parted ATTACH PARTITION later FOR VALUES FROM (20000) TO (40000)'
	);
	query($pub, <<'EOS');
CREATE TABLE created (LIKE parted INCLUDING ALL);
ALTER TABLE parted ATTACH PARTITION created FOR VALUES FROM (40000) TO (50000);
EOS
	my $new = 'generate_series(40000, 40100) i';
	query($pub, "INSERT INTO parted SELECT i, 'new' FROM $new");

	# These wait.
	my @sessions = (
		start_waiting('TRUNCATE parted_1_1'),
		start_waiting(
			'ALTER TABLE parted_1 DETACH PARTITION parted_1_0 CONCURRENTLY'),
		start_waiting('DROP TABLE parted_0'));

	let_go();
	poll($sub,
		"SELECT bool_and(srsubstate IN ('s', 'r')) FROM pg_subscription_rel");
	$_->quit foreach @sessions;
	same_rows(rows($sub, 'parted WHERE id < 20000'),
		$expected, "$what: rows of partitions that existed");
	is( query(
			$sub,
			'SELECT count(*) FROM parted WHERE id BETWEEN 20000 AND 39999'),
		0,
		"$what: no row of a partition that was attached later");
	wait_for_apply($pub, $sub, 'sub');
	is( query($sub, 'SELECT count(*) FROM parted WHERE id >= 40000'),
		query($pub, "SELECT count(*) FROM $new $where" =~ s/id/i/r),
		"$what: rows that were added to a partition later");
	cmp_ok(copied_by($sub, 'public.parted', $offset),
		'>', 0, "$what: not left to the server")
	  if weft();
	nothing_left($pub, $what);

	# as it was
	drop_subscription();
	query($pub, <<'EOS');
DROP TABLE created;
ALTER TABLE parted DETACH PARTITION later;
CREATE TABLE IF NOT EXISTS parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10000);
ALTER TABLE parted_1 ATTACH PARTITION parted_1_0 FOR VALUES FROM (10000) TO (15000);
INSERT INTO parted SELECT i, repeat(md5(i::text), 10) FROM generate_series(0, 19999) i
	ON CONFLICT DO NOTHING;
EOS
}

####
#### A partition for which others wait
####

# The worker has locked it; another session waits behind the worker, and is ahead of
# every helper.
SKIP:
{
	skip 'there are no injection points',
	  2
	  unless weft()
	  && ($ENV{enable_injection_points} // '') eq 'yes'
	  && query(
		$sub,
		"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
	  );

	query($sub, <<'EOS');
CREATE EXTENSION injection_points;
SELECT injection_points_attach('weft-copy-locked', 'wait');
EOS
	subscribe($pub, $sub, 'sub', 'pub');
	poll($sub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'weft-copy-locked')"
	);
	my $waiting = start_waiting(
		'BEGIN; LOCK TABLE parted_1_0 IN ACCESS EXCLUSIVE MODE; COMMIT');
	query($sub, <<'EOS');
SELECT injection_points_detach('weft-copy-locked');
SELECT injection_points_wakeup('weft-copy-locked');
EOS
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['parted'],
		'a partition for which others wait: equal');
	$waiting->quit;
	nothing_left($pub, 'a partition for which others wait');
	drop_subscription();
}

####
#### Another table under the same name
####

hold();
my $offset = -s $sub->logfile;
my $before = rows($pub, 'live.named');
# no other attempt before the names are restored
subscribe($pub, $sub, 'sub', 'named', 'disable_on_error = true');
held(3);
query($pub,
	'ALTER SCHEMA live RENAME TO past; ALTER SCHEMA next RENAME TO live');
let_go();

if (weft())
{
	$sub->wait_for_log(qr/another table now has the name/, $offset);
	poll($sub, 'SELECT NOT subenabled FROM pg_subscription');
	is(query($sub, 'SELECT count(*) FROM live.named'),
		0, 'another table under the name: no row of it is copied');
	query($pub,
		'ALTER SCHEMA live RENAME TO next; ALTER SCHEMA past RENAME TO live');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
}
wait_for_apply($pub, $sub, 'sub') if weft();
poll($sub,
	"SELECT bool_and(srsubstate IN ('s', 'r')) FROM pg_subscription_rel");
same_rows(rows($sub, 'live.named'),
	$before, 'another table under the name: the right rows in the end');

$holder->quit;
$sub->stop;
$pub->stop;
done_testing();
