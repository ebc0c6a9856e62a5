# Schemas as a hostile owner of tables would write them: names and literals with
# quotes, line breaks, comment signs, dump headers, backslashes, dollar quotes and
# psql's commands, all of which try to run statements of their own.
package HostileSchema;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Encode qw(encode_utf8);
use WeftTest;

our @EXPORT = qw(hostile_schema definition traces $owner);

# An ordinary role on the publisher.
our $owner = 'hostile';

# The statement that must not run.
my @statements = (
	'CREATE TABLE public.trace ()',
	'ALTER ROLE hostile SUPERUSER',
	'CREATE ROLE trace SUPERUSER',
	'DROP TABLE public.bystander',
	'ALTER TABLE public.bystander ADD COLUMN trace int',
	"COMMENT ON TABLE public.bystander IS 'trace'");

# Used in literals of any length, and, truncated, in names.
sub fragment
{
	my $statement = $statements[ rand @statements ];
	my $head =
	  "\n--\n-- Name: x; Type: TABLE; Schema: public; Owner: x\n--\n\n";
	my @fragments = (
		"$head$statement;\n",
		"$head$statement;$head",
		"'$head$statement;$head'",
		"$head$statement; --",
		"'; $statement; --",
		"\"; $statement; --",
		"\\'; $statement; --",
		"''; $statement; --",
		"\\\\'; $statement; --",
		"\n; $statement;\n",
		"\r\n$statement;\r\n",
		"*/ ; $statement; /*",
		"\$\$; $statement; \$\$",
		"\$_\$; $statement; \$_\$",
		"\n\\. \n$statement;\n",
		"\n\\restrict x\n$statement;\n",
		"\n\\unrestrict x\n$statement;\n",
		"\n\\! touch trace\n",
		"\n\\connect postgres\n",
		"`touch trace`",
		"\$(touch trace)",
		"';touch trace;'",
		"\";touch trace;\"",
		"\nSET standard_conforming_strings = off;\n\\'; $statement;\n",
		"\n[weft]\nhost=/nowhere\n",
		"\ninclude table *\n",
		"--", "/*", "*/", ";", "'", '"', "\\", "\\\\", "\n", "\r", "\t", ' ',
		'.',
		'*', '?', '#', '!', '|', '+', '(', ')', '[]', '{', '}', '^', '$',
		'$1', '%s',
		'%n', "E'", "U&'\\0027", "\x{e4}", "\x{df}", "\x{fe}", 'Upper',
		'null', 'select',
		'DEFAULT', 'public.', 'Type: TABLE', 'weft', 'plain');
	return $fragments[ rand @fragments ];
}

sub text
{
	my ($max) = @_;
	return join '', map { fragment() } 1 .. 1 + rand($max // 4);
}

# At most 63 bytes long, and never used before.
my $names = 0;

sub name
{
	my $name = text(3) . $names++;
	$name = substr($name, 0, 30) . substr($name, -20) if length $name > 50;
	$name =~ s/^pg_//;
	return $name;
}

sub literal
{
	my ($text) = @_;
	$text =~ s/\\/\\\\/g;
	$text =~ s/'/''/g;
	return "E'$text'";
}

sub quoted
{
	my ($name) = @_;
	return '"' . $name =~ s/"/""/gr . '"';
}

# The server makes up names of sequences, which may be too long in another encoding.
sub table
{
	my ($schema, $sequences) = @_;
	my $name = quoted($schema) . '.' . quoted(name());
	my @columns = map { quoted(name()) } 1 .. 4;
	my ($key, $number, @texts) = @columns;
	my $partitioned = rand() < 0.4;
	my ($type) = rand() < 0.5 ? 'serial' : 'int GENERATED ALWAYS AS IDENTITY';
	my @sql;

	$type = 'int' if $partitioned || !$sequences;
	push @sql,
	  "CREATE TABLE $name ($key $type, $number int NOT NULL, "
	  . join(', ',
		map { "$_ text DEFAULT " . literal(text()) . ' COLLATE "C"' } @texts)
	  . ', '
	  . quoted(name())
	  . ' text GENERATED ALWAYS AS ('
	  . $texts[0] . ' || '
	  . literal(text())
	  . ') STORED'
	  . ', CONSTRAINT '
	  . quoted(name())
	  . " CHECK ($texts[0] <> "
	  . literal(text()) . ')'
	  . ', CONSTRAINT '
	  . quoted(name())
	  . ' PRIMARY KEY ('
	  . ($partitioned ? "$key, $texts[1]" : $key) . '))'
	  . (
		$partitioned
		? " PARTITION BY LIST ($texts[1])"
		: ' WITH (fillfactor = 70)');

	if ($partitioned)
	{
		push @sql,
			"CREATE TABLE "
		  . quoted($schema) . '.'
		  . quoted(name())
		  . " PARTITION OF $name FOR VALUES IN ("
		  . literal(text())
		  . ", 'v$_')"
		  foreach 1 .. 2;
	}
	else
	{
		push @sql,
			"ALTER TABLE $name ADD CONSTRAINT "
		  . quoted(name())
		  . " UNIQUE ($texts[0])";
	}
	push @sql,
		'CREATE INDEX '
	  . quoted(name())
	  . " ON $name (($texts[0] || "
	  . literal(text())
	  . ")) WHERE $number > 3 OR $texts[1] = "
	  . literal(text()),
	  'CREATE STATISTICS '
	  . quoted($schema) . '.'
	  . quoted(name())
	  . " ON $number, $texts[0] FROM $name",
	  "COMMENT ON TABLE $name IS " . literal(text()),
	  "COMMENT ON COLUMN $name.$number IS " . literal(text()),
	  "CREATE TRIGGER "
	  . quoted(name())
	  . " BEFORE INSERT ON $name FOR EACH ROW EXECUTE FUNCTION "
	  . 'public.nothing('
	  . literal(text()) . ')',
	  "CREATE RULE "
	  . quoted(name())
	  . " AS ON DELETE TO $name DO ALSO SELECT "
	  . literal(text()),
	  "CREATE POLICY "
	  . quoted(name())
	  . " ON $name USING ($texts[0] <> "
	  . literal(text()) . ')',
	  "ALTER TABLE $name ALTER $texts[0] SET STORAGE EXTERNAL, ALTER $number SET STATISTICS 7";
	push @sql, "ALTER TABLE $name REPLICA IDENTITY FULL" if rand() < 0.3;
	return @sql;
}

# Makes such a schema in a database, and returns the quoted name, in UTF-8.
sub hostile_schema
{
	my ($node, $database, $tables) = @_;
	my $schema = name();
	my $file =
	  "$PostgreSQL::Test::Utils::tmp_check/hostile_" . $names . '.sql';
	my @sql = (
		"SET client_encoding = 'UTF8'",
		'SET client_min_messages = error',
		'CREATE SCHEMA ' . quoted($schema) . " AUTHORIZATION $owner",
		"SET ROLE $owner",
		map { table($schema, $database eq 'postgres') } 1 .. $tables);

	# Not as one command: -c would not show which one fails.
	open my $fh, '>', $file or die "could not open $file: $!";
	print $fh encode_utf8("$_;\n") foreach @sql;
	close $fh;
	$node->safe_psql($database, "\\set ON_ERROR_STOP on\n\\i $file");
	return encode_utf8(quoted($schema));
}

# The resulting tables of such schemas, without what is not copied, and without
# extended statistics, which pg_dump 17 does not dump if tables are named.
sub definition
{
	my ($node, $database) = @_;
	return $node->safe_psql($database // 'postgres', <<'EOS');
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SET search_path = '';
WITH hostile AS (SELECT c.*, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname NOT IN ('public', 'weft', 'information_schema') AND n.nspname !~ '^pg_')
SELECT quote_literal(d) FROM (
	SELECT concat_ws(' ', 'relation', nspname, relname, relkind, relreplident, relispartition,
		reloptions::text, pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid), obj_description(oid, 'pg_class')) AS d
	FROM hostile WHERE relkind <> 'i' AND relkind <> 'I'
	UNION ALL SELECT concat_ws(' ', 'column', h.nspname, h.relname, a.attname, format_type(a.atttypid, a.atttypmod),
		a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attstattarget, pg_get_expr(d.adbin, d.adrelid),
		col_description(h.oid, a.attnum), pg_get_serial_sequence(quote_ident(h.nspname) || '.' || quote_ident(h.relname), a.attname))
	FROM hostile h JOIN pg_attribute a ON a.attrelid = h.oid
		LEFT JOIN pg_attrdef d ON d.adrelid = h.oid AND d.adnum = a.attnum
	WHERE h.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
	UNION ALL SELECT concat_ws(' ', 'constraint', h.nspname, h.relname, k.conname, pg_get_constraintdef(k.oid))
	FROM hostile h JOIN pg_constraint k ON k.conrelid = h.oid AND k.contype <> 'n'
	UNION ALL SELECT concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid), p.inhparent::regclass)
	FROM hostile h JOIN pg_index i ON i.indrelid = h.oid LEFT JOIN pg_inherits p ON p.inhrelid = i.indexrelid) definitions
ORDER BY d COLLATE "C"
EOS
}

# What hostile statements have left on a node on which "traces" was called before; empty
# if they did not run.
sub traces
{
	my ($node) = @_;
	my $state = query($node, <<'EOS');
SELECT (SELECT string_agg(rolname || ' ' || rolsuper, ', ' ORDER BY rolname COLLATE "C") FROM pg_roles WHERE rolname !~ '^pg_'),
	to_regclass('public.trace') IS NULL,
	(SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = to_regclass('public.bystander') AND attnum > 0),
	obj_description(to_regclass('public.bystander'), 'pg_class')
EOS
	my @files = glob $node->data_dir . '/trace*';
	return "$state @files";
}

1;
