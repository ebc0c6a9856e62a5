# Weft in the layout of CloudNativePG's extension images, /lib and /share/extension, which the server finds
# with dynamic_library_path and extension_control_path.
#
# The test server has Weft in its own folders, too; therefore the image comes first in both paths, and the
# test looks at what the processes have loaded.  tools/package-trial.sh runs servers that have no other Weft.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use File::Copy     qw(copy);
use File::Path     qw(make_path);
use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();
plan skip_all => 'extension_control_path came with PostgreSQL 18'
  if major() < 18;

my $image = PostgreSQL::Test::Utils::tempdir();
make_path("$image/lib", "$image/share/extension");
my %folder = map {
	my ($dir) = run_command([ 'pg_config', "--$_" ]);
	$_ => $dir
} qw(pkglibdir sharedir);
copy("$folder{pkglibdir}/weft.so", "$image/lib/")
  or die "copying weft.so: $!";
for my $file (glob "$folder{sharedir}/extension/weft{.control,--*.sql}")
{
	copy($file, "$image/share/extension/") or die "copying $file: $!";
}
append_to_file("$image/share/extension/weft.control",
	"comment = 'from the image'\n");

my $conf = <<"EOC";
extension_control_path = '$image/share:\$system'
dynamic_library_path = '$image/lib:\$libdir'
EOC
my $pub = new_publisher('publisher', conf => $conf);
my $sub = new_subscriber('subscriber', conf => $conf);

# The copies of weft.so that a process has loaded.
sub loaded
{
	my ($pid) = @_;
	my %files =
	  map { $_ => 1 } slurp_file("/proc/$pid/maps") =~ m{(/\S*/weft\.so)$}mg;
	return join ' ', sort keys %files;
}

is( query(
		$sub,
		"SELECT obj_description(oid, 'pg_extension') FROM pg_extension WHERE extname = 'weft'"
	),
	'from the image',
	'the extension is that of the image');

query($pub, 'CREATE EXTENSION weft');
query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, n int)');
query($pub, 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g');
query($pub, 'CREATE PUBLICATION pub FOR TABLE t WITH (ddl = table)');
subscribe($pub, $sub, 'sub', 'pub', 'num_writers = 3');
wait_for_apply($pub, $sub, 'sub');
query($pub, 'UPDATE t SET n = n + 1');
query($pub, 'ALTER TABLE t ADD COLUMN more int DEFAULT 7');
query($pub, 'INSERT INTO t SELECT g, 0 FROM generate_series(1001, 2000) g');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['t'], 'both have the same rows');

is( query(
		$pub,
		"SELECT plugin FROM pg_replication_slots WHERE slot_name = 'sub'"),
	'weft',
	'the publisher sends with the plugin of the image');

SKIP:
{
	skip 'what a process has loaded is in /proc', 1 unless -e "/proc/$$/maps";
	my ($walsender) =
	  query($pub, 'SELECT pid FROM pg_stat_replication') =~ /(\d+)/;
	my @writers = writer_pids($sub, 'sub');
	cmp_ok(scalar @writers, '>', 0, 'there are writers');
	is(loaded($_->[1]), "$image/lib/weft.so",
		"$_->[0] has loaded the library of the image")
	  for [
		'the publisher',
		slurp_file($pub->data_dir . '/postmaster.pid') =~ /^(\d+)/
	  ],
	  [ 'its walsender', $walsender ],
	  [ 'the leader', leader_pid($sub, 'sub') ],
	  map { [ 'a writer', $_ ] } @writers;
}

done_testing();
