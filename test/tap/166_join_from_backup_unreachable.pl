# A join from a backup is prepared again, or its preparation fails, while a member cannot be reached: once it can,
# the preparation can be repeated, or the node be parted on the member that was to be copied.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $d) = map { new_member($_) } qw(a b d);
my $c = PostgreSQL::Test::Cluster->new('c');

query($a, 'CREATE TABLE t (id int PRIMARY KEY, v text)');
create_group($a, 'g');
join_group($_, $a, 'g') foreach ($b, $d);

my $prepare = sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
  dsn($c);

sub fails
{
	my ($node, $sql, $message, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $what);
	return $err;
}

# --- prepared again ---

query($a, $prepare);
$b->stop;
fails($a, $prepare, qr/could not connect to node "b"/, 'b is down');
$b->start;
query($a, $prepare);
is( states($_),
	'a active, b active, c joining, d active',
	'prepared again, says ' . $_->name) foreach ($a, $b, $d);

# --- the preparation fails in the middle, when a member is gone ---

query($a, "SELECT weft.part_node('c', force := true)");
my $hold = open_session($d);
$hold->query_safe('BEGIN; SELECT txid_current()');
my $session = open_session($a, on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\n$prepare;\n");
poll($d,
	"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'weft_g_d_c'"
);
$b->stop;
query($d,
	"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'weft_g_d_c'"
);
$hold->query_safe('COMMIT');
$hold->quit;
$session->query_until(qr/ended/, "\\echo ended\n");
$session->quit;
poll($d, 'SELECT count(*) = 2 FROM pg_replication_slots');
is(states($d), 'a active, b active, d active',
	'what can be undone is undone');
is( states($a),
	'a active, b active, c joining, d active',
	'the member that was to be copied knows that something is left');
$b->start;
query($a, "SELECT weft.part_node('c', force := true)");
is(states($_), 'a active, b active, d active', 'parted on ' . $_->name)
  foreach ($a, $b, $d);
query($a, $prepare);

# Preparing again is another way.
query($a, "SELECT weft.part_node('c', force := true)");
is(query($_, 'SELECT count(*) FROM pg_replication_slots'),
	2, $_->name . ' has no slot for the node that was parted')
  foreach ($a, $b, $d);

$_->stop foreach ($a, $b, $d);
done_testing();
