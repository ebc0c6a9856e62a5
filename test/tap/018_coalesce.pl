# Updates of one row that share a commit: an update is coalesced if a later one
# supersedes it, and only then.

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
CREATE TABLE hot (id int PRIMARY KEY, v int, w int, body text, code int);
ALTER TABLE hot ALTER body SET STORAGE EXTERNAL;
CREATE INDEX ON hot (code);
CREATE TABLE codes (id int PRIMARY KEY, v int, code int UNIQUE);
CREATE TABLE strict (id int PRIMARY KEY, v int, a text, b text, c bigint, n numeric, x int);
CREATE TABLE whole (id int PRIMARY KEY, v int);
ALTER TABLE whole REPLICA IDENTITY FULL;
EOS
query($pub,
	'INSERT INTO kept VALUES (1, 0); CREATE PUBLICATION pub FOR TABLE kept, hot, codes, strict, whole'
);
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 1');
wait_for_apply($pub, $sub, 'sub');

# Presents all these statements, each as a transaction, to the only writer at once, so
# that they form a group: a local user blocks the writer at the transaction before.
sub as_group
{
	my (@statements) = @_;
	my $local = open_session($sub);

	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($pub, 'UPDATE kept SET v = v + 1');
	writer_waits_for_lock($sub);
	query($pub, $_) foreach @statements;
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, "SELECT received_lsn >= '$end' FROM weft.stat_subscription");
	$local->query_safe('COMMIT');
	$local->quit;
	return;
}

# Starts again with freshly touched rows and with counters at zero.
sub fresh_rows
{
	disable_subscription($sub, 'sub');
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	query($pub, <<'EOS');
DELETE FROM hot;
INSERT INTO hot SELECT i, 0, 0, repeat('x', 5000), i FROM generate_series(1, 9) i;
DELETE FROM codes;
INSERT INTO codes SELECT i, 0, i FROM generate_series(1, 9) i;
DELETE FROM strict;
INSERT INTO strict SELECT i, 0, 'ok', 'ok', 0, 0, 1 FROM generate_series(1, 3) i;
DELETE FROM whole;
INSERT INTO whole VALUES (1, 0);
EOS
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# Applies the statements as a group with this many updates of a table; returns how many
# of these were coalesced.
sub left_out
{
	my ($table, $updates, @statements) = @_;

	fresh_rows();
	as_group(@statements);
	wait_for_apply($pub, $sub, 'sub');
	same_tables(
		$pub, $sub,
		[qw(kept hot codes strict whole)],
		"equal: @statements");
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
	'of several updates of a row, only the last is applied');
is( left_out(
		'hot',
		4,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'UPDATE hot SET id = 11 WHERE id = 1',
		'UPDATE hot SET v = 2 WHERE id = 11',
		'UPDATE hot SET id = 1 WHERE id = 11'),
	0,
	'none if the row gets another key');

is( left_out(
		'hot',
		2,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'DELETE FROM hot WHERE id = 1',
		'INSERT INTO hot (id) VALUES (1)',
		'UPDATE hot SET v = 2 WHERE id = 1'),
	0,
	'none if the row is deleted, and inserted again');

is( left_out(
		'hot', 2,
		"UPDATE hot SET body = repeat('y', 6000) WHERE id = 1",
		'UPDATE hot SET v = 2 WHERE id = 1'),
	0,
	'none if the later update lacks a value');

is( left_out(
		'hot',
		3,
		'UPDATE hot SET v = 1 WHERE id = 1',
		'UPDATE hot SET v = 2 WHERE id = 1',
		"UPDATE hot SET body = repeat('y', 6000) WHERE id = 1"),
	2,
	'but those where both do not, or only the later one does');

is( left_out(
		'strict',
		3,
		"UPDATE strict SET a = 'ä', c = 5000000000, n = 1.5 WHERE id = 1",
		"UPDATE strict SET a = NULL, b = NULL WHERE id = 1",
		"UPDATE strict SET b = 'ok', c = 1, n = 2 WHERE id = 1"),
	1,
	'a value is coalesced, but not a NULL that the later update does not set'
);

is( left_out(
		'codes',
		4,
		'UPDATE codes SET v = 1 WHERE id = 1',
		'UPDATE codes SET v = 2 WHERE id = 1',
		'UPDATE codes SET code = NULL WHERE id = 1',
		'UPDATE codes SET code = 1 WHERE id = 2'),
	0,
	'none with a further unique index');

is( left_out(
		'whole', 2,
		'UPDATE whole SET v = v + 1', 'UPDATE whole SET v = v + 1'),
	0,
	'none with replica identity full');

query($sub,
	"SELECT pg_create_logical_replication_slot('history', 'test_decoding')");
is(left_out('hot', 3, map { "UPDATE hot SET v = $_ WHERE id = 1" } 1 .. 3),
	0, "none while the subscriber's WAL is decoded");
# only what is flushed is decoded
flush_wal($sub);
is( query(
		$sub,
		"SELECT count(*) FROM pg_logical_slot_get_changes('history', NULL, NULL) WHERE data ~ 'public.hot: UPDATE'"
	),
	3,
	'which shows all of them');
query($sub, "SELECT pg_drop_replication_slot('history')");

set_conf($sub, 'weft.commit_group_size' => 1);
is(left_out('hot', 3, map { "UPDATE hot SET v = $_ WHERE id = 1" } 1 .. 3),
	0, 'none without groups');
set_conf($sub, 'weft.commit_group_size' => 100);

# If the subscriber refuses a change, it refuses it even if a later update would undo it.
# Then only the changes before it are applied.  "strict" and "loose" are commands for the
# subscriber.
sub refused
{
	my ($strict, $loose, $bad, $good, $message) = @_;

	fresh_rows();
	query($sub, $strict);
	my $log = -s $sub->logfile;
	as_group('UPDATE strict SET v = 5 WHERE id = 1',
		"UPDATE strict SET $bad WHERE id = 1", $good);
	$sub->wait_for_log($message, $log);
	poll($sub, 'SELECT v = 5 FROM strict WHERE id = 1');
	query($sub, $loose);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['strict'], "refused: $strict");
	return;
}

sub refused_value
{
	my ($strict, $loose, $column, $bad, $good, $message) = @_;

	refused(
		"ALTER TABLE strict $strict",
		"ALTER TABLE strict $loose",
		"$column = $bad",
		"UPDATE strict SET $column = $good WHERE id = 1", $message);
	return;
}

query($sub, <<'EOS');
CREATE TYPE mood AS ENUM ('ok', 'good');
CREATE DOMAIN short AS text CHECK (length(VALUE) < 5);
EOS
refused_value(
	'ALTER x SET NOT NULL',
	'ALTER x DROP NOT NULL',
	'x', 'NULL', 1, qr/null value in column "x"/);
refused_value(
	'ADD CONSTRAINT small CHECK (x < 10)',
	'DROP CONSTRAINT small',
	'x', 20, 1, qr/violates check constraint "small"/);
refused_value(
	'ALTER a TYPE varchar(3)',
	'ALTER a TYPE text',
	'a', "'long'", "'go'", qr/value too long for type character varying\(3\)/
);
refused_value(
	'ALTER a TYPE mood USING a::mood',
	'ALTER a TYPE text',
	'a', "'odd'", "'ok'", qr/invalid input value for enum .*mood: "odd"/);
refused_value(
	'ALTER a TYPE short',
	'ALTER a TYPE text',
	'a', "'longer'", "'go'", qr/value for domain .*short violates check/);
refused_value(
	'ALTER c TYPE int',
	'ALTER c TYPE bigint',
	'c', 5000000000, 1, qr/out of range for type integer/);
refused_value(
	'ALTER n TYPE numeric(4, 2)',
	'ALTER n TYPE numeric USING trim_scale(n)',
	'n', '123.4', 1, qr/numeric field overflow/);
refused(
	'CREATE INDEX strict_a ON strict (a)',
	'DROP INDEX strict_a',
	"a = (SELECT string_agg(sha512(i::text::bytea)::text, '') FROM generate_series(1, 100) i)",
	"UPDATE strict SET a = 'ok' WHERE id = 1",
	qr/index row .*maximum/);
refused(
	'CREATE INDEX strict_x ON strict ((100 / x))',
	'DROP INDEX strict_x',
	'x = 0',
	'UPDATE strict SET x = 1 WHERE id = 1',
	qr/division by zero/);

# The same if another row is temporarily in the way.
foreach my $constraint (
	[
		'CREATE UNIQUE INDEX strict_x ON strict (x) WHERE x > 1',
		'DROP INDEX strict_x',
		qr/unique (constraint|index) "strict_x"/
	],
	[
		"ALTER TABLE strict ADD CONSTRAINT apart EXCLUDE USING gist (int8range(x, x, '[]') WITH &&) WHERE (x > 1)",
		'ALTER TABLE strict DROP CONSTRAINT apart',
		qr/violates exclusion constraint "apart"/
	])
{
	foreach my $good (1, 2)
	{
		refused(
			"$constraint->[0]; UPDATE strict SET x = 7 WHERE id = 2",
			"$constraint->[1]; UPDATE strict SET x = 1 WHERE id = 2",
			'x = 7',
			"UPDATE strict SET x = 1 WHERE id = $good",
			$constraint->[2]);
	}
}

done_testing();
