# Rows that a comparison could overlook, and code of others that it must not run as somebody else.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber', conf => 'max_parallel_workers = 0');
my $both = [ $pub, $sub ];

# What a comparison has found, one difference a line, behind the table's state.
sub compare
{
	my ($table, $arguments) = @_;
	my ($ret, $id, $notices) = $sub->psql(
		'postgres',
		"CALL weft.compare_subscription('s', '{$table}'"
		  . ($arguments // '') . ')',
		timeout => 180);

	is($ret, 0, "compare $table") or die $notices;
	return query($sub, <<EOC);
SELECT concat_ws(' ', status, publisher_rows, local_rows, reason) FROM weft.comparison_table WHERE comparison = $id
UNION ALL
(SELECT concat_ws(' ', kind, key, publisher_row ->> 'v', local_row ->> 'v') FROM weft.difference WHERE comparison = $id ORDER BY key::text COLLATE "C")
EOC
}

my $rows = 120000;
query_all($both, <<EOC);
CREATE TABLE nullable (id int, part int, v text);
CREATE TABLE unchecked (id int PRIMARY KEY, i int, v text);
CREATE SCHEMA mallory;
CREATE TABLE mallory.trap (id int PRIMARY KEY, v text);
EOC
query($pub, <<EOC);
ALTER TABLE nullable ADD PRIMARY KEY (id, part);
INSERT INTO nullable SELECT i, i, 'v' FROM generate_series(1, $rows) i;
INSERT INTO unchecked VALUES (1, 0, ''), (2, 1, 'x');
INSERT INTO mallory.trap SELECT i, 'v' FROM generate_series(1, $rows) i;
CREATE PUBLICATION p FOR TABLE nullable, unchecked, mallory.trap;
EOC

# The table's owner here makes an index whose predicate the planner evaluates.
query($sub, <<'EOC');
CREATE INDEX ON nullable (id, part);
CREATE ROLE mallory;
GRANT USAGE, CREATE ON SCHEMA mallory TO mallory;
ALTER TABLE mallory.trap OWNER TO mallory;
SET SESSION AUTHORIZATION mallory;
CREATE FUNCTION mallory.trap(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
	RAISE LOG 'trap in % ran as %', $1, current_user;
	RETURN true;
END$$;
CREATE INDEX ON mallory.trap (v) WHERE mallory.trap('predicate');
EOC
subscribe($pub, $sub, 's', 'p');
wait_for_apply($pub, $sub, 's');
query($sub, 'ANALYZE');

# --- keys that are null ---

is(compare('nullable'), "done $rows $rows", 'the tables are equal');
query($sub,
	"INSERT INTO nullable VALUES (NULL, 1, 'a'), (60000, NULL, 'b'), (NULL, NULL, 'c')"
);
is( compare('nullable'),
	join("\n",
		"done $rows " . ($rows + 3),
		'missing there {"id": "60000", "part": null} b',
		'missing there {"id": null, "part": "1"} a',
		'missing there {"id": null, "part": null} c'),
	'rows with null keys are found in a table that is divided into ranges');

is( query(
		$sub,
		'SELECT count(*), count(local_origin), count(local_commit_time) FROM weft.difference'
	),
	'3|0|0',
	'without track_commit_timestamp here, it is unknown who wrote a row');

# --- nulls in a column that is NOT NULL, but not yet validated ---

SKIP:
{
	skip 'no such constraints before PostgreSQL 18', 3
	  if $pub->pg_version->major < 18;

	query($sub,
		'UPDATE unchecked SET i = NULL WHERE id = 1; UPDATE unchecked SET v = NULL WHERE id = 1'
	);
	query_all($both,
		'ALTER TABLE unchecked ADD CONSTRAINT i NOT NULL i NOT VALID, ADD CONSTRAINT v NOT NULL v NOT VALID'
	);
	is( compare('unchecked'),
		"done 2 2\ndifferent {\"id\": \"1\"} ",
		'a null value is not taken for zero or an empty text');
	query($sub, "UPDATE unchecked SET i = 0, v = '' WHERE id = 1");
	query($sub, 'ALTER TABLE unchecked VALIDATE CONSTRAINT i');
	is(compare('unchecked'), 'done 2 2', 'none is left');
}

# --- code of a table's owner ---

query($sub, "UPDATE mallory.trap SET v = 'wrong' WHERE id = 7");
my $offset = -s $sub->logfile;
is( compare('mallory.trap'),
	"done $rows $rows\ndifferent {\"id\": \"7\"} v wrong",
	"a table's owner cannot disturb the comparison");
my $superuser = query($sub, 'SELECT current_user');
my $log = slurp_file($sub->logfile, $offset);
like(
	$log,
	qr/trap in predicate ran as mallory/,
	"the owner's function was called");
unlike(
	$log,
	qr/trap in \w+ ran as \Q$superuser\E/,
	"but not with the rights of the subscription's owner");
$offset = -s $sub->logfile;
$sub->safe_psql('postgres',
	'ALTER SYSTEM SET max_parallel_workers = 4; SELECT pg_reload_conf()');
is( compare('mallory.trap', ', jobs => 4'),
	"done $rows $rows\ndifferent {\"id\": \"7\"} v wrong",
	'nor with several processes');
unlike(
	slurp_file($sub->logfile, $offset),
	qr/trap in \w+ ran as \Q$superuser\E/,
	'parallel workers do not give their rights away either');

# --- connections that are idle ---

$pub->safe_psql('postgres',
	"ALTER SYSTEM SET idle_session_timeout = '2s'; SELECT pg_reload_conf()");
is( compare('nullable', ", max_rows_per_second => 15000"),
	"done $rows "
	  . ($rows + 3) . "\n"
	  . join("\n",
		'missing there {"id": "60000", "part": null} b',
		'missing there {"id": null, "part": "1"} a',
		'missing there {"id": null, "part": null} c'),
	'a connection to the publisher may be idle for a while');

done_testing();
