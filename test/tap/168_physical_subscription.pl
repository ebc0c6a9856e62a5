# A subscription begins with a physical copy instead of an initial copy, while the publisher is written to:
# by pg_createsubscriber, with Weft loaded on both sides, and from a base backup by hand.  Nothing is lost, and nothing is applied
# twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $conf = <<'EOC';
max_logical_replication_workers = 20
max_worker_processes = 60
wal_retrieve_retry_interval = 100ms
weft.writers_per_subscription = 3
EOC
my $pub = new_publisher('pub', conf => $conf);

query($pub, <<'EOS');
CREATE EXTENSION weft;
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE log (id bigserial PRIMARY KEY, t_id int NOT NULL);
INSERT INTO t SELECT g, 0 FROM generate_series(1, 5000) g;
EOS

my $script = <<'EOS';
\set id random(1, 5000)
BEGIN;
UPDATE t SET n = n + 1 WHERE id = :id;
INSERT INTO log (t_id) VALUES (:id);
COMMIT;
EOS

sub check
{
	my ($sub, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 's_' . $sub->name);
	same_tables($pub, $sub, [qw(t log)], $what);
	is( query(
			$sub,
			'SELECT (SELECT sum(n) FROM t) = (SELECT count(*) FROM log)'),
		't',
		"$what: no row is lost or doubled");
	return;
}

# --- pg_createsubscriber ---

my $load = start_pgbench($pub, { $script => 1 }, '-T', 600, '-c', 4);
$pub->backup('bk');
my $first = PostgreSQL::Test::Cluster->new('first');
$first->init_from_backup($pub, 'bk', has_streaming => 1);
$first->start;
$pub->wait_for_catchup($first, 'replay');
$first->stop;
command_ok(
	[
		'pg_createsubscriber', '--verbose',
		'--pgdata' => $first->data_dir,
		'--publisher-server' => $pub->connstr('postgres'),
		'--socketdir' => $first->host,
		'--subscriber-port' => $first->port,
		'--database' => 'postgres',
		'--publication' => 'p_first',
		'--replication-slot' => 's_first',
		'--subscription' => 's_first'
	],
	'pg_createsubscriber');
$first->start;
poll($first,
	"SELECT count(*) >= 1 FROM weft.stat_writer WHERE subname = 's_first'");
is( query(
		$first,
		'SELECT count(*) FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $$weft$$'
	),
	0,
	'tables of Weft are not subscribed to');
poll($first,
	'SELECT count(*) > (SELECT n FROM (SELECT count(*) AS n FROM log) x) - 1 FROM log'
);

# Its slot uses pgoutput.  A copy of the slot uses Weft's plugin.
is( query(
		$pub,
		"SELECT plugin FROM pg_replication_slots WHERE slot_name = 's_first'"
	),
	'pgoutput',
	'its plugin');
pause_subscription($first, 's_first');
query($pub,
	"SELECT pg_copy_logical_replication_slot('s_first', 's_first_weft', false, 'weft')"
);
query($first,
	"ALTER SUBSCRIPTION s_first SET (slot_name = 's_first_weft'); ALTER SUBSCRIPTION s_first ENABLE"
);
poll($pub,
	"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 's_first'"
);
query($pub, "SELECT pg_drop_replication_slot('s_first')");
poll($pub,
	"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 's_first_weft' AND active AND plugin = 'weft'"
);

# --- from a base backup, by hand ---

query($pub, "CREATE PUBLICATION p_second FOR TABLE t, log");
query($pub, "SELECT pg_create_logical_replication_slot('s_second', 'weft')");
my $timeline = query($pub, 'SELECT weft.server_timeline()');
$pub->backup('second');
my $second = PostgreSQL::Test::Cluster->new('second');
$second->init_from_backup($pub, 'second', has_streaming => 1);
$second->start;
$second->promote;
my $end = query($second, "SELECT weft.timeline_end($timeline)");
like($end, qr/^[0-9A-F]+\/[0-9A-F]+$/, 'the end of the copy is known');
query(
	$second,
	sprintf
	  "CREATE SUBSCRIPTION s_second CONNECTION '%s' PUBLICATION p_second WITH (create_slot = false, copy_data = false, enabled = false)",
	$pub->connstr('postgres') =~ s/'/''/gr);
query($second,
	"SELECT pg_replication_origin_advance('pg_' || oid, '$end') FROM pg_subscription WHERE subname = 's_second'"
);
query($second, 'ALTER SUBSCRIPTION s_second ENABLE');
poll($second,
	"SELECT count(*) >= 1 FROM weft.stat_writer WHERE subname = 's_second'");
my $count = query($second, 'SELECT count(*) FROM log');
poll($second, "SELECT count(*) > $count + 100 FROM log");
stop_load($load);
$_->stop('immediate'), $_->start foreach ($first, $second);
query($first, "ALTER SUBSCRIPTION s_first SET (slot_name = 's_first_weft')");
check($first, 'pg_createsubscriber');
check($second, 'by hand');
is(query($pub, 'SELECT weft.timeline_end(1)'),
	'', 'the current timeline has no end');

$_->stop foreach ($first, $second, $pub);
done_testing();
