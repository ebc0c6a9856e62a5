# Too few background workers for all: Weft releases writers to those who need the workers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => <<EOC);
max_worker_processes = 8
max_sync_workers_per_subscription = 2
track_commit_timestamp = on
EOC
my @tables = map { ("a$_", "b$_", "c$_") } 1 .. 4;

query_all([ $pub, $sub ],
	join '; ', map { "CREATE TABLE $_ (id int PRIMARY KEY)" } @tables);
query($pub, "INSERT INTO $_ SELECT generate_series(1, 100)") foreach @tables;
query($pub, "CREATE PUBLICATION pub$_ FOR TABLE a$_, b$_, c$_")
  foreach 1 .. 4;

sub writers
{
	my ($name) = @_;
	return
	  "SELECT num_writers FROM weft.stat_subscription WHERE subname = '$name'";
}

# Two are left for tables; the launcher and the apply worker take one each.
subscribe($pub, $sub, 'sub1', 'pub1');
wait_for_apply($pub, $sub, 'sub1');
poll($sub, writers('sub1'), '4');
pass('the first subscription has all writers that it wants');

# It releases them to the apply workers of other subscriptions, and for their tables.
subscribe($pub, $sub, "sub$_", "pub$_") foreach 2, 3;
wait_for_apply($pub, $sub, "sub$_") foreach 1 .. 3;
same_tables(
	$pub, $sub,
	[ grep { /[123]$/ } @tables ],
	'all tables of three subscriptions are copied');
poll($sub, 'SELECT sum(num_writers) FROM weft.stat_subscription', '2');
pass('two workers are left free');

# A subscription that needs a writer gets one.
subscribe($pub, $sub, 'sub4', 'pub4', 'detect_conflicts = on');
wait_for_apply($pub, $sub, 'sub4');
same_tables($pub, $sub, \@tables, 'and those of a fourth');
poll($sub, writers('sub4'), '1');
poll($sub, 'SELECT sum(num_writers) FROM weft.stat_subscription', '1');
pass('the subscription that detects conflicts has a writer');

# Changes arrive at all subscriptions.
query($pub, "INSERT INTO $_ SELECT generate_series(101, 200)")
  foreach @tables;
wait_for_apply($pub, $sub, "sub$_") foreach 1 .. 4;
same_tables($pub, $sub, \@tables, 'all changes are applied');

# When the others have ended, the first takes what is free.
query($sub, "DROP SUBSCRIPTION sub$_") foreach 2 .. 4;
poll($sub, writers('sub1'), '4');
query($pub, "INSERT INTO $_ SELECT generate_series(201, 300)")
  foreach qw(a1 b1 c1);
wait_for_apply($pub, $sub, 'sub1');
same_tables($pub, $sub, [qw(a1 b1 c1)],
	'the first has all of its writers again');

# A subscription that keeps its only writer, because it detects conflicts, and began before
# others, does not prevent these from releasing theirs.
query($sub, 'DROP SUBSCRIPTION sub1');
query($sub, "TRUNCATE $_") foreach @tables;
subscribe($pub, $sub, 'sub4', 'pub4', 'detect_conflicts = on');
wait_for_apply($pub, $sub, 'sub4');
query($pub,
	'CREATE TABLE d (id int PRIMARY KEY); CREATE PUBLICATION pub5 FOR TABLE d; INSERT INTO d VALUES (1)'
);
query($sub, 'CREATE TABLE d (id int PRIMARY KEY)');
foreach my $number (1, 2, 3, 5)
{
	subscribe($pub, $sub, "sub$number", "pub$number");
	wait_for_apply($pub, $sub, "sub$number");
}
same_tables(
	$pub, $sub,
	[ @tables, 'd' ],
	'all tables are copied beside one that keeps its writer');

# While it ends its writers to start fewer, others may take all free workers.  Then it
# logs that, and starts again.
my @errors = grep {
	!/conflicts of subscription "sub4" cannot be detected without writers: no background worker is available/
} split /\n/, errors_logged($sub);
is("@errors", '',
	'no error except of the subscription that briefly lost its writer');

done_testing();
