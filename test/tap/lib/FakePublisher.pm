# A publisher written in Perl, which sends whatever a test wants.
#
# It speaks as much of the frontend/backend protocol as an apply worker needs:
# start-up without password, the few queries before START_REPLICATION, and
# then the stream.  It is a process of its own, so that the test can run psql
# meanwhile.  The test gives it transactions, which it keeps as a server
# keeps its WAL: a worker that starts to stream at an LSN gets the transactions
# that commit there or later, in order.
#
# A transaction can have a damaged version.  That one is sent first, and
# nothing after it.  Once the worker has gone and comes back from the end of
# the transaction before, which means that all the good ones are applied, the
# worker gets the version that is right and all that follows up to the next
# damaged one.  Thus one stream can contain many kinds of damage, and the test need
# not do anything in between.
#
# Messages are built by PgOutput.pm.  RELATION messages of the relations that they
# name in "relids" (see relation()) are sent before them when needed.  A test may damage
# "data", set "lsn", or add
#   raw        sent instead of header and data, as the content of a CopyData
#   bytes      sent as it is, not even as a CopyData
#   copy_done  end the stream in good order
#   close      drop the connection

package FakePublisher;

use strict;
use warnings FATAL => 'all';

use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Exporter 'import';
use IO::Handle;
use IO::Select;
use IO::Socket::UNIX;
use PgOutput;
use PostgreSQL::Test::Utils;
use POSIX ();
use Socket;
use Storable    qw(freeze thaw);
use Time::HiRes qw(time);

our @EXPORT = qw(error_response);

# How many times a damaged transaction is sent if the worker does not get past the
# good one before it.
my $max_attempts = 20;

# How many seconds a worker has to notice that a message is damaged.
my $max_pending = 120;

# A message of the frontend/backend protocol, for "bytes".
sub error_response
{
	my ($sqlstate, $message) = @_;
	my $fields =
	  pack('(Z*)4 x', 'SERROR', 'VERROR', "C$sqlstate", "M$message");
	return pack('a N', 'E', 4 + length $fields) . $fields;
}

####
#### The test's side
####

# Parameters:
#   log             log file of the subscriber; what it gets between a damaged
#                   transaction and the end of the connection is returned
#   server_version  what the publisher pretends to be
#   answers         further queries: [ regular expression => [ columns, rows ] ]
sub new
{
	my ($class, %p) = @_;
	my $self = bless {
		log => $p{log},
		server_version => $p{server_version} // '17.0',
		answers => $p{answers} // [],
		timeout => $p{timeout} // $PostgreSQL::Test::Utils::timeout_default,
		dir => PostgreSQL::Test::Utils::tempdir_short(),
		port => 5432,
		next_lsn => 0x1000000,
		next_xid => 731,
	}, $class;

	my $path = "$self->{dir}/.s.PGSQL.$self->{port}";
	my $listener = IO::Socket::UNIX->new(
		Type => SOCK_STREAM,
		Local => $path,
		Listen => 20) or die "could not listen on $path: $!";
	socketpair(my $mine, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC)
	  or die "could not make a pair of sockets: $!";

	$self->{pid} = fork() // die "could not fork: $!";
	if ($self->{pid} == 0)
	{
		# The servers that the test has started, and its temporary files, are
		# not ours to clean up: leave without END blocks and destructors.
		close $mine;
		eval {
			$SIG{$_} = 'DEFAULT' foreach qw(INT TERM ALRM CHLD __DIE__);
			$SIG{PIPE} = 'IGNORE';
			@$self{qw(listener control)} = ($listener, $theirs);
			$self->_serve;
			1;
		} or print STDERR "fake publisher: $@";
		POSIX::_exit($@ ? 1 : 0);
	}
	close $theirs;
	close $listener;
	$self->{control} = $mine;
	return $self;
}

sub connstr
{
	my ($self) = @_;
	return "host=$self->{dir} port=$self->{port} dbname=postgres";
}

# Registers a relation under its OID; the parameters are those of
# msg_relation().
sub relation
{
	my ($self, @parameters) = @_;
	my $message = msg_relation(@parameters);
	$self->_ask(
		{
			command => 'relation',
			relid => $parameters[0],
			data => $message->{data}
		});
	return $message;
}

# Makes a transaction of changes.  All that need LSNs get them here; those of a
# transaction that is prepared or streamed are up to the test, which gives a
# function that gets the LSN of the end and returns all messages.
sub transaction
{
	my ($self, @changes) = @_;
	my $start = $self->{next_lsn};
	my $lsn = $start;
	my ($messages, $commit_lsn, $end_lsn);

	if (ref $changes[0] eq 'CODE')
	{
		($commit_lsn, $end_lsn) = ($start + 0x10000, $start + 0x10030);
		$messages = [
			$changes[0]->(
				commit_lsn => $commit_lsn,
				end_lsn => $end_lsn,
				xid => $self->{next_xid}++)
		];
		$_->{lsn} //= $lsn += 0x28 foreach @$messages;
	}
	else
	{
		$_->{lsn} = $lsn += 0x28 foreach @changes;
		($commit_lsn, $end_lsn) = ($lsn + 0x28, $lsn + 0x58);

		# As the walsender does: in the header of COMMIT stands the end.
		$messages = [
			{
				%{
					msg_begin(
						final_lsn => $commit_lsn,
						xid => $self->{next_xid}++)
				},
				lsn => $start
			},
			@changes,
			{
				%{
					msg_commit(
						commit_lsn => $commit_lsn,
						end_lsn => $end_lsn)
				},
				lsn => $end_lsn
			}
		];
	}
	$self->{next_lsn} = $end_lsn;
	return {
		messages => $messages,
		commit_lsn => $commit_lsn,
		end_lsn => $end_lsn
	};
}

# Appends a transaction to what is published through a slot.  Parameters:
#   damaged  the messages to send instead, at first
#   name     returned by results()
sub publish
{
	my ($self, $slot, $transaction, %p) = @_;
	$self->_ask(
		{
			command => 'publish',
			slot => $slot,
			transaction => { %$transaction, %p }
		});
	return $transaction;
}

# Waits until the subscriber has reported everything as flushed, or nothing is
# sent to it any more because it does not come back.
sub wait_for_flush
{
	my ($self, $slot) = @_;
	return $self->_ask({ command => 'wait', slot => $slot })->{done};
}

# The state of the slot: "flushed", "start_replication" (the last command
# as it came), "queries" (those that are not known), and "damaged", one hash
# for each transaction that has a damaged version:
#   name      as it was published
#   attempts  how many times the damaged version was sent
#   accepted  the worker took it for a good one
#   hung      the worker neither accepted it nor disconnected
#   stuck     the worker disconnected each time before it had applied the
#             transactions before it
#   flushed   the highest position reported as flushed before it came again
#   restart   the position from which the worker came again
#   log       what the subscriber's log got until then
sub results
{
	my ($self, $slot) = @_;
	my $results = $self->_ask({ command => 'results', slot => $slot });

	return $results unless defined $self->{log};

	my $log = slurp_file($self->{log});
	foreach my $case (@{ $results->{damaged} })
	{
		my ($start, $end) = @$case{qw(log_start log_end)};
		next unless defined $start;
		$case->{log} = substr($log, $start, ($end // length $log) - $start);
	}
	return $results;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;

	# The end of the control connection is the sign to leave.
	close $self->{control};
	local $?;
	waitpid($pid, 0);
	return $? == 0;
}

sub DESTROY
{
	my ($self) = @_;
	$self->stop;
	return;
}

sub _ask
{
	my ($self, $request) = @_;
	_write_frozen($self->{control}, $request);
	return _read_frozen($self->{control}) // die "fake publisher has gone";
}

sub _write_frozen
{
	my ($fh, $value) = @_;
	my $rest = pack('N/a*', freeze($value));

	while (length $rest)
	{
		my $n = syswrite($fh, $rest);
		next if !defined $n && $! == EINTR;
		die "could not write: $!" if !defined $n;
		substr($rest, 0, $n, '');
	}
	return;
}

sub _read_bytes
{
	my ($fh, $length) = @_;
	my $data = '';

	while (length($data) < $length)
	{
		my $n = sysread($fh, $data, $length - length($data), length($data));
		next if !defined $n && $! == EINTR;
		return if !$n;
	}
	return $data;
}

sub _read_frozen
{
	my ($fh) = @_;
	my $length = _read_bytes($fh, 4) // return;
	my $data = _read_bytes($fh, unpack('N', $length)) // return;
	return thaw($data);
}

####
#### The publisher's side
####

# One loop over everything that can become ready.  Nothing but reading a
# request of the test, which comes as a whole, ever blocks.
sub _serve
{
	my ($self) = @_;
	my $control = $self->{control};
	my $listener = $self->{listener};
	$self->{connections} = {};
	$self->{slots} = {};
	$self->{relations} = {};
	$self->{waiters} = [];

	while (1)
	{
		my @connections = values %{ $self->{connections} };
		my $readers = IO::Select->new($control, $listener,
			map { $_->{socket} } @connections);
		my $writers = IO::Select->new(
			map  { $_->{socket} }
			grep { length $_->{output} } @connections);
		my ($readable, $writable) =
		  IO::Select->select($readers, $writers, undef, 0.1);

		foreach my $fh (@{ $writable // [] })
		{
			my $connection = $self->{connections}{ fileno $fh };
			$self->_write($connection) if $connection;
		}
		foreach my $fh (@{ $readable // [] })
		{
			if ($fh == $control)
			{
				my $request = _read_frozen($control) // return;
				$self->_request($request);
			}
			elsif ($fh == $listener)
			{
				my $socket = $listener->accept or next;
				$socket->blocking(0);
				$self->{connections}{ fileno $socket } = {
					socket => $socket,
					input => '',
					output => '',
					started => 0,
				};
			}
			elsif (my $connection = $self->{connections}{ fileno $fh })
			{
				$self->_read($connection);
			}
		}
		$self->_check_time;
	}
	return;
}

sub _slot
{
	my ($self, $name) = @_;
	return $self->{slots}{$name} //= {
		name => $name,
		history => [],
		flushed => 0,
		start_replication => undef,
		queries => [],
	};
}

sub _request
{
	my ($self, $request) = @_;
	my $command = $request->{command};
	my $reply = {};

	if ($command eq 'relation')
	{
		$self->{relations}{ $request->{relid} } = $request->{data};
	}
	elsif ($command eq 'publish')
	{
		my $slot = $self->_slot($request->{slot});
		my $transaction = $request->{transaction};
		my $history = $slot->{history};

		$transaction->{previous_end} =
		  @$history ? $history->[-1]{end_lsn} : 0;
		$transaction->{attempts} = 0;
		$transaction->{flushed} = 0;
		push @$history, $transaction;
		$self->_stream($slot->{connection}) if $slot->{connection};
	}
	elsif ($command eq 'wait')
	{
		# answered when it has come true
		push @{ $self->{waiters} },
		  {
			slot => $self->_slot($request->{slot}),
			since => time
		  };
		$self->_answer_waiters;
		return;
	}
	elsif ($command eq 'results')
	{
		my $slot = $self->_slot($request->{slot});
		$reply = {
			flushed => $slot->{flushed},
			start_replication => $slot->{start_replication},
			queries => $slot->{queries},
			damaged => [
				map {
					my %copy = %$_;
					delete @copy{qw(messages damaged)};
					\%copy;
				} grep { $_->{damaged} } @{ $slot->{history} }
			]
		};
	}
	_write_frozen($self->{control}, $reply);
	return;
}

sub _answer_waiters
{
	my ($self) = @_;
	my @still;

	foreach my $waiter (@{ $self->{waiters} })
	{
		my $slot = $waiter->{slot};
		my $last = $slot->{history}[-1];
		my $done = !$last || $slot->{flushed} >= $last->{end_lsn};

		# A sign of life from the subscriber begins the time anew.
		my $since = $waiter->{since};
		$since = $slot->{seen} if ($slot->{seen} // 0) > $since;
		if ($done || time - $since > $self->{timeout})
		{
			_write_frozen($self->{control}, { done => $done });
		}
		else
		{
			push @still, $waiter;
		}
	}
	$self->{waiters} = \@still;
	return;
}

# Disconnect a worker that neither accepts a damaged transaction nor disconnects.
# Ask the others for their position, instead of waiting for
# wal_receiver_status_interval.
sub _check_time
{
	my ($self) = @_;
	my $now = time;

	return if $now - ($self->{checked} // 0) < 0.1;
	$self->{checked} = $now;
	foreach my $connection (values %{ $self->{connections} })
	{
		my $pending = $connection->{pending};
		if ($pending && $now - $connection->{pending_since} > $max_pending)
		{
			$pending->{hung} = 1;
			$self->_drop($connection);
		}
		elsif ($connection->{slot})
		{
			$self->_send_keepalive($connection);
		}
	}
	$self->_answer_waiters if @{ $self->{waiters} };
	return;
}

sub _drop
{
	my ($self, $connection) = @_;
	my $slot = $connection->{slot};

	delete $self->{connections}{ fileno $connection->{socket} };
	close $connection->{socket};
	delete $slot->{connection}
	  if $slot && ($slot->{connection} // 0) == $connection;
	return;
}

sub _write
{
	my ($self, $connection) = @_;

	while (length $connection->{output})
	{
		my $n = syswrite($connection->{socket}, $connection->{output});
		if (!defined $n)
		{
			next if $! == EINTR;
			return if $! == EAGAIN || $! == EWOULDBLOCK;

			# Gone.  What it said last is still to be read.
			$connection->{output} = '';
			return;
		}
		substr($connection->{output}, 0, $n, '');
	}
	$self->_drop($connection) if $connection->{close};
	return;
}

sub _read
{
	my ($self, $connection) = @_;
	my $input = \$connection->{input};
	my $n = sysread($connection->{socket}, $$input, 65536, length $$input);

	return if !defined $n && ($! == EAGAIN || $! == EINTR);
	return $self->_drop($connection) if !$n;

	while (!$connection->{started} && length $$input >= 8)
	{
		my ($length, $code) = unpack('N N', $$input);
		last if length $$input < $length;
		substr($$input, 0, $length, '');
		if ($code == 80877103 || $code == 80877104)
		{
			# neither SSL nor GSSAPI
			$connection->{output} .= 'N';
		}
		elsif ($code >> 16 == 3)
		{
			$self->_greet($connection);
		}
		else
		{
			return $self->_drop($connection);
		}
	}
	while ($connection->{started} && length $$input >= 5)
	{
		my ($type, $length) = unpack('a N', $$input);
		last if length $$input < $length + 1;
		my $content = substr($$input, 5, $length - 4);
		substr($$input, 0, $length + 1, '');
		return $self->_drop($connection) if $type eq 'X';
		$self->_message($connection, $type, $content);
	}
	$self->_write($connection) if length $connection->{output};
	return;
}

sub _put
{
	my ($connection, $type, $content) = @_;
	$connection->{output} .= pack('a N', $type, 4 + length $content);
	$connection->{output} .= $content;
	return;
}

sub _greet
{
	my ($self, $connection) = @_;
	my %parameters = (
		client_encoding => 'UTF8',
		DateStyle => 'ISO, MDY',
		integer_datetimes => 'on',
		server_encoding => 'UTF8',
		server_version => $self->{server_version},
		standard_conforming_strings => 'on',
		TimeZone => 'UTC');

	_put($connection, 'R', pack('N', 0));
	_put($connection, 'S', pack('Z* Z*', $_, $parameters{$_}))
	  foreach sort keys %parameters;
	_put($connection, 'K', pack('N N', $$, 0));
	_put($connection, 'Z', 'I');
	$connection->{started} = 1;
	return;
}

# All columns are sent as text, with the type that the client expects them to
# have anyway.
sub _put_rows
{
	my ($connection, $columns, @rows) = @_;

	_put($connection, 'T', pack('n', scalar @$columns) . join '',
		map { pack('Z* N n N n N n', $_, 0, 0, 25, 0xffff, 0xffffffff, 0) }
		  @$columns);
	foreach my $row (@rows)
	{
		_put($connection, 'D', pack('n', scalar @$row) . join '',
			map { defined $_ ? pack('N/a*', $_) : pack('N', 0xffffffff) }
			  @$row);
	}
	_put($connection, 'C', pack('Z*', 'SELECT ' . scalar @rows));
	return;
}

sub _message
{
	my ($self, $connection, $type, $content) = @_;
	my $slot = $connection->{slot};

	if ($type eq 'Q')
	{
		$self->_query($connection, unpack('Z*', $content));
	}
	elsif ($type eq 'd' && $slot && $content =~ /^r/)
	{
		my (undef, $write, $flush, $apply, $time, $wants_reply) =
		  unpack('a Q> Q> Q> q> C', $content);
		$self->_feedback($connection, $flush);
		$self->_send_keepalive($connection, 0) if $wants_reply;
	}
	elsif ($type eq 'c')
	{
		_put($connection, 'c', '') unless $connection->{copy_done};
		_put($connection, 'C', pack('Z*', 'START_REPLICATION'));
		_put($connection, 'Z', 'I');
	}
	return;
}

sub _query
{
	my ($self, $connection, $query) = @_;

	if ($query =~ /^START_REPLICATION SLOT "?(\w+)"? LOGICAL (\S+)/)
	{
		_put($connection, 'W', pack('C n', 0, 0));
		$self->_start($connection, $self->_slot($1), parse_lsn($2), $query);
		return;
	}

	if ($query =~ /^SELECT pg_catalog.set_config\('search_path'/)
	{
		_put_rows($connection, ['set_config'], ['']);
	}
	elsif ($query =~ /^IDENTIFY_SYSTEM/)
	{
		_put_rows(
			$connection,
			[ 'systemid', 'timeline', 'xlogpos', 'dbname' ],
			[ '7000000000000000001', 1, '0/1000000', 'postgres' ]);
	}
	else
	{
		my $answers = $self->{answers};
		my ($i) =
		  grep { $query =~ $answers->[ 2 * $_ ] } 0 .. @$answers / 2 - 1;

		if (defined $i)
		{
			_put_rows($connection, @{ $answers->[ 2 * $i + 1 ] });
		}
		else
		{
			push @{ $self->{unknown_queries} }, $query;
			$connection->{output} .= error_response('0A000',
				'the fake publisher does not know this query');
		}
	}
	_put($connection, 'Z', 'I');
	return;
}

sub _start
{
	my ($self, $connection, $slot, $start, $query) = @_;
	my $history = $slot->{history};

	# Only one at a time, as with a real slot; the worker that was here before
	# has gone if another one comes.
	$self->_drop($slot->{connection}) if $slot->{connection};
	$slot->{connection} = $connection;
	$slot->{start_replication} = $query;
	$slot->{queries} = $self->{unknown_queries} // [];
	$connection->{slot} = $slot;
	$connection->{relations} = {};
	$connection->{received} = $start;

	if (my $broken = delete $slot->{broken})
	{
		$broken->{restart} = $start;
		$broken->{log_end} = -s $self->{log} if defined $self->{log};
		if ($start > $broken->{commit_lsn})
		{
			$broken->{accepted} = 1;
		}
		elsif ($start >= $broken->{previous_end})
		{
			$broken->{repaired} = 1;
		}
		elsif ($broken->{attempts} >= $max_attempts)
		{
			# It makes no sense to go on like that.
			$broken->{stuck} = 1;
			$_->{repaired} = 1 foreach @$history;
		}
	}

	my $next = 0;
	$next++ while $next < @$history && $history->[$next]{commit_lsn} < $start;
	$connection->{next} = $next;
	$self->_stream($connection);
	return;
}

# Sends everything up to and including the next damaged transaction.
sub _stream
{
	my ($self, $connection) = @_;
	my $slot = $connection->{slot};
	my $history = $slot->{history};

	while ($connection->{next} < @$history && !$connection->{pending})
	{
		my $transaction = $history->[ $connection->{next}++ ];

		if (!$transaction->{damaged} || $transaction->{repaired})
		{
			$self->_send_message($connection, $_)
			  foreach @{ $transaction->{messages} };
		}
		else
		{
			$transaction->{attempts}++;
			$transaction->{log_start} //= -s $self->{log}
			  if defined $self->{log};
			$connection->{pending} = $transaction;
			$connection->{pending_since} = time;
			$slot->{broken} = $transaction;
			$self->_send_message($connection, $_)
			  foreach @{ $transaction->{damaged} };
		}
		$connection->{received} = $transaction->{end_lsn};
	}
	$self->_send_keepalive($connection);
	$self->_write($connection);
	return;
}

sub _send_message
{
	my ($self, $connection, $message) = @_;

	return if $connection->{close} || $connection->{copy_done};
	if (defined $message->{bytes})
	{
		$connection->{output} .= $message->{bytes};
	}
	elsif (defined $message->{raw})
	{
		_put($connection, 'd', $message->{raw});
	}
	else
	{
		# A streamed transaction may be aborted and is kept apart by the
		# subscriber, so what it said about relations holds for it alone.
		my $xid = $message->{xid};
		my $sent = $connection->{relations}{ $xid // '' } //= {};

		foreach my $relid (@{ $message->{relids} // [] })
		{
			my $relation = $self->{relations}{$relid} // next;
			next if $sent->{$relid}++;
			substr($relation, 1, 0, pack('N', $xid)) if defined $xid;
			_put_data($connection, $message->{lsn}, $relation);
		}
		_put_data($connection, $message->{lsn}, $message->{data})
		  if defined $message->{data};
	}

	if ($message->{copy_done})
	{
		_put($connection, 'c', '');
		$connection->{copy_done} = 1;
	}

	# Once all is written.
	$connection->{close} = 1 if $message->{close};
	return;
}

sub _put_data
{
	my ($connection, $lsn, $data) = @_;
	_put($connection, 'd',
		pack('a Q> Q> q>', 'w', $lsn, $lsn, $commit_time) . $data);
	return;
}

sub _send_keepalive
{
	my ($self, $connection, $wants_reply) = @_;
	return if $connection->{close} || $connection->{copy_done};
	_put(
		$connection,
		'd',
		pack('a Q> q> C',
			'k', $connection->{received},
			$commit_time, $wants_reply // 1));
	return;
}

sub _feedback
{
	my ($self, $connection, $flush) = @_;
	my $slot = $connection->{slot};
	my $pending = $connection->{pending};

	$slot->{seen} = time;
	$slot->{flushed} = $flush if $flush > $slot->{flushed};
	if ($pending)
	{
		$pending->{flushed} = $flush if $flush > $pending->{flushed};
		if ($flush >= $pending->{end_lsn})
		{
			$pending->{accepted} = 1;
			$pending->{log_end} = -s $self->{log} if defined $self->{log};
			delete $connection->{pending};
			delete $slot->{broken};
			$self->_stream($connection);
		}
	}
	$self->_answer_waiters;
	return;
}

1;
