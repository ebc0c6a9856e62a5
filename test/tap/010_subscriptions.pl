# Operations on subscriptions: owners and their privileges, errors and how to recover
# from them, ALTER SUBSCRIPTION under load, origins, several subscriptions at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FeatureTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

start_nodes();

# --- owner and privileges ---

query_all([ $pub, $sub ],
	'CREATE ROLE table_owner; CREATE ROLE sub_owner LOGIN');
foreach my $run_as_owner ('true', 'false')
{
	my $role = $run_as_owner eq 'true' ? 'sub_owner' : 'table_owner';
	my $log_start;

	feature(
		"run_as_owner = $run_as_owner",
		tables => <<EOS,
CREATE TABLE owned (id int PRIMARY KEY, v int);
ALTER TABLE owned OWNER TO table_owner;
EOS
		publisher => "INSERT INTO owned $fill",
		subscriber => <<EOS,
CREATE TABLE seen (who name, rolled name);
GRANT INSERT ON seen TO public;
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	INSERT INTO public.seen VALUES (current_user, session_user);
	RETURN NEW;
END \$\$;
CREATE TRIGGER see BEFORE INSERT OR UPDATE ON owned FOR EACH ROW EXECUTE FUNCTION see();
ALTER TABLE owned ENABLE ALWAYS TRIGGER see;
EOS
		options => "run_as_owner = $run_as_owner, password_required = false",
		load => changes('owned'),
		after => sub {
			wait_for_apply($pub, $sub, 'sub');

			# the owner loses the privileges that superusers have
			query($sub,
				'GRANT CREATE ON DATABASE postgres TO sub_owner; GRANT pg_create_subscription TO sub_owner; ALTER SUBSCRIPTION sub OWNER TO sub_owner; TRUNCATE seen'
			);
			$log_start = -s $sub->logfile;
			query($pub,
				'UPDATE owned SET v = -1 WHERE id = (SELECT min(id) FROM owned)'
			);
			$sub->wait_for_log(
				$run_as_owner eq 'true'
				? qr/ERROR:.*permission denied for table owned/
				: qr/ERROR:.*role "sub_owner" cannot SET ROLE to "table_owner"/,
				$log_start);
			is(query($sub, 'SELECT count(*) FROM seen'),
				0,
				"run_as_owner = $run_as_owner: nothing without privileges");
			query($sub,
				$run_as_owner eq 'true'
				? 'GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON owned TO sub_owner'
				: 'GRANT table_owner TO sub_owner');
			wait_for_apply($pub, $sub, 'sub');
			finish(load(changes('owned')));
		},
		equal => ['owned'],
		finally => sub {
			is(query($sub, 'SELECT DISTINCT who FROM seen'),
				$role, "run_as_owner = $run_as_owner: the role that writes");
		},
		may_fail => 1);
	query($sub, 'REVOKE table_owner FROM sub_owner')
	  if $run_as_owner eq 'false';
}

# A row that is to be changed is read.
foreach my $change ('UPDATE read SET v = -1', 'DELETE FROM read')
{
	my $log_start;
	feature(
		"no SELECT: $change",
		tables => 'CREATE TABLE read (id int PRIMARY KEY, v int)',
		publisher => "INSERT INTO read $fill",
		subscriber => 'ALTER TABLE read OWNER TO table_owner',
		options => 'run_as_owner = true, password_required = false',
		load => changes('read'),
		after => sub {
			wait_for_apply($pub, $sub, 'sub');
			query($sub, <<EOS);
GRANT INSERT, UPDATE, DELETE ON read TO sub_owner;
ALTER SUBSCRIPTION sub OWNER TO sub_owner;
EOS
			$log_start = -s $sub->logfile;
			query($pub, "$change WHERE id = (SELECT min(id) FROM read)");
			$sub->wait_for_log(qr/ERROR:.*permission denied for table read/,
				$log_start);
			query($sub, 'GRANT SELECT ON read TO sub_owner');
		},
		equal => ['read'],
		may_fail => 1);
}

{
	my $log_start;
	feature(
		'row security',
		tables => 'CREATE TABLE secured (id int PRIMARY KEY, v int)',
		publisher => "INSERT INTO secured $fill",
		subscriber => 'ALTER TABLE secured OWNER TO table_owner',
		options => 'run_as_owner = true, password_required = false',
		load => changes('secured'),
		after => sub {
			wait_for_apply($pub, $sub, 'sub');
			query($sub, <<EOS);
GRANT SELECT, INSERT, UPDATE, DELETE ON secured TO sub_owner;
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON secured USING (true);
ALTER SUBSCRIPTION sub OWNER TO sub_owner;
EOS
			$log_start = -s $sub->logfile;
			query($pub,
				'UPDATE secured SET v = -1 WHERE id = (SELECT min(id) FROM secured)'
			);
			$sub->wait_for_log(
				qr/ERROR:.*user "sub_owner" cannot replicate into relation with row-level security enabled: "secured"/,
				$log_start);
			query($sub, 'ALTER TABLE secured DISABLE ROW LEVEL SECURITY');
		},
		equal => ['secured'],
		may_fail => 1);
}

# --- errors: skip, disable_on_error ---

foreach my $twice (0, 1)
{
	my $name = $twice ? 'skip the second of two errors' : 'skip';
	feature(
		$name,
		tables => 'CREATE TABLE skipped (id int PRIMARY KEY, v int)',
		load => {
			"INSERT INTO skipped VALUES (:client_id * 1000 + (SELECT count(*) FROM skipped WHERE id / 1000 = :client_id), 1);\n"
			  => 1
		},
		after => sub {
			wait_for_apply($pub, $sub, 'sub');
			foreach my $i (0 .. $twice)
			{
				my $log_start = -s $sub->logfile;
				my $id = 10_001 + $i;
				query($sub, "INSERT INTO skipped VALUES ($id, 0)");

				# later transactions must wait for the one that fails
				query($pub, "INSERT INTO skipped VALUES (10000 - $i, 1)");
				query($pub,
					"INSERT INTO skipped VALUES (20000 + $i, 1), ($id, 1)");
				query($pub, "INSERT INTO skipped VALUES (30000 + $i, 1)");
				$sub->wait_for_log(
					qr/ERROR:.*(duplicate key value violates unique constraint "skipped_pkey"|conflict=insert_exists).*finished at [0-9A-F\/]+/s,
					$log_start);
				my ($lsn) =
				  slurp_file($sub->logfile, $log_start) =~
				  /transaction \d+, finished at ([0-9A-F\/]+)/;
				is( query(
						$sub,
						"SELECT id FROM skipped WHERE id IN (10000 - $i, 20000 + $i, 30000 + $i)"
					),
					10000 - $i,
					"$name: applied before the error, not after it");
				query($sub, "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
				wait_for_apply($pub, $sub, 'sub');
			}
			finish(
				load(
					"INSERT INTO skipped VALUES (40000 + :client_id * 1000 + (SELECT count(*) FROM skipped WHERE id / 1000 = 40 + :client_id), 1);\n"
				));
		},
		finally => sub {
			same_rows(
				rows($sub, 'skipped WHERE v = 1'),
				rows(
					$pub,
					'skipped WHERE id / 10000 <> 2 AND id NOT IN (10001, 10002)'
				),
				"$name: the transaction is skipped and nothing else");
			is( query($sub, "SELECT subskiplsn = '0/0' FROM pg_subscription"),
				't',
				"$name: skipped once");
			cmp_ok(
				query(
					$sub,
					"SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'sub'"
				),
				'>', 0,
				"$name: errors are counted");
		},
		may_fail => 1);
}

feature(
	'disable_on_error',
	tables => 'CREATE TABLE disabling (id int PRIMARY KEY, v int)',
	options => 'disable_on_error = true',
	after => sub {
		query($sub, 'INSERT INTO disabling VALUES (500, 0)');
		finish(
			load(
				"INSERT INTO disabling SELECT count(*) + 1, :client_id FROM disabling;\n",
				'-c' => 1,
				'-t' => 1000));
		poll($sub, 'SELECT NOT subenabled FROM pg_subscription');
		is(query($sub, 'SELECT count(*), max(id) FROM disabling'),
			'500|500', 'disable_on_error: stops right before the error');
		poll($sub,
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker')"
		);
		query($sub,
			'DELETE FROM disabling WHERE id = 500; ALTER SUBSCRIPTION sub ENABLE'
		);
	},
	equal => ['disabling'],
	may_fail => 1);

{
	my $log_start;
	feature(
		'constraints of the subscriber alone',
		tables => 'CREATE TABLE checked (id int PRIMARY KEY, v int)',
		subscriber =>
		  'ALTER TABLE checked ADD CHECK (v < 1000000), ALTER v SET NOT NULL',
		load => changes('checked'),
		after => sub {
			foreach (
				[
					'1000000',
					'violates check constraint',
					'DROP CONSTRAINT checked_v_check'
				],
				[
					'NULL',
					'violates not-null constraint',
					'ALTER v DROP NOT NULL'
				])
			{
				my ($value, $message, $remedy) = @$_;
				wait_for_apply($pub, $sub, 'sub');
				$log_start = -s $sub->logfile;
				query($pub,
					"UPDATE checked SET v = $value WHERE id = (SELECT min(id) FROM checked)"
				);
				$sub->wait_for_log(qr/ERROR:.*$message/, $log_start);
				query($sub, "ALTER TABLE checked $remedy");
			}
		},
		equal => ['checked'],
		may_fail => 1);
}

# --- subscriptions ---

feature(
	'a subscription is altered under load',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	publisher =>
	  "INSERT INTO t $fill; CREATE PUBLICATION pub2 FOR ALL TABLES",
	load => changes('t'),
	during => sub {
		my $connstr = $pub->connstr . ' dbname=postgres';
		foreach my $sql (
			'SET (binary = true)',
			'RENAME TO another',
			'DISABLE',
			'ENABLE',
			"CONNECTION '$connstr application_name=sub'",
			'SET (binary = false, disable_on_error = true)',
			'SET PUBLICATION pub, pub2',
			'RENAME TO sub',
			'SET (disable_on_error = false)',
			'OWNER TO CURRENT_USER')
		{
			my ($name) = query($sub, 'SELECT subname FROM pg_subscription');
			query($sub, "ALTER SUBSCRIPTION $name $sql");
		}
	},
	equal => ['t']);
query($pub, 'DROP PUBLICATION IF EXISTS pub2');

feature(
	'failover',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	options => 'failover = true',
	load => changes('t'),
	equal => ['t'],
	finally => sub {
		is( query(
				$pub,
				"SELECT failover FROM pg_replication_slots WHERE slot_name = 'sub'"
			),
			't',
			'the slot has the failover option');
	});

# Origins of changes: recorded with each transaction, and used as a filter.
feature(
	'commit timestamps and origins',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	publisher => "INSERT INTO t $fill",
	load => changes('t'),
	after => sub {
		query($pub, 'UPDATE t SET v = 1');
	},
	equal => [
		'(SELECT id, (pg_xact_commit_timestamp_origin(xmin)).timestamp FROM t)'
	],
	finally => sub {
		is( query($sub,
				<<EOS), 't', 'rows carry the origin of the subscription');
SELECT bool_and((pg_xact_commit_timestamp_origin(t.xmin)).roident = o.roident)
FROM t, pg_replication_origin o JOIN pg_subscription s ON o.roname = 'pg_' || s.oid
EOS
	});

{
	my $third = new_subscriber('third');
	my $ddl =
	  'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE own (id int PRIMARY KEY)';

	query_all([ $pub, $sub, $third ], $ddl);
	query_all([ $pub, $sub ], 'CREATE PUBLICATION pub FOR ALL TABLES');
	subscribe($pub, $sub, 'sub', 'pub', 'copy_data = false, origin = none');

	# changes that the subscriber received from the publisher are sent on, or not
	subscribe($sub, $third, 'any_origin', 'pub',
		'copy_data = false, origin = any');
	query($sub, "CREATE PUBLICATION own FOR TABLE own, t");
	finish(load(changes('t')));
	query($sub, 'INSERT INTO own VALUES (1)');
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($sub, $third, 'any_origin');
	same_tables($pub, $third, ['t'], 'cascade with origin = any');

	query($third, 'DROP SUBSCRIPTION any_origin; TRUNCATE t, own');
	subscribe($sub, $third, 'no_origin', 'pub',
		'copy_data = false, origin = none');
	finish(load(changes('t')));
	query($sub, 'INSERT INTO own VALUES (2)');
	wait_for_apply($pub, $sub, 'sub');
	wait_for_apply($sub, $third, 'no_origin');
	is(query($third, 'SELECT count(*) FROM t'),
		0, 'cascade with origin = none: no changes of other origins');
	is(query($third, 'SELECT id FROM own'),
		2, 'cascade with origin = none: its own changes');
	query($third, 'DROP SUBSCRIPTION no_origin');
	$third->stop;

	{
		# and back, on the same two nodes
		query($sub, 'DROP SUBSCRIPTION sub');
		query_all([ $pub, $sub ], 'TRUNCATE t, own');
		subscribe($pub, $sub, 'sub', 'pub',
			'copy_data = false, origin = none');

		# FOR ALL TABLES includes those of the extension, which must then exist there
		query($pub, 'CREATE EXTENSION weft') if weft();
		subscribe($sub, $pub, 'back', 'pub',
			'copy_data = false, origin = none');
		is( query(
				$pub,
				"SELECT count(*) FROM pg_subscription_rel JOIN pg_class c ON c.oid = srrelid WHERE relnamespace::regnamespace::text = 'weft'"
			),
			'0',
			'tables of Weft cannot be subscribed to');
		my $there = start_pgbench(
			$pub,
			{
				"$random INSERT INTO t VALUES (:a, :c) ON CONFLICT (id) DO UPDATE SET v = :c;\n"
				  => 1
			},
			'-c' => 4,
			'-t' => 200);
		my $here = start_pgbench(
			$sub,
			{
				"$random INSERT INTO t VALUES (:a + 1000, :c) ON CONFLICT (id) DO UPDATE SET v = :c;\n"
				  => 1
			},
			'-c' => 4,
			'-t' => 200);
		finish($there);
		finish($here);
		wait_for_apply($pub, $sub, 'sub');
		$sub->wait_for_catchup('back');
		same_tables($pub, $sub, ['t'], 'both ways with origin = none');
		query($pub, 'DROP SUBSCRIPTION back');
		query($pub, 'DROP EXTENSION weft') if weft();
		query($sub, 'DROP SUBSCRIPTION sub; DROP PUBLICATION pub, own');
		query($pub, 'DROP PUBLICATION pub');
		query_all(
			[ $pub, $sub ],
			'SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public'
		);
	}
}

# Two databases of one server, each with its subscription and its writers.
{
	query_all([ $pub, $sub ], 'CREATE TABLE t (id int PRIMARY KEY, v int)');
	query($sub, 'CREATE DATABASE second');
	$sub->safe_psql('second', 'CREATE TABLE t (id int PRIMARY KEY, v int)');
	query($pub, "INSERT INTO t $fill; CREATE PUBLICATION pub FOR TABLE t");
	subscribe($pub, $sub, 'sub', 'pub');
	my $connstr = $pub->connstr . ' dbname=postgres';
	$sub->safe_psql('second',
		"CREATE SUBSCRIPTION sub2 CONNECTION '$connstr application_name=sub2' PUBLICATION pub"
	);
	finish(load(changes('t')));
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, ['t'], 'the first of two databases');
	$sub->wait_for_subscription_sync($pub, 'sub2', 'second');
	is( $sub->safe_psql(
			'second', 'SELECT t::text FROM t ORDER BY t::text COLLATE "C"'),
		rows($pub, 't'),
		'the second of two databases');
	query($sub, 'DROP SUBSCRIPTION sub');
	$sub->safe_psql('second', 'DROP SUBSCRIPTION sub2');
	query($sub, 'DROP DATABASE second');
}

stop_nodes();
done_testing();
