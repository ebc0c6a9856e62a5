# pgbench on three nodes at once, on the same tables: balances are counters, history
# rows have snowflake ids.  Once all changes have arrived, the three nodes are equal,
# and the sums are those of all acknowledged transactions.  Then the same with a link
# that is cut, and with a node that joins while the same rows are changed everywhere.
#
# WEFT_TEST_SECONDS sets the duration of the first load and the size of the others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CountingProxy;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seconds = $ENV{WEFT_TEST_SECONDS} // 4;
my $some = 50 * $seconds;
my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;
my %proxy = map { $_->name => CountingProxy->new($_) } @nodes;

query($a, <<'EOS');
CREATE TABLE branches (bid int PRIMARY KEY, balance bigint NOT NULL, filler text);
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, balance bigint NOT NULL, note text);
CREATE SEQUENCE history_id;
CREATE TABLE history (id bigint PRIMARY KEY DEFAULT weft.snowflake_nextval('history_id'),
	aid int, bid int, delta int, node text);
ALTER TABLE branches REPLICA IDENTITY FULL;
ALTER TABLE accounts REPLICA IDENTITY FULL;
INSERT INTO branches SELECT i, 0, 'x' FROM generate_series(1, 3) i;
INSERT INTO accounts SELECT i, i % 3 + 1, 0, 'x' FROM generate_series(1, 300) i;
EOS

# The other nodes reach each node through its proxy.
sub make_node
{
	my ($node) = @_;
	query($node, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$node->name, $proxy{ $node->name }->connstr);
	return;
}
make_node($_) foreach @nodes;
query($a, "SELECT weft.create_node_group('g')");
query($a,
	"SELECT weft.set_delta_columns('branches', '{balance}'), weft.set_delta_columns('accounts', '{balance}')"
);
join_group($b, $a, 'g');
join_group($c, $a, 'g');
is(query($c, 'SELECT count(*) FROM weft.delta_column'),
	2, 'a joining node copies counters');

my $script = <<'EOS';
\set aid random(1, 300)
\set bid random(1, 3)
\set delta random(-500, 500)
BEGIN;
UPDATE accounts SET balance = balance + :delta, note = ':name ' || :client_id WHERE aid = :aid;
UPDATE branches SET balance = balance + :delta WHERE bid = :bid;
INSERT INTO history (aid, bid, delta, node) VALUES (:aid, :bid, :delta, ':name');
COMMIT;
EOS

my %acknowledged = map { $_->name => 0 } @nodes;

# Without a duration, the load runs until end_load() is called.
sub start_load
{
	my ($node, $time) = @_;
	my $name = $node->name;
	return start_pgbench(
		$node, { $script =~ s/:name/$name/gr => 1 },
		'-c' => 2,
		'-T' => $time // 600);
}

sub count_load
{
	my ($load) = @_;
	my ($count) = $load->{output} =~ /transactions actually processed: (\d+)/;
	$acknowledged{ $load->{node}->name } += $count;
	return;
}

# The number of transactions of a node's loads that have reached a member.
sub transactions
{
	my ($member, $from) = @_;
	return query($member,
		sprintf "SELECT count(*) FROM history WHERE node = '%s'",
		$from->name);
}

# Waits until there are some more of them.
sub load_goes_on
{
	my ($member, $from) = @_;

	poll(
		$member,
		sprintf "SELECT count(*) >= %d FROM history WHERE node = '%s'",
		transactions($member, $from) + $some,
		$from->name);
	return;
}

sub end_loads
{
	foreach my $load (@_)
	{
		end_load($load);
		count_load($load);
	}
	return;
}

my @tables = qw(branches accounts history);

sub check
{
	my ($what, @members) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_group('g', @members);
	same_on_all(\@members, \@tables, $what);
	foreach my $member (@members)
	{
		is( query(
				$member,
				'SELECT node, count(*) FROM history GROUP BY 1 ORDER BY 1'),
			join(
				"\n", map { "$_|$acknowledged{$_}" } sort keys %acknowledged),
			"$what: what was acknowledged, on " . $member->name);
		is( query(
				$member,
				'SELECT (SELECT sum(balance) FROM accounts) = (SELECT sum(delta) FROM history) AND (SELECT sum(balance) FROM branches) = (SELECT sum(delta) FROM history)'
			),
			't',
			"$what: the sums on " . $member->name);
	}
	return;
}

# --- all at once ---

my %applied = map { $_->name => applied($_) } @nodes;

# Transactions that the writers of a node have applied, by subscription.
sub applied
{
	my ($node) = @_;
	return {
		map { split /\|/ } split /\n/,
		query(
			$node, 'SELECT subname, transactions FROM weft.stat_subscription')
	};
}

my @loads = map { start_load($_, $seconds) } @nodes;
foreach my $load (@loads)
{
	finish($load);
	count_load($load);
}
check('three nodes', @nodes);

# A change crosses each link once: each subscription has applied the changes of its
# publisher's clients, and none that the publisher received from elsewhere.
foreach my $to (@nodes)
{
	foreach my $from (@nodes)
	{
		next if $from == $to;
		my $name = subscription_name('g', $from, $to);
		my $expected =
		  $applied{ $to->name }{$name} + $acknowledged{ $from->name };

		# a writer counts what it has committed
		poll($to,
			"SELECT transactions >= $expected FROM weft.stat_subscription WHERE subname = '$name'"
		);
		is( applied($to)->{$name} - $applied{ $to->name }{$name},
			$acknowledged{ $from->name },
			'each change once: ' . $from->name . ' to ' . $to->name);
	}
}

# --- a link is cut ---

@loads = map { start_load($_) } @nodes;
load_goes_on($a, $_) foreach @nodes;
my $before = query($a, 'SELECT clock_timestamp()');
$proxy{b}->cut;
poll($a,
	"SELECT state = 'down' FROM weft.node_replication WHERE from_node = 'b' AND to_node = 'a'"
);
poll($a,
	"SELECT last_error ~ 'could not connect to the publisher' AND last_error_time > '$before' FROM weft.node_replication WHERE from_node = 'b' AND to_node = 'a'"
);
pass('the last error gives the reason');
load_goes_on($b, $b);
end_loads(@loads);
cmp_ok(transactions($a, $b), '<', transactions($b, $b), 'the link is cut');
$proxy{b}->heal;
check('after a link was cut', @nodes);

# --- joining while the same rows are changed everywhere ---

foreach my $round (1 .. ($ENV{WEFT_TEST_JOINS} // 1))
{
	query($a, "SELECT weft.part_node('c')");
	query($c,
		'DROP TABLE branches, accounts, history; DROP SEQUENCE history_id');
	@loads = map { start_load($_) } ($a, $b);
	load_goes_on($b, $a);
	load_goes_on($a, $b);
	join_group($c, $round % 2 ? $b : $a, 'g');
	push @loads, start_load($c);
	load_goes_on($a, $c);
	end_loads(@loads);
	check("a node joined during conflicts, round $round", @nodes);
}

unlike(
	slurp_file($_->logfile),
	qr/resource was not closed/,
	'nothing is left open on ' . $_->name) foreach @nodes;
is(query($_, 'SELECT count(*) FROM weft.join_recent'),
	0, 'nothing is left behind')
  foreach @nodes;
$_->stop foreach @nodes;
$_->stop foreach values %proxy;
done_testing();
