# A node joins while a change is on its way to the member that it copies from, where the
# change loses a conflict against a copied row: the new node must decide as the others
# do, although it was not there.  The same for deleted rows and for counters.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) = map { new_member($_) } qw(a b c);

query($a, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 0);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE "Odd" (a text, b bytea, "c d" timestamptz, v text, PRIMARY KEY ("c d", b, a));
INSERT INTO t SELECT i, 'old' FROM generate_series(1, 20) i;
INSERT INTO "Odd" SELECT i, '\x00ff', '2000-01-01 00:00:00.123456+00', 'old' FROM generate_series(1, 3) i;
EOS
create_group($a, 'g');
query($a, "SELECT weft.set_delta_columns('t', '{n}')");
join_group($b, $a, 'g');

# The join cannot take its snapshot while this transaction runs, and as long as it tries,
# "a" applies nothing from "b".
my $session = open_session($a);
$session->query_safe('BEGIN; SELECT txid_current()');
start_join($c, $a, 'g');
poll($c, "SELECT step = 'copy' FROM weft.join_entry");
poll($a,
	"SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'weft_g_a_c'"
);

# On "b" first; therefore it loses.
query($b, <<'EOS');
UPDATE t SET v = 'from b', n = n + 1 WHERE id IN (1, 2, 3);
UPDATE "Odd" SET v = 'from b' WHERE a IN ('1', '2');
DELETE FROM t WHERE id = 4;
UPDATE t SET v = 'from b' WHERE id = 5;
EOS
query($a, <<'EOS');
UPDATE t SET v = 'from a', n = n + 10 WHERE id IN (1, 2);
UPDATE "Odd" SET v = 'from a' WHERE a = '1';
UPDATE t SET v = 'from a' WHERE id = 4;
DELETE FROM t WHERE id = 5;
EOS
is(query($a, "SELECT count(*) FROM t WHERE v = 'from b'"),
	0, 'changes of "b" are not on "a" yet');
$session->query_safe('COMMIT');
$session->quit;
wait_for_join($c);

wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], [ 't', '"Odd"' ], 'all decide alike');
is( query($c, 'SELECT id, v, n FROM t WHERE id <= 6 ORDER BY id'),
	"1|from a|11\n2|from a|11\n3|from b|1\n4|from a|0\n6|old|0",
	'the later change is there, and counters have both');
is( query($c, 'SELECT a, v FROM "Odd" ORDER BY a'),
	"1|from a\n2|from b\n3|old",
	'with other keys, too');

# A copied row is in no conflict that its original is not in.
query($b, "UPDATE t SET v = 'later' WHERE id > 10");
wait_for_group('g', $a, $b, $c);
my $conflicts =
  q{SELECT key, conflict_type FROM weft.conflict_history WHERE relation = 'public.t' AND (key ->> 'id')::int > 10};
my %known = map { $_ => 1 } split /\n/, query($a, $conflicts);
is(join(', ', grep { !$known{$_} } split /\n/, query($c, $conflicts)),
	'', 'no conflict that the other members do not have');
same_on_all([ $a, $b, $c ], ['t'], 'changes of copied rows');

$_->stop foreach ($a, $b, $c);
done_testing();
