# Triggers on a subscriber that truncate, alter or reindex a table which their own transaction has changed before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $pub =
  new_publisher('publisher', conf => "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE staging (id int PRIMARY KEY);
CREATE TABLE control (id int PRIMARY KEY, command text);
EOS
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
query($sub, <<'EOS');
CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN EXECUTE NEW.command; RETURN NULL; END';
CREATE TRIGGER run AFTER INSERT ON control FOR EACH ROW EXECUTE FUNCTION run();
ALTER TABLE control ENABLE ALWAYS TRIGGER run;
EOS
subscribe($pub, $sub, 'sub', 'pub', 'streaming = parallel');
wait_for_apply($pub, $sub, 'sub');

my $next = 1;

# A transaction of the publisher with so many rows before the one with the trigger.
sub fire
{
	my ($rows, $command, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	query($pub, <<EOS);
BEGIN;
DELETE FROM staging;
INSERT INTO staging SELECT generate_series(1, $rows);
INSERT INTO control VALUES ($next, 'SET LOCAL search_path = public; $command');
COMMIT;
EOS
	wait_for_apply($pub, $sub, 'sub');
	is(query($sub, 'SELECT count(*) FROM staging'), $expected, $what);
	is(query($sub, "SELECT count(*) FROM control WHERE id = $next"),
		1, "$what: the row with the trigger");
	$next++;
	return;
}

foreach
  my $case ([ 10, 'a transaction' ], [ 10_000, 'a streamed transaction' ])
{
	my ($rows, $kind) = @$case;

	fire($rows, 'TRUNCATE staging', 0, "$kind, TRUNCATE");
	fire($rows, 'ALTER TABLE staging ADD COLUMN IF NOT EXISTS extra int',
		$rows, "$kind, ALTER TABLE");
	fire($rows, 'REINDEX TABLE staging', $rows, "$kind, REINDEX");
}
unlike(
	slurp_file($sub->logfile),
	qr/being used by active queries/,
	'nothing was open');

done_testing();
