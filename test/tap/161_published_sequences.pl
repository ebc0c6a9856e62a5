# Sequences of a publication (from 19 on): the server's own worker synchronizes them, beside Weft.
# Weft does not take them for tables, and its own sequences are not synchronized.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'sequences are published from version 19 on' if major() < 19;
plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query($pub, 'CREATE EXTENSION weft');
query_all(
	[ $pub, $sub ],
	"CREATE TABLE t (id serial PRIMARY KEY, v int); CREATE SEQUENCE s; CREATE SCHEMA weft_switch; CREATE SEQUENCE weft_switch.state MINVALUE 0"
);
query($pub, <<EOS);
INSERT INTO t (v) SELECT i FROM generate_series(1, 100) i;
SELECT setval('s', 1000), setval('weft_switch.state', 7);
CREATE PUBLICATION pub FOR ALL TABLES, ALL SEQUENCES;
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
poll($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");

is( query(
		$sub,
		"SELECT srrelid::regclass FROM pg_subscription_rel ORDER BY srrelid::regclass::text"
	),
	"s\nt\nt_id_seq",
	"neither Weft's tables nor its sequences are subscribed to");
is(query($sub, "SELECT nextval('s'), nextval('t_id_seq')"),
	'1001|101', 'sequences are synchronized');
is(query($sub, "SELECT last_value, is_called FROM weft_switch.state"),
	'0|f', "the fence's state is not");

# REFRESH SEQUENCES under load.
query($pub, 'CREATE TABLE load (id int PRIMARY KEY, v int)');
query($sub, 'CREATE TABLE load (id int PRIMARY KEY, v int)');
query($pub, 'INSERT INTO load SELECT i, 0 FROM generate_series(1, 1000) i');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'sub');
my $load = start_pgbench(
	$pub,
	{
		"\\set id random(1, 1000)\nUPDATE load SET v = v + 1 WHERE id = :id;\n"
		  => 1
	},
	'--client=2',
	'--time=600');
poll($sub, 'SELECT sum(v) > 100 FROM load');
query($pub, "SELECT setval('s', 5000)");
query($sub, 'ALTER SUBSCRIPTION sub REFRESH SEQUENCES');
poll($sub, 'SELECT last_value = 5000 FROM s');
ok(running($load), 'sequences are synchronized under load');
end_load($load);
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [ 't', 'load' ], 'and rows are applied');

# A sequence that cannot be synchronized is no table that is not ready.
query($pub, 'DROP SEQUENCE s');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH SEQUENCES');
poll($sub,
	"SELECT sync_seq_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = 'sub'"
);
query($pub, 'INSERT INTO t (v) VALUES (101)');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'rows are applied all the same');
is(query($sub, 'SELECT count(*) FROM weft.copy_progress'),
	'0', 'a sequence is not shown as a table to be copied');
is( query(
		$sub,
		"SELECT count(*) FROM weft.health() WHERE id IN ('H003', 'H004', 'H011')"
	),
	'0',
	'nor is its error taken for that of a copy');

# What looks at the tables of a subscription ignores sequences.
my $comparison = query($sub, "CALL weft.compare_subscription('sub')");
is( query(
		$sub,
		"SELECT (SELECT count(*) FROM weft.difference WHERE comparison = $comparison), count(*) FROM weft.comparison_table WHERE comparison = $comparison AND relation::text IN ('s', 't_id_seq')"
	),
	'0|0',
	'a comparison');

done_testing();
