# Switching over with verify => 'full' and 'recent': whatever differs makes the step fail that
# looks for it, and undoes everything; under load, with nothing planted, nothing is found.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use InjectionTest;
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

need_injection_points();

my @tables = ('t', '"Odd ""name"', qw(part keyless));
my $schema = <<'EOC';
CREATE TABLE t (id int PRIMARY KEY, v text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
CREATE TABLE "Odd ""name" (id serial PRIMARY KEY, "V v" text);
CREATE TABLE part (id int, region int, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
EOC

my $load_scripts = {
	"\\set i random(1, 400)\n"
	  . "UPDATE t SET v = 'load ' || random() WHERE id = :i;\n" => 4,
	"\\set i random(1, 400)\n"
	  . "UPDATE t SET long = repeat(md5(random()::text), 300) WHERE id = :i;\n"
	  => 1,
	"\\set i random(1, 400)\n"
	  . "BEGIN; DELETE FROM t WHERE id = :i; SAVEPOINT s;"
	  . " INSERT INTO t VALUES (:i, 'again') ON CONFLICT DO NOTHING; COMMIT;\n"
	  => 2,
	"\\set i random(401, 900)\n" . "DELETE FROM t WHERE id = :i;\n" => 1,
	"\\set i random(401, 900)\n"
	  . "INSERT INTO t VALUES (:i, 'new') ON CONFLICT DO NOTHING;\n" => 1,
	"\\set i random(1, 400)\n\\set r random(1, 2)\n"
	  . "UPDATE part SET region = :r, v = 'moved' WHERE id = :i;\n" => 2,
	"\\set i random(1, 400)\n"
	  . "UPDATE part SET id = id + 1000 * (1 - id / 1000 * 2) WHERE id % 1000 = :i;\n"
	  => 1,
	"INSERT INTO \"Odd \"\"name\" (\"V v\") VALUES ('load');\n" => 2,
	"\\set i random(1, 20)\n"
	  . "UPDATE keyless SET b = b || 'x' WHERE a = :i AND length(b) < 20;\n"
	  => 1
};

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');
query_all([ $pub, $sub ], $schema);
query($pub, <<'EOC');
INSERT INTO t SELECT i, 'v' || i, repeat('0123456789', 500) FROM generate_series(1, 2000) i;
INSERT INTO "Odd ""name" ("V v") SELECT 'v' FROM generate_series(1, 100);
INSERT INTO part SELECT i, 1 + i % 2, 'v' FROM generate_series(1, 2000) i WHERE i < 1000 OR i > 1400;
INSERT INTO keyless SELECT i % 20, 'b' FROM generate_series(1, 200) i;
CREATE PUBLICATION pub FOR TABLE t, "Odd ""name", part, keyless WITH (publish_via_partition_root = true);
EOC
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $pause = "max_pause => '2 min'";
my $over = "switch_over('sub', '" . connection($sub) . "', $pause, ";

# Changes a table in spite of its fence.
sub change
{
	my ($node, $table, $sql) = @_;
	query($node, <<EOC);
BEGIN;
ALTER TABLE $table DISABLE TRIGGER USER;
$sql;
ALTER TABLE $table ENABLE ALWAYS TRIGGER weft_switch_fence;
COMMIT
EOC
	return;
}

# Calls the procedure, and does something after a step: by default, between the comparison and
# the pause.
sub with_change
{
	my ($call, $change, $step) = @_;
	my $point = 'weft-switch-' . ($step // 'compare') . '-done';
	my $session = open_session($sub, on_error_stop => 0);

	attach_point($sub, $point);
	$session->query_until(qr/begun/, "\\echo begun\nCALL weft.$call;\n");
	held_at($sub, $point);
	$change->();
	release_point($sub, $point);
	$session->query('SELECT 1');
	my $stderr = $session->{stderr};
	$session->quit;
	return $stderr;
}

sub last_steps
{
	return query(
		$sub, q{
		SELECT string_agg(step, ' ' ORDER BY position) FROM weft.switch_over_progress p
		WHERE attempt = (SELECT attempt FROM weft.switch_attempt)
		AND step IN ('compare', 'fence_source', 'verify', 'position', 'final')});
}

sub fails
{
	my ($stderr, $right, $steps, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($stderr, $right, $what);
	like($stderr, qr/The attempt has been undone/, "$what: undone");
	is(last_steps(), $steps, "$what: the step that failed");
	is(accepting('t', $pub, $sub),
		'publisher', "$what: the old server continues");
	is(join('', map { left_over($_) } $pub, $sub),
		'', "$what: nothing is left");
	return;
}

my $not_same = qr/are not the same on both sides/;

# a difference in an old row
query($sub, q{UPDATE t SET v = 'wrong' WHERE id = 1500});
fails(
	call_switch($sub, "$over verify => 'full')"),
	$not_same,
	'fence_source verify',
	'full, an old row');
is( query(
		$sub,
		'SELECT relation, key, kind, columns FROM weft.difference WHERE comparison = (SELECT max(comparison) FROM weft.comparison)'
	),
	't|{"id": "1500"}|different|{v}',
	'the row is stored');
fails(call_switch($sub, "$over verify => 'recent')"),
	$not_same, 'compare', 'recent, an old row');
query($sub,
		'CALL weft.repair('
	  . query($sub, 'SELECT max(comparison) FROM weft.comparison')
	  . ', true)');
same_tables($pub, $sub, \@tables, 'repaired behind the fence');

# tables that cannot be compared, which the plan did not see
my $partly = sub {
	query($pub, q{ALTER PUBLICATION pub SET (publish = 'insert, update')});
};
my $wholly = sub {
	query($pub,
		q{ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')}
	);
};
fails(
	with_change("$over verify => 'full')", $partly, 'plan'),
	qr/not all tables of subscription "sub" could be compared/,
	'fence_source verify',
	'full, not everything is published');
$wholly->();
fails(
	with_change("$over verify => 'recent')", $partly, 'plan'),
	qr/of subscription "sub" cannot be compared: partly published/,
	'compare',
	'recent, not everything is published');
$wholly->();

# differences that arise after the comparison
my %planted = (
	'an update' => [ 't', q{UPDATE t SET v = 'wrong' WHERE id = 1501} ],
	'a toasted value' => [
		't',
		q{UPDATE t SET long = overlay(long PLACING '!' FROM 4000) WHERE id = 1501}
	],
	'an insertion' => [ 't', q{INSERT INTO t VALUES (5000)} ],
	'a deletion' => [ 't', q{DELETE FROM t WHERE id = 1501} ],
	'a key' => [ 't', q{UPDATE t SET id = 5001 WHERE id = 1501} ],
	'a partition' =>
	  [ 'part_2', q{UPDATE part_2 SET v = 'wrong' WHERE id = 1501} ],
	'a table without a key' => [
		'keyless',
		q{UPDATE keyless SET b = 'c' WHERE ctid = (SELECT min(ctid) FROM keyless)}
	],
	'TRUNCATE' => [ 'keyless', 'TRUNCATE keyless' ]);
foreach my $what (sort keys %planted)
{
	my ($table, $sql) = @{ $planted{$what} };

	query($sub, "CREATE TABLE kept AS SELECT * FROM $table");
	fails(
		with_change(
			"$over verify => 'recent')",
			sub { change($sub, $table, $sql) }),
		$what eq 'TRUNCATE'
		? qr/was altered, truncated or rewritten/
		: $not_same,
		'compare fence_source verify',
		"recent, $what");
	change($sub, $table,
		"DELETE FROM $table; INSERT INTO $table SELECT * FROM kept");
	query($sub, 'DROP TABLE kept');
	same_tables($pub, $sub, \@tables, "$what: as before");
}

# a lost deletion and a stray one: as many rows, and none of them is recent
fails(
	with_change(
		"$over verify => 'recent')",
		sub {
			query($sub,
				"CREATE TABLE kept AS SELECT * FROM t WHERE id IN (1502, 1503)"
			);
			change($sub, 't', 'DELETE FROM t WHERE id = 1503');
			# no row with the key is here when the deletion is applied
			change($sub, 't', 'UPDATE t SET id = 6000 WHERE id = 1502');
			query($pub, 'DELETE FROM t WHERE id = 1502');
			wait_for_apply($pub, $sub, 'sub');
			change($sub, 't', 'UPDATE t SET id = 1502 WHERE id = 6000');
		}),
	$not_same,
	'compare fence_source verify',
	'recent, as many rows');
change($sub, 't',
	'DELETE FROM t WHERE id IN (1502, 1503); INSERT INTO t SELECT * FROM kept WHERE id = 1503'
);
query($sub, 'DROP TABLE kept');

# a row that is recent on both sides
fails(
	with_change(
		"$over verify => 'recent')",
		sub {
			query($pub, q{UPDATE t SET v = 'right' WHERE id = 1504});
			wait_for_apply($pub, $sub, 'sub');
			change($sub, 't', q{UPDATE t SET v = 'wrong' WHERE id = 1504});
		}),
	$not_same,
	'compare fence_source verify',
	'recent on both sides');
change($sub, 't', q{UPDATE t SET v = 'right' WHERE id = 1504});

# too little time: the process that compares is held
attach_point($sub, 'weft-compare-snapshot');
my $said;
foreach my $pause (4, 16, 64)
{
	# it must suffice for the steps before
	$said = call_switch($sub,
		"switch_over('sub', NULL, verify => 'full', max_pause => '$pause s')"
	);
	last if last_steps() =~ /verify/;
}
fails(
	$said,
	qr{timed out while comparing both sides|step "verify" did not end within},
	'fence_source verify',
	'a pause that is too short');
release_point($sub, 'weft-compare-snapshot');
poll($sub,
	q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'weft comparison'}
);

# Nothing differs.  A transaction that was open when the comparison began makes rows recent on one
# side only.
my $open = open_session($pub);
my $load = start_pgbench($pub, $load_scripts, '-c', 4, '-T', 120);
$open->query_safe("BEGIN; UPDATE t SET v = 'late' WHERE id = 1600");
my $stderr = with_change(
	"$over verify => 'recent')",
	sub {
		query($pub, q{UPDATE t SET v = 'in between' WHERE id > 1900});
		$open->query_safe(
			'SAVEPOINT a; DELETE FROM t WHERE id = 1601; COMMIT');
	});
finish($load, may_fail => 1);
is($stderr =~ s/^NOTICE.*$//mgr, '', 'recent, under load')
  or die 'nothing to be tested';
is(accepting('t', $pub, $sub), 'subscriber', 'switched over');
same_tables($pub, $sub, \@tables, 'both sides are the same');
like(
	query(
		$sub,
		q{SELECT string_agg(step || ': ' || result, ', ' ORDER BY position) FROM weft.switch_over_progress
		WHERE attempt = (SELECT attempt FROM weft.switch_attempt) AND step IN ('compare', 'verify')}
	),
	qr/^compare: comparison \d+, verify: 4 tables, [1-9]\d* rows$/,
	'what was compared');

# the way back
like(
	switch_back($sub, 'sub', "verify => 'recent'"),
	qr/is not supported for the way back/,
	'switching back with recent');
foreach my $side ($pub, $sub)
{
	my $what = 'switching back, a difference on the ' . $side->name;

	poll($pub, q{SELECT v = 'right' FROM t WHERE id = 1504});
	if ($side eq $pub)
	{
		change($pub, 't', q{UPDATE t SET v = 'wrong' WHERE id = 1504});
	}
	else
	{
		query($sub, q{INSERT INTO keyless VALUES (-1, 'replicated')});
		poll($pub, 'SELECT count(*) = 1 FROM keyless WHERE a = -1');
		change($pub, 'keyless', 'DELETE FROM keyless WHERE a = -1');
	}
	my $failure = switch_back($sub, 'sub', "verify => 'full', $pause");
	like($failure, $not_same, $what);
	like($failure, qr/The attempt has been undone/, "$what: undone");
	is(accepting('t', $pub, $sub),
		'subscriber', "$what: the new server continues");
	change($pub, 't', q{UPDATE t SET v = 'right' WHERE id = 1504})
	  if $side eq $pub;
	change($pub, 'keyless', q{INSERT INTO keyless VALUES (-1, 'replicated')})
	  if $side ne $pub;
}
$load = start_pgbench($sub, $load_scripts, '-c', 4, '-T', 60);
poll($pub, q{SELECT count(*) > 110 FROM "Odd ""name"});
is(switch_back($sub, 'sub', "verify => 'full', $pause"),
	'', 'switching back with full, under load');
finish($load, may_fail => 1);
is(accepting('t', $pub, $sub), 'publisher', 'switched back');
wait_for_apply($pub, $sub, 'sub');
same_tables($pub, $sub, \@tables, 'both sides are the same');

$load = start_pgbench($pub, $load_scripts, '-c', 4, '-T', 60);
poll($sub, q{SELECT count(*) > 150 FROM "Odd ""name"});
$stderr = call_switch($sub, "$over verify => 'full')");
finish($load, may_fail => 1);
is($stderr, '', 'full, under load');
is(accepting('t', $pub, $sub), 'subscriber', 'switched over');
same_tables($pub, $sub, \@tables, 'both sides are the same');
done_testing();
