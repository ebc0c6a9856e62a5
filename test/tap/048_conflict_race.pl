# A session takes a unique value and releases it, just after a writer has looked for
# rows and claims, and just before the writer stores a row with that value.

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
plan skip_all => 'the server was built without injection points'
  unless ($ENV{enable_injection_points} // '') eq 'yes';

my @nodes = new_members(2);
my ($n1, $n2) = @nodes;

plan skip_all => 'the extension injection_points is not there'
  unless query(
	$n2,
	"SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'"
  );
create_tables(\@nodes,
	'CREATE TABLE taken (id int PRIMARY KEY, u int UNIQUE, n int)', 'taken');
connect_members(\@nodes);
query($n2, <<'EOS');
CREATE EXTENSION injection_points;
SELECT injection_points_attach('weft-conflict-store', 'wait');
EOS

query($n1, 'INSERT INTO taken VALUES (1, 1)');
waits_for($n2, 'weft-conflict-store');
query($n2,
	'BEGIN; INSERT INTO taken VALUES (2, 1); UPDATE taken SET u = 102 WHERE id = 2; COMMIT'
);
query($n2, <<'EOS');
SELECT injection_points_detach('weft-conflict-store');
SELECT injection_points_wakeup('weft-conflict-store');
EOS
quiet(\@nodes);
is(rows($_, 'taken'), '(2,102,)', 'the newer row stays: ' . $_->name)
  foreach @nodes;
is( history($n2, 'conflict_type, resolution, index_name, local_row IS NULL'),
	'insert_exists|keep_local|taken_u_key|t',
	'the conflict is decided in the next attempt');
is(errors_logged($_), '', $_->name . ' has logged no error') foreach @nodes;
done_testing();
