# Random load from eight clients, and the snapshots that a reader of the subscriber
# sees meanwhile.
#
# Every transaction inserts an id of its own into "journal", and stamps the rows
# that it changes with this id.  A second slot on the publisher, with test_decoding,
# gives the order of the commits and the changes of each transaction.  Therefore, in
# every snapshot that is taken on the subscriber, the ids in the journal must be the
# first k of that order, and applying the changes of these k transactions to the
# initial contents must give all tables of the snapshot, row by row.
#
# A third slot, on the subscriber, gives what the apply workers committed: it must
# be the same changes in the same transactions in the same order.  Some seeds run
# without this slot, because updates are coalesced only if nobody decodes the
# subscriber's WAL.
#
# WEFT_SEEDS sets the number of seeds (default 20), WEFT_FIRST_SEED the first
# (default 1), WEFT_SECONDS the duration of each load (default 3).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

my $seeds = $ENV{WEFT_SEEDS} // 20;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $seconds = $ENV{WEFT_SECONDS} // 3;

# All tables with their columns, and the columns by which a change identifies its
# row; without these it identifies whole rows, which may be equal to others.
my %tables = (
	accounts => { columns => [qw(id last_txn value)], key => ['id'] },
	bookings => { columns => [qw(id last_txn during)], key => ['id'] },
	children => { columns => [qw(id last_txn parent)], key => ['id'] },
	codes => { columns => [qw(id last_txn code)], key => ['id'] },
	documents => { columns => [qw(id last_txn hits body)], key => ['id'] },
	fullrows => { columns => [qw(v body)] },
	indexed => { columns => [qw(a last_txn b)], key => ['b'] },
	journal => { columns => ['id'], key => ['id'] },
	movers => { columns => [qw(id last_txn payload)], key => ['id'] },
	nokey => { columns => [qw(v w)] },
	parents => { columns => [qw(id last_txn)], key => ['id'] },
	ranks => { columns => [qw(id last_txn rank)], key => ['id'] },
	side => { columns => [qw(id last_txn)], key => ['id'] },);
my @tables = sort keys %tables;

my $schema = <<'EOS';
CREATE TABLE journal (id bigint PRIMARY KEY);
CREATE TABLE accounts (id int PRIMARY KEY, last_txn bigint NOT NULL, value bigint NOT NULL);
-- values of a second unique index change hands
CREATE TABLE codes (id int PRIMARY KEY, last_txn bigint NOT NULL, code int UNIQUE);
CREATE TABLE ranks (id int PRIMARY KEY, last_txn bigint NOT NULL, rank int,
	UNIQUE (rank) DEFERRABLE);
CREATE TABLE bookings (id int PRIMARY KEY, last_txn bigint NOT NULL, during int4range,
	EXCLUDE USING gist (during WITH &&));
CREATE TABLE parents (id int PRIMARY KEY, last_txn bigint NOT NULL);
CREATE TABLE children (id int PRIMARY KEY, last_txn bigint NOT NULL,
	parent int NOT NULL REFERENCES parents);
CREATE INDEX ON children (parent);
CREATE TABLE nokey (v int, w int);
ALTER TABLE nokey REPLICA IDENTITY FULL;
CREATE TABLE movers (id int PRIMARY KEY, last_txn bigint NOT NULL, payload text);
CREATE TABLE indexed (a int, last_txn bigint NOT NULL, b int NOT NULL);
CREATE UNIQUE INDEX indexed_b ON indexed (b);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_b;
CREATE TABLE documents (id int PRIMARY KEY, last_txn bigint NOT NULL, hits int, body text);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE fullrows (v int, body text);
ALTER TABLE fullrows ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE side (id bigint PRIMARY KEY, last_txn bigint NOT NULL);
EOS

# On the subscriber, a row takes a while from time to time, so that later transactions
# overtake.
my $dawdle = <<'EOS';
CREATE FUNCTION dawdle() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	IF random() < 0.2 THEN
		PERFORM pg_sleep(random() * 0.003);
	END IF;
	RETURN true;
END $$;
ALTER TABLE journal ADD CONSTRAINT dawdle CHECK (dawdle());
ALTER TABLE codes ADD CONSTRAINT dawdle CHECK (dawdle());
ALTER TABLE movers ADD CONSTRAINT dawdle CHECK (dawdle());
ALTER TABLE nokey ADD CONSTRAINT dawdle CHECK (dawdle());
EOS

# One operation of a transaction.  Those that violate a constraint leave an aborted
# subtransaction behind.  pgbench retries those that deadlock.
my $functions = <<'EOS';
CREATE SEQUENCE txn;

CREATE FUNCTION pay(txn bigint, account int, amount bigint) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO accounts VALUES (account, txn, amount)
	ON CONFLICT (id) DO UPDATE SET last_txn = txn, value = accounts.value + amount
$$;

CREATE FUNCTION exchange_codes(txn bigint, a int, b int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	code_a int;
	code_b int;
BEGIN
	SELECT code INTO code_a FROM codes WHERE id = a FOR UPDATE;
	IF NOT found OR a = b THEN RETURN; END IF;
	SELECT code INTO code_b FROM codes WHERE id = b FOR UPDATE;
	IF NOT found THEN RETURN; END IF;
	UPDATE codes SET code = CASE WHEN a % 2 = 0 THEN -code END WHERE id = a;
	UPDATE codes SET code = code_a, last_txn = txn WHERE id = b;
	UPDATE codes SET code = code_b, last_txn = txn WHERE id = a;
END $$;

CREATE FUNCTION op(kind int, txn bigint, a int, b int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	amount bigint;
BEGIN
	CASE kind
	WHEN 1, 2, 3, 4 THEN
		PERFORM pay(txn, a, b), pay(txn, b, -b);
	WHEN 5 THEN
		DELETE FROM accounts WHERE id = a RETURNING value INTO amount;
		IF found THEN PERFORM pay(txn, b, amount); END IF;
	WHEN 6 THEN
		UPDATE accounts SET last_txn = txn WHERE id % 10 = a % 10;
	WHEN 7, 8 THEN
		PERFORM exchange_codes(txn, a, b);
	WHEN 9 THEN
		UPDATE codes SET code = NULL, last_txn = txn WHERE code = b % 10;
	WHEN 10 THEN
		DELETE FROM codes WHERE code = b % 10;
	WHEN 11 THEN
		INSERT INTO codes VALUES (a, txn, b % 10)
		ON CONFLICT (id) DO UPDATE SET code = b % 10, last_txn = txn;
	WHEN 12 THEN
		UPDATE codes SET code = b % 10, last_txn = txn WHERE id = a;
	WHEN 13 THEN
		UPDATE ranks SET rank = a + b - rank, last_txn = txn WHERE rank BETWEEN least(a, b) AND greatest(a, b);
	WHEN 14, 15 THEN
		UPDATE bookings SET during = int4range(b * 2, b * 2 + a % 5), last_txn = txn WHERE id = a;
	WHEN 16 THEN
		INSERT INTO parents VALUES (a, txn) ON CONFLICT (id) DO UPDATE SET last_txn = txn;
		INSERT INTO children VALUES (a * 1000 + b, txn, a);
	WHEN 17 THEN
		UPDATE children SET parent = b, last_txn = txn WHERE parent = a;
	WHEN 18 THEN
		DELETE FROM children WHERE parent = a;
		DELETE FROM parents WHERE id = a;
	WHEN 19, 20 THEN
		INSERT INTO nokey SELECT a % 7, b % 3 FROM generate_series(1, a % 3);
	WHEN 21 THEN
		DELETE FROM nokey WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM nokey WHERE v = a % 7 LIMIT 2 FOR UPDATE));
	WHEN 22, 23 THEN
		UPDATE nokey SET w = b % 5 WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM nokey WHERE v = a % 7 LIMIT 1 FOR UPDATE));
	WHEN 24 THEN
		UPDATE movers SET id = b, last_txn = txn WHERE id = a;
	WHEN 25 THEN
		UPDATE movers SET id = -1 - txn WHERE id = a;
		UPDATE movers SET id = a, last_txn = txn WHERE id = b;
		UPDATE movers SET id = b, last_txn = txn WHERE id = -1 - txn;
	WHEN 26 THEN
		UPDATE indexed SET b = op.b, last_txn = txn WHERE indexed.a = op.a;
	WHEN 27 THEN
		DELETE FROM indexed WHERE indexed.b = op.b;
		INSERT INTO indexed VALUES (op.a, txn, op.b);
	WHEN 28 THEN
		UPDATE documents SET hits = hits + 1, last_txn = txn WHERE id = a;
	WHEN 29 THEN
		UPDATE documents SET body = repeat(b::text || ' ', 3000), last_txn = txn WHERE id = a;
	WHEN 30 THEN
		UPDATE fullrows SET v = v + 1 WHERE v % 7 = a % 7;
	WHEN 31 THEN
		DELETE FROM fullrows WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM fullrows WHERE v % 7 = a % 7 LIMIT 1 FOR UPDATE));
		INSERT INTO fullrows VALUES (b % 7, repeat((a % 3)::text || ' ', 3000));
	ELSE
		INSERT INTO side VALUES (nextval('txn'), txn);
	END CASE;
EXCEPTION WHEN unique_violation OR foreign_key_violation OR exclusion_violation THEN
	NULL;
END $$;

-- a whole transaction in one statement
CREATE FUNCTION quick(kind int, a int, b int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	txn bigint := nextval('txn');
BEGIN
	INSERT INTO journal VALUES (txn);
	PERFORM op(kind, txn, a, b);
END $$;
EOS

# the initial state of every seed
my $contents = <<'EOS';
SET client_min_messages = warning;
TRUNCATE journal, accounts, codes, ranks, bookings, parents, children, nokey,
	movers, indexed, documents, fullrows, side;
INSERT INTO accounts SELECT i, 0, 0 FROM generate_series(1, 100) i;
INSERT INTO codes SELECT i, 0, i FROM generate_series(1, 50) i;
INSERT INTO ranks SELECT i, 0, i FROM generate_series(1, 50) i;
INSERT INTO bookings SELECT i, 0, int4range(i * 3, i * 3 + 2) FROM generate_series(1, 50) i;
INSERT INTO parents SELECT i, 0 FROM generate_series(1, 50) i;
INSERT INTO nokey SELECT i % 7, i % 3 FROM generate_series(1, 50) i;
INSERT INTO movers SELECT i, 0, 'row ' || i FROM generate_series(1, 50) i;
INSERT INTO indexed SELECT i, 0, i FROM generate_series(1, 50) i;
INSERT INTO documents SELECT i, 0, 0, repeat(i || ' ', 3000) FROM generate_series(1, 10) i;
INSERT INTO fullrows SELECT i % 7, repeat((i % 3)::text || ' ', 3000) FROM generate_series(1, 10) i;
EOS

# The clients' transactions.  "range" is the number of different rows that they touch:
# the smaller it is, the more often they block each other.
my $random = <<'EOS';
\set a random(1, :range)
\set b random(1, :range)
\set kind random(1, 33)
\set kind2 random(1, 33)
\set kind3 random(1, 33)
\set dice random(1, 6)
EOS
my %scripts = (
	"$random
SELECT quick(:kind, :a, :b);
" => 50,
	"$random
BEGIN;
SELECT nextval('txn') AS txn \\gset
INSERT INTO journal VALUES (:txn);
SELECT op(:kind, :txn, :a, :b);
SELECT op(:kind2, :txn, :b, :a);
SELECT op(:kind3, :txn, :b, :b);
COMMIT;
" => 15,
	"$random
BEGIN;
SELECT nextval('txn') AS txn \\gset
SAVEPOINT first;
SELECT op(:kind, :txn, :a, :b);
\\if :dice > 3
ROLLBACK TO first;
\\endif
SAVEPOINT second;
SELECT op(:kind2, :txn, :b, :a);
SAVEPOINT third;
SELECT op(:kind3, :txn, :a, :a);
\\if :dice % 2 = 0
RELEASE third;
ROLLBACK TO second;
\\else
RELEASE second;
\\endif
INSERT INTO journal VALUES (:txn);
COMMIT;
" => 15,
	"$random
BEGIN;
SELECT nextval('txn') AS txn \\gset
SELECT op(:kind, :txn, :a, :b);
INSERT INTO journal VALUES (:txn);
ROLLBACK;
" => 3,
	"$random
BEGIN;
SELECT nextval('txn') AS txn \\gset
TRUNCATE side;
INSERT INTO journal VALUES (:txn);
SELECT op(:kind, :txn, :a, :b);
COMMIT;
" => 1,);

# Only changes in which values of a unique index move between rows.
my $only_codes = "$random
SELECT quick(9 + :kind % 4, :a, :b);
";

# A row of a table as text, equal for the publisher's decoded changes and for
# what psql prints.
sub row_text
{
	my ($table, $tuple) = @_;
	return join '|', map { $tuple->{$_} } @{ $tables{$table}{columns} };
}

# The same as SQL.  Long values are abbreviated in the same way in fold().
sub row_sql
{
	my ($table) = @_;
	return join " || '|' || ",
	  map { $_ eq 'body' ? 'left(body, 20)' : "coalesce($_\::text, 'null')" }
	  @{ $tables{$table}{columns} };
}

# The state of all tables as table => { key => row or number of equal rows }.
sub read_state
{
	my ($node) = @_;
	my %state = map { $_ => {} } @tables;

	foreach my $table (@tables)
	{
		my $rows = query($node, 'SELECT ' . row_sql($table) . " FROM $table");
		foreach my $text (split /\n/, $rows)
		{
			my %tuple;
			@tuple{ @{ $tables{$table}{columns} } } = split /\|/, $text;
			fold(\%state, [ $table, 'INSERT', undef, \%tuple ]);
		}
	}
	return \%state;
}

# Applies one decoded change to such a state.
sub fold
{
	my ($state, $change) = @_;
	my ($table, $operation, $old, $new) = @$change;
	my $rows = $state->{$table};
	my $columns = $tables{$table}{key};

	if ($operation eq 'TRUNCATE')
	{
		%$rows = ();
		return;
	}
	foreach my $tuple (grep { $_ and $_->{body} } $old, $new)
	{
		$tuple->{body} = substr($tuple->{body}, 0, 20);
	}

	if ($columns)
	{
		my ($key) = @$columns;
		my $before = delete $rows->{ ($old // $new)->{$key} }
		  unless $operation eq 'INSERT';
		$rows->{ $new->{$key} } = { %{ $before // {} }, %$new } if $new;
	}
	else
	{
		if ($old)
		{
			my $text = row_text($table, $old);
			delete $rows->{$text} unless --$rows->{$text};
		}
		$rows->{ row_text($table, { %{ $old // {} }, %$new }) }++ if $new;
	}
	return;
}

# A table of such a state as sorted text.
sub state_text
{
	my ($state, $table) = @_;
	my $rows = $state->{$table};

	return join "\n", sort map {
		ref $rows->{$_} ? row_text($table, $rows->{$_}) : ($_) x $rows->{$_}
	} keys %$rows;
}

my ($pub, $sub);
my $snapshot_file = "$PostgreSQL::Test::Utils::tmp_check/003_snapshot.out";
my $snapshot_script = "$PostgreSQL::Test::Utils::tmp_check/003_snapshot.sql";

# TRUNCATE removes rows that older snapshots should see.  Therefore it must not run from
# before the snapshot on.
append_to_file(
	$snapshot_script,
	join "\n",
	"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;",
	"LOCK TABLE side IN ACCESS SHARE MODE;",
	"\\o $snapshot_file",
	"SELECT '=sum', sum(value) FROM accounts;",
	(map { "SELECT '=$_';\nSELECT " . row_sql($_) . " FROM $_;" } @tables),
	"\\o",
	"COMMIT;\n");

# All tables of the subscriber in one snapshot, and the sum of all accounts.
sub take_snapshot
{
	my ($session) = @_;
	my %snapshot;

	if (!eval {
			$session->query_until(qr/taken/,
				"\\i $snapshot_script\n\\echo taken\n");
		})
	{
		die "taking a snapshot failed: $session->{stderr}$@";
	}

	my $table = '';
	foreach my $line (split /\n/, slurp_file($snapshot_file))
	{
		if ($line =~ /^=(\w+)\|?(.*)$/)
		{
			$table = $1;
			$snapshot{$table} = $2 ne '' ? $2 : [];
		}
		else
		{
			push @{ $snapshot{$table} }, $line;
		}
	}
	return \%snapshot;
}

# Compares the snapshots with the publisher's history.  Returns what is wrong with the
# first snapshot that is wrong, and the number of snapshots that were taken under load.
sub check_snapshots
{
	my ($state, $commits, $snapshots) = @_;
	my @order = map { $_->{id} } @$commits;
	my $folded = 0;
	my $amid = 0;

	foreach my $snapshot (@$snapshots)
	{
		my ($k, $wrong) = prefix_length(\@order, $snapshot->{journal});
		return $wrong unless defined $k;
		return
		  "after $k transactions the sum of accounts is $snapshot->{sum}"
		  if $snapshot->{sum} != 0;
		return "a snapshot has $k transactions, an earlier one had $folded"
		  if $k < $folded;
		$amid++ if $k > 0 and $k < @order;

		for (; $folded < $k; $folded++)
		{
			fold($state, $_) foreach decode_changes($commits->[$folded]);
		}
		foreach my $table (@tables)
		{
			my $got = join "\n", sort @{ $snapshot->{$table} };
			my $expected = state_text($state, $table);
			return "after $k transactions $table differs:\n"
			  . WeftTest::diff_rows($got, $expected)
			  if $got ne $expected;
		}
	}
	return (undef, $amid);
}

# With 17 the stream is pgoutput's, with 18 that of Weft's output plugin; in
# 004_crash.pl it is the other way round.
$pub = new_publisher(
	'publisher',
	conf => 'synchronous_commit = off',
	stock => major() == 17);
$sub = new_subscriber('subscriber');
my $log_start = -s $sub->logfile;

query_all([ $pub, $sub ], $schema);
query($sub, $dawdle);
query($pub, "$functions $contents CREATE PUBLICATION pub FOR ALL TABLES");
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my @writers = (4, 1, 2, 8, 64);
my @ring_sizes = ('16MB', '64kB', '1MB', '256kB');
my @ranges = (50, 5, 20);
my $amid = 0;
my $misspeculations = 0;
my $coalesced = 0;

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	my $writers = $writers[ $seed % @writers ];
	my $ring_size = $ring_sizes[ $seed % @ring_sizes ];
	my $range = $ranges[ $seed % @ranges ];
	my $synchronous_commit = $seed % 2 ? 'off' : 'on';
	my $decoded = int($seed / 4) % 2;
	my $what =
	  "seed $seed, writers $writers, ring $ring_size, range $range, synchronous_commit $synchronous_commit, "
	  . ($decoded ? 'decoded' : 'not decoded');

	query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
	if (weft())
	{
		set_conf($sub, 'weft.ring_size' => $ring_size);
		query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $writers)");
	}
	query($sub,
		"ALTER SUBSCRIPTION sub SET (synchronous_commit = $synchronous_commit)"
	);
	query($sub, 'ALTER SUBSCRIPTION sub ENABLE');

	query($pub, $contents);
	wait_for_apply($pub, $sub, 'sub');
	my $state = read_state($pub);
	my @decoded = $decoded ? ($pub, $sub) : ($pub);
	query_all(\@decoded,
		"SELECT pg_create_logical_replication_slot('history', 'test_decoding')"
	);

	# Some seeds let a backlog build up first, others let the load finish.
	my $start_late = $seed % 3;
	query($sub, 'ALTER SUBSCRIPTION sub DISABLE') if $start_late;
	my $load = start_pgbench(
		$pub,
		{ %scripts, $only_codes => $seed % 4 ? 10 : 300 },
		'-c' => 8,
		'-T' => $seconds,
		'-D' => "range=$range",
		'--max-tries=0',
		"--random-seed=$seed");
	if ($start_late)
	{
		if ($start_late == 1)
		{
			# a slow machine may not get this far
			usleep(50_000)
			  while running($load)
			  and query($pub, 'SELECT count(*) FROM journal') <= 500;
		}
		else
		{
			usleep(50_000) while running($load);
		}
		query($sub, 'ALTER SUBSCRIPTION sub ENABLE');
	}

	my $session = open_session($sub);
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my (@snapshots, $committed);
	do
	{
		push @snapshots, take_snapshot($session);
		query($sub, 'VACUUM') if @snapshots == 8;
		# leave the processors to the load and to the processes under test
		usleep(50_000);
		if (!defined $committed and !running($load))
		{
			finish($load);
			$committed = query($pub, 'SELECT count(*) FROM journal');
		}
	  } until defined $committed
	  and @{ $snapshots[-1]{journal} } >= $committed
	  or time > $deadline;
	$session->quit;

	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, \@tables, "$what: all tables are equal");

	my $commits = decode_commits($pub, 'history');
	is( first_difference(
			$commits,
			decode_commits($sub, 'history'),
			qw(nokey fullrows indexed)),
		undef,
		"$what: the same transactions were committed") if $decoded;
	query_all(\@decoded, "SELECT pg_drop_replication_slot('history')");
	my ($wrong, $found_amid) = check_snapshots($state, $commits, \@snapshots);
	is($wrong, undef, "$what: each snapshot is a state of the publisher");
	$amid += $found_amid // 0;
	note(
			scalar(@$commits)
		  . ' transactions, '
		  . scalar(@snapshots)
		  . ' snapshots, '
		  . ($found_amid // 0)
		  . ' of them under load');

	if (weft())
	{
		my $counters = query($sub,
			'SELECT dependency_waits, order_waits, misspeculations, barriers FROM weft.stat_subscription'
		);
		note(
			"dependency waits, order waits, misspeculations, barriers: $counters"
		);
		$misspeculations += (split /\|/, $counters)[2];

		# The counters are reported within a second or two.
		my $left_out = query($sub,
			'SELECT coalesce(sum(coalesced_rows), 0) FROM weft.stat_relation'
		);
		note("updates coalesced so far: $left_out");
		is($left_out, 0, "$what: no update was coalesced") if $decoded;
		$coalesced += $left_out;
	}
}

my $copy_errors =
  major() < 19 ? 'sync_error_count' : 'sync_table_error_count';
is( query(
		$sub,
		"SELECT apply_error_count, $copy_errors FROM pg_stat_subscription_stats"
	),
	'0|0',
	'no errors were counted');
is(errors_logged($sub, $log_start), '', 'no errors were logged');
cmp_ok($misspeculations, '>', 0, 'some transactions were applied too early')
  if weft()
  and $seeds >= 20;
cmp_ok($coalesced, '>', 0, 'some updates were coalesced')
  if weft()
  and $seeds >= 20;
cmp_ok($amid, '>=', $seeds, 'enough snapshots were taken under load');

$pub->stop;
$sub->stop;
done_testing();
