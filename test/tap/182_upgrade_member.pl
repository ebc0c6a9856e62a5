# pg_upgrade of a member of a group: nothing is applied before weft.finish_upgrade(), and then conflicts with what was
# written before are resolved as on the other members.  Also with names of origins that have other numbers afterwards.

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

sub fails
{
	my ($node, $sql, $message) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $node->name . ": $sql");
	return;
}

sub glob_count
{
	my @files = glob $_[0];
	return scalar @files;
}

# SQL for so many transactions that change nothing.
sub spend
{
	my ($count) = @_;

	return <<"EOS";
CREATE TEMPORARY TABLE spent (id int);
DO \$\$ BEGIN
	FOR i IN 1..$count LOOP
		BEGIN
			INSERT INTO spent VALUES (i);
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END \$\$;
DROP TABLE spent;
EOS
}

my ($a, $b, $c) = map { new_member($_, install_path => $previous) } qw(a b c);

# --- a group, of which a's origins will have other numbers ---

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE counter (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 0);
ALTER TABLE counter REPLICA IDENTITY FULL;
INSERT INTO counter VALUES (6), (7);
INSERT INTO t SELECT g, 'first' FROM generate_series(1, 1000) g;
EOS
# Their commit times are in three files.
query($a, spend(60000));
query($a, <<'EOS');
CREATE SUBSCRIPTION first CONNECTION 'host=/nowhere' PUBLICATION nothing WITH (connect = false, slot_name = NONE);
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
join_group($c, $a, 'g');
query($a, 'DROP SUBSCRIPTION first');
my $origins =
  q(SELECT string_agg(roident::text, ' ' ORDER BY subname) FROM pg_replication_origin JOIN pg_subscription s ON roname = 'pg_' || s.oid);
is(query($a, $origins), '2 3', 'numbers of origins');
# Counters are added, and then the row has a time of its own.
query_all([ $a, $b, $c ], q(SELECT weft.set_delta_columns('counter', '{n}')));

query($b, 'CREATE INDEX CONCURRENTLY t_v ON t (v)');
wait_for_group('g', $a, $b, $c);
poll($_,
	q(SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('t_v')))
  foreach $a, $c;

# --- changes of b that a does not have, and that are older than what a has ---

pause_subscription($a, 'weft_g_b_a');
query($b, q(UPDATE t SET v = 'older, of b' WHERE id IN (1, 2, 3, 4, 5)));
query($b, q(UPDATE t SET v = 'older, of b' WHERE id BETWEEN 101 AND 300));
query($b, 'UPDATE counter SET n = n + 1');
# c has not got them, either; all of its changes are newer.
query($a, q(UPDATE t SET v = 'newer, of a' WHERE id = 1));
query($a, 'DELETE FROM t WHERE id = 2');
wait_for_apply($a, $c, 'weft_g_a_c');
query($c, q(UPDATE t SET v = 'newer, of c' WHERE id = 3));
query($c, q(UPDATE counter SET v = 'newer, of c' WHERE id = 6));
query($c, 'DELETE FROM t WHERE id = 4');
# Transactions that share a commit, so that rows have times of their own.
query($c, join ';',
	map { "UPDATE t SET v = 'newer, of c' WHERE id = $_" } 101 .. 200);
query($a, q(UPDATE t SET v = 'newer, of a' WHERE id BETWEEN 201 AND 300));
wait_for_apply($c, $a, 'weft_g_c_a');
wait_for_apply($a, $c, 'weft_g_a_c');
my $times =
  q(SELECT string_agg(concat_ws(' ', id, (c).timestamp), ',' ORDER BY id)
	FROM (SELECT id, pg_xact_commit_timestamp_origin(xmin) AS c FROM t) x);
my $exact =
  q(SELECT string_agg(concat_ws(' ', id, weft.row_commit_timestamp(tableoid, ctid)), ',' ORDER BY id) FROM t);
my ($times_before, $exact_before) = map { query($a, $_) } $times, $exact;
like($times_before, qr/^(\d+ \d{4}-[^,]+(,|$))+$/, 'all rows have times');

# --- the upgrade ---

$a->stop;
query($c, q(UPDATE t SET v = 'of c, while a was down' WHERE id = 8));
my $old_directory = $a->data_dir;
my $new = upgrade_server($a);
is(query($new, $origins), '1 2', 'numbers of origins are others');
is(states($new), 'a active, b active, c active', 'the list of members');
# Commit times are not recorded at first, so that the oldest one that is known is of a later file.
$new->adjust_conf('postgresql.conf', 'track_commit_timestamp', 'off');
$new->restart;
query($new, spend(60000));
my $without_time = query($new, 'SELECT pg_current_xact_id()');
query($new, spend(5));
$new->adjust_conf('postgresql.conf', 'track_commit_timestamp', 'on');
$new->restart;
query($new, q(ALTER SUBSCRIPTION weft_g_b_a ENABLE));
$new->wait_for_log(
	qr/ERROR:  subscription "weft_g_${_}_a" cannot resolve conflicts before weft\.finish_upgrade\(\) has been called/
) foreach qw(b c);
is(query($new, q(SELECT v FROM t WHERE id = 8)),
	'first', 'nothing is applied');
like(query($new, 'SELECT problem FROM weft.health()'),
	qr/weft\.finish_upgrade/, 'the health check says so');
query($new, q(UPDATE t SET v = 'newest, of a' WHERE id = 5));

fails(
	$new,
	'SELECT weft.finish_upgrade($$/nowhere$$)',
	qr/ERROR:  directory "\/nowhere" is not the data directory of a server/);
fails(
	$new,
	sprintf('SELECT weft.finish_upgrade($$%s$$)', $b->data_dir),
	qr/ERROR:  directory ".*" is not that of the server from which this one was upgraded/
);
query($new,
	'CREATE ROLE someone; GRANT EXECUTE ON FUNCTION weft.finish_upgrade(text) TO someone'
);
fails(
	$new,
	sprintf('SET ROLE someone; SELECT weft.finish_upgrade($$%s$$)',
		$old_directory),
	qr/ERROR:  only a superuser may complete an upgrade/);
# Which node has changed its rows, nobody would know.
fails(
	$new,
	'DROP SUBSCRIPTION weft_g_b_a',
	qr/ERROR:  subscription "weft_g_b_a" cannot be dropped before weft\.finish_upgrade\(\) has been called/
);
query($new, sprintf 'SELECT weft.finish_upgrade($$%s$$)', $old_directory);
is( query(
		$new,
		"SELECT count(pg_xact_commit_timestamp((x || '')::xid)) FROM generate_series($without_time - 59000, $without_time) x"
	),
	0,
	'those that were not recorded are unknown, and can be asked for');
# As they were, but for the one row that was written since.
my $without = sub {
	join ',', grep { !/^[58] / } split /,/, $_[0];
};
is( $without->(query($new, $times)),
	$without->($times_before),
	'commit times are as before');
is( $without->(query($new, $exact)),
	$without->($exact_before),
	'exact ones, too');

# a crash after it, and once more
is(glob_count($new->data_dir . '/pg_commit_ts/*'), 5,
	'files of commit times');
$new->stop('immediate');
$new->start;
is( $without->(query($new, $times)),
	$without->($times_before),
	'after a crash, too');
my ($ret, $out, $err) =
  $new->psql('postgres', sprintf 'SELECT weft.finish_upgrade($$%s$$)',
	$old_directory);
like($err, qr/NOTICE:  there is nothing to complete/, 'a second call');

my @nodes = ($new, $b, $c);
wait_for_group('g', @nodes);
same_on_all(\@nodes, [ 't', 'counter' ], 'after the upgrade');
my %expected = (
	1 => 'newer, of a',
	3 => 'newer, of c',
	5 => 'newest, of a',
	8 => 'of c, while a was down',
	150 => 'newer, of c',
	250 => 'newer, of a');
is(query($new, "SELECT v FROM t WHERE id = $_"), $expected{$_}, "row $_")
  foreach sort keys %expected;
is( query($new, 'SELECT v, n FROM counter ORDER BY id'),
	"newer, of c|1\n|1",
	'counters are added');
is(query($new, 'SELECT count(*) FROM t WHERE id IN (2, 4)'),
	0, 'deleted rows stay deleted');

# The node of rows that were written under the old numbers.
is( query(
		$new,
		q(SELECT string_agg(DISTINCT local_node::text, ' ') FROM weft.conflict_history
	WHERE (key->>'id')::int BETWEEN 101 AND 200
		AND remote_node = (SELECT node_id FROM weft.node WHERE node_name = 'b'))),
	query($new, q(SELECT node_id FROM weft.node WHERE node_name = 'c')),
	'the node of rows of c');

# --- what belongs to the group goes on: schema changes, parting and joining, dropping the extension ---

query($new, 'ALTER TABLE t ADD COLUMN w int DEFAULT 3');
wait_for_group('g', @nodes);
query($b, 'CREATE TABLE u (id int PRIMARY KEY)');
wait_for_group('g', @nodes);
query($new, 'INSERT INTO u VALUES (1)');
wait_for_group('g', @nodes);
same_on_all(\@nodes, [ 't', 'u' ], 'schema changes after the upgrade');

# --- a schema change that the older version does not know waits for the upgrade, or is skipped ---

SKIP:
{
	skip 'both versions know the same statements', 6 if major() < 18;
	query($new,
		'CREATE TABLE modern (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2))'
	);
	query($new, q(UPDATE t SET v = 'after a modern statement' WHERE id = 9));
	poll($_->[0],
		"SELECT last_error ~ 'syntax error' FROM weft.stat_subscription WHERE subname = 'weft_g_a_$_->[1]'"
	) foreach [ $b, 'b' ], [ $c, 'c' ];
	is(query($_, 'SELECT v FROM t WHERE id = 9'),
		'first', $_->name . ' has stopped before it')
	  foreach $b, $c;
	$b->stop;
	my $old_b = $b->data_dir;
	$b = upgrade_server($b);
	query($b, "SELECT weft.finish_upgrade('$old_b')");
	wait_for_apply($new, $b, 'weft_g_a_b');
	is( query(
			$b,
			q(SELECT v FROM t, to_regclass('modern') m WHERE id = 9 AND m IS NOT NULL)
		),
		'after a modern statement',
		'the upgraded member goes on with it');
	query($c,
		q(SELECT weft.skip_ddl('weft_g_a_c', max(id)) FROM weft.ddl_history WHERE result = 'failed')
	);
	wait_for_apply($new, $c, 'weft_g_a_c');
	is( query($c, 'SELECT v FROM t WHERE id = 9'),
		'after a modern statement',
		'the other one skips it');
	@nodes = ($new, $b, $c);
}
query($b, q(SELECT weft.part_node('a')));
is(leftovers($new), '', 'it leaves nothing behind');
query($new, 'DROP EXTENSION weft');
is((grep { slurp_file($_->logfile) =~ /TRAP|PANIC/ } @nodes),
	0, 'no server has failed');
$_->stop foreach @nodes;
done_testing();
