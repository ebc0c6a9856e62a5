# Cuts: at each, both sides contain the same transactions, whatever the load is.
# WEFT_CUTS is the number of cuts in the longest part.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $cuts = $ENV{WEFT_CUTS} // 40;
my $fewer = int($cuts / 8) || 1;

my $pub = new_publisher('publisher',
	conf =>
	  "debug_logical_replication_streaming = immediate\nlogical_decoding_work_mem = 64kB\ntrack_commit_timestamp = on"
);
my $sub = new_subscriber('subscriber', conf => 'track_commit_timestamp = on');

query_all([ $pub, $sub ], <<EOS);
CREATE TABLE entry (id bigserial PRIMARY KEY, client int);
CREATE TABLE account (id int PRIMARY KEY, v int);
EOS
query($pub, <<EOS);
INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PUBLICATION pub FOR ALL TABLES;
EOS
query($sub, 'CREATE EXTENSION weft_test');

# Exactly the same rows, or another text.
my $state = <<'EOS';
SELECT concat_ws(' ',
	(SELECT concat_ws(',', count(*), sum(id), sum(hashint8(id)::bigint)) FROM public.entry),
	(SELECT md5(string_agg(concat_ws(':', id, v), ',' ORDER BY id)) FROM public.account))
EOS

my $random = "\\set a random(1, 50)\n\\set b random(51, 100)\n";
my $work = <<'EOS';
INSERT INTO entry (client) VALUES (:client_id);
UPDATE account SET v = v + 1 WHERE id = :a;
UPDATE account SET v = v - 1 WHERE id = :b;
EOS
my $flushed = "${random}BEGIN;\n${work}COMMIT;\n";
my $unflushed =
  "${random}BEGIN;\nSET LOCAL synchronous_commit = off;\n${work}COMMIT;\n";
my $savepoints = <<"EOS";
${random}BEGIN;
SAVEPOINT one;
INSERT INTO entry (client) VALUES (-1);
ROLLBACK TO one;
SAVEPOINT two;
${work}RELEASE two;
COMMIT;
EOS
my $prepared = <<"EOS";
${random}\\set name random(1, 1000000000)
BEGIN;
${work}PREPARE TRANSACTION 'p:name:client_id';
COMMIT PREPARED 'p:name:client_id';
EOS
my $large = <<'EOS';
BEGIN;
INSERT INTO entry (client) SELECT :client_id FROM generate_series(1, 300);
COMMIT;
EOS

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return $sorted[ @sorted / 2 ] // 0;
}

# Make cuts, and compare both sides at each.
sub make_cuts
{
	my ($what, $number) = @_;
	my $session = open_session($sub);
	my @wrong;
	my @pauses;
	my $attempts = 0;
	my $late = 0;
	my $made = 0;

	# On a busy machine, a requester may be too late.
	while ($made < $number && $late < 10 * $number)
	{
		my ($here, $there, $held, $tried) = split /\|/,
		  $session->query_safe(
			"SELECT * FROM weft_test_cut('sub', \$\$$state\$\$, 120000)");

		$attempts += $tried;
		push @pauses,
		  $session->query_safe(
			"SELECT round(extract(epoch FROM last_pause) * 1000, 1) FROM weft.stat_cut"
		  );
		if ($held ne 't')
		{
			$late++;
			next;
		}
		$made++;
		push @wrong, "cut $made: here $here, there $there" if $here ne $there;
	}
	$session->quit;
	is(join("\n", @wrong),
		'', "$what: both sides are the same at $number cuts");
	is($made, $number, "$what: cuts last for as long as they may");
	note(
		sprintf
		  '%s: %d cuts, %d too late, %d snapshots, pauses in ms: median %s, worst %s',
		$what,
		$number,
		$late,
		$attempts,
		median(@pauses),
		(sort { $a <=> $b } @pauses)[-1]);
	return;
}

# Begin with an empty subscriber.
sub new_subscription
{
	my ($options) = @_;

	query($sub, 'DROP SUBSCRIPTION IF EXISTS sub');
	query($sub, 'TRUNCATE entry, account');
	subscribe($pub, $sub, 'sub', 'pub', $options);
	wait_for_apply($pub, $sub, 'sub');
	return;
}

sub under_load
{
	my ($what, $number, $scripts, @options) = @_;
	my $last = query($pub, 'SELECT coalesce(max(id), 0) FROM entry');
	my $load =
	  start_pgbench($pub, $scripts, '-c', 16, '-T', 600, '-R', 300, @options);

	poll($pub, "SELECT max(id) > $last + 100 FROM entry");
	make_cuts($what, $number);
	ok(running($load), "$what: the load has run all the time");
	end_load($load);
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, [qw(entry account)], "$what: nothing is lost");
	return;
}

my %mixed = ($flushed => 6, $unflushed => 6, $savepoints => 2, $large => 1);

new_subscription('num_writers = 4, streaming = off');
make_cuts('idle publisher', 5);
under_load('4 writers', $cuts,
	{ $flushed => 3, $unflushed => 3, $savepoints => 1 });

new_subscription('num_writers = 4, streaming = parallel');
under_load('4 writers, streamed', $fewer, \%mixed);

new_subscription('num_writers = 1, streaming = on, two_phase = true');
under_load('1 writer, prepared', $fewer, { %mixed, $prepared => 4 });

new_subscription('num_writers = 0, streaming = on, two_phase = true');
under_load('native, prepared', $fewer, { %mixed, $prepared => 4 });

query($pub, "SELECT pg_create_logical_replication_slot('plain', 'pgoutput')");
new_subscription(
	"num_writers = 4, slot_name = 'plain', create_slot = false, streaming = on"
);
is(query($sub, 'SELECT output_plugin FROM weft.stat_subscription'),
	'pgoutput', 'the slot uses pgoutput');
under_load('pgoutput', $fewer, \%mixed);

new_subscription('num_writers = 2, detect_conflicts = true');
under_load('conflict detection', $fewer, \%mixed);

new_subscription('num_writers = 4, streaming = off');

# A transaction that remains open.
my $open = open_session($pub);
$open->query_safe('BEGIN; INSERT INTO entry (client) VALUES (0)');
under_load('a transaction in progress', $fewer, { $flushed => 1 });
$open->query_safe('COMMIT');
$open->quit;
wait_for_apply($pub, $sub, 'sub');

# The subscription is a synchronous standby.
$pub->append_conf('postgresql.conf', "synchronous_standby_names = 'sub'");
$pub->reload;
under_load('synchronous standby', $fewer, { $flushed => 1 });
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 0)');
under_load('synchronous standby, native', $fewer, { $flushed => 1 });
query($sub, 'ALTER SUBSCRIPTION sub SET (num_writers = 4)');
under_load('synchronous standby, some do not wait',
	$fewer, { $flushed => 1, $unflushed => 1 });

is(errors_logged($sub), '', 'no errors on the subscriber');

done_testing();
