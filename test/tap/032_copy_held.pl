# An initial copy is held, while it copies rows or builds indexes: what others see of
# it, what can go on beside it, and how it is interrupted.
#
# The copy is held by functions of the subscriber that wait for an advisory lock of the
# test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber', conf => "restart_after_crash = on\n");

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE held (id int PRIMARY KEY, v int);
CREATE TABLE other (id int PRIMARY KEY);
EOS
query($pub, <<'EOS');
INSERT INTO held SELECT i, i FROM generate_series(1, 20000) i;
CREATE PUBLICATION pub FOR TABLE held, other;
EOS
query($sub, <<'EOS');
CREATE ROLE other;
CREATE FUNCTION wait_for_lock(key int, value int) RETURNS int
IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_lock_shared(key);
	PERFORM pg_catalog.pg_advisory_unlock_shared(key);
	RETURN value;
END
$$;
ALTER TABLE held ADD CHECK (wait_for_lock(1, id) > -1000);
CREATE INDEX held_v ON held (wait_for_lock(2, v));
EOS

my $holder = open_session($sub);

sub hold
{
	my ($key) = @_;
	$holder->query_safe("SELECT pg_advisory_lock($key)");
	return;
}

sub let_go
{
	my ($key) = @_;
	$holder->query_safe("SELECT pg_advisory_unlock($key)");
	return;
}

sub phase_is
{
	my ($phase) = @_;
	poll($sub,
		"SELECT phase = '$phase' FROM weft.copy_progress WHERE relation = 'held'::regclass"
	);
	return;
}

sub waiting_helpers
{
	my ($number) = @_;
	poll($sub,
		"SELECT count(*) >= $number FROM pg_stat_activity WHERE wait_event = 'advisory' AND backend_type = 'parallel worker'"
	);
	return;
}

sub same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [qw(held other)], "$what: equal");
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	return;
}

sub start_again
{
	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE held, other');
	subscribe($pub, $sub, 'sub', 'pub');
	return;
}

####
#### Rows
####

hold(1);
hold(2);
subscribe($pub, $sub, 'sub', 'pub');
waiting_helpers(3);
is( query($sub,
		<<'EOS'), 'held|copying|3|t|t|0|0|', 'weft.copy_progress: rows');
SELECT relation, phase, helpers, rows_done >= 0, bytes_estimated > 0, indexes, indexes_done, last_error
FROM weft.copy_progress WHERE relation = 'held'::regclass
EOS
my ($ret, $stdout, $stderr) =
  $sub->psql('postgres', "SELECT weft.wait_for_subscription('sub', '10 ms')");
like($stderr, qr/not synchronized yet/, 'wait_for_subscription fails');
like(
	$stderr,
	qr/^Table "public\.held": copying, \d+ %, \d+ rows, \d+ MB, [\d.]+ MB\/s, 3 helpers\.$/m,
	'... and shows the progress of the copy');

is(query($sub, 'SELECT count(*) FROM held'), 0, 'the rows are not visible');

# what continues during the copy
query($pub, 'INSERT INTO other SELECT generate_series(1, 100)');
query($pub,
	'INSERT INTO held VALUES (-1, -1); UPDATE held SET v = v + 1 WHERE id <= 10'
);
query($pub,
	'UPDATE held SET id = id + 100000 WHERE id > 19990; DELETE FROM held WHERE id = 11'
);
query($pub, 'INSERT INTO other VALUES (1000)');
poll($sub, 'SELECT count(*) = 101 FROM other');
pass('other tables are not blocked');

let_go(1);

####
#### Indexes
####

phase_is('indexing');
poll($sub, 'SELECT indexes_done = 1 FROM weft.copy_progress');
is( query(
		$sub,
		'SELECT indexes, indexes_done, helpers, rows_done FROM weft.copy_progress'
	),
	'2|1|0|20000',
	'weft.copy_progress: indexes');
query($pub,
	'UPDATE held SET v = v + 1 WHERE id = 12; INSERT INTO other VALUES (1001)'
);
poll($sub, 'SELECT count(*) = 102 FROM other');
pass('other tables are not blocked, although the table is locked');
is( query(
		$sub,
		"SELECT count(*) FROM pg_index WHERE indrelid = 'held'::regclass AND indisvalid AND indisready"
	),
	2,
	'for others, the indexes are valid');
let_go(2);
same('held up');
is(query($sub, 'SELECT count(*) FROM weft.copy_progress'),
	0, 'weft.copy_progress shows nothing afterwards');

####
#### Cut off
####

my %cuts = (
	'a helper is killed' => sub {
		kill 9,
		  query($sub,
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1"
		  );
	},
	'a helper is ended' => sub {
		query($sub,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1"
		);
	},
	'a helper is cancelled' => sub {
		query($sub,
			"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1"
		);
	},
	'the worker is ended' => sub {
		query($sub,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE relid = 'held'::regclass"
		);
	},
	'the worker is cancelled' => sub {
		query($sub,
			"SELECT pg_cancel_backend(pid) FROM pg_stat_subscription WHERE relid = 'held'::regclass"
		);
	},
	'the subscriber is killed' =>
	  sub { $sub->stop('immediate'); $sub->start; });

foreach my $cut (sort keys %cuts)
{
	foreach my $key (1, 2)
	{
		next if $key == 2 && $cut =~ /helper/;
		my $what = "$cut while "
		  . ($key == 1 ? 'rows are copied' : 'indexes are built');

		hold($key);
		start_again();
		$key == 1 ? waiting_helpers(3) : phase_is('indexing');
		my $offset = -s $sub->logfile;
		$cuts{$cut}->();
		if ($cut =~ /killed/)
		{
			wait_until_up($sub) if $cut =~ /subscriber/;
			$sub->wait_for_log(qr/database system is ready/, $offset);
			wait_until_up($sub);
			$holder->{run}->kill_kill;
			$holder = open_session($sub);
		}
		else
		{
			$sub->wait_for_log(qr/terminating|canceling/, $offset);
			let_go($key);
		}
		same($what);
	}
}

####
#### The publisher's side
####

hold(1);
start_again();
waiting_helpers(3);
my $offset = -s $sub->logfile;
query($pub,
	"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'sub' AND backend_type = 'client backend'"
);
let_go(1);
same('helpers lose their connections');

hold(1);
start_again();
waiting_helpers(3);
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
query($sub, 'DROP SUBSCRIPTION sub');
poll($sub,
	"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type IN ('parallel worker', 'logical replication tablesync worker'))"
);
let_go(1);
is(query($sub, 'SELECT count(*) FROM held'), 0, 'dropped: no rows are left');
indexes_sound($sub, 'dropped');
nothing_left($pub, 'dropped');

####
#### Errors, and who sees them
####

query($sub, 'CREATE UNIQUE INDEX held_v_key ON held (v)');
query($pub, 'UPDATE held SET v = 5 WHERE id IN (4, 5)');
$offset = -s $sub->logfile;
query($sub, 'TRUNCATE held, other');
subscribe($pub, $sub, 'sub', 'pub');
$sub->wait_for_log(
	qr/ERROR:  (?:23505: )?duplicate key value violates unique constraint "held_v_key"\n.*DETAIL:  Key \(v\)=\(5\) is duplicated\./,
	$offset);
pass('a unique violation is reported as natively');
poll($sub,
	"SELECT last_error = 'duplicate key value violates unique constraint \"held_v_key\"' FROM weft.copy_progress WHERE relation = 'held'::regclass"
);
is( query(
		$sub,
		"SET ROLE other; SELECT last_error IS NULL FROM weft.copy_progress WHERE relation = 'held'::regclass"
	),
	't',
	'the last error is not visible to everybody');
query($sub, 'DROP INDEX held_v_key');
same('the unique index is dropped');

is( join("\n",
		grep { /PANIC|TRAP:|parallel operation|in a parallel worker/ }
		  split /\n/,
		slurp_file($sub->logfile)),
	'',
	'nothing else went wrong');

$holder->quit;
$sub->stop;
$pub->stop;
done_testing();
