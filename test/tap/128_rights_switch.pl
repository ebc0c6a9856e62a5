# Switching over, back and cancelling by the owner of a subscription who is no superuser: works
# with the rights that the plan names, is refused with a clear message without them, gives table
# owners' code no rights, and shows nobody a password.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use RightsTest;
use SwitchTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher', stock => 1);
my $sub = new_subscriber('subscriber');
my $both = [ $pub, $sub ];

# --- who is who ---

# Anna owns the subscription and may act as Mallory; "there" is her role on the publisher.
# "reader" and "follower" are those that replicate, and can do nothing else.
query($pub, <<'EOC');
CREATE ROLE reader LOGIN REPLICATION;
CREATE ROLE there LOGIN REPLICATION;
GRANT pg_create_subscription TO there;
GRANT CREATE ON DATABASE postgres TO there;
CREATE ROLE anna LOGIN;
EOC
query($sub, <<'EOC');
CREATE ROLE follower LOGIN REPLICATION;
CREATE ROLE anna LOGIN REPLICATION;
CREATE ROLE stranger LOGIN;
GRANT pg_create_subscription TO anna;
GRANT CREATE ON DATABASE postgres TO anna;
EOC
query_all($both, <<'EOC');
CREATE ROLE mallory LOGIN;
CREATE SCHEMA anna AUTHORIZATION anna;
CREATE SCHEMA mallory AUTHORIZATION mallory;
EOC
query($pub, 'GRANT anna, mallory TO there');
query($sub, 'GRANT mallory TO anna');
ask_for_passwords($pub, 'reader', 'there');
ask_for_passwords($sub, 'follower');

foreach my $node (@$both)
{
	as_role($node, 'anna', <<'EOC');
CREATE TABLE anna.secret (v text);
CREATE TABLE anna.t (id serial PRIMARY KEY, v text);
EOC
	set_traps($node, 'mallory', 'anna');
	as_role($node, 'mallory', <<'EOC');
CREATE TABLE mallory.t (id int PRIMARY KEY, v text);
CREATE INDEX ON mallory.t (v) WHERE mallory.trap('predicate');
EOC
}

# Somebody else's sequence, with no more rights than are needed to set it.
query_all($both, 'CREATE SEQUENCE anna.numbers');
query($pub, 'GRANT SELECT, UPDATE ON SEQUENCE anna.numbers TO there');
query($sub, 'GRANT UPDATE ON SEQUENCE anna.numbers TO anna');
query($pub, <<'EOC');
INSERT INTO anna.t (v) SELECT 'v' FROM generate_series(1, 10);
SET SESSION AUTHORIZATION mallory;
INSERT INTO mallory.t SELECT i, 'v' FROM generate_series(1, 10) i;
RESET SESSION AUTHORIZATION;
CREATE PUBLICATION p FOR TABLE anna.t, mallory.t;
GRANT USAGE ON SCHEMA anna, mallory TO reader;
GRANT SELECT ON anna.t, mallory.t, anna.t_id_seq TO reader;
EOC
query($sub,
	'GRANT USAGE ON SCHEMA anna, mallory TO follower; GRANT SELECT ON anna.t, mallory.t TO follower'
);
as_role($sub, 'anna',
		"CREATE SUBSCRIPTION s CONNECTION '"
	  . conninfo($pub, 'reader')
	  . "' PUBLICATION p");
wait_for_apply($pub, $sub, 's');

# Runs a statement without passwords in its text: they are read from a table.  In the text,
# "reverse" and "there" stand for the connection strings.  Returns standard error.
sub run
{
	my ($role, $statement, %strings) = @_;
	my $reverse = $strings{reverse} // conninfo($sub, 'follower');
	my $there = $strings{there} // conninfo($pub, 'there');
	my ($ret, $out, $err) = call_as($sub, $role, <<EOC);
SET client_min_messages = warning;
CREATE TEMPORARY TABLE strings (reverse text, there text);
COPY strings FROM STDIN;
$reverse	$there
\\.
DO \$\$ DECLARE reverse text; there text; BEGIN
	SELECT s.reverse, s.there INTO reverse, there FROM pg_temp.strings s;
	$statement;
END \$\$
EOC
	return $ret == 0 ? '' : $err;
}

sub call
{
	my ($role, $call, %strings) = @_;
	return run($role, "CALL weft.$call", %strings);
}
my $pause = "max_pause => '2 min', timeout => '5 min'";
my $over = "switch_over('s', reverse, there, $pause";
my $back = "switch_back('s', there, $pause";

my $logged = log_everything($pub);
my $logged_here = log_everything($sub);

# Since when, on both sides.
sub now
{
	return { map { $_->name => -s $_->logfile } @$both };
}

# Mallory's code has run here as Mallory, and there as a role that replicates.
sub harmless
{
	my ($since, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @there = trapped($pub, $since->{publisher});

	only_ran_as($sub, $since->{subscriber}, 'mallory', ['predicate'], $what);
	is( join(
			"\n",
			grep {
				!/^(reader|mallory) role no, read no, conninfo no, superuser no/
			  }
			  map { "$_->[1] $_->[2]" } @there),
		'',
		"on the publisher: $what");
	return;
}

# --- what is missing is named, and nothing remains of the attempt ---

sub refused_call
{
	my ($call, $pattern, $what, %strings) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like(call('anna', $call, %strings), $pattern, $what);
	is(left_over($pub) . left_over($sub), '', "nothing is left: $what");
	accepts($pub, 'INSERT INTO anna.t VALUES (1000)', $what);
	return;
}
query($sub, 'ALTER ROLE anna NOREPLICATION');
refused_call(
	"$over)",
	qr/rights_here: anna: the role may not create a replication slot here/,
	'no REPLICATION here');
query($sub, 'ALTER ROLE anna REPLICATION; REVOKE mallory FROM anna');
refused_call(
	"$over)",
	qr/rights_here: mallory\.t: role anna does not own the table here/,
	'no owner of a table here');
query($sub, 'GRANT mallory TO anna');
query($pub, 'REVOKE mallory FROM there');
refused_call(
	"$over)",
	qr/rights_there: mallory\.t: role there does not own the table/,
	'no owner of a table there');
query($pub,
	'GRANT mallory TO there; REVOKE pg_create_subscription FROM there');
refused_call(
	"$over)",
	qr/rights_there: there: the role may not create a subscription/,
	'no right to subscribe there');
query($pub, 'GRANT pg_create_subscription TO there');
refused_call(
	"switch_over('s', reverse, NULL, $pause)",
	qr/rights_there: reader: the role may not create a schema/,
	'the role that only reads there');
refused_call(
	"$over)",
	qr/could not connect to the publisher.*password authentication failed/s,
	'a wrong password',
	there => conninfo($pub, 'there', "${RightsTest::secret}-wrong"));
refused_call(
	"$over)",
	qr/could not connect to the publisher.*connection to server on socket/s,
	'a dead host',
	there =>
	  "host=/nonexistent user=there password=${RightsTest::secret}-dead");
refused_call(
	"$over)",
	qr/password is required/,
	'a connection to the publisher without a password',
	there => $pub->connstr . ' dbname=postgres user=anna');
refused_call(
	"$over)",
	qr/invalid connection string for the publisher/,
	'nonsense for the publisher',
	there => "host=/x password=${RightsTest::secret} nonsense");
like(
	run('anna',
		"PERFORM FROM weft.switch_over_plan('s', true, there)",
		there => "host=/x password=not quoted${RightsTest::secret}"),
	qr/invalid connection string for the publisher/,
	'nonsense for the plan');
refused_call(
	"$over)",
	qr/invalid connection string for the way back/,
	'nonsense for the way back',
	reverse => "host=/x password=${RightsTest::secret} nonsense");
refused_call(
	"$over)",
	qr/password authentication failed/,
	'a wrong password for the way back',
	reverse => conninfo($sub, 'follower', "${RightsTest::secret}-wrong"));
refused_call(
	"$over)",
	qr/connection to server on socket/,
	'a dead host for the way back',
	reverse =>
	  "host=/nonexistent user=follower password=${RightsTest::secret}");
refused_call(
	"$over)",
	qr/password is required/,
	'the way back without a password',
	reverse => $sub->connstr . ' dbname=postgres user=anna');
refuses($sub, 'INSERT INTO anna.t VALUES (1000)', 'before cancelling');
is(call('anna', "switch_over_cancel('s', there)"), '', 'cancelled');
accepts($sub, 'INSERT INTO anna.t VALUES (1000)', 'after cancelling');

# --- with everything ---

my $row = 100;

# A row that the other side must get.
sub replicates
{
	my ($from, $to, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$row++;
	query($from,
		"SET SESSION AUTHORIZATION mallory; INSERT INTO mallory.t VALUES ($row, 'new')"
	);
	query($from, "INSERT INTO anna.t (v) VALUES ('row $row')");
	poll($to,
		"SELECT (SELECT count(*) FROM anna.t WHERE v = 'row $row') = 1 AND (SELECT count(*) FROM mallory.t WHERE id = $row) = 1"
	);
	ok(1, $what);
	return;
}

foreach my $role ('anna', '')
{
	my $who = $role || 'a superuser';

	foreach my $verify ([qw(counts full)], [qw(recent counts)])
	{
		# once is enough for a superuser
		next if !$role && $verify->[0] eq 'recent';

		my $what = "$who, verify => '$verify->[0]'";
		my $since = now();

		is(call($role, "$over, verify => '$verify->[0]')"),
			'', "switched over: $what");
		harmless($since, "switched over: $what");
		is( query(
				$pub,
				"SELECT subowner::regrole FROM pg_subscription WHERE subname ~ '^weft_switch'"
			),
			'there',
			'the subscription there has the right owner');
		replicates($sub, $pub, 'the old server follows');

		# what cannot be read cannot be set there
		query($sub,
			"SELECT nextval('anna.numbers') FROM generate_series(1, 5000)");
		if ($role && $verify->[0] eq 'counts')
		{
			like(
				call($role, "$back)"),
				qr/may not read sequence anna\.numbers/,
				'no right to read a sequence here');
			accepts(
				$sub,
				'INSERT INTO anna.t VALUES (1000)',
				'no right to read a sequence here');
			query($sub, 'GRANT USAGE ON SEQUENCE anna.numbers TO anna');
		}

		$what = "$who, verify => '$verify->[1]'";
		$since = now();
		is(call($role, "$back, verify => '$verify->[1]')"),
			'', "switched back: $what");
		harmless($since, "switched back: $what");
		is(left_over($pub) . left_over($sub), '', 'nothing is left');
		replicates($pub, $sub, 'this server follows');
		is( query(
				$pub,
				"SELECT nextval('anna.numbers') > "
				  . query($sub, 'SELECT last_value FROM anna.numbers')),
			't',
			'a sequence of somebody else');
	}

	# What the last one has created belongs to somebody else.
	query($_, 'DROP SCHEMA weft_switch CASCADE') foreach @$both;
}

# --- somebody else's schema ---

query($_, 'CREATE SCHEMA weft_switch AUTHORIZATION mallory') foreach @$both;
refused_call(
	"$over)",
	qr/schema "weft_switch" belongs to another role/,
	'a schema that is not ours');
query($_, 'DROP SCHEMA weft_switch') foreach @$both;

# --- what strangers see ---

my $seen = as_role($sub, 'stranger',
	'SELECT p::text FROM weft.switch_over_progress p UNION ALL SELECT a::text FROM weft.switch_attempt a'
);
unlike($seen, qr/host=|port=|user=/, 'no connection is in the progress');
refused($sub, 'stranger', $_, qr/permission denied/, $_)
  foreach (
	'DELETE FROM weft.switch_over_progress',
	"UPDATE weft.switch_attempt SET phase = 'final'");
is(says_password($pub, $logged), '', 'no password on the publisher');
is(says_password($sub, $logged_here), '', 'no password on the subscriber');
done_testing();
