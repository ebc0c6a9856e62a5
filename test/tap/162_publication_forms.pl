# What else 19 has brought for subscriptions: EXCEPT, SERVER, wal_receiver_timeout, and logical
# decoding without wal_level = logical.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'all of this came with version 19' if major() < 19;

# The server raises the level when the first slot is created.
my $pub = new_publisher('publisher', conf => 'wal_level = replica');
my $sub = new_subscriber('subscriber');
my $uses_weft = weft() ? 'weft' : 'pgoutput';

is(query($pub, 'SHOW effective_wal_level'),
	'replica', 'the publisher logs nothing for decoding');
query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY, v text)'
);
query($pub,
	"INSERT INTO t VALUES (1, 'copied'); INSERT INTO other VALUES (1, 'not published'); CREATE PUBLICATION pub FOR ALL TABLES EXCEPT (TABLE other)"
);
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');
is(query($pub, 'SHOW effective_wal_level'), 'logical', 'until it has a slot');
is(query($pub, "SELECT plugin FROM pg_replication_slots"),
	$uses_weft, 'which has the plugin that it would have');

# Rows of the kinds that the plugin writes itself, once it has seen one.
foreach my $i (2 .. 6)
{
	query($pub,
		"INSERT INTO t VALUES ($i, 'applied'); INSERT INTO other VALUES ($i, 'not published'); UPDATE t SET v = v || '!' WHERE id < $i; UPDATE other SET v = '' WHERE id < $i; DELETE FROM t WHERE id = $i - 3; DELETE FROM other WHERE id = $i - 3"
	);
}
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'ALL TABLES EXCEPT: the others');
is(query($sub, 'SELECT count(*) FROM other'), '0', 'and not the exception');

query($pub, 'ALTER PUBLICATION pub SET ALL TABLES');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'sub');
query($pub, "INSERT INTO other VALUES (100, 'published')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [ 't', 'other' ], 'no exception any more');
query($pub, 'ALTER PUBLICATION pub SET ALL TABLES EXCEPT (TABLE other)');
query($pub, "INSERT INTO other VALUES (101, 'not published')");
query($pub, "INSERT INTO t VALUES (101, 'published')");
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM other WHERE id = 101'),
	'0', 'the plugin takes notice of a new exception');
query($sub, 'DROP SUBSCRIPTION sub');

# A subscription that connects through a foreign server.
my ($host, $port) = ($pub->host, $pub->port);
query($sub, 'TRUNCATE t, other');
query($sub, <<EOS);
CREATE EXTENSION postgres_fdw;
CREATE SERVER publisher FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres');
CREATE USER MAPPING FOR CURRENT_USER SERVER publisher;
CREATE SUBSCRIPTION sub SERVER publisher PUBLICATION pub;
EOS
wait_for_apply($pub, $sub, 'sub');
query($pub, "INSERT INTO t VALUES (200, 'through a foreign server')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'SERVER: rows are copied and applied');

if (weft())
{
	cmp_ok(figure($sub, 'sub', 'num_writers'), '>', 0, 'by writers');
	my $comparison = query($sub,
		"CALL weft.compare_subscription('sub', ARRAY['t'::regclass])");
	is( query(
			$sub,
			"SELECT count(*) FROM weft.difference WHERE comparison = $comparison"
		),
		'0',
		'and Weft connects in the same way');
	poll_figure($sub, 'sub', 'publisher_lsn IS NOT NULL');
}

# The same publisher by a connection string.
query($sub,
		"ALTER SUBSCRIPTION sub CONNECTION '"
	  . $pub->connstr
	  . " dbname=postgres'");
query($pub, "INSERT INTO t VALUES (201, 'through a connection string')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'SERVER is replaced by CONNECTION');
query($sub, 'ALTER SUBSCRIPTION sub SERVER publisher');
query($pub, "INSERT INTO t VALUES (202, 'through a foreign server again')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'and the other way round');

# A time-out of its own: the publisher is stopped, and nobody else notices.
query($sub, "ALTER SUBSCRIPTION sub SET (wal_receiver_timeout = '1s')");
query($pub, "INSERT INTO t VALUES (203, 'before the pause')");
wait_for_apply($pub, $sub, 'sub');
my $offset = -s $sub->logfile;
my $sender = query($pub, 'SELECT active_pid FROM pg_replication_slots');
kill 'STOP', $sender;
$sub->wait_for_log(qr/terminating logical replication worker due to timeout/,
	$offset);
kill 'CONT', $sender;
query($pub, "INSERT INTO t VALUES (204, 'after the pause')");
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'],
	'wal_receiver_timeout of the subscription ends the worker');

done_testing();
