# weft.compare_subscription() under load, with nothing planted: no comparison may find a
# difference.  The load inserts, updates and deletes rows, changes keys, truncates, and does so in
# streamed, prepared and aborted transactions; the subscription has 0, 1 and 4 writers.
#
# WEFT_COMPARISONS sets the number of comparisons (default 10), WEFT_FIRST_SEED the first seed of
# the load (default 1).  Each writer count has a seed of its own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use List::Util qw(max);
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $comparisons = $ENV{WEFT_COMPARISONS} // 10;
my $seed = $ENV{WEFT_FIRST_SEED} // 1;
my @writers = (0, 1, 4);

my $pub =
  new_publisher('publisher', conf => 'logical_decoding_work_mem = 64kB');
my $sub = new_subscriber('subscriber', conf => <<EOC);
weft.comparison_snapshot_age = '2s'
# a lock that somebody else waits for may keep a comparison from a table
deadlock_timeout = 100ms
EOC

my $tables = <<EOC;
CREATE TABLE rows (id int PRIMARY KEY, v int, t text);
CREATE TABLE full_identity (a int, b text);
ALTER TABLE full_identity REPLICA IDENTITY FULL;
CREATE TABLE texts (id text PRIMARY KEY, v numeric);
CREATE TABLE truncated (id serial PRIMARY KEY, v int);
CREATE TABLE inserted (client int, t timestamptz, v float8);
CREATE TABLE parts (id int, v int, t text, PRIMARY KEY (id, v)) PARTITION BY RANGE (v);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (50);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (50) TO (MAXVALUE);
EOC
query($pub, $tables);
$tables =~ s/ PARTITION BY.*//m;
$tables =~ s/^CREATE TABLE parts_.*\n//mg;
query($sub, $tables);
query($pub, <<EOC);
INSERT INTO rows SELECT i, i, repeat('t', i % 100) FROM generate_series(1, 20000) i;
INSERT INTO full_identity SELECT i % 50, 'b' || i % 7 FROM generate_series(1, 200) i;
INSERT INTO texts SELECT 'k' || i, i FROM generate_series(1, 2000) i;
INSERT INTO parts SELECT i, i % 100, 'p' FROM generate_series(1, 2000) i;
CREATE PUBLICATION p FOR TABLE rows, full_identity, texts, truncated, inserted, parts
	WITH (publish_via_partition_root = true);
EOC
subscribe($pub, $sub, 's', 'p', 'streaming = on, two_phase = on');
wait_for_apply($pub, $sub, 's');

my $numbers =
  "\\set a random(1, 20000)\n\\set b random(1, 20000)\n\\set c random(1, 100)\n";
my $load = {
	"$numbers UPDATE rows SET v = v + 1, t = repeat('u', :c) WHERE id = :a;\n"
	  => 20,
	"$numbers BEGIN;\nDELETE FROM rows WHERE id = :a;\nINSERT INTO rows VALUES (:b, :c, 'new') ON CONFLICT (id) DO UPDATE SET v = 0;\nCOMMIT;\n"
	  => 10,
	"$numbers UPDATE rows SET id = id + 20000 WHERE id = :a AND NOT EXISTS (SELECT FROM rows r WHERE r.id = :a + 20000);\n"
	  => 5,
	"$numbers UPDATE rows SET id = id - 20000 WHERE id = :a + 20000 AND NOT EXISTS (SELECT FROM rows r WHERE r.id = :a);\n"
	  => 5,
	"$numbers UPDATE full_identity SET b = 'c' || :c WHERE a = :c;\n" => 2,
	"$numbers INSERT INTO full_identity VALUES (:c, 'b1');\n" => 2,
	"$numbers DELETE FROM full_identity WHERE a = :c;\n" => 2,
	"$numbers UPDATE texts SET v = v + 0.10 WHERE id = 'k' || :a % 2000;\n"
	  => 10,
	"$numbers UPDATE texts SET id = id || 'x' WHERE id = 'k' || :a % 2000;\n"
	  => 1,
	"$numbers INSERT INTO truncated (v) VALUES (:a);\n" => 10,
	"TRUNCATE truncated;\n" => 0.02,
	"BEGIN;\nTRUNCATE truncated;\nINSERT INTO truncated (v) SELECT generate_series(1, 10);\nCOMMIT;\n"
	  => 0.02,
	"$numbers INSERT INTO inserted VALUES (:client_id, clock_timestamp(), :a / 7.0);\n"
	  => 10,
	"$numbers UPDATE parts SET v = (v + 37) % 100 WHERE id = :a % 2000 + 1;\n"
	  => 10,
	# streamed, because they are larger than logical_decoding_work_mem
	"$numbers UPDATE rows SET v = v - 1, t = repeat('s', 90) WHERE id BETWEEN :a AND :a + 1500;\n"
	  => 0.5,
	"$numbers BEGIN;\nUPDATE rows SET v = v - 1 WHERE id BETWEEN :a AND :a + 1500;\nSAVEPOINT s;\nDELETE FROM rows WHERE id BETWEEN :a AND :a + 100;\nROLLBACK TO s;\nCOMMIT;\n"
	  => 0.3,
	"$numbers BEGIN;\nUPDATE rows SET v = -1 WHERE id BETWEEN :a AND :a + 1500;\nROLLBACK;\n"
	  => 0.3,
	"$numbers BEGIN;\nUPDATE rows SET v = 0 WHERE id = :a;\nUPDATE texts SET v = 1 WHERE id = 'k' || :b % 2000;\nPREPARE TRANSACTION 'p_:client_id';\nCOMMIT PREPARED 'p_:client_id';\n"
	  => 2,
	"$numbers BEGIN;\nUPDATE rows SET v = 1, t = 'prepared' WHERE id BETWEEN :a AND :a + 1500;\nPREPARE TRANSACTION 'p_:client_id';\nCOMMIT PREPARED 'p_:client_id';\n"
	  => 0.2,
	"$numbers BEGIN;\nUPDATE rows SET v = 2 WHERE id = :a;\nPREPARE TRANSACTION 'p_:client_id';\nROLLBACK PREPARED 'p_:client_id';\n"
	  => 1,
};
# weights are integers
my %scripts = map { $_ => 50 * $load->{$_} } keys %$load;

my ($found, $not_done, $truncated_done, $longest, $caught_up) =
  (0, '', 0, 0, 0);
foreach my $number (@writers)
{
	query($sub, "ALTER SUBSCRIPTION s SET (num_writers = $number)");
	my $pgbench =
	  start_pgbench($pub, \%scripts, '-c', 6, '-T', 3600, '--max-tries=0',
		'--rate=400', '--random-seed=' . $seed++);
	my $repetitions = max(1, int(($comparisons + @writers - 1) / @writers));

	foreach my $i (1 .. $repetitions)
	{
		my $jobs = 1 + $i % 3;
		my ($ret, $id, $notices) = $sub->psql(
			'postgres',
			"CALL weft.compare_subscription('s', jobs => $jobs)",
			timeout => 300);
		is($ret, 0, "$number writers: comparison $i, seed " . ($seed - 1))
		  or diag($notices);
		die $notices unless $ret == 0;
		my $differences = query($sub,
			"SELECT relation, kind, key, publisher_row, local_row, local_commit_time, publisher_lsn FROM weft.difference WHERE comparison = $id LIMIT 20"
		);
		diag("false differences: $differences") if $differences;
		$found++ if $differences;
		# a table that is truncated all the time may never stand still for a cut
		my $others = query($sub,
			"SELECT table_name, status, reason FROM weft.comparison_table WHERE comparison = $id AND status <> 'done' AND NOT (table_name = 'public.truncated' AND status = 'changed')"
		);
		$not_done .= "$others\n" if $others;
		$truncated_done += query($sub,
			"SELECT count(*) FROM weft.comparison_table WHERE comparison = $id AND status = 'done' AND table_name = 'public.truncated'"
		);
		$longest = max(
			$longest,
			query(
				$sub,
				"SELECT longest_cut FROM weft.comparison WHERE comparison = $id"
			));
	}
	ok(running($pgbench), "$number writers: the load is still running");
	end_load($pgbench);
	wait_for_apply($pub, $sub, 's');
}
is($found, 0, 'no comparison found a difference');
is($not_done, '', 'all tables were compared each time');
note("$truncated_done times the truncated table as well");
note("longest cut: $longest ms");

# the same comparison does find a difference
query($sub,
	'UPDATE rows SET v = v + 1 WHERE id = (SELECT min(id) FROM rows)');
my $id = query($sub, "CALL weft.compare_subscription('s')");
is( query(
		$sub,
		"SELECT relation, kind, columns FROM weft.difference WHERE comparison = $id"
	),
	'rows|different|{v}',
	'a planted difference is found');
is( query(
		$sub,
		"SELECT count(*) FROM weft.comparison_table WHERE comparison = $id AND status = 'done'"
	),
	6,
	'and all tables are compared, also the one that was truncated');
is(errors_logged($sub), '', 'no errors on the subscriber');
done_testing();
