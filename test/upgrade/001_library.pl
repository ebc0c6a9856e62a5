# The library of a released version is replaced by the current one, under load: of a publisher first, of a subscriber
# first, and of the members of a group, one after the other.  Between that and ALTER EXTENSION UPDATE, everything
# goes on.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/../tap/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $released = $ENV{WEFT_OLD_BINDIR} =~ s{/bin$}{}r;
my $old = $ENV{WEFT_OLD_VERSION};
my ($current) = `pg_config --bindir` =~ m{(.*)/bin};
my $mismatch =
  qr/extension "weft" has version \Q$old\E in this database, and the server has loaded version/;

# Replace the library of a running server.
sub replace_library
{
	my ($node) = @_;

	$node->stop;
	$node->{_install_path} = $current;
	$node->start;
	return;
}

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $node->name . ": $sql");
	return;
}

# --- a package has replaced the files, and the server has not been restarted ---

my ($directory) =
  map { chomp; "$_/extension" } `$ENV{WEFT_OLD_BINDIR}/pg_config --sharedir`;
my ($new_directory) = map { chomp; "$_/extension" } `pg_config --sharedir`;
my ($library) =
  slurp_file("$new_directory/weft.control") =~ /^default_version = '(.*)'/m;
my $node = new_member('node', install_path => $released);
my $too_old =
  qr/ERROR:  the server has loaded version \Q$old\E of Weft, but this is the extension of version \Q$library\E.*HINT:  Restart the server first/s;

copy($_, $directory) || die "$_: $!"
  foreach map { "$new_directory/weft--$_.sql" } $library, "$old--$library";
fails($node, "ALTER EXTENSION weft UPDATE TO '$library'", $too_old);
fails($node,
	"BEGIN; DROP EXTENSION weft; CREATE EXTENSION weft VERSION '$library'",
	$too_old);
unlink map { "$directory/weft--$_.sql" } $library, "$old--$library";
$node->stop;

# --- a publisher and a subscriber ---

foreach my $first (qw(publisher subscriber))
{
	my $pub = new_member("pub_$first", install_path => $released);
	my $sub = new_member("sub_$first", install_path => $released);
	my %node = (publisher => $pub, subscriber => $sub);

	is( query(
			$pub,
			q(SELECT extversion FROM pg_extension WHERE extname = 'weft')),
		$old,
		'the released version');
	query($_,
		'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE journal (id bigserial PRIMARY KEY, v int)'
	) foreach $pub, $sub;
	query($pub,
		'INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g; CREATE PUBLICATION p FOR TABLE t, journal'
	);
	subscribe($pub, $sub, 's', 'p');
	wait_for_apply($pub, $sub, 's');

	my $start = sub {
		my $before = query($pub, 'SELECT count(*) FROM journal');
		my $load = start_pgbench(
			$pub,
			{ <<'EOS' => 1 }, '-T' => 600, '-c' => 4, '-R' => 400);
\set id random(1, 1000)
BEGIN;
UPDATE t SET v = v + 1 WHERE id = :id;
INSERT INTO journal (v) VALUES (:id);
END;
EOS

		poll($pub, "SELECT count(*) > $before + 200 FROM journal");
		return $load;
	};
	my $load = $start->();
	foreach my $side ($first, grep { $_ ne $first } sort keys %node)
	{
		my $log = -s $node{$side}->logfile;

		if ($side eq 'publisher')
		{
			replace_library($pub);
			finish($load, may_fail => 1);
			$load = $start->();
		}
		else
		{
			replace_library($sub);
			$sub->wait_for_log($mismatch, $log);
		}
		wait_for_apply($pub, $sub, 's');
		is(figure($sub, 's', 'num_writers'),
			2, "$first first, new library of the $side: writers apply");
		fails(
			$node{$side},
			'SELECT weft.launch_join()',
			qr/ERROR: .*extension "weft" has version \Q$old\E.*HINT:  Execute ALTER EXTENSION weft UPDATE/s
		);
		query($node{$side}, 'ALTER EXTENSION weft UPDATE');
		wait_for_apply($pub, $sub, 's');
	}
	end_load($load);
	wait_for_apply($pub, $sub, 's');
	same_tables($pub, $sub, [ 't', 'journal' ], "$first first");
	is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } $pub, $sub),
		0, "$first first: no server has failed");
	$_->stop foreach $pub, $sub;
}

# --- a group ---

my @nodes = map { new_member($_, install_path => $released) } qw(a b c);
my ($a, $b, $c) = @nodes;

query($a, <<'EOS');
CREATE TABLE ledger (node text, id int, PRIMARY KEY (node, id));
CREATE TABLE account (id int PRIMARY KEY, v int, node text);
CREATE SEQUENCE entry;
INSERT INTO account SELECT g, 0 FROM generate_series(1, 100) g;
EOS
create_group($a, 'g');
join_group($_, $a, 'g') foreach $b, $c;
my %load = map { $_->name => start_ledger($_) } @nodes;

foreach my $node (@nodes)
{
	my $name = $node->name;
	my $log = -s $node->logfile;

	# The update needs the new library.
	replace_library($node);
	end_ledger($load{$name}, may_fail => 1);
	$load{$name} = start_ledger($node);
	$node->wait_for_log($mismatch, $log);
	wait_for_group('g', @nodes);
	pass("new library of $name: all members go on");
	query($node, 'ALTER EXTENSION weft UPDATE');
	wait_for_group('g', @nodes);
	query($node, "SELECT weft.refresh_node_group('g')");
	query($node, "SELECT weft.alter_node_group_config('g', 2)");
	next if $node == $c;
	fails(
		$node,
		"SELECT weft.alter_node_group_set_ddl('g', 'all')",
		qr/ERROR:  node "[bc]" has version \Q$old\E of extension "weft", which is too old for this/
	);
	query($c, "SELECT weft.refresh_node_group('g')");
}
query($a, "SELECT weft.alter_node_group_set_ddl('g', 'all')");
query($b, 'ALTER TABLE account ADD COLUMN w int DEFAULT 5');
wait_for_group('g', @nodes);
end_ledger($load{ $_->name }) foreach @nodes;
wait_for_group('g', @nodes);
check_ledgers(\@nodes, 'group');
is(query($c, 'SELECT count(*) FROM account WHERE w = 5'),
	100, 'a schema change is replicated');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } @nodes),
	0, 'no server has failed');
$_->stop foreach @nodes;
done_testing();
