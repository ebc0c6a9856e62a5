# Errors name the node and say what is wrong, and leave nothing half done.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);
my $secret = 'geheim';

# The error of a command.  Neither it nor the log may contain the password.
sub fails
{
	my ($node, $sql, $message) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);

	isnt($ret, 0, "fails: " . $sql =~ s/\s+/ /gr);
	like($err, $message, 'with the right message');
	unlike($err, qr/$secret/, 'which does not show a password')
	  unless $sql =~ /log_min_error_statement/;
	return;
}

sub join_sql
{
	my ($dsn, @group) = @_;
	return
	  "SELECT weft.join_node_group(\$\$$dsn\$\$"
	  . (@group ? ", '$group[0]'" : '') . ')';
}

sub set_and_restart
{
	my ($node, $name, $value) = @_;
	query($node, "ALTER SYSTEM SET $name = '$value'");
	$node->restart;
	return;
}

my $dsn_a = dsn($a);
my $dsn_b = dsn($b);

# --- nodes ---

fails(
	$a,
	"SELECT weft.create_node('A-1', '$dsn_a')",
	qr/invalid name for a node: "A-1"/);
fails(
	$a,
	"SELECT weft.create_node('" . 'n' x 41 . "', '$dsn_a')",
	qr/invalid name for a node/);
fails(
	$a,
	"SELECT weft.create_node('a', 'host=/nowhere port=1 password=$secret')",
	qr/could not connect to node "a"/);
fails(
	$a,
	"SELECT weft.create_node('a', 'password = $secret and more')",
	qr/invalid connection string for node "a"/);
fails(
	$a,
	"SELECT weft.create_node('a', '$dsn_b')",
	qr/the connection string of node "a" points to another database/);
fails(
	$a,
	"SELECT weft.create_node_group('g')",
	qr/this database is not a node/);
fails($a, join_sql($dsn_b), qr/this database is not a node/);
fails(
	$a,
	"SELECT weft.wait_for_join_completion('1 s')",
	qr/this database is not joining a node group/);
fails($a, "SELECT weft.part_node('a')", qr/node "a" is not a member/);
fails($a, "SELECT weft.leave_node_group()",
	qr/this database is not a member/);
is(query($_, 'SELECT count(*) FROM weft.node'), 0, 'no node on ' . $_->name)
  foreach ($a, $b);

query($a, "SELECT weft.create_node('a', '$dsn_a')");
fails(
	$a,
	"SELECT weft.create_node('a2', '$dsn_a')",
	qr/this database is already node "a"/);
query($b, "SELECT weft.create_node('b', '$dsn_b')");
fails($b, join_sql($dsn_a),
	qr/the join target, node "a", is not a member of a node group/);
fails($b, join_sql($dsn_b), qr/node "b" cannot join through itself/);

# --- groups ---

fails(
	$a,
	"SELECT weft.create_node_group('no such name')",
	qr/invalid name for a node group/);
foreach (
	# from 19 on, wal_level = replica is enough
	major() < 19
	? [
		'wal_level', 'replica',
		qr/node "a" has "wal_level" set to "replica"/, 'logical'
	]
	: (),
	[
		'track_commit_timestamp', 'off',
		qr/node "a" does not record commit times/, 'on'
	])
{
	my ($name, $bad, $message, $good) = @$_;
	set_and_restart($a, $name, $bad);
	fails($a, "SELECT weft.create_node_group('g')", $message);
	set_and_restart($a, $name, $good);
}
is(query($a, 'SELECT count(*) FROM weft.node_group'), 0, 'no group');
query($a, "SELECT weft.create_node_group('g')");
fails(
	$a,
	"SELECT weft.create_node_group('g')",
	qr/node "a" is already a member of node group "g"/);
fails(
	$a,
	"SELECT weft.create_node_group('h')",
	qr/node "a" is already a member of node group "g"/);
fails($a, "SELECT weft.drop_node('a')", qr/node "a" is in node group "g"/);

# --- joining ---

query($a,
	'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)'
);
fails(
	$b,
	join_sql($dsn_a, 'h'),
	qr/node "a" is a member of node group "g", not "h"/);
fails(
	$b,
	join_sql("host=/nowhere port=1 password=$secret"),
	qr/could not connect to node "join target"/);
foreach (
	major() < 19
	? [
		$b, 'wal_level', 'replica',
		qr/node "b" has "wal_level" set to "replica"/, 'logical'
	]
	: (),
	[
		$b, 'track_commit_timestamp',
		'off', qr/node "b" does not record commit times/,
		'on'
	],
	[
		$a, 'track_commit_timestamp',
		'off', qr/node "a" does not record commit times/,
		'on'
	],
	[
		$a, 'max_replication_slots', 0,
		qr/node "a" has too little left of "max_replication_slots"/, 20
	])
{
	my ($node, $name, $bad, $message, $good) = @$_;
	set_and_restart($node, $name, $bad);
	fails($b, join_sql($dsn_a), $message);
	set_and_restart($node, $name, $good);
}
foreach (
	[
		'CREATE TABLE t (id int PRIMARY KEY)',
		qr/table (public\.)?t differs between node "b" and node "a"/
	],
	[
		'CREATE TABLE u (id int)',
		qr/table (public\.)?[tu] exists on node "[ab]", but not on node "[ab]"/
	],
	[
		'CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (2, 2)',
		qr/table (public\.)?t on node "b" is not empty/
	])
{
	my ($sql, $message) = @$_;
	query($b, $sql);
	fails($b, join_sql($dsn_a), $message);
	query($b, 'DROP TABLE IF EXISTS t, u');
}
is(leftovers($b), '', 'nothing is left on the node that could not join');
is(leftovers($a), 'publication weft_g', 'nor on the other one');

# Errors that only the background worker finds: the join is undone.
query($a,
	'CREATE ROLE only_here; CREATE TABLE owned (id int PRIMARY KEY); ALTER TABLE owned OWNER TO only_here'
);
query($b, join_sql($dsn_a));
fails($b, $wait_for_join,
	qr/node "b" could not join node group "g": .*role "only_here" does not exist/
);
is(leftovers($b), '', 'undone on the node that could not join');
is(leftovers($a), 'publication weft_g', 'undone on the other one');
is(query($b, 'SELECT count(*) FROM pg_class WHERE relname = $$t$$'),
	0, 'no table either');
query($a, 'ALTER TABLE owned OWNER TO CURRENT_USER');

my $nowhere =
  "SELECT weft.set_node_dsn('b', 'host=/nowhere port=1 password=$secret')";
query($b, $nowhere);
fails($b, join_sql($dsn_a), qr/could not connect to node "b"/);
query($b, "SELECT weft.set_node_dsn('b', '$dsn_b')");

# where other members find the error, after the node's own checks
my $hold = open_session($b);
$hold->query_safe('BEGIN; LOCK TABLE weft.node_group_entry IN SHARE MODE');
query($b, join_sql($dsn_a));
poll($b,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'weft join' AND wait_event_type = 'Lock'"
);
my $change = open_session($b);
$change->query_safe("BEGIN; $nowhere");
$hold->query_safe('COMMIT');
poll($b,
	"SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'object' AND NOT granted"
);
$change->query_safe('COMMIT');
$_->quit foreach ($hold, $change);
fails($b, $wait_for_join,
	qr/node "b" could not join node group "g": node "a": could not connect to node "b"/
);
is(leftovers($b), '', 'an unreachable node: undone');
is(leftovers($a), 'publication weft_g', 'on the other one, too');
query($b, "SELECT weft.set_node_dsn('b', '$dsn_b')");

join_group($b, $a, 'g');
fails($b, join_sql($dsn_a),
	qr/node "b" is already a member of node group "g"/);
fails($b, "SELECT weft.part_node('c')", qr/node "c" is not a member/);
fails(
	$b,
	"SELECT weft.part_node('b', force := true)",
	qr/node "b" cannot part itself by force/);

# --- a third node ---

my $c = new_member('c');
my $dsn_c = dsn($c);
query($c, "SELECT weft.create_node('b', '$dsn_c')");
fails($c, join_sql($dsn_a), qr/node group "g" already has a node "b"/);
query($c, "SELECT weft.drop_node('b')");
query($c, "SELECT weft.create_node('" . 'c' x 40 . "', '$dsn_c')");
query($a, "SELECT weft.part_node('b')");
query($b, 'DROP TABLE t, owned');
query($b, "SELECT weft.drop_node('b')");
query($b, "SELECT weft.create_node('" . 'b' x 40 . "', '$dsn_b')");
query($b, join_sql($dsn_a));
wait_for_join($b);
fails($c, join_sql($dsn_a),
	qr/subscriptions of node group "g" cannot be named: "weft_g_[bc_]+" is longer than 63 bytes/
);
is(leftovers($c), '', 'names that are too long: nothing is created');

# The log shows no password, except in statements that the user has sent.
foreach my $node ($a, $b, $c)
{
	my @lines =
	  grep { /$secret/ && !/STATEMENT:/ && !/ UPDATE weft/ } split /\n/,
	  slurp_file($node->logfile);
	is("@lines", '', 'no password in the log of ' . $node->name);
}
$_->stop foreach ($a, $b, $c);
done_testing();
