# weft.repair(): rows that differ are made equal to the publisher's, as apply would write
# them, and nothing newer is overwritten.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RepairTest;
use Test::More;
use WeftTest;

need_injection_points();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $down = new_subscriber('downstream');

# The subscriber's tables have columns of their own, another order, other partitions.
query_all(
	[ $pub, $sub ],
	"CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TYPE pair AS (a int, b text)"
);
query($pub, <<'EOS');
CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, n numeric, f float8,
	a text[], m mood, c pair, s timestamptz, j json);
CREATE TABLE "Ünïque '""\" (id int PRIMARY KEY, u int UNIQUE, "a ""b" text);
CREATE TABLE keyless (a int, b numeric);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE p (id int PRIMARY KEY, v text);
CREATE TABLE fired (id int PRIMARY KEY, v text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE filtered (id int PRIMARY KEY, v int);
CREATE TABLE wide (id int PRIMARY KEY, v text, w text);
INSERT INTO t (v, n, f, a, m, c, s, j)
	SELECT 'v' || i, i / 10.0, i, ARRAY['x', NULL, '"'], 'ok', ROW(i, 'it''s'::text)::pair, '2020-01-01 00:00+00', '{"b": 1, "a": 2}'
	FROM generate_series(1, 20) i;
INSERT INTO "Ünïque '""\" SELECT i, i, 'u' || i FROM generate_series(1, 30) i;
INSERT INTO keyless SELECT i, 1.0 FROM generate_series(1, 5) i, generate_series(1, 3);
INSERT INTO p SELECT i, 'p' || i FROM generate_series(1, 20) i;
INSERT INTO fired SELECT i, 'f' || i FROM generate_series(1, 5) i;
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 1), (2, 1);
INSERT INTO filtered SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO wide SELECT i, repeat('v', 3000000), i FROM generate_series(1, 3) i;
CREATE PUBLICATION pub FOR TABLE t, "Ünïque '""\", keyless, p, fired, parent, child, wide, filtered WHERE (v <= 100);
EOS
query($sub, <<'EOS');
CREATE TABLE t (own text DEFAULT 'default', j json, gone int, s timestamptz, c pair, m mood, a text[], f float8, n numeric,
	double int GENERATED ALWAYS AS (id * 2) STORED, v text,
	id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
ALTER TABLE t DROP COLUMN gone;
CREATE TABLE "Ünïque '""\" (id int PRIMARY KEY, u int UNIQUE, "a ""b" text, own int);
CREATE TABLE keyless (b numeric, a int);
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 (v text, gone int, id int NOT NULL);
ALTER TABLE p2 DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (100);
CREATE TABLE fired (id int PRIMARY KEY, v text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE filtered (id int PRIMARY KEY, v int);
CREATE TABLE wide (id int PRIMARY KEY, v text, w text);
CREATE TABLE log (what text, usr name);
CREATE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
	INSERT INTO public.log VALUES (TG_NAME || ' ' || TG_OP, current_user);
	RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER r_always AFTER INSERT OR UPDATE OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION log_change();
CREATE TRIGGER r_replica BEFORE INSERT OR UPDATE OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION log_change();
CREATE TRIGGER r_origin BEFORE INSERT OR UPDATE OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION log_change();
CREATE TRIGGER s_always AFTER INSERT OR UPDATE OR DELETE ON fired FOR EACH STATEMENT EXECUTE FUNCTION log_change();
CREATE CONSTRAINT TRIGGER r_deferred AFTER UPDATE ON fired INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_change();
ALTER TABLE fired ENABLE ALWAYS TRIGGER r_always, ENABLE REPLICA TRIGGER r_replica,
	ENABLE ALWAYS TRIGGER s_always, ENABLE ALWAYS TRIGGER r_deferred;
EOS
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my %columns = (t => 'id, v, n, f, a, m, c::text, s, j');
my @tables = (
	't', qq{"Ünïque '""\\"}, 'keyless', 'p',
	'fired', 'parent', 'child', 'filtered',
	'wide');

# The tables have the same rows, in the publisher's columns, on both sides.
sub equal
{
	my ($what, @which) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %names = (
		t => 'id, v, n, f, a, m, c, s, j',
		$tables[1] => 'id, u, "a ""b"',
		keyless => 'a, b');

	foreach my $table (@which ? @which : @tables)
	{
		my $columns = $names{$table} // '*';
		same_rows(
			rows($sub, $table, $columns),
			rows($pub, $table, $columns),
			"$what: $table");
	}
	return;
}

sub position
{
	return query($sub,
		"SELECT pg_replication_origin_progress('pg_' || oid, false) FROM pg_subscription WHERE subname = 'sub'"
	);
}

equal('at first');

# The downstream server copies the subscriber's rows as they are now.
query($sub,
	"UPDATE t SET own = 'kept'; CREATE TABLE marker (i int); CREATE PUBLICATION onward FOR TABLE fired, marker"
);
query($down,
	'CREATE TABLE fired (id int PRIMARY KEY, v text); CREATE TABLE marker (i int)'
);
subscribe($sub, $down, 'down', 'onward', 'origin = none');
wait_for_apply($sub, $down, 'down');

# All kinds of differences.
as_other_origin($sub, <<'EOS');
UPDATE t SET v = 'wrong', n = 0.10, f = '-0', a = '[0:0]={x}', m = 'sad', c = NULL, s = s + '1 us', j = '{"b":1,"a":2}' WHERE id = 1;
UPDATE t SET n = 0.20 WHERE id = 2;
UPDATE t SET j = '{"a": 2, "b": 1}' WHERE id = 3;
DELETE FROM t WHERE id = 4;
INSERT INTO t (id, v) OVERRIDING SYSTEM VALUE VALUES (1000, 'extra');
UPDATE "Ünïque '""\" SET u = -id WHERE id <= 10;
UPDATE "Ünïque '""\" SET u = CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 WHEN 3 THEN 4 WHEN 4 THEN 5 WHEN 5 THEN 3 ELSE id END, own = id WHERE id <= 10;
DELETE FROM "Ünïque '""\" WHERE id IN (20, 21);
INSERT INTO "Ünïque '""\" VALUES (120, 20, E'\n''; DROP TABLE t; --'), (121, 21, NULL);
DELETE FROM keyless WHERE a = 1;
INSERT INTO keyless (a, b) VALUES (2, 1.0), (3, 1.00), (3, 1.00), (6, NULL);
UPDATE p SET v = NULL WHERE id IN (3, 13);
DELETE FROM p WHERE id IN (4, 14);
INSERT INTO p VALUES (30, 'extra');
DELETE FROM child WHERE id = 2;
DELETE FROM parent;
INSERT INTO filtered VALUES (50, 500);
UPDATE filtered SET v = 1000 WHERE id = 1;
UPDATE filtered SET v = 100 WHERE id = 2;
UPDATE wide SET v = repeat('w', 3000000), w = 'x';
UPDATE fired SET v = 'wrong' WHERE id = 1;
DELETE FROM fired WHERE id = 2;
INSERT INTO fired VALUES (100, 'extra');
EOS
query($sub, 'TRUNCATE log');
query($sub,
	"SELECT pg_create_logical_replication_slot('history', 'test_decoding')");
query($pub,
	'INSERT INTO filtered VALUES (11, 101); INSERT INTO parent VALUES (2)');
wait_for_apply($pub, $sub, 'sub');

my $unique = $tables[1];
my @differences = (
	(map { [ 't', 'different', qq({"id": "$_"}) ] } 1 .. 3),
	[ 't', 'missing here', '{"id": "4"}' ],
	[ 't', 'missing there', '{"id": "1000"}' ],
	# does not differ
	[ 't', 'different', '{"id": "5"}' ],
	(map { [ $unique, 'different', qq({"id": "$_"}) ] } 1 .. 5),
	[ $unique, 'missing here', '{"id": "20"}' ],
	[ $unique, 'missing there', '{"id": "120"}' ],
	[ $unique, 'missing here', '{"id": "21"}' ],
	[ $unique, 'missing there', '{"id": "121"}' ],
	[ 'keyless', 'missing here', undef, '{"a": "1", "b": "1.0"}' ],
	[ 'keyless', 'missing there', undef, '{"a": "2", "b": "1.0"}' ],
	[ 'keyless', 'missing there', undef, '{"a": "3", "b": "1.00"}' ],
	[ 'keyless', 'missing there', undef, '{"a": "6", "b": null}' ],
	(map { [ 'p', 'different', qq({"id": "$_"}) ] } 3, 13),
	(map { [ 'p', 'missing here', qq({"id": "$_"}) ] } 4, 14),
	[ 'p', 'missing there', '{"id": "30"}' ],
	[ 'child', 'missing here', '{"id": "2"}' ],
	[ 'parent', 'missing here', '{"id": "1"}' ],
	[ 'filtered', 'missing here', '{"id": "1"}' ],
	[ 'filtered', 'different', '{"id": "2"}' ],
	# nobody would report it: the publication does not publish such rows
	[ 'filtered', 'missing there', '{"id": "50"}' ],
	(map { [ 'wide', 'different', qq({"id": "$_"}) ] } 1 .. 3),
	[ 'fired', 'different', '{"id": "1"}' ],
	[ 'fired', 'missing here', '{"id": "2"}' ],
	[ 'fired', 'missing there', '{"id": "100"}' ]);
my $comparison = plant($sub, 'sub', @differences);
my $before = position();
my $leader = leader_pid($sub, 'sub');
like(
	repair($sub, $comparison),
	qr/NOTICE:  comparison \d+: ${\(@differences - 2)} repaired, 2 vanished, 0 not repaired/,
	'everything is repaired, but what does not differ');
is( results($sub, $comparison),
	join(
		"\n",
		map {
			($_ + 1)
			  . (
				$differences[$_][2]
				  && $differences[$_][2] =~ /"id": "5(0)?"/
				  && $differences[$_][0] =~ /^(t|filtered)$/
				? ' vanished'
				: ' repaired')
		} 0 .. $#differences),
	'each difference has its result');
is( query(
		$sub,
		"SELECT count(*) FROM weft.difference WHERE comparison = $comparison AND (repair_lsn IS NULL OR repaired_at IS NULL)"
	),
	0,
	'and its position and time');
equal('repaired', grep { $_ ne 'filtered' } @tables);
same_rows(
	rows($sub, 'filtered'),
	rows(
		$pub,
		"(SELECT * FROM filtered WHERE v <= 100 UNION ALL VALUES (50, 500)) f"
	),
	'a row that the publication does not publish is left alone');
is(query($sub, "SELECT count(*) FROM t WHERE own = 'kept'"),
	19, 'columns of the subscriber keep their values');
is(query($sub, 'SELECT own, double FROM t WHERE id = 4'),
	'default|8', 'or get their default');
is( query(
		$sub,
		qq{SELECT string_agg(own::text, ' ' ORDER BY id) FROM $unique WHERE own IS NOT NULL}
	),
	'1 2 3 4 5 6 7 8 9 10',
	'also if the row was deleted and inserted');
is( query($sub, "SELECT string_agg(what, ', ' ORDER BY what) FROM log"),
	'r_always DELETE, r_always INSERT, r_always UPDATE, r_deferred UPDATE, r_replica DELETE, r_replica INSERT, r_replica UPDATE',
	'row triggers fire as in apply, once');
is(position(), $before, "the subscription's position is the same");
is(leader_pid($sub, 'sub'), $leader, 'and its leader');

# Where the changes go.
flush_wal($sub);
is( query(
		$sub,
		"SELECT count(*) FROM pg_logical_slot_peek_changes('history', NULL, NULL, 'only-local', '1', 'skip-empty-xacts', '1') WHERE data LIKE 'table public.%'"
	),
	0,
	'commit records carry the origin');
is( query(
		$sub,
		"SELECT count(*) FROM pg_logical_slot_peek_changes('history', NULL, NULL, 'skip-empty-xacts', '1', 'include-xids', '0') WHERE data LIKE 'table public.fired%'"
	),
	3,
	'of changes that are decoded otherwise');
query($sub, 'INSERT INTO marker VALUES (1)');
wait_for_apply($sub, $down, 'down');
is(query($down, 'SELECT count(*) FROM marker'), 1, 'a local change is sent');
is( query($sub, 'SELECT count(*) FROM fired'),
	query($down, 'SELECT count(*) FROM fired'),
	'a subscriber with origin = none has as many rows');
is( query(
		$sub,
		"SELECT count(*) FROM pg_replication_origin_status WHERE external_id = 'pg_' || (SELECT oid FROM pg_subscription) AND remote_lsn = '$before'"
	),
	1,
	'the position has not moved');

# What is applied afterwards is based on the repaired rows.
query($pub, 'UPDATE t SET v = v || 1; UPDATE fired SET v = v || 1');
wait_for_apply($pub, $sub, 'sub');
equal('and then changed', 't', 'fired');

# Repeated, it has nothing to do.
like(
	repair($sub, $comparison),
	qr/${\(@differences - 2)} repaired, 2 vanished, 0 not repaired/,
	'it may be repeated');

# The statements of a dry run, with values that are quoted.
{
	my $row =
	  q({"id": "900", "u": "900", "a \"b": "'; DROP TABLE p; --\\\\"});
	my $dry = plant(
		$sub,
		'sub',
		[ $unique, 'missing here', '{"id": "900"}', $row ],
		[ $unique, 'missing there', '{"id": "1"}' ],
		[ 'keyless', 'missing there', undef, '{"a": "2", "b": "1.0"}' ]);
	my $statements = query($sub, "SELECT statement FROM weft.repair($dry)");

	is("$statements\n", <<'EOS', 'the statements, in their order');
DELETE FROM ONLY public."Ünïque '""\" WHERE id = '1';
INSERT INTO public."Ünïque '""\" (id, u, "a ""b") OVERRIDING SYSTEM VALUE VALUES ('900', '900', E'''; DROP TABLE p; --\\');
DELETE FROM ONLY public.keyless WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM ONLY public.keyless WHERE pg_catalog.format('%s', a) = '2' AND a IS NOT NULL AND pg_catalog.format('%s', b) = '1.0' AND b IS NOT NULL LIMIT 1);
EOS
	query($sub, "BEGIN; $statements; ROLLBACK");
	like(
		repair($sub, $dry),
		qr/0 repaired, 3 vanished, 0 not repaired/,
		'the rows of both servers count, not those that are recorded');
}

# Who does not own the subscription can neither repair nor see anything.
query($sub, 'CREATE ROLE stranger LOGIN');
my $own = plant($sub, 'sub', [ 't', 'different', '{"id": "1"}' ]);

sub refused
{
	my ($sql, $expected, $what, @params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) =
	  $sub->psql('postgres', $sql, extra_params => [@params]);

	return like($err, $expected, $what);
}

refused(
	"CALL weft.repair($own, apply := true)",
	qr/comparison $own does not exist/,
	'a stranger cannot repair',
	'-U',
	'stranger');
refused(
	"SELECT weft.repair($own)",
	qr/comparison $own does not exist/,
	'nor see statements',
	'-U', 'stranger');
refused(
	"CALL weft.repair($own, apply := true, batch_size := 0)",
	qr/"batch_size" must be between 1 and 10000/,
	'a bad argument');
refused(
	"BEGIN; CALL weft.repair($own, apply := true); COMMIT",
	qr/weft.repair\(\) cannot run inside a transaction block/,
	'a transaction block');
refused(
	"CALL weft.repair($own, apply := false)",
	qr/HINT:  To see the statements/,
	'nothing to apply');
query($sub, 'ALTER SUBSCRIPTION sub DISABLE');
refused(
	"CALL weft.repair($own, apply := true)",
	qr/subscription "sub" is disabled.*HINT:  Run ALTER SUBSCRIPTION ... ENABLE/s,
	'a disabled subscription');

done_testing();
