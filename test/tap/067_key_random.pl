# Random changes of few rows, with keys of many types, while settings that determine the
# text form of values are changed on the publisher, and its walsender adopts them.
#
# Keys on the publisher have types whose values have several forms, depending on settings
# or on how they are written.  On the subscriber some have other types.  The workload
# updates keys to equal ones, deletes rows and inserts them again, and so on.  Every row
# counts its changes.  A lost or reordered change shows in the end if it was the row's last
# one; therefore rows are hot for a while, and then left alone.
#
# WEFT_SEEDS sets the number of seeds (default 3), WEFT_FIRST_SEED the first (default 1),
# WEFT_SECONDS the duration of each load (default 5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WeftTest;

my $seeds = $ENV{WEFT_SEEDS} // 3;
my $first_seed = $ENV{WEFT_FIRST_SEED} // 1;
my $seconds = $ENV{WEFT_SECONDS} // 5;

# A key's type on the publisher, its type on the subscriber, and two expressions for the
# same key of row i.
my $moment = "'2026-01-01 00:00+00'::timestamptz + i * interval '1 hour'";
my @keys = (

	# types whose forms depend on settings come first
	[ 'timestamptz', 'timestamptz', $moment, $moment ],
	[ 'bytea', 'bytea', 'i::text::bytea', 'i::text::bytea' ],
	[
		'tstzrange', 'tstzrange',
		"tstzrange($moment, NULL)", "tstzrange($moment, NULL)"
	],
	[ 'int', 'int', 'i', 'i' ],
	[ 'numeric', 'numeric', 'i', 'i::numeric(10, 2)' ],
	[ 'float8', 'float8', '(i - 1) * 0.0::float8', "(i - 1) * '-0'::float8" ],
	[
		'interval', 'interval',
		"i * interval '1 day'", "i * interval '24 hours'"
	],
	[ 'money', 'money', 'i::money', 'i::money' ],
	[ 'bpchar', 'bpchar', "i::text::bpchar", "(i::text || '  ')::bpchar" ],
	[ 'jsonb', 'jsonb', 'to_jsonb(i)', 'to_jsonb(i::numeric(10, 2))' ],
	[ 'text COLLATE ci', 'text COLLATE ci', "'x' || i", "'X' || i" ],
	[ 'numeric', 'float8', 'i', 'i::numeric(10, 2)' ],
	[ 'char(9)', 'text', 'i::text', 'i::text' ],
	[ 'numeric(10, 2)', 'numeric', 'i', 'i' ]);

my %values = (
	TimeZone => [ 'Etc/UTC', 'Asia/Tokyo', 'America/Lima' ],
	bytea_output => [ 'hex', 'escape' ],
	extra_float_digits => [ 1, -5, 3 ]);

my $pub = new_publisher('publisher', conf => 'synchronous_commit = off');
my $sub = new_subscriber('subscriber', conf => "lc_monetary = 'C'");

if (query($pub, "SELECT count(*) FROM pg_collation WHERE collprovider = 'i'"))
{
	query_all(
		[ $pub, $sub ],
		"CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
	);
}
else
{
	@keys = grep { $_->[0] !~ /COLLATE/ } @keys;
}

my @tables;
foreach my $i (0 .. $#keys)
{
	my ($pub_type, $sub_type, @forms) = @{ $keys[$i] };

	my $plain = $pub_type =~ s/ COLLATE.*//r;

	push @tables, "k$i", "f$i";
	query($pub, <<EOS);
CREATE TABLE k$i (k $pub_type PRIMARY KEY, v bigint NOT NULL, w int);
CREATE TABLE f$i (LIKE k$i INCLUDING ALL);
ALTER TABLE f$i REPLICA IDENTITY FULL;
CREATE FUNCTION key$i(i int, form int) RETURNS $plain LANGUAGE sql AS
	\$\$ SELECT (CASE WHEN form = 0 THEN ($forms[0])::$plain ELSE ($forms[1])::$plain END) \$\$;
EOS

	# whole rows are found without a key on the subscriber, too
	my $full_key = $i % 2 ? 'PRIMARY KEY' : '';
	query($sub, <<EOS);
CREATE TABLE k$i (k $sub_type PRIMARY KEY, v bigint NOT NULL, w int);
CREATE TABLE f$i (k $sub_type $full_key, v bigint NOT NULL, w int);
EOS
}

# One operation on a table: it changes the value, the form of the key, or the row.
query($pub, <<'EOS');
CREATE FUNCTION op(t text, n int, kind int, i int, form int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	key text := format('key%s(%s, %s)', n, i, form);
BEGIN
	t := t || n;
	IF kind < 6 THEN
		EXECUTE format('UPDATE %I SET v = v + 1 WHERE k = %s', t, key);
	ELSIF kind < 8 THEN
		EXECUTE format('UPDATE %I SET k = %s, v = v + 1 WHERE k = %s', t, key, key);
	ELSIF kind < 9 THEN
		EXECUTE format('WITH d AS (DELETE FROM %I WHERE k = %s RETURNING v) SELECT 1', t, key);
	ELSE
		EXECUTE format('INSERT INTO %I VALUES (%s, 1, %s) ON CONFLICT (k) DO UPDATE SET v = %1$I.v + 1',
			t, key, form);
	END IF;
END $$;
EOS
query($pub, <<'EOS');
CREATE SEQUENCE hot;
CREATE FUNCTION hot(tables int, form int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	number int := nextval('hot') / 4;
BEGIN
	PERFORM op('k', number % tables, 9, 10 + number / tables, form);
END $$;
EOS
query($pub, 'CREATE PUBLICATION pub FOR TABLE ' . join(', ', @tables));
subscribe($pub, $sub, 'sub', 'pub');
wait_for_apply($pub, $sub, 'sub');

my $n = @keys;
my $random = <<EOS;
\\set n random(0, $n - 1)
\\set m random(0, $n - 1)
\\set i random(1, 3)
\\set j random(1, 3)
\\set form random(0, 1)
\\set kind random(0, 9)
\\set kind2 random(0, 9)
EOS
my %scripts = (
	"$random SELECT op('k', :n, :kind, :i, :form);\n" => 6,
	"$random SELECT op('f', :n, :kind, :i, :form);\n" => 3,
	"$random BEGIN; SELECT op('k', :n, :kind, :i, :form); SELECT op('k', :m, :kind2, :j, :form); COMMIT;\n"
	  => 3,
	"$random SELECT hot(3, :form);\n" => 12);

foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	my $writers = (2, 1, 4)[ $seed % 3 ];
	my $group = (16, 100, 4)[ int($seed / 3) % 3 ];
	my $what = "seed $seed, writers $writers, groups of $group";

	srand($seed);
	if (weft())
	{
		disable_subscription($sub, 'sub');
		set_conf($sub, 'weft.commit_group_size' => $group);
		query($sub,
			"ALTER SUBSCRIPTION sub SET (num_writers = $writers); ALTER SUBSCRIPTION sub ENABLE"
		);
	}
	query($pub, "TRUNCATE $_") foreach @tables;
	query($pub,
			"INSERT INTO $_ SELECT DISTINCT ON (k) k, 0, 0 FROM (SELECT key"
		  . substr($_, 1)
		  . "(i, 0) FROM generate_series(1, 3) i) AS r(k)")
	  foreach @tables;
	wait_for_apply($pub, $sub, 'sub');

	my $load = start_pgbench(
		$pub, \%scripts,
		'-c' => 4,
		'-T' => $seconds,
		'--max-tries=0',
		"--random-seed=$seed");
	my $turn = 0;
	while (running($load))
	{
		# everything has to wait, so that a backlog builds up
		my $local = open_session($sub);
		$local->query_safe('BEGIN; LOCK TABLE k0 IN SHARE MODE')
		  if rand() < 0.8;
		$turn++;
		set_conf($pub,
			map { $_ => $values{$_}[ $turn % @{ $values{$_} } ] }
			sort keys %values);
		usleep(rand 150_000);
		$local->quit;
	}
	finish($load);
	set_conf($pub, map { $_ => $values{$_}[0] } sort keys %values);
	wait_for_apply($pub, $sub, 'sub');

	my @differing;
	foreach my $table (@tables)
	{
		my ($pub_type, $sub_type) = @{ $keys[ substr($table, 1) ] };
		my $columns =
		  $pub_type =~ /^char/ ? 'k::text, v, w' : "k::$sub_type, v, w";
		my $expected = rows($pub, $table, $columns);
		my $got = rows($sub, $table,
			$pub_type =~ /^char/ ? 'rtrim(k) AS k, v, w' : '*');

		next if $expected eq $got;
		push @differing, $table;
		diag("$table differs:\n" . WeftTest::diff_rows($got, $expected));
	}
	is("@differing", '', "$what: all tables are equal");
	if (weft())
	{
		note(
			query(
				$sub,
				'SELECT dependency_waits, order_waits, misspeculations FROM weft.stat_subscription'
			));
		note(
			'coalesced: '
			  . query(
				$sub, 'SELECT sum(coalesced_rows) FROM weft.stat_relation'));
	}
}

$sub->stop;
$pub->stop;
done_testing();
