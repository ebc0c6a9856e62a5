# Counter columns: if several nodes add to them at the same time, the sum is right, and
# all other columns of the row are those of the last update.
#
# WEFT_SECONDS sets the duration of the load (default 3), which is longer on a slow
# machine.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $some = 100 * ($ENV{WEFT_SECONDS} // 3);
my @nodes = new_members(3);
my ($n1, $n2, $n3) = @nodes;

create_tables(\@nodes, <<'EOS', 'acc', 'booking');
CREATE TABLE acc (id int PRIMARY KEY, balance numeric(12, 2) NOT NULL, hits int NOT NULL,
	small smallint NOT NULL, big bigint NOT NULL, note text);
ALTER TABLE acc REPLICA IDENTITY FULL;
CREATE TABLE booking (node text, n bigserial, amount numeric(12, 2), PRIMARY KEY (node, n));
SELECT weft.set_delta_columns('acc', '{balance,hits,small,big}');
EOS
connect_members(\@nodes);

query($n1,
	"INSERT INTO acc SELECT i, 100, 0, 0, 0, '' FROM generate_series(1, 5) i"
);
quiet(\@nodes);

####
#### One of each, in both orders
####

cut_off(\@nodes);
query($n1, "UPDATE acc SET balance = balance + 1, note = 'n1' WHERE id = 1");
query($n2,
	"UPDATE acc SET balance = balance + 10.5, hits = hits + 1, note = 'n2' WHERE id = 1"
);
query($n3,
	"UPDATE acc SET balance = balance - 100, small = small - 3, big = big + 5000000000, note = 'n3' WHERE id = 1"
);
# two in one transaction, the first of which has already lost
query($n1,
	"BEGIN; UPDATE acc SET hits = hits + 1, note = 'n1' WHERE id = 2; UPDATE acc SET hits = hits + 1, note = 'n1 again' WHERE id = 2; COMMIT"
);
query($n2, "UPDATE acc SET hits = hits + 5, note = 'n2' WHERE id = 2");
# no conflict
query($n3, "UPDATE acc SET hits = hits + 1, note = 'n3' WHERE id = 3");
join_again(\@nodes);
quiet(\@nodes);
foreach my $node (@nodes)
{
	is(rows($node, 'acc WHERE id < 4'), <<'EOS' =~ s/\n\z//r, $node->name);
(1,11.50,1,-3,5000000000,n3)
(2,100.00,7,0,0,n2)
(3,100.00,1,0,0,n3)
EOS
}

# A row does not become older when an older change is merged into it: the next change
# from a third node is compared with the time that the row had before.
cut_off(\@nodes);
query($n1, "UPDATE acc SET hits = hits + 1, note = 'oldest' WHERE id = 4");
query($n2, "UPDATE acc SET hits = hits + 1, note = 'middle' WHERE id = 4");
query($n3, "UPDATE acc SET hits = hits + 1, note = 'newest' WHERE id = 4");
query($n3, 'ALTER SUBSCRIPTION from_n1 ENABLE');
wait_for_apply($n1, $n3, 'from_n1');
is(rows($n3, 'acc WHERE id = 4'), '(4,100.00,2,0,0,newest)', 'merged once');
query($n3, 'ALTER SUBSCRIPTION from_n2 ENABLE');
wait_for_apply($n2, $n3, 'from_n2');
is(rows($n3, 'acc WHERE id = 4'), '(4,100.00,3,0,0,newest)', 'merged twice');
join_again(\@nodes);
quiet(\@nodes);
same_tables($n3, $_, ['acc'], $_->name . ' has the same rows')
  foreach $n1, $n2;

# An attempt fails while it reads which columns are counters: the next one reads that again.
# All but the oldest transaction wait for a lock for a second.
my $list = "SELECT string_agg(hits::text, ' ' ORDER BY id) FROM acc";
my $sums = query($n1,
	"SELECT string_agg((hits + 101)::text, ' ' ORDER BY id) FROM acc");
cut_off(\@nodes);
query($n1, "UPDATE acc SET hits = hits + 1, note = 'older' WHERE id = $_")
  foreach 1 .. 5;
query($n2, "UPDATE acc SET hits = hits + 100, note = 'newer'");
my $session = open_session($n2);
$session->query_safe(
	'BEGIN; LOCK TABLE weft.delta_column IN ACCESS EXCLUSIVE MODE');
query($n2, 'ALTER SUBSCRIPTION from_n1 ENABLE');
poll($n2,
	"SELECT misspeculations > 0 FROM weft.stat_subscription WHERE subname = 'from_n1'"
);
$session->query_safe('COMMIT');
$session->quit;
join_again(\@nodes);
quiet(\@nodes);
is(query($_, $list), $sums, 'all have been added on ' . $_->name)
  foreach @nodes;

####
#### Under load
####

my $script = <<'EOS';
\set id random(1, 5)
\set amount random(-500, 500)
BEGIN;
UPDATE acc SET balance = balance + :amount, hits = hits + 1, note = current_setting('cluster_name') || ' ' || :amount WHERE id = :id;
INSERT INTO booking (node, amount) VALUES (current_setting('cluster_name'), :amount);
COMMIT;
EOS
my $before = query($n1, 'SELECT sum(balance), sum(hits) FROM acc');
my @loads =
  map { start_pgbench($_, { $script => 1 }, '-c', 2, '-T', 600) } @nodes;
# some rows of every node, on every node
poll($_,
	"SELECT count(*) = 3 FROM (SELECT FROM booking GROUP BY node HAVING count(*) > $some) x"
) foreach @nodes;
end_load($_) foreach @loads;
quiet(\@nodes);
same_tables($n1, $_, [qw(acc booking)], $_->name . ' has the same rows')
  foreach $n2, $n3;
my ($balance, $hits) = split /\|/, $before;
is( query($n1, 'SELECT sum(balance), sum(hits) FROM acc'),
	query(
		$n1, "SELECT sum(amount) + $balance, count(*) + $hits FROM booking"),
	'the sums are those of all bookings');

####
#### The old row is needed
####

query($n1, "ALTER TABLE acc REPLICA IDENTITY DEFAULT");
my $offset = -s $n2->logfile;
query($n1, "UPDATE acc SET hits = hits + 1 WHERE id = 1");
$n2->wait_for_log(
	qr/ERROR:  cannot apply delta columns of relation "public.acc" without the old row/,
	$offset);
pass('without replica identity full the subscription stops');
query($_, "SELECT weft.set_delta_columns('acc', '{}')") foreach @nodes;
quiet(\@nodes);
same_tables($n1, $_, ['acc'], $_->name . ' continues with ordinary columns')
  foreach $n2, $n3;

done_testing();
