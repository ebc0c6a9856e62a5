# Schema changes in every mode of apply: without writers, streamed or not; while ALTER SUBSCRIPTION
# ... SKIP waits; failed, applied by hand, ignored; while tables are copied; crashes between a
# statement and its commit.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub =
  new_publisher('publisher', conf => "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber');
my $other = new_subscriber('other');

query($pub, 'CREATE EXTENSION IF NOT EXISTS weft');
query_all([ $pub, $sub, $other ],
	'CREATE TABLE old (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 0, streaming = off');
subscribe_with_pgoutput($pub, $other, 'other', 'pub',
	'num_writers = 0, streaming = on');

sub caught_up
{
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($pub, $other, 'other');
	return;
}

sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	caught_up();
	same_everything($pub, $sub, "$what, first subscriber");
	same_everything($pub, $other, "$what, second subscriber");
	return;
}

sub now
{
	my ($node) = @_;
	return query($node, 'SELECT clock_timestamp()');
}

# What the history of a node says about a statement of its publisher, the oldest first.
sub results
{
	my ($node, $pattern) = @_;
	return query($node,
		"SELECT string_agg(result, ' ' ORDER BY recorded_at) FROM weft.ddl_history WHERE statement ~ '$pattern' AND subname IS NOT NULL"
	);
}

# Rows and schema changes in one transaction.
sub mixed
{
	my ($name, $rows) = @_;
	return <<"EOS";
BEGIN;
INSERT INTO old SELECT g, '$name' FROM generate_series((SELECT max(id) + 1 FROM old), (SELECT max(id) + $rows FROM old)) g;
CREATE TABLE $name (id int PRIMARY KEY, v text);
INSERT INTO $name SELECT g, repeat('x', 50) FROM generate_series(1, $rows) g;
SAVEPOINT a;
ALTER TABLE $name ADD COLUMN gone int;
INSERT INTO $name SELECT g, repeat('y', 50), 1 FROM generate_series($rows + 1, 2 * $rows) g;
ROLLBACK TO a;
ALTER TABLE $name ADD COLUMN n int DEFAULT 5;
INSERT INTO $name SELECT g, repeat('z', 50), g FROM generate_series(2 * $rows + 1, 3 * $rows) g;
UPDATE $name SET n = id, v = NULL WHERE id % 3 = 0;
CREATE INDEX ON $name (n);
ALTER TABLE $name RENAME COLUMN v TO w;
DELETE FROM $name WHERE id % 5 = 0;
ALTER TABLE old ADD COLUMN $name text DEFAULT '$name';
UPDATE old SET $name = id WHERE id % 2 = 0;
COMMIT;
EOS
}

query($pub, q{INSERT INTO old VALUES (1, 'first')});
caught_up();
my $snapshot = keep_catalogs($pub);

# --- without writers ---

query($pub, mixed('native', 3));
all_the_same('without writers');
is(results($sub, 'ALTER TABLE native RENAME'), 'applied', '... history');
query($pub,
	'CREATE TABLE alone (id int PRIMARY KEY); ALTER TABLE alone ADD v int; INSERT INTO alone VALUES (1, 2)'
);
query($pub, 'ALTER TABLE alone DROP COLUMN v');
all_the_same('without writers, nothing but schema changes');

my $log = -s $other->logfile;
query($pub, mixed('streamed_native', 3000));
all_the_same('without writers, streamed to one of them');
like(
	slurp_file($other->logfile, $log),
	qr/will restart because a streamed transaction changes the schema/,
	'... which has it sent once more');
query($sub, 'ALTER SUBSCRIPTION sub SET (streaming = parallel)');
query($pub, mixed('streamed_parallel', 3000));
all_the_same('without writers, with parallel apply workers');

# The number of writers may change at any time.
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
query($pub, mixed('three', 3));
all_the_same('writers are started');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
query($pub, 'ALTER TABLE three ADD COLUMN more int; DROP TABLE native');
all_the_same('writers are ended');

# --- failures ---

# Wait until a subscription has disabled itself.
sub disabled
{
	my ($node, $name) = @_;

	poll($node,
		"SELECT NOT subenabled FROM pg_subscription WHERE subname = '$name'");
	return;
}

# One of them has writers, and tries again; the other one has none, and gives up.
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3)');
query($other, 'ALTER SUBSCRIPTION other SET (disable_on_error = true)');
caught_up();
query_all([ $sub, $other ], 'CREATE TABLE clash (other text)');
my %before = map { $_->name => now($_) } $sub, $other;
my %offset = map { $_->name => -s $_->logfile } $sub, $other;
query($pub,
	'BEGIN; INSERT INTO old (id) VALUES (-1); CREATE TABLE clash (id int); INSERT INTO clash VALUES (1); COMMIT'
);
my ($message, $lsn);

foreach my $case ([ $sub, 'sub' ], [ $other, 'other' ])
{
	my ($node, $name) = @$case;

	($message, $lsn) = apply_error($node, $name, $before{ $node->name });
	is($message, 'relation "clash" already exists', "$name fails");
	poll($node,
		q{SELECT count(*) > 0 FROM weft.ddl_history WHERE statement ~ 'TABLE clash'}
	);
	my $logged = slurp_file($node->logfile, $offset{ $node->name });
	like(
		$logged,
		qr/applying schema change \d+ of role "[^"]+": CREATE TABLE clash/,
		'... with the statement');
	like($logged, qr/finished at \Q$lsn\E/, '... and the LSN');
	like(
		$logged,
		qr/HINT: .*SELECT weft\.skip_ddl\('$name', \d+\).*ALTER SUBSCRIPTION $name SKIP \(lsn = '\Q$lsn\E'\)/,
		'... and the remedies');
	is(query($node, 'SELECT count(*) FROM old WHERE id = -1'),
		0, '... nothing of the transaction is applied');
	is( query(
			$node,
			"SELECT lsn, result, detail FROM weft.ddl_history WHERE statement ~ 'TABLE clash'"
		),
		"$lsn|failed|relation \"clash\" already exists",
		'... the history has the failure');
}

# It is tried again and again, but recorded once.
poll($sub,
	q{SELECT apply_error_count > 3 FROM pg_stat_subscription_stats WHERE subname = 'sub'}
);
is(results($sub, 'TABLE clash'), 'failed', 'a failure is recorded once');
query($sub, 'BEGIN; DROP TABLE clash; CREATE TYPE clash AS ENUM (); COMMIT');
poll($sub,
	q{SELECT count(*) > 0 FROM weft.ddl_history WHERE detail ~ 'type "clash" already exists'}
);
pass('another failure of the same statement is recorded, too');
query($sub, 'DROP TYPE clash');
wait_for_apply($pub, $sub, 'sub');
is( results($sub, 'TABLE clash'),
	'failed failed applied',
	'it is applied once the cause is removed');

# By hand: the rest of the transaction is applied, and the table joins the subscription.
disabled($other, 'other');
my $id = query($other,
	"SELECT id FROM weft.ddl_history WHERE statement ~ 'TABLE clash'");
query($other,
	"DROP TABLE clash; CREATE TABLE clash (id int); SELECT weft.skip_ddl('other', $id); ALTER SUBSCRIPTION other ENABLE"
);
query($pub, 'INSERT INTO clash VALUES (2)');
all_the_same('a schema change that was applied by hand');
is(results($other, 'TABLE clash'), 'failed skipped', '... history');
like(
	query(
		$other,
		"SELECT detail FROM weft.ddl_history WHERE result = 'skipped'"),
	qr/^applied by hand, by role "[^"]+"$/,
	'... with who has done that');
is(query($other, 'SELECT count(*) FROM weft.ddl_skip'),
	0, '... the request is used up');

# --- SKIP ---

# The LSN of the transaction that is skipped is known from the other subscription.  The server
# forgets SKIP with the first transaction that is another one; that is applied without writers.
foreach my $writers (3, 0)
{
	my $name = "skip$writers";

	query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $writers)");
	caught_up();
	my $log_end = -s $sub->logfile;
	query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = 'FF/0')");
	query($pub,
		"BEGIN; INSERT INTO clash VALUES (3); CREATE TABLE ${name}_first (id int); INSERT INTO ${name}_first VALUES (1); ALTER TABLE clash ADD COLUMN $name int; INSERT INTO clash VALUES (4, 5); COMMIT"
	);
	all_the_same("while SKIP waits, $writers writers");
	like(
		slurp_file($sub->logfile, $log_end),
		qr/skip-LSN of subscription "sub" cleared/,
		'... which was not for that transaction');

	pause_subscription($sub, 'sub');
	query($other, "CREATE TABLE ${name}_clash (other text)");
	my $before = now($other);
	query($pub,
		"BEGIN; CREATE TABLE ${name}_also (id int); CREATE TABLE ${name}_clash (id int); INSERT INTO ${name}_clash VALUES (1); COMMIT"
	);
	query($pub, mixed("${name}_last", 3));
	my (undef, $skipped) = apply_error($other, 'other', $before);
	disabled($other, 'other');
	query($sub,
		"ALTER SUBSCRIPTION sub SKIP (lsn = '$skipped'); ALTER SUBSCRIPTION sub ENABLE"
	);
	wait_for_apply($pub, $sub, 'sub');
	is( query(
			$sub,
			"SELECT to_regclass('${name}_also'), to_regclass('${name}_clash'), to_regclass('${name}_last')"
		),
		"||${name}_last",
		"SKIP, $writers writers: nothing of the transaction is applied");

	query($other,
		"DROP TABLE ${name}_clash; ALTER SUBSCRIPTION other ENABLE");
	wait_for_apply($pub, $other, 'other');
	query($_,
		"SET weft.ddl_replication = off; DROP TABLE ${name}_also, ${name}_clash"
	) foreach $pub, $other;
	all_the_same("SKIP, $writers writers");
}

# --- a subscription that ignores schema changes ---

query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 3, ddl = off)');
my $log_end = -s $sub->logfile;
query($pub, 'CREATE TABLE ignored (id int); ALTER TABLE ignored ADD v int');
query($pub, 'ALTER TABLE ignored ADD w int');
wait_for_apply($pub, $sub, 'sub');
is( query($sub, q{SELECT to_regclass('ignored')}) . results($sub, 'ignored'),
	'',
	'ddl = off: nothing is executed');
my @lines = slurp_file($sub->logfile, $log_end) =~
  /schema changes of the publisher of subscription "sub" are ignored/g;
is(scalar @lines, 1, '... the log says so once');
query($pub, 'DROP TABLE ignored');
wait_for_apply($pub, $sub, 'sub');
query($sub, 'ALTER SUBSCRIPTION sub SET (ddl = on)');
query($pub, 'CREATE TABLE ignored_no_more (id int)');
all_the_same('ddl = on again');

# --- somebody else's table of the same name ---

query_all(
	[ $pub, $sub, $other ],
	'SET weft.ddl_replication = off; CREATE ROLE maker; GRANT CREATE ON SCHEMA public TO maker'
);
query($sub, 'CREATE TABLE private (id int)');
$log_end = -s $sub->logfile;
query($pub,
	'SET ROLE maker; CREATE TABLE IF NOT EXISTS private (id int); INSERT INTO private VALUES (666)'
);
wait_for_apply($pub, $sub, 'sub');
like(
	slurp_file($sub->logfile, $log_end),
	qr/changes of table "public\.private" are not applied for subscription "sub"/,
	q{a role cannot write to somebody else's table by CREATE TABLE IF NOT EXISTS}
);
is(query($sub, 'SELECT count(*) FROM private'), 0, '... no rows');
is( query(
		$sub,
		"SELECT count(*) FROM pg_subscription_rel WHERE srrelid = 'private'::regclass"
	),
	0,
	'... it does not belong to the subscription');
query($pub, 'DROP TABLE private');
all_the_same('a table of the same name');

# --- retention ---

query($pub, 'CREATE TABLE for_history (id int)');
caught_up();
set_conf($_, 'weft.ddl_history_retention' => '0') foreach $pub, $sub;
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 2)');
query($pub, 'ALTER TABLE for_history ADD a int');
caught_up();
query($pub, 'ALTER TABLE for_history ADD b int');
caught_up();

foreach my $node ($pub, $sub)
{
	cmp_ok(query($node, 'SELECT count(*) FROM weft.ddl_history'),
		'<=', 1, $node->name . ': old rows of the history are removed');
}
cmp_ok(query($other, 'SELECT count(*) FROM weft.ddl_history'),
	'>', 10, '... and are kept where they are to be kept');
set_conf($_, 'weft.ddl_history_retention' => '30d') foreach $pub, $sub;
all_the_same('retention');

# --- while tables are copied ---

# Two tables are to be copied, one after the other; both copies wait for a session.
set_conf($sub, max_sync_workers_per_subscription => 1);
query_all(
	[ $sub, $other ],
	'CREATE TABLE copied_a (id int PRIMARY KEY); CREATE TABLE copied_b (id int PRIMARY KEY)'
);
query($pub,
	'SET weft.ddl_replication = off; CREATE TABLE copied_a (id int PRIMARY KEY); CREATE TABLE copied_b (id int PRIMARY KEY); INSERT INTO copied_a VALUES (1); INSERT INTO copied_b VALUES (1)'
);
caught_up();
my %session = map { $_ => open_session($sub) } 'a', 'b';
$session{$_}->query_safe("BEGIN; LOCK TABLE copied_$_ IN SHARE MODE")
  foreach 'a', 'b';
query($other, 'ALTER SUBSCRIPTION other REFRESH PUBLICATION');
wait_for_apply($pub, $other, 'other');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
my $waits =
  q{SELECT relation::regclass FROM pg_locks WHERE relation IN ('copied_a'::regclass, 'copied_b'::regclass) AND NOT granted};
my $first = poll_for($sub, $waits) =~ s/copied_//r;
my $second = $first eq 'a' ? 'b' : 'a';
$log_end = -s $sub->logfile;
query($pub,
	"BEGIN; INSERT INTO copied_$first VALUES (2); INSERT INTO copied_$second VALUES (2); CREATE TABLE after_copy (id int); ALTER TABLE copied_$first ADD v int DEFAULT 7; INSERT INTO after_copy VALUES (1); INSERT INTO copied_$first VALUES (3, 4); COMMIT"
);
$sub->wait_for_log(qr/a schema change must wait until tables are copied/,
	$log_end);
is(query($sub, q{SELECT to_regclass('after_copy')}),
	'', 'a schema change waits for the copy that was in progress');
$session{$first}->query_safe('COMMIT');
poll($sub, $waits, "copied_$second");
poll($sub, q{SELECT count(*) = 1 FROM after_copy});
pass('... but not for one that began later');
$session{$second}->query_safe('COMMIT');
$_->quit foreach values %session;
all_the_same('while tables were copied');

# A copy waits for a session before it has a snapshot, which is then newer than the schema change.
# Its rows must not be converted once more.
query_all([ $sub, $other ],
	'CREATE TABLE doubled (id int PRIMARY KEY, n int)');
query($pub,
	'SET weft.ddl_replication = off; CREATE TABLE doubled (id int PRIMARY KEY, n int); INSERT INTO doubled SELECT g, g FROM generate_series(1, 1000) g; CREATE TABLE child (id int PRIMARY KEY, d int REFERENCES doubled)'
);
query_all([ $sub, $other ],
	'CREATE TABLE child (id int PRIMARY KEY, d int REFERENCES doubled)');
caught_up();
my $session = open_session($sub);
$session->query_safe('BEGIN; LOCK TABLE doubled IN SHARE MODE');
query($other, 'ALTER SUBSCRIPTION other REFRESH PUBLICATION');
wait_for_apply($pub, $other, 'other');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll($sub,
	q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'doubled'::regclass AND NOT granted}
);
$log_end = -s $sub->logfile;
query($pub,
	'BEGIN; UPDATE doubled SET n = 0 WHERE id = 7; ALTER TABLE doubled ALTER COLUMN n TYPE bigint USING n * 2; INSERT INTO doubled VALUES (1001, 1001); INSERT INTO child VALUES (1, 1); COMMIT'
);
poll($sub,
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'WeftLeaderDrain'}
);
$session->query_safe('COMMIT');
$session->quit;
all_the_same('a copy that is newer than a schema change');
like(
	slurp_file($sub->logfile, $log_end),
	qr/table "doubled" of subscription "sub" is copied again/,
	'... is made again');

$snapshot->quit;
unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub, $other;

$_->stop foreach $sub, $other, $pub;
done_testing();
