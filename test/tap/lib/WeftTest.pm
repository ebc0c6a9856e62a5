# Functions that the TAP tests of Weft share: nodes, waiting, load, and checks of
# what the subscriber contains.
#
# With WEFT_TEST_NATIVE=1, the same tests run against the server's own apply
# worker, without the checks that are about Weft alone.  A check that fails in
# this mode is wrong.
package WeftTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  weft major $offer_plugin
  install_path_of new_publisher new_subscriber streaming_conf streaming_option
  query query_all open_session set_conf poll poll_for
  waits_for writer_waits_for_lock
  subscribe disable_subscription pause_subscription wait_for_apply wait_until_up
  figure poll_figure
  leader_pid writer_pids server_pids kill_process not_ended flush_wal
  rows same_rows same_tables errors_logged
  start_pgbench logged_transactions running finish end_load stop_load
  decode_commits decode_changes first_difference prefix_length
);

# Is Weft, not the native worker, under test?
sub weft
{
	return !$ENV{WEFT_TEST_NATIVE};
}

# With WEFT_STREAMED=1, tests that use these make the publisher stream every
# transaction while it is in progress.
sub streaming_conf
{
	return '' unless $ENV{WEFT_STREAMED};
	return
	  "\ndebug_logical_replication_streaming = immediate\nlogical_decoding_work_mem = 64kB";
}

sub streaming_option
{
	return $ENV{WEFT_STREAMED} ? 'streaming = parallel' : '';
}

# The major version of the server under test.
sub major
{
	my ($major) = `postgres --version` =~ / (\d+)/;
	return $major;
}

# The setting that lets subscribers use Weft's output plugin; older minor releases
# allow any plugin.
our $offer_plugin =
	`postgres --describe-config` =~ /^output_plugin_libraries\t/m
  ? "output_plugin_libraries = 'pgoutput, test_decoding, weft'"
  : '';

# Where an older version is installed, for new_publisher(); undef if it is not.
# WEFT_PG15_BINDIR names the directory with the programs of PostgreSQL 15, and so on.
sub install_path_of
{
	my ($version) = @_;
	my $bindir = $ENV{"WEFT_PG${version}_BINDIR"}
	  // "/usr/lib/postgresql/$version/bin";

	return undef unless -x "$bindir/initdb" and -x "$bindir/pg_config";
	return $bindir =~ s{/bin/?$}{}r;
}

# Makes the data directory of a node: a copy of one that run-check.py has made with initdb, if there is one that no other
# node of this test has.  Nodes must not share a system identifier.
my $templates_used = 0;

sub init_node
{
	my ($node, %params) = @_;
	my $template = ($ENV{WEFT_TEMPLATES} // '') . '/' . $templates_used;
	local $ENV{INITDB_TEMPLATE} = $template;

	if ($params{other_version} || !-d $template)
	{
		delete $ENV{INITDB_TEMPLATE};
	}
	else
	{
		$templates_used++;
	}
	$node->init(
		allows_streaming => 'logical',
		$params{extra} ? (extra => $params{extra}) : ());
	# set for the sake of the version that the test framework belongs to
	$node->adjust_conf('postgresql.conf', 'autovacuum_worker_slots', undef)
	  if $node->pg_version < 18;
	return;
}

# The servers that a test has started.
my @nodes;

# Start a publisher with Weft, so that its output plugin is used; with "stock",
# without Weft.
sub new_publisher
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		$params{install_path}
		? (install_path => $params{install_path})
		: ());

	push @nodes, $node;
	init_node($node, other_version => $params{install_path});
	$node->append_conf('postgresql.conf', <<EOC);
autovacuum = off
deadlock_timeout = 20ms
log_statement = none
max_connections = 40
max_prepared_transactions = 20
max_wal_size = 1GB
shared_buffers = 32MB
EOC
	$node->append_conf('postgresql.conf', <<EOC)
shared_preload_libraries = 'weft'
$offer_plugin
EOC
	  if weft() && !$params{stock} && !$params{install_path};
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	$node->start;
	return $node;
}

# With "stopped", the server is not started, and has no extension; with "extra", initdb gets more options.
sub new_subscriber
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		map { $_ => $params{$_} }
		grep { defined $params{$_} } qw(install_path port));

	push @nodes, $node;
	init_node(
		$node,
		other_version => $params{install_path},
		extra => $params{extra});
	$node->append_conf('postgresql.conf', <<EOC);
log_statement = none
max_connections = 40
max_logical_replication_workers = 20
max_prepared_transactions = 20
max_wal_size = 1GB
max_worker_processes = 90
shared_buffers = 32MB
wal_retrieve_retry_interval = 100ms
EOC
	$node->append_conf('postgresql.conf', <<EOC) if weft();
shared_preload_libraries = 'weft'
weft.max_writers_per_subscription = 64
# so that as many writers as possible are always at work
weft.tune_writers = off
EOC
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	return $node if $params{stopped};
	$node->start;
	query($node, 'CREATE EXTENSION weft') if weft();
	return $node;
}

sub query
{
	my ($node, $sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub query_all
{
	my ($nodes, $sql) = @_;
	query($_, $sql) foreach @$nodes;
	return;
}

# Open a session that stays open.  The time limit is for each query, not for all of
# them together.
sub open_session
{
	my ($node, @options) = @_;
	my $session = $node->background_psql('postgres', @options);

	$session->set_query_timer_restart;
	return $session;
}

# Change parameters as a user would, and return once new sessions have them.
sub set_conf
{
	my ($node, %values) = @_;
	my $before = query($node, 'SELECT clock_timestamp()');

	foreach my $name (sort keys %values)
	{
		query($node, "ALTER SYSTEM SET $name = '$values{$name}'");
	}
	query($node, 'SELECT pg_reload_conf()');
	poll($node, "SELECT pg_conf_load_time() > '$before'");

	# Commits wait for standbys once the checkpointer has seen that, and it looks before a checkpoint.
	query($node, 'CHECKPOINT') if exists $values{synchronous_standby_names};
	return;
}

# Show what a node is doing, to help find out why a test has failed.
sub describe
{
	my ($node) = @_;
	my $has_weft = "SELECT count(*) FROM pg_extension WHERE extname = 'weft'";
	my @sql = (
		'SELECT pid, backend_type, state, wait_event_type, wait_event, pg_blocking_pids(pid), query FROM pg_stat_activity WHERE pid <> pg_backend_pid()',
		"SELECT pid, locktype, relation::regclass, transactionid, mode, granted FROM pg_locks WHERE locktype <> 'virtualxid' AND pid <> pg_backend_pid() ORDER BY pid",
		'SELECT * FROM pg_subscription_rel',
		'SELECT * FROM pg_replication_slots');
	my $answer = sub {
		my ($ret, $stdout, $stderr) =
		  $node->psql('postgres', $_[0], timeout => 10);
		return ($stdout // '') . ($stderr // '');
	};

	push @sql,
	  'SELECT * FROM weft.stat_subscription',
	  'SELECT * FROM weft.stat_writer', 'SELECT * FROM weft.stat_relation'
	  if $answer->($has_weft) eq '1';
	diag($node->name . ": $_\n" . $answer->($_)) foreach @sql;
	return;
}

# A test that has failed tells what its servers are doing; tools/run-check.py shows it.
END
{
	my $status = $?;

	if ($status != 0 || !Test::More->builder->is_passing)
	{
		foreach my $node (grep { defined $_->{_pid} } @nodes)
		{
			eval { describe($node); 1 } or diag($node->name . ": $@");
		}
	}
	$? = $status;
}

# Wait until a query returns true, or what is expected.
sub poll
{
	my ($node, $sql, $expected) = @_;

	$expected //= 't';
	poll_for($node, $sql, sub { return $_[0] eq $expected });
	return;
}

# Wait until a function accepts what a query returns, and return that; by default,
# accept anything that is not empty.  After an error (the server may be starting),
# try again.  Cluster's poll_query_until() writes the query to psql, and dies of a
# broken pipe if psql has already ended because it could not connect.
sub poll_for
{
	my ($node, $sql, $right) = @_;
	my @command = (
		$node->installed_command('psql'),
		'-XAtq', '-d', $node->connstr('postgres'),
		'-c', $sql);

	$right //= sub { return $_[0] ne '' };
	foreach my $i (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my ($output, $errors) = ('', '');
		my $success = IPC::Run::run(\@command, '<', \undef,
			'>', \$output, '2>', \$errors);

		chomp $output;
		return $output if $success and $right->($output);
		usleep(100_000);
	}
	die "timed out waiting for: $sql";
}

sub wait_until_up
{
	my ($node) = @_;
	poll($node, 'SELECT true');
	return;
}

sub subscribe
{
	my ($pub, $sub, $name, $publication, $options) = @_;
	my $connstr = $pub->connstr . ' dbname=postgres';

	query($sub,
		"CREATE SUBSCRIPTION $name CONNECTION '$connstr application_name=$name'"
		  . " PUBLICATION $publication"
		  . ($options ? " WITH ($options)" : ''));
	return;
}

# Wait until the given number of a node's processes, one by default, waits for this event.
sub waits_for
{
	my ($node, $event, $count) = @_;
	$count //= 1;
	poll($node,
		"SELECT count(*) = $count FROM pg_stat_activity WHERE wait_event = '$event'"
	);
	return;
}

# Wait until one of a node's writers waits for a lock.
sub writer_waits_for_lock
{
	my ($node) = @_;
	poll($node,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'weft writer' AND wait_event_type = 'Lock'"
	);
	return;
}

# Disable a node's only subscription, and return once none of its processes is left.
sub disable_subscription
{
	my ($sub, $name) = @_;

	query($sub, "ALTER SUBSCRIPTION $name DISABLE");
	poll($sub,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'weft stream writer', 'logical replication apply worker')"
	);
	return;
}

# Disable one of a node's subscriptions, and return once nothing of it is applied any more.
sub pause_subscription
{
	my ($sub, $name) = @_;

	query($sub, "ALTER SUBSCRIPTION $name DISABLE");
	poll($sub,
		"SELECT count(*) = 0 FROM pg_stat_subscription WHERE subname = '$name' AND pid IS NOT NULL"
	);
	return;
}

# What weft.stat_subscription says of a subscription.
sub figure
{
	my ($sub, $name, $expression) = @_;
	return query($sub,
		"SELECT $expression FROM weft.stat_subscription WHERE subname = '$name'"
	);
}

sub poll_figure
{
	my ($sub, $name, $condition) = @_;
	poll($sub,
		"SELECT $condition FROM weft.stat_subscription WHERE subname = '$name'"
	);
	return;
}

# Return once everything that the publisher has at the call is applied, and a pending two_phase is
# enabled: an apply worker that starts to do so fails if ALTER SUBSCRIPTION changes the same row.
sub wait_for_apply
{
	my ($pub, $sub, $name) = @_;

	if (weft())
	{
		my $timeout = $PostgreSQL::Test::Utils::timeout_default;
		my ($ret, $stdout, $stderr) = $sub->psql(
			'postgres',
			"SELECT weft.wait_for_subscription('$name', '${timeout}s')",
			timeout => $timeout + 10);
		die $stderr if $ret != 0;
	}
	else
	{
		flush_wal($pub);
		$sub->wait_for_subscription_sync($pub, $name);
	}
	poll($sub, <<EOQ);
SELECT NOT EXISTS (SELECT FROM pg_subscription s JOIN pg_subscription_rel ON srsubid = s.oid
	WHERE subname = '$name' AND subenabled AND subtwophasestate = 'p'
	HAVING bool_and(srsubstate = 'r'))
EOQ
	return;
}

sub leader_pid
{
	my ($sub, $name) = @_;
	return poll_for($sub,
		"SELECT pid FROM pg_stat_subscription WHERE subname = '$name' AND worker_type = 'apply' AND pid IS NOT NULL"
	);
}

sub writer_pids
{
	my ($sub) = @_;
	return split /\n/,
	  query($sub,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'weft writer' ORDER BY pid"
	  );
}

# Make what has been committed durable, by a synchronous commit.  In a group, schema changes are
# replicated.  A temporary table would not be, but the schema of the first one makes a publisher send
# all relations again.
sub flush_wal
{
	my ($node) = @_;
	query($node,
		'SET weft.ddl_replication = off; SET synchronous_commit = on; CREATE TABLE flushed (); DROP TABLE flushed'
	);
	return;
}

# The processes of a server, the postmaster first.
sub server_pids
{
	my ($node) = @_;
	my ($postmaster) =
	  slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my @pids = ($postmaster);

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		# a process may have ended by now
		open my $fh, '<', $file or next;
		my $stat = <$fh> // '';
		push @pids, $1
		  if $stat =~ /^(\d+) \(.*\) \S (\d+)/ and $2 == $postmaster;
		close $fh;
	}
	return @pids;
}

# kill -9 a process of a server, and wait until it is gone: until the postmaster has
# noticed, it would still accept sessions.
sub kill_process
{
	my ($pid) = @_;

	note("process $pid was gone already") unless kill 9, $pid;
	die "process $pid does not go away" if not_ended($pid);
	return;
}

# Wait until these processes have ended; return those that have not after a long time.
sub not_ended
{
	my @pids = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;

	while (@pids = grep { kill 0, $_ } @pids)
	{
		last if time > $deadline;
		usleep(10_000);
	}
	return @pids;
}

# Return all rows of a table (or of a subquery) as text, in an order that depends
# only on the rows.
sub rows
{
	my ($node, $from, $columns) = @_;
	$columns //= '*';
	return query($node,
		qq{SELECT r::text FROM (SELECT $columns FROM $from) r ORDER BY r::text COLLATE "C"}
	);
}

sub diff_rows
{
	my ($got, $expected) = @_;
	my (%seen, @lines);

	$seen{$_}++ foreach split /\n/, $expected;
	$seen{$_}-- foreach split /\n/, $got;
	foreach my $row (sort keys %seen)
	{
		next unless $seen{$row};
		push @lines,
		  sprintf("%s %d x %.200s",
			$seen{$row} > 0 ? 'missing' : 'too many',
			abs $seen{$row}, $row);
	}
	my $more = @lines - 20;
	@lines = (@lines[ 0 .. 19 ], "and $more more") if $more > 0;
	return join("\n", @lines);
}

# One test: the rows are the same, whatever their order.
sub same_rows
{
	my ($got, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $same = ok($got eq $expected, $what);
	diag(diff_rows($got, $expected)) unless $same;
	return $same;
}

# One test: the tables have the same rows on both nodes.
sub same_tables
{
	my ($pub, $sub, $tables, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @differing;

	foreach my $table (@$tables)
	{
		my $expected = rows($pub, $table);
		my $got = rows($sub, $table);

		next if $got eq $expected;
		push @differing, $table;
		diag("$table differs:\n" . diff_rows($got, $expected));
	}
	return is("@differing", '', $what);
}

# Return the errors of a node's own processes, not of clients, in its log.  An apply
# worker that starts right after another may find the origin, or the slot on the
# publisher, still in use; it is then started again.  Autovacuum gives way to whoever waits
# for its lock.
sub errors_logged
{
	my ($node, $offset) = @_;
	return join "\n", grep { !/ERROR:  canceling autovacuum task$/ }
	  grep { !/(origin with ID \d+ is already|slot "\w+" is) active for PID/ }
	  grep { /\[\d+\] (ERROR|PANIC): |TRAP: / }
	  split /\n/, slurp_file($node->logfile, $offset // 0);
}

# Start pgbench in the background.  The scripts are a hash of text => weight;
# the rest is passed on.  The caller must finish() it.
my $script_files = 0;

sub start_pgbench
{
	my ($node, $scripts, @options) = @_;
	my @files;

	foreach my $text (sort keys %$scripts)
	{
		my $file = sprintf("%s/%s_%d_%d.sql",
			$PostgreSQL::Test::Utils::tmp_check,
			$node->name, $$, ++$script_files);
		append_to_file($file, $text);
		push @files, '-f', "$file\@$scripts->{$text}";
	}

	my $load = { node => $node, output => '' };
	my @command = (
		$node->installed_command('pgbench'),
		'-n', @options, @files, $node->connstr('postgres'));
	note("running @command");
	$load->{run} =
	  IPC::Run::start(\@command, '<', \undef, '>&', \$load->{output});
	return $load;
}

# Begin and end of the transactions that pgbench has logged with this prefix, in
# seconds, without those that failed.
sub logged_transactions
{
	my ($prefix) = @_;
	my @transactions;

	foreach my $file (glob "$prefix.*")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			my (undef, undef, $duration, undef, $seconds, $microseconds,
				$late)
			  = split / /, $line;
			next if $duration eq 'failed';
			my $end = $seconds + $microseconds / 1e6;

			# with -R, the time since it should have begun
			$duration -= $late // 0;
			push @transactions, [ $end - $duration / 1e6, $end ];
		}
	}
	return @transactions;
}

sub running
{
	my ($load) = @_;

	$load->{run}->pump_nb if $load->{run}->pumpable;
	return $load->{run}->pumpable;
}

# Wait for the end of a load.  With may_fail, it may have lost its server.
sub finish
{
	my ($load, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $success = $load->{run}->finish;
	note($load->{output} =~ s/^SQL script.*//msr);
	die "the load failed: $load->{output}"
	  unless $success or $params{may_fail};
	return;
}

# End a running load as if its time were over: its clients finish what they have
# begun, and it reports how much that was.
sub end_load
{
	my ($load) = @_;

	# that is how pgbench itself sets its time
	$load->{run}->signal('ALRM');
	finish($load);
	return;
}

# End a running load at once.  Its last transactions may commit after it is gone, so
# wait for its sessions, too.
sub stop_load
{
	my ($load) = @_;

	$load->{run}->signal('TERM') if running($load);
	finish($load, may_fail => 1);
	poll($load->{node},
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'"
	);
	return;
}

# Return what a test_decoding slot outputs, as a list of transactions in commit
# order: { id => what the transaction inserted into "journal", text => all
# changes }.
sub decode_commits
{
	my ($node, $slot) = @_;
	my $file =
	  $PostgreSQL::Test::Utils::tmp_check . '/' . $node->name . "_$slot.out";
	my (@commits, $current);

	# only what is flushed is decoded
	flush_wal($node);
	query($node, <<EOC);
\\o $file
SELECT data FROM pg_logical_slot_get_changes('$slot', NULL, NULL,
	'include-xids', '0', 'skip-empty-xacts', '1')
EOC

	open my $fh, '<', $file or die "could not open $file: $!";
	while (my $line = <$fh>)
	{
		if ($line =~ /^BEGIN/)
		{
			$current = { text => '' };
		}
		elsif ($line =~ /^COMMIT/)
		{
			push @commits, $current;
		}
		else
		{
			$current->{text} .= $line;
			$current->{id} = $1
			  if $line =~ /^table public\.journal: INSERT: id\[\w+\]:(\d+)/;
		}
	}
	close $fh;
	unlink $file;
	return \@commits;
}

# Return the changes of such a transaction: [table, operation, { old key },
# { new tuple }].  Columns whose value is an unchanged TOAST pointer are left
# out of the new tuple.
sub decode_changes
{
	my ($commit) = @_;
	my @changes;

	foreach my $line (split /\n/, $commit->{text})
	{
		if ($line =~ /^table (.*?): TRUNCATE/)
		{
			push @changes, [ $_, 'TRUNCATE' ]
			  foreach map { s/^public\.//r } split /, /, $1;
		}
		elsif ($line =~ /^table public\.(\w+): (INSERT|UPDATE|DELETE): (.*)$/)
		{
			my ($table, $operation, $rest) = ($1, $2, $3);
			my ($old, $new);

			if ($operation eq 'DELETE')
			{
				$old = parse_tuple($rest);
			}
			elsif ($rest =~ /^old-key: (.*) new-tuple: (.*)$/)
			{
				($old, $new) = (parse_tuple($1), parse_tuple($2));
			}
			else
			{
				$new = parse_tuple($rest);
			}
			push @changes, [ $table, $operation, $old, $new ];
		}
		else
		{
			die "unexpected output of test_decoding: $line";
		}
	}
	return @changes;
}

sub parse_tuple
{
	my ($text) = @_;
	my %tuple;

	while ($text =~ /\G(\w+)\[[^\]]*(?:\[\])?\]:('(?:[^']|'')*'|\S+) ?/gc)
	{
		my ($name, $value) = ($1, $2);
		next if $value eq 'unchanged-toast-datum';
		$value =~ s/''/'/g if $value =~ s/^'(.*)'$/$1/;
		$tuple{$name} = $value;
	}
	die "could not parse tuple: $text" if (pos($text) // 0) < length $text;
	return \%tuple;
}

# Sort changes, as test_decoding outputs them, by the table and the value of the
# first column; changes in which both are equal keep their order.  Where that column
# is not the key of the table, the whole text of the change decides.
sub by_row
{
	my ($changes, $others) = @_;
	my @lines = split /^/, $changes;
	my %row = map {
		my $line = $_;
		$line =~ /^table public\.(\w+): .*?(\w+\[.*?\]:\S*)/
		  && !grep({ $_ eq $1 } @$others)
		  ? ($line => "$1 $2")
		  : ($line => $line)
	} @lines;

	return join '', sort { $row{$a} cmp $row{$b} } @lines;
}

# Return the first transaction of the subscriber that does not consist of whole,
# consecutive transactions of the publisher.  Within a transaction, changes of
# different rows may be in another order.
sub first_difference
{
	my ($commits, $applied, @others) = @_;
	my @rest = map { $_->{text} } @$commits;

	foreach my $i (0 .. $#$applied)
	{
		my $got = $applied->[$i]{text};
		my $expected = '';

		$expected .= shift @rest
		  while @rest && length $expected < length $got;
		return "transaction $i is\n$got"
		  . "but the publisher's are\n$expected"
		  if by_row($got, \@others) ne by_row($expected, \@others);
	}
	return @rest ? "missing:\n@rest" : undef;
}

# How many of the publisher's first commits make up this set of journal ids?
# Returns undef if they are not a prefix; the second result then says why.
sub prefix_length
{
	my ($order, $ids) = @_;
	my (%have, @missing);

	$have{$_}++ foreach @$ids;
	return (undef, 'an id appears twice') if keys %have != @$ids;
	foreach my $id (@$order[ 0 .. @$ids - 1 ])
	{
		push @missing, $id unless delete $have{ $id // '' };
	}
	return (undef,
			'of '
		  . @$ids
		  . " transactions, those not there in spite of later ones: @missing; too early: "
		  . join(' ', sort keys %have))
	  if @missing;
	return scalar @$ids;
}

1;
