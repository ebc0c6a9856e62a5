# ALTER SUBSCRIPTION … SKIP of a transaction that a writer has begun to apply: it is skipped, and nothing else.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub =
  new_subscriber('subscriber', conf => "weft.writers_per_subscription = 1\n");

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE first (id int PRIMARY KEY);
CREATE TABLE t (id int PRIMARY KEY, v text);
EOS

# Rows of this table are applied by the server's own code.
query($pub, 'CREATE TABLE g (id int PRIMARY KEY)');
query($sub,
	'CREATE TABLE g (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id + 1) STORED)'
);
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# It fails, until it is to be skipped.
query($sub, "INSERT INTO t VALUES (1, 'here')");
query($pub,
	"BEGIN; INSERT INTO first VALUES (1); INSERT INTO t VALUES (1, 'there'); COMMIT"
);
my $finish = qr/finished at (?:LSN )?([0-9A-F]+\/[0-9A-F]+)/;
$sub->wait_for_log($finish);
my ($lsn) = slurp_file($sub->logfile) =~ $finish;

# The next attempt has begun, and waits.
my $lock = open_session($sub);
$lock->query_safe('BEGIN; LOCK TABLE first IN SHARE MODE');
poll($sub,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'first'::regclass AND NOT granted"
);
query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
$lock->query_safe('COMMIT');
$lock->quit;
poll($sub, "SELECT subskiplsn = '0/0' FROM pg_subscription");

query($pub, "INSERT INTO g VALUES ($_)") foreach 1 .. 5;
wait_for_apply($pub, $sub, 'sub');
is(query($sub, 'SELECT count(*) FROM first'), 0, 'it is skipped');
is(query($sub, 'SELECT v FROM t'), 'here', 'all of it');
is(query($sub, 'SELECT count(*) FROM g'), 5, 'and nothing else');

done_testing();
