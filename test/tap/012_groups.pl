# Transactions that share a commit, and a trigger that is created while they are in
# flight.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher', conf => 'synchronous_commit = off');
my $sub = new_subscriber('subscriber', conf => 'weft.tune_writers = on');
my $transactions = 3000;

query_all(
	[ $pub, $sub ],
	'CREATE TABLE t (id bigserial PRIMARY KEY, v int); CREATE TABLE other (v int)'
);
query($pub, 'CREATE PUBLICATION pub FOR TABLE t, other');
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my %load = ("INSERT INTO t (v) VALUES (1);\n" => 1);

# Lets the publisher's statements reach the leader all at once, so that they form
# a group.
sub at_once
{
	my (@statements) = @_;
	my $leader = leader_pid($sub, 'sub');

	kill 'STOP', $leader;
	query($pub, $_) foreach @statements;
	flush_wal($pub);
	poll($pub,
		'SELECT bool_and(sent_lsn >= pg_current_wal_flush_lsn()) FROM pg_stat_replication'
	);
	kill 'CONT', $leader;
	return;
}

# Applies a backlog; returns the number of local transactions that resulted.
sub apply_backlog
{
	disable_subscription($sub, 'sub');
	query_all(
		[ $pub, $sub ],
		"SELECT pg_create_logical_replication_slot('history', 'test_decoding')"
	);
	finish(
		start_pgbench(
			$pub, \%load,
			'-c' => 4,
			'-t' => $transactions / 4,
			'--random-seed=1'));
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	wait_for_apply($pub, $sub, 'sub');
	flush_wal($_) foreach $pub, $sub;
	my $commits = decode_commits($pub, 'history');
	my $applied = decode_commits($sub, 'history');
	query_all([ $pub, $sub ], "SELECT pg_drop_replication_slot('history')");
	is(first_difference($commits, $applied),
		undef, 'each is a run of whole transactions, in order');
	return scalar @$applied;
}

cmp_ok(
	apply_backlog(), '<',
	$transactions / 2,
	'transactions of a backlog share commits');

set_conf($sub, 'weft.commit_group_size' => 1);
is(apply_backlog(), $transactions, 'with commit_group_size = 1, none does');

set_conf($sub, 'weft.commit_group_size' => 64);
$sub->append_conf('postgresql.conf', 'track_commit_timestamp = on');
$sub->restart;
cmp_ok(
	apply_backlog(), '<',
	$transactions / 2,
	'nor do commit timestamps keep them from it');
set_conf($sub, 'weft.exact_commit_timestamps' => 'on');
is(apply_backlog(), $transactions,
	'with exact_commit_timestamps, each has a commit of its own');
query($sub, 'ALTER SYSTEM RESET weft.exact_commit_timestamps');

$sub->append_conf('postgresql.conf', 'track_commit_timestamp = off');
$sub->restart;

# An error within a group concerns its transaction alone: all before it are
# committed, and the error names it.
query($sub, 'ALTER TABLE t ADD CHECK (v <> 13)');
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
my $before = query($pub, 'SELECT count(*) FROM t');
query($pub, 'INSERT INTO t (v) VALUES (2)') for 1 .. 20;
query($pub, 'INSERT INTO t (v) VALUES (13)');
query($pub, 'INSERT INTO t (v) VALUES (3)') for 1 .. 20;
my $log = -s $sub->logfile;
query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
$sub->wait_for_log(qr/violates check constraint/, $log);
poll($sub, "SELECT count(*) = $before + 20 FROM t");
like(
	slurp_file($sub->logfile, $log),
	qr/CONTEXT:  processing remote data for replication origin "pg_\d+" during message type "INSERT" for replication target relation "public.t"/,
	"an error within a group has the server's message");
is(query($sub, 'SELECT count(*) FROM t WHERE v = 3'),
	0, 'and nothing after it is applied');
query($sub, 'ALTER TABLE t DROP CONSTRAINT t_v_check');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'the conflicting row is removed');

# One change can depend on a transaction of its own group and also on an earlier
# transaction that is not applied yet: here an earlier transaction, which is held,
# creates the old row, and the group makes room for the new row.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE kept (id int PRIMARY KEY, v int);
CREATE TABLE rows (v int);
ALTER TABLE rows REPLICA IDENTITY FULL;
EOS
query($pub, <<'EOS');
INSERT INTO kept VALUES (1, 0);
INSERT INTO rows VALUES (1), (20);
ALTER PUBLICATION pub ADD TABLE kept, rows;
EOS
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 2)');
wait_for_apply($pub, $sub, 'sub');
my $local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
query($pub,
	'BEGIN; UPDATE kept SET v = 1; UPDATE rows SET v = 2 WHERE v = 1; COMMIT'
);
writer_waits_for_lock($sub);

at_once(
	'DELETE FROM rows WHERE v = 20',
	'UPDATE rows SET v = 20 WHERE v = 2',
	('INSERT INTO other VALUES (0)') x 12);
poll($sub,
	"SELECT count(*) = 1 FROM weft.stat_writer WHERE state LIKE 'waiting for %'"
);
$local->query_safe('COMMIT');
$local->quit;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [qw(kept rows other)],
	'a group waits for a transaction outside the group');

# A change that must wait is deferred, together with all later changes of its row; the
# writer applies the other changes that it has taken, except updates of hot rows, which
# wait, too.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE hot (id int PRIMARY KEY, v int, code int);
CREATE TABLE codes (id int PRIMARY KEY, v int, code int UNIQUE);
EOS
query($pub, <<'EOS');
INSERT INTO hot SELECT i, 0, i FROM generate_series(1, 20) i;
INSERT INTO codes SELECT i, 0, i FROM generate_series(1, 20) i;
ALTER PUBLICATION pub ADD TABLE hot, codes;
EOS
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'sub');

# Two writers: a local user keeps one from committing; the other one takes the
# transactions that follow, until it has reached a given state.  The first change there
# makes it look up the table.  Returns how many attempts were too early.
sub apply_behind_a_lock
{
	my ($first, $reached, @group) = @_;
	my $too_early = 'SELECT misspeculations FROM weft.stat_subscription';
	my $before = query($sub, $too_early);

	$local = open_session($sub);
	$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
	query($pub, "BEGIN; UPDATE kept SET v = v + 1; $first; COMMIT");
	writer_waits_for_lock($sub);
	at_once(@group);
	poll($sub, $reached);
	$local->query_safe('COMMIT');
	$local->quit;
	wait_for_apply($pub, $sub, 'sub');
	return query($sub, $too_early) - $before;
}

is( apply_behind_a_lock(
		'UPDATE hot SET v = 1 WHERE id <= 3',
		'SELECT NOT EXISTS (SELECT FROM hot WHERE id IN (10, 11) FOR UPDATE SKIP LOCKED)',
		'UPDATE hot SET v = 8 WHERE id = 11',
		'UPDATE hot SET v = v + 1 WHERE id = 1',
		'BEGIN; UPDATE hot SET v = v + 1 WHERE id = 2; UPDATE hot SET v = v * 10 WHERE id = 2; DELETE FROM hot WHERE id = 10; COMMIT',
		'UPDATE hot SET id = 30 WHERE id = 1',
		'UPDATE hot SET v = v + 5 WHERE id = 30',
		'BEGIN; DELETE FROM hot WHERE id = 3; INSERT INTO hot VALUES (3, 9, 3); COMMIT'
	),
	0,
	'other rows are changed while a change waits');
same_tables($pub, $sub, [qw(kept hot)],
	'and each row in the order of its changes');

# Keys do not show that two changes have a value of a further unique index in common.
# Therefore, changes of such a table keep their order.
is( apply_behind_a_lock(
		'UPDATE codes SET v = 2 WHERE id = 4',
		"SELECT count(*) = 1 FROM weft.stat_writer WHERE state = 'waiting for dependency'",
		'UPDATE codes SET v = 8 WHERE id = 13',
		'UPDATE codes SET code = NULL WHERE id = 4',
		'UPDATE codes SET code = 4 WHERE id = 5'),
	0,
	'a unique value moves between rows in order');
same_tables($pub, $sub, [qw(kept codes)], 'and is applied correctly then');

set_conf($sub, 'weft.commit_group_size' => 1);
apply_behind_a_lock(
	'UPDATE hot SET v = 3 WHERE id = 4',
	"SELECT count(*) = 1 FROM weft.stat_writer WHERE state = 'waiting for dependency'",
	'BEGIN; UPDATE hot SET v = 4 WHERE id = 4; UPDATE hot SET v = 4 WHERE id = 12; COMMIT'
);
same_tables($pub, $sub, [qw(kept hot)],
	'without groups, nothing is deferred');
set_conf($sub, 'weft.commit_group_size' => 64);

# A transaction that has changed a table before changes a row that is sent
# incompletely: it still depends on the transaction that created the row.
query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE long_rows (v int, body text);
ALTER TABLE long_rows REPLICA IDENTITY FULL;
ALTER TABLE long_rows ALTER body SET STORAGE EXTERNAL;
EOS
query($pub, 'ALTER PUBLICATION pub ADD TABLE long_rows');
query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
query($pub, "INSERT INTO long_rows VALUES (1, 'short')");
wait_for_apply($pub, $sub, 'sub');
$local = open_session($sub);
$local->query_safe('BEGIN; SELECT FROM kept FOR UPDATE');
query($pub,
	"BEGIN; UPDATE kept SET v = 2; INSERT INTO long_rows VALUES (2, repeat('x', 5000)); COMMIT"
);
query($pub,
	"BEGIN; INSERT INTO long_rows VALUES (9, 'short'); UPDATE long_rows SET v = 3 WHERE v = 2; COMMIT"
);
poll($sub,
	"SELECT count(*) = 1 FROM weft.stat_writer WHERE state LIKE 'waiting for %'"
);
$local->query_safe('COMMIT');
$local->quit;
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, [qw(kept long_rows)],
	'a change depends on other transactions than its own');
query_all([ $pub, $sub ], 'TRUNCATE other');
wait_for_apply($pub, $sub, 'sub');

# A trigger is created while transactions are in flight: each time that it fires, it
# sees what was committed earlier on the publisher, and no more.
query($sub, <<'EOS');
CREATE TABLE seen (id bigint, others bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.seen SELECT NEW.id, count(*) FROM public.other;
	RETURN NULL;
END $$;
EOS
query_all([ $pub, $sub ],
	"SELECT pg_create_logical_replication_slot('history', 'test_decoding')");
%load = (
	"INSERT INTO t (v) VALUES (1);\n" => 1,
	"INSERT INTO other VALUES (1);\n" => 3);
my $running =
  start_pgbench($pub, \%load, '-c' => 4, '-T' => 300, '--random-seed=2');
poll($sub, 'SELECT count(*) > 500 FROM other');
query($sub,
	'CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION note(); ALTER TABLE t ENABLE ALWAYS TRIGGER note'
);
poll($sub, 'SELECT count(*) > 100 FROM seen');
stop_load($running);
wait_for_apply($pub, $sub, 'sub');
flush_wal($pub);

my ($others, %expected, @wrong) = (0);
foreach my $line (map { split /\n/, $_->{text} }
	@{ decode_commits($pub, 'history') })
{
	$others++ if $line =~ /^table public.other: INSERT/;
	$expected{$1} = $others
	  if $line =~ /^table public.t: INSERT: id\[bigint\]:(\d+)/;
}
my @seen = split /\n/, query($sub, 'SELECT id, others FROM seen');
foreach (@seen)
{
	my ($id, $count) = split /\|/;
	push @wrong, "row $id: $count instead of $expected{$id}"
	  if $count != $expected{$id};
}
is("@wrong", '', 'and has seen all earlier commits');
same_tables($pub, $sub, [qw(t other)], 'all is applied');

done_testing();
