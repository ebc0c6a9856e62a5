# Keys that denote the same row on the subscriber although their bytes differ: because of
# the type there, its collation, or changed settings of the publisher.  Their changes keep
# their order, and none is lost because its row is missing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => weft() ? 'weft.commit_group_size = 8' : '');

# Column definitions of keys on the subscriber, two texts that are equal there, and the
# publisher's type if it is not text.
my @keys = (
	[ 'numeric' => '1', '1.0' ],
	[ 'numeric(10,2)' => '1', '1.00' ],
	[ 'int' => '1', '01' ],
	[ 'float8' => '0', '-0' ],
	[ 'interval' => '1 day', '24:00:00' ],
	[
		'timestamptz' => '2026-01-01 00:00:00+00',
		'2026-01-01 01:00:00+01'
	],
	[ 'bytea' => 'a', '\x61' ],
	[ 'jsonb' => '{"a": 1}', '{"a": 1.0}' ],
	[ 'money' => '1', '1.00' ],
	[ 'char(5)' => 'a', 'a  ' ],
	[ 'varchar(1)' => 'a', 'a  ' ],
	[ 'int[]' => '{1}', '{01}' ],
	[ 'int4range' => '[1,2)', '[1,1]' ],
	[ 'dom' => '1', '1.0' ]);

push @keys,
  [ 'text COLLATE ci' => 'a', 'A' ], [ 'name COLLATE ci' => 'a', 'A', 'name' ]
  if query($sub,
	"SELECT count(*) FROM pg_collation WHERE collprovider = 'i'");
push @keys,
  [ 'citext' => 'a', 'A' ]
  if query($sub,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'");

query($sub, 'CREATE DOMAIN dom AS numeric');
query($sub,
	"CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
) if grep { $_->[0] =~ /COLLATE/ } @keys;
query($sub, 'CREATE EXTENSION citext') if grep { $_->[0] eq 'citext' } @keys;

query_all([ $pub, $sub ], 'CREATE TABLE kept (id int PRIMARY KEY, v int)');
query_all([ $pub, $sub ], 'INSERT INTO kept VALUES (1, 0)');
foreach my $i (0 .. $#keys)
{
	my ($type, $one, $other, $sent) = @{ $keys[$i] };

	$sent //= 'text';
	query($pub,
		"CREATE TABLE k$i (k $sent PRIMARY KEY, v int); INSERT INTO k$i VALUES ('$one', 0), ('$other', 0)"
	);
	query($sub,
		"CREATE TABLE k$i (k $type PRIMARY KEY, v int); INSERT INTO k$i VALUES ('$one', 0)"
	);
}

# The publisher's key has an additional column.
query($pub,
	'CREATE TABLE wide (k int, w int, v int, PRIMARY KEY (k, w)); INSERT INTO wide VALUES (1, 1, 0), (1, 2, 0)'
);
query($sub,
	'CREATE TABLE wide (k int PRIMARY KEY, w int, v int); INSERT INTO wide VALUES (1, 1, 0)'
);
query_all([ $pub, $sub ],
	'CREATE TABLE times (at timestamptz PRIMARY KEY, v int)');
query_all([ $pub, $sub ],
	'CREATE TABLE whole (id int PRIMARY KEY, at timestamptz, v int)');
query($pub, 'ALTER TABLE whole REPLICA IDENTITY FULL');
query_all(
	[ $pub, $sub ],
	"INSERT INTO times VALUES ('2026-01-01', 0); INSERT INTO whole VALUES (1, '2026-01-01', 0)"
);

# Tables that take the general path on the subscriber.
query($pub,
	"CREATE TABLE general (k text PRIMARY KEY, v int); INSERT INTO general VALUES ('1', 0), ('2', 0)"
);
query($sub,
	'CREATE TABLE general (k numeric PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v * 2) STORED)'
);

# A function that runs while the server's code reads a change, and stores a row itself.
query($sub, 'CREATE TABLE noted (v int)');
query($sub,
	'CREATE FUNCTION note(int) RETURNS bool LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.noted VALUES ($1); RETURN true; END$$'
);
query($sub, 'CREATE DOMAIN noting AS int CHECK (note(VALUE))');
query($pub,
	'CREATE TABLE notes (k text PRIMARY KEY, v int); CREATE TABLE parted (k text PRIMARY KEY, v int)'
);
query($pub,
	"INSERT INTO notes VALUES ('1', 0); INSERT INTO parted VALUES ('1', 0)");
query($sub,
	'CREATE TABLE notes (k numeric PRIMARY KEY, v noting, w int GENERATED ALWAYS AS (v * 2) STORED)'
);
query($sub,
	'CREATE TABLE parted (k numeric PRIMARY KEY, v noting) PARTITION BY RANGE (k)'
);
query($sub,
	'CREATE TABLE part PARTITION OF parted DEFAULT PARTITION BY LIST (k)');
query($sub, 'CREATE TABLE leaf PARTITION OF part DEFAULT');

query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
subscribe($pub, $sub, 'sub', 'pub', 'copy_data = off');
wait_for_apply($pub, $sub, 'sub');

sub set_writers
{
	my ($writers) = @_;

	return unless weft();
	disable_subscription($sub, 'sub');
	query($sub,
		"ALTER SUBSCRIPTION sub SET (num_writers = $writers); ALTER SUBSCRIPTION sub ENABLE"
	);
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# A local user locks a row, which blocks the next transaction.
sub keep_one_back
{
	my ($sql) = @_;
	my $local = open_session($sub);

	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($pub, "BEGIN; UPDATE kept SET v = v + 1; $sql COMMIT");
	poll($sub,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker') AND wait_event_type = 'Lock'"
	);
	return $local;
}

sub wait_until_received
{
	return unless weft();
	my $end = query($pub, 'SELECT pg_current_wal_flush_lsn()');
	poll($sub, "SELECT received_lsn >= '$end' FROM weft.stat_subscription");
	return;
}

# Each statement is a transaction, and all of them are available at once.  The tables were
# announced long before, and their rows have not been touched for long.
sub as_group
{
	my ($tables, @statements) = @_;
	query($pub, "UPDATE $_ SET v = v")   foreach @$tables;
	query($pub, 'UPDATE kept SET v = v') foreach 1 .. 5;
	wait_for_apply($pub, $sub, 'sub');
	my $local = keep_one_back('');

	foreach my $statement (@statements)
	{
		ref $statement ? $statement->() : query($pub, $statement);
	}
	wait_until_received();
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# With one writer, changes of the first key are deferred, if any are.
set_writers(1);
foreach my $i (0 .. $#keys)
{
	my ($type, $one, $other) = @{ $keys[$i] };

	as_group(
		["k$i"],
		"UPDATE k$i SET v = 1 WHERE k = '$one'",
		"UPDATE k$i SET v = 2 WHERE k = '$one'",
		"UPDATE k$i SET v = 3 WHERE k = '$other'");
	is(query($sub, "SELECT v FROM k$i"), 3, "$type: the last one wins");
}

as_group(
	['wide'],
	'UPDATE wide SET v = 1 WHERE w = 1',
	'UPDATE wide SET v = 2 WHERE w = 1',
	'UPDATE wide SET v = 3 WHERE w = 2');
is(query($sub, 'SELECT w, v FROM wide'),
	'2|3', 'a wider key on the publisher');

# Changes that are published while the setting has another value have other bytes.
sub in_zone
{
	my ($zone) = @_;
	return sub {
		wait_until_received();
		set_conf($pub, TimeZone => $zone);
		return;
	};
}
as_group(
	[ 'times', 'whole' ],
	'UPDATE times SET v = 1',
	'UPDATE times SET v = 2',
	'UPDATE whole SET v = 1',
	'UPDATE whole SET v = 2',
	in_zone('Asia/Tokyo'),
	'UPDATE times SET v = 3',
	'UPDATE whole SET v = 3',
	in_zone('UTC'),
	'UPDATE whole SET v = v + 1');
same_tables($pub, $sub, [ 'times', 'whole' ], 'another TimeZone');

# Waits until later transactions have been applied, or given up, before an earlier one.
sub wait_until_later_ones_wait
{
	poll($sub,
		"SELECT count(*) FILTER (WHERE state IN ('waiting to retry', 'waiting for commit order')) > 0 AND count(*) FILTER (WHERE state = 'applying') = 1 FROM weft.stat_writer"
	) if weft();
	wait_until_received();
	return;
}

# A row that an earlier transaction inserts is not there yet: with several writers, the
# later transaction must be retried, whether or not the server would report that.
set_writers(4);
foreach my $setting (
	[ log_min_messages => 'warning' ],
	[ log_min_messages => 'fatal' ],
	[ track_counts => 'off' ])
{
	set_conf($sub, @$setting);
	query($sub, 'DELETE FROM general');
	my $local =
	  keep_one_back("INSERT INTO general VALUES ('1.0', 0), ('2.0', 0);");
	query($pub, "UPDATE general SET v = 7 WHERE k = '1'");
	query($pub, "DELETE FROM general WHERE k = '2'");
	wait_until_later_ones_wait();
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, 'SELECT k, v, w FROM general'),
		'1|7|14', "@$setting: no change is dropped");
	query($pub,
		"DELETE FROM general; INSERT INTO general VALUES ('1', 0), ('2', 0)");
	wait_for_apply($pub, $sub, 'sub');
}

# Nor is a row that a function stores taken for that of the change; but the change's own
# row is, in a partition, too.
set_conf($sub, track_counts => 'on');
foreach my $table ('notes', 'parted')
{
	my $local = keep_one_back("INSERT INTO $table VALUES ('1.0', 0);");

	query($pub, "UPDATE $table SET v = 7 WHERE k = '1'");
	wait_until_later_ones_wait();
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, "SELECT v FROM $table"),
		'7', "a function stores rows: no change of $table is dropped");

	next unless weft();
	$local = keep_one_back('');
	query($pub, "UPDATE $table SET v = 8 WHERE k = '1'");
	wait_until_later_ones_wait();
	is( query(
			$sub,
			"SELECT count(*) FROM weft.stat_writer WHERE state = 'waiting to retry'"
		),
		'0',
		"a row of $table is found");
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
}

$sub->stop;
$pub->stop;
done_testing();
