# An ordinary role creates and manages a group, with what weft.grant_node_admin grants
# and a password, which nobody gets to see.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $password = 'x:y\\z "geheim"';
my $quoted = $password =~ s/'/''/gr;
my @nodes =
  map { new_member($_, conf => "log_statement = 'none'\n") } qw(a b c);

sub role_dsn
{
	my ($node) = @_;
	return
		$node->connstr
	  . " dbname=postgres user=manager password='"
	  . $password =~ s/(['\\])/\\$1/gr . "'";
}

# As that role.
sub as_manager
{
	my ($node, $sql) = @_;
	local $ENV{PGPASSWORD} = $password;
	my ($ret, $out, $err) =
	  $node->psql('postgres', $sql, extra_params => [ '-U', 'manager' ]);
	die "$sql: $err" if $ret;
	return $out;
}

foreach my $node (@nodes)
{
	query($node,
		"SET password_encryption = 'scram-sha-256'; CREATE ROLE manager LOGIN REPLICATION PASSWORD '$quoted'"
	);
	query($node,
		"SELECT weft.grant_node_admin('manager'); CREATE ROLE stranger LOGIN"
	);
	unlink $node->data_dir . '/pg_hba.conf';
	$node->append_conf('pg_hba.conf',
		"local all manager scram-sha-256\nlocal replication manager scram-sha-256\nlocal all all trust\n"
	);
	$node->reload;
}
my ($a, $b, $c) = @nodes;

# What the role may call does not execute what it passes.
{
	local $ENV{PGPASSWORD} = $password;
	my ($ret, $out, $err) =
	  $a->psql('postgres', <<'EOS', extra_params => [ '-U', 'manager' ]);
BEGIN;
INSERT INTO weft.node_group_entry VALUES ('g', NULL, 2);
SELECT weft.member_publish(NULL, 'none); ALTER ROLE manager SUPERUSER; --');
COMMIT;
EOS
	like($err, qr/ERROR/, 'text that is no setting is refused');
	is( query($a, "SELECT rolsuper FROM pg_roles WHERE rolname = 'manager'"),
		'f',
		'and executes nothing');
}

as_manager($a,
	'CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t SELECT i, i FROM generate_series(1, 100) i'
);
foreach my $node (@nodes)
{
	my ($name, $dsn) = ($node->name, role_dsn($node));
	as_manager($node, "SELECT weft.create_node('$name', \$dsn\$$dsn\$dsn\$)");
}
as_manager($a, "SELECT weft.create_node_group('g')");
foreach my $node ($b, $c)
{
	as_manager($node,
		'SELECT weft.join_node_group($dsn$' . role_dsn($a) . '$dsn$)');
	as_manager($node, $wait_for_join);
}
as_manager($_,
	"INSERT INTO shop.t VALUES (ascii('@{[ $_->name ]}') + 1000, 'new')")
  foreach @nodes;
wait_for_group('g', @nodes);
same_on_all(\@nodes, ['shop.t'], 'a group of an ordinary role');
is(query($a, 'SELECT count(*) FROM shop.t'), 103, 'with all rows');
like(as_manager($b, "CALL weft.compare_node('a')"),
	qr/^\d+$/, 'it compares nodes');
is( query(
		$b,
		"SELECT table_name, status, complete, publisher_rows, differences FROM weft.comparison_table"
	),
	'shop.t|done|t|103|0',
	'and all rows are compared');
is( query(
		$c,
		"SELECT string_agg(DISTINCT r.rolname, ',') FROM pg_subscription s JOIN pg_roles r ON r.oid = s.subowner WHERE NOT rolsuper"
	),
	'manager',
	'subscriptions are its own');
as_manager($b, "SELECT weft.alter_node_group_config('g', 1)");
poll($c,
	"SELECT bool_and(num_writers = 1) FROM weft.node_replication WHERE to_node = 'c'"
);

# What an unprivileged role sees, and may do.
foreach my $node (@nodes)
{
	foreach my $view (
		qw(node node_group node_replication stat_subscription stat_writer))
	{
		my $rows =
		  query($node, "SET ROLE stranger; SELECT v::text FROM weft.$view v");
		unlike($rows, qr/geheim/, "no password in weft.$view");
	}
}
foreach my $sql (
	'SELECT * FROM weft.node_entry',
	'SELECT * FROM weft.join_entry',
	"SELECT weft.part_node('b')",
	"SELECT weft.member_list()",
	"SELECT weft.node_query('', 'a', 'SELECT 1')",
	"SELECT weft.await_both_members('b', '1 s')",
	"SELECT weft.member_await_members('1 s')",
	'SELECT weft.background_transactions()',
	'SELECT weft.member_unpublish()',
	"SELECT weft.grant_node_admin('stranger')")
{
	my ($ret, $out, $err) = $a->psql('postgres', "SET ROLE stranger; $sql");
	like($err, qr/permission denied/, "not for everybody: $sql");
}

# A role that supplies no password cannot use the server's own.
my ($ret, $out, $err) = $a->psql('postgres',
		"SET ROLE manager; SELECT weft.node_query('"
	  . dsn($a)
	  . "', 'a', 'SELECT 1')");
like($err, qr/password is required/, 'a password is required');

as_manager($a, "SELECT weft.part_node('c')");
is(leftovers($c), '', 'nothing is left on the node that parted');
as_manager($b, "SELECT weft.part_node('b')");
is(leftovers($b), '', 'nor on the node that left at its own request');

unlike(slurp_file($_->logfile) =~ s/^.*(STATEMENT:|CREATE ROLE).*$//mgr,
	qr/geheim/, 'no password in the log of ' . $_->name)
  foreach @nodes;
is(join("\n", map { glob($_->data_dir . '/base/pgsql_tmp/*') } @nodes),
	'', 'nor in a file');
$_->stop foreach @nodes;
done_testing();
