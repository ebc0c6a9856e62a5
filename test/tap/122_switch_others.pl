# Several subscriptions and subscribers: a switch-over never opens what another one has closed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use SwitchTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');
my $other = new_subscriber('other');
my @nodes = ($pub, $sub, $other);

query_all(\@nodes,
	'CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)'
);
query($pub,
	'CREATE PUBLICATION pub_a FOR TABLE a; CREATE PUBLICATION pub_b FOR TABLE b'
);

sub who
{
	my ($table, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(accepting($table, @nodes),
		$expected, "$what: who accepts writes to $table");
	return;
}

# Two subscribers: the first one that succeeds has the publisher.
subscribe($pub, $sub, 'sub', 'pub_a');
subscribe($pub, $other, 'other', 'pub_a');
wait_for_apply($pub, $sub, 'sub');
wait_for_apply($pub, $other, 'other');
is(switch_over($sub, 'sub'), '', 'one subscriber takes over');
query($other, 'INSERT INTO a VALUES (1000)');
like(
	switch_over($other, 'other'),
	qr/the fence of the publisher .* belongs to another switch-over/,
	'another one cannot');
query($other, 'DELETE FROM a');
who('a', 'subscriber other', 'after a failure of the other');
like(
	switch_over($other, 'other', "verify => 'none'"),
	qr/belongs to another switch-over/,
	'nor if nothing differs');
who('a', 'subscriber other', 'after a second failure of the other');

# Meanwhile somebody else has a slot of the name that the way back creates.
query($pub, "SELECT pg_create_logical_replication_slot('sub', 'pgoutput')");
like(
	switch_back($sub, 'sub'),
	qr/replication slot "sub" .* belongs to somebody else/,
	'somebody else has the slot');
who('a', 'subscriber other', 'somebody else has the slot');
query($pub, "SELECT pg_drop_replication_slot('sub')");
is(switch_back($sub, 'sub'), '', 'switched back');
who('a', 'publisher other', 'after the way back');

# Two subscriptions of one database.
subscribe($pub, $sub, 'sub_b', 'pub_b');
wait_for_apply($pub, $sub, 'sub_b');
like(
	switch_over($sub, 'sub'),
	qr/another subscription replicates from the same database/,
	'another subscription would be left behind');
is( query(
		$sub,
		"SELECT object || ' ' || severity FROM weft.switch_over_plan('sub') WHERE check_name = 'same_publisher'"
	),
	'sub_b error',
	'it is in the plan');

# To cancel an attempt that was refused does not open what it has not closed.
foreach my $call ("switch_over('sub_b', NULL)", "switch_over_cancel('sub_b')")
{
	like(
		call_switch($sub, $call),
		qr/the fence of this server belongs to another switch-over/,
		"$call: refused");
	who('a', 'publisher other', $call);
}

# The slot of the other one has another name there: the plan does not see it.
query($sub, 'ALTER SUBSCRIPTION sub_b DISABLE');
query($sub, 'ALTER SUBSCRIPTION sub_b SET (slot_name = NONE)');
wait_until_connected($pub, $sub, 'sub');
is(switch_over($sub, 'sub'), '', 'switched over');
query($sub, 'ALTER SUBSCRIPTION sub_b SET (slot_name = sub_b)');
query($sub, 'ALTER SUBSCRIPTION sub_b ENABLE');
query($sub, 'INSERT INTO b VALUES (1000)');
like(
	switch_over($sub, 'sub_b'),
	qr/belongs to another switch-over/,
	'refused to another subscription');
who('a', 'subscriber other', 'after a failure of another subscription');
who('b', 'publisher subscriber other', 'which is not concerned');
$_->stop foreach @nodes;

# Sequences that are elsewhere, and default privileges.
my $old = new_publisher('old', stock => 1);
my $new = new_subscriber('new');
@nodes = ($old, $new);
# The name of a table must not end a statement of the fence.
query_all(\@nodes, <<'EOC');
CREATE ROLE app;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO app;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON SEQUENCES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO app;
CREATE SCHEMA numbers;
CREATE SCHEMA more;
CREATE SEQUENCE numbers.ids;
CREATE SEQUENCE more.free;
CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('numbers.ids'));
CREATE TABLE "a $weft$ '\%s" (id serial PRIMARY KEY);
EOC
query($old,
	'CREATE PUBLICATION pub FOR TABLE t, "a $weft$ \'\%s"; CREATE PUBLICATION everything FOR ALL TABLES'
);
subscribe($old, $new, 'sub', 'pub');
wait_for_apply($old, $new, 'sub');
is(switch_over($new, 'sub'), '', 'switched over');
is( query(
		$_,
		"SELECT has_schema_privilege('app', 'weft_switch', 'USAGE, CREATE') OR has_sequence_privilege('app', 'weft_switch.state', 'SELECT, USAGE, UPDATE')"
	),
	'f',
	'default privileges do not open the fence of ' . $_->name) foreach @nodes;
query($new, 'INSERT INTO t SELECT FROM generate_series(1, 50)');
query($new, 'ALTER SUBSCRIPTION sub RENAME TO renamed');
is(switch_back($new, 'renamed', 'sequence_margin => 0'),
	'', 'switched back, though the subscription has another name');
query($new, 'ALTER SUBSCRIPTION renamed RENAME TO sub');
is(query($old, "SELECT nextval('numbers.ids') > 50"),
	't', 'a sequence of another schema, of a default');
my $leader = leader_pid($new, 'sub');
query($new, 'ALTER SUBSCRIPTION sub SET PUBLICATION everything');
poll($new, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $leader");
wait_until_connected($old, $new, 'sub');
wait_for_apply($old, $new, 'sub');
is(switch_over($new, 'sub'), '', 'switched over, with all tables');
query($new, "SELECT weft.sync_sequences('sub')");
who('t', 'new',
	'the state of a fence is not a sequence that is synchronized');
query($new, "SELECT nextval('more.free') FROM generate_series(1, 50)");
is(switch_back($new, 'sub', 'sequence_margin => 0'), '', 'switched back');
is(query($old, "SELECT nextval('more.free') > 50"),
	't', 'a sequence of another schema, if all tables are published');

# Whoever calls the parts by themselves cannot have two of them in one transaction.
my ($ret, $stdout, $stderr) = $new->psql('postgres',
	"SELECT weft.switch_begin('sub', 'over', NULL, NULL, 'none', '1 min', '10 s', '1 s', 0);"
	  . ' DO $$ BEGIN WHILE weft.switch_step() LOOP END LOOP; END $$');
like(
	$stderr,
	qr/the last part of the switch-over is not committed/,
	'parts are committed');
who('t', 'old', 'which was not committed');
done_testing();
