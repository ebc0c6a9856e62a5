# Initial copies while sessions on both sides act at random moments: DDL, REINDEX and
# locks on the publisher; reading, analyzing and locking on the subscriber.  Of each table
# and partition on the publisher, all rows are copied or none, as natively; nobody deadlocks
# with a copy, and no action of others makes a copy start again.
#
# WEFT_SEEDS sets the number of seeds (default 2), WEFT_SEED the first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $seeds = $ENV{WEFT_SEEDS} // 2;
my $first_seed = $ENV{WEFT_SEED} // time;

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber', conf => <<'EOC');
deadlock_timeout = 20ms
maintenance_work_mem = 1MB
EOC

# Tables and partitions, with the ids of their rows; "later" may be attached.
my %ranges = (
	parted_0 => [ 0, 8000 ],
	parted_1 => [ 8000, 16000 ],
	parted_2 => [ 16000, 24000 ],
	later => [ 24000, 32000 ]);

my $tables = <<'EOS';
CREATE SCHEMA live;
CREATE SCHEMA next;
CREATE TABLE plain (id int PRIMARY KEY, t text);
CREATE TABLE live.named (id int PRIMARY KEY, t text);
CREATE TABLE next.named (id int PRIMARY KEY, t text);
EOS
my $row = 'SELECT i, repeat(md5(i::text), 8) FROM generate_series';

query($pub, $tables . <<'EOS');
CREATE TABLE parted (id int PRIMARY KEY, t text) PARTITION BY RANGE (id);
EOS
foreach my $table (sort keys %ranges)
{
	my ($from, $to) = @{ $ranges{$table} };

	query($pub, "CREATE TABLE $table (id int PRIMARY KEY, t text)");
	query($pub, "INSERT INTO $table $row($from, $to - 1) i");
}
query($pub, <<"EOS");
INSERT INTO plain $row(0, 7999) i;
INSERT INTO live.named $row(0, 7999) i;
INSERT INTO next.named $row(8000, 15999) i;
CREATE PUBLICATION pub FOR TABLE plain, parted, live.named, next.named
	WITH (publish_via_partition_root = true);
EOS

# A copy takes about as long as the others need to interfere with it.
query($sub, $tables . <<'EOS');
CREATE FUNCTION slow(int) RETURNS bool IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
	IF $1 % 400 = 0 THEN
		PERFORM pg_catalog.pg_sleep(0.03);
	END IF;
	RETURN true;
END
$$;
CREATE TABLE parted (id int PRIMARY KEY, t text, CHECK (slow(id))) PARTITION BY HASH (id);
CREATE TABLE here_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE here_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE UNIQUE INDEX ON parted (t, id);
ALTER TABLE plain ADD CHECK (slow(id));
ALTER TABLE live.named ADD CHECK (slow(id));
ALTER TABLE next.named ADD CHECK (slow(id));
CREATE UNIQUE INDEX ON plain (t);
CREATE INDEX plain_partial ON plain (id) WHERE id % 3 = 0;
EOS

sub pick
{
	return $_[ int rand @_ ];
}

sub some_time
{
	return sprintf 'SELECT pg_sleep(%.2f)', rand $_[0];
}

# The actions of one session, as a list of commands; %state is what it changes permanently.
my %publisher_does = (
	attach => sub {
		my ($state) = @_;
		return attach($state, 'later');
	},
	detach => sub {
		my ($state) = @_;
		my $partition = pick(qw(parted_0 parted_1 parted_2));
		return detach($state, $partition, pick('', ' CONCURRENTLY'));
	},
	lock => sub {
		my $table = pick(qw(parted_0 parted_1 parted_2 parted plain));
		return ("BEGIN; LOCK TABLE $table IN ACCESS EXCLUSIVE MODE",
			some_time(0.1), 'COMMIT');
	},
	reindex => sub {
		return 'REINDEX INDEX '
		  . pick(qw(plain_pkey parted_0_pkey parted_1_pkey));
	},
	reindex_table => sub { return 'REINDEX TABLE ' . pick(qw(plain parted)) },
	rewrite => sub {
		return 'VACUUM FULL ' . pick(qw(plain parted_0 parted_2));
	},
	rename => sub {
		my @swap = (
			'BEGIN',
			'ALTER SCHEMA live RENAME TO past',
			'ALTER SCHEMA next RENAME TO live',
			'ALTER SCHEMA past RENAME TO next',
			'COMMIT');
		return (@swap, some_time(0.5), @swap);
	});
my %subscriber_does = (
	analyze => sub {
		my $table = pick(qw(plain parted here_0));
		return ("BEGIN; SELECT count(*) FROM $table",
			some_time(1), "ANALYZE $table", 'COMMIT');
	},
	read => sub {
		my $table = pick(qw(plain parted here_1));
		return ("BEGIN; SELECT count(*) FROM $table", some_time(2), 'COMMIT');
	},
	lock => sub {
		my $table = pick(qw(plain here_0));
		my $mode = pick('SHARE', 'ACCESS EXCLUSIVE');
		return ("BEGIN; LOCK TABLE $table IN $mode MODE",
			some_time(0.2), 'COMMIT');
	},
	rename => sub {
		return ('BEGIN', 'ALTER INDEX plain_partial RENAME TO plain_renamed',
			some_time(1), 'ROLLBACK');
	},
	vacuum => sub { return 'VACUUM ' . pick(qw(plain here_1)) });

sub attach
{
	my ($state, $table) = @_;
	my ($from, $to) = @{ $ranges{$table} };

	return () if $state->{attached}{$table};
	$state->{attached}{$table} = 1;
	$state->{changed}{$table} = 1;
	return
	  "ALTER TABLE parted ATTACH PARTITION $table FOR VALUES FROM ($from) TO ($to)";
}

sub detach
{
	my ($state, $table, $how) = @_;

	return () unless $state->{attached}{$table};
	$state->{attached}{$table} = 0;
	$state->{changed}{$table} = 1;
	return "ALTER TABLE parted DETACH PARTITION $table$how";
}

# Starts a session that does two or three things.
sub start_session
{
	my ($node, $does, $state) = @_;
	my @commands;

	foreach (1 .. 2 + int rand 2)
	{
		push @commands, some_time(0.7),
		  $does->{ pick(sort keys %$does) }->($state);
	}
	note($node->name . ': ' . join '; ', @commands);
	my $session = { output => '' };
	$session->{run} = IPC::Run::start(
		[
			$node->installed_command('psql'), '-XAtq',
			'-v', 'ON_ERROR_STOP=1',
			'-d', $node->connstr('postgres'),
			map { ('-c', $_) } @commands
		],
		'<',
		\undef,
		'>&',
		\$session->{output},
		IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default));
	return $session;
}

# The rows of a table on the subscriber whose ids belong to a given table on the publisher.
sub copied
{
	my ($table, $from, $to) = @_;
	return query($sub,
		"SELECT count(*) FROM $table WHERE id >= $from AND id < $to");
}

sub check_rows
{
	my ($what, $state) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @torn;

	foreach my $table (sort keys %ranges)
	{
		my $count = copied('parted', @{ $ranges{$table} });
		my @right =
			$state->{changed}{$table}  ? (0, 8000)
		  : $state->{attached}{$table} ? 8000
		  :                              0;

		push @torn, "$table: $count" unless grep { $count == $_ } @right;
	}
	foreach my $table (qw(live.named next.named))
	{
		my $counts = join ' ', copied($table, 0, 8000),
		  copied($table, 8000, 16000);

		push @torn, "$table: $counts"
		  unless $counts eq '8000 0' || $counts eq '0 8000';
	}
	is("@torn", '', "$what: no table is copied in part");
	same_tables($pub, $sub, ['plain'], "$what: plain is equal");
	return;
}

sub round
{
	my ($what, $state) = @_;
	my $offset = -s $sub->logfile;
	my $there = -s $pub->logfile;
	my @sessions;

	$state->{changed} = {};
	set_conf($sub, temp_file_limit => pick(-1, '64kB', '1MB'));
	subscribe($pub, $sub, 'sub', 'pub');
	push @sessions, start_session($pub, \%publisher_does, $state);
	push @sessions, start_session($sub, \%subscriber_does, $state)
	  foreach 1, 2;
	poll($sub,
		"SELECT bool_and(srsubstate IN ('s', 'r')) FROM pg_subscription_rel");

	foreach my $session (@sessions)
	{
		ok($session->{run}->finish, "$what: a session got through")
		  or diag($session->{output});
	}
	set_conf($sub, temp_file_limit => -1);
	check_rows($what, $state);
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	unlike(
		slurp_file($sub->logfile, $offset)
		  . slurp_file($pub->logfile, $there),
		qr/deadlock detected|PANIC|TRAP:/,
		"$what: no deadlock");
	is( join("\n",
			grep { !/another table now has the name/ }
			  split /\n/,
			errors_logged($sub, $offset)),
		'',
		"$what: no copy was restarted");

	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE plain, parted, live.named, next.named');
	query($pub, $_)
	  foreach detach($state, 'later', ''),
	  map { attach($state, $_) } qw(parted_0 parted_1 parted_2);
	return;
}

my %state = (attached => {});
query($pub, $_)
  foreach map { attach(\%state, $_) } qw(parted_0 parted_1 parted_2);
foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	srand($seed);
	diag("WEFT_SEED=$seed");
	round("seed $seed, round $_", \%state) foreach 1, 2;
}

$sub->stop;
$pub->stop;
done_testing();
