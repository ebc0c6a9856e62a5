# Figures stay true where the publisher does not tell, or where time does not pass as it should:
# a walsender that is behind while the leader is idle, a long transaction that the server's own
# code applies, a clock that is set back; and an old error is not why a subscription is disabled.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

# A library that shifts the clock of the processes that load it, by the seconds in a file.
my $dir = PostgreSQL::Test::Utils::tempdir;
my $shift = "$dir/shift";
append_to_file("$dir/clock.c", <<"EOC");
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/time.h>

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	static int	(*original) (struct timeval *, void *);
	FILE	   *file = fopen("$shift", "r");
	long		seconds = 0;

	if (original == NULL)
		original = (int (*) (struct timeval *, void *)) dlsym(RTLD_NEXT, "gettimeofday");
	if (file != NULL)
	{
		if (fscanf(file, "%ld", &seconds) != 1)
			seconds = 0;
		fclose(file);
	}
	original(tv, tz);
	tv->tv_sec += seconds;
	return 0;
}
EOC
my $have_clock =
  system("cc -shared -fPIC -o $dir/clock.so $dir/clock.c -ldl 2>$dir/cc.log")
  == 0;

my $pub = new_publisher('publisher');
my $sub;
{
	local %ENV = (%ENV, $have_clock ? (LD_PRELOAD => "$dir/clock.so") : ());
	$sub = new_subscriber('subscriber');
}

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($pub,
	'CREATE TABLE unpublished (v text); ALTER TABLE unpublished ALTER v SET STORAGE EXTERNAL; CREATE PUBLICATION pub FOR TABLE t'
);
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

# --- a walsender that is behind ---

my $walsender = query($pub, 'SELECT active_pid FROM pg_replication_slots');
kill 'STOP', $walsender;
query($pub,
	"INSERT INTO unpublished SELECT repeat('x', 8000) FROM generate_series(1, 5000)"
);
poll_figure($sub, 'sub', 'publisher_lag_bytes > 35000000');
pass('the publisher is asked though nothing is received');
is(figure($sub, 'sub', 'catch_up_time IS NULL'),
	't', 'nobody knows when it will catch up');
kill 'CONT', $walsender;
poll_figure($sub, 'sub', 'publisher_lag_bytes = 0');
pass('WAL of which nothing is published is a backlog, too');

# --- a long transaction, by the server's own code ---

query($sub, <<'EOS');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.1);
	RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow();
ALTER TABLE t ENABLE ALWAYS TRIGGER slow;
ALTER SUBSCRIPTION sub SET (num_writers = 0);
EOS
poll_figure($sub, 'sub',
	"num_writers = 0 AND native_reason IS NOT NULL AND applied_lsn IS NOT NULL"
);
query($pub,
	"INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 300) i"
);
poll($sub,
	'SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = $$PgSleep$$'
);
query($pub,
	"INSERT INTO unpublished SELECT repeat('x', 8000) FROM generate_series(1, 1000)"
);
my $told = figure($sub, 'sub', 'publisher_lsn_time');
poll_figure($sub, 'sub',
	"publisher_lsn_time > '$told' AND publisher_lag_bytes > 7000000 OR (SELECT count(*) > 0 FROM t)"
);
is(query($sub, 'SELECT count(*) FROM t'),
	0, 'the publisher is asked within a transaction');
query($sub, 'DROP TRIGGER slow ON t');
wait_for_apply($pub, $sub, 'sub');

# --- a clock that is set back ---

SKIP:
{
	skip 'no C compiler', 2 unless $have_clock;

	query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 4)');
	poll_figure($sub, 'sub', 'num_writers = 4');
	append_to_file($shift, '-7200');
	cmp_ok(
		query($sub, 'SELECT extract(epoch FROM clock_timestamp())::bigint'),
		'<',
		time - 7000,
		'two hours earlier');
	my $counted = figure($sub, 'sub', 'total_transactions');
	query($pub, "INSERT INTO t VALUES (1000, 'a')");
	wait_for_apply($pub, $sub, 'sub');
	poll_figure($sub, 'sub', "total_transactions > $counted");
	pass('counters go on');

	my $session = open_session($sub);
	$session->query_safe('BEGIN; LOCK TABLE t IN SHARE MODE');
	query($pub, "INSERT INTO t VALUES (1001, 'a')");
	query($pub,
		"INSERT INTO unpublished SELECT repeat('x', 8000) FROM generate_series(1, 1000)"
	);
	poll_figure($sub, 'sub',
		'publisher_lag_bytes > 7000000 AND publisher_lsn_time < clock_timestamp() + interval $$1 min$$'
	);
	pass('the publisher is asked, and the time is of this clock');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_apply($pub, $sub, 'sub');
	unlink $shift;
}

# --- a subscription that its owner has disabled ---

query($sub, "INSERT INTO t VALUES (2000, 'here')");
query($sub, 'ALTER SUBSCRIPTION sub SET (disable_on_error = on)');
query($pub, "INSERT INTO t VALUES (2000, 'there')");
poll($sub, "SELECT count(*) = 1 FROM weft.health() WHERE id = 'H003'");
pass('disabled because of an error');
query($sub, 'DELETE FROM t WHERE id = 2000');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
wait_for_apply($pub, $sub, 'sub');
poll_figure($sub, 'sub', 'publisher_lag_bytes = 0');
disable_subscription($sub, 'sub');
is(query($sub, "SELECT count(*) FROM weft.health() WHERE id = 'H003'"),
	0, 'disabled by its owner, after an error that was overcome');

# --- a connection string that names two servers ---

my $other = new_publisher('other');
$other->stop;
query(
	$sub,
	'ALTER SUBSCRIPTION sub CONNECTION $$'
	  . sprintf('host=%s,%s port=%s,%s dbname=postgres',
		$other->host, $pub->host, $other->port, $pub->port)
	  . '$$');
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
wait_for_apply($pub, $sub, 'sub');
my $offset = -s $sub->logfile;
$other->start;
query($other,
	"SELECT count(pg_logical_emit_message(false, '', repeat('x', 1000000))) FROM generate_series(1, 200)"
);
$sub->wait_for_log(
	qr/could not ask the publisher of subscription "sub" where its WAL ends: the connection leads to another server/,
	$offset);
is(figure($sub, 'sub', 'publisher_lag_bytes < 1000000'),
	't', 'only the server that sends is asked');

done_testing();
