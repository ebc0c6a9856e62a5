# How weft.copy_schema connects: if the caller must give a password, every server that
# answers asks for it, and no other password is used.  Services, and long passwords.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft' unless weft();

my $password = ('long\\and:strange ' x 100) . "' end";
my $quoted = $password =~ s/(['\\])/\\$1/gr;

# The first asks for a password; the second admits everybody, as it is often the case for
# the operating-system user of the subscriber.
my ($asks, $trusts) =
  map { new_publisher($_, stock => 1) } qw(asks trusts);
my $service_file = "$PostgreSQL::Test::Utils::tmp_check/services.conf";
append_to_file($service_file,
		"[asks]\nhost="
	  . $asks->host
	  . "\nport="
	  . $asks->port
	  . "\ndbname=postgres\n");

# The environment of the subscriber's server is not the caller's.
my $sub = do
{
	local $ENV{PGSERVICEFILE} = $service_file;
	local $ENV{PGPASSWORD} = 'wrong';
	new_subscriber('subscriber');
};

foreach my $pub ($asks, $trusts)
{
	my $column = $pub == $asks ? 'asked' : 'trusted';
	query($pub, <<EOS);
SET password_encryption = 'scram-sha-256';
CREATE ROLE reader LOGIN PASSWORD '@{[ $password =~ s/'/''/gr ]}';
CREATE ROLE other_reader LOGIN PASSWORD 'very_secret';
CREATE TABLE t (id int PRIMARY KEY, $column text);
GRANT SELECT ON t TO reader, other_reader;
CREATE PUBLICATION p FOR TABLE t;
EOS
}
unlink $asks->data_dir . '/pg_hba.conf';
$asks->append_conf('pg_hba.conf',
	"local all reader,other_reader scram-sha-256\nlocal all all trust\n");
$asks->reload;
query($sub, <<'EOS');
CREATE ROLE caller LOGIN;
GRANT pg_execute_server_program TO caller;
GRANT CREATE ON SCHEMA public TO caller;
EOS

# Returns the created table's second column, or the error.
sub copy_schema
{
	my ($role, $conninfo) = @_;
	my ($ret, $out, $err) = $sub->psql('postgres', <<EOS);
SET client_min_messages = warning;
SET ROLE $role;
BEGIN;
SELECT count(*) FROM weft.copy_schema(\$dsn\$$conninfo\$dsn\$, '{p}') WHERE NOT created AND note <> 'skipped';
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('public.t') AND attnum = 2;
ROLLBACK;
EOS
	return $ret ? $err : $out;
}

my $login = "dbname=postgres user=reader password='$quoted'";
my $one =
  sub { my ($pub) = @_; return 'host=' . $pub->host . ' port=' . $pub->port };
is(copy_schema('caller', $one->($asks) . " $login"),
	"0\nasked", 'a long password with odd characters');
like(
	copy_schema('caller', $one->($trusts) . " $login"),
	qr/password is required/,
	'a server that does not ask for it');
like(
	copy_schema('caller', $one->($asks) . ' dbname=postgres user=reader'),
	qr/password is required/,
	'no password');
unlike(copy_schema('caller', $one->($trusts) . " $login require_auth=none"),
	qr/^0/, 'the method is not the caller\'s choice');

# Each of the two connections chooses one of the servers.
my $both = sprintf
  "host=%s,%s port=%d,%d dbname=postgres user=other_reader password=very_secret load_balance_hosts=random",
  map({ $_->host } $asks, $trusts), map({ $_->port } $asks, $trusts);
my %outcomes;
foreach my $i (1 .. 200)
{
	my $outcome = copy_schema('caller', $both);

	# The first server has asked; otherwise pg_dump would not have been started.
	my $kind =
		$outcome eq "0\nasked"             ? 'asked'
	  : $outcome =~ /password is required/ ? 'first refused'
	  : $outcome =~ /pg_dump failed/       ? 'second refused'
	  :                                      $outcome;
	$outcomes{$kind}++;
	last
	  if grep { !/^(asked|first refused|second refused)$/ } keys %outcomes
	  or keys %outcomes == 3;
}
is( join(', ', sort keys %outcomes),
	'asked, first refused, second refused',
	'neither connection is admitted without a password');

# A superuser does not have to supply one.
is(copy_schema('none', $one->($trusts) . ' dbname=postgres'),
	"0\ntrusted", 'a superuser needs no password');
is(copy_schema('none', "service=asks $login"), "0\nasked", 'a service');
like(
	copy_schema('caller', "service=asks $login"),
	qr/cannot use connection option "service"/,
	'others cannot use it: its password would be used');
like(copy_schema('none', $one->($asks) . " dbname=postgres password='a\nb'"),
	qr/line break/, 'a password of two lines');

# pg_dump waits for a lock that nobody else needs, and ends with its caller.
my $locker = open_session($asks);
$locker->query_safe('BEGIN; LOCK TABLE pg_catalog.pg_ts_template');
foreach my $end (qw(cancel terminate))
{
	my $waiting = open_session($sub);
	my $pid = $waiting->query_safe('SELECT pg_backend_pid()');
	$waiting->query_until(qr/started/,
			"\\echo started\nSELECT count(*) FROM weft.copy_schema(\$dsn\$"
		  . $one->($asks)
		  . " dbname=postgres\$dsn\$, '{p}');\n");
	poll($asks,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pg_dump' AND wait_event_type = 'Lock'"
	);
	poll($sub,
		"SELECT wait_event = 'WeftPgDump' FROM pg_stat_activity WHERE pid = $pid"
	);
	query($sub, "SELECT pg_${end}_backend($pid)");
	poll($sub,
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'WeftPgDump')"
	);
	pass("$end: the caller does not wait for pg_dump");

	# psql exits after the error.
	$waiting->{run}->finish;
}
$locker->query_safe('COMMIT');
poll($asks,
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pg_dump'"
);
$locker->quit;

my @left = glob $sub->data_dir . '/base/pgsql_tmp/*';
is("@left", '', 'no file is left');
my $log = slurp_file($sub->logfile) =~ s/^.*(STATEMENT|statement): .*$//mgr;
unlike($log, qr/strange |very_secret/, 'no password in the log');
$_->stop foreach $sub, $asks, $trusts;
done_testing();
