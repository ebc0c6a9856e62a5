# Members differ in all settings that affect how values look as text, or that would
# interrupt or refuse steps of a join.  Other obstacles to joins: tables that not all
# members have, tables without columns, children without parents, a different primary key.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

# Settings of the database, which apply to all connections to it.
my %settings = (
	a => {
		datestyle => 'SQL, DMY',
		timezone => 'Asia/Kolkata',
		intervalstyle => 'sql_standard',
		client_encoding => 'LATIN1',
		idle_in_transaction_session_timeout => '100ms'
	},
	b => {
		datestyle => 'German',
		timezone => 'Australia/Lord_Howe',
		intervalstyle => 'iso_8601',
		bytea_output => 'escape',
		quote_all_identifiers => 'on',
		statement_timeout => '60s'
	},
	c => {
		datestyle => 'Postgres, MDY',
		timezone => 'Israel',
		intervalstyle => 'postgres_verbose',
		extra_float_digits => '-15',
		client_encoding => 'WIN1252'
	});
my ($a, $b, $c) =
  map { new_member($_, conf => "timezone = '$settings{$_}{timezone}'\n") }
  qw(a b c);
foreach my $node ($a, $b, $c)
{
	my $of = $settings{ $node->name };
	query(
		$node,
		join '; ',
		map { "ALTER DATABASE postgres SET $_ = '$of->{$_}'" } sort keys %$of
	);
}

# Dates whose day and month can be confused, in winter.
query($a, <<"EOS");
SET client_encoding = 'UTF8';
CREATE TABLE moments (at timestamptz PRIMARY KEY, d interval, f float8, b bytea, l date[], v text);
INSERT INTO moments SELECT '2026-03-04 05:06:07.123456+00'::timestamptz + i * interval '1 hour',
	make_interval(years => -1, months => i, days => -i, secs => -i), sqrt(i), '\\x0001ff', ARRAY['2026-02-03'::date, NULL], 'old'
	FROM generate_series(1, 20) i;
CREATE TABLE "Gr\xc3\xbc\xc3\x9fe" (id int PRIMARY KEY, "\xc3\xbc" text);
INSERT INTO "Gr\xc3\xbc\xc3\x9fe" SELECT i, '\xc3\xbc\xc3\x9f' FROM generate_series(1, 5) i;
CREATE TABLE no_columns ();
INSERT INTO no_columns DEFAULT VALUES;
INSERT INTO no_columns DEFAULT VALUES;
CREATE TABLE only_generated (g int GENERATED ALWAYS AS (1) STORED);
INSERT INTO only_generated DEFAULT VALUES;
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents);
INSERT INTO parents VALUES (1), (2);
CREATE TABLE rekeyed (id int PRIMARY KEY, other int NOT NULL);
INSERT INTO rekeyed VALUES (1, 10), (2, 20);
EOS
create_group($a, 'g');
join_group($b, $a, 'g');

# --- times of rows, with changes that lose ---

my @tables = (
	'moments', "\"Gr\xc3\xbc\xc3\x9fe\"",
	'no_columns', 'only_generated',
	'parents', 'children',
	'rekeyed');
my $session = open_session($a);
$session->query_safe(
	"SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT txid_current()"
);

# An orphan is on both members, since each of the two changes is valid where it is made.
pause_subscription($a, 'weft_g_b_a');
pause_subscription($b, 'weft_g_a_b');
query($a, 'DELETE FROM parents WHERE id = 1');
query($b, 'INSERT INTO children VALUES (1, 1)');
query($a, 'ALTER SUBSCRIPTION weft_g_b_a ENABLE');
query($b, 'ALTER SUBSCRIPTION weft_g_a_b ENABLE');
wait_for_group('g', $a, $b);
is( query(
		$_,
		'SELECT count(*) FROM children LEFT JOIN parents ON parents.id = parent WHERE parents IS NULL'
	),
	1,
	'an orphan on "' . $_->name . '"') foreach ($a, $b);

# A user creates a table on one member alone, and fills it; the table's name is unique.
query($_,
		'SET weft.ddl_replication = off; CREATE TABLE stray_'
	  . $_->name
	  . ' (id int PRIMARY KEY); INSERT INTO stray_'
	  . $_->name
	  . ' VALUES (1)')
  foreach ($a, $b);

start_join($c, $a, 'g');
poll($c, "SELECT step = 'copy' FROM weft.join_entry");
my @row = map {
	"at = '2026-03-04 05:06:07.123456+00'::timestamptz + $_ * interval '1 hour'"
} 0 .. 20;
my $later = open_session($a);
$later->query_safe(
	"SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM moments WHERE $row[1] OR $row[3] FOR UPDATE"
);
query($b,
	"UPDATE moments SET v = 'from b' WHERE $row[1] OR $row[2]; DELETE FROM moments WHERE $row[3]"
);
$later->query_safe(
	"UPDATE moments SET v = 'from a' WHERE $row[1] OR $row[3]; COMMIT");
$later->quit;
$session->query_safe('COMMIT');
$session->quit;
wait_for_join($c);
wait_for_group('g', $a, $b, $c);
query_all(
	[ $a, $b, $c ],
	"ALTER DATABASE postgres RESET ALL; ALTER DATABASE postgres SET timezone = 'UTC'; ALTER DATABASE postgres SET datestyle = 'ISO'"
);
same_on_all([ $a, $b, $c ], \@tables, 'members with other settings');
is( query($c, 'SELECT v, count(*) FROM moments GROUP BY 1 ORDER BY 1'),
	"from a|2\nfrom b|1\nold|17",
	'the later change is there');
is(query($c, 'SELECT count(*) FROM no_columns'), 2, 'rows without columns');
is(query($c, 'SELECT count(*) FROM only_generated'),
	1, 'a row with only generated columns');
is( query(
		$c,
		"SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated AND connamespace <> 'weft'::regnamespace"
	),
	1,
	'the foreign key is there, in spite of the orphan');
my ($ret) = $c->psql('postgres', 'INSERT INTO children VALUES (2, 3)');
isnt($ret, 0, 'and is checked for new rows');

# The times are those of the members' commits.
my $stamps =
  "SELECT string_agg(v || ' ' || extract(epoch FROM pg_xact_commit_timestamp(xmin)), ',' ORDER BY at) FROM moments WHERE v <> 'old'";
is(query($c, $stamps), query($a, $stamps), 'to the microsecond');

# --- a stray table blocks nobody ---

is( query(
		$_,
		"SELECT count(*) FROM pg_subscription_rel s WHERE srrelid::regclass::text ~ 'stray'"
	),
	0,
	'not replicated on "' . $_->name . '"') foreach ($a, $b, $c);
query($_, 'UPDATE stray_' . $_->name . ' SET id = 2') foreach ($a, $b);
query($a, "INSERT INTO parents VALUES (10)");
query($b, "INSERT INTO parents VALUES (11)");
wait_for_group('g', $a, $b, $c);
same_on_all([ $a, $b, $c ], ['parents'], 'changes beside a stray table');
is(query($c, 'SELECT count(*) FROM stray_a'), 0, 'its rows are not copied');

# Once all members have it, it is replicated.
query_all(
	[ $b, $c ],
	'SET weft.ddl_replication = off; DROP TABLE IF EXISTS stray_a; CREATE TABLE stray_a (id int PRIMARY KEY)'
);
query($b, "SELECT weft.refresh_node_group('g')");
query($c, 'INSERT INTO stray_a VALUES (3)');
wait_for_group('g', $a, $b, $c);
is(query($_, 'SELECT count(*) FROM stray_a WHERE id = 3'),
	1, 'replicated when all have it: "' . $_->name . '"')
  foreach ($a, $b, $c);

# --- a different primary key ---

query_all(
	[ $a, $b, $c ],
	'SET weft.ddl_replication = off; ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (other)'
);
query($a, "SELECT weft.refresh_node_group('g')");
query_all([ $a, $b, $c ],
	'SET weft.ddl_replication = off; ALTER TABLE rekeyed DROP COLUMN id');
is( query(
		$a,
		'SELECT count(*) FROM weft.tombstone WHERE relation = \'rekeyed\'::regclass'
	),
	0,
	'nothing was deleted yet');
query($a, 'UPDATE rekeyed SET other = 30 WHERE other = 20');
wait_for_group('g', $a, $b, $c);
is( query(
		$_,
		'SELECT count(*) FROM weft.tombstone WHERE relation = \'rekeyed\'::regclass'
	),
	1,
	'a change of the new key is remembered on "' . $_->name . '"'
) foreach ($a, $b, $c);
same_on_all([ $a, $b, $c ], ['rekeyed'], 'another primary key');

$_->stop foreach ($a, $b, $c);
done_testing();
