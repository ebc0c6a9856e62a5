# Older versions of the extension with the current library, and updates from them: what they have created
# goes on, and the catalog is that of a new installation.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my @released = map { basename($_) =~ /^weft--(.*)\.sql$/ }
  sort glob("$FindBin::RealBin/../../sql/released/weft--*.sql");
cmp_ok(scalar @released, '>', 0, 'there are released versions');
# 0.1.0 has views that 19 refuses.
@released = grep { major() < 19 || $_ ne '0.1.0' } @released;

# Everything that belongs to the extension, as text.
my $catalog = <<'EOS';
WITH member AS (
	SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'weft'
), relation AS (
	SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
)
SELECT 'object ' || pg_describe_object(classid, objid, 0)
		|| coalesce(', comment ' || obj_description(objid, (SELECT relname FROM pg_class WHERE oid = classid)), '')
	FROM member
UNION ALL SELECT pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '')
	FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
UNION ALL SELECT 'relation ' || concat_ws(' ', oid::regclass, relkind, relpersistence, relreplident, relacl, reloptions, relrowsecurity, relforcerowsecurity,
		CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END) FROM relation
UNION ALL SELECT 'column ' || concat_ws(' ', r.oid::regclass, row_number() OVER (PARTITION BY r.oid ORDER BY a.attnum), a.attname,
		format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attacl,
		pg_get_expr(d.adbin, d.adrelid), col_description(r.oid, a.attnum))
	FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
UNION ALL SELECT 'constraint ' || concat_ws(' ', r.oid::regclass, c.conname, pg_get_constraintdef(c.oid))
	FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM relation r JOIN pg_index i ON i.indrelid = r.oid
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(t.oid) || t.tgenabled::text
	FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL SELECT 'sequence ' || concat_ws(' ', s.seqrelid::regclass, s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqcycle)
	FROM relation r JOIN pg_sequence s ON s.seqrelid = r.oid
UNION ALL SELECT 'event trigger ' || concat_ws(' ', evtname, evtevent, evtenabled, evtfoid::regproc, evttags)
	FROM pg_event_trigger t JOIN member m ON m.classid = 'pg_event_trigger'::regclass AND m.objid = t.oid
UNION ALL SELECT 'policy ' || concat_ws(' ', p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[],
		pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
	FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
UNION ALL SELECT 'value ' || concat_ws(' ', e.enumtypid::regtype, e.enumlabel,
		row_number() OVER (PARTITION BY e.enumtypid ORDER BY e.enumsortorder))
	FROM pg_enum e JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = e.enumtypid
UNION ALL SELECT 'dumped ' || concat_ws(' ', x.relation::regclass, x.condition)
	FROM pg_extension e, unnest(e.extconfig, e.extcondition) x (relation, condition) WHERE e.extname = 'weft'
UNION ALL SELECT 'schema ' || concat_ws(' ', n.nspname, n.nspacl) FROM pg_namespace n WHERE n.nspname = 'weft'
ORDER BY 1
EOS

# The views of the extension can be read.
sub read_views
{
	my ($node, $what) = @_;
	my @views = split /\n/,
	  query($node,
		q(SELECT oid::regclass FROM pg_class WHERE relnamespace = 'weft'::regnamespace AND relkind = 'v' ORDER BY 1)
	  );
	my @failures;

	foreach my $view (@views)
	{
		my ($result, $out, $err) =
		  $node->psql('postgres', "SELECT count(*) FROM $view");
		push @failures, "$view: $err" if $result != 0;
	}
	is_deeply(\@failures, [], "$what: all views can be read");
	return;
}

my ($a, $b, $sub, $new) = map { new_member($_) } qw(a b sub new);
my $library = query($new, 'SELECT weft.library_version()');
my $expected = query($new, $catalog);
my $pub = new_publisher('pub');
query($pub, 'CREATE TABLE plain (id int PRIMARY KEY, v int)');
query($pub, 'CREATE PUBLICATION p FOR TABLE plain');

foreach my $version (@released)
{
	# --- the current library with the older version ---

	foreach my $node ($a, $b, $sub)
	{
		query($node,
			"DROP EXTENSION weft; CREATE EXTENSION weft VERSION '$version'");
		read_views($node, "version $version");
		like(
			query(
				$node, q(SELECT problem FROM weft.health() WHERE id = 'H001')
			),
			qr/has loaded version \Q$library\E, and the extension has version \Q$version\E/,
			"version $version: the health check says it");
	}
	query($sub, 'CREATE TABLE plain (id int PRIMARY KEY, v int)');
	query($_, 'CREATE TABLE t (id int PRIMARY KEY, v int)') foreach $a, $b;
	query($a, 'INSERT INTO t VALUES (1, 1)');
	my $log = -s $sub->logfile;
	subscribe($pub, $sub, 's', 'p');
	query($pub,
		'INSERT INTO plain SELECT g, g FROM generate_series(1, 100) g');
	wait_for_apply($pub, $sub, 's');
	same_tables($pub, $sub, ['plain'], "version $version: rows are applied");
	is(query($sub, 'SELECT num_writers FROM weft.stat_subscription'),
		2, "version $version: ... by writers");
	$sub->wait_for_log(
		qr/LOG: .*extension "weft" has version \Q$version\E in this database, and the server has loaded version \Q$library\E/,
		$log);
	create_group($a, 'g');
	query($b, sprintf "SELECT weft.create_node('b', \$\$%s\$\$)", dsn($b));
	my ($result, $out, $err) =
	  $b->psql('postgres',
		sprintf "SELECT weft.join_node_group(\$\$%s\$\$, 'g')",
		dsn($a));
	like(
		$err,
		qr/extension "weft" has version \Q$version\E.*HINT: .*ALTER EXTENSION weft UPDATE/s,
		"version $version: a join says what to do first");

	# --- the update ---

	my $load = start_pgbench(
		$pub,
		{
			"\\set id random(1, 100)\nUPDATE plain SET v = v + 1 WHERE id = :id;\n"
			  => 1
		},
		'-T' => 60);
	query($_, 'ALTER EXTENSION weft UPDATE') foreach $a, $b, $sub;
	end_load($load);
	wait_for_apply($pub, $sub, 's');
	same_tables($pub, $sub, ['plain'], "updated from $version: rows");
	foreach my $node ($a, $b, $sub)
	{
		is( query($node, $catalog),
			$expected,
			"updated from $version: the catalog of "
			  . $node->name
			  . ' is that of a new installation');
		is( query(
				$node,
				q(SELECT count(*) FROM weft.health() WHERE id = 'H001')),
			0,
			"updated from $version: the health check is satisfied");
		read_views($node, "updated from $version");
	}
	join_group($b, $a, 'g');
	query($a, 'INSERT INTO t VALUES (2, 2)');
	query($b, 'INSERT INTO t VALUES (3, 3)');
	wait_for_group('g', $a, $b);
	same_on_all([ $a, $b ], ['t'], "updated from $version");
	query($sub, 'DROP SUBSCRIPTION s');
	query($b, q(SELECT weft.part_node('b')));
	query($a, q(SELECT weft.part_node('a')));
	query($_, 'DROP TABLE t') foreach $a, $b;
	query($sub, 'DROP TABLE plain');
}
$_->stop foreach $a, $b, $sub, $new, $pub;
done_testing();
