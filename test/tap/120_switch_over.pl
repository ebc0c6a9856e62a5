# Switching over and back: what the fences refuse, and that both sides have the same rows,
# from each version of a publisher.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $secret = 'S3cr3tOfTheWayBack';
my @tables =
  ('t', '"Odd ""name"', qw(part part_1 parent child cascading load));
my $schema = <<'EOC';
CREATE TABLE t (id serial PRIMARY KEY, v text);
CREATE TABLE "Odd ""name" (id int PRIMARY KEY, "V v" text);
CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE load (id serial PRIMARY KEY);
CREATE TABLE referred (id int PRIMARY KEY);
CREATE TABLE cascading (id int PRIMARY KEY REFERENCES referred ON DELETE CASCADE);
EOC

# Statements that write, as a superuser.
my %writes = (
	'INSERT' => 'INSERT INTO t VALUES (1000)',
	'INSERT without rows' => 'INSERT INTO t SELECT 1000 WHERE false',
	'UPDATE' => "UPDATE t SET v = 'x'",
	'DELETE' => 'DELETE FROM t',
	'TRUNCATE' => 'TRUNCATE t',
	'TRUNCATE ... CASCADE' => 'TRUNCATE referred CASCADE',
	'COPY' => "COPY t (id) FROM PROGRAM 'echo 1000'",
	'ON CONFLICT' =>
	  "INSERT INTO t VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET v = 'b'",
	'MERGE' =>
	  'MERGE INTO t USING (VALUES (1)) n (i) ON t.id = n.i WHEN MATCHED THEN DELETE',
	'WITH' => 'WITH w AS (DELETE FROM t RETURNING *) SELECT count(*) FROM w',
	'a quoted name' => 'DELETE FROM "Odd ""name"',
	'a partitioned table' => 'INSERT INTO part VALUES (5)',
	'a partition' => 'INSERT INTO part_2 VALUES (105)',
	'a parent' => 'DELETE FROM parent',
	'a child' => 'DELETE FROM child',
	'a cascade' => 'DELETE FROM referred WHERE id = 1',
	'a session that is a replica' =>
	  'SET session_replication_role = replica; DELETE FROM t',
	'a function' => q{DO $$ BEGIN EXECUTE 'DELETE FROM t'; END $$},
	'a cursor' =>
	  'DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE; FETCH c; UPDATE t SET v = v WHERE CURRENT OF c'
);

sub fenced
{
	my ($node, $major) = @_;
	foreach my $what (sort keys %writes)
	{
		next if $major < 15 and $what eq 'MERGE';
		refuses($node, $writes{$what}, $what);
	}
	is(query($node, 'SELECT count(*) > 0 FROM t'), 't',
		'reading is possible');
	return;
}

# Rows of all kinds, on the side that accepts writes.
my $next = 0;

sub write_rows
{
	my ($node) = @_;
	$next++;
	query($node, <<EOC);
INSERT INTO t (v) SELECT 'round $next' FROM generate_series(1, 20);
UPDATE t SET v = v || '+' WHERE id % 3 = 0;
DELETE FROM t WHERE id % 7 = 0;
INSERT INTO "Odd ""name" VALUES ($next, 'a');
INSERT INTO part VALUES ($next, 'low'), (100 + $next, 'high');
INSERT INTO parent VALUES ($next);
INSERT INTO child VALUES ($next);
INSERT INTO cascading VALUES ($next);
EOC
	return;
}

# A publisher, and its subscriber, with rows.
sub create_pair
{
	my ($major, $install_path) = @_;
	my $pub = new_publisher(
		"pub$major",
		stock => 1,
		install_path => $install_path,
		conf => "log_statement = all\n");
	my $sub = new_subscriber("sub$major", conf => "log_statement = ddl\n");

	query_all([ $pub, $sub ], $schema);
	query_all([ $pub, $sub ],
		'INSERT INTO referred SELECT generate_series(1, 100)');
	query($pub,
		'CREATE PUBLICATION pub FOR TABLE t, "Odd ""name", part, parent, cascading, load'
	);
	query($pub, 'CREATE SEQUENCE free; SELECT setval($$free$$, 77)');
	query($sub, 'CREATE SEQUENCE free');
	write_rows($pub);
	subscribe($pub, $sub, 'sub', 'pub');
	wait_for_apply($pub, $sub, 'sub');
	return ($pub, $sub);
}

sub test_switch_over
{
	my ($major, $pub, $sub) = @_;

	# a transaction whose snapshot is older than the fences
	my $old = open_session($pub, on_error_stop => 0);
	$old->query_safe(
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');

	my $call =
		"switch_over('sub', '"
	  . connection($sub)
	  . " password=$secret', $patient)";

	# rows that are applied here while the way back is prepared must not go back
	my $load =
	  start_pgbench($pub, { "INSERT INTO load DEFAULT VALUES;\n" => 1 },
		'-c', 2, '-T', 60);
	poll($sub, 'SELECT count(*) > 0 FROM load');
	is(call_switch($sub, $call), '', "$major: switched over")
	  or die 'nothing to be tested';
	finish($load, may_fail => 1);
	is(accepting('t', $pub, $sub),
		"sub$major", 'the new server accepts writes');
	$old->query("UPDATE t SET v = 'lost'");
	like(
		$old->{stderr},
		qr/is fenced: another server accepts/,
		'refused to a transaction with an older snapshot');
	$old->quit;
	fenced($pub, $major);
	like(
		call_switch($sub, $call),
		qr/has already been switched over/,
		'calling it again is an error');
	return;
}

sub test_following
{
	my ($pub, $sub) = @_;

	ok(query($sub, "SELECT nextval('free') > 77") eq 't', 'a free sequence');
	write_rows($sub);
	query($sub, 'TRUNCATE "Odd ""name"');
	write_rows($sub);
	poll($pub, "SELECT count(*) = 1 FROM \"Odd \"\"name\" WHERE id = $next");
	poll($pub, "SELECT count(*) = 1 FROM cascading WHERE id = $next");
	same_tables($pub, $sub, \@tables,
		'the old server follows, TRUNCATE included');

	# what is in logs and in the view of sessions
	foreach my $node ($pub, $sub)
	{
		my @shown =
		  grep { !/CALL weft.switch_over/ } grep { /$secret/ } split /\n/,
		  slurp_file($node->logfile);
		is("@shown", '', 'no password in the log of ' . $node->name);
	}
	return;
}

sub test_switch_back
{
	my ($major, $pub, $sub) = @_;

	is(switch_back($sub, 'sub'), '', "$major: switched back")
	  or die 'nothing to be tested';
	is(accepting('t', $pub, $sub),
		"pub$major", 'the old server accepts writes');
	fenced($sub, 18);
	is(left_over($_), '', 'nothing is left on ' . $_->name)
	  foreach $pub, $sub;
	write_rows($pub);
	query($pub, 'TRUNCATE part');
	write_rows($pub);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, 'the subscription goes on');
	is( query(
			$sub,
			'SELECT string_agg(step, $$ $$ ORDER BY position) FROM weft.switch_over_progress WHERE direction = $$back$$'
		),
		'plan arm_target fence_target arm_source create_slot subscribe catch_up sequences_before fence_source drain sequences verify position final stop open remove follow disarm',
		'the steps');
	return;
}

sub test_no_way_back
{
	my ($major, $pub, $sub) = @_;

	is( call_switch(
			$sub, "switch_over('sub', NULL, verify => 'none', $patient)"),
		'',
		'switched over for good');
	is(accepting('t', $pub, $sub),
		"sub$major", 'the new server accepts writes');
	like(switch_back($sub, 'sub'), qr/there is no way back/, 'no way back');
	is(left_over($_), '', 'nothing is left on ' . $_->name)
	  foreach $pub, $sub;
	return;
}

sub run_test
{
	my ($major, $install_path) = @_;
	my ($pub, $sub) = create_pair($major, $install_path);

	test_switch_over($major, $pub, $sub);
	test_following($pub, $sub);
	test_switch_back($major, $pub, $sub);
	test_no_way_back($major, $pub, $sub);
	$sub->stop;
	$pub->stop;
	return;
}

sub run_refusals
{
	my $pub = new_publisher('refusing', stock => 1);
	my $sub = new_subscriber('refused');

	query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY)');
	query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
	subscribe($pub, $sub, 'sub', 'pub');
	wait_for_apply($pub, $sub, 'sub');
	query($sub, 'INSERT INTO t VALUES (1)');
	like(
		switch_over($sub, 'sub'),
		qr/has 1 rows here and 0 there/,
		'a difference is found');
	is(accepting('t', $pub, $sub), 'refusing', 'the old server continues');
	refuses($sub, 'DELETE FROM t', 'after a failure');
	is(call_switch($sub, "switch_over_cancel('sub')"), '', 'canceled');
	is(accepting('t', $pub, $sub), 'refusing refused', 'all is as before');
	query($sub, 'DELETE FROM t');
	like(
		$sub->psql('postgres', "BEGIN; CALL weft.switch_over('sub', NULL)")
		? 'failed'
		: '',
		qr/failed/,
		'not in a transaction block');

	# somebody keeps a table locked
	my $writer = open_session($pub);
	$writer->query_safe('BEGIN; INSERT INTO t VALUES (2)');
	my $said;
	foreach my $timeout (2, 10, 50)
	{
		# the time must suffice for the steps before
		$said = switch_over($sub, 'sub',
			"timeout => '$timeout s', lock_timeout => '50 ms'");
		last if $said =~ /lock timeout/;
	}
	like(
		$said,
		qr/lock timeout.*has been undone/s,
		'a writer that does not end');
	$writer->query_safe('COMMIT');
	$writer->quit;
	is(accepting('t', $pub, $sub), 'refusing', 'the old server continues');

	# a connection string is not shown
	my $stderr =
	  call_switch($sub, "switch_over('sub', 'host=x pass word=$secret')");
	like(
		$stderr,
		qr/invalid connection string for the way back/,
		'an invalid connection string');
	unlike($stderr =~ s/^.*CALL weft.*$//mgr, qr/$secret/, 'is not shown');
	query($sub, 'CREATE ROLE nobody; GRANT ALL ON SCHEMA public TO nobody');
	like(
		$sub->psql('postgres',
			"SET ROLE nobody; CALL weft.switch_over('sub', NULL)")
		? 'failed'
		: '',
		qr/failed/,
		'of others');
	is(switch_over($sub, 'sub'), '', 'in the end it succeeds');
	return;
}

run_refusals();
run_test(major(), undef);
my $old = install_path_of(15);
run_test(15, $old) if $old;
done_testing();
