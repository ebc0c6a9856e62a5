# The messages of the logical replication protocol, as pgoutput makes them.
#
# Each msg_*() function returns a hash:
#   data    the message
#   relids  the relations whose RELATION message must have been sent before
#   xid     set if the message belongs to a streamed transaction
# The head of FakePublisher.pm says what else a test may set there.
package PgOutput;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use WeftTest qw(major);

our @EXPORT = qw(
  $commit_time
  binary
  lsn_text
  msg_begin
  msg_begin_prepare
  msg_commit
  msg_commit_prepared
  msg_delete
  msg_insert
  msg_message
  msg_origin
  msg_prepare
  msg_relation
  msg_rollback_prepared
  msg_stream_abort
  msg_stream_commit
  msg_stream_prepare
  msg_stream_start
  msg_stream_stop
  msg_truncate
  msg_type
  msg_update
  parse_lsn
  tuple
  unchanged
);

# The commit time of a transaction, in microseconds since 2000; any time will do.
our $commit_time = 800_000_000_000_000;

# An LSN as the server writes it; from 19 on, with all zeros.
my $lsn_format = major() < 19 ? '%X/%X' : '%X/%08X';

sub lsn_text
{
	my ($lsn) = @_;
	return sprintf($lsn_format, $lsn >> 32, $lsn & 0xffffffff);
}

sub parse_lsn
{
	my ($text) = @_;
	my ($high, $low) = split qr{/}, $text;
	return hex($high) << 32 | hex($low);
}

# The columns of a tuple: a string is sent as text, undef as null; the two
# functions below make the rest.
sub binary
{
	my ($bytes) = @_;
	return \('b' . pack('N/a*', $bytes));
}

sub unchanged
{
	return \'u';
}

sub tuple
{
	my (@values) = @_;
	my $data = pack('n', scalar @values);

	foreach my $value (@values)
	{
		if    (!defined $value) { $data .= 'n' }
		elsif (ref $value)      { $data .= $$value }
		else                    { $data .= 't' . pack('N/a*', $value) }
	}
	return $data;
}

# Everything that belongs to a streamed transaction starts with its xid.
sub _change
{
	my ($type, $xid, $relids, $rest) = @_;
	my $data = $type . (defined $xid ? pack('N', $xid) : '') . $rest;

	return { data => $data, relids => $relids, xid => $xid };
}

sub msg_begin
{
	my (%p) = @_;
	return {
		data => pack('a Q> q> N',
			'B', $p{final_lsn},
			$p{time} // $commit_time,
			$p{xid}  // 731)
	};
}

sub msg_commit
{
	my (%p) = @_;
	return {
		data => pack('a C Q> Q> q>',
			'C', $p{flags} // 0,
			$p{commit_lsn}, $p{end_lsn},
			$p{time} // $commit_time)
	};
}

sub msg_origin
{
	my ($name, $lsn) = @_;
	return { data => pack('a Q> Z*', 'O', $lsn // 0, $name) };
}

# Columns: [ name, type OID, part of the key ]
sub msg_relation
{
	my ($relid, $schema, $name, $replident, $columns, %p) = @_;
	my $rest = pack('N Z* Z* a n',
		$relid, $schema, $name, $replident, scalar @$columns);

	$rest .= pack('C Z* N N', $_->[2] ? 1 : 0, $_->[0], $_->[1], 0xffffffff)
	  foreach @$columns;
	return _change('R', $p{xid}, [], $rest);
}

sub msg_type
{
	my ($oid, $schema, $name, %p) = @_;
	return _change('Y', $p{xid}, [], pack('N Z* Z*', $oid, $schema, $name));
}

sub msg_message
{
	my ($prefix, $content, %p) = @_;
	return _change('M', $p{xid}, [],
		pack('C Q> Z* N/a*', 1, $p{lsn} // 0, $prefix, $content));
}

sub msg_insert
{
	my ($relid, $new, %p) = @_;
	return _change('I', $p{xid}, [$relid],
		pack('N a', $relid, 'N') . tuple(@$new));
}

# Give "key" or "old" where the key changes or all columns are the key.
sub msg_update
{
	my ($relid, $new, %p) = @_;
	my $rest = pack('N', $relid);

	$rest .= 'K' . tuple(@{ $p{key} }) if $p{key};
	$rest .= 'O' . tuple(@{ $p{old} }) if $p{old};
	return _change('U', $p{xid}, [$relid], $rest . 'N' . tuple(@$new));
}

sub msg_delete
{
	my ($relid, %p) = @_;
	my $rest = pack('N', $relid);

	$rest .= $p{key} ? 'K' . tuple(@{ $p{key} }) : 'O' . tuple(@{ $p{old} });
	return _change('D', $p{xid}, [$relid], $rest);
}

# Options: 1 is CASCADE, 2 is RESTART IDENTITY
sub msg_truncate
{
	my ($relids, %p) = @_;
	return _change('T', $p{xid}, $relids,
		pack('N C N*', scalar @$relids, $p{options} // 0, @$relids));
}

sub msg_stream_start
{
	my ($xid, $first) = @_;
	return { data => pack('a N C', 'S', $xid, $first ? 1 : 0) };
}

sub msg_stream_stop
{
	return { data => 'E' };
}

sub msg_stream_commit
{
	my ($xid, %p) = @_;
	return {
		data => pack('a N C Q> Q> q>',
			'c', $xid,
			$p{flags} // 0, $p{commit_lsn},
			$p{end_lsn}, $p{time} // $commit_time)
	};
}

# The LSN is sent only if the subscriber has asked for streaming = parallel.
sub msg_stream_abort
{
	my ($xid, $subxid, %p) = @_;
	my $data = pack('a N N', 'A', $xid, $subxid);

	$data .= pack('Q> q>', $p{lsn}, $commit_time) if defined $p{lsn};
	return { data => $data };
}

sub msg_begin_prepare
{
	my ($gid, %p) = @_;
	return {
		data => pack('a Q> Q> q> N Z*',
			'b', $p{prepare_lsn},
			$p{end_lsn}, $p{time} // $commit_time,
			$p{xid} // 731, $gid)
	};
}

sub _prepare
{
	my ($type, $gid, %p) = @_;
	return {
		data => pack(
			'a C Q> Q> q> N Z*',
			$type, $p{flags} // 0,
			$p{prepare_lsn}, $p{end_lsn},
			$p{time} // $commit_time, $p{xid} // 731,
			$gid)
	};
}

sub msg_prepare        { return _prepare('P', @_) }
sub msg_stream_prepare { return _prepare('p', @_) }

sub msg_commit_prepared
{
	my ($gid, %p) = @_;
	return {
		data => pack(
			'a C Q> Q> q> N Z*',
			'K', $p{flags} // 0,
			$p{commit_lsn}, $p{end_lsn},
			$p{time} // $commit_time, $p{xid} // 731,
			$gid)
	};
}

sub msg_rollback_prepared
{
	my ($gid, %p) = @_;
	return {
		data => pack(
			'a C Q> Q> q> q> N Z*',
			'r', $p{flags} // 0,
			$p{prepare_end_lsn}, $p{end_lsn},
			$p{time} // $commit_time, $p{time} // $commit_time,
			$p{xid} // 731, $gid)
	};
}

1;
