# What the tests of weft.repair() share: comparisons whose differences are written by hand,
# so that they do not depend on weft.compare_subscription().
package RepairTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  plant repair results start_repair finish_repair as_other_origin
);

# Store a comparison of a subscription with these differences: [ table, kind, key ], or
# [ table, kind, undef, row ] for a table without a key.  Key and row are jsonb, or the name
# of a dollar-quoted constant.  Returns the comparison's number.
sub plant
{
	my ($sub, $subscription, @differences) = @_;
	my $comparison = query($sub,
		"INSERT INTO weft.comparison (subid, subname, owner, jobs, max_differences, status)"
		  . " SELECT oid, subname, subowner, 1, 1000, 'finished' FROM pg_subscription"
		  . " WHERE subname = '$subscription' RETURNING comparison");
	my $number = 0;

	foreach my $difference (@differences)
	{
		my ($table, $kind, $key, $row) = @$difference;
		my $column = $kind eq 'missing there' ? 'local_row' : 'publisher_row';

		$number++;
		query($sub,
			"INSERT INTO weft.difference (comparison, difference, relation, key, kind, $column, publisher_lsn)"
			  . " VALUES ($comparison, $number, \$t\$$table\$t\$,"
			  . (defined $key ? " \$k\$$key\$k\$" : ' NULL')
			  . ", '$kind', "
			  . (defined $row ? " \$r\$$row\$r\$" : ' NULL')
			  . ", '0/1')");
	}
	return $comparison;
}

# Repair a comparison; returns the notice, or the error.
sub repair
{
	my ($sub, $comparison, $options) = @_;
	my ($ret, $out, $err) = $sub->psql('postgres',
			"CALL weft.repair($comparison, apply := true"
		  . ($options ? ", $options" : '')
		  . ')');

	return $err;
}

# What has become of the differences: "number result reason", one a line.
sub results
{
	my ($sub, $comparison) = @_;
	return query($sub,
		"SELECT concat_ws(' ', difference, coalesce(repair_result, 'pending'), repair_reason)"
		  . " FROM weft.difference WHERE comparison = $comparison ORDER BY difference"
	);
}

# Start to repair in the background.
sub start_repair
{
	my ($sub, $comparison, $options) = @_;
	my $run = { output => '' };
	my @command = (
		$sub->installed_command('psql'),
		'-XAtq',
		'-d',
		$sub->connstr('postgres'),
		'-c',
		"CALL weft.repair($comparison, apply := true"
		  . ($options ? ", $options" : '') . ')');

	$run->{run} =
	  IPC::Run::start(\@command, '<', \undef, '>&', \$run->{output});
	return $run;
}

# Wait until it has ended; returns what it said.
sub finish_repair
{
	my ($run) = @_;
	$run->{run}->finish;
	return $run->{output};
}

# Change rows here as if they had come from elsewhere, so that the changes go nowhere.
sub as_other_origin
{
	my ($sub, $sql) = @_;
	query($sub, <<EOS);
SELECT pg_replication_origin_create('elsewhere')
	WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = 'elsewhere');
SELECT pg_replication_origin_session_setup('elsewhere');
SET session_replication_role = replica;
$sql;
EOS
	return;
}

1;
