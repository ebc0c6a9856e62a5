# A member fails over while a node joins, while a schema change holds locks, and while a node parts: whoever
# waits for it gets an error that says so, and the group goes on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupFailoverTest;
use GroupTest;
use InjectionTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

need_injection_points();

my ($a, $b, $d) = map { new_member($_) } qw(a b d);
my @standbys = map { PostgreSQL::Test::Cluster->new("a$_") } 1 .. 7;
my $next = 1;

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
query($a,
	"INSERT INTO t SELECT g, 'filler' FROM generate_series(100, 1000) g");
create_group($a, 'g');
join_group($b, $a, 'g');

sub prepare
{
	my $standby = $standbys[0];
	query(
		$b,
		sprintf "SELECT weft.alter_node_interface('a', \$\$%s\$\$)",
		two_hosts($a, $standby));
	make_standby($a, $standby, synchronous => 1, guarded => 1);
	wait_for_standby($a, $standby);
	return;
}

sub take_over
{
	my $standby = shift @standbys;
	fail_over($a, $standby);
	$a->clean_node;
	$a = $standby;
	return;
}

# Everything that is written on one member arrives on all others.
sub works
{
	my ($what, @nodes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %name = map { ($_ == $a ? 'a' : $_->name) => $_ } @nodes;

	query($_, "INSERT INTO t (id) VALUES (" . $next++ . ")") foreach @nodes;
	foreach my $to (keys %name)
	{
		wait_for_apply($name{$_}, $name{$to}, "weft_g_${_}_$to")
		  foreach grep { $_ ne $to } keys %name;
	}
	same_on_all(\@nodes, ['t'], $what);
	return;
}

sub fails
{
	my ($node, $sql, $message, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $name);
	return;
}

# A statement in the background, and the error that it ends with.
sub start_query
{
	my ($node, $sql) = @_;
	my $query = { error => '' };

	$query->{run} = IPC::Run::start(
		[
			$node->installed_command('psql'),
			'-XAtq', '-d', $node->connstr('postgres'),
			'-c', $sql
		],
		'<',
		\undef,
		'>',
		\$query->{output},
		'2>',
		\$query->{error});
	return $query;
}

sub error_of
{
	my ($query) = @_;
	eval { $query->{run}->finish };
	return $query->{error};
}

sub join_target
{
	return two_hosts($a, $standbys[0]);
}

sub begin_join
{
	query($d, sprintf "SELECT weft.create_node('d', \$\$%s\$\$)", dsn($d))
	  unless query($d, 'SELECT count(*) FROM weft.node');
	query($d, sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g')",
		join_target());
	return;
}

# --- a join, before the copy: it continues with the promoted server ---

prepare();
attach_point($d, 'weft-join-step');
begin_join();
hold_in_step($d, 'make_own_slots');
take_over();
release_point($d, 'weft-join-step');
wait_for_join($d);
works('the target fails over before the copy', $a, $b, $d);
query($d, "SELECT weft.part_node('d')");
query($d, 'DROP TABLE t');

# --- in the middle of the copy: an error, and everything is undone ---

prepare();
my $block = open_session($a);
$block->query_safe('BEGIN; SELECT txid_current()');
begin_join();
# the slot for d waits for that transaction
poll($a,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%'"
);
take_over();
fails(
	$d, $wait_for_join,
	qr/node "d" could not join node group "g": /,
	'the target fails over during the copy');
is(states($b), 'a active, b active', 'the join is undone');
works('the target has failed over during the copy', $a, $b);
$block->quit;
prepare();
begin_join();
wait_for_join($d);
works('then the node joins', $a, $b, $d);
query($d, "SELECT weft.part_node('d')");
query($d, 'DROP TABLE t');

# --- after the copy, when the standby does not have the slot for the node: it must start again ---

# nor the one of its earlier membership
poll($standbys[0],
	"SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = 'weft_g_a_d'"
);
set_on($standbys[0], sync_replication_slots => 'off');
attach_point($d, 'weft-join-step');
begin_join();
hold_in_step($d, 'subscribe');
take_over();
release_point($d, 'weft-join-step');
poll($d,
	"SELECT count(*) > 0 FROM weft.stat_get_last_error() WHERE last_error LIKE '%replication slot \"weft_g_a_d\" does not exist%'"
);
pass('the subscription says what is missing');
query($b, "SELECT weft.part_node('d', force := true)");
query($d, 'SELECT weft.leave_node_group()');
query($d, 'DROP TABLE t');
works('the node is parted by force', $a, $b);
prepare();
begin_join();
wait_for_join($d);
works('then it joins', $a, $b, $d);
is( query(
		$a,
		"SELECT subsynccommit FROM pg_subscription WHERE subname = 'weft_g_d_a'"
	),
	'on',
	'and what the standby lacks is not confirmed to it either');
wait_for_standby($a, $standbys[0]);

# --- a schema change that locks its tables ---

# of another member, which waits for a session of this one
my $writer = open_session($a);
$writer->query_safe("BEGIN; INSERT INTO t VALUES (5000, 'open')");
my $changer = start_query($b,
	'ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 0 CHECK (n >= 0)');
poll($a, 'SELECT count(*) > 0 FROM weft.ddl_gates()');
take_over();
like(
	error_of($changer),
	qr/ERROR:.*node "a"/,
	'the schema change names the member');
$writer->quit;
works('a schema change of another member has failed', $a, $b, $d);
query($b, 'ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 0 CHECK (n >= 0)');
works('then it succeeds', $a, $b, $d);

# of this member, which has locked the tables everywhere
prepare();
my $session = open_session($a);
$session->query_safe(
	'BEGIN; ALTER TABLE t ADD COLUMN m int NOT NULL DEFAULT 0 CHECK (m >= 0)'
);
poll($b, 'SELECT count(*) > 0 FROM weft.ddl_gates()');
take_over();
$session->quit;
works('a schema change of the member itself has failed', $a, $b, $d);
query($a, 'ALTER TABLE t ADD COLUMN m int NOT NULL DEFAULT 0 CHECK (m >= 0)');
works('then it succeeds, too', $a, $b, $d);

# --- a parting ---

prepare();
$block = open_session($a);
$block->query_safe(
	"BEGIN; SELECT FROM weft.node_entry WHERE node_name = 'd' FOR UPDATE");
my $parting = start_query($b, "SELECT weft.part_node('d')");
poll($a,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%member_part(%' AND wait_event_type = 'Lock'"
);
take_over();
like(error_of($parting), qr/ERROR:.*node "a"/, 'parting names the member');
$block->quit;
works('parting has failed', $a, $b, $d);
query($b, "SELECT weft.part_node('d')");
is(states($_), 'a active, b active', 'then the node parts') foreach ($a, $b);
works('the others go on', $a, $b);

$_->stop foreach ($a, $b, $d);
done_testing();
