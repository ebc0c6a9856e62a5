# pg_upgrade of a member whose next transaction begins a new file of commit times, which does not exist yet
# (src/conflict/commit_files.c), and weft.finish_upgrade() with a directory where the files are missing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
my $previous = previous_server();
plan skip_all => 'needs the previous major version, which Weft supports, too'
  unless $previous;

my $per_file = 26208;
my ($a, $b) = map { new_member($_, install_path => $previous) } qw(a b);
query($a,
	q(CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'first' FROM generate_series(1, 10) g)
);
create_group($a, 'g');
join_group($b, $a, 'g');

# A change that a does not have, and that is older than what a has.
pause_subscription($a, 'weft_g_b_a');
query($b, q(UPDATE t SET v = 'older, of b' WHERE id = 1));
query($a, q(UPDATE t SET v = 'newer, of a' WHERE id = 1));
wait_for_apply($a, $b, 'weft_g_a_b');

my $next = query($a, <<"EOS");
DO \$\$ BEGIN
	WHILE pg_snapshot_xmax(pg_current_snapshot())::text::bigint % $per_file <> 0 LOOP
		PERFORM pg_current_xact_id();
		COMMIT;
	END LOOP;
END \$\$;
SELECT pg_snapshot_xmax(pg_current_snapshot());
EOS
my $times =
  'SELECT string_agg(concat_ws($$ $$, id, pg_xact_commit_timestamp(xmin)), $$,$$ ORDER BY id) FROM t';
my $times_before = query($a, $times);

$a->stop;
my ($controls) = run_command(
	[ $a->config_data('--bindir') . '/pg_controldata', $a->data_dir ]);
like($controls, qr/NextXID: +0:$next$/m, 'the next transaction');
is($next % $per_file, 0, '... begins a new file');
my $directory = $a->data_dir;
my $new = upgrade_server($a);
my $finish = sprintf 'SELECT weft.finish_upgrade($$%s$$)', $directory;
query($new, q(ALTER SUBSCRIPTION weft_g_b_a ENABLE));

rename "$directory/pg_commit_ts", "$directory/away"
  or die "could not rename: $!";
my ($ret, $out, $err) = $new->psql('postgres', $finish);
like($err, qr/ERROR:  directory ".*" has no commit times/, 'no files');
rename "$directory/away", "$directory/pg_commit_ts"
  or die "could not rename: $!";
query($new, $finish);
is(query($new, $times), $times_before, 'commit times are as before');

wait_for_group('g', $new, $b);
is(query($_, 'SELECT v FROM t WHERE id = 1'),
	'newer, of a', 'the newer one wins on ' . $_->name)
  foreach $new, $b;

$_->stop foreach $new, $b;
done_testing();
