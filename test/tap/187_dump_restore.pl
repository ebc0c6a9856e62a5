# pg_dump and pg_restore of a subscriber and of a publisher: Weft's options of subscriptions and publications
# survive.  A restored subscription is disabled, and its slot is another server's; the restored database follows the
# publisher with a slot of its own, and the original is not disturbed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $conf = "track_commit_timestamp = on\nmax_replication_slots = 20";
my $pub = new_publisher('pub', conf => $conf);
my $sub = new_subscriber('sub', conf => $conf);
my $directory = $PostgreSQL::Test::Utils::tmp_check;

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE log (id bigserial PRIMARY KEY, t_id int NOT NULL);
EOS
query($pub, <<'EOS');
CREATE EXTENSION weft;
INSERT INTO t SELECT g, 0 FROM generate_series(1, 500) g;
CREATE PUBLICATION p FOR TABLE t, log WITH (ddl = table);
CREATE PUBLICATION everything FOR ALL TABLES WITH (ddl = all);
EOS
query($pub, 'CREATE TABLE remembered (id int PRIMARY KEY)');
subscribe($pub, $sub, 's', 'p',
	'num_writers = 3, detect_conflicts = on, ddl = off');
wait_for_apply($pub, $sub, 's');

my $load =
  start_pgbench($pub, { <<'EOS' => 1 }, '-T' => 600, '-c' => 3, '-R' => 200);
\set id random(1, 500)
BEGIN;
UPDATE t SET n = n + 1 WHERE id = :id;
INSERT INTO log (t_id) VALUES (:id);
COMMIT;
EOS
poll($sub, 'SELECT count(*) > 300 FROM log');

sub transfer
{
	my ($from, $to, @options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $file = "$directory/" . $from->name . '.dump';

	$from->command_ok(
		[
			'pg_dump', '-Fc', @options, '-f', $file,
			$from->connstr('postgres')
		],
		$from->name . ' is dumped');
	$to->command_ok(
		[
			'pg_restore', '--exit-on-error',
			'-d', $to->connstr('postgres'),
			$file
		],
		'... and restored');
	return;
}

# --- a subscriber ---

my $restored = new_subscriber('restored', conf => $conf);
query($restored, 'DROP EXTENSION weft; DROP SCHEMA weft');
transfer($sub, $restored);
my $label =
  q(SELECT label FROM pg_shseclabel l JOIN pg_subscription s ON l.objoid = s.oid WHERE subname = 's' AND provider = 'weft');
is( query($restored, $label),
	query($sub, $label),
	'options of the subscription');
is( query($restored, $label),
	'num_writers=3, detect_conflicts=on, ddl=off',
	'all of them');
is(query($restored, 'SELECT subenabled, subslotname FROM pg_subscription'),
	'f|s', 'it is disabled, with the slot of the original');
is(query($restored, 'SELECT count(*) FROM pg_subscription_rel'),
	0, 'it knows no tables');
is( query(
		$restored,
		'SELECT extversion FROM pg_extension WHERE extname = $$weft$$'),
	query(
		$sub, 'SELECT extversion FROM pg_extension WHERE extname = $$weft$$'),
	'the extension');

# With a slot of its own, and the tables copied again.
query($restored, <<'EOS');
TRUNCATE t, log;
ALTER SUBSCRIPTION s SET (slot_name = 's_restored');
EOS
query($pub,
	q(SELECT pg_create_logical_replication_slot('s_restored', 'weft')));
query($restored, <<'EOS');
ALTER SUBSCRIPTION s ENABLE;
ALTER SUBSCRIPTION s REFRESH PUBLICATION;
EOS
poll($restored,
	q(SELECT count(*) = 2 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel)
);
my $count = query($restored, 'SELECT count(*) FROM log');
poll($restored, "SELECT count(*) > $count + 300 FROM log");
is( query(
		$restored,
		q(SELECT num_writers FROM weft.stat_subscription WHERE subname = 's')
	),
	3,
	'it has its writers');

# --- a publisher, in use; only the schema is wanted by a new server ---

my $new = new_publisher('new', conf => $conf);
transfer($pub, $new, '--schema-only');
my $labels =
  q(SELECT string_agg(pubname || ' ' || label, ', ' ORDER BY pubname) FROM pg_publication p JOIN pg_seclabel l ON l.objoid = p.oid AND provider = 'weft');
is( query($new, $labels),
	'everything ddl=all, p ddl=table',
	'options of publications');
is( query(
		$new,
		q(SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = 'p')
	),
	'ddl_queue log t',
	'with the table of schema changes');
note('captured by the restore: '
	  . query($new, 'SELECT statement FROM weft.ddl_history'));
is( query(
		$new,
		q(SELECT count(*) FROM weft.ddl_history WHERE statement ~ 'remembered')
	),
	0,
	'but without the history');
my $follower = new_subscriber('follower', conf => $conf);
query($follower,
	'CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL); CREATE TABLE log (id bigserial PRIMARY KEY, t_id int NOT NULL)'
);
subscribe($new, $follower, 'f', 'p');
query($new,
	'INSERT INTO t VALUES (1, 1); ALTER TABLE t ADD COLUMN added int DEFAULT 5; INSERT INTO t VALUES (2, 2)'
);
wait_for_apply($new, $follower, 'f');
same_tables($new, $follower, ['t'],
	'the restored publisher publishes rows and schema changes');
is(query($follower, 'SELECT count(added) FROM t'), 2, 'with the column');

end_load($load);
foreach my $node ($sub, $restored)
{
	wait_for_apply($pub, $node, 's');
	same_tables($pub, $node, [qw(t log)],
		$node->name . ' has what the publisher has');
}
$_->stop foreach $follower, $new, $restored, $sub, $pub;
done_testing();
