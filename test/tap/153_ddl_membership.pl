# Existing tables enter publications, and leave them, by schema changes and by ALTER PUBLICATION: the
# subscription copies them, lets them go, or says in the log what to do.  A schema change of a table
# with rows, which would enter a publication by it, is refused on the publisher (TAP 150).

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
my $sub = new_subscriber('subscriber');

query($pub, 'CREATE EXTENSION IF NOT EXISTS weft');
query_all([ $pub, $sub ], $_)
  foreach 'CREATE ROLE maker; CREATE SCHEMA app',
  'CREATE TABLE outside (id int PRIMARY KEY, v text)',
  'CREATE TABLE has_rows (id int PRIMARY KEY)',
  'CREATE TABLE listed (id int PRIMARY KEY)',
  'CREATE TABLE added (id int PRIMARY KEY)',
  'CREATE TABLE brief (id int PRIMARY KEY)',
  'CREATE TABLE app.part (id int PRIMARY KEY) PARTITION BY RANGE (id)',
  'CREATE TABLE app.both (id int PRIMARY KEY)',
  'CREATE TABLE part_old (id int PRIMARY KEY)',
  'CREATE TABLE of_maker (id int PRIMARY KEY)';
query($pub, 'ALTER TABLE of_maker OWNER TO maker');
query($pub, $_)
  foreach 'INSERT INTO added SELECT generate_series(1, 100)',
  'INSERT INTO app.both VALUES (1)',
  'INSERT INTO brief VALUES (1)',
  'INSERT INTO of_maker VALUES (1)',
  'CREATE TABLE only_here (id int)',
  'CREATE PUBLICATION schema FOR TABLES IN SCHEMA app WITH (ddl = table)',
  'CREATE PUBLICATION list FOR TABLE listed, app.both WITH (ddl = table)';
query($sub, 'INSERT INTO has_rows VALUES (77)');
subscribe($pub, $sub, 'sub', 'schema, list');
wait_for_apply($pub, $sub, 'sub');

# What the subscription knows of a table.
sub state
{
	my ($table) = @_;
	return query($sub,
		"SELECT srsubstate FROM pg_subscription_rel WHERE srrelid = '$table'::regclass"
	);
}

# Executes a statement on the publisher, and waits for the subscriber; returns what that has logged.
sub replicate
{
	my ($sql) = @_;
	my $offset = -s $sub->logfile;

	query($pub, $sql);
	wait_for_apply($pub, $sub, 'sub');
	return slurp_file($sub->logfile, $offset);
}

# --- SET SCHEMA ---

like(
	replicate(
		q{BEGIN; ALTER TABLE outside SET SCHEMA app; INSERT INTO app.outside VALUES (3, 'c'); COMMIT; INSERT INTO app.outside VALUES (4, 'd')}
	),
	qr/table "app\.outside" belongs to subscription "sub" from now on, and is copied/,
	'a table that enters by SET SCHEMA is copied');
same_tables($pub, $sub, ['app.outside'], '... with all rows');
is(state('app.outside'), 'r', '... and is applied');

like(
	replicate(q{ALTER TABLE app.outside SET SCHEMA public; TRUNCATE outside}),
	qr/table "public\.outside" no longer belongs to subscription "sub"/,
	'a table that leaves by SET SCHEMA leaves the subscription');
is(state('outside'), '', '... is not in the catalog');
like(
	replicate('ALTER TABLE outside SET SCHEMA app'),
	qr/changes of table "app\.outside" are not applied.*It has rows here already/s,
	'a table that comes back with rows is not copied');
is(state('app.outside'), '', '... nor applied');
replicate('ALTER TABLE app.outside SET SCHEMA public');
query($sub, 'TRUNCATE outside');
replicate(
	q{ALTER TABLE outside SET SCHEMA app; INSERT INTO app.outside VALUES (5, 'e')}
);
same_tables($pub, $sub, ['app.outside'],
	'a table that comes back without rows is copied');

like(
	replicate(
		'ALTER TABLE has_rows SET SCHEMA app; INSERT INTO app.has_rows VALUES (2)'
	),
	qr/changes of table "app\.has_rows" are not applied.*REFRESH PUBLICATION/s,
	'a table with rows is not copied');
is(query($sub, 'SELECT string_agg(id::text, $$ $$) FROM app.has_rows'),
	'77', '... and stays as it is');
query($sub,
	'TRUNCATE app.has_rows; ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['app.has_rows'], '... until it is refreshed');

# --- partitions ---

replicate(
	'ALTER TABLE app.part ATTACH PARTITION part_old FOR VALUES FROM (0) TO (100); INSERT INTO app.part VALUES (3)'
);
same_tables(
	$pub, $sub,
	[ 'app.part', 'part_old' ],
	'a partition that is attached is copied');
replicate(
	'ALTER TABLE app.part DETACH PARTITION part_old; INSERT INTO part_old VALUES (200)'
);
is(state('part_old'), '', 'a partition that is detached leaves');

# --- ALTER PUBLICATION ---

like(
	replicate(
		'BEGIN; INSERT INTO added VALUES (101); ALTER PUBLICATION list ADD TABLE added; INSERT INTO added VALUES (102); COMMIT; DELETE FROM added WHERE id < 10'
	),
	qr/table "public\.added" belongs to subscription "sub" from now on/,
	'a table that is added to a publication is copied');
same_tables($pub, $sub, ['added'], '... with all rows');
is( query(
		$sub,
		q{SELECT tag, result, statement FROM weft.ddl_history WHERE statement ~ 'ADD TABLE added'}
	),
	'ALTER PUBLICATION|applied|ALTER PUBLICATION list ADD TABLE added',
	'... the history has it');
replicate(
	'ALTER PUBLICATION list DROP TABLE added; DELETE FROM added WHERE id < 20'
);
is(state('added'), '', 'a table that is removed from a publication leaves');
query($sub, 'TRUNCATE added');
replicate('ALTER PUBLICATION list SET TABLE listed, app.both, added');
same_tables($pub, $sub, ['added'], '... and is copied when it comes back');
replicate(
	'BEGIN; ALTER PUBLICATION list ADD TABLE brief; ALTER PUBLICATION list DROP TABLE brief; COMMIT; INSERT INTO brief VALUES (2)'
);
is(state('brief'), '', 'a table that leaves before its copy');
replicate('ALTER PUBLICATION list ADD TABLE brief');
same_tables($pub, $sub, ['brief'], '... is copied when it comes back');
replicate(
	'ALTER PUBLICATION list DROP TABLE brief; ALTER PUBLICATION list DROP TABLE app.both'
);
is(state('app.both'), 'r', 'a table that another publication includes stays');
unlike(replicate('ALTER PUBLICATION list SET TABLE listed, added'),
	qr/table "/, 'nothing has changed');
like(
	replicate('ALTER PUBLICATION list ADD TABLE only_here'),
	qr/changes of table "public\.only_here" are not applied.*It does not exist here/s,
	'a table that is not there');
replicate('ALTER PUBLICATION list DROP TABLE only_here');
replicate(
	'SET weft.ddl_replication = off; ALTER PUBLICATION list DROP TABLE added'
);
is(state('added'), 'r', 'not announced with weft.ddl_replication = off');

# A role can only bring in what it owns here.
query($pub,
	'GRANT CREATE ON DATABASE postgres TO maker; SET ROLE maker; CREATE PUBLICATION of_maker WITH (ddl = table)'
);
query($sub,
	'ALTER SUBSCRIPTION sub ADD PUBLICATION of_maker WITH (refresh = false)');
wait_for_apply($pub, $sub, 'sub');
like(
	replicate(
		'SET ROLE maker; ALTER PUBLICATION of_maker ADD TABLE of_maker; INSERT INTO of_maker VALUES (2)'
	),
	qr/changes of table "public\.of_maker" are not applied.*Role "maker".*does not own the table/s,
	q{somebody else's table});
is(query($sub, 'SELECT count(*) FROM of_maker'), 0, '... gets no rows');
query($pub, 'ALTER PUBLICATION of_maker DROP TABLE of_maker');
query($sub, 'ALTER TABLE of_maker OWNER TO maker');
replicate('SET ROLE maker; ALTER PUBLICATION of_maker ADD TABLE of_maker');
same_tables($pub, $sub, ['of_maker'], 'its own');

# --- partitions that are sent as their root ---

query_all(
	[ $pub, $sub ],
	'CREATE SCHEMA rooted; CREATE TABLE root (id int) PARTITION BY LIST (id)'
);
query($pub,
	'CREATE PUBLICATION rooted FOR TABLES IN SCHEMA rooted WITH (ddl = table, publish_via_partition_root = true)'
);
query($sub, 'ALTER SUBSCRIPTION sub ADD PUBLICATION rooted');
wait_for_apply($pub, $sub, 'sub');
replicate(<<'EOS');
CREATE TABLE rooted.r (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE rooted.r1 PARTITION OF rooted.r FOR VALUES FROM (0) TO (10);
CREATE TABLE rooted.r2 PARTITION OF rooted.r FOR VALUES FROM (10) TO (20);
CREATE TABLE rooted.r3 PARTITION OF rooted.r FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);
CREATE TABLE rooted.r4 PARTITION OF rooted.r3 FOR VALUES FROM (20) TO (30);
CREATE TABLE rooted.leaf PARTITION OF root FOR VALUES IN (1, 2);
INSERT INTO rooted.r VALUES (1), (11), (21);
INSERT INTO root VALUES (1);
EOS
is(state('rooted.r1'), '', 'a partition is part of its root');
same_tables($pub, $sub, ['rooted.leaf'], '... unless that is not published');
replicate(<<'EOS');
BEGIN;
ALTER TABLE rooted.r DETACH PARTITION rooted.r1;
INSERT INTO rooted.r1 VALUES (100);
COMMIT;
INSERT INTO rooted.r1 VALUES (101);
ALTER TABLE rooted.r DETACH PARTITION rooted.r3;
INSERT INTO rooted.r3 VALUES (22);
EOS
same_tables(
	$pub, $sub,
	[ 'rooted.r', 'rooted.r1', 'rooted.r3' ],
	'a partition that is detached is sent under its own name');
is(state('rooted.r3') . state('rooted.r4'),
	'r', '... and one of its own is part of it');

# What is stored in it between the two transactions of DETACH CONCURRENTLY would get lost.
foreach my $how ('CONCURRENTLY', 'FINALIZE')
{
	my ($ret, $out, $err) = $pub->psql('postgres',
		"ALTER TABLE rooted.r DETACH PARTITION rooted.r2 $how");
	like(
		$err,
		qr/cannot replicate that a partition of "r" is detached concurrently/,
		"DETACH $how is refused");
}
replicate(
	'DELETE FROM rooted.r1 WHERE id < 100; ALTER TABLE rooted.r ATTACH PARTITION rooted.r1 FOR VALUES FROM (100) TO (200); INSERT INTO rooted.r VALUES (150)'
);
same_tables($pub, $sub, ['rooted.r'], 'attached again');
replicate(
	'ALTER TABLE rooted.r DETACH PARTITION rooted.r1; INSERT INTO rooted.r1 VALUES (300)'
);
same_tables($pub, $sub, ['rooted.r1'], 'detached again');

# --- publish_via_partition_root changes ---

replicate(
	'ALTER PUBLICATION rooted SET (publish_via_partition_root = false); INSERT INTO rooted.r VALUES (12)'
);
same_tables($pub, $sub, ['rooted.r'], 'rows are sent as those of partitions');
replicate(
	'ALTER PUBLICATION rooted SET (publish_via_partition_root = true); INSERT INTO rooted.r VALUES (13)'
);
same_tables($pub, $sub, ['rooted.r'], '... and as those of the root again');
foreach my $node ($pub, $sub)
{
	query($node, 'CREATE DATABASE whole');
	$node->safe_psql('whole',
		'CREATE EXTENSION weft; CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)'
	);
}
my $whole = $pub->connstr('whole');
$pub->safe_psql('whole',
	'CREATE PUBLICATION whole FOR ALL TABLES WITH (ddl = table)');
$sub->safe_psql('whole',
	"CREATE SUBSCRIPTION whole CONNECTION \$\$$whole\$\$ PUBLICATION whole");
$pub->safe_psql('whole', $_)
  foreach 'INSERT INTO p VALUES (1)',
  'ALTER PUBLICATION whole SET (publish_via_partition_root = true)',
  'INSERT INTO p VALUES (2)',
  'ALTER PUBLICATION whole SET (publish_via_partition_root = false)',
  'INSERT INTO p VALUES (3)';
$sub->safe_psql('whole',
	q{SELECT weft.wait_for_subscription('whole', '3min')});
is($sub->safe_psql('whole', 'SELECT id FROM p ORDER BY id'),
	"1\n2\n3", 'a publication FOR ALL TABLES');
$sub->safe_psql('whole', 'DROP SUBSCRIPTION whole');

# --- DROP ... CASCADE takes a table out of a publication ---

query_all(
	[ $pub, $sub ],
	'CREATE SCHEMA cascades; CREATE SCHEMA types; CREATE DOMAIN types.d AS int; CREATE TABLE cascades.columns (id int PRIMARY KEY, v int, w int); CREATE TABLE cascades.filter (id int PRIMARY KEY, d types.d)'
);
query($pub,
	'CREATE PUBLICATION cascades FOR TABLE cascades.columns (id, v), cascades.filter (id, d) WITH (ddl = table)'
);
query($sub, 'ALTER SUBSCRIPTION sub ADD PUBLICATION cascades');
replicate(
	'INSERT INTO cascades.columns VALUES (1, 1); INSERT INTO cascades.filter VALUES (1)'
);
like(
	replicate(
		'ALTER TABLE cascades.columns DROP COLUMN v CASCADE; INSERT INTO cascades.columns VALUES (2, 2)'
	),
	qr/table "cascades\.columns" no longer belongs to subscription "sub"/,
	'a table leaves with a column of its list');
is( query(
		$sub,
		q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'cascades.columns'::regclass AND attname = 'v'}
	),
	0,
	'... and the column is dropped');
query($sub, 'TRUNCATE cascades.columns');
replicate(
	'ALTER PUBLICATION cascades ADD TABLE cascades.columns; INSERT INTO cascades.columns VALUES (3, 3)'
);
same_tables($pub, $sub, ['cascades.columns'],
	'... and is copied when it comes back');
like(
	replicate('DROP SCHEMA types CASCADE'),
	qr/table "cascades\.filter" no longer belongs to subscription "sub"/,
	'a table leaves with the type of such a column');
is( query(
		$sub,
		q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'cascades.filter'::regclass AND attname = 'd'}
	),
	0,
	'... and the column is dropped');

# --- a foreign key of a table that is not published ---

replicate(<<'EOS');
CREATE TABLE refers (id int);
ALTER TABLE refers ADD COLUMN listed int REFERENCES listed;
CREATE UNLOGGED TABLE refers_unlogged (listed int REFERENCES listed);
INSERT INTO listed VALUES (1);
ALTER TABLE refers DROP COLUMN listed;
DROP TABLE refers_unlogged;
EOS
same_tables($pub, $sub, ['listed'],
	'a table that another one refers to has the same rows');
is(query($sub, q{SELECT to_regclass('refers')}),
	'', '... which is not published');

unlike(errors_logged($_), qr/TRAP|PANIC|ERROR/, $_->name . ': no error')
  foreach $pub, $sub;

$_->stop foreach $sub, $pub;
done_testing();
