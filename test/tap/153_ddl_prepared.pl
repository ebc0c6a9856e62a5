# A prepared transaction that changes the schema.  Publishers with Weft refuse it; one where Weft is
# not loaded cannot, so the subscriber does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

my $pub = new_publisher(
	'publisher',
	stock => 1,
	conf => "logical_decoding_work_mem = 64kB\n");
my $sub = new_subscriber('subscriber');

query_all([ $pub, $sub ], 'CREATE TABLE old (id int PRIMARY KEY, v text)');
query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
query($pub,
	query($sub, q{SELECT weft.ddl_capture_script('{pub}', 'table')}));
subscribe($pub, $sub, 'sub', 'pub',
	'two_phase = true, streaming = parallel, ddl = trust_owner');
wait_for_apply($pub, $sub, 'sub');
query($pub, q{CREATE TABLE plain (id int); INSERT INTO plain VALUES (1)});
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, ['plain'], 'a schema change');

# With many rows, the transaction is streamed while it is in progress.
foreach my $rows (3, 5000)
{
	foreach my $writers (2, 0)
	{
		my $what = "$rows rows, $writers writers";
		my $name = "p${rows}_$writers";

		query($sub, "ALTER SUBSCRIPTION sub SET (num_writers = $writers)");
		my $before = query($sub, 'SELECT clock_timestamp()');
		query($pub, <<"EOS");
BEGIN;
INSERT INTO old SELECT g, repeat('x', 100) FROM generate_series((SELECT count(*) + 1 FROM old), (SELECT count(*) + $rows FROM old)) g;
CREATE TABLE $name (id int);
INSERT INTO $name VALUES (1);
PREPARE TRANSACTION '$name';
EOS
		my ($message, $lsn) = apply_error($sub, 'sub', $before);
		is( $message,
			'a prepared transaction for subscription "sub" changes the schema',
			"$what: refused");
		query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
		query($pub, "ROLLBACK PREPARED '$name'");
		query($pub, 'INSERT INTO plain VALUES (2)');
		wait_for_apply($pub, $sub, 'sub');
		same_tables($pub, $sub, [ 'old', 'plain' ], "$what: skipped");
		is( query(
				$sub,
				"SELECT to_regclass('$name'), (SELECT count(*) FROM pg_prepared_xacts)"
			),
			'|0',
			"$what: nothing is there");
	}
}

unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
  foreach $pub, $sub;

$_->stop foreach $sub, $pub;
done_testing();
