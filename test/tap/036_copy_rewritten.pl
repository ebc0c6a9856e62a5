# A schema change on the publisher after the snapshot of a table's copy and before its rows are read: it rewrites the table, and
# the snapshot sees no rows; it exchanges the names of columns or tables; or it detaches a partition.  The table is
# copied again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');
my ($session, $first) = map { open_session($sub) } 1 .. 2;
my $worker = "backend_type = 'logical replication tablesync worker'";
my $rewrite = "ALTER TABLE t ALTER v TYPE text USING v || '!'";

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (2500);
CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (2500) TO (10000);
ALTER TABLE t ADD PRIMARY KEY (id);
EOS
query($pub,
	"INSERT INTO t SELECT i, 'new' FROM generate_series(1, 5000) i; CREATE PUBLICATION pub FOR TABLE t WITH (publish_via_partition_root)"
);
query($sub, "CREATE ROLE reader LOGIN");
query($pub,
	"CREATE ROLE reader LOGIN REPLICATION; GRANT SELECT (id, v) ON t TO reader"
);

# What is replicated: columns, or tables, get each other's names; a partition is detached
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE n (id int PRIMARY KEY, v text, w text);
CREATE TABLE x (id int PRIMARY KEY, v text);
CREATE TABLE y (id int PRIMARY KEY, v text);
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20);
EOS
query($pub, <<'EOS');
CREATE EXTENSION weft;
INSERT INTO n VALUES (1, 'v', 'w');
INSERT INTO x VALUES (1, 'x');
INSERT INTO y VALUES (2, 'y');
INSERT INTO parts SELECT i, 'part' FROM generate_series(1, 14) i;
CREATE PUBLICATION columns FOR TABLE n WITH (ddl = table);
CREATE PUBLICATION tables FOR TABLE x, y WITH (ddl = table);
CREATE PUBLICATION parts FOR TABLE parts WITH (ddl = table, publish_via_partition_root);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
INSERT INTO parent SELECT generate_series(1, 10);
CREATE PUBLICATION parent FOR TABLE ONLY parent;
EOS
query($sub, 'CREATE TABLE parent (id int PRIMARY KEY)');

sub workers_wait
{
	my ($number) = @_;

	poll($sub,
		"SELECT count(*) = $number FROM pg_stat_activity WHERE $worker AND wait_event_type = 'Lock'"
	);
	return;
}

# The workers have their snapshots, and wait for a session when they set their origins.
sub subscribe_and_wait
{
	my ($publication, $tables, $user) = @_;
	my $number = () = $tables =~ /\w+/g;

	$first->query_safe("BEGIN; LOCK TABLE $tables IN SHARE MODE");
	query(
		$sub,
		sprintf
		  "CREATE SUBSCRIPTION sub CONNECTION \$\$%s %s\$\$ PUBLICATION $publication WITH (password_required = false)",
		$pub->connstr('postgres'),
		$user);
	workers_wait($number);
	$session->query_safe(
		'BEGIN; LOCK TABLE pg_replication_origin IN SHARE MODE');
	$first->query_safe('COMMIT');
	poll($pub,
		"SELECT count(*) = $number FROM pg_replication_slots WHERE slot_name LIKE '%sync%' AND confirmed_flush_lsn IS NOT NULL"
	);
	workers_wait($number);
	return;
}

my $problem =
  qr/ERROR:  table public\.\w+ got a new file or other columns on the publisher when its copy began/;

sub check
{
	my ($what, $log) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$sub->wait_for_log($problem, $log);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], $what);
	is(query($sub, 'SELECT count(*) FROM t'),
		5000, "$what: the rows are there");
	return;
}

# With helpers, by the server's own command, and by a role that may not lock the table
foreach my $case ([ 2, '' ], [ 0, '' ], [ 2, 'user=reader' ])
{
	my ($helpers, $user) = @$case;
	my $what = "$helpers helpers $user";
	my $log = -s $sub->logfile;

	set_conf($sub, 'weft.copy_workers_per_table' => $helpers);
	query($sub, 'TRUNCATE t');
	subscribe_and_wait('pub', 't', $user);
	query($pub, $rewrite);
	$session->query_safe('COMMIT');
	check("copy, $what", $log);

	attach_point($sub, 'weft-replace-deleted');
	$log = -s $sub->logfile;
	query($sub, "SELECT weft.resync_table('sub', 't')");
	held_at($sub, 'weft-replace-deleted');
	$session->query_safe(
		'BEGIN; LOCK TABLE pg_replication_origin IN SHARE MODE');
	release_point($sub, 'weft-replace-deleted');
	workers_wait(1);
	query($pub, $rewrite);
	$session->query_safe('COMMIT');
	check("resynchronization, $what", $log);
	query($sub, 'DROP SUBSCRIPTION sub');
}

# A schema change that is replicated
sub changes
{
	my ($publication, $tables, $change, @queries) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $log = -s $sub->logfile;

	subscribe_and_wait($publication, $tables, '');
	query($pub, $change);
	$session->query_safe('COMMIT');
	$sub->wait_for_log($problem, $log);
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, $_), query($pub, $_), "$publication: $_") foreach @queries;
	query($sub, 'DROP SUBSCRIPTION sub');
	return;
}

changes(
	'columns',
	'n',
	'BEGIN; ALTER TABLE n RENAME v TO a; ALTER TABLE n RENAME w TO v; ALTER TABLE n RENAME a TO w; COMMIT',
	'SELECT v, w FROM n');
changes(
	'tables',
	'x, y',
	'BEGIN; ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; ALTER TABLE z RENAME TO y; COMMIT',
	'SELECT * FROM x',
	'SELECT * FROM y');
changes(
	'parts', 'parts',
	'ALTER TABLE parts DETACH PARTITION high', 'SELECT count(*) FROM parts');

# A child that is not copied does not matter.
my $end = -s $sub->logfile;
subscribe_and_wait('parent', 'parent', '');
query($pub, 'TRUNCATE child');
$session->query_safe('COMMIT');
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM parent'), 10, 'the parent was copied');
ok(!$sub->log_contains($problem, $end), 'at once');

$_->quit foreach $session, $first;
$_->stop foreach $pub, $sub;
done_testing();
