# Every type of conflict with every resolver, on two nodes, one of which subscribes
# to the other.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my ($a, $b) = new_members(2);
my @both = ($a, $b);
my $schema =
  'CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE, w int UNIQUE)';

create_tables(\@both, $schema, 't');
query($a, <<EOS);
INSERT INTO weft.conflict_node VALUES ('', 1), ('from_n2', 2);
CREATE SUBSCRIPTION from_n2 CONNECTION '@{[ $b->connstr ]} dbname=postgres'
	PUBLICATION pub WITH (origin = none, copy_data = off, detect_conflicts = on)
EOS

my @types =
  qw(delete_missing delete_origin_differs insert_exists multiple_unique_conflicts
  update_exists update_missing update_origin_differs);

# Rows that both nodes have before the conflicts, and the statements of each node.
my $base = <<'EOS';
INSERT INTO t VALUES (2, 'base', NULL), (3, 'base', 31), (4, 'base', NULL), (5, 'base', NULL), (6, 'base', NULL)
EOS
my $here = <<'EOS';
INSERT INTO t VALUES (1, 'here');
UPDATE t SET v = 'here' WHERE id = 2;
INSERT INTO t VALUES (32, 'here', 32);
DELETE FROM t WHERE id = 4;
UPDATE t SET v = 'here' WHERE id = 5;
DELETE FROM t WHERE id = 6;
INSERT INTO t VALUES (71, 'here', 71, NULL), (72, 'here', NULL, 72)
EOS
# a transaction for each
my $there = <<'EOS';
INSERT INTO t VALUES (1, 'there');
UPDATE t SET v = 'there' WHERE id = 2;
UPDATE t SET v = 'there', u = 32 WHERE id = 3;
UPDATE t SET v = 'there' WHERE id = 4;
DELETE FROM t WHERE id = 5;
DELETE FROM t WHERE id = 6;
INSERT INTO t VALUES (7, 'there', 71, 72)
EOS

my $remote =
  '(1,there,,) (2,there,,) (3,there,32,) (4,there,,) (7,there,71,72)';
my $local =
  '(1,here,,) (2,here,,) (3,base,31,) (32,here,32,) (5,here,,) (71,here,71,) (72,here,,72)';

sub start_over
{
	set_resolvers($a, 'apply_remote');
	query($b, 'DELETE FROM t');
	wait_for_apply($b, $a, 'from_n2');
	query($a, 'DELETE FROM t; DELETE FROM weft.conflict_history');
	query($b, $base);
	wait_for_apply($b, $a, 'from_n2');
	query($a, 'DELETE FROM weft.conflict_history');
	cut_off([$a]);
	return;
}

sub contents
{
	return join ' ',
	  split /\n/, query($a, 'SELECT t::text FROM t ORDER BY t::text');
}

sub sorted
{
	return join ' ', sort split / /, $_[0];
}

# Conflicts of all types, and their results.
sub check_resolver
{
	my ($resolver, $newer, $expected, $resolution) = @_;
	my $what = "$resolver, $newer is newer";

	start_over();
	set_resolvers($a, $resolver);
	query($newer eq 'remote' ? $a : $b, $newer eq 'remote' ? $here  : $there);
	query($newer eq 'remote' ? $b : $a, $newer eq 'remote' ? $there : $here);
	join_again([$a]);
	wait_for_apply($b, $a, 'from_n2');

	is(sorted(contents()), sorted($expected), "$what: rows");
	is( query(
			$a,
			q{SELECT string_agg(DISTINCT conflict_type, ' ' ORDER BY conflict_type) FROM weft.conflict_history}
		),
		"@types",
		"$what: history has all types");
	is( query(
			$a,
			q{SELECT string_agg(DISTINCT resolver || ' ' || resolution, ', ') FROM weft.conflict_history}
		),
		"$resolver $resolution",
		"$what: the history shows the decision");
	return;
}

####
#### Who wins
####

check_resolver('last_update_wins', 'remote', $remote, 'apply_remote');
is( query(
		$a,
		q{SELECT bool_and(remote_commit_time > local_commit_time AND local_origin = 'local'
			AND remote_origin = 'from_n2' AND local_node = 1 AND remote_node = 2
			AND subname = 'from_n2' AND relation = 'public.t'
			AND recorded_at > remote_commit_time) FROM weft.conflict_history}
	),
	't',
	'history has times, origins, and nodes');
is( history($a, 'conflict_type, index_name, key, local_row, remote_row'),
	<<'EOS' =~ s/\n\z//r, 'history has the rows');
insert_exists|t_pkey|{"id": 1}|{"u": null, "v": "here", "w": null, "id": 1}|{"u": null, "v": "there", "w": null, "id": 1}
update_origin_differs||{"id": 2}|{"u": null, "v": "here", "w": null, "id": 2}|{"u": null, "v": "there", "w": null, "id": 2}
update_exists|t_u_key|{"id": 3}|{"u": 32, "v": "here", "w": null, "id": 32}|{"u": 32, "v": "there", "w": null, "id": 3}
update_missing||{"id": 4}||{"u": null, "v": "there", "w": null, "id": 4}
delete_origin_differs||{"id": 5}|{"u": null, "v": "here", "w": null, "id": 5}|
delete_missing||{"id": 6}||
multiple_unique_conflicts|t_u_key|{"id": 7}|{"u": 71, "v": "here", "w": null, "id": 71}|{"u": 71, "v": "there", "w": 72, "id": 7}
multiple_unique_conflicts|t_w_key|{"id": 7}|{"u": null, "v": "here", "w": 72, "id": 72}|{"u": 71, "v": "there", "w": 72, "id": 7}
EOS
is( conflict_counts($a),
	'delete_missing 1, delete_origin_differs 1, insert_exists 1, multiple_unique_conflicts 1, update_exists 1, update_missing 1, update_origin_differs 1',
	'they are counted');
SKIP:
{
	skip 'the server counts conflicts from 18 on', 1 if major() < 18;
	poll(
		$a,
		q{SELECT confl_insert_exists > 0 AND confl_update_origin_differs > 0
			AND confl_update_exists > 0 AND confl_update_missing > 0
			AND confl_delete_origin_differs > 0 AND confl_delete_missing > 0
			AND confl_multiple_unique_conflicts > 0
		FROM pg_stat_subscription_stats WHERE subname = 'from_n2'});
	pass('the server counts them, too');
}

like(
	(run_command([ 'pg_dump', '-s', '-d', $a->connstr('postgres') ]))[0],
	qr/SECURITY LABEL FOR weft ON SUBSCRIPTION from_n2 IS 'detect_conflicts=on'/,
	'pg_dump keeps detect_conflicts');

# 3 has lost its value, and therefore its whole row, to a newer row
check_resolver('last_update_wins', 'local', $local =~ s/\(3,base,31,\) //r,
	'keep_local');
check_resolver('apply_remote', 'remote', $remote, 'apply_remote');
check_resolver('apply_remote', 'local', $remote, 'apply_remote');
check_resolver('keep_local', 'remote', $local, 'keep_local');
check_resolver('skip', 'remote', $local, 'keep_local');

####
#### Errors, one behind the other
####

start_over();
query($a, $here);
query($b, $there);
set_resolvers($a, 'error');
my $offset = -s $a->logfile;
join_again([$a]);
foreach my $type (
	qw(insert_exists update_origin_differs update_exists update_missing
	delete_origin_differs delete_missing multiple_unique_conflicts))
{
	$offset =
	  $a->wait_for_log(qr/ERROR:  conflict $type on relation "public.t"/,
		$offset);
	query($a,
		"SELECT weft.alter_node_set_conflict_resolver('', '$type', 'skip')");
}
wait_for_apply($b, $a, 'from_n2');
is(sorted(contents()), sorted($local), 'error: each stops the subscription');

####
#### ALTER SUBSCRIPTION ... SKIP
####

start_over();
set_resolvers($a, 'error');
query($a, "UPDATE t SET v = 'here' WHERE id IN (2, 3)");
query($b, "UPDATE t SET v = 'there' WHERE id IN (2, 4)");
query($b, "UPDATE t SET v = 'there' WHERE id IN (3, 5)");
$offset = -s $a->logfile;
join_again([$a]);
$a->wait_for_log(qr/ERROR:  conflict update_origin_differs/, $offset);
my ($lsn) =
  slurp_file($a->logfile, $offset) =~
  m{which finished at ([0-9A-F]+/[0-9A-F]+)};
query($a, "ALTER SUBSCRIPTION from_n2 SKIP (lsn = '$lsn')");
$a->wait_for_log(qr/ERROR:  conflict update_origin_differs.*"id": 3/s,
	-s $a->logfile);
is( query($a, q{SELECT string_agg(id || v, ' ' ORDER BY id) FROM t}),
	'2here 3here 4base 5base 6base',
	'the transaction is skipped, and the next one is not applied blindly');
set_resolvers($a, 'last_update_wins');
wait_for_apply($b, $a, 'from_n2');
is( query($a, q{SELECT string_agg(id || v, ' ' ORDER BY id) FROM t}),
	'2here 3there 4base 5there 6base',
	'which continues then');
query($b, 'TRUNCATE t');
wait_for_apply($b, $a, 'from_n2');

####
#### A resolver for one subscription, while it runs
####

start_over();
join_again([$a]);
set_resolvers($a, 'skip');
query($a, "UPDATE t SET v = 'here'");
query($b, "UPDATE t SET v = 'there'");
wait_for_apply($b, $a, 'from_n2');
is(query($a, 'SELECT DISTINCT v FROM t'), 'here', 'skipped');
query($a,
	"SELECT weft.alter_node_set_conflict_resolver('from_n2', 'update_origin_differs', 'apply_remote')"
);
query($b, "UPDATE t SET v = 'there again'");
wait_for_apply($b, $a, 'from_n2');
is(query($a, 'SELECT DISTINCT v FROM t'),
	'there again', 'a resolver of the subscription takes precedence');
set_resolvers($a, 'keep_local');
query($a, "UPDATE t SET v = 'here again'");
query($b, "UPDATE t SET v = 'there'");
wait_for_apply($b, $a, 'from_n2');
is(query($a, 'SELECT DISTINCT v FROM t'), 'there', 'whichever was set last');

done_testing();
