# weft.switch_over_plan(): each check finds what it is for, and nothing otherwise.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'the functions are those of Weft' unless weft();

my %publishers = (stock => {});
my $old = $ENV{WEFT_PG15_BINDIR} // '/usr/lib/postgresql/15/bin';
$publishers{15} = { install_path => $old =~ s{/bin/?$}{}r }
  if -x "$old/initdb" && -x "$old/pg_config";

my ($pub, $sub);

# The findings: check => ["object|severity|problem|remedy"...].
sub findings
{
	my ($arguments, $role) = @_;
	my $separator = '~~';
	my $set = $role ? "SET ROLE $role;" : '';
	my $output = query($sub,
		"$set SELECT concat_ws('$separator', check_name, severity, coalesce(object, ''), coalesce(problem, ''), coalesce(remedy, '')) || '#' FROM weft.switch_over_plan('sub'"
		  . ($arguments // '')
		  . ')');
	my %result;

	foreach my $row (split /#(?:\n|$)/, $output)
	{
		my ($check, $severity, @rest) = split /$separator/, $row, -1;
		push @{ $result{$check} },
		  { severity => $severity, text => join '|', @rest };
	}
	return \%result;
}

# All that is not "ok", but for what is always there.
sub problems
{
	my ($found) = @_;
	return join "\n", sort map {
		my $check = $_;
		map    { "$check|$_->{severity}|$_->{text}" }
		  grep { $_->{severity} ne 'ok' }
		  @{ $found->{$check} }
	} keys %$found;
}

# One test: nothing is found, but for sessions of this test that are just ending.
sub no_problem
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my ($found, $problems);

	do
	{
		$found = findings();
		$problems = problems($found);
	} while ($problems =~ /^sessions[|]/ && time < $deadline);
	is($problems, '', $what);
	return $found;
}

# Each case: [check, severity, object, part of the problem, SQL there, SQL here, SQL there to
# undo it, SQL here, flags].  Flags: R: only for the way back; A: not together with others;
# W: only a warning if there is no way back.  Cases of different checks are tried together.
my @cases = (
	[
		'subscription', 'error', 'sub', 'is disabled', '',
		'ALTER SUBSCRIPTION sub DISABLE',
		'', 'ALTER SUBSCRIPTION sub ENABLE', 'A'
	],
	[
		'subscription', 'error',
		'sub', 'is to be skipped',
		'', q{ALTER SUBSCRIPTION sub SKIP (lsn = 'F/0')},
		'', 'ALTER SUBSCRIPTION sub SKIP (lsn = NONE)',
		'A'
	],
	[
		'tables_ready',
		'error',
		'public.ref',
		'is not complete',
		'',
		q{UPDATE pg_subscription_rel SET srsubstate = 'f' WHERE srrelid = 'ref'::regclass},
		'',
		q{UPDATE pg_subscription_rel SET srsubstate = 'r' WHERE srrelid = 'ref'::regclass},
		'A'
	],
	[
		'tables_subscribed',
		'error',
		'public.more',
		'does not know it',
		'CREATE TABLE more (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE more',
		'',
		'DROP TABLE more',
		'',
		'A'
	],
	[
		'tables_subscribed', 'error',
		'public.ref', 'not published any more',
		'ALTER PUBLICATION pub DROP TABLE ref', '',
		'ALTER PUBLICATION pub ADD TABLE ref', '',
		'A'
	],
	[
		'prepared_transactions',
		'error',
		q{'it''s'},
		'holds its locks',
		q{BEGIN; UPDATE t SET a = 0; PREPARE TRANSACTION 'it''s'},
		'',
		q{ROLLBACK PREPARED 'it''s'},
		'',
		'A'
	],
	[
		'prepared_transactions_here',
		'error',
		q{'gid'},
		'holds its locks',
		'',
		q{BEGIN; CREATE TABLE p (); PREPARE TRANSACTION 'gid'},
		'',
		q{ROLLBACK PREPARED 'gid'}
	],
	[
		'publish_operations',
		'error',
		'pub',
		'does not publish every',
		q{ALTER PUBLICATION pub SET (publish = 'insert')},
		'',
		q{ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')},
		''
	],
	[
		'publish_operations',
		'warning',
		'pub',
		'does not publish every',
		q{ALTER PUBLICATION pub SET (publish = 'insert, update, delete')},
		'',
		q{ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')},
		''
	],
	[
		'subscriptions_here',
		'warning',
		'other',
		'another subscription',
		'',
		q{CREATE SUBSCRIPTION other CONNECTION 'dbname=x' PUBLICATION x WITH (connect = false)},
		'',
		q{ALTER SUBSCRIPTION other SET (slot_name = NONE); DROP SUBSCRIPTION other}
	],
	[
		'subscriptions_there',
		'warning',
		'other',
		'has a subscription itself',
		q{CREATE SUBSCRIPTION other CONNECTION 'dbname=x' PUBLICATION x WITH (connect = false)},
		'',
		q{ALTER SUBSCRIPTION other SET (slot_name = NONE); DROP SUBSCRIPTION other},
		''
	],
	[
		'slots_there',
		'warning',
		'cdc',
		'logical slot',
		q{SELECT pg_create_logical_replication_slot('cdc', 'test_decoding')},
		'',
		q{SELECT pg_drop_replication_slot('cdc')},
		''
	],
	[
		'lag',
		'warning',
		'sub',
		'behind',
		q{BEGIN; LOCK ref; SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 70); COMMIT},
		'ALTER SUBSCRIPTION sub DISABLE',
		'',
		'ALTER SUBSCRIPTION sub ENABLE',
		'A'
	],

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
		'encoding',
		'warning',
		'lc_ctype',
		'POSIX here',
		'',
		q{UPDATE pg_database SET datctype = 'POSIX' WHERE datname = 'postgres'},
		'',
		q{UPDATE pg_database SET datctype = datcollate WHERE datname = 'postgres'}
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
	],
	[
		'read_only',
		'error',
		'postgres',
		'for all sessions',
		'',
		'ALTER DATABASE postgres SET default_transaction_read_only = on',
		'',
		'SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only',
		'A'
	],
	[
		'read_only',
		'warning',
		'app',
		'for sessions of the role',
		'',
		'ALTER ROLE app SET default_transaction_read_only = on',
		'',
		'ALTER ROLE app RESET default_transaction_read_only',
		'A'
	],
	[
		'settings',
		'warning',
		'TimeZone',
		'Asia/Tokyo here',
		'',
		q{ALTER SYSTEM SET timezone = 'Asia/Tokyo'; SELECT pg_reload_conf()},
		'',
		'ALTER SYSTEM RESET timezone; SELECT pg_reload_conf()'
	],
	[
		'database_settings',
		'warning',
		'work_mem',
		'for role app, but this one does not',
		q{ALTER ROLE app IN DATABASE postgres SET work_mem = '5MB'},
		'',
		'ALTER ROLE app IN DATABASE postgres RESET work_mem',
		''
	],
	[
		'database_settings',
		'warning',
		'search_path',
		'has this setting, but',
		'ALTER DATABASE postgres SET search_path = public',
		'',
		'ALTER DATABASE postgres RESET search_path',
		''
	],
	[
		'two_phase',
		'warning',
		'sub',
		'two_phase is on',
		'',
		q{ALTER SUBSCRIPTION sub DISABLE; UPDATE pg_subscription SET subtwophasestate = 'e'},
		'',
		q{UPDATE pg_subscription SET subtwophasestate = 'd'; ALTER SUBSCRIPTION sub ENABLE},
		'A'
	],
	[
		'slots_here',
		'warning',
		'',
		'may be invalidated',
		'',
		q{ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'; SELECT pg_reload_conf()},
		'',
		'ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()'
	],
	[
		'roles', 'warning', '"The app"',
		'does not exist here',
		'CREATE ROLE "The app" LOGIN',
		'', 'DROP ROLE "The app"', ''
	],
	[
		'slot', 'error',
		'sub', 'not connected',
		'', 'ALTER SUBSCRIPTION sub DISABLE',
		'', 'ALTER SUBSCRIPTION sub ENABLE',
		'A'
	],
	[
		'slot',
		'error',
		'nosuch',
		'does not exist on the publisher',
		'',
		q{ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = 'nosuch')},
		'',
		q{ALTER SUBSCRIPTION sub SET (slot_name = 'sub'); ALTER SUBSCRIPTION sub ENABLE},
		'A'
	],
	[
		'subscription',
		'error',
		'sub',
		'has no slot',
		'',
		'ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = NONE)',
		'',
		q{ALTER SUBSCRIPTION sub SET (slot_name = 'sub'); ALTER SUBSCRIPTION sub ENABLE},
		'A'
	],
	[
		'conflict_detection',
		'error',
		'sub',
		'detects conflicts',
		'',
		q{ALTER SUBSCRIPTION sub DISABLE; SECURITY LABEL FOR weft ON SUBSCRIPTION sub IS 'detect_conflicts=on'},
		'',
		'SECURITY LABEL FOR weft ON SUBSCRIPTION sub IS NULL; ALTER SUBSCRIPTION sub ENABLE',
		'A'
	],
	[
		'publish_operations',
		'error',
		'nosuch',
		'does not exist on the publisher',
		'',
		'ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub ADD PUBLICATION nosuch WITH (refresh = false)',
		'',
		'ALTER SUBSCRIPTION sub DROP PUBLICATION nosuch WITH (refresh = false); ALTER SUBSCRIPTION sub ENABLE',
		'A'
	],
	[
		'encoding',
		'error',
		'encoding',
		'SQL_ASCII here',
		'',
		q{UPDATE pg_database SET encoding = 0 WHERE datname = 'postgres'},
		'',
		q{UPDATE pg_database SET encoding = pg_char_to_encoding('UTF8') WHERE datname = 'postgres'},
		'A'
	],);

sub run
{
	my ($node, @sql) = @_;
	my $sql = join "\n", map { "$_;" } map { split /; / } grep { $_ } @sql;

	$node->safe_psql('postgres', $sql) if $sql;
	return;
}

# Workers and settings follow with a delay.
my %late =
  map { $_ => 1 } qw(subscription slot lag settings two_phase slots_here);

sub wait_until_fine
{
	my $checks = join ', ', map { "'$_'" } @_, 'subscription', 'slot',
	  'tables_ready', 'lag';

	poll($sub,
		"SELECT bool_and(severity = 'ok') FROM weft.switch_over_plan('sub') WHERE check_name IN ($checks)"
	);
	return;
}

# The cases in groups that can be tried at once: one of each check in a group.
sub groups
{
	my (%count, @together, @alone);

	foreach my $case (@_)
	{
		if (($case->[8] // '') =~ /A/)
		{
			push @alone, [$case];
			next;
		}
		push @{ $together[ $count{ $case->[0] }++ // 0 ] }, $case;
	}
	return (@together, @alone);
}

# Does any finding fit?
sub has
{
	my ($found, $check, $severity, $object, $problem) = @_;

	return grep {
			 $_->{severity} eq $severity
		  && $_->{text} =~ /^(public\.)?\Q$object\E\|/
		  && index($_->{text}, $problem) > 0
	} @{ $found->{$check} };
}

foreach my $major (sort keys %publishers)
{
	my $what = $major eq 'stock' ? '' : "publisher $major: ";
	$pub =
	  new_publisher("publisher_$major", %{ $publishers{$major} }, stock => 1);
	$sub = new_subscriber("subscriber_$major",
		conf => 'allow_system_table_mods = on');
	query_all([ $pub, $sub ], <<EOS);
CREATE TABLE t (id serial PRIMARY KEY, a int, b text);
CREATE TABLE "Tä b" (id int PRIMARY KEY);
CREATE TABLE ref (id int PRIMARY KEY, t int REFERENCES t);
CREATE ROLE app LOGIN;
EOS
	query($pub, <<EOS);
INSERT INTO t (a) SELECT generate_series(1, 1000);
CREATE PUBLICATION pub FOR TABLE t, "Tä b", ref;
EOS
	subscribe($pub, $sub, 'sub', 'pub');
	wait_for_apply($pub, $sub, 'sub');
	query($sub, "ANALYZE t; SELECT weft.sync_sequences('sub')");

	my $found = no_problem("${what}nothing to complain about");
	my %checks = map { $_ => 1 } keys %$found;

	# All of them with the oldest publisher, which every query must suit; a sample with the other.
	my $every = $major eq 'stock' && $publishers{15} ? 5 : 1;
	foreach
	  my $group (groups(@cases[ grep { $_ % $every == 0 } 0 .. $#cases ]))
	{
		run($sub, map { $_->[5] } @$group);
		poll($pub,
			"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'"
		) if $group->[0][0] eq 'lag';
		run($pub, map { $_->[4] } @$group);
		poll($sub,
			"SELECT count(*) > 0 FROM weft.switch_over_plan('sub') WHERE check_name = '$_->[0]' AND severity = '$_->[1]'"
		) foreach grep { $late{ $_->[0] } } @$group;
		$found = findings();
		my $one_way =
		  grep({ ($_->[8] // '') =~ /[RW]/ } @$group)
		  ? findings(', false')
		  : {};
		my $missing = 0;
		foreach my $case (@$group)
		{
			my ($check, $severity, $object, $problem) = @$case;
			my $flags = $case->[8] // '';

			ok(has($found, $check, $severity, $object, $problem),
				"$what$check: $problem")
			  or $missing++;
			ok(!exists $one_way->{$check},
				"$what$check: not without a way back")
			  if $flags =~ /R/;
			ok( has($one_way, $check, 'warning', $object, $problem),
				"$what$check: a warning without a way back") if $flags =~ /W/;
		}
		diag(problems($found)) if $missing;
		run($pub, map { $_->[6] } reverse @$group);
		run($sub, map { $_->[7] } reverse @$group);
		wait_until_fine(grep { $late{$_} } map { $_->[0] } @$group)
		  if grep { $late{ $_->[0] } } @$group;
		# This is also the state before the next group.
		no_problem("${what}undone: " . join ', ', map { $_->[0] } @$group);
	}

	# What the publisher has written is never SQL in a remedy, whatever it contains.
	my $evil = qq{evil\n; DROP TABLE t; --};
	query($pub, <<EOS);
CREATE TABLE "$evil" ();
CREATE DOMAIN "int, DROP COLUMN evil" AS int;
ALTER TABLE ref ADD evil "int, DROP COLUMN evil";
CREATE INDEX evil ON t (replace(b, '$evil', ''));
ALTER TABLE t ADD CONSTRAINT evil CHECK (b <> '$evil');
EOS
	$found = findings();
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

	# PostgreSQL 15 does not know origin = none.
	query($sub,
		"CREATE SUBSCRIPTION other CONNECTION 'dbname=x' PUBLICATION x WITH (connect = false)"
	);
	is( findings()->{versions}[0]{severity},
		$major eq '15' ? 'warning' : 'ok',
		"${what}versions");
	is(findings(', false')->{versions}[0]{severity},
		'ok', "${what}versions: only for the way back");
	query($sub,
		'ALTER SUBSCRIPTION other SET (slot_name = NONE); DROP SUBSCRIPTION other'
	);

	# Standbys, or what looks like one.
	my $standby = open_session($pub, replication => 'true');
	ok( has(findings(), 'standbys',
			'warning', qq{"$ENV{PGAPPNAME}"},
			'a standby follows'),
		"${what}standbys");
	$standby->quit;

	# Sessions, and transactions that have been open for more than 5 seconds.
	my $busy = open_session($pub);
	my $busy_here = open_session($sub);
	my ($begun, $severity);
	do
	{
		# on a busy machine, they may be open for too long when they are looked at
		$begun = time;
		$busy->query_safe('BEGIN; SELECT count(*) FROM t');
		$severity = findings()->{long_transactions}[0]{severity};
		$busy->query_safe('COMMIT');
	} while ($severity ne 'ok' && time - $begun >= 5);
	is($severity, 'ok', "${what}long_transactions: not at once");
	$busy->query_safe(
		"SET application_name = 'shop'; BEGIN; SELECT count(*) FROM t");
	$busy_here->query_safe('BEGIN; SELECT count(*) FROM t');
	ok( has(findings(), 'sessions',
			'warning', 'shop',
			'1 sessions are connected'),
		"${what}sessions");
	foreach my $check ('long_transactions', 'long_transactions_here')
	{
		poll($sub,
			"SELECT count(*) = 1 FROM weft.switch_over_plan('sub') WHERE check_name = '$check' AND severity = 'warning' AND remedy ~ 'pg_terminate_backend'"
		);
		pass("$what$check");
	}
	$busy->quit;
	$busy_here->quit;

	# Rights, for a role there that is named, and for the role that asks here.
	query($pub,
		'CREATE ROLE repl LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO repl; GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO repl'
	);
	$found =
	  findings(", true, '" . $pub->connstr . " dbname=postgres user=repl'");
	ok(has($found, 'rights_there', 'error', 'repl', $_),
		"${what}rights there: $_")
	  foreach 'may not create a schema', 'may not create a subscription';
	ok(has($found, 'rights_there', 'error', 't', 'role repl does not own'),
		"${what}rights there: owner");
	ok(has($found, 'rights_there', 'warning', 'repl', 'does not see'),
		"${what}rights there: sessions");
	query($sub, <<EOS);
CREATE ROLE owner;
GRANT pg_create_subscription TO owner;
GRANT CREATE ON DATABASE postgres TO owner;
ALTER SUBSCRIPTION sub SET (password_required = false);
ALTER SUBSCRIPTION sub OWNER TO owner;
EOS
	$found = findings('', 'owner');
	ok(has($found, 'rights_here', 'error', 't', 'role owner does not own'),
		"${what}rights here: owner");
	ok( has($found, 'rights_here', 'error', 'owner',
			'may not create a replication slot'),
		"${what}rights here: slot");
	ok( has($found, 'sequences',
			'error', 't_id_seq',
			'lacks the right UPDATE'),
		"${what}rights here: sequence");
	is(join("\n", grep { /check failed/ } problems($found)),
		'', "${what}no check needs rights");
	query($sub,
		'ALTER SUBSCRIPTION sub OWNER TO CURRENT_USER; REVOKE CREATE ON DATABASE postgres FROM owner'
	);
	$sub->psql(
		'postgres',
		"SET ROLE owner; SELECT * FROM weft.switch_over_plan('sub')",
		stderr => \my $stderr);
	like(
		$stderr,
		qr/must be owner of subscription sub/,
		"${what}only the owner may call it");

	# What takes a restart.
	query($pub,
		"SELECT pg_replication_origin_create('o' || i) FROM generate_series(1, 2) i"
	);
	$pub->append_conf(
		'postgresql.conf',
		"max_logical_replication_workers = 0\nmax_worker_processes = 1\n"
		  . (
			$pub->pg_version < 18
			? 'max_replication_slots = 2'
			: 'max_active_replication_origins = 2'));
	$pub->restart;
	query($sub,
		"SELECT pg_create_physical_replication_slot('s' || i) FROM generate_series(1, 3) i"
	);
	$sub->append_conf('postgresql.conf',
		"wal_level = replica\nmax_wal_senders = 0\nmax_connections = 30\nmax_replication_slots = 3"
	);
	$sub->restart;
	$found = findings();
	ok(has($found, @$_), "$what$_->[0]")
	  foreach (
		[ 'workers_there', 'error', '', 'all 0 logical replication workers' ],
		[ 'workers_there', 'error', '', 'all 1 worker processes' ],
		[ 'slots_here', 'error', '', 'all 3 replication slots' ],
		[ 'origins_there', 'error', '', 'all 2 replication origins' ],
		[ 'wal_level', 'error', '', 'wal_level is replica here' ],
		[ 'wal_senders_here', 'error', '', 'all 0 WAL senders' ],
		[ 'settings', 'warning', 'max_connections', '30 here, 40' ]);
	$found = findings(', false');
	ok(!exists $found->{$_}, "$what$_: only for the way back")
	  foreach qw(workers_there origins_there wal_level wal_senders_here);

	# The slot loses its WAL.
	disable_subscription($sub, 'sub');
	set_conf($pub, 'max_slot_wal_keep_size', '1MB');
	query($pub,
		"SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()"
	) foreach 1 .. 3;
	ok(has(findings(), 'slot', 'warning', 'sub', 'will soon be removed'),
		"${what}slot: unreserved");
	query($pub, 'CHECKPOINT');
	ok(has(findings(), 'slot', 'error', 'sub', 'has been invalidated'),
		"${what}slot: lost");
	is_deeply([ grep { !$checks{$_} } keys %$found ],
		[], "${what}no check appears out of nothing");

	$sub->stop;
	$pub->stop;
}
done_testing();
