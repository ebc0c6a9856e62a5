# A join with tables of a malicious owner.  The join runs that owner's code as the owner,
# on both sides, and never as the role that joins: CHECK constraints, including those of
# domains, generated columns, index expressions, triggers that fire on a replica, and a
# view that has replaced a sequence.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my ($a, $b, $c) =
  map { new_member($_, conf => "log_min_messages = log\n") } qw(a b c);
my $superuser = query($a, 'SELECT current_user');

# Each function logs the role that executes it.
my $functions = <<'EOS';
CREATE ROLE mallory;
CREATE SCHEMA m AUTHORIZATION mallory;
SET ROLE mallory;
CREATE FUNCTION m.spy(what text, result int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
	$$ BEGIN RAISE LOG 'spy: % as %', what, current_user; RETURN result; END $$;
CREATE FUNCTION m.spy() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM m.spy('trigger ' || TG_OP, 1); RETURN NEW; END $$;
EOS
my $tables = <<'EOS';
CREATE DOMAIN m.d AS int CHECK (m.spy('domain', 1) = 1);
CREATE TABLE m.t (id int PRIMARY KEY, v text, d m.d,
	g int GENERATED ALWAYS AS (m.spy('generated', id)) STORED,
	CHECK (m.spy('check', id) = id)) WITH (fillfactor = 100);
CREATE INDEX ON m.t (m.spy('index', id));
CREATE INDEX ON m.t ((m.spy('planned', 1) + id));
CREATE INDEX ON m.t (id) WHERE m.spy('predicate', 1) = 1;
CREATE TRIGGER row_spy BEFORE INSERT OR UPDATE ON m.t FOR EACH ROW EXECUTE FUNCTION m.spy();
CREATE TRIGGER truncate_spy BEFORE TRUNCATE ON m.t FOR EACH STATEMENT EXECUTE FUNCTION m.spy();
ALTER TABLE m.t ENABLE ALWAYS TRIGGER row_spy, ENABLE ALWAYS TRIGGER truncate_spy;
CREATE TABLE m.child (id int PRIMARY KEY, parent int REFERENCES m.t);
CREATE SEQUENCE m.s;
EOS
query_all([ $a, $b ], $functions . $tables);
query($c, 'CREATE ROLE mallory');
query($a,
	"SET ROLE mallory; INSERT INTO m.t SELECT i, 'old', i FROM generate_series(1, 100) i; INSERT INTO m.child VALUES (1, 1); SELECT nextval('m.s')"
);

my %offset;

sub begin_spying
{
	$offset{ $_->name } = -s $_->logfile foreach ($a, $b, $c);
	return;
}

# The functions that have been executed on a node since, and their roles.
sub spied
{
	my ($node) = @_;
	my $log = slurp_file($node->logfile, $offset{ $node->name });
	my %seen = map { $_ => 1 } $log =~ /LOG:  (spy: .* as \w+)$/gm;
	return sort keys %seen;
}

sub nothing_as_superuser
{
	my ($what) = @_;
	foreach my $member ($a, $b, $c)
	{
		is( join(', ', grep { / as $superuser$/ } spied($member)),
			'',
			"$what: nothing runs as the superuser on \""
			  . $member->name . '"');
	}
	return;
}

sub runs_as_owner
{
	my ($node, @what) = @_;
	my %seen = map { $_ => 1 } spied($node);
	is( join(', ', grep { !$seen{"spy: $_ as mallory"} } @what), '',
		'runs as the owner on "' . $node->name . '": ' . join ', ', @what);
	return;
}

create_group($a, 'g');

# --- a sequence has become something else on the node that is copied ---

sub join_fails
{
	my ($node, $expected, $what) = @_;
	start_join($node, $a, 'g');
	my ($ret, $out, $err) = $node->psql('postgres', $wait_for_join);
	like($err, $expected, $what);
	return;
}

query($a,
	"SET ROLE mallory; ALTER SEQUENCE m.s RENAME TO kept; CREATE VIEW m.s AS SELECT m.spy('view', 1)::bigint AS last_value, true AS is_called"
);
begin_spying();
join_fails(
	$b,
	qr/access to non-system view "s" is restricted/,
	'a view that has replaced a sequence is not read');
nothing_as_superuser('a view');
query($a,
	"SET ROLE mallory; DROP VIEW m.s; CREATE UNLOGGED TABLE m.s AS SELECT '7, m.spy(''value'', 1) = 1'::text AS last_value, true AS is_called"
);
begin_spying();
join_fails(
	$b,
	qr/unexpected answer from node "a" \(The query was for the value of sequence m\.s/,
	'an invalid value is not accepted');
nothing_as_superuser('a table');
query($a,
	'SET ROLE mallory; DROP TABLE m.s; ALTER SEQUENCE m.kept RENAME TO s');

# --- existing tables ---

begin_spying();
join_group($b, $a, 'g');
nothing_as_superuser('a join with existing tables');
runs_as_owner(
	$b, 'trigger TRUNCATE',
	'trigger INSERT', 'check',
	'domain', 'generated',
	'index', 'planned',
	'predicate');
is(query($b, "SELECT last_value FROM m.s"), 1, 'the sequence is copied');

# --- tables that the join creates; some rows get the times of their changes ---

my $session = open_session($a);
$session->query_safe('BEGIN; SELECT txid_current()');
begin_spying();
start_join($c, $a, 'g');
poll($c, "SELECT step = 'copy' FROM weft.join_entry");
query($a, "SET ROLE mallory; UPDATE m.t SET v = 'recent' WHERE id <= 10");
$session->query_safe('COMMIT');
$session->quit;
wait_for_join($c);
nothing_as_superuser('a join that creates the tables');
runs_as_owner($c, 'check', 'domain', 'generated', 'index', 'planned',
	'predicate');
is(join(', ', grep { /UPDATE/ } spied($c)),
	'', 'no trigger fires for a row that gets its time');
is( query(
		$c,
		"SELECT count(*) FROM m.t WHERE v = 'recent' AND (pg_xact_commit_timestamp_origin(xmin)).roident <> 65535"
	),
	10,
	'rows have their times');
is( query(
		$c,
		'SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = \'f\''
	),
	't',
	'the foreign key is valid');

wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], [ 'm.t', 'm.child' ], 'all equal');
$_->stop foreach ($a, $b, $c);
done_testing();
