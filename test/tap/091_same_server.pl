# Several members in one server, groups of the same name in other databases of that
# server, and nodes of the same name that join at once: nobody touches what belongs to
# another.

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

# These tests are about different databases of one server.
sub sql
{
	my ($node, $database, $sql) = @_;
	return $node->safe_psql($database, $sql);
}

sub fails
{
	my ($node, $database, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql($database, $sql);
	like($err, $message, $sql);
	return;
}

sub database_dsn
{
	my ($node, $database) = @_;
	return $node->connstr . " dbname=$database";
}

sub create_node
{
	my ($node, $database, $name) = @_;
	sql($node, $database, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$name, database_dsn($node, $database));
	return;
}

sub join_sql
{
	my ($node, $database) = @_;
	return sprintf "SELECT weft.join_node_group(\$\$%s\$\$)",
	  database_dsn($node, $database);
}

sub slots
{
	my ($node) = @_;
	return query($node,
		"SELECT string_agg(slot_name || ' of ' || database, ', ' ORDER BY slot_name, database) FROM pg_replication_slots"
	);
}

# --- a group of the same name in another database ---

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');
my @healthy = (slots($a), slots($b));
is( "@healthy",
	'weft_g_a_b of postgres weft_g_b_a of postgres',
	'slots of a group');

foreach my $node ($a, $b)
{
	query($node, 'CREATE DATABASE other');
	sql($node, 'other', 'CREATE EXTENSION weft');
	create_node($node, 'other', $node->name);
}
sql($a, 'other', "SELECT weft.create_node_group('g')");
sql($b, 'other', join_sql($a, 'other'));
fails($b, 'other', $wait_for_join,
	qr/node "b" could not join node group "g": .*already has a slot "weft_g_b_a", in another database/
);
is(slots($a), $healthy[0], 'slots of another database are left alone');
is(slots($b), $healthy[1], 'on both servers');
query($a, "INSERT INTO t VALUES (1, 'a')");
query($b, "INSERT INTO t VALUES (2, 'b')");
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'the group continues');
is( query(
		$a,
		'SELECT count(*) FROM weft.node_replication WHERE state IS NOT NULL'),
	2,
	'each direction is shown once');
sql($a, 'other', "SELECT weft.part_node('a')");
is(slots($a), $healthy[0], 'nor does parting');

# --- three members in one server ---

my @databases = qw(one two three);
foreach my $database (@databases)
{
	query($a, "CREATE DATABASE $database");
	sql($a, $database, 'CREATE EXTENSION weft');
	create_node($a, $database, $database);
}
sql($a, 'one',
	"CREATE TABLE t (id int PRIMARY KEY, v text); SELECT weft.create_node_group('h')"
);
foreach my $database (@databases[ 1, 2 ])
{
	sql($a, $database, join_sql($a, 'one'));
	sql($a, $database, $wait_for_join);
}
sql($a, $_,
	"INSERT INTO t VALUES (length('$_'), '$_') ON CONFLICT (id) DO UPDATE SET v = excluded.v"
) foreach @databases;
foreach my $to (@databases)
{
	foreach my $from (grep { $_ ne $to } @databases)
	{
		sql($a, $to,
			"SELECT weft.wait_for_subscription('weft_h_${from}_$to', '180 s')"
		);
	}
}
is( sql($a, $_, 'SELECT string_agg(t::text, $$ $$ ORDER BY id) FROM t'),
	sql($a, 'one', 'SELECT string_agg(t::text, $$ $$ ORDER BY id) FROM t'),
	"three in one server: $_") foreach @databases;
sql($a, 'one', "SELECT weft.part_node('two')");
sql($a, 'one', "SELECT weft.part_node('three')");
sql($a, 'one', "SELECT weft.part_node('one')");
is(slots($a), $healthy[0], 'they were dropped, and nothing else');

# --- two nodes with one name ---

my ($first, $second) = map { new_member($_) } qw(c1 c2);
create_node($_, 'postgres', 'c') foreach ($first, $second);
my $hold = open_session($a);
$hold->query_safe('BEGIN; SELECT txid_current()');

# The second one passes the checks before the first is registered anywhere; then it finds it.
my $late = open_session($second);
$late->query_safe('BEGIN; LOCK TABLE weft.node_group_entry IN SHARE MODE');
query($second, join_sql($a, 'postgres'));
poll($second,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'weft join' AND wait_event_type = 'Lock'"
);
query($first, join_sql($a, 'postgres'));
poll($first, "SELECT step = 'copy' FROM weft.join_entry");
$late->query_safe('COMMIT');
fails($second, 'postgres', $wait_for_join,
	qr/node "c" is joining or parting/);
fails(
	$second, 'postgres',
	join_sql($a, 'postgres'),
	qr/node "c" is joining or parting/);
is( query($a, "SELECT identity FROM weft.node_entry WHERE node_name = 'c'"),
	query($first, 'SELECT identity FROM weft.node_entry WHERE is_local'),
	'the first one has the name');
$hold->query_safe('COMMIT');
$_->quit foreach ($hold, $late);
query($first, $wait_for_join);
fails(
	$second, 'postgres',
	join_sql($a, 'postgres'),
	qr/node group "g" already has a node "c"/);
query($first, "INSERT INTO t VALUES (3, 'c')");
query($_,
	"SELECT weft.wait_for_subscription('weft_g_c_" . $_->name . "', '180 s')")
  foreach ($a, $b);
query($first,
	"SELECT weft.wait_for_subscription('weft_g_" . $_->name . "_c', '180 s')")
  foreach ($a, $b);
same_on_all([ $a, $b, $first ], ['t'], 'the first one is a member');
query($second, 'SELECT count(*) FROM weft.node');

$_->stop foreach ($a, $b, $first, $second);
done_testing();
