# Updates of one row that share a commit: those that a later one makes needless
# are left out, and no others.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE kept (id int PRIMARY KEY, v int);
CREATE TABLE hot (id int PRIMARY KEY, v int, w int, body text, code int UNIQUE);
ALTER TABLE hot ALTER body SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, v int);
ALTER TABLE whole REPLICA IDENTITY FULL;
EOS
query($pub,
	'INSERT INTO kept VALUES (1, 0); CREATE PUBLICATION pub FOR TABLE kept, hot, whole'
);
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 1');
wait_for_apply($pub, $sub, 'sub');

# Lets the one writer find all these statements, each of them a transaction, at
# once, so that they become a group: a local user keeps it at the one before.
sub as_group
{
	my (@statements) = @_;
	my $local = open_session($sub);

	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($pub, 'UPDATE kept SET v = v + 1');
	poll($sub,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event_type = 'Lock'"
	);
	query($pub, $_) foreach @statements;
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, "SELECT received_lsn >= '$end' FROM weft.stat_subscription");
	$local->query_safe('COMMIT');
	$local->quit;
	return;
}

# Begins anew, with rows that have just been touched, and counters at zero.
sub fresh_rows
{
	disable_subscription($sub, 'sub');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	query($pub, <<'EOS');
DELETE FROM hot;
INSERT INTO hot SELECT i, 0, 0, repeat('x', 5000), i FROM generate_series(1, 9) i;
DELETE FROM whole;
INSERT INTO whole VALUES (1, 0);
EOS
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# Applies the statements as a group, with so many updates of a table; returns how
# many of these were left out.
sub left_out
{
	my ($table, $updates, @statements) = @_;

	fresh_rows();
	as_group(@statements);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [qw(kept hot whole)], "equal: @statements");
	poll_for(
		$sub,
		"SELECT updates FROM weft.stat_relation WHERE relation = '$table'::regclass",
		sub { $_[0] eq $updates });
	return query($sub,
		"SELECT coalesced_rows FROM weft.stat_relation WHERE relation = '$table'::regclass"
	);
}

is( left_out(
		'hot',
		7,
		'UPDATE hot SET v = v + 1 WHERE id = 1',
		'UPDATE hot SET v = v + 1 WHERE id = 2',
		'BEGIN; UPDATE hot SET w = 1 WHERE id = 1; UPDATE hot SET w = 2 WHERE id = 1; COMMIT',
		'UPDATE hot SET v = v + 1 WHERE id = 1',
		'UPDATE hot SET v = v + 1 WHERE id = 2',
		'UPDATE hot SET v = v + 1 WHERE id = 3'),
	4,
	'of several updates of a row the last one is applied');
is( left_out(
		'hot',
		4,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'UPDATE hot SET id = 11 WHERE id = 1',
		'UPDATE hot SET v = 2 WHERE id = 11',
		'UPDATE hot SET id = 1 WHERE id = 11'),
	0,
	'none if its row gets another key');

is( left_out(
		'hot',
		2,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'DELETE FROM hot WHERE id = 1',
		'INSERT INTO hot (id) VALUES (1)',
		'UPDATE hot SET v = 2 WHERE id = 1'),
	0,
	'none if its row is deleted, and there is another one');

is( left_out(
		'hot', 2,
		"UPDATE hot SET body = repeat('y', 6000) WHERE id = 1",
		'UPDATE hot SET v = 2 WHERE id = 1'),
	0,
	'none with a value that the later one does not bring');

is( left_out(
		'hot',
		3,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'UPDATE hot SET v = 2 WHERE id = 1',
		"UPDATE hot SET body = repeat('y', 6000) WHERE id = 1"),
	2,
	'but those where both do not, or only the later one does');

is( left_out(
		'hot',
		3,
		'UPDATE hot SET code = NULL WHERE id = 1',
		'UPDATE hot SET code = 1 WHERE id = 2',
		'UPDATE hot SET code = 2 WHERE id = 1'),
	0,
	'values of a further unique index change hands, which is too early for a group'
);

is( left_out(
		'whole', 2,
		'UPDATE whole SET v = v + 1', 'UPDATE whole SET v = v + 1'),
	0,
	'none with replica identity full');

query($sub,
	"SELECT pg_create_logical_replication_slot('history', 'test_decoding')");
is(left_out('hot', 3, map { "UPDATE hot SET v = $_ WHERE id = 1" } 1 .. 3),
	0, 'none while somebody decodes what is applied');
is( query(
		$sub,
		"SELECT count(*) FROM pg_logical_slot_get_changes('history', NULL, NULL) WHERE data ~ 'public.hot: UPDATE'"
	),
	3,
	'who finds all of them');
query($sub, "SELECT pg_drop_replication_slot('history')");

set_conf($sub, 'weft.commit_group_size' => 1);
is(left_out('hot', 3, map { "UPDATE hot SET v = $_ WHERE id = 1" } 1 .. 3),
	0, 'none without groups');
set_conf($sub, 'weft.commit_group_size' => 100);

# What the subscriber refuses, it refuses though a later update would undo it.
sub refused
{
	my ($constraint, $value, $message) = @_;

	fresh_rows();
	query($sub, "ALTER TABLE hot $constraint->[0]");
	my $log = -s $sub->logfile;
	as_group(
		'UPDATE hot SET v = 5 WHERE id = 1',
		"UPDATE hot SET w = $value WHERE id = 1",
		'UPDATE hot SET w = 1 WHERE id = 1');
	$sub->wait_for_log($message, $log);
	poll($sub, 'SELECT (v, w) = (5, 0) FROM hot WHERE id = 1');
	query($sub, "ALTER TABLE hot $constraint->[1]");
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['hot'], "$constraint->[0]");
	return;
}
refused([ 'ALTER w SET NOT NULL', 'ALTER w DROP NOT NULL' ],
	'NULL', qr/null value in column "w"/);
refused([ 'ADD CONSTRAINT small CHECK (w < 10)', 'DROP CONSTRAINT small' ],
	'20', qr/violates check constraint "small"/);

done_testing();
