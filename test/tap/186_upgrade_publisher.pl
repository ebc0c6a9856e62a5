# pg_upgrade of a publisher that is in no group, with writes right before and after it: its slots, which use
# Weft's output plugin, and its publications with "ddl" survive, and subscribers go on where they were.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
my $previous = previous_server();
plan skip_all => 'needs the previous major version, which Weft supports, too'
  unless $previous;

my $pub = new_member('pub', install_path => $previous);
my $sub = new_subscriber('sub', conf => 'max_replication_slots = 20');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE log (id bigserial PRIMARY KEY, t_id int NOT NULL);
CREATE TABLE late (id int PRIMARY KEY);
EOS
query($pub, <<'EOS');
INSERT INTO t SELECT g, 0 FROM generate_series(1, 500) g;
CREATE PUBLICATION p FOR TABLE t, log WITH (ddl = table);
CREATE PUBLICATION p_late FOR TABLE late;
EOS
subscribe($pub, $sub, 's', 'p', 'num_writers = 3');
subscribe($pub, $sub, 'late', 'p_late');
wait_for_apply($pub, $sub, $_) foreach qw(s late);

my $state = <<'EOS';
SELECT string_agg(concat_ws(' ', slot_name, plugin, two_phase, failover), E'\n' ORDER BY slot_name) FROM pg_replication_slots
UNION ALL SELECT string_agg(concat_ws(' ', pubname, schemaname, tablename), E'\n' ORDER BY pubname, schemaname, tablename) FROM pg_publication_tables
UNION ALL SELECT string_agg(concat_ws(' ', p.pubname, l.label), E'\n') FROM pg_publication p JOIN pg_seclabel l ON l.objoid = p.oid AND l.provider = 'weft'
UNION ALL SELECT string_agg(statement, E'\n' ORDER BY id) FROM weft.ddl_history
EOS
my $script = <<'EOS';
\set id random(1, 500)
BEGIN;
UPDATE t SET n = n + 1 WHERE id = :id;
INSERT INTO log (t_id) VALUES (:id);
COMMIT;
EOS

my $load =
  start_pgbench($pub, { $script => 1 }, '-T' => 600, '-c' => 3, '-R' => 300);
query($pub, 'ALTER TABLE t ADD COLUMN before_upgrade int DEFAULT 1');
poll($sub, 'SELECT count(*) > 300 FROM log');

# A subscriber that is behind must catch up before: its slot could not be transferred.
pause_subscription($sub, 'late');
query($pub, 'INSERT INTO late VALUES (1)');
stop_load($load);
my $state_before = query($pub, $state);
like(
	$state_before,
	qr/^late weft .*^s weft .*^p weft ddl_queue\n.*ddl=table/ms,
	'slots, and a publication with schema changes');
$pub->stop;
my $bindir = $pub->config_data('--bindir');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $spare = new_member(
	'spare',
	stopped => 1,
	extra => [ major() >= 18 ? '--no-data-checksums' : () ]);
chdir $PostgreSQL::Test::Utils::tmp_check;
command_checks_all(
	[
		'pg_upgrade', '--check',
		'--old-datadir' => $pub->data_dir,
		'--new-datadir' => $spare->data_dir,
		'--old-bindir' => $bindir,
		'--new-bindir' => $spare->config_data('--bindir'),
		'--socketdir' => $spare->host,
		'--old-port' => $port,
		'--new-port' => $port
	],
	1,
	[qr/logical replication slots that can(no|')t be upgraded/],
	[],
	'pg_upgrade refuses a slot that is behind');
$pub->start;
query($sub, 'ALTER SUBSCRIPTION late ENABLE');
wait_for_apply($pub, $sub, 'late');

# Writes up to the moment at which the server stops, which waits for connected subscribers.
$load =
  start_pgbench($pub, { $script => 1 }, '-T' => 600, '-c' => 3, '-R' => 300);
my $count = query($pub, 'SELECT count(*) FROM log');
poll($pub, "SELECT count(*) > $count + 300 FROM log");
$pub->stop;
finish($load, may_fail => 1);

my $new = upgrade_server($pub);
is(query($new, $state),
	$state_before, 'slots, publications and history are as before');
$load =
  start_pgbench($new, { $script => 1 }, '-T' => 600, '-c' => 3, '-R' => 300);
query($new, 'ALTER TABLE t ADD COLUMN after_upgrade int DEFAULT 2');
query($new, 'INSERT INTO late VALUES (2)');
$count = query($sub, 'SELECT count(*) FROM log');
poll($sub, "SELECT count(*) > $count + 300 FROM log");
end_load($load);

sub check
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($new, $sub, $_) foreach qw(s late);
	same_tables($new, $sub, [qw(t log late)], $what);
	is( query(
			$sub,
			'SELECT (SELECT sum(n) FROM t) = (SELECT count(*) FROM log)'),
		't',
		"$what: no row is lost or doubled");
	return;
}

check('after the upgrade');
is( query(
		$sub,
		q(SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 2)
	),
	'before_upgrade after_upgrade',
	'schema changes of before and after');
is( query(
		$sub,
		'SELECT min(num_writers) FROM weft.stat_subscription WHERE subname = $$s$$'
	),
	3,
	'writers are at work');
$new->stop('immediate');
$new->start;
query($new,
	'INSERT INTO log (t_id) VALUES (7); UPDATE t SET n = n + 1 WHERE id = 7');
check('after a crash');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } $new, $pub, $sub),
	0, 'no server has failed');

$_->stop foreach $sub, $new;
done_testing();
