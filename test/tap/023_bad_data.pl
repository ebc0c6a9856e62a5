# Bad input: valid messages whose content cannot be applied, and connections that
# end too early.  BadInputTest.pm says what is expected of the subscriber.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use BadInputTest;
use FakePublisher;
use PgOutput;
use Test::More;
use WeftTest;

my $other_rel = 16003;

start_subscriber();

create_subscription('sub', '');

####
#### What only the subscriber's tables can tell
####

cannot_be_applied(
	'text that is no number',
	qr/^22P02: invalid input syntax for type integer: "abc"/,
	insert_of(tuple('abc', 'x')));
cannot_be_applied(
	'number that is too large',
	qr/^22003: value "99999999999" is out of range for type integer/,
	insert_of(tuple('99999999999', 'x')));

foreach my $length (0, 2, 3, 5, 8)
{
	cannot_be_applied(
		"integer of $length bytes",
		qr/^(08P01: insufficient data left in message|22P03: incorrect binary data format in logical replication column 1)/,
		insert_of(tuple(binary("\x01" x $length), 'x')));
}
cannot_be_applied(
	'key without value',
	qr/^23502: null value in column "a" of relation "t" violates not-null constraint/,
	insert_of(tuple(undef, 'x')));

# The relation is announced before its first change, as pgoutput does it.
sub announced
{
	my ($name, $expect, @relation) = @_;
	cannot_be_applied(
		$name, undef, undef,
		expect => $expect,
		damage => sub {
			my ($messages) = @_;
			splice @$messages, 2, 1, map {
				{ %$_, lsn => $messages->[2]{lsn} }
			} ( msg_relation($other_rel, @relation),
				msg_insert($other_rel, [ ('1') x @{ $relation[3] } ]));
			return;
		});
	return;
}

announced(
	'relation that is missing',
	apply_error(
		qr/^55000: logical replication target relation "public.missing" does not exist/
	),
	'public',
	'missing',
	'd',
	\@t_columns);
announced(
	'schema that is missing',
	apply_error(
		qr/^55000: logical replication target relation "missing.t" does not exist/
	),
	'missing',
	't', 'd',
	\@t_columns);
announced(
	'column that is missing',
	apply_error(
		qr/^55000: logical replication target relation "public.t" is missing replicated column: "c"/
	),
	'public', 't', 'd',
	[ @t_columns, [ 'c', $text, 0 ] ]);
announced(
	'relation that is no table',
	apply_error(
		qr/^42809: cannot use relation "public.v" as logical replication target/
	),
	'public', 'v', 'd',
	\@t_columns);

# More columns than a table can have.
announced(
	'2000 columns',
	any_of(
		protocol_error('RELATION'),
		apply_error(
			qr/^55000: logical replication target relation "public.t" is missing replicated columns: "c1", "c2"/
		)),
	'public', 't', 'd',
	[ @t_columns, map { [ "c$_", $int4, 0 ] } 1 .. 1998 ]);

####
#### Connections that end too early
####

sub connection_lost
{
	my ($name, $regexp, %message) = @_;
	damaged_transaction(
		$name,
		changes => [ insert_t(new_key(), 'good') ],
		native => 1,
		expect => sub { return $_[0]{message} =~ $regexp },
		damage => sub { $_[0][2] = \%message; return });
	return;
}

my $lost = qr/^08\w+: could not receive data from WAL stream: /;
connection_lost(
	'connection is closed',
	qr/$lost.*server closed the connection/,
	close => 1);
connection_lost(
	'connection is closed within a message',
	qr/$lost.*server closed the connection/,
	bytes => pack('a N a Q>', 'd', 100, 'w', 0x1000000),
	close => 1);
connection_lost(
	'stream is ended',
	qr/data stream from publisher has ended/,
	copy_done => 1);
connection_lost(
	'error of the publisher',
	qr/${lost}ERROR:  no more WAL/,
	bytes => error_response('58P01', 'no more WAL'),
	close => 1);
connection_lost(
	'length of a message of the connection',
	qr/${lost}lost synchronization with server/,
	bytes => pack('a N', 'd', 3) . 'x' x 100);

run_cases();
has_all_writers();
drop_subscription();

####
#### With disable_on_error
####

create_subscription('disabled', ', disable_on_error = true');
cannot_be_applied(
	'text that is no number',
	qr/^22P02: invalid input syntax for type integer: "abc"/,
	insert_of(tuple('abc', 'x')));
query($node, "ALTER SUBSCRIPTION $sub ENABLE");
poll($node,
	"SELECT NOT subenabled FROM pg_subscription WHERE subname = '$sub'");
run_cases();
drop_subscription();

stop_subscriber();
done_testing();
