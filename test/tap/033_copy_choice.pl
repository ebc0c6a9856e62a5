# Which tables are copied with helpers, and which ones are left to the server; whose
# privileges the copy has; and what happens if no helpers are available.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub = new_publisher('publisher');
my $sub = copy_subscriber('subscriber');
my $connstr = $pub->connstr . ' dbname=postgres';

my @tables =
  qw(filled fires quiet unsafe sequential identity checked domained lying locked named owned deferred);
foreach my $table (@tables)
{
	query_all([ $pub, $sub ],
		"CREATE TABLE $table (id int PRIMARY KEY, v int)");
	query($pub,
		"INSERT INTO $table SELECT i, i FROM generate_series(1, 5000) i");
}
query_all([ $pub, $sub ],
	'CREATE TABLE outside (id int PRIMARY KEY, v text)');
query($pub,
	"INSERT INTO outside SELECT i, repeat('x', 3000 + i) FROM generate_series(1, 5000) i"
);
query($sub, 'ALTER TABLE outside ALTER v SET STORAGE EXTERNAL');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
query($sub,
	"SELECT pg_create_logical_replication_slot('decoding', 'test_decoding')");

query($sub, <<'EOS');
CREATE ROLE boss LOGIN SUPERUSER;
CREATE ROLE owner;
GRANT ALL ON SCHEMA public TO owner;
CREATE TABLE fired (id int);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.fired VALUES (NEW.id);
	RETURN NEW;
END
$$;
CREATE FUNCTION unsafe(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + 1; END';
CREATE FUNCTION safe(int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE DOMAIN low AS int CHECK (unsafe(VALUE) < 1000000);
INSERT INTO filled VALUES (-1, 1);
CREATE TRIGGER t AFTER INSERT ON fires FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE fires ENABLE ALWAYS TRIGGER t;
CREATE TRIGGER t AFTER INSERT ON quiet FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE quiet ADD FOREIGN KEY (v) REFERENCES filled, ADD w int DEFAULT safe(1),
	ADD CHECK (safe(v) > 0), ADD g int GENERATED ALWAYS AS (safe(v)) STORED;
ALTER TABLE unsafe ADD w int GENERATED ALWAYS AS (unsafe(id)) STORED;
CREATE SEQUENCE s;
ALTER TABLE sequential ADD w int DEFAULT nextval('s');
ALTER TABLE identity ADD w int GENERATED ALWAYS AS IDENTITY;
ALTER TABLE checked ADD CHECK (unsafe(v) > 0);
ALTER TABLE deferred ADD EXCLUDE (unsafe(v) WITH =) DEFERRABLE;
ALTER TABLE domained ALTER v TYPE low;
CREATE FUNCTION lies(int) RETURNS int PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.lies VALUES ($1);
	RETURN $1;
END
$$;
CREATE TABLE lies (id int);
ALTER TABLE lying ADD CHECK (lies(v) > 0);
ALTER TABLE named ADD who text DEFAULT current_user;
ALTER TABLE named OWNER TO owner;
ALTER TABLE owned OWNER TO owner;
EOS

my $offset = -s $sub->logfile;
my $session = open_session($sub);
$session->query_safe(
	'BEGIN; LOCK TABLE locked IN SHARE UPDATE EXCLUSIVE MODE');
subscribe($pub, $sub, 'sub', 'pub');
poll($sub,
	"SELECT srsubstate = 'r' FROM pg_subscription_rel WHERE srrelid = 'locked'::regclass"
);
$session->query_safe('COMMIT');
$session->quit;
wait_for_apply($pub, $sub, 'sub');

foreach my $table (@tables)
{
	my $from = $table eq 'filled' ? "$table WHERE id > 0" : $table;
	same_rows(
		rows($sub, $from, 'id, v::int'),
		rows($pub, $table),
		"$table is equal");
}
indexes_sound($sub, 'all kinds');
nothing_left($pub, 'all kinds');
same_rows(rows($sub, 'outside'), rows($pub, 'outside'), 'outside is equal');
# only what is flushed is decoded
flush_wal($sub);
is( query($sub,
		<<'EOS'), '5000|f', 'values that are stored out of line only on the subscriber can be decoded');
SELECT count(*), bool_or(data ~ 'unchanged-toast')
FROM pg_logical_slot_peek_changes('decoding', NULL, NULL)
WHERE data ~ '^table public.outside: INSERT: '
EOS
query($sub, "SELECT pg_drop_replication_slot('decoding')");
is(copied_by($sub, 'public.outside', $offset), 1, 'one process has copied it')
  if weft();
is(query($sub, 'SELECT count(*), count(DISTINCT id) FROM fired'),
	'5000|5000', 'the right triggers fire, and no others');
is(query($sub, 'SELECT count(DISTINCT w), min(w), max(w) FROM sequential'),
	'5000|1|5000', 'a sequence');
is(query($sub, 'SELECT count(DISTINCT w), min(w), max(w) FROM identity'),
	'5000|1|5000', 'an identity column');
is(query($sub, 'SELECT count(*) FROM quiet WHERE w = 2 AND g = v + 1'),
	'5000', 'safe expressions');
is(query($sub, 'SELECT DISTINCT who FROM named'),
	'owner', 'helpers have the privileges of the table owner');

SKIP:
{
	skip 'about Weft', 1 unless weft();
	my %reasons = (
		filled => 'it is not empty',
		fires => 'it has triggers that fire on a replica',
		locked => 'another session has locked it',
		lying => 'it uses functions that are not safe in parallel workers',
		map { $_ => 'its expressions are not safe in parallel workers' }
		  qw(unsafe sequential identity checked domained deferred));
	foreach my $table (@tables)
	{
		is( left_to_server($sub, "public.$table", $offset),
			$reasons{$table} // '',
			"$table: why the server copies it");
		cmp_ok(copied_by($sub, "public.$table", $offset),
			'>', 0, "$table: copied by Weft")
		  unless $reasons{$table};
	}
}

# Copies "named" once more; returns the log's position at the start.
sub copy_again
{
	my (%p) = @_;
	my %usual = (
		'weft.max_copy_workers' => 16,
		'weft.copy_workers_per_table' => 3,
		'weft.min_parallel_copy_size' => 0,
		'max_parallel_workers' => 16);

	query($sub, 'DROP SUBSCRIPTION sub');
	query($sub, 'TRUNCATE named');
	query($pub, $p{before}) if $p{before};
	set_conf($sub, %usual, %{ $p{conf} }) if $p{conf} && weft();
	my $start = -s $sub->logfile;
	query($sub,
		"SET ROLE boss; CREATE SUBSCRIPTION sub CONNECTION '$connstr $p{connection}'"
		  . " PUBLICATION pub WITH ($p{options})");
	wait_for_apply($pub, $sub, 'sub');
	same_rows(
		rows($sub, 'named', 'id, v'),
		rows($pub, 'named', 'id, v'),
		"$p{what}: equal");
	indexes_sound($sub, $p{what});
	return $start;
}

copy_again(
	what => 'run_as_owner',
	before => 'DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE named',
	connection => '',
	options => 'run_as_owner = true');
is(query($sub, 'SELECT DISTINCT who FROM named'),
	'boss',
	'helpers have the privileges of the subscription owner, if configured');

# Only the published columns may be read on the publisher.
$offset = copy_again(
	what => 'some columns',
	before => <<'EOS',
CREATE ROLE reader LOGIN REPLICATION;
ALTER TABLE named ADD secret text;
GRANT SELECT (id, v) ON named TO reader;
DROP PUBLICATION pub;
CREATE PUBLICATION pub FOR TABLE named (id, v);
EOS
	connection => 'user=reader',
	options => 'run_as_owner = false');
is( copied_by($sub, 'public.named', $offset),
	weft() ? 1 : 0,
	'some columns: one process');
query($pub, 'GRANT SELECT ON named TO reader');

# Helpers are not available, or not wanted.
my %cases = (
	'no connection is left on the publisher' =>
	  { before => 'ALTER ROLE reader CONNECTION LIMIT 2', by => 1 },
	'weft.max_copy_workers is 0' =>
	  { conf => { 'weft.max_copy_workers' => 0 }, by => 1 },
	'there are no parallel workers' =>
	  { conf => { 'max_parallel_workers' => 0 }, by => 1 },
	'weft.copy_workers_per_table is 0' =>
	  { conf => { 'weft.copy_workers_per_table' => 0 }, by => 0 },
	'the table is small' =>
	  { conf => { 'weft.min_parallel_copy_size' => '1GB' }, by => 0 },
	'the usual' => { conf => {}, by => '[123]' });
foreach my $what (sort keys %cases)
{
	my $start = copy_again(
		what => $what,
		before => 'ALTER ROLE reader CONNECTION LIMIT -1',
		conf => {},
		%{ $cases{$what} },
		connection => 'user=reader',
		options => 'run_as_owner = false');
	like(copied_by($sub, 'public.named', $start),
		qr/^$cases{$what}{by}$/, "$what: number of processes")
	  if weft();
}

$sub->stop;
$pub->stop;
done_testing();
