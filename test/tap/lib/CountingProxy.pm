# A proxy between a publisher and its subscribers that counts the bytes that the
# publisher sends.
#
# The proxy is a process of its own.  It listens on a Unix-domain socket, and expects
# the publisher to do the same, as the test framework arranges wherever such sockets
# exist.
package CountingProxy;

use strict;
use warnings FATAL => 'all';

use Errno;
use IO::Handle;
use IO::Select;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils;
use POSIX ();
use Socket;

# The test's ends of the control connections, which other proxies must not keep open.
my %controls;

# The proxy reads no more for an end that still has this many bytes to receive.
my $max_waiting = 1024 * 1024;

sub new
{
	my ($class, $node) = @_;
	my $self = bless {
		dir => PostgreSQL::Test::Utils::tempdir_short(),
		port => $node->port,
		target => $node->host . '/.s.PGSQL.' . $node->port
	}, $class;

	$self->{listener} = IO::Socket::UNIX->new(
		Type => SOCK_STREAM,
		Local => "$self->{dir}/.s.PGSQL.$self->{port}",
		Listen => 20) or die "could not listen in $self->{dir}: $!";
	socketpair(my $mine, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC)
	  or die "could not make a pair of sockets: $!";
	$mine->autoflush(1);
	$theirs->autoflush(1);

	$self->{pid} = fork() // die "could not fork: $!";
	if ($self->{pid} == 0)
	{
		# Servers and temporary files of the test are not ours to clean up.
		close $_ foreach $mine, values %controls;
		eval {
			$SIG{$_} = 'DEFAULT' foreach qw(INT TERM ALRM CHLD __DIE__);
			$SIG{PIPE} = 'IGNORE';
			$self->{control} = $theirs;
			$self->_serve;
			1;
		} or print STDERR "counting proxy: $@";
		POSIX::_exit($@ ? 1 : 0);
	}
	close $theirs;
	close delete $self->{listener};
	$self->{control} = $controls{ $self->{pid} } = $mine;
	return $self;
}

sub connstr
{
	my ($self) = @_;
	return "host=$self->{dir} port=$self->{port} dbname=postgres";
}

# The number of bytes that the publisher has sent so far.
sub bytes
{
	my ($self) = @_;
	return $self->_ask('?');
}

# Drops all connections, including new ones, until heal() is called.
sub cut
{
	my ($self) = @_;
	$self->_ask('c');
	return;
}

sub heal
{
	my ($self) = @_;
	$self->_ask('h');
	return;
}

sub _ask
{
	my ($self, $request) = @_;
	my $control = $self->{control};

	print $control "$request\n";
	my $bytes = <$control> // die 'the counting proxy has gone';
	chomp $bytes;
	return $bytes;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;

	# The end of the control connection is the sign to leave.
	close delete $controls{$pid};
	local $?;
	waitpid($pid, 0);
	return;
}

sub DESTROY
{
	my ($self) = @_;
	$self->stop;
	return;
}

# Each end of a connection knows what is to be written to it, and its other end.
sub _serve
{
	my ($self) = @_;
	my ($control, $listener) = @$self{qw(control listener)};
	my $sent = 0;

	$self->{ends} = {};
	while (1)
	{
		my @ends = values %{ $self->{ends} };
		my ($readable, $writable) = IO::Select->select(
			IO::Select->new(
				$control,
				$listener,
				map    { $_->{socket} }
				  grep { length $_->{other}{output} < $max_waiting } @ends),
			IO::Select->new(
				map { $_->{socket} } grep { length $_->{output} } @ends),
			undef);

		foreach my $fh (@{ $writable // [] })
		{
			my $end = $self->_end_of($fh) // next;
			my $n = syswrite($fh, $end->{output});
			if    ($n)          { substr($end->{output}, 0, $n, '') }
			elsif (!$!{EAGAIN}) { $self->_drop($end) }
		}
		foreach my $fh (@{ $readable // [] })
		{
			if ($fh == $control)
			{
				sysread($fh, my $request, 2) or return;
				$self->{is_cut} = 1 if $request =~ /c/;
				$self->{is_cut} = 0 if $request =~ /h/;
				if ($self->{is_cut})
				{
					$self->_drop($_)
					  foreach grep { $_->{is_publisher} }
					  values %{ $self->{ends} };
				}
				print $control "$sent\n";
			}
			elsif ($fh == $listener)
			{
				$self->_accept;
			}
			elsif (my $end = $self->_end_of($fh))
			{
				my $n = sysread($fh, my $data, 65536);
				if ($n)
				{
					$end->{other}{output} .= $data;
					$sent += $n if $end->{is_publisher};
				}
				elsif (defined $n || !$!{EAGAIN}) { $self->_drop($end) }
			}
		}
	}
	return;
}

# Does nothing if the connection has just been dropped.
sub _end_of
{
	my ($self, $fh) = @_;
	my $number = fileno $fh // return;
	return $self->{ends}{$number};
}

sub _accept
{
	my ($self) = @_;
	my $client = { output => '' };
	my $publisher = { output => '', is_publisher => 1 };

	$client->{socket} = $self->{listener}->accept or return;
	return if $self->{is_cut};
	$publisher->{socket} = IO::Socket::UNIX->new(
		Type => SOCK_STREAM,
		Peer => $self->{target}) or return;
	($client->{other}, $publisher->{other}) = ($publisher, $client);
	foreach my $end ($client, $publisher)
	{
		$end->{socket}->blocking(0);
		$self->{ends}{ fileno $end->{socket} } = $end;
	}
	return;
}

# Ends a connection, after sending the other end what it can still receive.
sub _drop
{
	my ($self, $end) = @_;
	my $other = $end->{other};

	syswrite($other->{socket}, $other->{output}) if length $other->{output};
	foreach my $which ($end, $other)
	{
		delete $self->{ends}{ fileno $which->{socket} };
		close $which->{socket};
	}
	delete $end->{other};
	delete $other->{other};
	return;
}

1;
