# Bad input: damaged messages.  BadInputTest.pm says what is expected of the subscriber.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use BadInputTest;
use PgOutput;
use Test::More;
use WeftTest;

my $unknown_rel = 99999;

start_subscriber();

####
#### Good input first, so that the rest does not fail for a wrong reason
####

create_subscription('sub', '');
good_transaction();
$pub->publish(
	'sub',
	$pub->transaction(
		(map { insert_t($_, "row $_") } 1 .. 9),
		update_t(8, 10, 'moved'),
		msg_update($t_rel, [ 9, unchanged() ]),
		msg_delete($t_rel, key => [ 7, undef ]),
		msg_type(70000, 'public', 'mood'),
		msg_message('prefix', 'content'),
		msg_insert($t_rel, [ binary(pack('N', 11)), binary('binary') ])));
delete $t{7};
$t{11} = 'binary';
run_cases();

my $start_replication = $pub->results('sub')->{start_replication};
like(
	$start_replication,
	qr/proto_version '4'.*publication_names '"p"'/,
	'the subscriber requests the expected options');
SKIP:
{
	skip 'about Weft', 1 unless weft();
	is( query(
			$node,
			q{SELECT num_writers, native_reason FROM weft.stat_subscription WHERE subname = 'sub'}
		),
		'4|',
		'the subscription is taken over');
}

####
#### Messages that are cut off, or whose content is absurd
####

# The message lacks even a complete header, which has its position.
sub header_error
{
	return sub {
		my ($report) = @_;
		return $report->{severity} eq 'ERROR'
		  && $report->{message} eq
		  qq{08P01: invalid logical replication message for subscription "$sub"}
		  && ($report->{DETAIL} // '') =~ /\.$/
		  && ($report->{HINT}   // '') =~ /^[A-Z].+\.$/;
	};
}

damaged_transaction(
	'message without content',
	expect => header_error(),
	damage => sub { $_[0][1]{data} = ''; return $_[0][1] });

truncated('BEGIN', 0);
truncated('COMMIT', -1);
truncated('INSERT', 2,
	next => sub { return (changes => [ insert_t(new_key(), 'xy') ]) });
my ($here, $there) = (1, 101);
truncated(
	'UPDATE', 2,
	next => sub {
		($here, $there) = ($there, $here) unless exists $t{$here};
		return (changes => [ update_t($here, $there, 'u') ]);
	});
truncated('DELETE', 2,
	changes => [ msg_delete($t_rel, key => [ 0, undef ]) ]);
truncated('RELATION', 2,
	changes => [ msg_relation($t_rel, 'public', 't', 'd', \@t_columns) ]);
truncated('TYPE', 2, changes => [ msg_type(70000, 'public', 'mood') ]);
truncated('TRUNCATE', 2, changes => [ msg_truncate([$t_rel]) ]);
%t = ();

# Header of "w": 25 bytes, of "k": 18 bytes.
foreach my $raw ('w', 'w' . "\0" x 8, 'w' . "\0" x 23, 'k', 'k' . "\0" x 16)
{
	damaged_transaction(
		sprintf(
			'header of "%s" with %d bytes',
			substr($raw, 0, 1),
			length $raw),
		expect => header_error(),
		damage => sub { $_[0][1]{raw} = $raw; return $_[0][1] });
}

sub update_of
{
	my ($tuples) = @_;
	return pack('a N', 'U', $t_rel) . $tuples;
}

my $one = 't' . pack('N/a*', '1');
foreach my $length (-1, -5, -2147483648, 2147483647, 1073741823, 100)
{
	absurd("length $length of a text column",
		'INSERT',
		insert_of(pack('n', 2) . $one . pack('a l>', 't', $length) . 'xy'));
	absurd("length $length of a binary column",
		'INSERT',
		insert_of(pack('n', 2) . $one . pack('a l>', 'b', $length) . 'xy'));
	absurd(
		"length $length of a key",
		'UPDATE',
		update_of(
				'K'
			  . pack('n a l>', 2, 't', $length) . 'xyn' . 'N'
			  . tuple(1, 'x')));
}
absurd('65535 columns in 2', 'INSERT',
	insert_of(pack('n', 65535) . $one x 2));
absurd('65535 columns', 'INSERT', insert_of(tuple((1) x 65535)));
absurd('a column too many', 'INSERT', insert_of(tuple(1, 'x', 'y')));
absurd('a column too few', 'INSERT', insert_of(tuple(1)));
absurd('no column', 'INSERT', insert_of(tuple()));
absurd('a column too many in a key',
	'UPDATE', update_of('K' . tuple(1, undef, undef) . 'N' . tuple(1, 'x')));
absurd('a column too few in a key',
	'UPDATE', update_of('K' . tuple(1) . 'N' . tuple(1, 'x')));
absurd('a column too few beside a key',
	'UPDATE', update_of('K' . tuple(1, undef) . 'N' . tuple(1)));
absurd('a column too many in an old row',
	'DELETE', pack('a N a', 'D', $t_rel, 'O') . tuple(1, 'x', 'y'));
absurd('a column too few in an old row',
	'DELETE', pack('a N a', 'D', $t_rel, 'K') . tuple(1));

foreach my $kind ('X', "\0", "\xff", 'O', 'K')
{
	my $shown = sprintf '0x%02x', ord $kind;
	absurd("kind $shown of an inserted row",
		'INSERT', pack('a N a', 'I', $t_rel, $kind) . tuple(1, 'x'));
}
foreach my $kind ('X', "\0", "\xff")
{
	my $shown = sprintf '0x%02x', ord $kind;
	absurd("kind $shown of an old row",
		'UPDATE', update_of($kind . tuple(1, undef) . 'N' . tuple(1, 'x')));
	absurd("kind $shown of a new row",
		'UPDATE', update_of('K' . tuple(1, undef) . $kind . tuple(1, 'x')));
	absurd("kind $shown of a deleted row",
		'DELETE', pack('a N a', 'D', $t_rel, $kind) . tuple(1, undef));
	absurd("kind $shown of a column",
		'INSERT',
		insert_of(pack('n', 2) . $one . $kind . pack('N/a*', 'xy')));
}

absurd('unknown relation', 'INSERT', insert_of(tuple(1, 'x'), $unknown_rel));
absurd('unknown relation',
	'UPDATE', pack('a N a', 'U', $unknown_rel, 'N') . tuple(1, 'x'));
absurd('unknown relation',
	'DELETE', pack('a N a', 'D', $unknown_rel, 'K') . tuple(1, undef));
absurd('unknown relation',
	'TRUNCATE', pack('a N C N', 'T', 1, 0, $unknown_rel));
absurd('relation 0', 'INSERT', insert_of(tuple(1, 'x'), 0));
absurd('too many relations', 'TRUNCATE', pack('a N C N', 'T', $_, 0, $t_rel))
  foreach (2, 65536, 0x7fffffff, 0x80000000, 0xffffffff);

absurd(
	sprintf('type 0x%02x', ord $_),
	sprintf('??? (%d)', ord $_),
	$_ . 'xyz') foreach ('z', '!', "\0", "\xff");

foreach my $message (
	[ 'DELETE', msg_delete($t_rel, key => [ 1, undef ]) ],
	[ 'INSERT', msg_insert($t_rel, [ 1, 'x' ]) ],
	[ 'RELATION', msg_relation($t_rel, 'public', 't', 'd', \@t_columns) ],
	[ 'TRUNCATE', msg_truncate([$t_rel]) ],
	[ 'UPDATE', msg_update($t_rel, [ 1, 'x' ]) ])
{
	my ($type, $good) = @$message;
	absurd('a byte too many', $type, "$good->{data}x");
}
absurd('a byte too many',
	'BEGIN', undef, damage => sub { $_[0][0]{data} .= 'x'; return $_[0][0] });
absurd('a byte too many',
	'COMMIT', undef,
	damage => sub { $_[0][-1]{data} .= 'x'; return $_[0][-1] });
absurd('flags', 'COMMIT', undef,
	damage => sub { substr($_[0][-1]{data}, 1, 1) = "\x01"; return $_[0][-1] }
);
absurd('wrong LSN', 'COMMIT', undef,
	damage =>
	  sub { substr($_[0][-1]{data}, 9, 1) ^= "\x01"; return $_[0][-1] });
absurd('LSN 0', 'COMMIT', undef,
	damage =>
	  sub { substr($_[0][-1]{data}, 2, 8) = "\0" x 8; return $_[0][-1] });
absurd('end before commit', 'COMMIT', undef,
	damage =>
	  sub { substr($_[0][-1]{data}, 10, 8) = pack 'Q>', 1; return $_[0][-1] }
);
absurd('LSN 0', 'BEGIN', undef,
	damage => sub { substr($_[0][0]{data}, 1, 8) = "\0" x 8; return $_[0][0] }
);

# A value is not valid text.  Depending on whether the leader, the writer, or the type's
# input function finds that, the error has the message's LSN or only the transaction's.
sub encoding_error
{
	my ($type) = @_;
	return any_of(
		protocol_error($type),
		sub {
			my ($report, $case) = @_;
			my $lsn = lsn_text($case->{commit_lsn});
			return $report->{severity} eq 'ERROR'
			  && $report->{message} eq
			  qq{22021: invalid logical replication message for subscription "$sub"}
			  && ($report->{DETAIL} // '') =~
			  /^Message "\Q$type\E" at LSN \Q$lsn\E: .+\.$/
			  && ($report->{HINT} // '') =~ /^[A-Z].+\.$/;
		},
		apply_error(
			qr/^22021: invalid byte sequence for encoding "UTF8"/, $type));
}

# Text that is not valid.
foreach my $bytes ("\xc3\x28", "\xff", "ab\xe2\x82", "\xed\xa0\x80")
{
	my $shown = unpack 'H*', $bytes;
	absurd(
		"text $shown", 'INSERT',
		insert_of(tuple(1, $bytes)),
		expect => encoding_error('INSERT'));
	absurd(
		"text $shown in binary",
		'INSERT',
		insert_of(tuple(1, binary($bytes))),
		expect => encoding_error('INSERT'));
	absurd("name of a schema $shown",
		'RELATION',
		msg_relation($t_rel, "pub$bytes", 't', 'd', \@t_columns)->{data});
	absurd("name of a relation $shown",
		'RELATION',
		msg_relation($t_rel, 'public', "t$bytes", 'd', \@t_columns)->{data});
	absurd(
		"name of a column $shown",
		'RELATION',
		msg_relation($t_rel, 'public', 't', 'd',
			[ [ 'a', $int4, 1 ], [ "b$bytes", $text, 0 ] ])->{data});
}
absurd(
	'NUL in text', 'INSERT',
	insert_of(tuple(1, "ab\0cd")),
	expect => encoding_error('INSERT'));
absurd(
	'NUL in binary text',
	'INSERT',
	insert_of(tuple(1, binary("ab\0cd"))),
	expect => encoding_error('INSERT'));
absurd(
	'NUL in a key', 'UPDATE',
	update_of('K' . tuple("1\0", undef) . 'N' . tuple(1, 'x')),
	expect => encoding_error('UPDATE'));

absurd('name without end', 'RELATION', pack('a N', 'R', $t_rel) . 'p' x 100);
absurd('name without end',
	'RELATION', pack('a N Z*', 'R', $t_rel, 'public') . 't' x 100);
absurd(
	'65535 columns in 2',
	'RELATION',
	msg_relation($t_rel, 'public', 't', 'd', \@t_columns)->{data} =~
	  s/\0\x02(?=\x01a\0)/\xff\xff/r);

run_cases();
has_all_writers();
drop_subscription();

stop_subscriber();
done_testing();
