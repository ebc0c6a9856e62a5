# Passwords of members appear neither in WAL that can be decoded nor in a publication.  A
# publication FOR ALL TABLES on a node does not prevent it from joining or parting.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $password = 'geheim-4711';
my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;

sub secret_dsn
{
	my ($node) = @_;
	return dsn($node) . " password=$password";
}

sub join_secretly
{
	my ($node, $target) = @_;
	query($node, sprintf "SELECT weft.create_node('%s', \$\$%s\$\$)",
		$node->name, secret_dsn($node))
	  unless query($node, 'SELECT count(*) FROM weft.node');
	query($node, sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g')",
		secret_dsn($target));
	wait_for_join($node);
	return;
}

# A role without privileges watches from the beginning.
foreach my $node (@nodes)
{
	query($node,
		"CREATE ROLE looker LOGIN REPLICATION; CREATE PUBLICATION everything FOR ALL TABLES"
	);
	query($node,
		"SET ROLE looker; SELECT pg_create_logical_replication_slot('looker', 'test_decoding')"
	);
}

query($a, 'CREATE TABLE t (id int PRIMARY KEY)');
query($a, sprintf "SELECT weft.create_node('a', \$\$%s\$\$)", secret_dsn($a));
query($a, "SELECT weft.create_node_group('g')");
join_secretly($b, $a);
join_secretly($c, $b);
query($_, 'INSERT INTO t VALUES (' . ord($_->name) . ')') foreach @nodes;
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['t'], 'publications FOR ALL TABLES on all members');

# a node that cannot be joined, which leaves an error
query($a,
	'SET weft.ddl_replication = off; CREATE ROLE only_here; CREATE TABLE owned (id int PRIMARY KEY); ALTER TABLE owned OWNER TO only_here'
);
query($b, "SELECT weft.part_node('c')");
query($c, 'DROP TABLE t');
query($c, sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g')",
	secret_dsn($a));
my ($ret, $out, $err) = $c->psql('postgres', $wait_for_join);
like($err, qr/role "only_here" does not exist/, 'a join that fails');
query($a, 'SET weft.ddl_replication = off; DROP TABLE owned');
join_secretly($c, $a);

# rows of Weft's tables that otherwise exist only temporarily
query($a,
	"SELECT weft.alter_node_group_set_conflict_resolver('g', 'insert_exists', 'keep_local'), weft.alter_node_group_config('g', 3), weft.set_delta_columns('t', '{}')"
);
query($_, 'DELETE FROM t WHERE id = ' . ord($_->name)) foreach @nodes;
wait_for_group('g', @nodes);
query($c, "SELECT weft.part_node('b')");
query($b, "SELECT weft.drop_node('b')");
is(query($b, 'SELECT count(*) FROM weft.node'), 0, 'a node can be dropped');

# A table without a replica identity can be changed only if nothing publishes it.  What
# writers alone change (conflict/store.c) leaves nothing to decode.
is( query(
		$a,
		"SELECT string_agg(c.relname, ', ') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'weft' AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relname NOT IN ('conflict_history', 'tombstone', 'merged_row', 'row_time', 'deleted_counter', 'past_origin', 'known_origin', 'ddl_queue', 'ddl_applied', 'ddl_concurrent', 'ddl_skip', 'dropped_column') AND NOT (c.relreplident = 'f' OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))"
	),
	'',
	'each table has a replica identity');

foreach my $node (@nodes)
{
	my $name = $node->name;
	my $changes = query($node,
		"SET ROLE looker; SELECT data FROM pg_logical_slot_get_changes('looker', NULL, NULL)"
	);
	like($changes, qr/weft\.node_entry/, "all of it was decoded, on $name");
	unlike($changes, qr/geheim/, "without a password, on $name");
	foreach my $table (
		split /\n/,
		query(
			$node,
			"SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = to_regnamespace('weft') AND c.relkind = 'r'"
		))
	{
		unlike(query($node, "SELECT t::text FROM $table t"),
			qr/geheim/, "not in $table, on $name");
	}
	($ret, $out, $err) = $node->psql('postgres', <<'EOS');
SET ROLE looker;
SELECT umoptions::text FROM pg_user_mappings
UNION ALL SELECT option_value FROM information_schema.user_mapping_options
UNION ALL SELECT srvoptions::text FROM pg_foreign_server
EOS
	unlike($out, qr/geheim/, "nor in a catalog that anybody sees, on $name");
	foreach my $sql (
		"SELECT weft.node_dsn('a')",
		"SELECT weft.set_node_dsn('a', '')",
		'SELECT * FROM weft.member')
	{
		($ret, $out, $err) = $node->psql('postgres', "SET ROLE looker; $sql");
		like($err, qr/permission denied/, "$sql: refused, on $name");
	}
}
is(query($a, "SELECT weft.node_dsn('c') LIKE '%$password'"),
	't', 'it is there');
my $dump = join "\n", grep { !/^CREATE SUBSCRIPTION/ } split /\n/,
  scalar run_dump($a);
like($dump, qr/CREATE EXTENSION/, 'dumped');
unlike($dump, qr/geheim/, 'a dump has it in subscriptions only');

# and Weft can be removed
query($b, 'DROP PUBLICATION everything; DROP EXTENSION weft');
is(query($b, 'SELECT count(*) FROM pg_user_mapping'),
	0, 'nothing is left of the extension');
query($b, 'CREATE EXTENSION weft');
$_->stop foreach @nodes;
done_testing();

sub run_dump
{
	my ($node) = @_;
	my ($stdout, $stderr);
	IPC::Run::run([ 'pg_dump', '-d', $node->connstr('postgres') ],
		'>', \$stdout, '2>', \$stderr)
	  or die $stderr;
	return $stdout;
}
