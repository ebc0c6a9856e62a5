# Random trees of subtransactions in streamed transactions: savepoints that are
# released, that are rolled back to once or twice, also after their children were
# released, nested exception blocks, and thousands of savepoints.
#
# The publisher reports each subtransaction that is aborted; children that were
# released come before their parent.  Changes of an aborted subtransaction that have
# already been sent must not be applied, whichever way the transaction takes:
#	early	a stream writer follows it
#	late	the stream writer has failed, because a user holds a lock
#	spooled	there is no stream writer
# Some transactions are prepared, some change their tables, some truncate one.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_FIRST_SEED the first
# (default 1).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $seeds = $ENV{WEFT_SEEDS} // 2;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $num_sessions = 3;

# An assertion of version 18 fails in the walsender if a part of a transaction was
# aborted before anything of it was sent (see 008_two_phase_streaming.pl).
my $pub = new_publisher(
	'publisher',
	conf => "logical_decoding_work_mem = 64kB\n"
	  . (
		major() >= 18
		? "debug_logical_replication_streaming = immediate\n"
		: ''));
my $sub = new_subscriber('subscriber');

# Each session has tables of its own.
my @tables =
  ('shared', map { ("plain$_", "altered$_", "cut$_") } 1 .. $num_sessions);
my $num_columns = 40;
my @added = (0) x ($num_sessions + 1);

query_all([ $pub, $sub ],
	"CREATE TABLE $_ (id int PRIMARY KEY, v int, pad text)")
  foreach @tables;
query(
	$sub,
	"ALTER TABLE altered$_ " . join ', ',
	map { "ADD x$_ int" } 1 .. $num_columns) foreach 1 .. $num_sessions;
query($pub, <<'EOS');
CREATE SEQUENCE ids;
CREATE PUBLICATION pub FOR ALL TABLES;

CREATE FUNCTION work(rel text, rows int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %I SELECT nextval(''ids''), i, repeat(''x'', (random() * 200)::int) FROM generate_series(1, %s) i', rel, rows);
	IF random() < 0.3 THEN
		EXECUTE format('UPDATE %I SET v = v + 1 WHERE id %% 7 = %s', rel, (random() * 6)::int);
	END IF;
	IF random() < 0.2 THEN
		EXECUTE format('DELETE FROM %I WHERE id %% 17 = %s', rel, (random() * 16)::int);
	END IF;
END $$;

-- exception blocks, each with others in it and an end by chance
CREATE FUNCTION blocks(rel text, width int, depth int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. width LOOP
		BEGIN
			EXECUTE format('INSERT INTO %I VALUES (nextval(''ids''), %s, repeat(''y'', 100))', rel, i);
			IF depth > 1 AND random() < 0.7 THEN
				PERFORM blocks(rel, width, depth - 1);
			END IF;
			IF random() < 0.4 THEN
				EXECUTE format('INSERT INTO %I VALUES (nextval(''ids''), -%s, repeat(''z'', 100))', rel, i);
			END IF;
			IF random() < 0.3 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END $$;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel, two_phase = true');
wait_for_apply($pub, $sub, 'sub');
poll($sub, "SELECT subtwophasestate = 'e' FROM pg_subscription");

sub streams
{
	my ($condition) = @_;
	return "SELECT count(*) FROM weft.stat_stream WHERE $condition";
}

sub one_of
{
	return $_[ int rand @_ ];
}

# The statements of a random transaction, without its beginning and end.
sub random_tree
{
	my ($number) = @_;
	my (@stack, @sql);
	my $next = 0;
	my $table = sub {
		return one_of("plain$number", "plain$number", "altered$number");
	};

	foreach (1 .. 20 + int rand 60)
	{
		my $dice = int rand 100;

		if ($dice < 30)
		{
			push @stack, 's' . ++$next;
			push @sql, "SAVEPOINT $stack[-1]";
		}
		elsif ($dice < 42 && @stack)
		{
			my $level = int rand @stack;

			push @sql, "RELEASE $stack[$level]";
			splice @stack, $level;
		}
		elsif ($dice < 54 && @stack)
		{
			my $level = int rand @stack;

			push @sql, ("ROLLBACK TO $stack[$level]") x one_of(1, 1, 2);
			splice @stack, $level + 1;
		}
		elsif ($dice < 90)
		{
			push @sql,
			  sprintf "SELECT work('%s', %d)", $table->(),
			  one_of(1, 20, 200);
		}
		elsif ($dice < 95)
		{
			push @sql,
			  sprintf "SELECT blocks('%s', %s)", $table->(),
			  one_of('3, 3', '2, 6', '400, 1', '20, 2');
		}
		elsif ($dice < 98)
		{
			# Within savepoints, a publisher that spills or streams may fail permanently
			# with "could not map filenumber", whatever the output plugin.
			next if @stack || $added[$number] == $num_columns;
			my $column = 'x' . ++$added[$number];

			push @sql, "ALTER TABLE altered$number ADD $column int",
			  "UPDATE altered$number SET $column = id WHERE id % 3 = 0";
		}
		else
		{
			push @sql, "TRUNCATE cut$number", "SELECT work('cut$number', 5)";
		}
	}
	return @sql;
}

# Starts to run statements; the caller must finish() it.
sub run_sql
{
	my (@sql) = @_;
	my $text = join '', map { "$_;\n" } @sql;
	my $output = '';

	return {
		text => $text,
		output => \$output,
		run => IPC::Run::start(
			[
				$pub->installed_command('psql'),
				'-XAtq', '-v', 'ON_ERROR_STOP=1', '-d',
				$pub->connstr('postgres'),
				'-f', '-'
			],
			'<',
			\$text,
			'>&',
			\$output)
	};
}

sub finish_all
{
	foreach my $session (@_)
	{
		$session->{run}->finish
		  or die "the load failed: ${$session->{output}}";
	}
	return;
}

# One test: all tables are equal.  A column that does not exist counts as null.
sub equal
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $count =
		"SELECT string_agg(format('%s: %s', t, n), ', ') FROM (VALUES "
	  . join(', ', map { "('$_', (SELECT count(*) FROM $_))" } @tables)
	  . ') c(t, n)';

	wait_for_apply($pub, $sub, 'sub');
	my @differing;
	foreach my $table (@tables)
	{
		my ($expected, $got) =
		  map { rows($_, "$table t", 'jsonb_strip_nulls(to_jsonb(t)) r') }
		  ($pub, $sub);
		push @differing, $table if $got ne $expected;
	}
	my $same = is("@differing", '', "$what: equal");
	if (!$same)
	{
		diag("publisher: $_")  foreach query($pub, $count);
		diag("subscriber: $_") foreach query($sub, $count);
		# the next ones are judged independently
		query_all([ $pub, $sub ], 'TRUNCATE ' . join ', ', @tables);
	}
	poll($sub, streams('true'), 0) if weft();
	return $same;
}

# How each mode is set up, while @sessions (code) are running.
my $user = open_session($sub);
my %modes = (
	early => sub { $_[0]->() },
	late => sub {
		$user->query_safe('BEGIN; LOCK TABLE '
			  . join(', ', 'shared', map { "plain$_" } 1 .. $num_sessions)
			  . ' IN SHARE MODE');
		$_[0]->();
	},
	spooled => sub {
		set_conf($sub, 'weft.max_stream_writers' => 0) if weft();
		$_[0]->();
	});

sub end_mode
{
	my ($mode) = @_;

	$user->query_safe('COMMIT') if $mode eq 'late';
	set_conf($sub, 'weft.max_stream_writers' => 8)
	  if $mode eq 'spooled' && weft();
	return;
}

sub stream_transactions
{
	return query($sub,
		'SELECT coalesce(sum(transactions), 0) FROM weft.stat_writer WHERE writer >= 64'
	);
}

# The bug that was found first: children that were released before their parent is
# rolled back to, several times.
my @known = (
	<<'EOS',
DO $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		BEGIN
			FOR j IN 1 .. 2000 LOOP
				BEGIN
					INSERT INTO shared VALUES (nextval('ids'), i, repeat('k', 50));
				EXCEPTION WHEN division_by_zero THEN NULL;
				END;
			END LOOP;
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
	INSERT INTO shared VALUES (nextval('ids'), -1);
	INSERT INTO plain1 VALUES (nextval('ids'), -1);
END $$
EOS
	<<'EOS',
SAVEPOINT a;
SAVEPOINT b1; SELECT work('shared', 500); RELEASE b1;
SAVEPOINT b2; SELECT work('plain1', 500); RELEASE b2;
ROLLBACK TO a;
SAVEPOINT c;
SAVEPOINT d; SELECT work('shared', 500); RELEASE d;
SELECT work('plain1', 500);
ROLLBACK TO c;
SELECT work('shared', 3)
EOS
	<<'EOS');
SELECT work('shared', 3);
SAVEPOINT a; SELECT work('altered1', 500);
ALTER TABLE altered1 ADD gone int; SELECT work('altered1', 500);
ROLLBACK TO a;
SELECT work('altered1', 3)
EOS

foreach my $mode (qw(early late spooled))
{
	# For each transaction separately, so that it is known which one is late.
	foreach my $i (0 .. $#known)
	{
		my $session = open_session($pub);
		my $before = weft() && stream_transactions();

		$modes{$mode}->(
			sub {
				$session->query_safe("BEGIN; $known[$i];");
				return unless weft();
				poll($sub, streams("state = 'spooled'"), 1)
				  unless $mode eq 'early';
			});
		$session->query_safe('COMMIT');
		$session->quit;
		end_mode($mode);
		equal("known $i, $mode");
		cmp_ok(stream_transactions(), '==', $before,
			"known $i, $mode: no stream writer has applied it")
		  if weft() && $mode ne 'early';
	}
}

for (my $seed = $first_seed; $seed < $first_seed + $seeds; $seed++)
{
	srand $seed;
	foreach my $mode (qw(early late spooled))
	{
		my $before = weft() && stream_transactions();
		my (@sessions, @prepared);

		$modes{$mode}->(
			sub {
				foreach my $number (1 .. $num_sessions)
				{
					my @sql = 'SELECT setseed(' . rand() . ')';

					foreach my $round (1 .. 2)
					{
						my $end = one_of(
							'COMMIT', 'COMMIT',
							'ROLLBACK', "PREPARE TRANSACTION 'p$number'");
						my @tree = random_tree($number);

						push @sql, 'BEGIN', @tree, $end;
						push @sql,
						  one_of('COMMIT', 'ROLLBACK')
						  . " PREPARED 'p$number'"
						  if $end =~ /PREPARE/;
						push @sql, "SELECT work('plain$number', 3)";
					}
					push @sessions, run_sql(@sql);
				}
				finish_all(@sessions);
			});
		end_mode($mode);
		equal("seed $seed, $mode")
		  or map { note("session:\n$_->{text}") } @sessions;
	}
}
cmp_ok(stream_transactions(), '>', 0, 'stream writers have committed some')
  if weft();
$user->quit;

$pub->stop;
$sub->stop;
done_testing();
