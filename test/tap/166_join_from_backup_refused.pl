# Joining from a backup where that would lose changes, or do them twice, is refused, and a copy of a member does not
# touch what belongs to the member.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $plain) = map { new_member($_) } qw(a b plain);

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($b, $a, 'g');

sub fails
{
	my ($node, $sql, $message, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $what);
	return;
}

sub join_sql
{
	my ($target, $group) = @_;
	return
	  sprintf
	  "SELECT weft.join_node_group(\$\$%s\$\$, %s, from_backup := true)",
	  dsn($target), defined $group ? "'$group'" : 'NULL';
}

sub prepare_sql
{
	my ($name, $node) = @_;
	return sprintf "SELECT weft.prepare_join_from_backup('%s', \$\$%s\$\$)",
	  $name, dsn($node);
}

# A copy of a node, running as a standby, or promoted.
sub copy_of
{
	my ($source, $name, $backup, %params) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($source, $backup,
		has_streaming => !$params{plain});
	$copy->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	$copy->start;
	$copy->promote if $params{promote};
	return $copy;
}

my $held =
  "SELECT count(*) > 0 FROM weft.stat_get_last_error() WHERE last_error LIKE '%this server is a copy that is to become node%'";

# --- where there is nothing to join from ---

fails(
	$plain, join_sql($a),
	qr/this database is not a copy of a member of a node group/,
	'a plain server');
fails(
	$b, join_sql($a),
	qr/no node is to join from a copy of node "b"/,
	'a running member');
fails(
	$plain,
	prepare_sql('c', $plain),
	qr/this database is not a member of a node group/,
	'preparing on a plain server');
fails(
	$a,
	prepare_sql('b', $plain),
	qr/node group "g" already has a node "b"/,
	'the name of a member');
fails(
	$a,
	prepare_sql('B!', $plain),
	qr/invalid name for a node: "B!"/,
	'an invalid name');
fails(
	$a,
	'BEGIN; CREATE TEMP TABLE x (); ' . prepare_sql('c', $plain),
	qr/cannot be called in a transaction that has written something/,
	'after a write');
query($a,
	"CREATE SUBSCRIPTION other CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false, slot_name = 's')"
);
query($a, 'ALTER SUBSCRIPTION other ENABLE');
fails(
	$a,
	prepare_sql('c', $plain),
	qr/subscription "other" in database "postgres" is not one of the node group/,
	'another subscription');
query($a,
	'ALTER SUBSCRIPTION other DISABLE; ALTER SUBSCRIPTION other SET (slot_name = NONE); DROP SUBSCRIPTION other'
);
is(states($_), 'a active, b active', 'nothing was prepared on ' . $_->name)
  foreach ($a, $b);

# --- a copy that is older than the slots ---

$a->backup('early');
my $c = PostgreSQL::Test::Cluster->new('c');
query($a, prepare_sql('c', $c));
my $early = PostgreSQL::Test::Cluster->new('early');
$early->init_from_backup($a, 'early', has_streaming => 1);
# It does not know yet that it is not a.
$early->append_conf('postgresql.conf',
	"max_logical_replication_workers = 0\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n"
);
$early->start;
poll($early, 'SELECT NOT pg_is_in_recovery()');
fails(
	$early,
	join_sql($a),
	qr/no node is to join from a copy of node "a" that is as old as this one/,
	'a backup made before');
$early->stop('immediate');

# --- a copy in every state but the right one ---

$a->backup('first');
my $standby = copy_of($a, 'standby', 'first');
fails($standby, join_sql($a), qr/this server is still a standby/,
	'a standby');
$standby->promote;
poll($standby, $held);
is( query(
		$b,
		"SELECT count(*) FROM pg_stat_replication WHERE application_name = 'weft_g_b_a' AND state = 'streaming'"
	),
	1,
	'one follows b as a');
fails(
	$a, join_sql($a),
	qr/this server is node "a" itself, not a copy of it/,
	'the member itself');
fails(
	$standby,
	join_sql($b),
	qr/this database is a copy of node "a", but the join target is node "b"/,
	'another target');
fails(
	$standby, join_sql($plain),
	qr/this database is a copy of node "a", but the join target is no node/,
	'a target outside');
fails($standby, join_sql($standby), qr/node "c" cannot join through itself/,
	'itself');
fails(
	$standby,
	join_sql($a, 'h'),
	qr/a copy of a member of node group "g", not "h"/,
	'another group');
fails(
	$standby, join_sql($a),
	qr/the connection string of node "c".*|could not connect to node "c"/,
	'another address');

# One that was started like a server that has crashed.
my $crashed = copy_of($a, 'crashed', 'first', plain => 1);
poll($crashed, $held);
fails($crashed, join_sql($a),
	qr/this copy of node "a" was not started as a standby/,
	'no recovery');
$crashed->stop('immediate');
$standby->stop('immediate');

# Rows of its own, and a transaction that is prepared.
query($a,
	"BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION 'p'");
$a->backup('second');
$c->init_from_backup($a, 'second', has_streaming => 1);
$c->start;
$a->wait_for_catchup($c, 'replay');
$c->stop('fast');
query($a, "COMMIT PREPARED 'p'");
$c->append_conf('postgresql.conf', "primary_conninfo = ''\n");
$c->start;
$c->promote;
poll($c, $held);
fails(
	$c, join_sql($a),
	qr/the copy has a prepared transaction "p"/,
	'a prepared transaction');
query($c, "ROLLBACK PREPARED 'p'");

my $session = open_session($c);
$session->query_safe("INSERT INTO t VALUES (100, 'of nobody')");
$session->quit;
fails(
	$c, join_sql($a),
	qr/table public.t was changed on this server since it was promoted/,
	'rows of its own');

# --- a preparation that was repeated ---

query($a, prepare_sql('c', $c));
is(states($b), 'a active, b active, c joining', 'prepared again');
fails(
	$c, join_sql($a),
	qr/node "a" does not expect node "c" any more/,
	'a copy of the first preparation');
fails(
	$b,
	prepare_sql('d', $plain),
	qr/another node is joining or parting/,
	'another node meanwhile');
$c->stop('immediate');
rmtree($c->data_dir);

# --- a slot that is gone ---

$a->backup('third');
$c->init_from_backup($a, 'third', has_streaming => 1);
$c->start;
$a->wait_for_catchup($c, 'replay');
$c->promote;
query($b, "SELECT pg_drop_replication_slot('weft_g_b_c')");
fails(
	$c, join_sql($a),
	qr/node "b" has no slot for node "c" any more/,
	'a slot is missing');

# The member is replaced by a standby while a join is prepared: it waits for a decision.
query($c, "SELECT weft.leave_node_group()");
is(leftovers($c), '', 'a copy can become an ordinary database');
$c->stop('immediate');
my $replacement = copy_of($a, 'a2', 'third');
$a->wait_for_catchup($replacement, 'replay');
$a->stop('immediate');
# It gets the address, too.
$replacement->stop;
$replacement->append_conf('postgresql.conf', 'port = ' . $a->port . "\n");
$replacement->{_port} = $a->port;
$replacement->start;
$replacement->promote;
poll($replacement, $held);
query($replacement,
	"SET client_min_messages = error; SELECT weft.part_node('c', force := true)"
);
poll($replacement,
	"SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 'weft_g_b_a' AND received_lsn IS NOT NULL"
);
query($b, "INSERT INTO t VALUES (200, 'b')");
poll($replacement, 'SELECT count(*) = 1 FROM t WHERE id = 200');
is(states($replacement), 'a active, b active', 'it goes on as the member');

$_->stop foreach ($b, $plain, $replacement);
done_testing();
