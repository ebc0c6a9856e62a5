# REPACK (CONCURRENTLY), which is new in PostgreSQL 19, is refused in a node group; other forms are not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'PostgreSQL has no REPACK before 19'
  if PostgreSQL::Test::Cluster->new('version')->pg_version->major < 19;

my ($a, $b) = map { new_member($_) } qw(a b);

query($a,
	"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i"
);

query($a, 'REPACK (CONCURRENTLY) t');

create_group($a, 'g');
join_group($b, $a, 'g');

my $written =
  'SELECT min(pg_xact_commit_timestamp(xmin)), max(pg_xact_commit_timestamp(xmin)) FROM t';
my $before = query($a, $written);

foreach
  my $statement ('REPACK (CONCURRENTLY) t', 'REPACK (CONCURRENTLY true) t')
{
	my ($result, $out, $err) = $a->psql('postgres', $statement);
	like($err, qr/cannot run REPACK \(CONCURRENTLY\) in a node group/,
		$statement);
}
query($a, $_)
  foreach 'REPACK t', 'REPACK (VERBOSE) t USING INDEX t_pkey',
  'REPACK (CONCURRENTLY false) t', 'CLUSTER t USING t_pkey', 'VACUUM FULL t';
is(query($a, $written), $before, 'the others keep when rows were changed');
query($b, "UPDATE t SET v = 'w' WHERE id = 1");
wait_for_group('g', $a, $b);
same_on_all([ $a, $b ], ['t'], 'replicated');

$_->stop foreach $a, $b;
done_testing();
