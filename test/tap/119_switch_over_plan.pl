# weft.switch_over_plan(): each check finds what it is for, and nothing otherwise.  Here: the
# subscription, what depends on it, sessions, rights, and settings of the servers.
# 119_switch_over_plan_schema.pl has the rest.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use SwitchPlanTest;
use Test::More;
use Time::HiRes qw(time);
use WeftTest;

plan skip_all => 'the functions are those of Weft' unless weft();

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

# PostgreSQL 15 does not know origin = none.
sub test_versions
{
	my ($sub, $what, $major) = @_;

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
	return;
}

sub test_sessions
{
	my ($pub, $sub, $what) = @_;

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
	return;
}

# Rights, for a role there that is named, and for the role that asks here.
sub test_rights
{
	my ($pub, $sub, $what) = @_;

	query($pub,
		'CREATE ROLE repl LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO repl; GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO repl'
	);
	my $found =
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
	return;
}

# What takes a restart.
sub test_restarted
{
	my ($pub, $sub, $what) = @_;

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
	my $found = findings();
	ok(has($found, @$_), "$what$_->[0]")
	  foreach (
		[ 'workers_there', 'error', '', 'all 0 logical replication workers' ],
		[ 'workers_there', 'error', '', 'all 1 worker processes' ],
		[ 'slots_here', 'error', '', 'all 3 replication slots' ],
		[ 'origins_there', 'error', '', 'all 2 replication origins' ],
		# from 19 on, that is enough
		major() < 19
		? [ 'wal_level', 'error', '', 'wal_level is replica here' ]
		: (),
		[ 'wal_senders_here', 'error', '', 'all 0 WAL senders' ],
		[ 'settings', 'warning', 'max_connections', '30 here, 40' ]);
	$found = findings(', false');
	ok(!exists $found->{$_}, "$what$_: only for the way back")
	  foreach qw(workers_there origins_there wal_level wal_senders_here);
	return;
}

# The slot loses its WAL.
sub test_lost_slot
{
	my ($pub, $sub, $what) = @_;

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
	return;
}

for_each_publisher(
	sub {
		my ($pub, $sub, $what, $major) = @_;
		my %checks = map { $_ => 1 } keys %{ findings() };

		try_cases(@cases);
		test_versions($sub, $what, $major);
		test_sessions($pub, $sub, $what);
		test_rights($pub, $sub, $what);
		test_restarted($pub, $sub, $what);
		is_deeply([ grep { !$checks{$_} } keys %{ findings(', false') } ],
			[], "${what}no check appears out of nothing");
		test_lost_slot($pub, $sub, $what);
	});

done_testing();
