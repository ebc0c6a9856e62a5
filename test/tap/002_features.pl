# What logical replication can do natively, it does with many writers.  Most
# features are tried under a load of several clients, because that is where the
# writers could get in each other's way; then the tables are compared.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

my $conf = 'track_commit_timestamp = on';
my $pub = new_publisher('publisher', conf => $conf);
my $sub = new_subscriber('subscriber', conf => $conf);

sub load
{
	my ($scripts, @options) = @_;
	return start_pgbench(
		$pub, ref $scripts ? $scripts : { $scripts => 1 },
		'-c' => 6,
		'-t' => 200,
		'--max-tries=1000',
		'--random-seed=2', @options);
}

# Set a feature up on both sides, let the clients loose, compare, take it down.
#   tables       SQL for both sides
#   publisher    more SQL for the publisher
#   subscriber   more SQL for the subscriber
#   publication  what follows CREATE PUBLICATION name
#   options      of the subscription
#   load         scripts of pgbench
#   during       called while the load runs
#   after        called when it is over
#   equal        tables to compare
#   finally      called when all is applied
sub feature
{
	my ($name, %feature) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $log_start = -s $sub->logfile;

	note($name);
	query($pub, $_) foreach grep { $_ } @feature{qw(tables publisher)};
	query($sub, $_) foreach grep { $_ } @feature{qw(tables subscriber)};
	query($pub,
		'CREATE PUBLICATION pub '
		  . ($feature{publication} // 'FOR ALL TABLES'));
	subscribe($pub, $sub, 'sub', 'pub', $feature{options});
	wait_for_apply($pub, $sub, 'sub');

	if ($feature{load})
	{
		my $load = load($feature{load});
		$feature{during}->() if $feature{during};
		finish($load);
	}
	$feature{after}->() if $feature{after};
	wait_for_apply($pub, $sub, 'sub');
	same_tables($pub, $sub, $feature{equal}, "$name: equal")
	  if $feature{equal};
	$feature{finally}->() if $feature{finally};
	is(errors_logged($sub, $log_start), '', "$name: no errors")
	  unless $feature{may_fail};

	query($sub, 'DROP SUBSCRIPTION sub');
	query($pub, 'DROP PUBLICATION pub');
	query_all(
		[ $pub, $sub ],
		'SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO public'
	);
	return;
}

# Inserts, updates (of the key too) and deletes of a table with these columns.
my $random = <<'EOS';
\set a random(1, 200)
\set b random(1, 200)
\set c random(1, 1000)
EOS

sub changes
{
	my ($table) = @_;
	return {
		"$random INSERT INTO $table (id, v) VALUES (:a, :c) ON CONFLICT DO NOTHING;\n"
		  => 3,
		"$random UPDATE $table SET v = :c WHERE id = :a;\n" => 5,
		"$random DO \$\$
BEGIN
	DELETE FROM $table WHERE id = :b AND id <> :a;
	UPDATE $table SET id = :b, v = v + 1 WHERE id = :a;
EXCEPTION WHEN unique_violation THEN
	INSERT INTO $table (id, v) VALUES (:b, :c) ON CONFLICT DO NOTHING;
END \$\$;
" => 2,
		"$random DELETE FROM $table WHERE id = :a;\n" => 1,
		"$random BEGIN;
INSERT INTO $table (id, v) VALUES (:a + 1000, :c) ON CONFLICT DO NOTHING;
SAVEPOINT s;
DELETE FROM $table WHERE id < 100;
ROLLBACK TO s;
UPDATE $table SET v = 0 WHERE id = :a + 1000;
DELETE FROM $table WHERE id = :b + 1000;
COMMIT;
" => 2,
	};
}

# The same for tables whose rows are not unique.
sub changes_without_key
{
	my ($table) = @_;
	my $some = "ctid = ANY (ARRAY(SELECT ctid FROM $table WHERE id = :a % 10";
	return {
		"$random INSERT INTO $table (id, v) SELECT :a % 10, :b % 3 FROM generate_series(1, :c % 4);\n"
		  => 3,
		"$random UPDATE $table SET v = :b % 5 WHERE $some LIMIT 2 FOR UPDATE));\n"
		  => 4,
		"$random DELETE FROM $table WHERE $some LIMIT 3 FOR UPDATE));\n" => 2,
	};
}

my $fill = 'SELECT i, i FROM generate_series(1, 100) i';

# --- partitioned tables ---

feature(
	'partitioned differently, via the root',
	publisher => <<EOS,
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (60);
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (60) TO (150);
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO part $fill;
EOS
	subscriber => <<EOS,
CREATE TABLE part (v int, id int PRIMARY KEY) PARTITION BY HASH (id);
CREATE TABLE part_0 PARTITION OF part FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE part_1 (id int NOT NULL, v int);
ALTER TABLE part ATTACH PARTITION part_1 FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE part_2 PARTITION OF part FOR VALUES WITH (MODULUS 3, REMAINDER 2)
	PARTITION BY RANGE (id);
CREATE TABLE part_2_low PARTITION OF part_2 FOR VALUES FROM (MINVALUE) TO (77);
CREATE TABLE part_2_high PARTITION OF part_2 DEFAULT;
EOS
	publication => 'FOR TABLE part WITH (publish_via_partition_root = true)',
	load => changes('part'),
	equal => ['(SELECT id, v FROM part)']);

feature(
	'partitioned differently, by leaf',
	publisher => <<EOS,
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (60);
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (60) TO (150);
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO part $fill;
EOS
	subscriber => <<EOS,
CREATE TABLE part_low (id int PRIMARY KEY, v int);
CREATE TABLE part_high (id int PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE part_high_0 PARTITION OF part_high FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_high_1 PARTITION OF part_high FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE part_rest (id int PRIMARY KEY, v int);
EOS
	publication => 'FOR TABLE part WITH (publish_via_partition_root = false)',
	load => changes('part'),
	equal => [qw(part_low part_high part_rest)]);

feature(
	'partitions attached and detached amid the load',
	tables => <<EOS,
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (60);
CREATE TABLE part_rest PARTITION OF part DEFAULT;
EOS
	publisher => "INSERT INTO part $fill",
	publication => 'FOR TABLE part WITH (publish_via_partition_root = true)',
	load => changes('part'),
	during => sub {
		foreach (1 .. 5)
		{
			query($sub, <<EOS);
BEGIN;
ALTER TABLE part DETACH PARTITION part_rest;
CREATE TABLE part_other PARTITION OF part FOR VALUES FROM (60) TO (100);
WITH moved AS (DELETE FROM part_rest WHERE id BETWEEN 60 AND 99 RETURNING *)
INSERT INTO part_other SELECT * FROM moved;
ALTER TABLE part ATTACH PARTITION part_rest DEFAULT;
COMMIT;
EOS
			query($sub, <<EOS);
BEGIN;
ALTER TABLE part DETACH PARTITION part_other;
INSERT INTO part SELECT * FROM part_other;
DROP TABLE part_other;
COMMIT;
EOS
		}
	},
	equal => ['part']);

# --- replica identity ---

feature(
	'replica identity full without a key',
	tables =>
	  'CREATE TABLE nokey (id int, v int); ALTER TABLE nokey REPLICA IDENTITY FULL',
	publisher =>
	  'INSERT INTO nokey SELECT i % 10, i % 3 FROM generate_series(1, 100) i',
	load => changes_without_key('nokey'),
	equal => ['nokey']);

feature(
	'replica identity full with an index on the subscriber',
	tables =>
	  'CREATE TABLE nokey (id int, v int, t text); ALTER TABLE nokey REPLICA IDENTITY FULL',
	subscriber => 'CREATE INDEX ON nokey (id)',
	publisher =>
	  "INSERT INTO nokey SELECT i % 10, i % 3, CASE WHEN i % 2 = 0 THEN 'x' END FROM generate_series(1, 100) i",
	load => changes_without_key('nokey'),
	equal => ['nokey']);

feature(
	'replica identity full and a key on the subscriber',
	tables =>
	  'CREATE TABLE keyed (id int PRIMARY KEY, v int); ALTER TABLE keyed REPLICA IDENTITY FULL',
	publisher => "INSERT INTO keyed $fill",
	load => changes('keyed'),
	equal => ['keyed']);

feature(
	'replica identity by index',
	tables => <<EOS,
CREATE TABLE indexed (v int, id int NOT NULL, other int);
CREATE UNIQUE INDEX indexed_id ON indexed (id);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id;
EOS
	publisher => "INSERT INTO indexed (id, v) $fill",
	load => changes('indexed'),
	equal => ['indexed']);

feature(
	'keys of several columns and types',
	tables => <<EOS,
CREATE TABLE multi (t text COLLATE "C", n numeric, id int, v int, PRIMARY KEY (t, n, id));
CREATE TABLE texts (id text PRIMARY KEY, v int);
CREATE TABLE floats (id float8 PRIMARY KEY, v int);
CREATE TABLE numerics (id numeric PRIMARY KEY, v int);
EOS
	load => {
		"$random INSERT INTO multi VALUES ('t' || :a % 3, 1.0 + :a % 2, :a % 20, :c) ON CONFLICT (t, n, id) DO UPDATE SET v = :c;\n"
		  => 2,
		"$random DELETE FROM multi WHERE id = :a % 20;\n" => 1,
		"$random INSERT INTO texts VALUES (repeat('t', :a % 10), :c) ON CONFLICT (id) DO UPDATE SET v = :c;\n"
		  => 2,
		"$random DELETE FROM texts WHERE length(id) = :a % 10;\n" => 1,
		# equal keys that are written differently: 0 and -0, 1.0 and 1.00
		"$random INSERT INTO floats VALUES (CASE WHEN :a % 2 = 0 THEN float8 '-0' ELSE 0 END, :c) ON CONFLICT (id) DO UPDATE SET v = :c, id = excluded.id;\n"
		  => 2,
		"$random DELETE FROM floats WHERE id = 0;\n" => 1,
		"$random INSERT INTO numerics VALUES (round(:a % 5, :b % 4), :c) ON CONFLICT (id) DO UPDATE SET v = :c, id = excluded.id;\n"
		  => 2,
		"$random DELETE FROM numerics WHERE id = :a % 5;\n" => 1,
	},
	equal => [qw(multi texts floats numerics)]);

feature(
	'a key that ignores case on the subscriber',
	publisher => 'CREATE TABLE names (id text PRIMARY KEY, v int)',
	subscriber => <<EOS,
CREATE COLLATION insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE names (id text COLLATE insensitive PRIMARY KEY, v int);
EOS
	load => {
		"$random BEGIN;\nSELECT pg_advisory_xact_lock(:a % 5);\nDELETE FROM names WHERE lower(id) = 'n' || :a % 5;\nINSERT INTO names VALUES (CASE WHEN :b % 2 = 0 THEN 'N' ELSE 'n' END || :a % 5, :c);\nCOMMIT;\n"
		  => 1,
		"$random UPDATE names SET v = :c WHERE id = 'N' || :a % 5;\n" => 1,
	},
	equal => ['names'])
  if query($pub,
	"SELECT count(*) FROM pg_collation WHERE collprovider = 'i'");

# --- columns ---

feature(
	'other columns and another order on the subscriber',
	publisher => <<EOS,
CREATE TABLE columns (gone int, id int PRIMARY KEY, v int, w text DEFAULT 'w',
	doubled int GENERATED ALWAYS AS (v * 2) STORED);
ALTER TABLE columns DROP COLUMN gone;
INSERT INTO columns $fill;
EOS
	subscriber => <<EOS,
CREATE TABLE columns (extra int DEFAULT 5, w text, gone int, v bigint,
	stamp timestamptz DEFAULT now(), id bigint PRIMARY KEY,
	tripled bigint GENERATED ALWAYS AS (v * 3) STORED, serial serial);
ALTER TABLE columns DROP COLUMN gone;
EOS
	load => changes('columns'),
	equal => ['(SELECT id, v, w FROM columns)'],
	finally => sub {
		is( query(
				$sub,
				'SELECT bool_and(extra = 5 AND tripled IS NOT DISTINCT FROM v * 3 AND stamp IS NOT NULL) FROM columns'
			),
			't',
			'defaults and generated columns are filled in');
	});

feature(
	'identity columns, domains, enums, arrays, composites',
	tables => <<EOS,
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TYPE pair AS (x int, y text);
CREATE TABLE types (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int,
	d positive, m mood, p pair, a mood[], r int4range, j jsonb, b bytea,
	t timestamptz, u uuid, n numeric, x xml, c char(5), bits bit varying);
EOS
	load => {
		"$random INSERT INTO types (v, d, m, p, a, r, j, b, t, u, n, c, bits) VALUES (:c, :a, 'low', (:a, 'y''\"'), '{low,high}', int4range(:a, :a + :b), '{\"k\": [1, null]}', decode('00ff', 'hex'), now(), gen_random_uuid(), :a / 7.0, 'c', B'101');\n"
		  => 1,
		"$random UPDATE types SET m = 'high', p.x = :c, v = :b, j = NULL WHERE id = :a;\n"
		  => 1,
	},
	equal => ['types']);

feature(
	'binary',
	tables => <<EOS,
CREATE TABLE binaries (id int PRIMARY KEY, v int, n numeric, t text, b bytea, a int[], ts timestamptz);
EOS
	publisher => "INSERT INTO binaries $fill",
	options => 'binary = true',
	load => {
		%{ changes('binaries') },
		"$random UPDATE binaries SET n = :c / 3.0, t = repeat('t', :c), b = decode('00ff', 'hex'), a = ARRAY[:a, NULL, :b], ts = now() WHERE id = :a;\n"
		  => 2
	},
	equal => ['binaries']);

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

			# the owner loses what makes him a superuser's equal
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
			is(query($sub, 'SELECT subskiplsn FROM pg_subscription'),
				'0/0', "$name: skipped once");
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
			'500|500', 'disable_on_error: stands right before the error');
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
		  'ALTER TABLE checked ADD CHECK (v < 1000), ALTER v SET NOT NULL',
		load => changes('checked'),
		after => sub {
			foreach (
				[
					'1000',
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
				query($pub, "UPDATE checked SET v = $value WHERE id < 10");
				$sub->wait_for_log(qr/ERROR:.*$message/, $log_start);
				query($sub, "ALTER TABLE checked $remedy");
			}
		},
		equal => ['checked'],
		may_fail => 1);
}

# --- publications ---

feature(
	'row filters and column lists',
	publisher => <<EOS,
CREATE TABLE filtered (id int PRIMARY KEY, v int, secret text DEFAULT 'secret');
ALTER TABLE filtered REPLICA IDENTITY FULL;
INSERT INTO filtered $fill;
CREATE TABLE listed (id int PRIMARY KEY, v int, secret text DEFAULT 'secret');
INSERT INTO listed $fill;
EOS
	subscriber => <<EOS,
CREATE TABLE filtered (id int PRIMARY KEY, v int, secret text);
CREATE TABLE listed (id int PRIMARY KEY, v int, secret text DEFAULT 'hidden');
EOS
	publication =>
	  'FOR TABLE filtered WHERE (v > 500 OR id < 50), listed (id, v)',
	load => {
		%{ changes('filtered') },
		%{ changes('listed') },
		"UPDATE listed SET secret = 'another' WHERE id < 20;\n" => 1
	},
	finally => sub {
		same_rows(
			rows($sub, 'filtered'),
			rows($pub, 'filtered WHERE v > 500 OR id < 50'),
			'row filter');
		same_rows(
			rows($sub, 'listed', 'id, v'),
			rows($pub, 'listed', 'id, v'),
			'column list');
		is( query(
				$sub, "SELECT count(*) FROM listed WHERE secret <> 'hidden'"),
			0,
			'columns that are not published');
	});

feature(
	'some operations only',
	tables => 'CREATE TABLE limited (id int PRIMARY KEY, v int)',
	publication => "FOR TABLE limited WITH (publish = 'insert, delete')",
	load => {
		"$random INSERT INTO limited VALUES (:a, 0) ON CONFLICT DO NOTHING;\n"
		  => 2,
		"$random UPDATE limited SET v = :c WHERE id = :a;\n" => 2,
		"$random DELETE FROM limited WHERE id = :b;\n" => 1
	},
	finally => sub {
		same_rows(
			rows($sub, 'limited', 'id, v'),
			rows($pub, 'limited', 'id, 0'),
			'updates are not published');
	});

feature(
	'truncate',
	tables => <<EOS,
CREATE TABLE parents (id int PRIMARY KEY, v int, s serial);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents);
CREATE TABLE loose (id int PRIMARY KEY, v int);
CREATE TABLE others (id int PRIMARY KEY, v int);
EOS
	load => {
		"$random INSERT INTO parents VALUES (:a, :c) ON CONFLICT (id) DO UPDATE SET v = :c;\n"
		  => 10,
		"$random INSERT INTO children SELECT :b, id FROM parents WHERE id = :a FOR SHARE ON CONFLICT DO NOTHING;\n"
		  => 10,
		"TRUNCATE parents CASCADE;\n" => 1,
		"TRUNCATE parents, children RESTART IDENTITY;\n" => 1,
		"BEGIN;\nTRUNCATE loose;\nINSERT INTO loose SELECT i, :client_id FROM generate_series(1, 20) i;\nCOMMIT;\n"
		  => 3,
		"BEGIN;\nINSERT INTO others VALUES (1, 1) ON CONFLICT DO NOTHING;\nSAVEPOINT s;\nTRUNCATE others;\nROLLBACK TO s;\nCOMMIT;\n"
		  => 1,
		%{ changes('loose') },
	},
	equal => [qw(parents children loose others)]);

{
	feature(
		'tables added and removed under load',
		tables =>
		  "CREATE TABLE first (id int PRIMARY KEY, v int); CREATE TABLE second (id int PRIMARY KEY, v int); CREATE TABLE third (id int PRIMARY KEY, v int)",
		publisher =>
		  "INSERT INTO first $fill; INSERT INTO second $fill; INSERT INTO third $fill",
		publication => 'FOR TABLE first',
		load => { map { %{ changes($_) } } qw(first second third) },
		during => sub {
			query($pub, 'ALTER PUBLICATION pub ADD TABLE second');
			query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
			query($pub, 'ALTER PUBLICATION pub ADD TABLE third');
			query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
			wait_for_apply($pub, $sub, 'sub');
			query($pub,
				'BEGIN; LOCK TABLE second; ALTER PUBLICATION pub DROP TABLE second; COMMIT'
			);
			wait_for_apply($pub, $sub, 'sub');
			query($sub,
				'ALTER SUBSCRIPTION sub REFRESH PUBLICATION; TRUNCATE second'
			);
			query($pub, 'ALTER PUBLICATION pub ADD TABLE second');
			query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
		},
		equal => [qw(first second third)]);
}

feature(
	'a table that was removed comes back',
	tables =>
	  'CREATE TABLE back (id int PRIMARY KEY, v int); CREATE TABLE other (id int PRIMARY KEY)',
	publication => 'FOR TABLE back, other',
	load => changes('back'),
	after => sub {
		query($pub, 'ALTER PUBLICATION pub DROP TABLE back');
		wait_for_apply($pub, $sub, 'sub');
		query($sub,
			'ALTER SUBSCRIPTION sub REFRESH PUBLICATION; TRUNCATE back');
		query($pub, 'ALTER PUBLICATION pub ADD TABLE back');
		query($pub, 'INSERT INTO back VALUES (5000, 0)');
		query($pub, 'INSERT INTO other VALUES (1)');
		wait_for_apply($pub, $sub, 'sub');
		is(query($sub, 'SELECT count(*) FROM back'),
			0, 'a table that was removed is not changed before it is copied');
		query($sub, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	},
	equal => [qw(back other)]);

# --- triggers on the subscriber ---

# Their effects are in commit order, and each sees those of the transactions
# before its own.
{
	my $sql = <<'EOS';
CREATE TABLE journal (id serial PRIMARY KEY, v int);
EOS
	feature(
		'triggers',
		tables => $sql,
		publisher =>
		  "SELECT pg_create_logical_replication_slot('history', 'test_decoding')",
		subscriber => <<'EOS',
CREATE TABLE audit (n bigint, id int, kind text);
CREATE TABLE total (sum bigint);
INSERT INTO total VALUES (0);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.audit SELECT count(*) FILTER (WHERE kind = TG_ARGV[0]), NEW.id, TG_ARGV[0] FROM public.audit;
	IF TG_ARGV[0] = 'replica' THEN
		UPDATE public.total SET sum = sum + NEW.v;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER r AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION note('replica');
CREATE TRIGGER a AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION note('always');
CREATE TRIGGER o AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION note('origin');
CREATE CONSTRAINT TRIGGER d AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION note('deferred');
ALTER TABLE journal ENABLE REPLICA TRIGGER r, ENABLE ALWAYS TRIGGER a, ENABLE ALWAYS TRIGGER d;
EOS
		publication => 'FOR TABLE journal',
		load => "$random INSERT INTO journal (v) VALUES (:c);\n",
		equal => ['journal'],
		finally => sub {
			my $order = join "\n", map { $_->{id} }
			  grep { defined $_->{id} } @{ decode_commits($pub, 'history') };
			query($pub, "SELECT pg_drop_replication_slot('history')");
			foreach my $kind (qw(replica always deferred))
			{
				is( query(
						$sub,
						"SELECT id FROM audit WHERE kind = '$kind' ORDER BY n"
					),
					$order,
					"triggers: effects of '$kind' are in commit order");
			}
			is( query(
					$sub, "SELECT count(*) FROM audit WHERE kind = 'origin'"),
				0,
				'triggers: those for the origin do not fire');
			is( query($sub, 'SELECT sum FROM total'),
				query($pub, 'SELECT sum(v) FROM journal'),
				'triggers: each sees the effects of the ones before');
		});
}

feature(
	'triggers that change the row, or suppress it',
	tables => 'CREATE TABLE changed (id int PRIMARY KEY, v int)',
	subscriber => <<'EOS',
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id > 1000 THEN RETURN NULL; END IF;
	NEW.v := NEW.id * 2;
	RETURN NEW;
END $$;
CREATE TRIGGER t BEFORE INSERT OR UPDATE ON changed FOR EACH ROW EXECUTE FUNCTION change();
ALTER TABLE changed ENABLE ALWAYS TRIGGER t;
EOS
	load => changes('changed'),
	finally => sub {
		same_rows(
			rows($sub, 'changed', 'id, v'),
			rows($pub, 'changed WHERE id <= 1000', 'id, id * 2'),
			'triggers that change rows');
	});

feature(
	'a trigger that comes and goes amid the load',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	publisher => "INSERT INTO t $fill",
	subscriber => <<'EOS',
CREATE TABLE sums (n int);
INSERT INTO sums VALUES (0);
CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE public.sums SET n = n + 1;
	RETURN NULL;
END $$;
EOS
	publication => 'FOR TABLE t',
	load => changes('t'),
	during => sub {
		foreach (1 .. 5)
		{
			query($sub,
				'CREATE TRIGGER c AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION count_up(); ALTER TABLE t ENABLE ALWAYS TRIGGER c'
			);
			query($sub, 'DROP TRIGGER c ON t');
		}
	},
	equal => ['t']);

# --- durability ---

foreach my $synchronous_commit ('on', 'off', 'remote_apply')
{
	my $remote = $synchronous_commit eq 'remote_apply';
	my $of_sub = $synchronous_commit eq 'on' ? 'on' : 'off';
	feature(
		"synchronous replication, subscription's synchronous_commit = $of_sub, publisher's "
		  . ($remote ? 'remote_apply' : 'on'),
		tables => 'CREATE TABLE synced (id int PRIMARY KEY, v int)',
		options => "synchronous_commit = $of_sub",
		after => sub {
			query($pub, "INSERT INTO synced $fill");
			wait_for_apply($pub, $sub, 'sub');
			set_conf($pub, synchronous_standby_names => 'sub');
			poll($pub,
				"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'"
			);
			set_conf($pub,
				synchronous_commit => $remote ? 'remote_apply' : 'on');
			foreach my $i (1 .. 5)
			{
				query($pub, "UPDATE synced SET v = -$i WHERE id = $i");
				is(query($sub, "SELECT v FROM synced WHERE id = $i"),
					-$i, 'a synchronous commit is visible on the subscriber');
			}
			finish(load(changes('synced'), '-t' => 10));
			query($pub, 'ALTER SYSTEM RESET synchronous_commit');
			set_conf($pub, synchronous_standby_names => '');
		},
		equal => ['synced']);
}

feature(
	'synchronous_commit of the subscription changes under load',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	load => changes('t'),
	during => sub {
		foreach my $value (qw(on off local on off))
		{
			query($sub,
				"ALTER SUBSCRIPTION sub SET (synchronous_commit = $value)");
		}
	},
	equal => ['t']);

# --- changes of the schema ---

feature(
	'schema changes on the publisher in mid-stream',
	publisher =>
	  "CREATE TABLE altered (id int PRIMARY KEY, v int); INSERT INTO altered $fill",
	subscriber =>
	  'CREATE TABLE altered (id int PRIMARY KEY, v int, added int, late text)',
	load => changes('altered'),
	during => sub {
		query($pub, <<EOS);
BEGIN;
LOCK TABLE altered;
UPDATE altered SET v = -1 WHERE id = (SELECT min(id) FROM altered);
ALTER TABLE altered ADD COLUMN added int;
UPDATE altered SET added = -2 WHERE id IN (SELECT id FROM altered LIMIT 5);
INSERT INTO altered VALUES (5000, 1, 2);
COMMIT;
EOS
		query($pub,
			'BEGIN; LOCK TABLE altered; UPDATE altered SET added = id; COMMIT');
		query($pub, <<EOS);
BEGIN;
LOCK TABLE altered;
UPDATE altered SET added = added + 1;
SAVEPOINT s;
ALTER TABLE altered DROP COLUMN added;
INSERT INTO altered VALUES (5001, 1);
ROLLBACK TO s;
ALTER TABLE altered ADD COLUMN late text DEFAULT 'default';
UPDATE altered SET late = added::text WHERE id < 5000;
COMMIT;
EOS
		query($pub, 'ALTER TABLE altered DROP COLUMN added');
	},
	after => sub {
		# rows that were not touched since have no value on the subscriber
		query($pub,
			'BEGIN; LOCK TABLE altered; UPDATE altered SET late = v::text; COMMIT');
	},
	equal => ['(SELECT id, v, late FROM altered)']);

feature(
	'the replica identity changes in mid-stream',
	tables =>
	  'CREATE TABLE identified (id int PRIMARY KEY, v int, other int)',
	publisher => <<EOS,
ALTER TABLE identified ADD COLUMN u int NOT NULL GENERATED BY DEFAULT AS IDENTITY;
CREATE UNIQUE INDEX identified_u ON identified (id, u);
INSERT INTO identified (id, v) $fill;
EOS
	subscriber => 'ALTER TABLE identified ADD COLUMN u int',
	load => changes('identified'),
	during => sub {
		foreach
		  my $identity (('FULL', 'USING INDEX identified_u', 'DEFAULT') x 3)
		{
			query($pub, "ALTER TABLE identified REPLICA IDENTITY $identity");
			query($pub,
				'BEGIN; LOCK TABLE identified; UPDATE identified SET other = coalesce(other, 0) + 1; COMMIT'
			);
		}
	},
	equal => ['identified']);

{
	my @many = map { "many_$_" } 1 .. 200;
	my $create = join "\n",
	  map { "CREATE TABLE $_ (id int PRIMARY KEY, v int);" } @many;
	feature(
		'many tables',
		tables => $create,
		publisher =>
		  join("\n", map { "INSERT INTO $_ $fill;" } @many[ 0 .. 9 ]),
		load => {
			"\\set t random(1, 200)\n\\set u random(1, 200)\n$random BEGIN;
INSERT INTO many_:t VALUES (:a, :c) ON CONFLICT (id) DO UPDATE SET v = :c;
INSERT INTO many_:u VALUES (:b, :c) ON CONFLICT (id) DO UPDATE SET v = :c;
DELETE FROM many_:t WHERE id = :b;
COMMIT;
" => 1
		},
		equal => [
			"("
			  . join(' UNION ALL ',
				map { "SELECT '$_', id, v FROM $_" } @many)
			  . ')'
		]);
}

feature(
	'a column is renamed',
	tables => 'CREATE TABLE renamed (id int PRIMARY KEY, v int, w int)',
	publisher => "INSERT INTO renamed $fill",
	load => changes('renamed'),
	after => sub {
		wait_for_apply($pub, $sub, 'sub');
		my $log_start = -s $sub->logfile;
		query($pub, 'ALTER TABLE renamed RENAME w TO x');
		query($pub, 'UPDATE renamed SET x = id');
		$sub->wait_for_log(
			qr/ERROR:.*target relation "public.renamed" is missing replicated column: "x"/,
			$log_start);
		query($sub, 'ALTER TABLE renamed RENAME w TO x');
	},
	equal => ['renamed'],
	may_fail => 1);

feature(
	'a table is rewritten, reindexed and altered on the subscriber amid the load',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	publisher => "INSERT INTO t $fill",
	load => changes('t'),
	during => sub {
		foreach my $sql (
			'CREATE INDEX t_v ON t (v)',
			'ALTER TABLE t ADD COLUMN extra int DEFAULT 7',
			'VACUUM FULL t',
			'ALTER TABLE t ALTER id TYPE bigint',
			'DROP INDEX t_v',
			'REINDEX TABLE t',
			'ALTER TABLE t DROP COLUMN extra',
			'BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id); COMMIT',
			'REINDEX TABLE CONCURRENTLY t',
			'CREATE INDEX CONCURRENTLY t_v ON t (v)',
			'ALTER TABLE t ALTER id TYPE int',
			'CLUSTER t USING t_v')
		{
			query($sub, $sql);
		}
	},
	equal => ['t']);

# --- large and small ---

foreach my $ring_size ('16MB', '64kB')
{
	feature(
		"unchanged TOAST values and large rows, ring of $ring_size",
		tables => <<EOS,
CREATE TABLE toasted (id int PRIMARY KEY, v int, t text, b bytea);
ALTER TABLE toasted ALTER t SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
EOS
		publisher =>
		  "INSERT INTO toasted SELECT i, i, repeat(i::text, 5000), NULL FROM generate_series(1, 100) i",
		load => {
			%{ changes('toasted') },
			"$random UPDATE toasted SET t = repeat(:c::text, 3000) WHERE id = :a;\n"
			  => 3
		},
		during => sub {
			query($pub,
				"INSERT INTO toasted VALUES (10000, 1, 't', convert_to(repeat('b', 30 * 1024 * 1024), 'UTF8'))"
			);
			query($pub,
				"UPDATE toasted SET v = 2, t = repeat('t', 5 * 1024 * 1024) WHERE id = 10000"
			);
			query($pub, "UPDATE toasted SET v = 3 WHERE id = 10000");
			query($pub, "UPDATE toasted SET id = 10001 WHERE id = 10000");
		},
		finally => sub {
			same_rows(
				rows($sub, 'toasted', 'id, v, md5(t), length(b), md5(b)'),
				rows($pub, 'toasted', 'id, v, md5(t), length(b), md5(b)'),
				"ring of $ring_size: equal");
		});
	set_conf($sub, 'weft.ring_size' => '64kB') if weft();
}
if (weft())
{
	query($sub, 'ALTER SYSTEM RESET weft.ring_size');
	query($sub, 'SELECT pg_reload_conf()');
}

feature(
	'transactions without published changes, and messages',
	tables => 'CREATE TABLE t (id int PRIMARY KEY, v int)',
	publisher => 'CREATE TABLE hidden (id int)',
	publication => 'FOR TABLE t',
	load => {
		"INSERT INTO hidden VALUES (1);\n" => 3,
		"SELECT pg_logical_emit_message(true, 'p', 'transactional');\n" => 1,
		"SELECT pg_logical_emit_message(false, 'p', 'not transactional');\n"
		  => 1,
		"BEGIN;\nINSERT INTO t VALUES (:client_id, 0) ON CONFLICT (id) DO UPDATE SET v = t.v + 1;\nSELECT pg_logical_emit_message(true, 'p', 'amid');\nINSERT INTO hidden VALUES (2);\nCOMMIT;\n"
		  => 1
	},
	equal => ['t'],
	finally => sub {
		query($pub, 'INSERT INTO hidden VALUES (3)');
		$pub->wait_for_catchup('sub', 'flush');
		ok(1, 'the slot moves on without published changes');
	});

feature(
	'statistics of tables',
	tables => 'CREATE TABLE counted (id int PRIMARY KEY, v int)',
	subscriber => "SELECT pg_stat_reset()",
	load =>
	  "INSERT INTO counted SELECT count(*) + 1, 0 FROM counted ON CONFLICT (id) DO UPDATE SET v = counted.v + 1;\n",
	finally => sub {
		poll(
			$sub,
			"SELECT n_tup_ins || '|' || n_tup_upd FROM pg_stat_user_tables WHERE relname = 'counted'",
			query($pub, 'SELECT count(*), sum(v) FROM counted'));
		ok(1, 'autovacuum learns what the writers have done');
	});

# --- subscriptions ---

feature(
	'a subscription is altered amid the load',
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

# Where changes come from: recorded with each transaction, and filtered on.
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

	# what the subscriber got from the publisher goes on, or does not
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
		0, 'cascade with origin = none: nothing from elsewhere');
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
		subscribe($sub, $pub, 'back', 'pub',
			'copy_data = false, origin = none');
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
	$pub->wait_for_catchup('sub2');
	same_tables($pub, $sub, ['t'], 'the first of two databases');
	poll($sub,
		'SELECT count(*) = 0 FROM pg_stat_subscription WHERE relid IS NOT NULL'
	);
	is( $sub->safe_psql(
			'second', 'SELECT t::text FROM t ORDER BY t::text COLLATE "C"'),
		rows($pub, 't'),
		'the second of two databases');
	query($sub, 'DROP SUBSCRIPTION sub');
	$sub->safe_psql('second', 'DROP SUBSCRIPTION sub2');
	query($sub, 'DROP DATABASE second');
}

is(query($pub, 'SELECT count(*) FROM pg_replication_slots'),
	0, 'no slots are left');

$pub->stop;
$sub->stop;
done_testing();
