# Updates of one row that share a commit are coalesced within a node group, whose members do
# not get what others have applied, but not once anybody else decodes a member's WAL.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) =
  map {
	new_member($_,
		conf => "weft.tune_writers = off\nlogical_decoding_work_mem = 64kB\n")
  } qw(a b c);

query($a, <<'EOS');
CREATE TABLE kept (id int PRIMARY KEY, v int);
CREATE TABLE hot (id int PRIMARY KEY, v int);
CREATE TABLE many (id int PRIMARY KEY, v int, filler text);
INSERT INTO kept VALUES (1, 0);
INSERT INTO hot SELECT i, 0 FROM generate_series(1, 9) i;
EOS
create_group($a, 'g');
query($a,
	"SELECT weft.alter_node_group_config(node_group_name := 'g', num_writers := 1)"
);
join_group($b, $a, 'g');
wait_for_group('g', $a, $b);

my $sub = subscription_name('g', $a, $b);
my $turn = 0;

# How many updates of hot have been left out on b.
sub left_out
{
	return query($b,
		"SELECT coalesce(sum(coalesced_rows), 0) FROM weft.stat_relation WHERE relation = 'hot'::regclass"
	);
}

# Commits twenty updates of one row on a, each in a transaction of its own, such that they
# find each other in the ring of b.  If given, "meanwhile" is called once the writer has
# begun to apply them, has no transaction ID yet, and waits for a table.
sub update_one_row
{
	my ($meanwhile) = @_;
	my $local = open_session($b);
	my $other = open_session($b);

	$turn++;
	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($a, 'UPDATE kept SET v = v + 1');
	writer_waits_for_lock($b);
	query($a, "UPDATE hot SET v = $turn * 100 + $_ WHERE id = 1")
	  foreach 1 .. 20;
	my $end = query($a, 'SELECT pg_current_wal_flush_lsn()');
	poll($b,
		"SELECT received_lsn >= '$end' FROM weft.stat_subscription WHERE subname = '$sub'"
	);
	$other->query_safe('BEGIN; LOCK TABLE hot IN SHARE MODE') if $meanwhile;
	$local->query_safe('COMMIT');

	if ($meanwhile)
	{
		poll($b,
			"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'hot'::regclass AND NOT granted"
		);
		$meanwhile->();
		$other->query_safe('COMMIT');
	}
	$_->quit foreach $local, $other;
	wait_for_group('g', $a, $b);
	is( query($b, 'SELECT v FROM hot WHERE id = 1'),
		$turn * 100 + 20,
		"turn $turn: the last update has been applied");
	return;
}

# Returns how many updates more are left out when they are made.
sub more_left_out
{
	my ($meanwhile) = @_;
	my $before = left_out();

	update_one_row($meanwhile);

	# Counters of relations are reported up to a second later.
	my $seen = 20 * $turn;
	poll($b,
		"SELECT sum(updates) >= $seen FROM weft.stat_relation WHERE relation = 'hot'::regclass"
	);
	return left_out() - $before;
}

# How many updates of hot a slot has to offer.
sub decoded_updates
{
	my ($slot) = @_;
	return query($b, <<EOS);
SELECT count(*) FROM pg_logical_slot_peek_binary_changes('$slot', NULL, NULL,
	'proto_version', '4', 'publication_names', 'weft_g')
WHERE get_byte(data, 0) = ascii('U')
	AND ('x' || encode(substr(data, 2, 4), 'hex'))::bit(32)::int = 'hot'::regclass::oid::int
EOS
}

sub create_slot
{
	my ($name) = @_;
	query($b,
		"SELECT pg_create_logical_replication_slot('$name', 'pgoutput')");
	return;
}

sub drop_slot
{
	my ($name) = @_;
	query($b, "SELECT pg_drop_replication_slot('$name')");
	return;
}

is(query($b, 'SELECT count(*) FROM pg_replication_slots'),
	1, 'b has the slot through which a follows it');
cmp_ok(more_left_out(), '>', 10, 'updates are left out nevertheless');

# Somebody else's slot.
create_slot('capture');
is(more_left_out(), 0, 'none while there is another slot');
is(decoded_updates('capture'), 20, 'it has all updates');
drop_slot('capture');
cmp_ok(more_left_out(), '>', 10, 'they are left out again');

# In another database it does not matter.
query($b, 'CREATE DATABASE other');
$b->safe_psql('other',
	"SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')");
cmp_ok(more_left_out(), '>', 10, 'a slot of another database is none');
drop_slot('elsewhere');

# A slot whose name only resembles a member's: c is not a member.
create_slot(subscription_name('g', $b, $c));
is(more_left_out(), 0, 'a slot for a node that is not a member');
drop_slot(subscription_name('g', $b, $c));

# A slot that is created once the group has begun, and is ready before the local transaction
# has an ID.
more_left_out(sub { create_slot('capture') });
is(decoded_updates('capture'),
	20, 'a slot that is created while updates are applied has all of them');
drop_slot('capture');

# Another member's slot.
join_group($c, $a, 'g');
wait_for_group('g', $a, $b, $c);
cmp_ok(more_left_out(), '>', 10, 'updates are left out with three members');
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], [qw(kept hot)], 'members are equal');

# Where conflicts are detected, large transactions are not streamed, since their commit time is
# not known before their end: the publisher keeps them until then.  Then they are applied like any
# other, in a group with others or, if they are too large for that, alone.
my $local = open_session($b);
$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
query($a, 'UPDATE kept SET v = v + 1');
writer_waits_for_lock($b);
foreach my $size (1, 500, 1, 30_000, 1, 500, 1)
{
	query($a, <<EOS);
INSERT INTO many SELECT i, 0, repeat('x', 200) FROM generate_series(1, $size) i
	ON CONFLICT (id) DO UPDATE SET v = many.v + 1
EOS
}
# Newer than all of them.
query($b,
	"INSERT INTO many SELECT i, -1 FROM generate_series(29991, 30010) i");
$local->query_safe('COMMIT');
$local->quit;
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], [qw(many)], 'large transactions');
is(query($b, 'SELECT count(*) FROM many WHERE v = -1'),
	20, 'the newer rows have stayed');
my $times =
  "SELECT md5(string_agg(id || ' ' || extract(epoch FROM weft.row_commit_timestamp(tableoid, ctid)), ',' ORDER BY id)) FROM many";
my $expected = query($a, $times);
is(query($_, $times),
	$expected, 'the rows have the same times on ' . $_->name)
  foreach $b, $c;
poll_for(
	$a,
	'SELECT coalesce(sum(spill_txns), 0) > 0, coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots',
	sub { $_[0] eq 't|0' });

# A former member's, if something has kept it.
query($a, "SELECT weft.part_node('c')");
poll($b, "SELECT count(*) = 1 FROM pg_replication_slots");
create_slot(subscription_name('g', $b, $c));
is(more_left_out(), 0, 'the slot of a former member');

done_testing();
