# Old tombstones are removed even if there is no writer: by the sessions that create new
# ones.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $node = new_member('node', conf => "weft.tombstone_retention = '1s'\n");

query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 3000);
SELECT weft.track_deletes('t');
DELETE FROM t WHERE id <= 500;
EOS
is(query($node, 'SELECT count(*) FROM weft.tombstone'),
	500, 'deleted rows are remembered');
my $newest = query($node, 'SELECT max(recorded_at) FROM weft.tombstone');
poll($node,
	"SELECT clock_timestamp() > '$newest'::timestamptz + interval '2 s'");

# Every thousandth tombstone of a session removes up to a thousand.
my $start = time;
query($node, 'DELETE FROM t WHERE id BETWEEN 501 AND 2500');
my $duration = time - $start;
is( query(
		$node,
		"SELECT count(*) FROM weft.tombstone WHERE recorded_at <= '$newest'"),
	0,
	'old ones are removed');
SKIP:
{
	skip 'the first of them may have been old when the last were made', 1
	  if $duration >= 1;
	is(query($node, 'SELECT count(*) FROM weft.tombstone'),
		2000, 'and no others');
}
$node->stop;
done_testing();
