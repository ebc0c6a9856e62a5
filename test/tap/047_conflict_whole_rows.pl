# Unique indexes that depend on the row as a whole, or on no column: rows that a subscription
# deletes leave claims to their values there as well.  The publishers are simulated in Perl.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use ConflictTest;
use FakePublisher;
use PgOutput;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use TimedPublisher;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my ($int4, $text) = (23, 25);
my $node = new_member('node');
my $pub = FakePublisher->new(log => $node->logfile);

query($node, <<'EOS');
CREATE TABLE single (id int PRIMARY KEY, v text);
CREATE UNIQUE INDEX ON single ((true));
CREATE TABLE whole (id int PRIMARY KEY, v text);
CREATE FUNCTION value_of(whole) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN ($1).v; END';
CREATE UNIQUE INDEX ON whole (value_of(whole));
INSERT INTO weft.conflict_node VALUES ('', 2);
EOS
my %relid = (single => 16001, whole => 16002);
$pub->relation($relid{$_}, 'public', $_, 'd',
	[ [ 'id', $int4, 1 ], [ 'v', $text, 0 ] ])
  foreach sort keys %relid;
subscribe_to($node, $pub, [qw(single whole)], 1 => 1, 3 => 1);

# s1 stores row 1, gives its value up, and s3 has stored row 2 with the same value before all
# that; whatever comes first, row 2 has lost to row 1.
my $time = microseconds() - 100_000_000;
foreach my $table (sort keys %relid)
{
	my $r = $relid{$table};
	my %give_up = (
		'a delete' => msg_delete($r, key => [ 1, undef ]),
		'an update' => msg_update($r, [ 1, 'b' ]));

	foreach my $how (sort keys %give_up)
	{
		# what depends on no column cannot be given up by an update
		next if $table eq 'single' && $how eq 'an update';
		my $left = $how eq 'an update' ? 1 : '';
		my @from_1 = (
			[ 1, $time + 10, msg_insert($r, [ 1, 'a' ]) ],
			[ 1, $time + 20, $give_up{$how} ]);
		my @from_3 = ([ 3, $time, msg_insert($r, [ 2, 'a' ]) ]);

		foreach my $order ([ @from_3, @from_1 ], [ @from_1, @from_3 ])
		{
			foreach my $change (@$order)
			{
				publish(@$change);
				arrived($change->[0]);
			}
			is( query($node, "SELECT string_agg(id::text, ',') FROM $table"),
				$left,
				"$table, $how: s$order->[0][0] comes first");
			query($node, "DELETE FROM $table; TRUNCATE weft.tombstone");
		}
	}
}

is(errors_logged($node), '', 'no errors');
drop_subscription(1, 3);
$pub->stop;
done_testing();
