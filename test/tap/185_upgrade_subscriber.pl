# pg_upgrade of a subscriber that is in no group, while its publisher is written to: the options of its
# subscriptions survive, each goes on where it was, and nothing is lost or doubled.  A subscription that
# detects conflicts waits for weft.finish_upgrade(); the others do not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
my $previous = previous_server();
plan skip_all => 'needs the previous major version, which Weft supports, too'
  unless $previous;

my $pub = new_publisher('pub',
	conf => "logical_decoding_work_mem = 64kB\nmax_replication_slots = 20");
my $sub = new_member('sub', install_path => $previous);
my @subscriptions = qw(plain conflicts prepared native);
my @tables = map { ("t_$_", "log_$_") } @subscriptions;

foreach my $name (@subscriptions, 'resting')
{
	query_all([ $pub, $sub ], <<"EOS");
CREATE TABLE t_$name (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE log_$name (id bigserial PRIMARY KEY, t_id int NOT NULL);
EOS
	query($pub, <<"EOS");
INSERT INTO t_$name SELECT g, 0 FROM generate_series(1, 500) g;
CREATE PUBLICATION p_$name FOR TABLE t_$name, log_$name;
EOS
}
my %options = (
	plain => 'num_writers = 3, streaming = parallel, binary = true',
	conflicts => 'num_writers = 2, detect_conflicts = on, origin = none',
	prepared => 'two_phase = true, disable_on_error = true, ddl = off',
	native => 'num_writers = 0',
	resting => 'num_writers = 5');
subscribe($pub, $sub, $_, "p_$_", $options{$_})
  foreach @subscriptions, 'resting';
wait_for_apply($pub, $sub, $_) foreach @subscriptions, 'resting';
pause_subscription($sub, 'resting');
query($pub, 'INSERT INTO log_resting (t_id) VALUES (1)');

my $settings = <<'EOS';
SELECT string_agg(concat_ws(' ', subname, subenabled, subbinary, substream, subtwophasestate <> 'd', subdisableonerr,
	suborigin, subslotname, subpublications::text, l.label), E'\n' ORDER BY subname)
FROM pg_subscription s LEFT JOIN pg_shseclabel l ON l.objoid = s.oid AND l.provider = 'weft'
EOS
my $settings_before = query($sub, $settings);
like($settings_before, qr/^plain t t p .*num_writers=3$/m, 'an option');

# Each transaction counts, so that one that is applied twice shows; some are large enough to be streamed.
my $script = join '', "\\set id random(1, 500)\n",
  map { <<"EOS" } @subscriptions;
BEGIN;
UPDATE t_$_ SET n = n + 1 WHERE id = :id;
INSERT INTO log_$_ (t_id) VALUES (:id);
COMMIT;
EOS
my $large = <<'EOS';
BEGIN;
INSERT INTO log_plain (t_id) SELECT id FROM t_plain;
UPDATE t_plain SET n = n + 1;
COMMIT;
EOS
my $load = start_pgbench(
	$pub, { $script => 50, $large => 1 },
	'-T' => 600,
	'-c' => 3,
	'-R' => 60);
poll($sub, "SELECT count(*) > 300 FROM log_$_") foreach @subscriptions;
query($pub, <<'EOS');
BEGIN;
INSERT INTO log_prepared (t_id) VALUES (1);
UPDATE t_prepared SET n = n + 1 WHERE id = 1;
PREPARE TRANSACTION 'before';
EOS
poll($sub, 'SELECT count(*) = 1 FROM pg_prepared_xacts');

# The server stops while it is written to; a prepared transaction would not be transferred.
my $old_directory = $sub->data_dir;
query($pub, q(COMMIT PREPARED 'before'));
poll($sub, 'SELECT count(*) = 0 FROM pg_prepared_xacts');
$sub->stop;

my $new = upgrade_server($sub);
is(query($new, $settings), $settings_before, 'options are as before');
poll($new,
	"SELECT count(*) = 1 FROM weft.stat_subscription WHERE subname = 'conflicts' AND last_error ~ 'finish_upgrade'"
);
is( query(
		$new,
		q(SELECT string_agg(object, ',') FROM weft.health() WHERE id = 'H016')
	),
	'conflicts',
	'the health check names the one that waits');
my $waiting = query($new, 'SELECT count(*) FROM log_conflicts');

# A subscription that is new, or has a new name, finds the same rows, without their times.
my $log = -s $new->logfile;
query_all([ $pub, $new ], 'CREATE TABLE late (id int PRIMARY KEY)');
query($pub, 'CREATE PUBLICATION p_late FOR TABLE late');
query(
	$new,
	sprintf
	  "CREATE SUBSCRIPTION late CONNECTION '%s dbname=postgres' PUBLICATION p_late WITH (detect_conflicts = on, origin = none, copy_data = off)",
	$pub->connstr);
$new->wait_for_log(
	qr/ERROR:  subscription "late" cannot resolve conflicts before weft\.finish_upgrade\(\) has been called/,
	$log);

foreach my $name (qw(plain prepared native))
{
	my $count = query($new, "SELECT count(*) FROM log_$name");
	poll($new, "SELECT count(*) > $count + 50 FROM log_$name");
}
is(query($new, 'SELECT count(*) FROM log_conflicts'),
	$waiting, 'nothing is applied to it');
query($new, "SELECT weft.finish_upgrade('$old_directory')");
query($pub, 'INSERT INTO late VALUES (1)');
wait_for_apply($pub, $new, 'late');
is(query($new, 'SELECT count(*) FROM late'), 1, 'then it is applied');
query($new, 'DROP SUBSCRIPTION late');
poll($new, "SELECT count(*) > $waiting + 50 FROM log_conflicts");
is( query(
		$new,
		"SELECT string_agg(DISTINCT subname, ',' ORDER BY subname) FROM weft.stat_writer WHERE subname IN ('plain', 'conflicts', 'native')"
	),
	'conflicts,plain',
	'writers are at work');
end_load($load);

sub check
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_apply($pub, $new, $_) foreach @subscriptions;
	same_tables($pub, $new, \@tables, $what);
	foreach my $name (@subscriptions)
	{
		is( query(
				$new,
				"SELECT (SELECT sum(n) FROM t_$name) = (SELECT count(*) FROM log_$name)"
			),
			't',
			"$what: $name: nothing is lost or doubled");
	}
	return;
}

check('after the upgrade');
# A row that was copied may conflict with the first change; those that the subscription wrote are its own, as before.
is( query(
		$new,
		q(SELECT max(n) FROM (SELECT count(*) AS n FROM weft.conflict_history GROUP BY relation::text, key::text) x)
	),
	1,
	'rows of before the upgrade are not in conflict with what follows');
is(query($new, 'SELECT count(*) FROM log_resting'),
	0, 'a disabled subscription rests');
query($new, 'ALTER SUBSCRIPTION resting ENABLE');
wait_for_apply($pub, $new, 'resting');
same_tables($pub, $new, [qw(t_resting log_resting)], 'it goes on when told');

# A crash of the new server, and options that can still be changed.
query($pub,
	"INSERT INTO log_$_ (t_id) VALUES (1); UPDATE t_$_ SET n = n + 1 WHERE id = 1"
) foreach @subscriptions;
$new->stop('immediate');
$new->start;
query($new, 'ALTER SUBSCRIPTION native SET (num_writers = 2)');
check('after a crash');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } $new, $sub, $pub),
	0, 'no server has failed');

$_->stop foreach $new, $pub;
done_testing();
