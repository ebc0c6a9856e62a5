# weft.switch_over_plan(): what it finds in the schema: tables, their columns, indexes, constraints and
# triggers, and other objects.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use SwitchPlanTest;
use Test::More;
use WeftTest;

plan skip_all => 'the functions are those of Weft' unless weft();

my @cases = (
	[
		'unpublished_tables', 'warning',
		'"A b"', 'is not published',
		'CREATE TABLE "A b" ()', '',
		'DROP TABLE "A b"', ''
	],
	[
		'unlogged_tables', 'warning', 'u', 'is unlogged',
		'CREATE UNLOGGED TABLE u ()',
		'', 'DROP TABLE u', ''
	],
	[
		'unlogged_tables_here', 'error', 'ref', 'is unlogged here',
		'', 'ALTER TABLE ref SET UNLOGGED',
		'', 'ALTER TABLE ref SET LOGGED'
	],
	[
		'row_filters',
		'error',
		'"Tä b"',
		'row filter',
		'ALTER PUBLICATION pub DROP TABLE "Tä b"; ALTER PUBLICATION pub ADD TABLE "Tä b" WHERE (id > 0)',
		'',
		'ALTER PUBLICATION pub DROP TABLE "Tä b"; ALTER PUBLICATION pub ADD TABLE "Tä b"',
		'',
		'W'
	],
	[
		'column_lists',
		'error',
		'ref',
		'does not publish column t',
		'ALTER PUBLICATION pub DROP TABLE ref; ALTER PUBLICATION pub ADD TABLE ref (id)',
		'',
		'ALTER PUBLICATION pub DROP TABLE ref; ALTER PUBLICATION pub ADD TABLE ref',
		'',
		'W'
	],
	[
		'replica_identity', 'warning',
		'ref', 'no replica identity',
		'ALTER TABLE ref REPLICA IDENTITY NOTHING', '',
		'ALTER TABLE ref REPLICA IDENTITY DEFAULT', ''
	],
	[
		'replica_identity_here',
		'error',
		'"Tä b"',
		'no replica identity here',
		'',
		'ALTER TABLE "Tä b" REPLICA IDENTITY NOTHING',
		'',
		'ALTER TABLE "Tä b" REPLICA IDENTITY DEFAULT',
		'R'
	],
	[
		'columns', 'error', 'public.ref.c',
		'does not exist here',
		'ALTER TABLE ref ADD c int',
		'', 'ALTER TABLE ref DROP c', ''
	],
	[
		'columns', 'error',
		'public.ref.c', 'does not exist on the publisher',
		'', 'ALTER TABLE ref ADD c int',
		'', 'ALTER TABLE ref DROP c'
	],
	[
		'columns', 'warning',
		'public.ref.t', 'type bigint here, integer',
		'', 'ALTER TABLE ref ALTER t TYPE bigint',
		'', 'ALTER TABLE ref ALTER t TYPE int'
	],
	[
		'columns', 'warning',
		'public.ref.t', 'NOT NULL on one side',
		'ALTER TABLE ref ALTER t SET NOT NULL', '',
		'ALTER TABLE ref ALTER t DROP NOT NULL', ''
	],
	[
		'columns', 'warning',
		'public.ref.t', 'default on the publisher',
		'ALTER TABLE ref ALTER t SET DEFAULT 1', '',
		'ALTER TABLE ref ALTER t DROP DEFAULT', ''
	],
	[
		'columns',
		'warning',
		'public.ref.id',
		'identity column on the publisher',
		'ALTER TABLE ref ALTER id ADD GENERATED ALWAYS AS IDENTITY',
		'',
		'ALTER TABLE ref ALTER id DROP IDENTITY',
		''
	],
	[
		'generated_columns',
		'error',
		'public.ref.g',
		'generated on the publisher',
		'ALTER TABLE ref ADD g int GENERATED ALWAYS AS (1) STORED',
		'ALTER TABLE ref ADD g int',
		'ALTER TABLE ref DROP g',
		'ALTER TABLE ref DROP g'
	],
	[
		'generated_columns',
		'error',
		'public.ref.g',
		'generated here',
		'ALTER TABLE ref ADD g int',
		'ALTER TABLE ref ADD g int GENERATED ALWAYS AS (1) STORED',
		'ALTER TABLE ref DROP g',
		'ALTER TABLE ref DROP g'
	],
	[
		'indexes',
		'error',
		'public.t',
		'unique index t_b (b)',
		'CREATE UNIQUE INDEX t_b ON t (b)',
		'CREATE INDEX t_b ON t (b)',
		'DROP INDEX t_b',
		'DROP INDEX t_b'
	],
	[
		'indexes',
		'warning',
		'public.t',
		'index t_b (lower(b) WHERE (a > 1))',
		'CREATE INDEX t_b ON t (lower(b)) WHERE a > 1',
		'CREATE INDEX t_b ON t (lower(b))',
		'DROP INDEX t_b',
		'DROP INDEX t_b'
	],
	[
		'indexes',
		'warning',
		't_b',
		'not valid',
		'',
		q{CREATE INDEX t_b ON t (b); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 't_b'::regclass},
		'',
		'DROP INDEX t_b'
	],
	[
		'constraints', 'warning',
		'public.ref', 'constraint ref_t_fkey of the publisher',
		'', 'ALTER TABLE ref DROP CONSTRAINT ref_t_fkey',
		'', 'ALTER TABLE ref ADD FOREIGN KEY (t) REFERENCES t'
	],
	[
		'constraints',
		'warning',
		'public.t',
		'constraint c of the publisher',
		'ALTER TABLE t ADD CONSTRAINT c CHECK (a <> -1)',
		'',
		'ALTER TABLE t DROP CONSTRAINT c',
		''
	],
	[
		'constraints',
		'warning',
		't',
		'has not been validated',
		'',
		'ALTER TABLE t ADD CONSTRAINT c CHECK (a <> -1) NOT VALID',
		'',
		'ALTER TABLE t DROP CONSTRAINT c'
	],
	[
		'constraints',
		'warning',
		'ref',
		'refers to table public.parent, which is not replicated',
		'',
		'CREATE TABLE parent (id int PRIMARY KEY); ALTER TABLE ref ADD CONSTRAINT r FOREIGN KEY (t) REFERENCES parent',
		'',
		'DROP TABLE parent CASCADE'
	],
	[
		'triggers',
		'warning',
		'public.t',
		'trigger trg of the publisher does not exist here',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()',
		'',
		'DROP TRIGGER trg ON t',
		''
	],
	[
		'triggers',
		'warning',
		'public.t',
		'will fire here',
		'',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()',
		'',
		'DROP TRIGGER trg ON t'
	],
	[
		'triggers',
		'warning',
		'public.t',
		'is disabled here',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger(); ALTER TABLE t DISABLE TRIGGER trg',
		'DROP TRIGGER trg ON t',
		'DROP TRIGGER trg ON t'
	],
	[
		'triggers',
		'warning',
		'public.t',
		'fire there for replicated changes',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger(); ALTER TABLE t ENABLE ALWAYS TRIGGER trg',
		'CREATE TRIGGER trg BEFORE INSERT ON t EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()',
		'DROP TRIGGER trg ON t',
		'DROP TRIGGER trg ON t'
	],
	[
		'row_security', 'warning',
		'ref', 'disabled here',
		'ALTER TABLE ref ENABLE ROW LEVEL SECURITY', '',
		'ALTER TABLE ref DISABLE ROW LEVEL SECURITY', ''
	],
	[
		'grants',
		'warning',
		't',
		'app has rights on the publisher that it lacks here: select',
		'GRANT SELECT ON t TO app',
		'',
		'REVOKE SELECT ON t FROM app',
		''
	],
	[
		'grants',
		'warning',
		't',
		'PUBLIC has rights on the publisher that it lacks here: select',
		'GRANT SELECT ON t TO PUBLIC',
		'',
		'REVOKE SELECT ON t FROM PUBLIC',
		''
	],
	[
		'statistics', 'warning', 'ref',
		'no statistics',
		q{INSERT INTO ref VALUES (1, 1)},
		'', '', 'ANALYZE ref'
	],
	[
		'sequences',
		'warning',
		'public.t_id_seq',
		'is behind',
		q{SELECT setval('t_id_seq', 500000)},
		'',
		'',
		q{SELECT weft.sync_sequences('sub')}
	],
	[
		'sequences', 'error',
		'public.s', 'does not exist here',
		'CREATE SEQUENCE s', '',
		'DROP SEQUENCE s', ''
	],
	[
		'extensions', 'error', 'citext',
		'does not exist here',
		'CREATE EXTENSION citext',
		'', 'DROP EXTENSION citext', ''
	],
	[
		'extensions',
		'warning',
		'citext',
		'version 1.4 here',
		'CREATE EXTENSION citext',
		q{CREATE EXTENSION citext VERSION '1.4'},
		'DROP EXTENSION citext',
		'DROP EXTENSION citext'
	],
	[
		'missing_relations', 'warning',
		'public."V"', 'a view',
		'CREATE VIEW "V" AS SELECT 1', '',
		'DROP VIEW "V"', ''
	],
	[
		'missing_relations',
		'warning',
		'm',
		'not been filled',
		'',
		'CREATE MATERIALIZED VIEW m AS SELECT 1 WITH NO DATA',
		'',
		'DROP MATERIALIZED VIEW m'
	],
	[
		'functions',
		'warning',
		'public.f(a integer)',
		'does not exist here',
		q{CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'},
		q{CREATE FUNCTION f(a text) RETURNS int LANGUAGE sql AS 'SELECT 1'},
		'DROP FUNCTION f',
		'DROP FUNCTION f'
	],
	[
		'enum_types',
		'error',
		'public.e',
		q{no value 'b' here},
		q{CREATE TYPE e AS ENUM ('a', 'b')},
		q{CREATE TYPE e AS ENUM ('a')},
		'DROP TYPE e',
		'DROP TYPE e'
	],
	[
		'event_triggers',
		'warning',
		'et',
		'does not exist here',
		q{CREATE FUNCTION ef() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER et ON ddl_command_start EXECUTE FUNCTION ef()},
		'',
		'DROP FUNCTION ef CASCADE',
		''
	],
	[
		'event_triggers',
		'warning',
		'et',
		'fires here',
		'',
		q{CREATE FUNCTION ef() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER et ON ddl_command_start EXECUTE FUNCTION ef()},
		'',
		'DROP FUNCTION ef CASCADE'
	],
	[
		'large_objects', 'error', '',
		'1 large objects, this server 0',
		q{SELECT lo_create(77)},
		'', 'SELECT lo_unlink(77)', ''
	],
	[
		'large_objects',
		'warning',
		'',
		'1 large objects, this server 1',
		q{SELECT lo_create(77)},
		q{SELECT lo_create(77)},
		'SELECT lo_unlink(77)',
		'SELECT lo_unlink(77)'
	],
	[
		'collation_versions',
		'warning',
		'pg_catalog.pg_c_utf8',
		'created with version 0',
		'',
		q{UPDATE pg_collation SET collversion = '0' WHERE collname = 'pg_c_utf8'; CREATE TABLE col (t text COLLATE pg_c_utf8 PRIMARY KEY)},
		'',
		q{DROP TABLE col; UPDATE pg_collation SET collversion = pg_collation_actual_version(oid) WHERE collname = 'pg_c_utf8'}
	],);

# What the publisher has written is never SQL in a remedy, whatever it contains.
sub test_hostile_text
{
	my ($pub, $what) = @_;
	my $evil = qq{evil\n; DROP TABLE t; --};
	query($pub, <<EOS);
CREATE TABLE "$evil" ();
CREATE DOMAIN "int, DROP COLUMN evil" AS int;
ALTER TABLE ref ADD evil "int, DROP COLUMN evil";
CREATE INDEX evil ON t (replace(b, '$evil', ''));
ALTER TABLE t ADD CONSTRAINT evil CHECK (b <> '$evil');
EOS
	my $found = findings();
	foreach my $check (qw(unpublished_tables columns indexes constraints))
	{
		my @remedies = map { $_->{text} =~ s/.*\|//sr }
		  grep { $_->{text} =~ /evil/ } @{ $found->{$check} };
		is(scalar(@remedies), 1, "${what}hostile text: $check");
		like(
			$remedies[0],
			qr/\A-- written by the publisher: .*evil.*\z/,
			"${what}hostile text: the remedy is a comment");
	}
	query($pub, <<EOS);
ALTER TABLE t DROP CONSTRAINT evil;
DROP INDEX evil;
ALTER TABLE ref DROP evil;
DROP DOMAIN "int, DROP COLUMN evil";
DROP TABLE "$evil";
EOS
	return;
}

for_each_publisher(
	sub {
		my ($pub, $sub, $what) = @_;

		try_cases(@cases);
		test_hostile_text($pub, $what);
	});

done_testing();
