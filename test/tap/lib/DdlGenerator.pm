# Generates random transactions of schema changes and changes of rows.
#
# A generator stands for one session.  It keeps a model of the session's own tables and types, so
# every statement succeeds.  The model follows savepoints that are rolled back.  All sessions also use
# the table "shared", each with columns of its own there; a transaction uses it once at most, or locks it
# first, so that no two sessions can block each other.
#
# The same seed gives the same transactions.
package DdlGenerator;

use strict;
use warnings FATAL => 'all';

use Storable qw(dclone);

# Everything that a session may do to a table, with how often.
my %operations = (
	add_check => 2,
	add_column => 8,
	add_generated => 2,
	add_key => 2,
	alter_many => 3,
	attach_partition => 2,
	change_default => 3,
	change_not_null => 2,
	change_options => 2,
	change_type => 4,
	create_index => 4,
	create_partition => 3,
	create_partitioned => 2,
	create_sequence => 1,
	create_table => 6,
	create_temporary => 1,
	create_type => 2,
	delete_rows => 5,
	detach_partition => 2,
	drop_check => 1,
	drop_column => 4,
	drop_index => 3,
	drop_table => 3,
	extend_type => 2,
	insert_rows => 20,
	move_row => 3,
	rename_column => 3,
	rename_index => 1,
	rename_table => 3,
	replica_identity => 2,
	truncate_table => 1,
	update_rows => 14,);
my @weighted = map { ($_) x $operations{$_} } sort keys %operations;

my @types =
  qw(int bigint text varchar(40) numeric boolean date jsonb int[] uuid);

# What a column of one type can be changed to without an expression.
my %wider = (
	'int' => [qw(bigint numeric text)],
	'bigint' => [qw(numeric text)],
	'varchar(40)' => ['text'],
	'numeric' => ['text'],
	'date' => ['text'],
	'uuid' => ['text'],
	'boolean' => ['text'],);

# The prefix distinguishes the names of this session's objects from those of others.
sub new
{
	my ($class, $seed, $prefix) = @_;
	my $self = bless {
		random => ($seed * 2654435761 + 12345) % 2**32,
		prefix => $prefix,
		number => 0,
		state => { tables => {}, types => {}, sequences => [], shared => [] },
	}, $class;

	$self->below(2) foreach 1 .. 10;
	return $self;
}

sub below
{
	my ($self, $limit) = @_;

	$self->{random} = ($self->{random} * 1664525 + 1013904223) % 2**32;
	return int($self->{random} / 2**32 * $limit);
}

sub pick
{
	my ($self, @list) = @_;
	return @list ? $list[ $self->below(scalar @list) ] : undef;
}

# A new name, as SQL; some need quotes.
sub name
{
	my ($self, $kind) = @_;
	my $name = $self->{prefix} . $kind . ++$self->{number};

	return $name if $self->below(5) > 0;
	return qq{"$name; it's "" -- \$\$"};
}

sub tables
{
	my ($self, $condition) = @_;
	my $tables = $self->{state}{tables};
	return grep { $condition->($tables->{$_}) } sort keys %$tables;
}

# A table of this session that satisfies a condition: its name and its model; or nothing.
sub table
{
	my ($self, $condition) = @_;
	my $name = $self->pick($self->tables($condition // sub { 1 }));

	return unless defined $name;
	return ($name, $self->{state}{tables}{$name});
}

sub plain
{
	my ($table) = @_;
	return !$table->{partitions} && !$table->{root};
}

# A table with rows of its own, or that routes them.
sub top
{
	my ($table) = @_;
	return !$table->{root};
}

sub columns
{
	my ($table, $condition) = @_;
	return
	  grep { !$_->{generated} && (!$condition || $condition->($_)) }
	  @{ $table->{columns} };
}

# The columns belong to a partitioned table and its partitions together.
sub new_table
{
	my ($self, %other) = @_;
	return {
		columns => [],
		indexes => [],
		checks => [],
		next => 1,
		%other
	};
}

sub literal
{
	my ($self, $type) = @_;
	my $labels = $self->{state}{types}{$type};
	my $n = $self->below(1000);

	return "'" . $self->pick(@$labels) . "'" if $labels;
	return $n if $type =~ /^(int|bigint|numeric)$/;
	return $n % 2 ? 'true' : 'false' if $type eq 'boolean';
	return sprintf("'2026-01-%02d'", 1 + $n % 28) if $type eq 'date';
	return qq('{"n": $n}') if $type eq 'jsonb';
	return "'{$n,2}'" if $type eq 'int[]';
	return sprintf("'00000000-0000-0000-0000-%012d'", $n) if $type eq 'uuid';
	return "'it''s; \$\$ $n'";
}

sub value
{
	my ($self, $column) = @_;
	return 'NULL' if !$column->{not_null} && $self->below(6) == 0;
	return $self->literal($column->{type}) . "::$column->{type}";
}

sub type
{
	my ($self) = @_;
	return $self->pick(@types, sort keys %{ $self->{state}{types} });
}

# --- rows ---

sub insert_rows
{
	my ($self) = @_;
	my ($name, $table) = $self->table(\&top) or return;
	my @columns = columns($table);
	my $rows = $self->below(12) == 0 ? 500 : 1 + $self->below(8);
	my $from = $table->{next};

	$table->{next} += $rows;
	return
		"INSERT INTO $name ("
	  . join(', ', 'id', map { $_->{name} } @columns)
	  . ') SELECT '
	  . join(', ', 'g', map { $self->value($_) } @columns)
	  . " FROM generate_series($from, $from + $rows - 1) g";
}

sub update_rows
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { top($_[0]) && columns($_[0]) })
	  or return;
	my $column = $self->pick(columns($table));
	my $parts = 2 + $self->below(5);

	return
		"UPDATE $name SET $column->{name} = "
	  . $self->value($column)
	  . " WHERE id % $parts = "
	  . $self->below($parts);
}

sub delete_rows
{
	my ($self) = @_;
	my ($name, $table) = $self->table(\&top) or return;
	return "DELETE FROM $name WHERE id % 7 = " . $self->below(7);
}

# Changes a key.
sub move_row
{
	my ($self) = @_;
	my ($name, $table) = $self->table(\&top) or return;
	my $to = $table->{next}++;
	return "UPDATE $name SET id = $to WHERE id = (SELECT min(id) FROM $name)";
}

sub truncate_table
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { !$_[0]{referenced} }) or return;
	return "TRUNCATE $name";
}

# --- tables ---

sub create_table
{
	my ($self) = @_;
	my $name = $self->name('t');
	my $table = $self->new_table;
	my @sql = ('id int PRIMARY KEY');

	foreach (1 .. $self->below(4))
	{
		my $column = { name => $self->name('c'), type => $self->type };

		if ($self->below(4) == 0)
		{
			$column->{default} = 1;
			push @sql,
			  "$column->{name} $column->{type} DEFAULT "
			  . $self->literal($column->{type});
		}
		else
		{
			push @sql, "$column->{name} $column->{type}";
		}
		push @{ $table->{columns} }, $column;
	}
	$self->{state}{tables}{$name} = $table;
	return "CREATE TABLE $name (" . join(', ', @sql) . ')';
}

sub create_partitioned
{
	my ($self) = @_;
	my $name = $self->name('p');
	my $rest = $self->name('pd');

	$self->{state}{tables}{$name} = $self->new_table(partitions => 1);
	$self->{state}{tables}{$rest} =
	  $self->new_table(root => $name, rest => 1);
	return ("CREATE TABLE $name (id int PRIMARY KEY) PARTITION BY RANGE (id)",
		"CREATE TABLE $rest PARTITION OF $name DEFAULT");
}

# A partition for rows that are not there yet.
sub create_partition
{
	my ($self) = @_;
	my ($root, $table) = $self->table(sub { $_[0]{partitions} })
	  or return;
	my $name = $self->name('pp');
	my $from = $table->{next} + 1000;
	my $to = $from + 20;

	$table->{next} = $from;
	$self->{state}{tables}{$name} =
	  $self->new_table(root => $root, from => $from, to => $to);
	return
	  "CREATE TABLE $name PARTITION OF $root FOR VALUES FROM ($from) TO ($to)";
}

# The partition stays as an ordinary table.
sub detach_partition
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { $_[0]{root} && !$_[0]{rest} })
	  or return;
	my $root = $table->{root};
	my $parent = $self->{state}{tables}{$root};

	# Its range stays empty in the partitioned table, and its new keys are beyond all others.
	$parent->{next} = $table->{to} if $parent->{next} < $table->{to};
	$self->{state}{tables}{$name} = $self->new_table(
		columns => dclone($parent->{columns}),
		was => $root,
		version => $parent->{version} // 0,
		from => $table->{from},
		to => $table->{to},
		next => 10_000_000);
	return "ALTER TABLE $root DETACH PARTITION $name";
}

# One that was detached goes back, if its columns are still those of the partitioned table, and no row
# has left the range.
sub attach_partition
{
	my ($self) = @_;
	my $tables = $self->{state}{tables};
	my ($name, $table) = $self->table(
		sub {
			my ($t) = @_;
			return
				 $t->{was}
			  && $tables->{ $t->{was} }
			  && !$t->{changed}
			  && !$t->{full}
			  && !$t->{referenced}
			  && ($tables->{ $t->{was} }{version} // 0) == $t->{version};
		}) or return;
	my $root = $table->{was};

	$tables->{$name} = $self->new_table(
		root => $root,
		from => $table->{from},
		to => $table->{to});
	return (
		"DELETE FROM $name WHERE id NOT BETWEEN $table->{from} AND $table->{to} - 1",
		"ALTER TABLE $root ATTACH PARTITION $name FOR VALUES FROM ($table->{from}) TO ($table->{to})"
	);
}

sub create_temporary
{
	my ($self) = @_;
	my $name = $self->name('temp');
	return (
		"CREATE TEMPORARY TABLE $name (id int)",
		"ALTER TABLE $name ADD COLUMN v int",
		"INSERT INTO $name VALUES (1, 2)",
		"DROP TABLE $name");
}

sub drop_table
{
	my ($self) = @_;
	my ($name, $table) =
	  $self->table(sub { !$_[0]{rest} && !$_[0]{referenced} })
	  or return;
	my $tables = $self->{state}{tables};

	return if keys %$tables < 3;
	delete $tables->{$_}
	  foreach grep { ($tables->{$_}{root} // '') eq $name } keys %$tables;
	delete $tables->{$name};
	$self->release($table);
	return "DROP TABLE $name";
}

# A table that refers to another one no longer does.
sub release
{
	my ($self, $table) = @_;
	foreach my $target (map { $_->{references} // () } @{ $table->{columns} })
	{
		my $referenced = $self->{state}{tables}{$target};
		$referenced->{referenced}-- if $referenced;
	}
	return;
}

sub rename_table
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { !$_[0]{referenced} }) or return;
	my $tables = $self->{state}{tables};
	my $new = $self->name('r');

	foreach my $other (values %$tables)
	{
		$other->{root} = $new if ($other->{root} // '') eq $name;
		$other->{was} = $new if ($other->{was} // '') eq $name;
	}
	$tables->{$new} = delete $tables->{$name};
	return "ALTER TABLE $name RENAME TO $new";
}

# From 18 on, the replica identity must not contain a generated column.
sub replica_identity
{
	my ($self) = @_;
	my $can = sub {
		my ($t) = @_;
		return plain($t)
		  && !grep { $_->{generated} && !$_->{references} }
		  @{ $t->{columns} };
	};
	my ($name, $table) = $self->table($can) or return;

	$table->{full} = $self->below(2);
	return "ALTER TABLE $name REPLICA IDENTITY "
	  . ($table->{full} ? 'FULL' : 'DEFAULT');
}

sub change_options
{
	my ($self) = @_;
	my ($name) = $self->table(\&plain) or return;
	return "ALTER TABLE $name "
	  . $self->pick(
		'SET (fillfactor = 50)',
		'RESET (fillfactor)',
		'ALTER COLUMN id SET STATISTICS 50');
}

# --- columns ---

# The columns of a table have changed.
sub changed
{
	my ($table) = @_;
	$table->{changed} = 1;
	$table->{version}++;
	return;
}

# A clause that adds a column.
sub new_column
{
	my ($self, $table) = @_;
	my $column = { name => $self->name('c'), type => $self->type };
	my $sql = "ADD COLUMN $column->{name} $column->{type}";

	if ($self->below(3) == 0)
	{
		$column->{default} = 1;
		$sql .= ' DEFAULT ' . $self->literal($column->{type});
		if ($self->below(2) == 0)
		{
			$column->{not_null} = 1;
			$sql .= ' NOT NULL';
		}
	}
	push @{ $table->{columns} }, $column;
	changed($table);
	return $sql;
}

sub add_column
{
	my ($self) = @_;
	my ($name, $table) = $self->table(\&top) or return;
	return "ALTER TABLE $name " . $self->new_column($table);
}

sub add_generated
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { top($_[0]) && !$_[0]{full} })
	  or return;
	my $column = { name => $self->name('g'), generated => 1 };

	push @{ $table->{columns} }, $column;
	changed($table);
	return
	  "ALTER TABLE $name ADD COLUMN $column->{name} int GENERATED ALWAYS AS (id * 2) STORED";
}

# A column that refers to another table.
sub add_key
{
	my ($self) = @_;
	my ($target, $referenced) = $self->table(\&plain) or return;
	my ($name, $table) = $self->table(\&plain) or return;
	return if $name eq $target;
	my $column = {
		name => $self->name('f'),
		generated => 1,    # never assigned, so always null
		references => $target
	};

	push @{ $table->{columns} }, $column;
	$referenced->{referenced}++;
	changed($table);
	return (
		"ALTER TABLE $name ADD COLUMN $column->{name} int REFERENCES $target ON DELETE CASCADE ON UPDATE CASCADE",
		"UPDATE $name SET $column->{name} = (SELECT min(id) FROM $target) WHERE id % 3 = 0"
	);
}

sub drop_clause
{
	my ($self, $table, $column) = @_;

	$self->release({ columns => [$column] });
	$table->{columns} =
	  [ grep { $_->{name} ne $column->{name} } @{ $table->{columns} } ];
	$table->{indexes} =
	  [ grep { $_->{column} ne $column->{name} } @{ $table->{indexes} } ];
	changed($table);
	return "DROP COLUMN $column->{name}";
}

sub drop_column
{
	my ($self) = @_;
	my ($name, $table) =
	  $self->table(sub { top($_[0]) && @{ $_[0]{columns} } })
	  or return;
	return "ALTER TABLE $name "
	  . $self->drop_clause($table, $self->pick(@{ $table->{columns} }));
}

# Several clauses in one statement.
sub alter_many
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { plain($_[0]) && columns($_[0]) })
	  or return;
	my $old = $self->pick(columns($table));
	my @clauses = ($self->new_column($table), $self->new_column($table));

	splice @clauses, 1, 0, $self->drop_clause($table, $old);
	return "ALTER TABLE $name " . join(', ', @clauses);
}

sub rename_column
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { top($_[0]) && columns($_[0]) })
	  or return;
	my $column = $self->pick(columns($table));
	my $old = $column->{name};

	$column->{name} = $self->name('n');
	$_->{column} eq $old and $_->{column} = $column->{name}
	  foreach @{ $table->{indexes} };
	changed($table);
	return "ALTER TABLE $name RENAME COLUMN $old TO $column->{name}";
}

sub change_type
{
	my ($self) = @_;
	my $can = sub { !$_[0]{default} && $wider{ $_[0]{type} } };
	my ($name, $table) =
	  $self->table(sub { top($_[0]) && columns($_[0], $can) })
	  or return;
	my $column = $self->pick(columns($table, $can));

	$column->{type} = $self->pick(@{ $wider{ $column->{type} } });
	changed($table);
	return
	  "ALTER TABLE $name ALTER COLUMN $column->{name} TYPE $column->{type}";
}

sub change_default
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { plain($_[0]) && columns($_[0]) })
	  or return;
	my $column = $self->pick(columns($table));
	my $sequence = $self->pick(@{ $self->{state}{sequences} });

	changed($table);
	if ($column->{default})
	{
		$column->{default} = 0;
		return "ALTER TABLE $name ALTER COLUMN $column->{name} DROP DEFAULT";
	}
	$column->{default} = 1;
	return "ALTER TABLE $name ALTER COLUMN $column->{name} SET DEFAULT "
	  . (
		$sequence && $column->{type} eq 'bigint'
		? "nextval('" . $sequence =~ s/'/''/gr . "')"
		: $self->literal($column->{type}));
}

sub change_not_null
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { plain($_[0]) && columns($_[0]) })
	  or return;
	my $column = $self->pick(columns($table));
	my $alter = "ALTER TABLE $name ALTER COLUMN $column->{name}";

	changed($table);
	$column->{not_null} = !$column->{not_null};
	return "$alter DROP NOT NULL" unless $column->{not_null};
	return (
		"UPDATE $name SET $column->{name} = "
		  . $self->value($column)
		  . " WHERE $column->{name} IS NULL",
		"$alter SET NOT NULL");
}

# --- what belongs to tables ---

sub create_index
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { top($_[0]) && columns($_[0]) })
	  or return;
	my $column = $self->pick(columns($table));
	my $index = { name => $self->name('i'), column => $column->{name} };
	my $unique = $self->below(3) == 0 ? 'UNIQUE ' : '';

	push @{ $table->{indexes} }, $index;
	changed($table);
	return
	  "CREATE ${unique}INDEX $index->{name} ON $name (id, $column->{name})";
}

sub drop_index
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { @{ $_[0]{indexes} } })
	  or return;
	return "DROP INDEX " . (shift @{ $table->{indexes} })->{name};
}

sub rename_index
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { @{ $_[0]{indexes} } })
	  or return;
	my $index = $self->pick(@{ $table->{indexes} });
	my $old = $index->{name};

	$index->{name} = $self->name('j');
	return "ALTER INDEX $old RENAME TO $index->{name}";
}

sub add_check
{
	my ($self) = @_;
	my ($name, $table) = $self->table(\&plain) or return;
	my $check = $self->name('k');

	push @{ $table->{checks} }, $check;
	changed($table);
	return "ALTER TABLE $name ADD CONSTRAINT $check CHECK (id > 0)";
}

sub drop_check
{
	my ($self) = @_;
	my ($name, $table) = $self->table(sub { @{ $_[0]{checks} } }) or return;
	return "ALTER TABLE $name DROP CONSTRAINT " . shift @{ $table->{checks} };
}

sub create_sequence
{
	my ($self) = @_;
	my $name = $self->name('q');

	push @{ $self->{state}{sequences} }, $name;
	return "CREATE SEQUENCE $name INCREMENT " . (1 + $self->below(5));
}

sub create_type
{
	my ($self) = @_;
	my $name = $self->name('e');

	$self->{state}{types}{$name} = [ 'a', 'b' ];
	return "CREATE TYPE $name AS ENUM ('a', 'b')";
}

# The transaction that adds a label cannot use it.
sub extend_type
{
	my ($self) = @_;
	my $name = $self->pick(sort keys %{ $self->{state}{types} });
	return unless defined $name;
	my $label = 'l' . ++$self->{number};

	push @{ $self->{state}{labels} }, [ $name, $label ];
	return "ALTER TYPE $name ADD VALUE '$label'"
	  . $self->pick('', q{ BEFORE 'b'});
}

# --- transactions ---

# One or more statements.
sub operation
{
	my ($self) = @_;

	for (;;)
	{
		my $operation = $self->pick(@weighted);
		my @sql = $self->$operation;
		return @sql if @sql;
	}
}

# Statements that are rolled back, in a savepoint or in a block of PL/pgSQL.
sub rolled_back
{
	my ($self, $depth) = @_;
	my $state = dclone($self->{state});
	my $savepoint = 'sp' . ++$self->{number};
	my @sql = $self->statements(1 + $self->below(4), $depth + 1);

	$self->{state} = $state;
	return ("SAVEPOINT $savepoint", @sql, "ROLLBACK TO $savepoint")
	  if $depth > 0 || grep { /SAVEPOINT/ } @sql
	  or $self->below(2);
	return join "\n", 'DO $do$ BEGIN',
	  (map { "\tEXECUTE \$x\$$_\$x\$;" } @sql),
	  "\tRAISE EXCEPTION USING ERRCODE = 'P9999';",
	  q{EXCEPTION WHEN SQLSTATE 'P9999' THEN NULL; END $do$};
}

sub statements
{
	my ($self, $count, $depth) = @_;
	my @sql;

	foreach (1 .. $count)
	{
		my $kind = $depth < 3 ? $self->below(12) : 11;

		if ($kind == 0)
		{
			push @sql, $self->rolled_back($depth);
		}
		elsif ($kind == 1)
		{
			my $savepoint = 'sp' . ++$self->{number};
			push @sql, "SAVEPOINT $savepoint",
			  $self->statements(1 + $self->below(3), $depth + 1),
			  "RELEASE $savepoint";
		}
		else
		{
			push @sql, $self->operation;
		}
	}
	return @sql;
}

# A change of the table that all sessions share, and what must come first in its transaction.
sub shared
{
	my ($self) = @_;
	my $columns = $self->{state}{shared};
	my $id = 1 + $self->below(20);
	my $kind = $self->below(6);

	if ($kind == 0)
	{
		my $column = $self->name('s');

		push @$columns, $column;
		return (
			'LOCK TABLE shared IN ACCESS EXCLUSIVE MODE',
			"ALTER TABLE shared ADD COLUMN $column int DEFAULT $id");
	}
	if ($kind == 1 && @$columns)
	{
		return (
			'LOCK TABLE shared IN ACCESS EXCLUSIVE MODE',
			'ALTER TABLE shared DROP COLUMN ' . shift @$columns);
	}
	if ($kind == 2 && @$columns)
	{
		return ('SELECT 1',
			"UPDATE shared SET $columns->[0] = $id WHERE id = $id");
	}
	return ('SELECT 1', "DELETE FROM shared WHERE id = $id") if $kind == 3;
	return (
		'SELECT 1',
		"INSERT INTO shared (id, v) VALUES ($id, $id) ON CONFLICT (id) DO UPDATE SET v = shared.v + 1"
	);
}

# The next transaction, as a list of statements.
sub transaction
{
	my ($self) = @_;
	my $state = dclone($self->{state});
	my @sql = $self->statements(1 + $self->below(8), 0);
	my $commits = $self->below(10) > 0;

	# Not in a rolled back part, which would give the lock up early.
	if ($self->below(3) == 0)
	{
		my ($first, $last) = $self->shared;
		@sql = ($first, @sql, $last);
	}
	if (!$commits)
	{
		$self->{state} = $state;
		return ('BEGIN', @sql, 'ROLLBACK');
	}
	push @{ $self->{state}{types}{ $_->[0] } }, $_->[1]
	  foreach @{ delete $self->{state}{labels} // [] };
	return @sql if @sql == 1 && $sql[0] !~ /SAVEPOINT/;
	return ('BEGIN', @sql, 'COMMIT');
}

# A script of some transactions; begins with some tables.
sub script
{
	my ($self, $transactions) = @_;
	my @sql = map { $self->create_table } 1 .. 3;

	push @sql, $self->transaction foreach 1 .. $transactions;
	return join ";\n", @sql, '';
}

# Everything of this session's is dropped.
sub cleanup
{
	my ($self) = @_;
	my $state = $self->{state};
	my $tables = $state->{tables};
	my @sql = (
		(   map  { "DROP TABLE $_ CASCADE" }
			grep { !$tables->{$_}{root} } sort keys %$tables),
		(map { "DROP TYPE $_" } sort keys %{ $state->{types} }),
		(map { "DROP SEQUENCE $_ CASCADE" } @{ $state->{sequences} }),
		map { "ALTER TABLE shared DROP COLUMN $_" } @{ $state->{shared} });

	return join ";\n", @sql, '';
}

1;
