# What the output plugins send, as lists of [position, message], and comparisons of such lists.
package PluginMessages;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PgOutput qw(lsn_text);
use Test::More;

our @EXPORT = qw(
  parse_batches
  same_messages
  with_relations
  without_aborted
);

# Weft's messages, from consecutive batches; some have no known position.
sub parse_batches
{
	my ($output) = @_;
	my $offset = 0;
	my @messages;

	while ($offset < length $output)
	{
		die "no batch at $offset" if substr($output, $offset, 1) ne '#';
		$offset += 2;
		while (substr($output, $offset, 1) ne "\n")
		{
			my ($length, $type, $high, $low) = unpack "N a N N",
			  substr $output, $offset, 13;
			die "no message at $offset" if $type ne 'w' || $length < 26;
			push @messages,
			  [
				lsn_text($high << 32 | $low),
				substr $output,
				$offset + 4 + 25,
				$length - 25
			  ];
			$offset += 4 + $length;
			die "batch without an end" if $offset >= length $output;
		}
		$offset++;
	}
	return @messages;
}

sub show
{
	my ($message) = @_;
	return 'nothing' unless $message;
	return "$message->[0] "
	  . join '',
	  map { /[[:print:]]/ ? $_ : sprintf '\\x%02x', ord } split //,
	  substr $message->[1], 0, 300;
}

# Passes if there are messages, the same in both lists, and at the same positions where they are known.
sub same_messages
{
	my ($what, $theirs, $ours) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($i, %types) = (0);

	$types{ substr $_->[1], 0, 1 }++ foreach @$theirs;
	$i++
	  while $i < @$theirs
	  && $i < @$ours
	  && $theirs->[$i][1] eq $ours->[$i][1]
	  && ( $ours->[$i][0] eq lsn_text(0)
		|| $ours->[$i][0] eq $theirs->[$i][0]);
	return pass("$what: the same "
		  . @$theirs
		  . ' messages: '
		  . join(' ', map { "$types{$_} $_" } sort keys %types))
	  if @$theirs && $i == @$theirs && $i == @$ours;

	fail("$what: message $i differs");
	diag("pgoutput: " . show($theirs->[ $i > 0 ? $i - 1 : 0 ])) if $i > 0;
	diag("pgoutput: " . show($theirs->[$i]));
	diag("ours:     " . show($ours->[$i]));
	return;
}

# Each row with the RELATION message that applies to it, instead of separate RELATION
# messages: these are sent again at other times if invalidations come from concurrent
# sessions.
sub with_relations
{
	my (%relation, @result);

	foreach my $message (@_)
	{
		my ($lsn, $data) = @$message;
		my ($type, $relid) = unpack 'a N', $data . "\0" x 4;

		$relation{$relid} = $data if $type eq 'R';
		next if $type =~ /[RY]/;
		$data .= $relation{$relid} // 'no RELATION' if $type =~ /[IUD]/;
		push @result, [ $lsn, $data ];
	}
	return \@result;
}

# What transactions in progress amount to: each row with the RELATION message that the
# subscriber has for it, without the rows of those that were aborted, and without the limits of
# parts.  How far an aborted transaction is decoded depends on which catalogs are read.
sub without_aborted
{
	my (%aborted, %relation, @result);
	my $stream;

	foreach my $message (@_)
	{
		my ($type, undef, $xid) = unpack 'a N N', $message->[1] . "\0" x 8;
		$aborted{$xid} = 1 if $type eq 'A';
	}
	foreach my $message (@_)
	{
		my ($lsn, $data) = @$message;
		my ($type, $xid, $relid) = unpack 'a N N', $data . "\0" x 8;

		$stream = $type eq 'S' ? $xid : undef if $type =~ /[SE]/;
		# The subscriber may have dropped what it had learned in that part.
		delete $relation{$xid} if $type eq 'A';
		if (defined $stream)
		{
			$relation{$stream}{$relid} = substr $data, 5 if $type eq 'R';
			next
			  if $type =~ /[SYR]/ || $aborted{$stream} || $aborted{$xid};
			$data .= $relation{$stream}{$relid} // 'no RELATION'
			  if $type =~ /[IUD]/;
		}
		push @result, [ $lsn, $data ] unless $type =~ /[AE]/;
	}
	return \@result;
}

1;
