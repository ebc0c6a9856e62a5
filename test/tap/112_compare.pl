# weft.compare_subscription(): planted differences are found exactly, in all kinds of
# tables and while both sides change; what cannot be compared is listed with its reason; and who
# may see the results.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'track_commit_timestamp = on');
my $both = [ $pub, $sub ];

# Compare; returns the number of the comparison, and what psql has shown.
my $notices;

sub compare
{
	my ($arguments) = @_;
	my ($ret, $id);

	($ret, $id, $notices) = $sub->psql(
		'postgres',
		"CALL weft.compare_subscription($arguments)",
		timeout => 180);
	note($notices);
	is($ret, 0, "compare $arguments") or die $notices;
	return $id;
}

# The differences that a comparison has found, one a line.
sub differences
{
	my ($id, $columns) = @_;
	$columns //= 'relation, kind, row_count, key::text, columns';
	return query($sub,
		"SELECT $columns FROM weft.difference WHERE comparison = $id ORDER BY relation::text COLLATE \"C\", kind, key::text COLLATE \"C\", (coalesce(publisher_row, local_row))::text COLLATE \"C\""
	);
}

sub statuses
{
	my ($id, $where) = @_;
	$where //= 'true';
	return query($sub,
		"SELECT table_name, status, complete FROM weft.comparison_table WHERE comparison = $id AND $where ORDER BY table_name COLLATE \"C\""
	);
}

# Change rows here behind apply's back.
sub plant
{
	my ($sql) = @_;
	query($sub, $sql);
	return;
}

# --- under load ---

system_or_bail($pub->installed_command('pgbench'),
	'-i', '-q', '-s', '2', $pub->connstr('postgres'));
query($pub, 'ALTER TABLE pgbench_history REPLICA IDENTITY FULL');
query($sub, <<EOC);
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler character(84));
CREATE TABLE pgbench_branches (filler character(88), bbalance int, bid int PRIMARY KEY, extra text DEFAULT 'here');
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler character(84));
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler character(22));
EOC
query($pub,
	'CREATE PUBLICATION load FOR TABLE pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history'
);
subscribe($pub, $sub, 'load', 'load');
wait_for_apply($pub, $sub, 'load');

# rows that the load does not touch
plant(<<EOC);
UPDATE pgbench_accounts SET filler = 'wrong' WHERE aid = 150000;
DELETE FROM pgbench_accounts WHERE aid = 150001;
INSERT INTO pgbench_accounts VALUES (1000000, 1, 0, 'extra');
EOC

my $load = start_pgbench(
	$pub,
	{
			"\\set a random(1, 100000)\n\\set b random(1, 2)\nBEGIN;\n"
		  . "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :a;\n"
		  . "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = :b;\n"
		  . "INSERT INTO pgbench_history VALUES (1, :b, :a, 1, now());\nCOMMIT;\n"
		  => 1
	},
	'-c', '4', '-T', '600');
my $id = compare("'load'");
ok(running($load), 'the load was running meanwhile');
is( differences($id),
	"pgbench_accounts|different|1|{\"aid\": \"150000\"}|{filler}\n"
	  . "pgbench_accounts|missing here|1|{\"aid\": \"150001\"}|\n"
	  . 'pgbench_accounts|missing there|1|{"aid": "1000000"}|',
	'exactly the planted differences are found');
is( query(
		$sub,
		"SELECT publisher_row ->> 'aid', rtrim(publisher_row ->> 'filler'), rtrim(local_row ->> 'filler'), local_origin = '', local_commit_time < now() FROM weft.difference WHERE comparison = $id AND kind = 'different'"
	),
	'150000||wrong|t|t',
	'both rows, and who wrote the local one');
is( statuses($id),
	join("\n",
		map { "public.pgbench_$_|done|t" }
		  qw(accounts branches history tellers)),
	'all tables were compared');
is( query(
		$sub,
		"SELECT publisher_rows, local_rows, cuts > 0, first_lsn <= last_lsn FROM weft.comparison_table WHERE comparison = $id AND table_name LIKE '%accounts'"
	),
	'200000|200000|t|t',
	'rows are counted');
is( query(
		$sub,
		"SELECT status, tables, tables_done, differences, pid FROM weft.stat_comparison WHERE comparison = $id"
	),
	'finished|4|4|3|',
	'the view shows the end');
like(
	$notices,
	qr/4 of 4 tables were compared, 3 differences were found/,
	'the summary tells what was found');
like(
	$notices,
	qr/pgbench_accounts: 3 differences in 200000 rows/,
	'the summary names the table');

is( differences(compare("'load', jobs => 1, tables => '{pgbench_accounts}'")),
	differences($id), 'one process alone finds the same');
$sub->safe_psql('postgres',
	'ALTER SYSTEM SET max_parallel_workers = 0; SELECT pg_reload_conf()');
is( differences(compare("'load', jobs => 4, tables => '{pgbench_accounts}'")),
	differences($id), 'without parallel workers, too');
$sub->safe_psql('postgres',
	'ALTER SYSTEM RESET max_parallel_workers; SELECT pg_reload_conf()');

# each part at a cut of its own
$sub->safe_psql('postgres',
	"ALTER SYSTEM SET weft.comparison_snapshot_age = '1s'; SELECT pg_reload_conf()"
);
my $slow = compare(
	"'load', tables => '{pgbench_accounts}', max_rows_per_second => 50000");
$sub->safe_psql('postgres',
	'ALTER SYSTEM RESET weft.comparison_snapshot_age; SELECT pg_reload_conf()'
);
is(differences($slow), differences($id), 'several cuts find the same');
is( query(
		$sub,
		"SELECT cuts > 1, ended_at - started_at > '2 s' FROM weft.comparison WHERE comparison = $slow"
	),
	't|t',
	'a limit of rows per second makes it last, and snapshots do not');
end_load($load);
wait_for_apply($pub, $sub, 'load');

# --- kinds of tables ---

my $tables = <<EOC;
CREATE TABLE parts (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b');
CREATE TABLE "Täble ""x""" ("Kéy" text PRIMARY KEY, "v'v" text);
CREATE TABLE doubles (a int, b text);
ALTER TABLE doubles REPLICA IDENTITY FULL;
CREATE TABLE no_identity (a int, b text);
CREATE TABLE filtered (id int PRIMARY KEY, v int);
CREATE TABLE columns (id int PRIMARY KEY, v int, secret text DEFAULT 'secret');
CREATE TABLE full_key (id int PRIMARY KEY, v text);
ALTER TABLE full_key REPLICA IDENTITY FULL;
CREATE TABLE many (id int PRIMARY KEY, v int);
CREATE TABLE texts (id int PRIMARY KEY, v numeric, f float8, j json, t timestamptz, n text);
CREATE TABLE nothing (id int PRIMARY KEY);
EOC
query($pub, $tables);
$tables =~
  s/^CREATE TABLE parts .*\n.*\n.*\n/CREATE TABLE parts (v int, region text, id int, PRIMARY KEY (region, id));\n/m;
$tables =~ s/'secret'/'hidden'/;
query($sub, $tables);
query($pub, <<'EOC');
INSERT INTO parts SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, i FROM generate_series(1, 1000) i;
INSERT INTO "Täble ""x""" SELECT 'ä' || i, i FROM generate_series(1, 100) i;
INSERT INTO doubles SELECT i % 10, CASE WHEN i % 3 = 0 THEN 'x' END FROM generate_series(1, 300) i;
INSERT INTO no_identity SELECT i % 10, 'y' FROM generate_series(1, 300) i;
INSERT INTO filtered SELECT i, i FROM generate_series(1, 1000) i;
INSERT INTO columns SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO full_key SELECT i, 'v' || i FROM generate_series(1, 100) i;
INSERT INTO many SELECT i, i FROM generate_series(1, 5000) i;
INSERT INTO texts VALUES (1, 1.0, 0, '{"a": 1, "b": 2}', '2026-01-01 00:00+00', NULL), (2, 2, 'NaN', '1', 'infinity', ''),
	(3, 3, 3, '3', now(), 'three');
CREATE PUBLICATION kinds FOR TABLE parts, "Täble ""x""", doubles, no_identity, filtered WHERE (v > 500),
	columns (id, v), full_key, many, texts, nothing WITH (publish_via_partition_root = true);
EOC
subscribe($pub, $sub, 'kinds', 'kinds');
wait_for_apply($pub, $sub, 'kinds');

is(differences(compare("'kinds'")), '', 'equal tables of all kinds');

plant(<<'EOC');
UPDATE parts SET v = 0 WHERE id = 10;
DELETE FROM parts WHERE id = 11;
UPDATE "Täble ""x""" SET "v'v" = NULL WHERE "Kéy" = 'ä7';
DELETE FROM doubles WHERE ctid = (SELECT min(ctid) FROM doubles WHERE a = 1 AND b IS NULL);
INSERT INTO doubles VALUES (2, NULL), (2, NULL), (NULL, NULL);
UPDATE no_identity SET b = 'z' WHERE ctid = (SELECT min(ctid) FROM no_identity WHERE a = 5);
INSERT INTO filtered VALUES (2000, 2000), (3000, 3);
DELETE FROM filtered WHERE id = 600;
UPDATE columns SET v = -1 WHERE id = 50;
UPDATE columns SET secret = 'another' WHERE id = 60;
UPDATE full_key SET v = 'w' WHERE id = 70;
UPDATE many SET v = -v;
UPDATE texts SET v = 1.00, f = '-0', j = '{"b": 2, "a": 1}', n = '' WHERE id = 1;
UPDATE texts SET n = NULL WHERE id = 2;
INSERT INTO nothing VALUES (1);
EOC
$id = compare("'kinds', max_differences => 100");
is( differences($id,
		"relation, kind, row_count, key::text, columns, CASE WHEN key IS NULL THEN coalesce(publisher_row, local_row)::text END"
	) =~ s/^many.*\n//gmr,
	<<'EOC' =~ s/\n\z//r, 'planted differences in tables of all kinds');
"Täble ""x"""|different|1|{"Kéy": "ä7"}|{v'v}|
columns|different|1|{"id": "50"}|{v}|
doubles|missing here|1|||{"a": "1", "b": null}
doubles|missing there|2|||{"a": "2", "b": null}
doubles|missing there|1|||{"a": null, "b": null}
filtered|missing here|1|{"id": "600"}||
filtered|missing there|1|{"id": "2000"}||
full_key|different|1|{"id": "70"}|{v}|
no_identity|missing here|1|||{"a": "5", "b": "y"}
no_identity|missing there|1|||{"a": "5", "b": "z"}
nothing|missing there|1|{"id": "1"}||
parts|different|1|{"id": "10", "region": "a"}|{v}|
parts|missing here|1|{"id": "11", "region": "b"}||
texts|different|1|{"id": "1"}|{f,j,n,v}|
texts|different|1|{"id": "2"}|{n}|
EOC
is( query(
		$sub,
		"SELECT differences, complete, reason FROM weft.comparison_table WHERE comparison = $id AND table_name = 'public.many'"
	),
	'100|f|There are more differences than max_differences (100).',
	'a table with too many differences is left after max_differences');
is( query(
		$sub,
		"SELECT count(*), count(DISTINCT key), min(publisher_row ->> 'v') <> min(local_row ->> 'v') FROM weft.difference WHERE comparison = $id AND relation = 'many'::regclass"
	),
	'100|100|t',
	'as many are stored');

# --- keys that are not unique, or null, here ---

query($pub,
	'CREATE TABLE loose (id int PRIMARY KEY, v int); INSERT INTO loose SELECT i, i FROM generate_series(1, 10) i; ALTER PUBLICATION load ADD TABLE loose'
);
query($sub, 'CREATE TABLE loose (id int, v int)');
query($sub, 'ALTER SUBSCRIPTION load REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'load');
plant('INSERT INTO loose VALUES (5, 5), (6, 7), (NULL, NULL), (NULL, 1)');
is( differences(
		compare("'load', tables => '{loose}'"),
		'kind, row_count, key::text, local_row::text'),
	<<'EOC' =~ s/\n\z//r, 'keys that are not unique or null here');
missing there|1|{"id": "5"}|{"v": "5", "id": "5"}
missing there|1|{"id": "6"}|{"v": "7", "id": "6"}
missing there|1|{"id": null}|{"v": "1", "id": null}
missing there|1|{"id": null}|{"v": null, "id": null}
EOC

# --- what cannot be compared ---

query_all($both,
	'CREATE TABLE later (id int PRIMARY KEY); CREATE TABLE unknown (id int PRIMARY KEY)'
);
query($pub,
	'ALTER PUBLICATION kinds ADD TABLE later; ALTER PUBLICATION load DROP TABLE pgbench_tellers'
);
query($pub,
	"ALTER PUBLICATION kinds SET TABLE parts, later, nothing WHERE (id < 10)"
);
$id = compare("'kinds'");
is( statuses(
		$id,
		"table_name IN ('public.later', 'public.many', 'public.nothing')"),
	"public.later|skipped|f\npublic.many|skipped|f\npublic.nothing|done|t",
	'tables that are not subscribed or not published are skipped');
is( query(
		$sub,
		"SELECT count(*) FROM weft.comparison_table WHERE comparison = $id AND status = 'skipped' AND coalesce(reason, '') = ''"
	),
	0,
	'each with a reason');
like(
	$notices,
	qr/Table public\.later was not compared \(skipped\): ./,
	'the summary tells the reason');
$id = compare("'load', tables => '{unknown, loose}'");
is( statuses($id),
	"public.loose|done|t\npublic.unknown|skipped|f",
	'a table that does not belong to the subscription is skipped');

# --- errors ---

sub fails
{
	my ($sql, $pattern, $what, %params) = @_;
	my ($ret, $stdout, $stderr) = $sub->psql('postgres', $sql, %params);

	isnt($ret, 0, "$what fails");
	like($stderr, $pattern, $what);
	return;
}

fails(
	"BEGIN; CALL weft.compare_subscription('load')",
	qr/cannot run inside a transaction block\n.*\n?HINT:  Run CALL by itself/s,
	'a transaction block');
fails(
	"CALL weft.compare_subscription('none')",
	qr/subscription "none" does not exist/,
	'an unknown subscription');
fails(
	"CALL weft.compare_subscription('load', jobs => 0)",
	qr/"jobs" must be between 1 and 64/,
	'a wrong number of jobs');
fails(
	"CALL weft.compare_subscription('load', resume => 1000000)",
	qr/comparison 1000000 does not exist/,
	'an unknown comparison');
fails(
	"CALL weft.compare_subscription('kinds', resume => $id)",
	qr/comparison $id is not one of subscription "kinds"/,
	'a comparison of another subscription');

# --- rights ---

query($sub, <<EOC);
CREATE ROLE owner LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE member LOGIN; GRANT owner TO member;
GRANT pg_create_subscription TO owner;
GRANT CREATE ON DATABASE postgres TO owner;
CREATE TABLE owned (id int PRIMARY KEY, v text); ALTER TABLE owned OWNER TO owner;
CREATE TABLE locked (id int PRIMARY KEY, v text);
EOC
query($pub, <<EOC);
CREATE TABLE owned (id int PRIMARY KEY, v text); INSERT INTO owned VALUES (1, 'secret');
CREATE TABLE locked (id int PRIMARY KEY, v text);
CREATE PUBLICATION owned FOR TABLE owned, locked;
EOC
subscribe($pub, $sub, 'owned', 'owned');
wait_for_apply($pub, $sub, 'owned');
query($sub,
	"ALTER SUBSCRIPTION owned SET (password_required = false, run_as_owner = false); ALTER SUBSCRIPTION owned OWNER TO owner"
);
plant("UPDATE owned SET v = 'changed'");
my $result = $sub->safe_psql(
	'postgres',
	"CALL weft.compare_subscription('owned')",
	extra_params => [ '-U', 'member' ]);
like($result, qr/^\d+$/, 'a member of the owner may compare');
is( statuses($result),
	"public.locked|skipped|f\npublic.owned|done|t",
	'a table that the owner may not read is skipped');

foreach my $role (qw(owner member stranger))
{
	my $expected = $role eq 'stranger' ? '0|0|0|0' : '1|2|1|1';
	is( $sub->safe_psql(
			'postgres',
			"SELECT (SELECT count(*) FROM weft.comparison WHERE comparison = $result), (SELECT count(*) FROM weft.comparison_table WHERE comparison = $result), (SELECT count(*) FROM weft.difference WHERE comparison = $result), (SELECT count(*) FROM weft.stat_comparison WHERE comparison = $result)",
			extra_params => [ '-U', $role ]),
		$expected,
		"what $role sees of the results");
}
is( $sub->safe_psql(
		'postgres',
		'SELECT count(*) FROM weft.comparison WHERE subname <> \'owned\'',
		extra_params => [ '-U', 'owner' ]),
	0,
	'the owner of one subscription sees nothing of others');
fails(
	"CALL weft.compare_subscription('owned')",
	qr/must be owner of subscription owned/,
	'another role',
	extra_params => [ '-U', 'stranger' ]);
fails(
	"DELETE FROM weft.difference",
	qr/permission denied/,
	'the owner changing results',
	extra_params => [ '-U', 'owner' ]);
query($sub, "SET ROLE stranger; DELETE FROM weft.comparison");
is( query(
		$sub,
		"SELECT count(*) FROM weft.difference WHERE comparison = $result"),
	1,
	'another role cannot delete results');
query($sub,
	"SET ROLE owner; DELETE FROM weft.comparison WHERE comparison = $result");
is( query(
		$sub,
		"SELECT count(*) FROM weft.difference WHERE comparison = $result"),
	0,
	'deleting a comparison deletes its results');

query($sub, 'ALTER SUBSCRIPTION load DISABLE');
fails(
	"CALL weft.compare_subscription('load')",
	qr/subscription "load" is disabled/,
	'a disabled subscription');

is(errors_logged($pub), '', 'no errors on the publisher');
done_testing();
