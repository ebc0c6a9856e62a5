# A schema change rewrites a table on the publisher after the snapshot of its copy and before its rows are read, of which the
# snapshot sees none; or exchanges the names of columns.  The table is copied again.

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

# Its columns get each other's names, and that is replicated.
query_all(
	[ $pub, $sub ], "CREATE TABLE n (id int PRIMARY KEY, v text, w text)");
query($pub,
	"CREATE EXTENSION weft; INSERT INTO n VALUES (1, 'v', 'w'); CREATE PUBLICATION names FOR TABLE n WITH (ddl = table)"
);

sub worker_waits
{
	poll($sub,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE $worker AND wait_event_type = 'Lock'"
	);
	return;
}

# The worker has its snapshot, and waits for a session when it sets its origin.
sub subscribe_and_wait
{
	my ($publication, $table, $user) = @_;

	$first->query_safe("BEGIN; LOCK TABLE $table IN SHARE MODE");
	query(
		$sub,
		sprintf
		  "CREATE SUBSCRIPTION sub CONNECTION \$\$%s %s\$\$ PUBLICATION $publication WITH (password_required = false)",
		$pub->connstr('postgres'),
		$user);
	worker_waits();
	$session->query_safe(
		'BEGIN; LOCK TABLE pg_replication_origin IN SHARE MODE');
	$first->query_safe('COMMIT');
	poll($pub,
		"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name LIKE '%sync%' AND confirmed_flush_lsn IS NOT NULL"
	);
	worker_waits();
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
	worker_waits();
	query($pub, $rewrite);
	$session->query_safe('COMMIT');
	check("resynchronization, $what", $log);
	query($sub, 'DROP SUBSCRIPTION sub');
}

my $log = -s $sub->logfile;

subscribe_and_wait('names', 'n', '');
query($pub,
	'BEGIN; ALTER TABLE n RENAME v TO x; ALTER TABLE n RENAME w TO v; ALTER TABLE n RENAME x TO w; COMMIT'
);
$session->query_safe('COMMIT');
$sub->wait_for_log($problem, $log);
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT v, w FROM n'),
	query($pub, 'SELECT v, w FROM n'),
	'the values have the names that they have on the publisher');
is(query($sub, 'SELECT v, w FROM n'), 'w|v', 'and the columns have changed');

$_->quit foreach $session, $first;
$_->stop foreach $pub, $sub;
done_testing();
