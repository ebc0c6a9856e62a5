# The subscriber's disk is full: while rows are copied, while indexes are built, while a
# streamed transaction is spooled.  The error reports it, nothing is left behind, and
# replication resumes by itself once there is space.
#
# A limit on the size of files has the same effect on the server as a full disk, and an
# ordinary user can set it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CopyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan
  skip_all => 'prlimit is not there'
  if !grep { -x "$_/prlimit" } split /:/,
  $ENV{PATH};

# The error message for files that may not grow.
my $no_room = qr/File too large/;

# Streamed values are spooled as they are sent, and stored compressed.
my $pub = new_publisher('publisher', conf => <<'EOC');
logical_decoding_work_mem = 64kB
EOC
my $sub = copy_subscriber('subscriber', conf => 'maintenance_work_mem = 1MB');

query_all([ $pub, $sub ], <<'EOS');
CREATE TABLE heap (id int PRIMARY KEY, t text);
CREATE TABLE indexed (id int PRIMARY KEY, t text);
CREATE TABLE streamed (id int PRIMARY KEY, t text);
EOS
# An index that is larger than its table.
query($sub,
		'CREATE INDEX ON indexed (('
	  . join(' || ', map { "md5(t || $_)" } 1 .. 10)
	  . '))');
query($pub, <<'EOS');
INSERT INTO heap SELECT i, repeat(md5(i::text), 40) FROM generate_series(1, 32000) i;
INSERT INTO indexed SELECT i, md5(i::text) FROM generate_series(1, 120000) i;
CREATE PUBLICATION p_heap FOR TABLE heap;
CREATE PUBLICATION p_indexed FOR TABLE indexed;
CREATE PUBLICATION p_streamed FOR TABLE streamed;
EOS

# Limits the size of files that processes write from now on.
sub set_room
{
	my ($bytes) = @_;
	my ($pid) = split /\n/, slurp_file($sub->data_dir . '/postmaster.pid');

	system_or_bail('prlimit', '--pid', $pid, "--fsize=$bytes:");
	return;
}

sub files
{
	return join "\n", sort grep { -f }
	  map { glob $sub->data_dir . "/base/pgsql_tmp/$_" } '*', '*/*';
}

# A failed attempt is retried, and succeeds once there is space.
sub run_out_of_room
{
	my ($what, $table, $error, $make_work) = @_;
	my $start = -s $sub->logfile;
	my $before = files();
	my $log;

	# A process that needs a buffer writes out a page of another table; that must not fail.
	query($sub, 'CHECKPOINT');
	set_room(32 * 1024 * 1024);
	$make_work->();
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$log = slurp_file($sub->logfile, $start);
		last
		  if $log =~
		  /$no_room.*worker for subscription "$table".* has started.*$no_room/s;
		select undef, undef, undef, 0.1;
	}
	like($log, $error, "$what: the error says what needed space");
	is(query($sub, "SELECT count(*) FROM $table"),
		0, "$what: no row is visible");
	unlike(
		$log,
		qr/replication origin .* is already active/,
		"$what: the next worker does not start too early");
	set_room('unlimited');
	wait_for_apply($pub, $sub, $table);
	same_tables($pub, $sub, [$table], "$what: equal, once there is space");
	indexes_sound($sub, $what);
	nothing_left($pub, $what);
	poll($sub, 'SELECT NOT EXISTS (SELECT FROM weft.stat_stream)') if weft();
	is(files(), $before, "$what: no file is left");
	return;
}

run_out_of_room(
	'rows', 'heap',
	qr/could not extend file .*$no_room/,
	sub { subscribe($pub, $sub, 'heap', 'p_heap') });
run_out_of_room(
	'index', 'indexed',
	qr/could not (extend|write)[^\n]*$no_room/,
	sub { subscribe($pub, $sub, 'indexed', 'p_indexed') });

# The native worker writes a file only with "on".
subscribe($pub, $sub, 'streamed', 'p_streamed',
	'streaming = ' . (weft() ? 'parallel' : 'on'));
wait_for_apply($pub, $sub, 'streamed');
run_out_of_room(
	'stream',
	'streamed',
	qr/could not write[^\n]*$no_room/,
	sub {
		pause_subscription($sub, 'streamed');
		query($sub, 'ALTER SUBSCRIPTION streamed ENABLE');
		query($pub,
			"INSERT INTO streamed SELECT i, repeat('x', 10000) FROM generate_series(1, 5000) i"
		);
	});
if (weft())
{
	cmp_ok(copied_by($sub, "public.$_"), '>', 0, "$_: Weft has copied it")
	  foreach qw(heap indexed);
}

$sub->stop;
$pub->stop;
done_testing();
