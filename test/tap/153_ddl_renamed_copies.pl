# The name under which rows of partitions are sent changes while they are copied: by ALTER PUBLICATION,
# DETACH and ATTACH.  No row is lost, and none is applied twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber',
	conf => "max_sync_workers_per_subscription = 0\n");

my $db;

sub on
{
	my ($node, $sql) = @_;
	return $node->safe_psql($db, $sql);
}

sub on_both
{
	my ($sql) = @_;
	on($_, "SET weft.ddl_replication = off; $sql") foreach $pub, $sub;
	return;
}

sub session
{
	my ($node, @sql) = @_;
	my $session = $node->background_psql($db);

	$session->query_safe($_) foreach @sql;
	return $session;
}

# How many tables are copied at a time.
sub workers
{
	my ($count) = @_;
	set_conf($sub, max_sync_workers_per_subscription => $count);
	return;
}

# A database with two partitioned tables, the second one without a key, and a publication.
sub begin
{
	my ($name, $via_root) = @_;

	workers(0);
	$db = $name;
	query($_, "CREATE DATABASE $db") foreach $pub, $sub;
	on($_, 'CREATE EXTENSION weft')  foreach $pub, $sub;
	on_both(
		'CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE q (id int) PARTITION BY RANGE (id)'
	);
	add_partitions(1);
	on($pub,
		"CREATE PUBLICATION $db FOR ALL TABLES WITH (ddl = table, publish_via_partition_root = $via_root)"
	);
	return;
}

sub add_partitions
{
	on_both(
		join '; ',
		map {
			my ($n, $from, $to) = ($_, 10 * $_, 10 * $_ + 10);
			map {
				"CREATE TABLE $_$n PARTITION OF $_ FOR VALUES FROM ($from) TO ($to)"
			} 'p', 'q'
		} @_);
	return;
}

sub start
{
	my ($others) = @_;
	my $connstr = $pub->connstr($db);

	$others //= '';
	on($sub,
		"CREATE SUBSCRIPTION $db CONNECTION \$\$$connstr\$\$ PUBLICATION $db$others WITH (num_writers = 3)"
	);
	return;
}

# A statement for rows of partitions: one in each, with this last digit.
sub rows_of
{
	my ($digit, @partitions) = @_;
	my $rows = join ', ', map { '(' . (10 * $_ + $digit) . ')' } @partitions;
	return "INSERT INTO p VALUES $rows; INSERT INTO q VALUES $rows";
}

sub via_root
{
	my ($value) = @_;
	return "ALTER PUBLICATION $db SET (publish_via_partition_root = $value)";
}

sub states
{
	return
	  q{SELECT string_agg(format('%s %s', srrelid::regclass, srsubstate), ', ' ORDER BY srrelid::regclass::text COLLATE "C") FROM pg_subscription_rel WHERE srrelid::regclass::text !~ '^weft'};
}

sub states_are
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$sub->poll_query_until($db, states(), $expected) or die 'not so';
	return is(on($sub, states()), $expected, $what);
}

sub applied
{
	on($sub, "SELECT weft.wait_for_subscription('$db', '60s')");
	return;
}

# Everything is applied and the same; nothing of the copies is left.
sub finish_with
{
	my ($what, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	@tables = ('p', 'q') unless @tables;

	workers(2);
	applied();
	foreach my $table (@tables)
	{
		my $sql = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM $table";
		is(on($sub, $sql), on($pub, $sql), "$what: rows of $table");
	}
	$pub->poll_query_until($db,
		q{SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name ~ '_sync_')}
	) or die 'a slot is left';
	is(query($sub, 'SELECT count(*) FROM pg_replication_origin'),
		1, "$what: no origin of a copy is left");
	on($sub, "DROP SUBSCRIPTION $db");
	return;
}

sub leader_waits
{
	waits_for($sub, 'WeftLeaderDrain');
	return;
}

# Lock tables on the subscriber, so that their copies wait before they have a snapshot; start two of them.
sub hold_before_snapshot
{
	my (@tables) = @_;
	my $session =
	  session($sub, 'BEGIN', map { "LOCK TABLE $_ IN SHARE MODE" } @tables);

	workers(2);
	$sub->poll_query_until($db,
		q{SELECT count(*) = 2 FROM pg_locks l JOIN pg_stat_activity USING (pid) WHERE NOT granted AND backend_type = 'logical replication tablesync worker'}
	) or die 'no copies wait';
	return $session;
}

sub end_session
{
	my ($session, $end) = @_;

	$session->query_safe($end);
	$session->quit;
	return;
}

# --- partitions are copied, and sent as their root ---

begin('to_root', 'false');
on($pub, rows_of(1, 1));
start();
workers(2);
applied();
workers(0);
add_partitions(2, 3);
on($pub, rows_of(1, 2, 3));
on($sub, "ALTER SUBSCRIPTION $db REFRESH PUBLICATION");
my $session = hold_before_snapshot('p2', 'p3', 'q2', 'q3');
my $log_end = -s $sub->logfile;
on($pub, rows_of(2, 1, 2, 3));
on($pub,
		'BEGIN; '
	  . rows_of(3, 1, 2, 3) . '; '
	  . via_root('true') . '; '
	  . rows_of(4, 1, 2, 3)
	  . '; COMMIT');
on($pub, rows_of(5, 1, 2, 3));
leader_waits();
end_session($session, 'COMMIT');
finish_with('newer copies of partitions');
like(
	slurp_file($sub->logfile, $log_end),
	qr/table "$_" of subscription "to_root" is copied as a whole/,
	"... $_ is copied again") foreach 'p', 'q';

# The snapshot is older than the statement: the copy catches up to it.
begin('older', 'false');
on($sub, <<'EOS');
CREATE FUNCTION wait_for_lock(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_lock_shared(1);
	PERFORM pg_catalog.pg_advisory_unlock_shared(1);
	RETURN id;
END $$;
ALTER TABLE p1 ADD CHECK (wait_for_lock(id) > 0);
ALTER TABLE q1 ADD CHECK (wait_for_lock(id) > 0);
EOS
$session = session($sub, 'SELECT pg_advisory_lock(1)');
on($pub, rows_of(1, 1));
workers(2);
start();
$sub->poll_query_until($db,
	q{SELECT count(DISTINCT relid) = 2 FROM pg_stat_activity JOIN pg_stat_subscription USING (pid) WHERE wait_event = 'advisory'}
) or die 'no copies wait';
on($pub, rows_of(2, 1));
on($pub,
		'BEGIN; '
	  . rows_of(3, 1) . '; '
	  . via_root('true') . '; '
	  . rows_of(4, 1)
	  . '; COMMIT');
on($pub, rows_of(5, 1));
leader_waits();
end_session($session, 'SELECT pg_advisory_unlock(1)');
finish_with('older copies of partitions');

# --- the root is copied, and partitions are sent under their own names ---

begin('from_root', 'true');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
$session = hold_before_snapshot('p', 'q');
on($pub, rows_of(2, 1, 2));
on($pub,
		'BEGIN; '
	  . rows_of(3, 1, 2) . '; '
	  . via_root('false') . '; '
	  . rows_of(4, 1, 2)
	  . '; COMMIT');
on($pub, rows_of(5, 1, 2));
leader_waits();
end_session($session, 'COMMIT');
finish_with('a newer copy of the root');

# --- no copy has begun ---

begin('not_begun', 'false');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
states_are('p1 i, p2 i, q1 i, q2 i', 'no copy has begun');
on($pub, rows_of(2, 1, 2));
on($pub, via_root('true'));
on($pub, rows_of(3, 1, 2));
my $as_root = 'p i, p1 r, p2 r, q i, q1 r, q2 r';
my $as_parts = 'p r, p1 i, p2 i, q r, q1 i, q2 i';
states_are($as_root, 'the root is to be copied instead');
on($pub, via_root('false'));
on($pub, rows_of(4, 1, 2));
states_are($as_parts, '... the partitions again');
on($pub, via_root('true'));
on($pub, rows_of(5, 1, 2));
states_are($as_root, '... and the root again');
finish_with('names come back before the copy');

# They come back behind a copy that is newer than all of it.
begin('and_back', 'false');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
$session = hold_before_snapshot('p1', 'p2', 'q1', 'q2');
my $digit = 2;
foreach my $value ('true', 'false', 'true', 'false')
{
	on($pub, via_root($value));
	on($pub, rows_of($digit++, 1, 2));
}
leader_waits();
end_session($session, 'COMMIT');
finish_with('names come back behind a copy');

# --- a copy that fails leaves nothing ---

begin('failed', 'false');
on($sub, "ALTER TABLE $_ ADD CONSTRAINT never CHECK (id < 0)")
  foreach 'p1', 'q1';
on($pub, rows_of(1, 1));
$log_end = -s $sub->logfile;
workers(2);
start();
$sub->wait_for_log(
	qr/new row for relation "$_" violates check constraint "never"/, $log_end)
  foreach 'p1', 'q1';
on($pub, via_root('true'));
on($pub, rows_of(2, 1));
$sub->poll_query_until($db,
	q{SELECT count(*) = 2 FROM pg_subscription_rel WHERE srrelid IN ('p'::regclass, 'q'::regclass)}
) or die 'the root is not known';
is( on( $sub,
		q{SELECT count(*) FROM pg_subscription_rel WHERE srrelid IN ('p1'::regclass, 'q1'::regclass) AND srsubstate = 'r'}
	),
	2,
	'a copy that has failed is given up');
on($sub, "ALTER TABLE $_ DROP CONSTRAINT never") foreach 'p1', 'q1';
finish_with('a copy that has failed');

# --- DETACH ---

begin('detached', 'true');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
$session = hold_before_snapshot('p', 'q');
on($pub,
	'ALTER TABLE p DETACH PARTITION p2; ALTER TABLE q DETACH PARTITION q2');
on($pub, 'INSERT INTO p2 VALUES (22); INSERT INTO q2 VALUES (22)');
leader_waits();
end_session($session, 'COMMIT');
finish_with('DETACH behind a copy', qw(p q p2 q2));

begin('detached_before', 'true');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
on($pub,
	'ALTER TABLE p DETACH PARTITION p2; ALTER TABLE q DETACH PARTITION q2');
on($pub, 'INSERT INTO p2 VALUES (22); INSERT INTO q2 VALUES (22)');
states_are('p i, p2 i, q i, q2 i', 'DETACH before a copy');
finish_with('DETACH before a copy', qw(p q p2 q2));

# --- ATTACH ---

my $attach =
  'ALTER TABLE p ATTACH PARTITION p9 FOR VALUES FROM (90) TO (100); ALTER TABLE q ATTACH PARTITION q9 FOR VALUES FROM (90) TO (100)';
my $apart = 'CREATE TABLE p9 (id int PRIMARY KEY); CREATE TABLE q9 (id int)';

begin('attached', 'true');
on($pub, rows_of(1, 1));
workers(2);
start();
applied();
workers(0);
on_both($apart);
on($pub, 'INSERT INTO p9 VALUES (91); INSERT INTO q9 VALUES (91)');
on($sub, "ALTER SUBSCRIPTION $db REFRESH PUBLICATION");
on($pub, "$attach; " . rows_of(2, 1, 9));
states_are('p i, p9 r, q i, q9 r', 'ATTACH of a table that is to be copied');
finish_with('ATTACH of a table that is to be copied');

begin('attached_to', 'true');
on_both($apart);
on($pub, rows_of(1, 1));
start();
on($sub,
	q{UPDATE pg_subscription_rel SET srsubstate = 'r', srsublsn = '0/1' WHERE srrelid IN ('p9'::regclass, 'q9'::regclass)}
);
on($pub, 'INSERT INTO p9 VALUES (91); INSERT INTO q9 VALUES (91)');
on($pub, "$attach; " . rows_of(2, 1, 9));
states_are('p i, p9 r, q i, q9 r', 'ATTACH to a table that is to be copied');
finish_with('ATTACH to a table that is to be copied');

# --- a table of two subscriptions ---

begin('shared', 'false');
on($pub, rows_of(1, 1));
on($pub, 'CREATE PUBLICATION other FOR ALL TABLES');
start();
my $connstr = $pub->connstr($db);
on($sub,
	"CREATE SUBSCRIPTION other CONNECTION \$\$$connstr\$\$ PUBLICATION other WITH (enabled = false, copy_data = false)"
);
on($sub, rows_of(9, 1));
on($pub, via_root('true'));
$sub->poll_query_until($db,
	q{SELECT last_error ~ 'table "[pq]1" cannot be emptied' FROM weft.stat_subscription WHERE subname = 'shared'}
) or die 'no error';
is(on($sub, 'SELECT id FROM p UNION ALL SELECT id FROM q'),
	"19\n19", 'a table of two subscriptions is not emptied');
on($sub, 'DROP SUBSCRIPTION other');
states_are('p i, p1 r, q i, q1 r', '... until it belongs to one');
finish_with('a table of one subscription again');

# --- schema changes behind a copy ---

# The partition's own copy is newer than a schema change, too, but its rows are those of the root by then.
begin('columns', 'false');
on_both('ALTER TABLE p ADD v int; ALTER TABLE q ADD v int');
on($pub, 'INSERT INTO p VALUES (11); INSERT INTO q VALUES (11)');
start();
$session = hold_before_snapshot('p1', 'q1');
on($pub, via_root('true'));
on($pub, 'ALTER TABLE p DROP v; ALTER TABLE q DROP v');
on($pub, rows_of(2, 1));
leader_waits();
end_session($session, 'COMMIT');
finish_with('a column is dropped behind a copy');

# The copy stores rows of the new partition in the one that is detached, or dropped, here later.
begin('same_range', 'true');
add_partitions(2);
on($pub, rows_of(1, 1, 2));
start();
$session = hold_before_snapshot('p', 'q');
on($pub, 'ALTER TABLE p DETACH PARTITION p2; DROP TABLE q2');
on($pub,
	"CREATE TABLE ${_}3 PARTITION OF $_ FOR VALUES FROM (20) TO (30); INSERT INTO $_ VALUES (25)"
) foreach 'p', 'q';
leader_waits();
end_session($session, 'COMMIT');
finish_with('another partition gets the range behind a copy', qw(p q p2));

# The copy stores rows of a new partition in the default partition.
begin('default_part', 'true');
on_both(
	'CREATE TABLE pd PARTITION OF p DEFAULT; CREATE TABLE qd PARTITION OF q DEFAULT'
);
on_both($apart);
on($pub, rows_of(1, 1));
start();
on($sub,
	q{UPDATE pg_subscription_rel SET srsubstate = 'r', srsublsn = '0/1' WHERE srrelid IN ('p9'::regclass, 'q9'::regclass)}
);
$session = hold_before_snapshot('p', 'q');
on($pub,
	'CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30); CREATE TABLE q3 PARTITION OF q FOR VALUES FROM (20) TO (30)'
);
on($pub, "$attach; INSERT INTO p VALUES (25), (91), (101)");
on($pub, 'INSERT INTO q VALUES (25), (91), (101)');
leader_waits();
end_session($session, 'COMMIT');
finish_with('new partitions beside a default one behind a copy');

# --- ALTER PUBLICATION ... ADD and DROP TABLE of a root whose partition is published, too ---

my $two_publications =
  "CREATE PUBLICATION %s FOR TABLE %s WITH (ddl = table, publish_via_partition_root = true); CREATE PUBLICATION other FOR TABLE q1 WITH (ddl = table)";

sub publish_two
{
	my ($tables) = @_;
	on($pub,
		"DROP PUBLICATION $db; " . sprintf($two_publications, $db, $tables));
	return;
}

begin('root_leaves', 'true');
publish_two('p, p1, q');
on($pub, rows_of(1, 1));
workers(2);
start(', other');
applied();
on($pub, 'ALTER PUBLICATION root_leaves DROP TABLE p, q');
on($pub, rows_of(2, 1));
finish_with('the root leaves, its partition stays');

begin('leaves_before', 'true');
publish_two('p, p1, q');
on($pub, rows_of(1, 1));
start(', other');
on($pub, 'ALTER PUBLICATION leaves_before DROP TABLE p, q');
on($pub, rows_of(2, 1));
states_are('p1 i, q1 i', 'the partition is to be copied');
finish_with('the root leaves before its copy');

begin('root_enters', 'true');
publish_two('p1');
on($pub, rows_of(1, 1));
start(', other');
on($pub, 'ALTER PUBLICATION root_enters ADD TABLE p, q');
on($pub, rows_of(2, 1));
states_are('p i, p1 r, q i, q1 r', 'the root is to be copied instead');
finish_with('the root enters before the copy of its partition');

# Rows of the partition go on arriving as the root's.
begin('entered_below', 'true');
on($pub,
	'DROP PUBLICATION entered_below; CREATE PUBLICATION entered_below FOR TABLE p, q WITH (ddl = table, publish_via_partition_root = true); CREATE PUBLICATION other WITH (ddl = table)'
);
workers(2);
start(', other');
applied();
on($pub, 'ALTER PUBLICATION other ADD TABLE p1, q1');
on($pub, rows_of(1, 1));
applied();
states_are('p r, q r', 'a partition enters another publication');
finish_with('a partition enters another publication');

# A table that is about to be detached has no ancestors.
begin('pending', 'false');
on_both(
	'CREATE TABLE p9 PARTITION OF p FOR VALUES FROM (90) TO (200) PARTITION BY RANGE (id); CREATE TABLE p90 PARTITION OF p9 FOR VALUES FROM (90) TO (100)'
);
on($pub,
	'DROP PUBLICATION pending; CREATE PUBLICATION pending FOR TABLE p9, q WITH (ddl = table)'
);
start();
$session = session($pub, 'BEGIN; SELECT FROM p');
my ($ret, $out, $err) = $pub->psql($db,
	"SET weft.ddl_replication = off; SET statement_timeout = '1s'; ALTER TABLE p DETACH PARTITION p9 CONCURRENTLY"
);
like($err, qr/statement timeout/, 'DETACH is interrupted');
end_session($session, 'COMMIT');
on($pub, via_root('true'));
on($pub, 'INSERT INTO p9 VALUES (91); INSERT INTO q VALUES (11)');
states_are('p9 i, p90 r, q i, q1 r',
	'partitions of a table that is about to be detached');
finish_with('partitions of a table that is about to be detached', qw(p9 q));

# A row that is sent under the root's name after that has left would get lost.
begin('root_writers', 'true');
publish_two('p, p1, q');
workers(2);
start(', other');
applied();
$session = session($pub, 'BEGIN', rows_of(1, 1));
my $altered = session($pub);
$altered->query_until(qr/sent/,
	"\\echo sent\nALTER PUBLICATION root_writers DROP TABLE p, q;\n");
$pub->poll_query_until($db,
	q{SELECT count(*) = 1 FROM pg_locks WHERE relation IN ('p'::regclass, 'q'::regclass) AND NOT granted}
) or die 'ALTER PUBLICATION does not wait';
end_session($session, 'COMMIT');
$altered->quit;
on($pub, rows_of(2, 1));
finish_with('the root leaves while another transaction writes');

# --- ATTACH of an empty table of another publication ---

begin('attached_other', 'true');
on_both($apart);
on($pub,
	'DROP PUBLICATION attached_other; CREATE PUBLICATION attached_other FOR TABLE p, q WITH (ddl = table, publish_via_partition_root = true); CREATE PUBLICATION other FOR TABLE p9, q9 WITH (ddl = table)'
);
workers(2);
start();
applied();
workers(0);
on($sub, "ALTER SUBSCRIPTION $db ADD PUBLICATION other");
on($pub, $attach);
on($pub, rows_of(1, 9));
states_are('p i, p9 r, q i, q9 r',
	'ATTACH of an empty table of another publication');
finish_with('ATTACH of an empty table of another publication');

# --- a table leaves while it is copied, and comes back ---

begin('comes_back', 'false');
on($pub,
	'DROP PUBLICATION comes_back; CREATE PUBLICATION comes_back FOR TABLE p, q WITH (ddl = table)'
);
on($sub, 'ALTER TABLE q1 ADD CONSTRAINT never CHECK (id < 0)');
on($pub, rows_of(1, 1));
$log_end = -s $sub->logfile;
workers(2);
start();
$sub->wait_for_log(
	qr/new row for relation "q1" violates check constraint "never"/,
	$log_end);
on($pub, 'ALTER PUBLICATION comes_back DROP TABLE q');
states_are('p1 r', 'a table leaves although its copy has failed');
on($sub, 'ALTER TABLE q1 DROP CONSTRAINT never');
applied();
on($pub, rows_of(2, 1));
on($pub, 'ALTER PUBLICATION comes_back ADD TABLE q');
on($pub, rows_of(3, 1));
finish_with('a table comes back');

# --- inheritance without partitions: every table is sent under its own name ---

begin('inherited', 'false');
on_both(
	'CREATE TABLE parent (id int, v int); CREATE TABLE child () INHERITS (parent)'
);
on($pub, 'INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2)');
start();
on($pub, via_root('true'));
states_are(
	'child i, p i, p1 r, parent i, q i, q1 r',
	'tables that are no partitions are copied');
finish_with('inheritance', 'parent');

begin('inherited_newer', 'false');
on_both(
	'CREATE TABLE parent (id int, v int); CREATE TABLE child () INHERITS (parent)'
);
on($pub,
	'DROP PUBLICATION inherited_newer; CREATE PUBLICATION inherited_newer FOR TABLE child WITH (ddl = table); INSERT INTO child VALUES (2)'
);
workers(2);
start();
applied();
workers(0);
on($pub,
	'SET weft.ddl_replication = off; ALTER PUBLICATION inherited_newer ADD TABLE ONLY parent, q'
);
on($sub, "ALTER SUBSCRIPTION $db REFRESH PUBLICATION");
$session = hold_before_snapshot('ONLY parent', 'q1');
on($pub, 'INSERT INTO parent VALUES (1); ALTER TABLE parent DROP v');
leader_waits();
end_session($session, 'COMMIT');
finish_with('inheritance behind a copy', 'parent');

# --- other transactions that write ---

# A row that is sent under the old name after the statement would be applied twice.
begin('writers', 'false');
on($pub, rows_of(1, 1));
start();
$session = session($pub, 'BEGIN', 'INSERT INTO p VALUES (12)');
$altered = session($pub);
$altered->query_until(qr/sent/, "\\echo sent\n" . via_root('true') . ";\n");
$pub->poll_query_until($db,
	q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'p'::regclass AND NOT granted}
) or die 'ALTER PUBLICATION does not wait';
pass('ALTER PUBLICATION waits for whoever writes');
end_session($session, 'COMMIT');
$altered->quit;
states_are('p i, p1 r, q i, q1 r', '... and then is done');
finish_with('with another transaction');

# One that writes to several partitions is not made a victim of a deadlock.
begin('several', 'true');
add_partitions(2);
start();
$session = session($pub, 'BEGIN', 'INSERT INTO p VALUES (21)');
$altered = session($pub);
$altered->query_until(qr/sent/, "\\echo sent\n" . via_root('false') . ";\n");
$pub->poll_query_until($db,
	q{SELECT count(*) = 1 FROM pg_locks WHERE relation IN ('p'::regclass, 'p2'::regclass) AND NOT granted}
) or die 'ALTER PUBLICATION does not wait';
$session->query_safe('INSERT INTO p VALUES (11)');
end_session($session, 'COMMIT');
$altered->quit;
finish_with('a transaction that writes to several partitions');

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub;
$_->stop foreach $sub, $pub;
done_testing();
