# What the tests of rights share: servers that ask some roles for passwords, tables whose
# owner has set traps, and searches for passwords.
package RightsTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

our @EXPORT = qw(
  ask_for_passwords conninfo as_role call_as refused
  set_traps trapped only_ran_as log_everything says_password
);

# Every password of these tests contains it, and nothing else does.
our $secret = 'Geheim4711';

# The server asks these roles for their passwords: with SCRAM, and the ones named "md5..."
# with MD5; others may connect as they like.
sub ask_for_passwords
{
	my ($node, @roles) = @_;

	unlink $node->data_dir . '/pg_hba.conf';
	$node->append_conf(
		'pg_hba.conf',
		join(
			'',
			map {
				"local all $_ " . (/^md5/ ? 'md5' : 'scram-sha-256') . "\n"
			} @roles)
		  . "local all all trust\nlocal replication all trust\n");
	$node->reload;
	foreach my $role (@roles)
	{
		my $method = $role =~ /^md5/ ? 'md5' : 'scram-sha-256';
		query($node,
			"SET password_encryption = '$method'; ALTER ROLE $role PASSWORD '$secret-$role'"
		);
	}
	return;
}

sub conninfo
{
	my ($node, $role, $password) = @_;
	$password //= "$secret-$role";
	return $node->connstr . " dbname=postgres user=$role password=$password";
}

# Runs SQL as a role; returns status, output, and errors with notices.
sub call_as
{
	my ($node, $role, $sql, %params) = @_;
	return $node->psql(
		'postgres', $sql,
		timeout => $PostgreSQL::Test::Utils::timeout_default,
		extra_params => $role ? [ '-U', $role ] : [],
		%params);
}

# The same; returns the output, or dies.
sub as_role
{
	my ($node, $role, $sql) = @_;
	my ($ret, $out, $err) = call_as($node, $role, $sql);

	die "$sql as $role: $err" if $ret;
	return $out;
}

sub refused
{
	my ($node, $role, $sql, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = call_as($node, $role, $sql);

	ok($ret != 0 && $err =~ $pattern, "refused to $role: $what")
	  or diag("$ret $out $err");
	return;
}

# Makes a function that can be used anywhere in a table of its owner.  It says in the server's log
# as whom it has run, and what it could do then: become the role "prey", read the table
# "prey.secret" or a connection string, and make a temporary table.
sub set_traps
{
	my ($node, $owner, $prey) = @_;

	as_role($node, $owner, <<EOS);
CREATE FUNCTION $owner.can(what text) RETURNS text LANGUAGE plpgsql VOLATILE AS \$\$
BEGIN
	EXECUTE what;
	RAISE SQLSTATE 'TRAP0';
EXCEPTION WHEN SQLSTATE 'TRAP0' THEN
	RETURN 'yes';
WHEN OTHERS THEN
	RETURN 'no';
END \$\$;
CREATE FUNCTION $owner.trap(what text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	RAISE LOG 'trap in % ran as %, role %, read %, conninfo %, superuser %, temporary %', what, current_user,
		$owner.can(\$c\$SELECT set_config('role', '$prey', true)\$c\$), $owner.can('SELECT * FROM $prey.secret'),
		$owner.can('SELECT subconninfo FROM pg_catalog.pg_subscription'),
		$owner.can('SELECT * FROM pg_catalog.pg_authid'),
		$owner.can('CREATE TEMPORARY TABLE trap ()');
	RETURN true;
END \$\$;
CREATE FUNCTION $owner.trap(what text, value anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	PERFORM $owner.trap(what);
	RETURN value;
END \$\$;
CREATE FUNCTION $owner.trap_trigger() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM $owner.trap(TG_NAME);
	RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END \$\$;
EOS
	return;
}

# What the traps have said since "offset": [what, role, the rest].
sub trapped
{
	my ($node, $offset) = @_;
	my %seen;

	return grep { !$seen{"@$_"}++ }
	  map       { [/trap in (\S+) ran as (\S+), (.*)/] }
	  grep      { /LOG:  (?:00000: )?trap in / }
	  split /\n/, slurp_file($node->logfile, $offset);
}

# Two tests: these traps have run, and all ran as that role, which has no more rights than
# native apply would give it.
sub only_ran_as
{
	my ($node, $offset, $role, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @traps = trapped($node, $offset);
	my %names = map { $_->[0] => 1 } @traps;
	my @missing = grep { !$names{$_} } @$expected;
	my @others = grep {
			 $_->[1] ne $role
		  || $_->[2] ne
		  'role no, read no, conninfo no, superuser no, temporary no'
	} @traps;

	is("@missing", '', "traps ran: $what");
	is(join("\n", map { join ' ', @$_ } @others),
		'', "none with another's rights: $what");
	return;
}

# Log as much as a server can, from now on.
sub log_everything
{
	my ($node) = @_;

	set_conf(
		$node,
		log_error_verbosity => 'verbose',
		log_min_duration_statement => 0,
		log_min_error_statement => 'debug1',
		log_min_messages => 'debug5',
		log_parameter_max_length_on_error => -1,
		log_replication_commands => 'on',
		log_statement => 'all');
	return -s $node->logfile;
}

# Where a password can be read: in the log since "offset", and, by a role that may read
# everything but the catalogs that the server itself hides, in any table or view, or in what
# pg_dump writes.  Native catalogs that hold it for superusers alone do not count.
sub says_password
{
	my ($node, $offset) = @_;
	my @found;
	my $log = slurp_file($node->logfile, $offset);

	push @found, map { "log: $_" } grep { /\Q$secret\E/ } split /\n/, $log;
	my $relations = query($node, <<'EOS');
SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm', 'v', 'S') AND c.oid <> ALL ('{pg_subscription,pg_publication_tables}'::regclass[])
	AND (n.nspname !~ '^(pg_|information_schema)' OR c.relname ~ '^pg_(stat|repl|prepared)')
	AND c.relname !~ '^pg_(statio|statistic|stat_xact|stat_io|stats)'
EOS
	foreach my $relation (split /\n/, $relations)
	{
		my ($ret, $out, $err) = $node->psql('postgres',
			"SELECT 1 FROM $relation r WHERE r::text LIKE '%' || 'Geheim' || '4711%'"
		);
		push @found, "relation: $relation" if $out ne '';
	}
	my $dump = $node->basedir . '/dump.sql';
	$node->command_ok(
		[
			'pg_dump', '--no-subscriptions', '-f', $dump,
			$node->connstr('postgres')
		],
		'pg_dump');
	push @found, 'dump' if slurp_file($dump) =~ /\Q$secret\E/;
	return join "\n", @found;
}

1;
