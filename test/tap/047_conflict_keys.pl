# Conflict detection and unusual keys: of tables with counters, null, and of periods.

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

my $temporal = major() >= 18;
my @nodes = new_members(2);
my ($n1, $n2) = @nodes;
my $schema = <<'EOS';
CREATE TABLE acc (id int PRIMARY KEY, email text UNIQUE, n int NOT NULL);
ALTER TABLE acc REPLICA IDENTITY FULL;
SELECT weft.set_delta_columns('acc', '{n}');
EOS
$schema .= <<'EOS' if $temporal;
CREATE TABLE booking (room int4range, during int4range, note text, PRIMARY KEY (room, during WITHOUT OVERLAPS));
EOS
create_tables(\@nodes, $schema, 'acc', $temporal ? 'booking' : ());
connect_members(\@nodes);

# The row has moved to another key on the first node, and is counted up on the second one.
sub moved
{
	my ($id, $last, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @updates = (
		[ $n1, "UPDATE acc SET id = $id + 1 WHERE id = $id" ],
		[ $n2, "UPDATE acc SET n = n + 3 WHERE id = $id" ]);

	query($n1, "INSERT INTO acc VALUES ($id, 'mail of $id', 5)");
	quiet(\@nodes);
	cut_off(\@nodes);
	query(@{ $updates[ 1 - $last ] });
	query(@{ $updates[$last] });
	join_again(\@nodes);
	quiet(\@nodes);
	is(rows($_, "acc WHERE id IN ($id, $id + 1)"),
		$expected, "$what, on " . $_->name)
	  foreach @nodes;
	return;
}

moved(10, 0, '(11,"mail of 10",5)', 'the new key is the last update');
moved(20, 1, '(20,"mail of 20",8)', 'the counter is the last update');

# Periods are equal only if they have the same bounds.
if ($temporal)
{
	query($n1,
		"INSERT INTO booking VALUES ('[1,2)', '[10,20)', 'first'), ('[1,2)', '[20,30)', 'second')"
	);
	query($n1, "UPDATE booking SET during = '[10,15)' WHERE note = 'first'");
	quiet(\@nodes);
	query($n2, "UPDATE booking SET during = '[12,20)' WHERE note = 'first'");
	query($n2, "DELETE FROM booking WHERE note = 'second'");
	quiet(\@nodes);
	is( rows($_, 'booking'),
		'("[1,2)","[12,20)",first)',
		'periods on ' . $_->name) foreach @nodes;
}

# A column without NOT NULL is the key of the other node's table.
foreach my $case ([ 'text', "'x'" ], [ 'int', '0' ])
{
	my ($type, $value) = @$case;
	my $table = "key_of_$type";
	my $log_start = -s $n2->logfile;

	query($n1,
		"CREATE TABLE $table (id $type, v int); ALTER TABLE $table REPLICA IDENTITY FULL"
	);
	query($n2,
		"CREATE TABLE $table (id $type PRIMARY KEY, v int); INSERT INTO $table VALUES ($value, 1)"
	);
	query($n1, "ALTER PUBLICATION pub ADD TABLE $table");
	query($n2,
		'ALTER SUBSCRIPTION from_n1 REFRESH PUBLICATION WITH (copy_data = false)'
	);
	query($n1, "INSERT INTO $table VALUES (NULL, 2)");
	$n2->wait_for_log(qr/null value in column "id" of relation "$table"/,
		$log_start);
	query($n2,
		"ALTER TABLE $table DROP CONSTRAINT ${table}_pkey; ALTER TABLE $table ALTER id DROP NOT NULL"
	);
	quiet(\@nodes);
	is(query($n2, "SELECT count(*) FROM $table WHERE id IS NULL"),
		1, "a null of type $type");
}
unlike(slurp_file($n2->logfile), qr/terminated by signal/, 'no crash');

done_testing();
