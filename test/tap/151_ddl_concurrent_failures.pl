# Schema changes that cannot run in a transaction block, and meet an index that exists already, or fail
# on the subscriber, or were interrupted on the publisher.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConcurrentDdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my ($pub, $sub, $other) = start_servers();
my ($id, $ret, $out, $err);
my $session = open_session($sub);

# The publisher crashes while a statement waits for the transaction of a session.
sub interrupt_on_publisher
{
	my ($blocker, $statement) = @_;
	my $waiting = open_session($pub);
	my $pid = $waiting->query_safe('SELECT pg_backend_pid()');

	$waiting->query_until(qr/begun/, "\\echo begun\n$statement;\n");
	poll($pub,
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"
	);
	$pub->stop('immediate');
	eval { $_->quit } foreach $blocker, $waiting;
	$pub->start;
	return;
}

# --- an index that exists already ---

query($sub, 'CREATE INDEX same ON t (v, lower(w)) WHERE id > 5');
query($pub, 'CREATE INDEX CONCURRENTLY same ON t (v, lower(w)) WHERE id > 5');
all_the_same('an index that exists already');
is( detail($sub, 'same ON'),
	'applied|it existed already',
	'... as the history shows');

query($sub, 'CREATE INDEX another ON t (w, v)');
query($pub, 'CREATE INDEX CONCURRENTLY another ON t (v)');
$id = failed_id($sub, 'another');
is( detail($sub, 'another'),
	'failed|index "another" exists already, with another definition',
	'one with another definition');
($ret, $out, $err) =
  $sub->psql('postgres', "SET ROLE alice; SELECT weft.retry_ddl('sub', $id)");
like(
	$err,
	qr/must be owner of subscription sub/,
	'a stranger cannot retry it');
($ret, $out, $err) =
  $sub->psql('postgres', "SET ROLE alice; SELECT weft.skip_ddl('sub', $id)");
like($err, qr/must be owner of subscription sub/, '... nor give it up');
query($sub, "BEGIN; SELECT weft.retry_ddl('sub', $id); ROLLBACK");
is(states($sub), 'failed|3', '... and it takes a commit');
query($sub, "DROP INDEX another; SELECT weft.retry_ddl('sub', $id)");
all_the_same('... is built by hand');
is(states($sub), '', '... and is not a failure any more');
($ret, $out, $err) =
  $sub->psql('postgres', "SELECT weft.retry_ddl('sub', $id)");
like($err, qr/has not failed, or is no concurrent one/, '... only once');

# A session here builds the same one at the same time.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
my $building = open_session($sub);
$building->query_until(qr/begun/,
	"\\echo begun\nCREATE INDEX CONCURRENTLY twofold ON t (w, id);\n");
poll($sub,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND wait_event_type = 'Lock'}
);
query($pub, 'CREATE INDEX CONCURRENTLY twofold ON t (w, id)');
waiting_worker($sub);
$session->query_safe('COMMIT');
$building->query_safe('SELECT 1');
all_the_same('an index that is being built');
is( detail($sub, 'twofold ON'),
	'applied|it existed already',
	'... by nobody else');
$building->quit;

# An invalid index of a session here is left alone.
query_all(
	[ $sub, $other ],
	q{SET session_replication_role = replica; UPDATE t SET w = 'twice' WHERE id IN (10, 11)}
);
$sub->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY theirs ON t (w)');
is(is_valid($sub, 'theirs'), 'f', 'a build of a session here fails');
query($pub, 'CREATE INDEX CONCURRENTLY theirs ON t (w)');
$id = failed_id($sub, 'theirs');
is( detail($sub, 'theirs'),
	'failed|index "theirs" exists already, and is not valid',
	'... its index is not taken for one of Weft');
is(is_valid($sub, 'theirs'), 'f', '... nor dropped');
query($sub, "DROP INDEX theirs; SELECT weft.retry_ddl('sub', $id)");
all_the_same_but_rows('... but built once it is gone');

# The publisher drops an index that could not be built here.
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY hopeless ON t (w) WHERE id < 100');
failed_id($_, 'hopeless') foreach $sub, $other;
my $errors = query($sub, 'SELECT errors FROM weft.stat_subscription');
query($pub, 'DROP INDEX hopeless');
all_the_same_but_rows('a DROP INDEX of what has failed');
is(states($sub), '', '... which nobody needs any more');
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY hopeless ON t (w) WHERE id < 100');
failed_id($_, 'hopeless') foreach $sub, $other;
query($pub, 'DROP INDEX CONCURRENTLY hopeless');
all_the_same_but_rows('a DROP INDEX CONCURRENTLY of what has failed');
is(states($sub), '', '... which nobody needs, either');
like(
	detail($sub, 'CREATE UNIQUE INDEX CONCURRENTLY hopeless'),
	qr/^skipped\|schema change \d+ has dropped the index$/,
	'... as the history shows');

# One that fails when a later schema change needs its result does not stop the stream.
$session->query_safe('BEGIN; UPDATE t SET id = id WHERE id = 3');
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY in_the_way ON t (w) WHERE id < 100');
waiting_worker($sub);
query($pub, 'ALTER TABLE t ADD COLUMN more int');
later_change_waits($sub);
$session->query_safe('COMMIT');
wait_for_apply($pub, $_->[0], $_->[1])
  foreach [ $sub, 'sub' ], [ $other, 'other' ];
$id = failed_id($sub, 'in_the_way');
is(query($sub, 'SELECT errors FROM weft.stat_subscription'),
	$errors, 'a failure does not stop the subscription');
query($sub, "SELECT weft.skip_ddl('sub', $id)");
is(states($sub), '', 'it is given up by hand');
is( detail($sub, 'in_the_way'),
	'skipped|applied by hand, by role "'
	  . query($sub, 'SELECT current_user') . '"',
	'... as the history shows');
($ret, $out, $err) =
  $sub->psql('postgres', "SELECT weft.skip_ddl('sub', $id)");
like($err, qr/has not failed/, '... only once');
query($other,
	"SELECT weft.skip_ddl('other', " . failed_id($other, 'in_the_way') . ')');
query_all([ $sub, $other ], <<'EOS');
SET session_replication_role = replica;
UPDATE t SET w = id WHERE id IN (10, 11);
CREATE UNIQUE INDEX in_the_way ON t (w) WHERE id < 100;
EOS
query($pub, 'DROP INDEX in_the_way; ALTER TABLE t DROP COLUMN more');
all_the_same('what was made by hand is dropped');

# There is nothing to drop if it was given up, and not made by hand.
foreach my $concurrently ('', 'CONCURRENTLY ')
{
	query_all(
		[ $sub, $other ],
		q{SET session_replication_role = replica; UPDATE t SET w = 'twice' WHERE id IN (10, 11)}
	);
	query($pub,
		'CREATE UNIQUE INDEX CONCURRENTLY given_up ON t (w) WHERE id < 100');
	query($sub,
		"SELECT weft.skip_ddl('sub', " . failed_id($sub, 'given_up') . ')');
	query($other,
			"SELECT weft.skip_ddl('other', "
		  . failed_id($other, 'given_up')
		  . ')');
	query($pub, "DROP INDEX ${concurrently}given_up");
	query_all(
		[ $sub, $other ],
		q{SET session_replication_role = replica; UPDATE t SET w = id WHERE id IN (10, 11)}
	);
	all_the_same("DROP INDEX ${concurrently}of what was given up");
	is( detail($sub, "^DROP INDEX ${concurrently}given_up"),
		'applied|there was no index public.given_up, whose creation had been given up',
		'... as the history shows');
}

# --- failures ---

my $log = -s $sub->logfile;
query_all([ $sub, $other ], <<'EOS');
SET session_replication_role = replica;
UPDATE t SET w = 'twice' WHERE id IN (10, 11);
EOS
query($pub,
	'CREATE UNIQUE INDEX CONCURRENTLY only_once ON t (w) WHERE id < 100');
query($pub, 'CREATE INDEX CONCURRENTLY behind ON t (v DESC)');
wait_for_apply($pub, $sub, 'sub');
poll($sub,
	q{SELECT count(*) = 1 FROM weft.ddl_concurrent WHERE state = 'failed'});
done($sub);
is(states($sub), 'failed|3', 'a statement that fails is tried three times');
is( query($sub, q{SELECT last_error FROM weft.ddl_concurrent}),
	'could not create unique index "only_once"',
	'... its error is kept');
is(results($sub, 'only_once'), 'failed', '... the history shows it');
is(is_valid($sub, 'only_once'), '', '... no invalid index is left');
is(is_valid($sub, 'behind'), 't', '... and the next one is executed');
like(
	slurp_file($sub->logfile, $log),
	qr/schema change \d+ of subscription "sub" has failed.*HINT: +Remove the cause, and run SELECT weft.retry_ddl\('sub', \d+\)/s,
	'... the log has the remedy');

# A later statement about a failed one does not wait.
query_all(
	[ $sub, $other ],
	q{SET session_replication_role = replica; UPDATE t SET w = id WHERE id IN (10, 11)}
);
poll($other,
	q{SELECT count(*) = 1 FROM weft.ddl_concurrent WHERE state = 'failed'});
query_all([ $sub, $other ],
	'CREATE UNIQUE INDEX CONCURRENTLY only_once ON t (w) WHERE id < 100');
all_the_same('executed by hand');

# --- an invalid index of the publisher ---

# Nobody else knows it.
query($pub, q{INSERT INTO t VALUES (5000, 1, 'same'), (5001, 2, 'same')});
($ret, $out, $err) =
  $pub->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY failing ON t (w)');
like(
	$err,
	qr/could not create unique index/,
	'a build fails on the publisher');
is(is_valid($pub, 'failing'), 'f', '... and leaves an invalid index');
query($pub, 'DROP INDEX failing');
query($pub, q{DELETE FROM t WHERE id = 5001});
all_the_same('an invalid index is dropped');

# REINDEX completes it.
foreach my $reindex ('INDEX CONCURRENTLY failing', 'TABLE t')
{
	query($pub, q{INSERT INTO t VALUES (5001, 2, 'same')});
	$pub->psql('postgres',
		q{CREATE UNIQUE INDEX CONCURRENTLY failing ON t (w) WHERE w = 'same'}
	);
	is(is_valid($pub, 'failing'), 'f', 'a build fails again');
	query($pub, q{DELETE FROM t WHERE id = 5001});
	query($pub, "REINDEX $reindex");
	is(is_valid($pub, 'failing'), 't', "REINDEX $reindex");
	all_the_same('... makes an index');
	query($pub, 'DROP INDEX failing');
}
query($pub, <<'EOS');
CREATE TABLE parted (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (0), (1);
CREATE INDEX parted_index ON ONLY parted ((1 / a));
EOS
$pub->psql('postgres',
	'CREATE INDEX CONCURRENTLY parted_0_index ON parted_0 ((1 / a))');
my $attach = 'ALTER INDEX parted_index ATTACH PARTITION parted_0_index';
($ret, $out, $err) = $pub->psql('postgres', $attach);
like(
	$err,
	qr/cannot replicate that the invalid index "parted_0_index" is attached/,
	'an invalid index cannot be attached');
query($pub,
	"DELETE FROM parted WHERE a = 0; REINDEX INDEX parted_0_index; $attach");
all_the_same('... until it is valid');

# A DROP INDEX that is interrupted leaves one, too.
interrupt_on_publisher(hold_table($pub, 't'),
	'DROP INDEX CONCURRENTLY behind');
is(is_valid($pub, 'behind'), 'f', 'a DROP INDEX that was interrupted');
wait_for_apply($pub, $sub, 'sub');
is(is_valid($sub, 'behind'), 't', '... is not announced');
query($pub, 'DROP INDEX CONCURRENTLY behind');
all_the_same('... until it is repeated');

# So does a CREATE INDEX: the next one gets another name.
interrupt_on_publisher(hold_table($pub, 't'),
	'CREATE INDEX CONCURRENTLY ON t (w DESC)');
query($pub, 'CREATE INDEX CONCURRENTLY ON t (w DESC)');
query($pub, 'CREATE INDEX ON t (w DESC)');
query($pub,
	q{DO $$ BEGIN EXECUTE (SELECT 'DROP INDEX ' || indexrelid::regclass FROM pg_index WHERE NOT indisvalid); END $$}
);
all_the_same('a CREATE INDEX that was interrupted');

# And a DETACH, which FINALIZE completes.
my $reader = open_session($pub);
$reader->query_safe('BEGIN; SELECT count(*) FROM part');
interrupt_on_publisher($reader,
	'ALTER TABLE part DETACH PARTITION part_1 CONCURRENTLY');
query($pub, 'ALTER TABLE part DETACH PARTITION part_1 FINALIZE');

# Without CONCURRENTLY, it would leave no constraint behind.
wait_for_subscribers();
query($pub,
	'CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200); INSERT INTO part VALUES (150)'
);
all_the_same('a DETACH that was interrupted');
$session->quit;

stop_servers();
done_testing();
