# Who may create the extension's schema, and who may make others wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $node = new_subscriber('node');
query($node, 'CREATE ROLE squatter LOGIN; CREATE ROLE other LOGIN SUPERUSER');

sub fails_in
{
	my ($database, $sql, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql($database, $sql);

	return like($err, $expected, $what);
}

# A schema that another role has created before.
query($node, 'CREATE DATABASE squatted');
query($node, 'GRANT CREATE ON DATABASE squatted TO squatter');
$node->safe_psql('squatted', <<'EOS');
SET ROLE squatter;
CREATE SCHEMA weft;
CREATE FUNCTION weft.track_deletes(regclass, boolean, text DEFAULT '') RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION weft.check_name(text, name) RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER ROLE squatter SUPERUSER; END $$;
CREATE FUNCTION weft.never(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN ALTER ROLE squatter SUPERUSER; RETURN true; END $$;
CREATE OPERATOR weft.<> (LEFTARG = name, RIGHTARG = text, FUNCTION = weft.never);
EOS
fails_in(
	'squatted',
	'CREATE EXTENSION weft',
	qr/schema "weft" belongs to role "squatter"/,
	'a schema of another role');
$node->safe_psql('squatted', 'ALTER SCHEMA weft OWNER TO CURRENT_USER');
fails_in(
	'squatted',
	'CREATE EXTENSION weft',
	qr/schema "weft" is not empty/,
	'one with objects in it');
$node->safe_psql('squatted',
	'SET client_min_messages = warning; DROP SCHEMA weft CASCADE; CREATE SCHEMA weft; GRANT CREATE ON SCHEMA weft TO squatter'
);
fails_in(
	'squatted',
	'CREATE EXTENSION weft',
	qr/roles other than its owner may create objects in schema "weft"/,
	'one in which another role may create objects');
$node->safe_psql('squatted',
	'REVOKE CREATE ON SCHEMA weft FROM squatter; ALTER SCHEMA weft OWNER TO other; CREATE EXTENSION weft'
);
is( $node->safe_psql(
		'squatted',
		"SELECT rolsuper FROM pg_roles WHERE rolname = 'squatter'"),
	'f',
	'nobody has become a superuser');

# The schema as it is restored from a dump.
query($node, 'CREATE DATABASE restored');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('squatted') ],
	'pg_dump');
$node->command_ok(
	[
		'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $dump,
		$node->connstr('restored')
	],
	'a dump can be restored');

# Nothing that the extension calls depends on the caller's search_path.  A procedure that
# commits cannot set its own: it has neither operators nor names without a schema.
is(query($node, <<'EOS'), '', 'each function has its own search_path');
SELECT p.oid::regprocedure
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'weft'
	JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname NOT IN ('c', 'internal') AND p.prosqlbody IS NULL
	AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
	AND NOT (p.prokind = 'p' AND p.prosrc !~ '[-+*/<>=~!@#%^&|`?:]' AND p.prosrc !~ '(^|[^.[:alnum:]_])[[:alnum:]_]+ *\(')
EOS
is( query($node,
		<<'EOS'), '', 'and objects that are resolved at creation are in pg_catalog or weft');
SELECT DISTINCT pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
FROM pg_depend e JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'weft' AND e.refclassid = 'pg_extension'::regclass
	JOIN pg_depend d ON d.classid = e.classid AND d.objid = e.objid AND d.deptype = 'n'
	LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
	LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
WHERE coalesce(p.pronamespace, o.oprnamespace) NOT IN ('pg_catalog'::regnamespace, 'weft'::regnamespace)
EOS

# An error of a join may quote values of rows.
query($node, <<'EOS');
CREATE ROLE manager;
SELECT weft.grant_node_admin('manager');
INSERT INTO weft.node_group_entry VALUES ('g', NULL, 2);
INSERT INTO weft.join_entry (node_group_name, target_node, copy_schema, error)
	VALUES ('g', 'a', true, 'Key (email)=(a@b) already exists');
EOS
is( query(
		$node,
		"SELECT join_error FROM weft.node_group; SET ROLE manager; SELECT join_error FROM weft.node_group; SET ROLE squatter; SELECT join_error IS NULL, join_step FROM weft.node_group"
	),
	"Key (email)=(a\@b) already exists\nKey (email)=(a\@b) already exists\nt|start",
	'only managers see the error of a join');
query($node,
	'DELETE FROM weft.join_entry; DELETE FROM weft.node_group_entry');

# A role that may not change a table does not queue for its lock.
query($node, <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
ALTER TABLE t REPLICA IDENTITY FULL;
EOS
my $writer = open_session($node);
$writer->query_safe('BEGIN; INSERT INTO t VALUES (1, 1)');
foreach
  my $call ("weft.track_deletes('t')", "weft.set_delta_columns('t', '{n}')")
{
	fails_in(
		'postgres',
		"SET lock_timeout = '10s'; SET ROLE squatter; SELECT $call",
		qr/must be owner of table t/,
		"$call of somebody else's table does not wait");
}

# The owner waits, and must still be the owner then.
my $changer = open_session($node);
query($node, 'CREATE ROLE owner; GRANT owner TO squatter');
$writer->query_safe('COMMIT');
query($node, 'ALTER TABLE t OWNER TO owner');
$writer->query_safe('BEGIN; ALTER TABLE t OWNER TO other');
$changer->query_safe('SET ROLE owner');
$changer->query_until(qr/started/,
	"\\echo started\nSELECT weft.track_deletes('t');\n");
poll($node,
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
);
$writer->query_safe('COMMIT');
# psql exits because of the error
$changer->{run}->finish;
is( query(
		$node,
		"SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass"),
	0,
	'a role that is no longer the owner cannot change anything');
$writer->quit;
$node->stop;
done_testing();
