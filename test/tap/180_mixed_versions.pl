# A group whose members have adjacent versions of the extension: it is updated member by member under load, and
# functions between members work meanwhile, or say what to do first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $old = '0.1.0';

plan skip_all => 'about Weft alone' unless weft();
plan skip_all => "version $old is not for this server" if major() >= 19;

my @nodes = map { new_member($_) } qw(a b c);
my ($a, $b, $c) = @nodes;
my $new = query($a, 'SELECT weft.library_version()');

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $node->name . ": $sql");
	return;
}

# Errors of a node's own processes, without those of a publisher that is down.
sub other_errors
{
	my ($node) = @_;
	return join "\n", grep {
		!/could not (connect to the publisher|receive data from WAL stream|send end-of-streaming message)/
	  }
	  split /\n/, errors_logged($node);
}

# A role that manages the group from before the update, and one that does not, but may call what others may.
query_all(\@nodes, <<EOS);
DROP EXTENSION weft;
CREATE EXTENSION weft VERSION '$old';
CREATE ROLE manager LOGIN SUPERUSER;
SELECT weft.grant_node_admin('manager');
ALTER ROLE manager NOSUPERUSER;
CREATE ROLE watcher;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA weft TO watcher;
CREATE TABLE ledger (node text, id int, PRIMARY KEY (node, id));
CREATE TABLE account (id int PRIMARY KEY, v int, node text);
CREATE SEQUENCE entry;
EOS
make_group('g', @nodes);
query($a, 'INSERT INTO account SELECT g, 0 FROM generate_series(1, 100) g');
wait_for_group('g', @nodes);

my $joining = new_member('d');
# Rights are part of the schema that it copies.
query($joining, 'CREATE ROLE manager; CREATE ROLE watcher');
my $number = 0;

# What members do to each other.
sub check_functions
{
	my ($what) = @_;
	my $table = 'added_' . ++$number;

	query_all(\@nodes,
		"SET weft.ddl_replication = off; CREATE TABLE $table (id int PRIMARY KEY, node text)"
	);
	foreach my $node (@nodes)
	{
		my $name = $node->name;

		query($node, "SELECT weft.refresh_node_group('g')");
		query($node, "SELECT weft.alter_node_group_config('g', 2)");
		query($node,
			"SELECT weft.alter_node_group_set_conflict_resolver('g', 'update_missing', 'skip')"
		);
		poll(
			$node,
			"SELECT count(*) FROM weft.node_group_replication() WHERE state IN ('streaming', 'catching up')",
			6);
		pass("$what: $name sees all pairs");
		query($node, "INSERT INTO $table VALUES (ascii('$name'), '$name')");
	}
	wait_for_group('g', @nodes);
	same_on_all(\@nodes, [$table], "$what: a new table");
	is(query($a, "SELECT count(*) FROM $table"), 3, "$what: its rows");
	return;
}

my %load = map { $_->name => start_ledger($_) } @nodes;
check_functions("all have $old");

foreach my $node (@nodes)
{
	my $name = $node->name;

	# As if the library was replaced.
	$node->stop;
	end_ledger($load{$name}, may_fail => 1);
	$node->start;
	query($node, 'ALTER EXTENSION weft UPDATE');
	$load{$name} = start_ledger($node);
	is( query(
			$node,
			"SELECT extversion FROM pg_extension WHERE extname = 'weft'"),
		$new,
		"$name has $new");
	check_functions("$name is updated");
	next if $node == $c;

	fails(
		$node,
		"SELECT weft.alter_node_group_set_ddl('g', 'all')",
		qr/ERROR:  node "[bc]" has version \Q$old\E of extension "weft", which is too old for this.*HINT:  .*ALTER EXTENSION weft UPDATE/s
	);
	query($joining, sprintf "SELECT weft.create_node('d', \$\$%s\$\$)",
		dsn($joining))
	  if $node == $a;
	fails(
		$joining,
		sprintf("SELECT weft.join_node_group(\$\$%s\$\$, 'g')", dsn($node)),
		qr/ERROR:  node "[bc]" has version \Q$old\E of extension "weft", which is too old for this/
	);

	# A node can leave a group of both, and stay after all.
	query($node,
		"UPDATE weft.node_entry SET state = 'parting' WHERE node_name = 'c'");
	query($_,
		"SELECT weft.member_part('c', identity, identity) FROM weft.node_entry WHERE node_name = 'c'"
	) foreach grep { $_ != $node } @nodes;
	query($node, q(SELECT weft.cancel_part_node('c')));
	is(states($b), 'a active, b active, c active', 'parting is canceled');
}

# --- all are updated ---

query($b, "SELECT weft.alter_node_group_set_ddl('g', 'all')");
is(query($_, 'SELECT weft.group_ddl()'),
	'all', $_->name . ' publishes schema changes')
  foreach @nodes;
fails(
	$a,
	"SELECT weft.alter_node_group_set_ddl('g', 'some')",
	qr/invalid value for publication parameter "ddl": "some"/);
query($a, 'CREATE TABLE made_on_a (id int PRIMARY KEY, v text)');
wait_for_group('g', @nodes);
query($b, 'ALTER TABLE made_on_a ADD COLUMN w int DEFAULT 7');
wait_for_group('g', @nodes);
query($c, q(INSERT INTO made_on_a VALUES (1, 'c')));
join_group($joining, $b, 'g');
push @nodes, $joining;
query($joining, q(INSERT INTO made_on_a VALUES (2, 'd')));
end_ledger($load{ $_->name }) foreach $a, $b, $c;
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['made_on_a'], 'schema changes are replicated');
is(query($a, 'SELECT count(w) FROM made_on_a'), 2, 'all of them');
check_ledgers(\@nodes, 'all have ' . $new);
is(other_errors($_), '',
	$_->name . ' has logged no errors but of lost connections')
  foreach $a, $b, $c;

# --- the rights of a role that managed the group before ---

query($a, 'SET ROLE manager; ' . $_)
  foreach q(SELECT weft.check_protocol(weft.member_info(), 2)),
  'SELECT weft.group_ddl()';
my $in_dump = <<'EOS';
SELECT count(*) FROM pg_proc p JOIN pg_init_privs i ON i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname LIKE 'pg\_replication\_origin%'
	AND p.proacl::text LIKE '%manager=%' AND p.proacl <> i.initprivs
EOS
is(query($a, $in_dump),
	4, q(its rights on the server's own functions are dumped));
is( query(
		$a,
		q(SELECT has_table_privilege('watcher', 'weft.node_entry', 'UPDATE') OR has_function_privilege('watcher', 'weft.accept_promotion(name, boolean)', 'EXECUTE'))
	),
	'f',
	'another role gets no more rights by an update');

# --- nodes that do not understand each other ---

query($a, <<'EOS');
CREATE OR REPLACE FUNCTION weft.member_info() RETURNS jsonb LANGUAGE sql STABLE AS $$
	SELECT jsonb_build_object('node', 'a', 'group', 'g', 'state', 'active', 'database', '1/1',
		'identity', (SELECT identity FROM weft.node_entry WHERE is_local), 'wal_level', 'logical', 'track_commit_timestamp', 'on',
		'version', '9.0', 'protocol', 9, 'oldest_protocol', 8, 'major', current_setting('server_version_num')::int / 10000) $$;
EOS
my $late = new_member('late');
query($late, sprintf "SELECT weft.create_node('late', \$\$%s\$\$)",
	dsn($late));
my $join = sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g')", dsn($a);
fails($late, $join,
	qr/ERROR:  node "late" has version \Q$new\E of extension "weft", which is too old for node "a".*DETAIL:  Node "a" has version 9\.0.*HINT:  .*ALTER EXTENSION weft UPDATE/s
);
query($a, <<'EOS');
CREATE OR REPLACE FUNCTION weft.member_info() RETURNS jsonb LANGUAGE sql STABLE AS $$
	SELECT jsonb_build_object('node', 'a', 'group', 'g', 'state', 'active', 'database', '1/1',
		'identity', (SELECT identity FROM weft.node_entry WHERE is_local), 'wal_level', 'logical', 'track_commit_timestamp', 'on',
		'version', '0.2.0', 'protocol', 2, 'oldest_protocol', 1, 'major', current_setting('server_version_num')::int / 10000 + 2) $$;
EOS
fails($late, $join,
	qr/ERROR:  node "a" has PostgreSQL \d+, and node "late" has PostgreSQL \d+.*adjacent/s
);

$_->stop foreach @nodes, $late;
done_testing();
