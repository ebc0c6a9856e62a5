# Publishers of earlier major versions.
#
# The test looks for them where Debian installs them.  For other places,
# WEFT_PG15_BINDIR names the directory with the programs of PostgreSQL 15, and so on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my %install_paths;
foreach my $major (15 .. 17)
{
	my $path = install_path_of($major);
	$install_paths{$major} = $path if $path;
}
my ($own_major) = qx(pg_config --version) =~ /PostgreSQL (\d+)/;
delete $install_paths{$_}
  foreach grep { $_ >= $own_major } keys %install_paths;
plan skip_all =>
  "no PostgreSQL from 15 to @{[ $own_major - 1 ]} with pg_config is installed"
  unless %install_paths;

my @tables = qw(accounts journal large types);
my $random = <<'EOS';
\set a random(1, 50)
\set b :a + random(1, 50)
\set rows random(1, 300)
\set dice random(1, 4)
EOS
my %scripts = (
	"$random
BEGIN;
INSERT INTO journal DEFAULT VALUES;
UPDATE accounts SET v = v - :rows WHERE id = :a;
UPDATE accounts SET v = v + :rows WHERE id = :b;
COMMIT;
" => 20,
	"$random
BEGIN;
INSERT INTO journal DEFAULT VALUES;
INSERT INTO large (client, t) SELECT :client_id, repeat(i::text, 100) FROM generate_series(1, :rows) i;
SAVEPOINT s;
DELETE FROM large WHERE client = :client_id;
\\if :dice > 2
ROLLBACK TO s;
\\endif
UPDATE accounts SET v = v + 1 WHERE id = :a;
COMMIT;
" => 5,
	"$random
BEGIN;
UPDATE accounts SET v = v + :rows WHERE id = :a;
INSERT INTO large (client, t) SELECT :client_id, repeat(i::text, 100) FROM generate_series(1, :rows) i;
PREPARE TRANSACTION 'p_:client_id';
\\if :dice > 2
COMMIT PREPARED 'p_:client_id';
\\else
ROLLBACK PREPARED 'p_:client_id';
\\endif
" => 3,
	"$random INSERT INTO types (n, b, ts, a) VALUES (:rows / 7.0, decode('00ff', 'hex'), now(), ARRAY[:a, NULL]);\n"
	  => 3,
	"TRUNCATE types;\n" => 1);

# While it creates a slot, PostgreSQL 15 may miss that a transaction which ends at that
# time has given a table another file ("could not map filenode").
my %scripts_for_copy = %scripts;
delete $scripts_for_copy{"TRUNCATE types;\n"};

foreach my $major (sort keys %install_paths)
{
	my $pub = new_publisher(
		"publisher_$major",
		install_path => $install_paths{$major},
		conf => 'logical_decoding_work_mem = 64kB');
	my $sub = new_subscriber("subscriber_$major",
		conf => weft() ? 'weft.min_parallel_copy_size = 0' : '');

	query_all([ $pub, $sub ], <<EOS);
CREATE TABLE accounts (id int PRIMARY KEY, v int);
CREATE TABLE journal (id serial PRIMARY KEY);
CREATE TABLE large (id serial PRIMARY KEY, client int, t text);
CREATE INDEX ON large (client);
CREATE TABLE types (id serial PRIMARY KEY, n numeric, b bytea, ts timestamptz, a int[]);
EOS
	query($pub, <<EOS);
INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO large (client, t) SELECT i, repeat('t', i) FROM generate_series(1, 1000) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
	like(query($pub, 'SHOW server_version'),
		qr/^$major/, "publisher is PostgreSQL $major");

	foreach my $options (
		'streaming = off',
		'streaming = on, two_phase = true',
		'streaming = on, binary = true, two_phase = true')
	{
		my $log_start = -s $sub->logfile;
		my $what = "PostgreSQL $major, $options";
		my $copying = start_pgbench(
			$pub,
			\%scripts_for_copy,
			'-c' => 4,
			'-t' => 100,
			'--max-tries=1000',
			'--random-seed=7');

		query($sub, 'TRUNCATE ' . join ', ', @tables);
		subscribe($pub, $sub, 'sub', 'pub', $options);
		finish($copying);
		wait_for_apply($pub, $sub, 'sub');
		same_tables($pub, $sub, \@tables, "$what: initial copy under load");
		poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription")
		  if $options =~ /two_phase/;

		finish(
			start_pgbench(
				$pub, \%scripts,
				'-c' => 8,
				'-t' => 150,
				'--max-tries=1000',
				'--random-seed=8'));
		query($pub, 'TRUNCATE types');
		wait_for_apply($pub, $sub, 'sub');
		same_tables($pub, $sub, \@tables, "$what: equal");
		$pub->wait_for_catchup('sub', 'flush');
		is(errors_logged($sub, $log_start), '', "$what: no errors");
		is( query(
				$sub,
				"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'weft writer'"
			),
			4,
			"$what: applied by writers") if weft();
		query($sub, 'DROP SUBSCRIPTION sub');
	}

	$pub->stop;
	$sub->stop;
}

done_testing();
