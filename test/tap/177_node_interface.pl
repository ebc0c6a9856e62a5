# weft.alter_node_interface: all members learn a new address of a member, whose password is nowhere to be seen,
# and replication goes on.  Those that cannot be told are named.  The slots of a group get and lose
# the option "failover" while it works.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $secret = 'geheim-4711';
# What users execute themselves is their own affair.
my @nodes =
  map {
	new_member($_,
		conf => "log_statement = all\nlog_min_error_statement = panic\n")
  } qw(a b c);
my ($a, $b, $c) = @nodes;

create_ledger($a);
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $c);

sub fails
{
	my ($node, $sql, $message, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $name);
	unlike($err, qr/geheim/, "$name: no password");
	return;
}

sub alter_sql
{
	my ($name, $dsn) = @_;
	return "SELECT weft.alter_node_interface('$name', \$\$$dsn\$\$)";
}

my @clients = map { start_client($_, $_->name) } @nodes;
poll($c, 'SELECT count(*) > 100 FROM ledger');

# --- the option "failover" ---

sub options
{
	return join ' ', map {
		query($_,
			"SELECT string_agg(DISTINCT failover::text, ',') FROM pg_replication_slots WHERE slot_name LIKE 'weft_g_%'"
		  )
		  . '/'
		  . query(
			$_,
			"SELECT string_agg(DISTINCT subfailover::text, ',') FROM pg_subscription"
		  )
		  . '/'
		  . query($_, 'SELECT failover FROM weft.node_group')
	} @nodes;
}
is(options(), 'true/true/t true/true/t true/true/t', 'a new group has it');
query($b, "SELECT weft.alter_node_group_config('g', failover => false)");
is(options(), 'false/false/f false/false/f false/false/f', 'taken away');
query($c, "SELECT weft.alter_node_group_config('g', failover => true)");
is(options(), 'true/true/t true/true/t true/true/t', 'given');
query($c,
	"SELECT weft.alter_node_group_config('g', failover => true, num_writers => 3)"
);
is(query($_, 'SELECT num_writers FROM weft.node_group'),
	3, 'with the writers')
  foreach @nodes;
poll_group($b, 6);
query($c,
	"UPDATE weft.node_entry SET state = 'parting' WHERE node_name = 'b'");
fails(
	$b,
	"SELECT weft.alter_node_group_config('g', failover => false)",
	qr/node "c": another node is joining or parting/,
	'not while a node parts');
query($c,
	"UPDATE weft.node_entry SET state = 'active' WHERE node_name = 'b'");
is(options(), 'true/true/t true/true/t true/true/t', 'nothing is changed');

# --- the address ---

query($b, alter_sql('a', dsn($a) . " password=$secret"));
is(query($_, "SELECT weft.node_dsn('a') LIKE '%gehe' || 'im-4711'"),
	't', $_->name . ' has it')
  foreach @nodes;
is( query(
		$_,
		"SELECT subconninfo LIKE '%gehe' || 'im-4711' FROM pg_subscription WHERE subname LIKE 'weft_g_a_%'"
	),
	't',
	$_->name . ' uses it') foreach ($b, $c);
poll_group($b, 6);
# a member may be told of its own
query($a, alter_sql('a', dsn($a) . " password=$secret connect_timeout=20"));
is(query($_, "SELECT weft.node_dsn('a') LIKE '%connect_timeout=20'"),
	't', $_->name . ' has the second one')
  foreach @nodes;
poll_group($b, 6);

fails(
	$b,
	alter_sql('a', dsn($c) . " password=$secret"),
	qr/the connection string of node "a" points to another node/,
	'the address of another node');
fails(
	$b,
	alter_sql('a', "host=/nowhere port=1 password=$secret"),
	qr/could not connect to node "a"/,
	'one where nobody is');
fails(
	$b,
	alter_sql('a', "password=$secret nonsense"),
	qr/invalid connection string for node "a"/,
	'one that is none');
fails(
	$b,
	alter_sql('x', dsn($a)),
	qr/this database knows no node "x"/,
	'an unknown node');
fails(
	$b,
	"SELECT weft.alter_node_interface('a', NULL)",
	qr/argument must not be null/, 'null');
query($b, "CREATE ROLE nobody");
fails(
	$b,
	"SET ROLE nobody; " . alter_sql('a', dsn($a)),
	qr/permission denied for function alter_node_interface/,
	'another role');

# One member is down.
stop_client($clients[2]);
$c->stop('immediate');
fails(
	$b,
	alter_sql('a', dsn($a) . " password=$secret connect_timeout=21"),
	qr/could not tell the address of node "a" to: c\n.*DETAIL:  could not connect to node "c"/s,
	'a member that is down is named');
is(query($_, "SELECT weft.node_dsn('a') LIKE '%connect_timeout=21'"),
	't', $_->name . ' has it')
  foreach ($a, $b);
$c->start;
is(query($c, "SELECT weft.node_dsn('a') LIKE '%connect_timeout=20'"),
	't', 'the one that was down has the previous one');
query($b, alter_sql('a', dsn($a) . " password=$secret connect_timeout=21"));
is(query($c, "SELECT weft.node_dsn('a') LIKE '%connect_timeout=21'"),
	't', 'until it is told');
push @clients, start_client($c, 'c');
poll_group($b, 6);

# What is waiting to connect to the old address does not keep waiting.
query($b, "SELECT weft.set_node_dsn('a', 'host=/nowhere port=1')");
query($b,
	"ALTER SUBSCRIPTION weft_g_a_b CONNECTION 'host=/nowhere port=1 dbname=postgres'"
);
$b->wait_for_log(qr/could not connect to the publisher: .*nowhere/);
set_on($b, wal_retrieve_retry_interval => '5min');
query($c, alter_sql('a', dsn($a) . " password=$secret"));
poll($b,
	"SELECT state = 'streaming' FROM weft.node_replication WHERE from_node = 'a'"
);
pass('the member connects to the new address at once');
set_on($b, wal_retrieve_retry_interval => '100ms');

poll($_, "SELECT (SELECT count(*) FROM ledger) > 300") foreach @nodes;
stop_client($_) foreach grep { !$_->{ids} } @clients;
wait_for_group('g', @nodes);
check_clients(\@nodes, \@clients, 'after all that');
foreach my $node (@nodes)
{
	my $log = join "\n",
	  grep { !/LOG:  statement: SELECT weft\.alter_node_interface/ }
	  split /\n/, slurp_file($node->logfile);
	like($log, qr/weft\.member_set_interface\(\)/, 'commands are logged');
	unlike($log, qr/geheim/,
		'the log of ' . $node->name . ' has no password');
	unlike(
		query(
			$node,
			'SELECT string_agg(query, $$ $$) FROM pg_stat_activity WHERE pid <> pg_backend_pid()'
		),
		qr/geheim/,
		'nor what sessions of ' . $node->name . ' execute');
}
$_->stop foreach @nodes;
done_testing();
