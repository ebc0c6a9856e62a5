# A subscription that is given to another role while its apply worker starts is applied with the
# privileges of the new owner.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'the server itself has this weakness' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'autovacuum = off');

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
query($sub,
	'CREATE ROLE keeper LOGIN; GRANT CREATE ON DATABASE postgres TO keeper');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
subscribe($pub, $sub, 'sub', 'pub', 'password_required = false');
wait_for_apply($pub, $sub, 'sub');

# A worker that starts waits until it may read the role that the launcher has named.  Nothing else
# starts meanwhile.
my $session = open_session($sub);
my $leader = leader_pid($sub, 'sub');
my $start = -s $sub->logfile;
$session->query_safe(<<"EOS");
BEGIN;
LOCK TABLE pg_authid;
SELECT pg_terminate_backend($leader);
DO \$\$
BEGIN
  WHILE NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'pg_authid'::regclass AND NOT granted)
  LOOP
    PERFORM pg_sleep(0.01);
  END LOOP;
END
\$\$;
ALTER SUBSCRIPTION sub OWNER TO keeper;
COMMIT;
EOS
$session->quit;

query($pub, 'INSERT INTO t VALUES (1)');
poll_figure($sub, 'sub',
	q{last_error LIKE 'role "keeper" cannot SET ROLE to %'});
pass('the new owner may not write into a table of a superuser');
is(query($sub, 'SELECT count(*) FROM t'), 0, '... and has not');
like(
	slurp_file($sub->logfile, $start),
	qr/subscription "sub" will restart because the owner of the subscription has changed/,
	'the log says why the worker has restarted');

done_testing();
