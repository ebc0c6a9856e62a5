# Tests one feature of logical replication after another, on the same two nodes.
# Most run under a load of several clients, because that is where writers could
# interfere with each other; then the tables are compared.
package FeatureTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;
use WeftTest;

our @EXPORT = qw(
  $pub $sub start_nodes stop_nodes
  feature load
  $fill $random changes changes_without_key
);

our ($pub, $sub);

sub start_nodes
{
	my $conf = 'track_commit_timestamp = on';

	$pub = new_publisher('publisher', conf => $conf);
	$sub = new_subscriber('subscriber', conf => $conf);
	return;
}

sub stop_nodes
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(query($pub, 'SELECT count(*) FROM pg_replication_slots'),
		0, 'no slots are left');
	$pub->stop;
	$sub->stop;
	return;
}

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

# Set a feature up on both sides, run the load, compare, and drop everything.
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

# Rows to begin with, of a table with two columns.
our $fill = 'SELECT i, i FROM generate_series(1, 100) i';

# Inserts, updates (of the key too) and deletes of a table with these columns.
our $random = <<'EOS';
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

1;
