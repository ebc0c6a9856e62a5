# An ordinary role prepares and makes a join from a backup, from the only member of a group, with what
# weft.grant_node_admin grants and a password, which nobody gets to see.  Others may not do anything of it.

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
  map { new_member($_, conf => "log_statement = 'none'\n") } qw(a b);
my ($a, $b) = @nodes;

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
		"local all manager scram-sha-256\nlocal replication manager scram-sha-256\nlocal all all trust\nlocal replication all trust\n"
	);
	$node->reload;
}

as_manager($a,
	'CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t SELECT i, i FROM generate_series(1, 100) i'
);
as_manager($a,
	"SELECT weft.create_node('a', \$dsn\$" . role_dsn($a) . '$dsn$)');
as_manager($a, "SELECT weft.create_node_group('g')");

# A copy, promoted.
sub copy_of
{
	my ($source, $name) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	as_manager($source,
			"SELECT weft.prepare_join_from_backup('$name', \$dsn\$"
		  . role_dsn($copy)
		  . '$dsn$)');
	$source->backup("of_$name");
	$copy->init_from_backup($source, "of_$name", has_streaming => 1);
	$copy->start;
	$copy->promote;
	return $copy;
}

my $c = copy_of($a, 'c');

foreach my $sql (
	"SELECT weft.prepare_join_from_backup('d', '')",
	"SELECT weft.join_node_group('', from_backup := true)",
	"SELECT weft.take_over_subscription('weft_g_a_c', 'x')",
	"SELECT weft.rename_applied('weft_g_a_c', 'x')",
	"SELECT weft.check_unchanged_since('0/0', '{}')",
	'SELECT weft.adopt_copied_rows(NULL, 1)',
	"SELECT weft.member_has_met(NULL)",
	'SELECT * FROM weft.prepared_copy')
{
	my ($ret, $out, $err) = $c->psql('postgres', "SET ROLE stranger; $sql");
	like($err, qr/permission denied/, "not for everybody: $sql");
}

as_manager($c,
		'SELECT weft.join_node_group($dsn$'
	  . role_dsn($a)
	  . '$dsn$, from_backup := true)');
as_manager($c, $wait_for_join);
query($c, "INSERT INTO shop.t VALUES (1000, 'c')");
query($a, "UPDATE shop.t SET v = 'a' WHERE id = 1");

# The second one has a subscription that it takes over.
my $d = copy_of($a, 'd');
as_manager($d,
		'SELECT weft.join_node_group($dsn$'
	  . role_dsn($a)
	  . '$dsn$, from_backup := true)');
as_manager($d, $wait_for_join);
query($d, "INSERT INTO shop.t VALUES (1001, 'd')");
wait_for_group('g', $a, $c, $d);
same_on_all([ $a, $c, $d ], ['shop.t'], 'all have the same rows');
is( query(
		$_,
		"SELECT string_agg(DISTINCT r.rolname, ',') FROM pg_subscription s JOIN pg_roles r ON r.oid = s.subowner"
	),
	'manager',
	'the subscriptions of ' . $_->name . ' are those of the role'
) foreach ($a, $c, $d);

foreach my $node ($a, $c, $d)
{
	unlike(slurp_file($node->logfile),
		qr/geheim/, 'no password in the log of ' . $node->name);
	foreach my $view (
		qw(node node_group node_replication stat_subscription stat_writer))
	{
		unlike(
			query(
				$node, "SET ROLE stranger; SELECT v::text FROM weft.$view v"),
			qr/geheim/,
			'no password in weft.' . $view);
	}
}

$_->stop foreach (@nodes, $c, $d);
done_testing();
