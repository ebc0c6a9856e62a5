# Tables of every kind, on either side, altered during replication or not, are
# replicated by many writers exactly as they are natively.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use FeatureTest;
use Test::More;
use WeftTest;

start_nodes();

# --- partitioned tables ---

my $partitioned = <<EOS;
CREATE TABLE part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (MINVALUE) TO (60);
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (60) TO (150);
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO part $fill;
EOS

feature(
	'partitioned differently, via the root',
	publisher => $partitioned,
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
	publisher => $partitioned,
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
	'partitions attached and detached under load',
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
			'BEGIN; LOCK TABLE altered; UPDATE altered SET added = id; COMMIT'
		);
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
		# rows that have not been changed since have no value on the subscriber
		query($pub,
			'BEGIN; LOCK TABLE altered; UPDATE altered SET late = v::text; COMMIT'
		);
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
	'a table is rewritten, reindexed and altered on the subscriber under load',
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

stop_nodes();
done_testing();
