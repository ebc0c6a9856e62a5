# Bad input: whatever a publisher sends, the subscriber reports clearly what is
# wrong, does not crash, applies nothing of the transaction, loses none of the
# transactions before it, and continues by itself once the input is correct.
#
# A test creates a subscription, adds cases (transactions that are damaged at
# first), and runs them all in one go.
package BadInputTest;

use strict;
use feature 'state';
use warnings FATAL => 'all';

use Exporter 'import';
use FakePublisher;
use PgOutput;
use PostgreSQL::Test::Utils;
use Storable qw(dclone);
use Test::More;
use WeftTest;

our @EXPORT = qw(
  $node $pub $sub %t $t_rel @t_columns $int4 $text
  start_subscriber stop_subscriber
  create_subscription drop_subscription run_cases has_all_writers
  good_transaction damaged_transaction truncated absurd out_of_order
  cannot_be_applied
  log_row insert_t update_t insert_of new_key
  protocol_error apply_error any_of
);

# Relation ids of the publisher, and a few type OIDs.
my $log_rel = 16001;
our $t_rel = 16002;
our ($int4, $text) = (23, 25);
our @t_columns = ([ 'a', $int4, 1 ], [ 'b', $text, 0 ]);

# The subscriber, the publisher, and the subscription under test.
our ($node, $pub, $sub);
my $postmaster_pid;

# The expected final contents of the tables.
my %log;
our %t;

# The cases of the subscription, and their number over all.
my @cases;
my $attempts = 0;
my $number = 0;

####
#### The nodes
####

sub postmaster_pid
{
	return (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
}

# Each transaction inserts into "log", and nothing is ever deleted from it: a row of
# a damaged transaction that was visible for a moment stays, and a row that was
# applied twice is there twice.
#
# "answers" are those of the publisher, see FakePublisher.pm.
sub start_subscriber
{
	my (%p) = @_;
	$node = new_subscriber(
		'subscriber',
		conf => q{
autovacuum = off
dynamic_shared_memory_type = mmap
weft.ring_size = 1MB
log_error_verbosity = verbose
max_prepared_transactions = 10
wal_retrieve_retry_interval = 1ms
});
	$pub = FakePublisher->new(
		log => $node->logfile,
		answers => $p{answers});
	$postmaster_pid = postmaster_pid();

	query($node, <<'EOC');
CREATE TABLE log (n int, what text);
CREATE TABLE t (a int PRIMARY KEY, b text);
CREATE VIEW v AS SELECT * FROM t;
EOC
	$pub->relation($log_rel, 'public', 'log', 'd',
		[ [ 'n', $int4, 0 ], [ 'what', $text, 0 ] ]);
	$pub->relation($t_rel, 'public', 't', 'd', \@t_columns);
	return;
}

# The server has survived all this.
sub stop_subscriber
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	poll(
		$node,
		q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker')},
		'0');
	is(postmaster_pid(), $postmaster_pid,
		'the server has not been restarted');
	unlike(
		slurp_file($node->logfile),
		qr/PANIC|TRAP:|was terminated by signal|server process/,
		'no process has crashed');

	# Not one segment for each time that a worker has been started.
	cmp_ok(query($node, q{SELECT count(*) FROM pg_ls_dir('pg_dynshmem')}),
		'<', 10, 'shared memory is given back');

	$pub->stop;
	$node->stop;
	return;
}

# The subscriptions have no tables to copy: all tables are ready.
sub create_subscription
{
	my ($name, $options) = @_;
	$sub = $name;
	@cases = ();
	query($node, <<EOC);
CREATE SUBSCRIPTION $sub CONNECTION '@{[$pub->connstr]}' PUBLICATION p
	WITH (connect = false$options);
INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate)
	SELECT s.oid, c, 'r'
	FROM pg_subscription s, unnest('{log,t}'::regclass[]) c WHERE subname = '$sub';
EOC
	return;
}

# There is no slot that could be dropped on the publisher.
sub drop_subscription
{
	query($node, <<EOC);
ALTER SUBSCRIPTION $sub DISABLE;
ALTER SUBSCRIPTION $sub SET (slot_name = NONE);
DROP SUBSCRIPTION $sub;
EOC
	return;
}

sub has_all_writers
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

  SKIP:
	{
		skip 'about Weft', 1 unless weft();
		poll(
			$node,
			q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'weft writer'},
			'4');
		pass('there are as many writers as there should be');
	}
	return;
}

####
#### The cases
####

sub log_row
{
	my ($what, %p) = @_;
	return msg_insert($log_rel, [ $number, $what ], %p);
}

# The number of rows in the log with this text, in a transaction.
sub count_rows
{
	my ($transaction, $what) = @_;
	my @rows =
	  grep { ($_->{data} // '') =~ /$what/ } @{ $transaction->{messages} };
	return scalar @rows;
}

# A good transaction, which is to be applied.
#
# With "messages", a function of the text for the log, the transaction has just
# the messages that this returns.
sub good_transaction
{
	my (%p) = @_;
	$number++;
	my $transaction = $pub->transaction(
		$p{messages}
		? sub { $p{messages}->('before', @_) }
		: log_row('before'));
	$log{"$number|before"} = count_rows($transaction, 'before');
	$pub->publish($sub, $transaction);
	return;
}

# Publishes a transaction that contains the changes, with a row of the log before
# and after them.  At first, "damage" is done to its messages: BEGIN, row,
# changes, row, COMMIT.  The damaged one is the third; if another one is, then
# "damage" returns it.  The error must be as "expect" says.
#
# "native" is set if the native worker reports the same.
#
# "messages" is as above.
sub damaged_transaction
{
	my ($name, %p) = @_;
	good_transaction();

	my $build = $p{messages} // sub {
		my ($what) = @_;
		return (log_row($what), @{ dclone($p{changes} // []) },
			log_row($what));
	};
	my $good = $pub->transaction(
		$p{messages}
		? sub { $build->('repaired', @_) }
		: $build->('repaired'));

	# The same at the same LSNs, but that the log tells them apart.
	my $damaged = dclone($good->{messages});
	s/repaired/damaged!/ foreach map { $_->{data} } @$damaged;
	my $culprit = $damaged->[2];
	my $returned = $p{damage}->($damaged);
	$culprit = $returned if ref $returned;

	$log{"$number|repaired"} = count_rows($good, 'repaired');
	$pub->publish($sub, $good, name => $name, damaged => $damaged);
	push @cases,
	  {
		name => $name,
		expect => $p{expect},
		group => $p{group} // $name,
		native => $p{native},
		lsn => $culprit->{lsn},
		commit_lsn => $good->{commit_lsn}
	  };
	return;
}

# Cuts off the message at each of its bytes, one after the other.  What is left
# has its type: without it, it would be no message.
sub truncated
{
	my ($type, $which, %p) = @_;
	my $length;

	for (my $i = 1; !defined $length || $i < $length; $i++)
	{
		damaged_transaction(
			"$type cut off after $i bytes",
			%p,
			$p{next} ? $p{next}->() : (),
			group => "$type cut off at each of its bytes",
			expect => protocol_error($type, %p),
			damage => sub {
				my $message = $_[0][$which];
				$length = length $message->{data};
				$message->{data} = substr($message->{data}, 0, $i);
				return $message;
			});
	}
	return;
}

# Replaces a whole message.  The native worker would not see what is wrong with
# it, or fail an assertion, unless "native" is set.
sub absurd
{
	my ($name, $type, $data, %p) = @_;
	return unless weft() || $p{native};
	damaged_transaction(
		"$type: $name",
		changes => [ insert_t(new_key(), 'good') ],
		expect => protocol_error($type),
		damage => sub { $_[0][2]{data} = $data; return },
		%p);
	return;
}

sub insert_of
{
	my ($tuple, $relid) = @_;
	return pack('a N a', 'I', $relid // $t_rel, 'N') . $tuple;
}

# The right messages in a wrong order: "order" gets them, and returns the index
# of the one that is wrong, and all messages.
sub out_of_order
{
	my ($name, $type, $order, %p) = @_;
	return unless weft();
	damaged_transaction(
		"$type: $name",
		expect => protocol_error($type),
		damage => sub {
			my ($messages) = @_;
			my $lsn = $messages->[0]{lsn};
			my ($culprit, @ordered) = $order->(@$messages);

			@$messages = map {
				{ %$_, lsn => $lsn += 4 }
			} @ordered;
			return $messages->[$culprit];
		},
		%p);
	return;
}

# Damage that shows only with the subscriber's tables.
sub cannot_be_applied
{
	my ($name, $regexp, $data, %p) = @_;
	absurd(
		$name, 'INSERT', $data,
		native => 1,
		expect => apply_error($regexp),
		%p);
	return;
}

# A key of "t" that was not used yet.
sub new_key
{
	state $last = 200;
	return ++$last;
}

# Changes of "t", which record the expected contents of the table.
sub insert_t
{
	my ($a, $b, @values) = @_;
	$t{$a} = $b;
	return msg_insert($t_rel, [ @values ? @values : ($a, $b) ]);
}

sub update_t
{
	my ($old, $new, $b) = @_;
	delete $t{$old};
	$t{$new} = $b;
	return msg_update($t_rel, [ $new, $b ], key => [ $old, undef ]);
}

####
#### What the log must say
####

# The log as a list of reports: consecutive lines of one process.
sub reports
{
	my ($log) = @_;
	my (@reports, %last, $field);

	foreach my $line (split /\n/, $log)
	{
		# from version 19 on, PostgreSQL::Test::Cluster logs the kind of the process, too
		if ($line =~ /^\S+ \S+ \S+ [^[]*\[(\d+)\] .*?\b([A-Z]+[0-9]?):  (.*)/)
		{
			my ($pid, $keyword, $rest) = ($1, $2, $3);

			if ($keyword =~
				/^(DETAIL|HINT|CONTEXT|STATEMENT|LOCATION|QUERY)$/)
			{
				$last{$pid}{$keyword} = $rest;
				$field = \$last{$pid}{$keyword};
			}
			else
			{
				$last{$pid} = { severity => $keyword, message => $rest };
				push @reports, $last{$pid};
				$field = \$last{$pid}{message};
			}
		}
		elsif ($field)
		{
			$$field .= "\n$line";
		}
	}
	return @reports;
}

# Each of these makes a function that checks whether a report is correct for a
# case.

# The message as such is wrong.
sub protocol_error
{
	my ($type, %p) = @_;
	return sub {
		my ($report, $case) = @_;
		my $lsn =
		  $p{any_lsn} ? qr{[0-9A-F]+/[0-9A-F]+} : lsn_text($case->{lsn});
		return $report->{severity} eq 'ERROR'
		  && $report->{message} eq
		  qq{08P01: invalid logical replication message for subscription "$sub"}
		  && ($report->{DETAIL} // '') =~
		  /^Message "\Q$type\E" at LSN $lsn: .+\.$/
		  && ($report->{HINT} // '') =~ /^[A-Z].+\.$/;
	};
}

# The message is well-formed, but cannot be applied.
sub apply_error
{
	my ($regexp, $type) = @_;
	$type //= 'INSERT';
	return sub {
		my ($report, $case) = @_;
		# from 19 on, the server writes all zeros of an LSN
		my $lsn = lsn_text($case->{commit_lsn});
		return
			 $report->{severity} eq 'ERROR'
		  && $report->{message} =~ $regexp
		  && ($report->{CONTEXT} // '') =~
		  /processing remote data for replication origin "pg_\d+" during message type "\Q$type\E".*, finished at $lsn\b/;
	};
}

# Any of these.
sub any_of
{
	my (@expectations) = @_;
	return sub {
		my @arguments = @_;
		return grep { $_->(@arguments) } @expectations;
	};
}

####
#### Running the cases
####

# Lets the subscription apply everything that is published, and checks the result.
sub run_cases
{
	query($node, "ALTER SUBSCRIPTION $sub ENABLE");
	my $done =
	  ok($pub->wait_for_flush($sub),
		"$sub: everything is applied in the end");

	my $results = $pub->results($sub);
	my (@groups, %problems);
	foreach my $case (@cases)
	{
		my $result = shift @{ $results->{damaged} };

		# If the subscriber has come to nothing, then by the last one.
		last if !$done && !$result->{attempts};
		my $group = $case->{group};
		push @groups, $group unless $problems{$group};
		push @{ $problems{$group} }, problems($case, $result);
	}
	foreach my $group (@groups)
	{
		my @problems = @{ $problems{$group} };
		ok(!@problems, "$sub: $group");
		my $more = @problems - 5;
		@problems = (@problems[ 0 .. 4 ], "and $more more") if $more > 0;
		diag($_) foreach @problems;
	}
	note(@cases . " damaged transactions, sent $attempts times");
	BAIL_OUT("the subscriber does not go on with $sub") if !$done;
	check_contents();
	return;
}

sub problems
{
	my ($case, $result) = @_;
	my @problems;
	my @reports = reports($result->{log} // '');

	$attempts += $result->{attempts};
	push @problems, 'it was never sent' if !$result->{attempts};
	push @problems, 'it was accepted' if $result->{accepted};
	push @problems, 'the worker waited for more' if $result->{hung};
	push @problems,
	  'what came before was not applied in spite of '
	  . "$result->{attempts} attempts"
	  if $result->{stuck};
	push @problems, 'flushed up to ' . lsn_text($result->{flushed})
	  if $result->{flushed} >= $case->{commit_lsn};
	push @problems, 'the log does not say clearly what is wrong'
	  if ($case->{native} || weft())
	  && !grep { $case->{expect}->($_, $case) } @reports;
	return unless @problems;

	# What it does say, each thing once.
	my %seen;
	my @said = grep { !$seen{$_}++ } map {
		my $report = $_;
		join ' | ', "$report->{severity}: $report->{message}",
		  map { "$_: $report->{$_}" }
		  grep { defined $report->{$_} } qw(DETAIL HINT CONTEXT);
	} grep { $_->{severity} !~ /^(LOG|DEBUG)/ } @reports;
	return sprintf "%s (message at %s, commit at %s): %s%s",
	  $case->{name}, lsn_text($case->{lsn}), lsn_text($case->{commit_lsn}),
	  join('; ', @problems), join '',
	  map { substr "\n    $_", 0, 500 } @said;
}

sub check_contents
{
	same_rows(
		query(
			$node,
			q{SELECT n || '|' || what || ' ' || count(*) FROM log GROUP BY n, what ORDER BY n, what}
		),
		join("\n",
			map  { "$_ $log{$_}" }
			sort { ($a =~ /(\d+)/)[0] <=> ($b =~ /(\d+)/)[0] || $a cmp $b }
			grep { $log{$_} } keys %log),
		"$sub: each transaction is applied once, nothing of a damaged one");
	same_rows(
		query($node, 'SELECT a, b FROM t ORDER BY a'),
		join("\n", map { "$_|$t{$_}" } sort { $a <=> $b } keys %t),
		"$sub: the changes are applied as they are meant");
	return;
}

1;
