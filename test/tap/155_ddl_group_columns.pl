# Columns of a node group's tables that are renamed, or dropped without a lock and added again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

sub hold
{
	my ($from, $to) = @_;
	pause_subscription($to, subscription_name('g', $from, $to));
	return;
}

sub let_go
{
	my ($from, $to) = @_;
	query($to,
			'ALTER SUBSCRIPTION '
		  . subscription_name('g', $from, $to)
		  . ' ENABLE');
	return;
}
query($a, <<'EOS');
CREATE TABLE back (id int PRIMARY KEY, gone text);
CREATE TABLE again (id int PRIMARY KEY, gone text);
CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL);
ALTER TABLE counter REPLICA IDENTITY FULL;
INSERT INTO counter VALUES (1, 0);
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
query($_, "ALTER PUBLICATION weft_g SET (ddl = 'all')") foreach @nodes;
poll($_,
	"SELECT count(*) = 4 AND bool_and(state = 'streaming') FROM weft.node_replication"
) foreach @nodes;
set_conf($_, 'weft.ddl_wait_timeout' => '2s') foreach @nodes;

# --- a counter is renamed ---

query($_, "SELECT weft.set_delta_columns('counter', '{n}')") foreach @nodes;
wait_for_group('g', @nodes);
query($a, 'ALTER TABLE counter RENAME n TO m');
wait_for_group('g', @nodes);
is(query($_, "SELECT column_name FROM weft.delta_column"),
	'm', 'the counter is renamed')
  foreach @nodes;
hold($a, $b);
hold($b, $a);
query($_, 'UPDATE counter SET m = m + 1') foreach $a, $b;
let_go($a, $b);
let_go($b, $a);
wait_for_group('g', @nodes);
is(query($_, 'SELECT m FROM counter'),
	2, 'a renamed counter counts on ' . $_->name)
  foreach @nodes;

# --- a column that was dropped comes back, and the relation looks as it did ---

hold($a, $c);
query($a, 'SET weft.ddl_lock = none; ALTER TABLE back DROP COLUMN gone');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
query($c, "INSERT INTO back VALUES ($_, 'gone')") foreach 1 .. 8;
wait_for_apply($c, $b, subscription_name('g', $c, $b));
let_go($a, $c);
wait_for_group('g', @nodes);
query($a, 'ALTER TABLE back ADD COLUMN gone text');
wait_for_group('g', @nodes);
query($c, "INSERT INTO back VALUES ($_, 'here')") foreach 11 .. 18;
wait_for_group('g', @nodes);
is(query($b, "SELECT count(*) FROM back WHERE gone = 'here'"),
	8, 'a column that comes back is not removed any more');
same_on_all(\@nodes, ['back'], 'a column that comes back');

# --- rows with it come before it ---

query($a, 'SET weft.ddl_lock = none; ALTER TABLE again DROP COLUMN gone');
wait_for_group('g', @nodes);
set_conf($_, 'weft.ddl_wait_timeout' => '1min') foreach @nodes;
query($b,
	"UPDATE weft.dropped_column SET dropped_at = dropped_at - interval '1 h'"
);
hold($a, $b);
query($a, 'ALTER TABLE again ADD COLUMN gone text');
wait_for_apply($a, $c, subscription_name('g', $a, $c));
query($c, "INSERT INTO again VALUES (1, 'here')");
poll($b,
	"SELECT count(*) = 1 FROM weft.node_replication WHERE waiting_for = 'column gone of table public.again'"
);
let_go($a, $b);
wait_for_group('g', @nodes);
is(query($b, 'SELECT gone FROM again'),
	'here', 'rows wait for a column that comes back');
same_on_all(\@nodes, ['again'], 'rows wait for a column that comes back');

# ... but not for ever.
hold($a, $c);
query($a, 'SET weft.ddl_lock = none; ALTER TABLE again DROP COLUMN gone');
wait_for_apply($a, $b, subscription_name('g', $a, $b));
query($b,
	"UPDATE weft.dropped_column SET dropped_at = dropped_at - interval '1 h'"
);
query($c, "INSERT INTO again VALUES (2, 'gone')");
poll($b,
	"SELECT count(*) = 1 FROM weft.node_replication WHERE waiting_for = 'column gone of table public.again'"
);
set_conf($b, 'weft.ddl_wait_timeout' => '1ms');
poll($b, 'SELECT count(*) = 2 FROM again');
let_go($a, $c);
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['again'], 'a column that does not come back');
$_->stop foreach @nodes;
done_testing();
