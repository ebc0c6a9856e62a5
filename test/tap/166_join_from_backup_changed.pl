# A promoted copy of a member that was written to before it joins is refused, whatever its statistics say; what
# was rolled back does not count, and a transaction that the member has prepared must be rolled back.  The node that joins has slots as the group's other slots are, and nothing of
# the member's that would be in the way later.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) =
  map { new_member($_, conf => "max_prepared_transactions = 5\n") } qw(a b);
my $c = PostgreSQL::Test::Cluster->new('c');

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (1) TO (1000);
INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g;
EOS
create_group($a, 'g');
join_group($b, $a, 'g');
query($a, "SELECT weft.alter_node_group_config('g', failover => true)");

my $prepare = sprintf "SELECT weft.prepare_join_from_backup('c', \$\$%s\$\$)",
  dsn($c);
my $join =
  sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g', from_backup := true)",
  dsn($a);

query($a, $prepare);
$a->backup('plain');

# Start a new copy, and promote it.
sub new_copy
{
	my ($backup) = @_;
	if (-e $c->data_dir)
	{
		$c->stop('immediate');
		rmtree($c->data_dir);
	}
	$c->init_from_backup($a, $backup, has_streaming => 1);
	$c->start;
	$c->promote;
	return;
}

sub refused
{
	my ($message, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $c->psql('postgres', $join);
	like($err, $message, $what);
	is(query($c, 'SELECT count(*) FROM weft.join_entry'),
		0, "$what: it has not begun to join");
	return;
}

new_copy('plain');
my $session = open_session($c);
$session->query_safe('SELECT count(*) FROM t');
$session->query_safe(
	'BEGIN; SAVEPOINT s; DELETE FROM t WHERE id = 1; RELEASE s; COMMIT');
refused(qr/table public.t was changed on this server since it was promoted/,
	'a session that has not reported its rows yet');
$session->quit;

new_copy('plain');
query($c, 'SET track_counts = off; INSERT INTO part VALUES (1)');
refused(
	qr/table public.part_1 was changed on this server since it was promoted/,
	'a session whose rows are not counted');

# The file that the row was written to is gone.
new_copy('plain');
query($c, "INSERT INTO t VALUES (600, 'c')");
query($c, 'VACUUM FULL t');
refused(qr/table public.t was changed on this server since it was promoted/,
	'a table that was rewritten');

new_copy('plain');
query($c, 'BEGIN; TRUNCATE part; ROLLBACK');
is( query(
		$c,
		"SELECT weft.check_unchanged_since(weft.timeline_end(1), ARRAY['t'::regclass, 'part_1'::regclass]::oid[])"
	),
	't',
	'a table that would have been rewritten');

new_copy('plain');
query($c, "COPY t (id) FROM PROGRAM 'seq 300 310'");
$c->stop('immediate');
$c->start;
refused(qr/table public.t was changed on this server since it was promoted/,
	'a crash, which loses the counters');

# Statistics are better than nothing.
new_copy('plain');
query($c, "INSERT INTO t VALUES (500, 'c')");
query($c, 'SELECT pg_switch_wal(); CHECKPOINT') foreach 1 .. 2;
is( query(
		$c, "SELECT weft.check_unchanged_since(weft.timeline_end(1), '{}')"),
	'f',
	'the WAL since the promotion is gone');
refused(qr/table public.t was changed on this server since it was promoted/,
	'only the counters are left');

# --- a transaction that the member has prepared ---

query($a,
	"BEGIN; INSERT INTO t VALUES (200, 'prepared'); PREPARE TRANSACTION 'p'");
$a->backup('prepared');

new_copy('prepared');
query($c, "COMMIT PREPARED 'p'");
$c->stop('immediate');
$c->start;
refused(qr/a prepared transaction was committed on this server/,
	'a prepared transaction of the member');

# Nothing of this was committed.
new_copy('prepared');
query($c, "ROLLBACK PREPARED 'p'");
query($c,
	"BEGIN; INSERT INTO t VALUES (400, 'c'); SAVEPOINT s; DELETE FROM t WHERE id = 1; ROLLBACK TO s; ROLLBACK"
);
query($c, 'CREATE TEMP TABLE own (id int); INSERT INTO own VALUES (1)');
query($c, 'VACUUM (FREEZE, ANALYZE) t');

# Its address does not lead to the new node yet.  Whoever asks makes the copy note what server it is.
my ($ret, $out, $err) =
  $a->psql('postgres',
	sprintf "SELECT weft.alter_node_interface('c', \$\$%s\$\$)",
	dsn($c));
like(
	$err,
	qr/the connection string of node "c" points to another node/,
	'it is not the new node yet');
query($c, $join);
query($a, "COMMIT PREPARED 'p'");
wait_for_join($c);
query($c, "INSERT INTO t VALUES (500, 'c')");
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['t'], 'what was rolled back does not count');
is(query($a, 'SELECT v FROM t WHERE id = 200'),
	'prepared', 'the transaction that was prepared has arrived');

is( query(
		$_,
		"SELECT string_agg(slot_name || ' ' || failover, ', ' ORDER BY 1) FROM pg_replication_slots WHERE NOT failover"
	),
	'',
	'all slots of ' . $_->name . ' have the option "failover"'
) foreach ($a, $b, $c);
is( query(
		$c,
		'SELECT string_agg(subname, $$ $$) FROM weft.known_origin WHERE subname NOT IN (SELECT subname FROM pg_subscription)'
	),
	'',
	'no replication origin is known under the name of a subscription of the member'
);

$_->stop foreach ($a, $b, $c);
done_testing();
