# The output plugin holds transactions back while decoding is far behind: only briefly,
# and not while the walsender waits for standbys.  Large rows are sent on their own.  SQL functions
# get no batches, whoever calls them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher', conf => <<EOC);
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
logical_decoding_work_mem = 64kB
EOC
my $sub = new_subscriber('subscriber');
my @tables = qw(t large);

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE large (id serial PRIMARY KEY, a text, b text);
ALTER TABLE large ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
EOS
query($pub, <<'EOS');
CREATE TABLE unpublished (v text);
CREATE PUBLICATION pub FOR TABLE t, large;
SELECT pg_create_physical_replication_slot('standby', true);
EOS
subscribe($pub, $sub, 'sub', 'pub', 'failover = true, streaming = off');
wait_for_apply($pub, $sub, 'sub');
is( query(
		$pub,
		"SELECT plugin, failover FROM pg_replication_slots WHERE slot_name = 'sub'"
	),
	'weft|t',
	"the slot uses Weft's plugin");

my $has_injection = ($ENV{enable_injection_points} // '') eq 'yes'
  && query(
	$pub,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
  );
my $next = 1;

# Makes transactions of one row each; returns the last row.
sub insert
{
	my ($count) = @_;
	query($pub, join '; ',
		map { 'INSERT INTO t VALUES (' . $next++ . ')' } 1 .. $count);
	return $next - 1;
}

sub flushed
{
	return query($pub, 'SELECT pg_current_wal_flush_lsn()');
}

# Writes WAL that contains nothing published.
sub fill
{
	query($pub,
		"INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
	);
	return flushed();
}

# The walsender stops before each page that it reads, until it has decoded everything
# before that page.  A standby then has all that is written, such as the background
# writer's records.
sub step_to
{
	my ($lsn) = @_;
	my $sent =
	  "SELECT sent_lsn >= '$lsn' FROM pg_stat_replication WHERE application_name = 'sub'";

	while (1)
	{
		poll($pub,
			"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event IN ('weft-plugin-page', 'WaitForStandbyConfirmation'))"
		);
		last if query($pub, $sent) eq 't';

		# one may still be on its way from the last time
		$pub->psql('postgres',
			"SELECT injection_points_wakeup('weft-plugin-page')");
		query($pub,
			"SELECT pg_replication_slot_advance('standby', pg_current_wal_flush_lsn())"
		);
	}
	return;
}

sub stop_at_pages
{
	disable_subscription($sub, 'sub');
	poll($pub,
		"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'"
	);
	query($pub, "SELECT injection_points_attach('weft-plugin-page', 'wait')");
	return;
}

sub run_freely
{
	query($pub, <<'EOS');
SELECT injection_points_detach('weft-plugin-page');
SELECT injection_points_wakeup('weft-plugin-page');
EOS
	return;
}

# With a limit, and without: the functions return what has been decoded.
query($pub, "SELECT pg_create_logical_replication_slot('functions', 'weft')");
insert(10);
fill();
foreach my $limit (3, 'NULL')
{
	my $peek =
	  "SELECT count(*), md5(string_agg(encode(data, 'hex'), ',')) FROM pg_logical_slot_peek_binary_changes("
	  . "'functions', NULL, $limit, 'proto_version', '4', 'publication_names', 'pub', 'weft_batch_version', '1')";

	is( $pub->safe_psql('postgres', $peek, replication => 'database'),
		query($pub, $peek),
		"SQL functions return the same in a walsender, limit $limit");
}
query($pub, "SELECT pg_drop_replication_slot('functions')");

SKIP:
{
	skip 'the server was built without injection points', 4
	  unless $has_injection;
	query($pub, 'CREATE EXTENSION injection_points');

	# Decoding is slow and far behind, but already past the transactions.
	stop_at_pages();
	insert(1);
	my $last = insert(20);
	my $middle = fill();
	my $end = fill();
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	step_to($middle);
	poll($sub, "SELECT count(*) = $last FROM t");
	pass('nothing is held back for long');
	is( query(
			$pub,
			"SELECT sent_lsn < '$end' FROM pg_stat_replication WHERE application_name = 'sub'"
		),
		't',
		'and the publisher is still behind');
	run_freely();
	wait_for_apply($pub, $sub, 'sub');

	# The walsender waits for a standby, and is far behind the end.
	stop_at_pages();
	insert(1);
	$last = insert(20);
	set_conf($pub, synchronized_standby_slots => 'standby');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	step_to(
		query(
			$pub,
			"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'sub'"
		));
	fill();
	run_freely();
	poll($pub,
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation')"
	);
	poll($sub, "SELECT count(*) = $last FROM t");
	pass('nothing is held back for a standby that never connects');
	query($pub, 'ALTER SYSTEM RESET synchronized_standby_slots');
	query($pub, 'SELECT pg_reload_conf()');
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, 'everything is there');
}

# Large rows among small ones, in a backlog: inserted, partly updated, deleted.
query($_, 'ALTER TABLE large REPLICA IDENTITY FULL') foreach $pub, $sub;
foreach my $case (
	[ 'off', 'off' ],
	[ 'off', 'on' ],
	[ 'lz4', 'off' ],
	[ 'lz4', 'parallel' ])
{
	my ($compression, $streaming) = @$case;

	next
	  if $compression eq 'lz4'
	  && !query($sub,
		"SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'weft.compression'"
	  );
	set_conf($sub, 'weft.compression' => $compression);
	disable_subscription($sub, 'sub');
	query($sub, "ALTER SUBSCRIPTION sub SET (streaming = $streaming)");
	foreach my $mb (1 .. 3)
	{
		my $next_id = 'SELECT max(id) FROM large';
		insert(30);
		query($pub, <<EOS);
INSERT INTO large (a, b) VALUES (repeat('x', $mb * 1000000), repeat('y', $mb * 10000));
BEGIN;
INSERT INTO large (a, b) VALUES ('small', repeat('z', $mb * 1000000));
INSERT INTO t VALUES (-$mb);
DELETE FROM t WHERE id < 0;
UPDATE large SET a = a || 'w' WHERE id = ($next_id);
SAVEPOINT s;
INSERT INTO large (a, b) VALUES (repeat('x', $mb * 1000000), '');
ROLLBACK TO s;
INSERT INTO large (a, b) VALUES ('small', 'small');
COMMIT;
UPDATE large SET b = b || 'v' WHERE id = ($next_id) - 1;
DELETE FROM large WHERE id = ($next_id) - 4;
EOS
		insert(30);
	}
	fill();
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables,
		"large rows, compression $compression, streaming $streaming");
}
is(errors_logged($sub), '', 'no errors on the subscriber')
  or diag errors_logged($sub);
is(errors_logged($pub), '', 'nor on the publisher')
  or diag errors_logged($pub);

done_testing();
