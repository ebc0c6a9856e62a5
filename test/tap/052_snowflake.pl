# weft.snowflake_nextval: values are unique and ascending, even across restarts and if
# the clock is set back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $node = new_member('a');

query($node, <<'EOS');
CREATE SEQUENCE s;
CREATE SEQUENCE small AS integer;
CREATE TABLE t (id bigint);
CREATE ROLE taker LOGIN;
CREATE ROLE nobody LOGIN;
GRANT USAGE ON SEQUENCE s TO taker;
EOS

sub fails
{
	my ($sql, $message, $what) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	like($err, $message, $what);
	return;
}
fails(
	"SELECT weft.snowflake_nextval('s')",
	qr/this database is not a member of a node group/,
	'not outside a group');
create_group($node, 'g');

# The parts of a value.
my ($sign, $ms, $id, $count) = split /\|/, query($node, <<'EOS');
SELECT v >> 63, (v >> 22) - (extract(epoch FROM clock_timestamp() - timestamptz '2024-01-01 00:00:00+00') * 1000)::bigint,
	(v >> 12) & 1023, v & 4095
FROM weft.snowflake_nextval('s') v
EOS
is($sign, 0, 'not negative');
cmp_ok(abs $ms, '<', 10_000, 'it contains the time');
is($id, 1, 'so is the node');

# Errors.
fails(
	"SELECT weft.snowflake_nextval('t')",
	qr/"t" is not a sequence/,
	'not a sequence');
fails(
	"SELECT weft.snowflake_nextval('small')",
	qr/out of bounds for sequence "small"/,
	'too small a sequence');
fails(
	"SET ROLE nobody; SELECT weft.snowflake_nextval('s')",
	qr/permission denied for sequence s/,
	'no privileges');
like(query($node, "SET ROLE taker; SELECT weft.snowflake_nextval('s')"),
	qr/^\d+$/m, 'USAGE is enough');

# Many at once, from many sessions, more than fit into the milliseconds.
my $load = start_pgbench(
	$node,
	{
		"INSERT INTO t SELECT weft.snowflake_nextval('s') FROM generate_series(1, 5000);\n"
		  => 1
	},
	'-c' => 4,
	'-t' => 10);
finish($load);
is(query($node, 'SELECT count(*) - count(DISTINCT id) FROM t'),
	0, 'no number twice');
is( query(
		$node,
		"SELECT bool_and(v > previous) FROM (SELECT v, lag(v) OVER () AS previous FROM (SELECT weft.snowflake_nextval('s') AS v FROM generate_series(1, 5000)) x) y"
	),
	't',
	'growing');

# The state that the server would find if its clock had been set back by an hour while it
# was down: a reserved time in the future, of another run.
my $future = query($node,
	"SELECT setval('s', ((last_value >> 20) + 3600000) << 20 | (last_value & 1048575)) FROM s"
);
query($node, "SELECT weft.snowflake_nextval('s')");
$node->restart;
my $after = query($node, "SELECT weft.snowflake_nextval('s')");
cmp_ok(
	$after >> 22,
	'>=',
	$future >> 20,
	'continues after the reserved values');
my $reserved = query($node, 'SELECT last_value FROM s');
cmp_ok($reserved >> 20, '>', $after >> 22, 'and has reserved more');

$node->stop('immediate');
$node->start;
my $again = query($node, "SELECT weft.snowflake_nextval('s')");
cmp_ok($again, '>', $after, 'after a crash, too');
is( errors_logged($node) =~
	  s/^.*(not a member|not a sequence|out of bounds|permission denied).*\n?//mgr,
	'',
	'no other errors');
$node->stop;
done_testing();
