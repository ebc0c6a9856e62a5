# weft.compression: what the output plugin sends with and without it; compression
# reduces the traffic; the result is the same; a subscriber or publisher that does not
# support it continues without it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CountingProxy;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

# Weft may have been built without LZ4.
if (query($sub,
		"SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'weft.compression'"
	) eq 'f')
{
	my ($rc, undef, $stderr) =
	  $sub->psql('postgres', "ALTER SYSTEM SET weft.compression = 'lz4'");
	ok($rc != 0 && $stderr =~ /HINT:  Available values: off/,
		'without LZ4 it cannot be set');
	done_testing();
	exit;
}

query_all(
	[ $pub, $sub ],
	'CREATE TABLE accounts (id int PRIMARY KEY, v int);'
	  . ' CREATE TABLE journal (id bigserial PRIMARY KEY, v text);'
	  . ' CREATE TABLE large (id serial PRIMARY KEY, t text, b bytea);'
	  . ' CREATE TABLE plain (id int PRIMARY KEY)');
query($pub, <<'EOS');
INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR TABLE accounts, journal, large;
CREATE PUBLICATION plain FOR TABLE plain;
EOS

my @tables = (
	'accounts', 'journal',
	'(SELECT id, md5(t) AS t, md5(b) AS b FROM large) large');
my $random_bytes =
  q{(SELECT string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(1, %d))};

####
#### What the plugin sends
####

my $LZ4 = 0x02;

query($pub,
	"SELECT pg_create_logical_replication_slot('direct', 'weft', false)");

# What is sent for a row to a receiver with these options.
sub sent
{
	my ($values, %options) = @_;

	query($pub, "INSERT INTO large (t, b) VALUES $values");
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	my $output = $pub->pg_recvlogical_upto(
		'postgres', 'direct', $end, $PostgreSQL::Test::Utils::timeout_default,
		proto_version => 1,
		publication_names => 'pub',
		%options);
	chomp $output;
	return $output;
}

# The type of the first message, and, if it is a batch, whether it is compressed.
sub form
{
	my ($output) = @_;
	my ($type, $flags) = unpack 'a C', $output;
	return $type eq '#' ? ($flags & $LZ4 ? 'lz4' : 'batch') : $type;
}

my $text = 'x' x 5000;
my $row = "('$text', NULL)";
my $ask = 'weft_batch_version';

is(form(sent($row)), 'B', 'without options: as pgoutput');
is(form(sent($row, weft_compression => 'lz4')),
	'B', 'nothing is compressed for receivers without batches');

my $uncompressed = sent($row, $ask => 1);
is(form($uncompressed), 'batch', 'an older subscriber');
like($uncompressed, qr/$text/, 'receives the text uncompressed');
is(form(sent($row, $ask => 2)), 'batch', 'a subscriber without compression');

my $compressed = sent($row, $ask => 2, weft_compression => 'lz4');
is(form($compressed), 'lz4', 'a subscriber with compression');
unlike($compressed, qr/$text/, 'does not receive the text uncompressed');
is( unpack('x2 N', $compressed),
	length($uncompressed) - 2,
	'but receives its length');
cmp_ok(
	length $compressed,
	'<',
	length($uncompressed) / 4,
	'and receives much less');
is(form(sent($row, $ask => 3, weft_compression => 'lz4')),
	'lz4', 'a newer subscriber');

foreach my $case ([ 1, 'lz4' ], [ 2, 'nosuch' ])
{
	my ($version, $method) = @$case;
	my $log_start = -s $pub->logfile;

	is(form(sent($row, $ask => $version, weft_compression => $method)),
		'batch', "version $version with $method: not compressed");
	like(
		slurp_file($pub->logfile, $log_start),
		qr/LOG:  changes of replication slot "\w+" are sent uncompressed\n.*DETAIL:  .*"$method" in batches of version $version\./,
		"version $version with $method: the log says so");
}

# Large enough to be sent before the COMMIT.
is( form(
		sent(
			sprintf("('', $random_bytes)", 6000),
			$ask => 2,
			weft_compression => 'lz4',
			binary => 'true')),
	'batch',
	'incompressible data is sent uncompressed');
query($pub, "SELECT pg_drop_replication_slot('direct')");

####
#### What is on the line, and what is applied
####

my $proxy = CountingProxy->new($pub);

query($sub,
		"CREATE SUBSCRIPTION sub CONNECTION '"
	  . $proxy->connstr
	  . " application_name=sub' PUBLICATION pub WITH (streaming = off)");
wait_for_apply($pub, $sub, 'sub');

sub uses
{
	my ($plugin) = @_;
	poll($sub,
		"SELECT output_plugin = '$plugin' FROM weft.stat_subscription WHERE subname = 'sub'"
	);
	return pass("the subscription uses $plugin");
}

my %load = ( <<'EOS' => 1);
\set id random(1, 100)
BEGIN;
UPDATE accounts SET v = v + 1 WHERE id = :id;
INSERT INTO journal (v) VALUES (repeat('x', :id));
COMMIT;
EOS

# Small transactions, which wait for the subscriber.
sub load_backlog
{
	disable_subscription($sub, 'sub');
	finish(
		start_pgbench(
			$pub, \%load,
			'-c' => 4,
			'-t' => 1000,
			'--random-seed=1'));
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	return;
}

sub load_many_rows
{
	query($pub,
		"INSERT INTO journal (v) SELECT 'row ' || i FROM generate_series(1, 20000) i"
	);
	return;
}

# The traffic of a load until it is applied.
sub cost
{
	my ($load, $what) = @_;
	my $before = $proxy->bytes;

	$load->();
	wait_for_apply($pub, $sub, 'sub');
	my $cost = $proxy->bytes - $before;
	same_tables($pub, $sub, \@tables, "$what: the same on both sides");
	note("$what: $cost bytes");
	return $cost;
}

my %cost;
foreach my $method ('off', 'lz4')
{
	set_conf($sub, 'weft.compression' => $method);
	uses($method eq 'off' ? 'weft' : 'weft (lz4)');
	$cost{$method} = {
		rows => cost(\&load_many_rows, "many rows, $method"),
		backlog => cost(\&load_backlog, "backlog, $method")
	};
}
cmp_ok(
	$cost{lz4}{$_}, '<',
	$cost{off}{$_} / 2,
	"$_: less than half is sent with compression") foreach qw(rows backlog);

# Large rows: perfectly compressible ones and incompressible ones, then small ones
# again, so that the leader's buffer grows and shrinks.
cost(
	sub {
		query($pub, sprintf <<"EOS", 20000);
INSERT INTO large (t) VALUES (repeat('x', 20000000));
INSERT INTO large (t, b) VALUES ('', $random_bytes);
INSERT INTO large (t) SELECT repeat('y', i * 10000) FROM generate_series(1, 50) i;
INSERT INTO journal (v) VALUES ('small');
EOS
	},
	'large rows');

# The leader is terminated while there is a backlog.
my $start = query($sub, 'SELECT max(id) FROM journal');
load_backlog();
foreach my $kill (1 .. 3)
{
	poll($sub, "SELECT max(id) > $start + $kill * 500 FROM journal");
	query($sub,
		"SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE subname = 'sub' AND pid IS NOT NULL"
	);
}
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'the leader was terminated in a backlog');

# From the leader's buffer into the spool, and to the server's own code.
set_conf($pub, logical_decoding_work_mem => '64kB');
pause_subscription($sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET (streaming = on)');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
cost(\&load_many_rows, 'streamed transaction');
cmp_ok(
	query(
		$sub,
		"SELECT coalesce(sum(transactions), 0) FROM weft.stat_writer WHERE writer >= 64"
	),
	'>', 0,
	'it was streamed');
query($sub, 'ALTER SUBSCRIPTION sub SET (streaming = off)');
set_conf($sub, 'weft.writers_per_subscription' => 0);
cost(\&load_backlog, 'without writers');
set_conf($sub, 'weft.writers_per_subscription' => 4);
uses('weft (lz4)');

# The setting is changed under load.
my $load = start_pgbench($pub, \%load, '-c' => 2, '-T' => 600);
foreach my $method ('off', 'lz4', 'off', 'lz4')
{
	set_conf($sub, 'weft.compression' => $method);
	uses($method eq 'off' ? 'weft' : 'weft (lz4)');
}
ok(running($load), 'the load has continued meanwhile');
stop_load($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'changed under load');

####
#### A slot that has another plugin
####

query($pub,
	"SELECT pg_create_logical_replication_slot('plain', 'pgoutput', false)");
my $log_start = -s $sub->logfile;
subscribe($pub, $sub, 'plain', 'plain',
	"slot_name = 'plain', create_slot = off, copy_data = off");
query($pub, 'INSERT INTO plain SELECT generate_series(1, 100)');
wait_for_apply($pub, $sub, 'plain');
same_tables($pub, $sub, ['plain'],
	'a slot with pgoutput continues without compression');
like(
	slurp_file($sub->logfile, $log_start),
	qr/LOG:  changes for subscription "plain" are sent uncompressed\n.*DETAIL:  Slot "plain" does not use the output plugin "weft"\./,
	'and the log says so');

is(errors_logged($sub), '', 'no errors on the subscriber')
  or diag errors_logged($sub);
is(errors_logged($pub), '', 'nor on the publisher')
  or diag errors_logged($pub);

$sub->stop;
$proxy->stop;
done_testing();
