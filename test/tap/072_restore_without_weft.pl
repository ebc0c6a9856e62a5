# A subscriber's dump is restored where Weft is not loaded: the steps that docs/parameters.md gives are
# sufficient.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'track_commit_timestamp = on');
my $stock = new_publisher('stock', stock => 1);
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";

query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, n int)');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t');
query($pub, 'INSERT INTO t VALUES (1, 1)');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 3, detect_conflicts = on');
wait_for_apply($pub, $sub, 'sub');

sub dump_with
{
	my (@options) = @_;
	$sub->command_ok(
		[ 'pg_dump', '-f', $file, @options, $sub->connstr('postgres') ],
		"dumped with @options");
	return;
}

sub restore
{
	return $stock->psql('postgres', slurp_file($file), on_error_stop => 1);
}

dump_with('--no-security-labels');
isnt((restore())[0], 0, 'the extension is in the way');
query($stock, 'DROP TABLE IF EXISTS t; DROP SCHEMA IF EXISTS weft');
dump_with('--no-security-labels', '--exclude-extension=weft');
my ($ret, $stdout, $stderr) = restore();
is($ret, 0, 'without it, the rest is restored') or diag $stderr;
is(query($stock, 'SELECT id, n FROM t'), '1|1', 'with its rows');
is(query($stock, 'SELECT subname FROM pg_subscription'),
	'sub', 'and the subscription');

done_testing();
