# A member remembers which transactions it has sent to another one (src/publish/sent_commits.c).  More may
# be in flight than it has room for: it must not claim then that fewer are confirmed than there are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b) = map { new_member($_) } qw(a b);
query($a, 'CREATE TABLE t (id int PRIMARY KEY)');
create_group($a, 'g');
join_group($b, $a, 'g');

# Commit transactions, each of which is sent, and return where the WAL ended after each.
sub commit
{
	my ($first, $last) = @_;
	my @ends = split /\n/, query(
		$a,
		join '',
		map {
			"INSERT INTO t VALUES ($_);\nSELECT pg_current_wal_insert_lsn();\n"
		} $first .. $last);
	query($a, 'SELECT pg_current_wal_flush_lsn()');
	# The newest one is always remembered.
	poll($a,
		"SELECT weft.sent_commit('weft_g_a_b', '$ends[-1]') > '$ends[-2]'");
	return @ends;
}

# The position after a transaction is never said to follow an earlier one.
sub check
{
	my ($what, @ends) = @_;
	my $values = join ', ', map { "($_, '$ends[$_]'::pg_lsn)" } 0 .. $#ends;
	is( query(
			$a,
			"WITH e AS (SELECT i, until, lag(until) OVER (ORDER BY i) AS before FROM (VALUES $values) v(i, until))
				SELECT count(*) FROM e WHERE weft.sent_commit('weft_g_a_b', until) <= before"
		),
		0,
		$what);
	return;
}

wait_for_apply($a, $b, 'weft_g_a_b');
my $blocker = open_session($b);
$blocker->query_safe('BEGIN; LOCK TABLE t');
my @ends = commit(1, 80);
check('none is confirmed', @ends);
$blocker->quit;
wait_for_apply($a, $b, 'weft_g_a_b');
poll($a,
	"SELECT confirmed_flush_lsn >= '$ends[-1]' FROM pg_replication_slots WHERE slot_name = 'weft_g_a_b'"
);

# Those of before are forgotten, and a position after the last one is not in doubt.
@ends = commit(81, 82);
my $end = query($a,
	"SELECT weft.sent_commit('weft_g_a_b', '$ends[-1]'), pg_logical_emit_message(false, '', '', true)"
);
$end =~ s/\|.*//;
is( query(
		$a,
		"SELECT weft.sent_commit('weft_g_a_b', pg_current_wal_insert_lsn())"),
	$end,
	'other WAL does not count');
is(query($b, 'SELECT count(*) FROM t WHERE id <= 300'),
	300, 'all has arrived');

$_->stop foreach ($a, $b);
done_testing();
