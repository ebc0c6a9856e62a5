# What the tests of schema changes that an event trigger captures, at publishers where Weft is not
# loaded, share: a publisher and a subscriber, once for each version of the publisher.
package CaptureTest;

use strict;
use warnings FATAL => 'all';

use DdlTest;
use Exporter 'import';
use IPC::Run;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  $pub $sub
  for_each_publisher begin_capture
  send_once refused all_the_same script last_statement number_of_rows
);

our ($pub, $sub);

# Sends all statements in one message.
sub send_once
{
	my ($sql, %params) = @_;
	my ($out, $err) = ('', '');
	my @command = (
		$pub->installed_command('psql'),
		'-XAtq', '-d', $pub->connstr('postgres'),
		'-c', $sql);
	my $success =
	  IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err);

	die "$sql\n$err" unless $success or $params{may_fail};
	return $err;
}

sub refused
{
	my ($sql, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like(send_once($sql, may_fail => 1), $pattern, $what // "refused: $sql");
	return;
}

# The names of constraints for NOT NULL are not those of earlier versions.
sub schema_without_not_null
{
	my ($node) = @_;
	return join "\n",
	  grep { !/^constraint .* NOT NULL/ } split /\n/, schema_of($node);
}

# Two tests: schemas and rows are the same.
sub all_the_same
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $expected = schema_without_not_null($pub);

	BAIL_OUT('the schema is empty') if $expected eq '';
	wait_for_apply($pub, $sub, 'sub');
	same_rows(schema_without_not_null($sub), $expected, "$what: same schema");

	# all at once, since there are many
	my $rows = join '', map {
		qq{SELECT \$table\$$_\$table\$, r::text FROM $_ r ORDER BY r::text COLLATE "C";\n}
	} user_tables($pub);
	same_rows(query($sub, $rows), query($pub, $rows), "$what: same rows");
	return;
}

# The script that installs the event trigger.
sub script
{
	my ($publications, $level) = @_;
	return query($sub,
		"SELECT weft.ddl_capture_script('{$publications}', '$level')");
}

sub last_statement
{
	return query($pub,
		q{SELECT message->>'statement' FROM weft.ddl_queue ORDER BY id DESC LIMIT 1}
	);
}

sub number_of_rows
{
	return query($pub, 'SELECT count(*) FROM weft.ddl_queue');
}

# Capture is installed for publication pub, and the subscription begins.
sub begin_capture
{
	query($pub, script('pub', 'table'));
	subscribe($pub, $sub, 'sub', 'pub', 'ddl = trust_owner');
	wait_for_apply($pub, $sub, 'sub');
	return;
}

# Runs tests with a publisher of an earlier version, if there is one, and with one of this version; both
# without Weft, and with publication pub of all tables.
sub for_each_publisher
{
	my ($tests) = @_;
	my $old = install_path_of(15);

	foreach ($old ? [ 15, install_path => $old ] : (),
		[ major(), stock => 1 ])
	{
		my ($version, @options) = @$_;

		note("publisher $version");
		$pub = new_publisher("publisher_$version", @options,
			conf => 'max_prepared_transactions = 10');
		$sub = new_subscriber("subscriber_$version");
		query_all([ $pub, $sub ],
			'CREATE TABLE old (id int PRIMARY KEY, v text)');
		query($pub, 'CREATE PUBLICATION pub FOR ALL TABLES');
		$tests->();

		unlike(errors_logged($_), qr/TRAP|PANIC/, $_->name . ': no crash')
		  foreach $pub, $sub;
		$_->stop foreach $sub, $pub;
	}
	return;
}

1;
