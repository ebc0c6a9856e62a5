# A node joins from a base backup of a member, or as a promoted standby of it, while all members are written to:
# rows and commit times are those of the member, conflicts are decided alike on all members, and a copy does
# nothing in the name of the member before it has joined.

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

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE log (id bigint PRIMARY KEY, node text);
ALTER TABLE account REPLICA IDENTITY FULL;
CREATE SEQUENCE log_id;
INSERT INTO t SELECT g, 'a' FROM generate_series(1, 1000) g;
INSERT INTO account SELECT g, 0 FROM generate_series(1, 20) g;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
query($_, "SELECT weft.set_delta_columns('account', '{balance}')")
  foreach ($a, $b);

# Clients on all members, which also change the same rows.
sub start_clients
{
	my ($node) = @_;
	my $name = $node->name;

	my $script = <<EOS;
\\set id random(1, 1000)
\\set other random(1, 20)
BEGIN;
INSERT INTO log VALUES (weft.snowflake_nextval('log_id'), '$name');
UPDATE t SET v = '$name ' || clock_timestamp() WHERE id = :id;
COMMIT;
UPDATE account SET balance = balance + 1 WHERE id = :other;
EOS
	return start_pgbench($node, { $script => 1 },
		'-T', 600, '-c', 2, '--max-tries=100');
}

my $c = PostgreSQL::Test::Cluster->new('c');
my @clients = (start_clients($a), start_clients($b));
query($a, sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
	dsn($c));
is(states($b), 'a active, b active, c joining', 'the node is registered');
$a->backup('bk');
$c->init_from_backup($a, 'bk', has_streaming => 1);
$c->start;
$a->wait_for_catchup($c, 'replay');
$c->promote;
poll($c,
	"SELECT count(*) > 0 FROM weft.stat_get_last_error() WHERE last_error LIKE '%this server is a copy that is to become node \"c\"%'"
);
query(
	$c,
	sprintf
	  "SELECT weft.join_node_group(\$\$%s\$\$, 'g', from_backup := true)",
	dsn($a));
wait_for_join($c);
is( states($_),
	'a active, b active, c active',
	'the copy is a member, says ' . $_->name) foreach ($a, $b, $c);
push @clients, start_clients($c);
poll($_, 'SELECT count(*) > 300 FROM log WHERE node = $$c$$')
  foreach ($a, $b);
stop_load($_) foreach @clients;
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], [qw(t account log)], 'after load');
$_->stop foreach ($a, $b, $c);
done_testing();
