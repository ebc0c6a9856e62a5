# A group is upgraded to the next major version, member by member, under load on all of them: no client has an error
# but those of the member that is down; no acknowledged row is lost, and all members end with the same rows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
my $previous = previous_server();
plan skip_all => 'needs the previous major version, which Weft supports, too'
  unless $previous;

my @nodes = map { new_member($_, install_path => $previous) } qw(a b c);

query($nodes[0], <<'EOS');
CREATE TABLE ledger (node text, id int, PRIMARY KEY (node, id));
CREATE TABLE account (id int PRIMARY KEY, v int, node text);
CREATE SEQUENCE entry;
INSERT INTO account SELECT g, 0 FROM generate_series(1, 100) g;
EOS
create_group($nodes[0], 'g');
join_group($_, $nodes[0], 'g') foreach @nodes[ 1, 2 ];
my %load = map { $_->name => start_ledger($_) } @nodes;

foreach my $i (0 .. $#nodes)
{
	my $old = $nodes[$i];
	my $name = $old->name;

	$old->stop;
	end_ledger($load{$name}, may_fail => 1);
	$nodes[$i] = upgrade_server($old, $i == 1 ? '--link' : ());
	# Clients may come before the rest is done.
	$load{$name} = start_ledger($nodes[$i]);
	query($nodes[$i], sprintf 'SELECT weft.finish_upgrade($$%s$$)',
		$old->data_dir);
	wait_for_group('g', @nodes);
	query($nodes[$i], "CREATE TABLE made_on_$name (id int PRIMARY KEY)");
	wait_for_group('g', @nodes);
	is(query($_, "SELECT to_regclass('made_on_$name')"),
		"made_on_$name", "a schema change of $name reaches " . $_->name)
	  foreach @nodes;
}
end_ledger($load{ $_->name }) foreach @nodes;
wait_for_group('g', @nodes);
check_ledgers(\@nodes, 'after the upgrade');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } @nodes),
	0, 'no server has failed');
$_->stop foreach @nodes;
done_testing();
