# weft.compare_subscription(): values that are too large to be shown.
#
# WEFT_MEGABYTES sets their size (default 2).  With up to 1000, it is a measurement: it tells
# how long a comparison and a repair take, and the most memory that a process of each server has
# used (Linux only).  The text of a bytea is twice as long; a row whose text is longer than 1 GB
# cannot be repaired.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $megabytes = $ENV{WEFT_MEGABYTES} // 2;
my $bytes = $megabytes * 1024 * 1024;
my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $both = [ $pub, $sub ];

# A value is too large to be replicated if it is longer than half of what a text can be.
query_all($both, <<EOC);
CREATE TABLE large (id int PRIMARY KEY, b bytea, t text);
CREATE TABLE arrays (id int PRIMARY KEY, b bytea[]);
CREATE TABLE other (id int PRIMARY KEY, v int);
INSERT INTO large (id, b) VALUES (1, convert_to(repeat('0123456789abcdef', $bytes / 16), 'UTF8'));
INSERT INTO large (id, b) SELECT 2, b FROM large WHERE id = 1;
INSERT INTO large (id, t) VALUES (3, repeat('0123456789abcdef', $bytes / 16));
INSERT INTO large (id, t) SELECT 4, t FROM large WHERE id = 3;
INSERT INTO large (id, t) VALUES (5, repeat('é', $bytes / 2));
INSERT INTO large (id, b, t) VALUES (6, 'a', 'b');
INSERT INTO other VALUES (1, 1);
INSERT INTO arrays SELECT 1, ARRAY[b, '\\x00'] FROM large WHERE id = 1 AND $megabytes < 300;
EOC
query($pub, 'CREATE PUBLICATION p FOR TABLE large, arrays, other');
query($sub, <<EOC);
UPDATE large SET b = set_byte(b, $bytes - 1, 0) WHERE id = 2;
UPDATE large SET t = overlay(t placing 'x' from $bytes) WHERE id = 4;
DELETE FROM large WHERE id = 5;
UPDATE large SET t = 'c' WHERE id = 6;
UPDATE other SET v = 2;
EOC
subscribe($pub, $sub, 's', 'p', 'copy_data = false');
wait_for_apply($pub, $sub, 's');

# Watches how much memory the servers' processes use; returns a function that ends it, and tells.
sub watch_memory
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/memory";
	my @postmasters =
	  map { (split /\n/, slurp_file($_->data_dir . '/postmaster.pid'))[0] }
	  @$both;
	my $pid = fork // die "could not fork: $!";

	if ($pid == 0)
	{
		my %most;
		my $end = 0;
		local $SIG{TERM} = sub { $end = 1 };
		until ($end)
		{
			foreach my $status (glob '/proc/[0-9]*/status')
			{
				open my $handle, '<', $status or next;
				local $/;
				my $text = <$handle> // next;
				my ($parent) = $text =~ /^PPid:\s*(\d+)/m or next;
				my ($number) = grep { $postmasters[$_] == $parent } 0, 1;
				next unless defined $number and $text =~ /^VmHWM:\s*(\d+)/m;
				$most{$number} = $1 if $1 > ($most{$number} // 0);
			}
			usleep(100_000);
		}
		unlink $file;
		append_to_file($file,
			join(', ', map { int($most{$_} / 1024) . ' MB' } sort keys %most)
		);
		require POSIX;
		POSIX::_exit(0);
	}
	return
	  sub { kill 'TERM', $pid; waitpid $pid, 0; return slurp_file($file) };
}

# Runs a procedure; as a measurement, tells what it has taken.
sub call
{
	my ($procedure) = @_;
	my $memory = $ENV{WEFT_MEGABYTES}
	  && -e '/proc/self/status' ? watch_memory() : sub { 'unknown' };
	my $start = time;
	my ($ret, $result, $err) =
	  $sub->psql('postgres', "CALL $procedure", timeout => 3600);

	is($ret, 0, $procedure) or die $err;
	note($err);
	diag(
		sprintf
		  '%s, %d MB: %.1f s; the largest process of the publisher and of the subscriber: %s',
		$procedure, $megabytes, time - $start,
		$memory->()) if $ENV{WEFT_MEGABYTES};
	return $result;
}

my $id = call("weft.compare_subscription('s')");

is( query(
		$sub,
		"SELECT table_name, status FROM weft.comparison_table WHERE comparison = $id ORDER BY 1"
	),
	"public.arrays|done\npublic.large|done\npublic.other|done",
	'all tables are compared');
is( query(
		$sub,
		"SELECT relation, key ->> 'id', kind, columns FROM weft.difference WHERE comparison = $id ORDER BY 1, 2"
	),
	<<'EOC' =~ s/\n\z//r, 'values that differ in their last byte are found');
large|2|different|{b}
large|4|different|{t}
large|5|missing here|
large|6|different|{t}
other|1|different|{v}
EOC
my $length = query($sub,
	"SELECT max(length(publisher_row::text)), max(length(local_row::text)) FROM weft.difference WHERE comparison = $id"
);
cmp_ok($_, '<', 50000, 'what is stored of a row is short')
  foreach split /\|/, $length;
is( query(
		$sub,
		"SELECT publisher_row ->> 'b' LIKE '\\\\x3031%... ($bytes bytes, hash %)' FROM weft.difference WHERE comparison = $id AND key ->> 'id' = '2'"
	),
	't',
	'with the length of the value');

call("weft.repair($id, apply => true, max_pause => '1 h')");
is( query(
		$sub,
		"SELECT key ->> 'id' FROM weft.difference WHERE comparison = $id AND repair_result = 'failed'"
	),
	$megabytes < 512 ? '' : '2',
	'all rows are repaired whose text has less than 1 GB');
like(
	query(
		$sub,
		"SELECT repair_reason FROM weft.difference WHERE comparison = $id AND repair_result = 'failed'"
	),
	qr/^could not read rows of table public\.large from the publisher: /,
	'the other one is reported') if $megabytes >= 512;

if (!$ENV{WEFT_MEGABYTES})
{
	$id = query($sub, "CALL weft.compare_subscription('s')");
	is( query(
			$sub,
			"SELECT key ->> 'id' FROM weft.difference WHERE comparison = $id ORDER BY 1"
		),
		'',
		'once they are repaired, both sides are equal');
}

done_testing();
