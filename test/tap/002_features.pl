# Features of native logical replication work the same with many writers:
# publications, triggers, synchronous commit.  009_relations.pl continues with kinds
# of tables, 010_subscriptions.pl with subscriptions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FeatureTest;
use Test::More;
use WeftTest;

start_nodes();

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

# Their effects happen in commit order, and each sees the effects of the transactions
# before its own.
{
	feature(
		'triggers',
		tables =>
		  'CREATE TABLE journal (id serial PRIMARY KEY, v int); CREATE TABLE plain (id serial PRIMARY KEY)',
		publisher =>
		  "SELECT pg_create_logical_replication_slot('history', 'test_decoding')",
		subscriber => <<'EOS',
CREATE FUNCTION dawdle() RETURNS bool LANGUAGE sql AS 'SELECT pg_sleep(random() * 0.002) IS NOT NULL';
ALTER TABLE plain ADD CHECK (dawdle());
CREATE TABLE audit (n bigint, id int, kind text, plain bigint);
CREATE TABLE total (sum bigint);
INSERT INTO total VALUES (0);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.audit SELECT count(*) FILTER (WHERE kind = TG_ARGV[0]), NEW.id, TG_ARGV[0],
		(SELECT count(*) FROM public.plain) FROM public.audit;
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
		publication => 'FOR TABLE journal, plain',
		load => {
			"$random INSERT INTO journal (v) VALUES (:c);\n" => 2,
			"INSERT INTO plain DEFAULT VALUES;\n" => 4,
			"$random BEGIN;\nINSERT INTO plain DEFAULT VALUES;\nINSERT INTO journal (v) VALUES (:c);\nINSERT INTO plain DEFAULT VALUES;\nCOMMIT;\n"
			  => 1
		},
		equal => [qw(journal plain)],
		finally => sub {
			my $commits = decode_commits($pub, 'history');
			my $order = join "\n",
			  map { $_->{id} } grep { defined $_->{id} } @$commits;
			my $plain = 0;
			my @plain_before;

			query($pub, "SELECT pg_drop_replication_slot('history')");
			foreach my $line (map { split /\n/, $_->{text} } @$commits)
			{
				$plain++ if $line =~ /^table public.plain: INSERT/;
				push @plain_before, $plain
				  if $line =~ /^table public.journal: INSERT/;
			}
			is( query(
					$sub,
					"SELECT plain FROM audit WHERE kind = 'replica' ORDER BY n"
				),
				join("\n", @plain_before),
				'triggers: each sees earlier commits, and no others');
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
				'triggers: each sees the effects of earlier ones');
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
	'a trigger that is created and dropped under load',
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

# --- other messages, statistics ---

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
		# An update that is left out, because a later one shares its commit, is no update here.
		my $left_out =
		  weft()
		  ? "(SELECT coalesced_rows FROM weft.stat_relation WHERE relation = 'counted'::regclass)"
		  : 0;
		poll(
			$sub,
			"SELECT n_tup_ins || '|' || n_tup_upd + $left_out FROM pg_stat_user_tables WHERE relname = 'counted'",
			query($pub, 'SELECT count(*), sum(v) FROM counted'));
		ok(1, 'autovacuum sees the changes of the writers');
	});

stop_nodes();
done_testing();
