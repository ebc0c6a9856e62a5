# Functions that the tests of replicated schema changes share.
package DdlTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run ();
use Test::More;
use WeftTest;

our @EXPORT = qw(
  $rows_of all_rows
  subscribe_with_pgoutput schema_of same_schema same_everything
  user_tables apply_error keep_catalogs start_query
);

# What users have defined, one line for each fact, by names and definitions.
my $schema_query = <<'EOQ';
WITH own AS (
	SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
	WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'weft')),
own_type AS (
	SELECT t.* FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace
	WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'weft'))
SELECT line FROM (
	SELECT format('relation %s %s %s %s %s %s', oid::regclass, relkind, relreplident,
		pg_get_userbyid(relowner), reloptions, pg_get_expr(relpartbound, oid)) AS line
		FROM own
	UNION ALL
	SELECT format('column %s.%I %s %s %s %s%s %s', attrelid::regclass, attname,
		format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid),
		attidentity, attgenerated, attcollation::regcollation)
		FROM own JOIN pg_attribute ON attrelid = own.oid AND attnum > 0 AND NOT attisdropped
			LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	UNION ALL
	SELECT format('constraint %s %s %s %s', conrelid::regclass, contypid::regtype, conname,
		pg_get_constraintdef(pg_constraint.oid))
		FROM pg_constraint
		WHERE conrelid IN (SELECT oid FROM own) OR contypid IN (SELECT oid FROM own_type)
	UNION ALL
	SELECT format('index %s %s', pg_get_indexdef(indexrelid), indisvalid)
		FROM pg_index WHERE indrelid IN (SELECT oid FROM own)
	UNION ALL
	SELECT format('sequence %s %s %s %s %s', seqrelid::regclass, seqtypid::regtype, seqincrement,
		seqmax, seqcycle)
		FROM pg_sequence WHERE seqrelid IN (SELECT oid FROM own)
	UNION ALL
	SELECT format('type %s %s %s %s', oid::regtype, typtype, typnotnull, typbasetype::regtype)
		FROM own_type
	UNION ALL
	SELECT format('enum %s %s', enumtypid::regtype,
		array_agg(enumlabel ORDER BY enumsortorder))
		FROM pg_enum WHERE enumtypid IN (SELECT oid FROM own_type) GROUP BY enumtypid
) facts ORDER BY line COLLATE "C"
EOQ

sub schema_of
{
	my ($node) = @_;
	return query($node, "SET search_path = ''; " . $schema_query);
}

# One test: both nodes have the same schema.
sub same_schema
{
	my ($pub, $sub, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $expected = schema_of($pub);

	BAIL_OUT('the schema is empty') if $expected eq '';
	return same_rows(schema_of($sub), $expected, $what);
}

# The tables of users, with their schemas.
sub user_tables
{
	my ($node) = @_;
	return split /\n/, query($node, <<'EOQ');
SET search_path = '';
SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'weft')
ORDER BY 1
EOQ
}

# Two tests: schemas and rows are the same.
sub same_everything
{
	my ($pub, $sub, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	same_schema($pub, $sub, "$what: same schema");
	same_tables($pub, $sub, [ user_tables($pub) ], "$what: same rows");
	return;
}

# A subscription whose slot uses pgoutput, though the publisher offers Weft's plugin.
sub subscribe_with_pgoutput
{
	my ($pub, $sub, $name, $publication, $options) = @_;

	query($pub,
		"SELECT pg_create_logical_replication_slot('$name', 'pgoutput')");
	subscribe($pub, $sub, $name, $publication,
		'create_slot = false' . ($options ? ", $options" : ''));
	return;
}

# Wait until a subscription has failed since "before"; return message and LSN of the failure.
sub apply_error
{
	my ($sub, $name, $before) = @_;

	poll($sub,
		"SELECT last_error_time > '$before' FROM weft.stat_subscription WHERE subname = '$name'"
	);
	return split /\|/,
	  query($sub,
		"SELECT last_error, last_error_lsn FROM weft.stat_subscription WHERE subname = '$name'"
	  );
}

# A function that all_rows() needs: it does not depend on the order of columns, which may differ among
# the members of a node group.
our $rows_of = <<'EOQ';
CREATE FUNCTION rows_of(regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	columns text := (SELECT string_agg(format('%I', attname), ', ' ORDER BY attname COLLATE "C")
		FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped);
	result text;
BEGIN
	EXECUTE format('SELECT count(*) || '' '' || coalesce(md5(string_agg(r::text, '','' ORDER BY r::text COLLATE "C")), '''')'
		' FROM (SELECT %s FROM %s) r', columns, $1) INTO result;
	RETURN result;
END $$;
EOQ

# How many rows each table has, and a hash of them; for many tables.
sub all_rows
{
	return query($_[0], <<'EOQ');
SELECT c.oid::regclass || ' ' || rows_of(c.oid) FROM pg_class c
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
ORDER BY c.oid::regclass::text COLLATE "C"
EOQ
}

# With pages of catalogs pruned in the middle of a transaction, a row may take the place of one that
# was rolled back, which an assertion of the server's logical decoding does not expect.  An old
# snapshot prevents that: return a session that has one.
sub keep_catalogs
{
	my ($node) = @_;
	my $session;

	query($node, 'VACUUM');
	$session = open_session($node);
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	return $session;
}

# A query in the background; finish() waits for it.
sub start_query
{
	my ($node, $sql) = @_;
	my $query = { node => $node, output => '' };
	my @command = (
		$node->installed_command('psql'),
		'-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
		'-c', $sql);

	$query->{run} =
	  IPC::Run::start(\@command, '<', \undef, '>&', \$query->{output});
	return $query;
}

1;
