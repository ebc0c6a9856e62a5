# Bad input: damaged batches of the output plugin weft, compressed or not.
# BadInputTest.pm says what is expected of the subscriber.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use BadInputTest;
use List::Util qw(min);
use PgOutput;
use PostgreSQL::Test::Utils;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

# Two subscriptions: one whose publisher supports compression, and one whose publisher
# has an older Weft.
start_subscriber(
	answers => [
		qr/^SELECT confirmed_flush_lsn/ =>
		  [ [ 'confirmed', 'pid', 'end' ], [ undef, undef, undef ] ],
		qr/slot_name = 'lz4'/ => [ [ 'plugin', 'lz4' ], [ 'weft', 'true' ] ],
		qr/slot_name = 'old'/ => [ [ 'plugin', 'lz4' ], [ 'weft', undef ] ]
	]);
my $has_lz4 = query($node,
	"SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'weft.compression'"
) eq 't';
set_conf($node, 'weft.compression' => 'lz4') if $has_lz4;

####
#### Batches
####

my $LZ4 = 0x02;

# A message as it is stored in a batch.
sub in_batch
{
	my ($lsn, $data) = @_;
	return pack('N/a*', pack('a Q> Q> q>', 'w', $lsn, $lsn, 0) . $data);
}

sub gathered
{
	my (@messages) = @_;
	return join '', map { in_batch($_->{lsn}, $_->{data}) } @messages;
}

# The contents of a batch, after its type.
sub plain
{
	my ($data) = @_;
	return pack('C', 0) . $data;
}

sub claiming
{
	my ($length, $block) = @_;
	return pack('C N', $LZ4, $length) . $block;
}

sub compressed
{
	my ($data) = @_;
	return claiming(length $data, lz4($data));
}

# How LZ4 encodes the rest of a length that does not fit into four bits.
sub lz4_more
{
	my ($rest) = @_;
	return '' if $rest < 15;
	$rest -= 15;
	return "\xff" x int($rest / 255) . pack('C', $rest % 255);
}

# A sequence of an LZ4 block: literals and, except in the last one, a match of this
# length at this distance.
sub lz4
{
	my ($literals, $offset, $again) = @_;
	my $length = length $literals;
	my $match = ($again // 4) - 4;

	return
		pack('C', min($length, 15) << 4 | min($match, 15))
	  . lz4_more($length)
	  . $literals
	  . (defined $offset ? pack('v', $offset) . lz4_more($match) : '');
}

sub batch
{
	my ($lsn, $behind_type) = @_;
	return {
		raw => pack('a Q> Q> q> a', 'w', $lsn, $lsn, $commit_time, '#')
		  . $behind_type,
		lsn => $lsn
	};
}

# A transaction that is sent as one batch.
sub good_batch
{
	my ($form) = @_;
	my $change = insert_t(new_key(), 'in a batch');
	my $transaction = $pub->transaction($change);
	my ($begin, undef, $commit) = @{ $transaction->{messages} };
	my $relation = {
		%{ msg_relation($t_rel, 'public', 't', 'd', \@t_columns) },
		lsn => $change->{lsn}
	};

	$transaction->{messages} = [
		batch(
			$commit->{lsn},
			$form->(gathered($begin, $relation, $change, $commit)))
	];
	return $pub->publish($sub, $transaction);
}

# The second half of the transaction is sent as a batch.  The function gets the messages
# and returns the contents of the batch, after its type.
sub damaged_batch
{
	my ($name, $form, %p) = @_;
	return damaged_transaction(
		$name,
		expect => protocol_error($p{type} // '', any_lsn => 1),
		damage => sub {
			my ($messages) = @_;
			my @rest = splice @$messages, 2;
			my $batch = batch($rest[-1]{lsn}, $form->(gathered(@rest)));

			push @$messages, $batch;
			return $batch;
		});
}

# Errors in the messages themselves, whichever way they are sent.
sub damaged_contents
{
	my ($what, $form) = @_;

	foreach my $length (0, 1, 25, 10000, 0x7fffffff, 0x80000000, 0xffffffff)
	{
		damaged_batch("$what: a message of $length bytes",
			sub { return $form->(pack('N', $length) . substr($_[0], 4)) });
	}
	damaged_batch(
		"$what: the last message is cut off",
		sub { return $form->(substr($_[0], 0, -3)) });
	damaged_batch("$what: a message that is none",
		sub { return $form->(pack('N/a*', 'k' . "\0" x 50)) });
	damaged_batch(
		"$what: a batch in a batch",
		sub { return $form->(in_batch(1, "#\0$_[0]")) },
		type => '??? (35)');
	return;
}

####
#### A publisher that knows compression
####

my $log_start = -s $node->logfile;
create_subscription('lz4', '');
good_transaction();
good_batch(\&plain);
damaged_contents('not compressed', \&plain);
damaged_batch('no flags', sub { return '' });
damaged_batch('flags 0x08', sub { return pack('C', 0x08) . $_[0] });
damaged_batch('flags 0xff', sub { return pack('C', 0xff) . $_[0] });

if ($has_lz4)
{
	good_batch(\&compressed);
	damaged_contents('compressed', \&compressed);

	foreach my $length (0 .. 3)
	{
		damaged_batch("$length bytes of the length",
			sub { return pack('C', $LZ4) . "\0" x $length });
	}
	foreach my $length (0, 10, 0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000,
		0xffffffff)
	{
		damaged_batch("$length bytes claimed",
			sub { return claiming($length, lz4($_[0])) });
	}
	foreach my $difference (-1, 1, 10000)
	{
		damaged_batch(
			"$difference bytes more claimed",
			sub {
				return claiming(length($_[0]) + $difference, lz4($_[0]));
			});
	}
	for (my $cut = 1; $cut < 150; $cut += 7)
	{
		damaged_batch(
			"$cut bytes cut off",
			sub {
				my $block = lz4($_[0]);
				return claiming(length $_[0],
					substr($block, 0, $cut < length $block ? -$cut : 0));
			});
	}
	damaged_batch('bytes behind the block',
		sub { return claiming(length $_[0], lz4($_[0]) . 'xyz') });
	damaged_batch(
		'bytes from before the block',
		sub {
			return claiming(length($_[0]) + 40,
				lz4('x' x 20, 21, 20) . lz4($_[0]));
		});
	damaged_batch('more bytes than were claimed',
		sub { return claiming(1000, lz4('x', 1, 1000000) . lz4($_[0])) });
	damaged_batch('noise',
		sub { return claiming(1000, "\xf7\x13\xaa\x5c" x 100) });
}

good_transaction();
run_cases();
has_all_writers();

my $asked = $pub->results('lz4')->{start_replication};
like($asked, qr/weft_batch_version '3'/, 'batches are asked for');
SKIP:
{
	skip 'Weft was built without LZ4', 3 unless $has_lz4;
	like($asked, qr/weft_compression 'lz4'/, 'and compression');
	is( query(
			$node,
			"SELECT output_plugin FROM weft.stat_subscription WHERE subname = 'lz4'"
		),
		'weft (lz4)',
		'the view says so');
	unlike(
		slurp_file($node->logfile, $log_start),
		qr/sent uncompressed|out of memory/,
		'no warning that changes are sent uncompressed');
}
drop_subscription();

####
#### A publisher that does not
####

$log_start = -s $node->logfile;
create_subscription('old', '');
good_transaction();
good_batch(\&plain);
damaged_batch('compressed, though that was not asked for', \&compressed);
run_cases();

$asked = $pub->results('old')->{start_replication};
like($asked, qr/weft_batch_version '3'/, 'batches are asked for');
unlike($asked, qr/weft_compression/, 'but not compression');
is( query(
		$node,
		"SELECT output_plugin FROM weft.stat_subscription WHERE subname = 'old'"
	),
	'weft',
	'the view says so');
like(
	slurp_file($node->logfile, $log_start),
	qr/LOG:  .*changes for subscription "old" are sent uncompressed\n.*DETAIL:  The publisher does not support LZ4\./,
	'and so does the log') if $has_lz4;
drop_subscription();

stop_subscriber();
done_testing();
