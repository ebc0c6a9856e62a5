# Random schema changes that need no lock, and random rows, on three members of a group, in the same
# transactions and with savepoints rolled back, while subscriptions are held back and members
# crash.  In the end, catalogs and rows are equal.
#
# Each member writes rows of its own, so there are no conflicts, and alters objects of its own where
# the order of two changes matters.  New columns, indexes and rows go to everybody's tables.
#
# WEFT_TEST_SEED sets the first seed, WEFT_TEST_SEEDS how many, WEFT_TEST_STEPS the steps of each.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use DdlTest;
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $seeds = $ENV{WEFT_TEST_SEEDS} // 2;
my $first = $ENV{WEFT_TEST_SEED} // int(rand(1_000_000));
my $steps = $ENV{WEFT_TEST_STEPS} // 60;
my @nodes = map { new_member($_) } qw(a b c);
my $number = 0;
my %held;

sub pick
{
	return $_[ int rand @_ ];
}

# The tables of users that a member has now, each with its columns and their types.
sub tables_of
{
	my ($node) = @_;
	my %tables;

	foreach my $line (split /\n/, query($node, <<'EOQ'))
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 1 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
EOQ
	{
		my ($table, $column, $type) = split /\|/, $line;
		$tables{$table}{$column} = $type;
	}
	return \%tables;
}

sub value_of
{
	my ($type) = @_;

	return 'NULL' if rand() < 0.2;
	return int rand(1000) if $type eq 'integer';
	return q{'sad'} if $type eq 'mood';
	my ($length) = $type =~ /\((\d+)\)/;
	return "'" . ('x' x (1 + int rand($length // 20))) . "'";
}

# A statement that changes rows of this member.
sub row_change
{
	my ($i, $tables) = @_;
	my $table = pick(sort keys %$tables);
	my %columns = %{ $tables->{$table} };
	my @names = grep { rand() < 0.7 } sort keys %columns;
	my $own = "id % 3 = $i";

	if (rand() < 0.6)
	{
		my $id = 3 * ++$number + $i;
		return sprintf 'INSERT INTO %s (%s) VALUES (%s)', $table,
		  join(', ', 'id', @names),
		  join(', ', $id, map { value_of($columns{$_}) } @names);
	}
	return "DELETE FROM $table WHERE $own AND id % 7 = " . int rand 7
	  if rand() < 0.2 || !@names;
	return sprintf 'UPDATE %s SET %s WHERE %s AND id %% 5 = %d', $table,
	  join(', ', map { "$_ = " . value_of($columns{$_}) } @names), $own,
	  int rand 5;
}

# A schema change.
sub change
{
	my ($node, $tables) = @_;
	my $name = $node->name;
	my $table = pick(sort keys %$tables);
	my @own = grep { /^${name}_/ } sort keys %$tables;
	my $own = @own ? pick(@own) : undef;
	my $new = "${name}_" . ++$number;
	my @statements = (
		"CREATE TABLE $new (id int PRIMARY KEY, v varchar(5) NOT NULL DEFAULT 'v', m mood)",
		"CREATE TABLE $new (id int PRIMARY KEY, v varchar(9)); CREATE INDEX ON $new (v)",
		"ALTER TABLE $table ADD COLUMN c_$new int DEFAULT $number",
		"ALTER TABLE $table ADD COLUMN c_$new text",
		"CREATE INDEX i_$new ON $table (id, "
		  . pick('id', sort keys %{ $tables->{$table} }) . ')',
		"CREATE OR REPLACE VIEW v_$name AS SELECT $number AS x",
		"CREATE OR REPLACE FUNCTION f_$name() RETURNS int LANGUAGE sql RETURN $number",
	);
	push @statements,
	  "ALTER TABLE $own ALTER v TYPE varchar(" . (10 + $number) . ')',
	  "ALTER TABLE $own ALTER v DROP NOT NULL",
	  "COMMENT ON TABLE $own IS '$number'"
	  if $own;
	push @statements, "ALTER TYPE mood ADD VALUE 'm$number'"
	  if $name eq 'a';
	return pick(@statements);
}

# A transaction of a member: a few statements, some of them rolled back to a savepoint.  Each sees the
# tables that were there before.
sub transaction
{
	my ($i) = @_;
	my $node = $nodes[$i];
	my $tables = tables_of($node);
	my @sql = ('BEGIN');

	foreach (1 .. 1 + int rand 4)
	{
		my $sql =
		  rand() < 0.3 ? change($node, $tables) : row_change($i, $tables);

		push @sql,
		  rand() < 0.2 ? ('SAVEPOINT s', $sql, 'ROLLBACK TO s') : $sql;
	}
	push @sql, rand() < 0.1 ? 'ROLLBACK' : 'COMMIT';

	# A NULL for a column that must have a value, or a dropped index: the transaction fails alone.
	my ($ret, undef, $err) = $node->psql('postgres', join(";\n", @sql));
	die "@sql: $err"
	  if $ret != 0
	  && $err !~
	  /violates not-null constraint|value too long|deadlock detected/;
	return;
}

sub let_all_go
{
	foreach my $key (sort keys %held)
	{
		my ($from, $to) = @{ delete $held{$key} };
		query($to,
				'ALTER SUBSCRIPTION '
			  . subscription_name('g', $from, $to)
			  . ' ENABLE');
	}
	return;
}

sub disturb
{
	my ($from, $to) = @nodes[ map { int rand 3 } 1 .. 2 ];

	if (rand() < 0.15)
	{
		$to->stop('immediate');
		$to->start;
	}
	elsif (rand() < 0.4)
	{
		let_all_go();
	}
	elsif ($from != $to)
	{
		my $name = subscription_name('g', $from, $to);

		query($to, "ALTER SUBSCRIPTION $name DISABLE");
		$held{$name} = [ $from, $to ];
	}
	return;
}

query($nodes[0], <<'EOS');
CREATE TYPE mood AS ENUM ('sad');
CREATE TABLE a_0 (id int PRIMARY KEY, v varchar(5), m mood);
EOS
query($nodes[0], $rows_of);
create_group($nodes[0], 'g');
join_group($_, $nodes[0], 'g') foreach @nodes[ 1, 2 ];

foreach my $seed ($first .. $first + $seeds - 1)
{
	srand $seed;
	note("seed $seed");
	foreach (1 .. $steps)
	{
		rand() < 0.08 ? disturb() : transaction(int rand 3);
	}
	let_all_go();
	wait_for_group('g', @nodes);
	foreach my $node (@nodes[ 1, 2 ])
	{
		my $which = "seed $seed: a and " . $node->name;

		same_schema($nodes[0], $node, "$which: same schema");
		is(all_rows($node), all_rows($nodes[0]), "$which: same rows");
	}
}

done_testing();
