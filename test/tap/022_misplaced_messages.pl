# Bad input: valid messages in the wrong place, and damage within streamed and
# prepared transactions.  BadInputTest.pm says what is expected of the subscriber.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use BadInputTest;
use PgOutput;
use Test::More;
use WeftTest;

start_subscriber();

create_subscription('sub', '');

# The functions are called with BEGIN, two rows and COMMIT, and return the index of
# the invalid message, and all messages.
my @lsns =
  (prepare_lsn => 0xf000000, commit_lsn => 0xf000000, end_lsn => 0xf000030);
out_of_order('alone', 'COMMIT', sub { return (0, $_[3]) });
out_of_order('without BEGIN', 'INSERT', sub { return (0, @_[ 1, 3 ]) });
out_of_order('without BEGIN',
	'TRUNCATE', sub { return (0, msg_truncate([$t_rel]), $_[3]) });
out_of_order('after BEGIN', 'BEGIN', sub { return (2, @_[ 0, 1, 0, 2, 3 ]) });
out_of_order('without a transaction',
	'ORIGIN', sub { return (0, msg_origin('x')) });
out_of_order('after a change',
	'ORIGIN', sub { return (2, @_[ 0, 1 ], msg_origin('x'), @_[ 2, 3 ]) });
out_of_order(
	'after BEGIN',
	'STREAM START',
	sub {
		return (
			2,
			@_[ 0, 1 ],
			msg_stream_start(999, 1),
			log_row('damaged!', xid => 999),
			msg_stream_stop(), @_[ 2, 3 ]);
	});
out_of_order('alone', 'STREAM STOP', sub { return (0, msg_stream_stop()) });
foreach (
	[ 'BEGIN PREPARE', msg_begin_prepare('x', @lsns) ],
	[ 'COMMIT PREPARED', msg_commit_prepared('x', @lsns) ],
	[ 'PREPARE', msg_prepare('x', @lsns) ],
	[
		'ROLLBACK PREPARED',
		msg_rollback_prepared('x', @lsns, prepare_end_lsn => 1)
	],
	[ 'STREAM ABORT', msg_stream_abort(999, 999) ],
	[ 'STREAM COMMIT', msg_stream_commit(999, @lsns) ],
	[ 'STREAM PREPARE', msg_stream_prepare('x', @lsns) ],
	[ 'STREAM STOP', msg_stream_stop() ])
{
	my ($type, $message) = @$_;
	out_of_order('after BEGIN', $type,
		sub { return (2, @_[ 0, 1 ], $message, @_[ 2, 3 ]) });
}
out_of_order('alone', 'PREPARE', sub { return (0, msg_prepare('x', @lsns)) });
out_of_order('after BEGIN PREPARE',
	'COMMIT', sub { return (2, msg_begin_prepare('x', @lsns), @_[ 1, 3 ]) });
run_cases();
has_all_writers();
drop_subscription();

####
#### Streamed transactions
####

foreach my $streaming ('on', 'parallel')
{
	create_subscription("streaming_$streaming", ", streaming = $streaming");
	my $xid = 1000;
	my $streamed = sub {
		my ($what, %lsns) = @_;
		return (
			msg_stream_start($xid, 1),
			log_row($what, xid => $xid),
			log_row($what, xid => $xid + 1),
			msg_stream_stop(),
			msg_stream_start($xid, 0),
			log_row($what, xid => $xid),
			msg_stream_stop(),
			msg_stream_commit($xid, %lsns));
	};
	my @abort = $streaming eq 'parallel' ? (lsn => 0xf000000) : ();

	good_transaction(messages => $streamed);
	run_cases();

	# Version 18 sends this for a transaction of which it has sent nothing; the native
	# worker fails, or even crashes.
	if (weft())
	{
		good_transaction(
			messages => sub {
				return (msg_stream_abort(12345, 12345, @abort),
					$streamed->(@_));
			});
		run_cases();
	}

	truncated('STREAM START', 0, messages => $streamed);
	truncated('INSERT', 2, messages => $streamed, any_lsn => 1);
	truncated('STREAM COMMIT', -1, messages => $streamed);

	my @streamed = (messages => $streamed);
	out_of_order('after STREAM START',
		'STREAM START', sub { return (2, @_[ 0, 1, 0 .. 7 ]) }, @streamed);
	out_of_order('after STREAM START',
		'BEGIN',
		sub { return (2, @_[ 0, 1 ], msg_begin(final_lsn => 0xf000000)) },
		@streamed);
	out_of_order('after STREAM START',
		'COMMIT', sub { return (2, @_[ 0, 1 ], msg_commit(@lsns)) },
		@streamed);
	out_of_order(
		'after STREAM START',
		'STREAM COMMIT',
		sub { return (2, @_[ 0, 1, 7 ]) }, @streamed);
	out_of_order(
		'after STREAM START',
		'STREAM ABORT',
		sub { return (2, @_[ 0, 1 ], msg_stream_abort($xid, $xid, @abort)) },
		@streamed);
	out_of_order('after STREAM START',
		'PREPARE', sub { return (2, @_[ 0, 1 ], msg_prepare('x', @lsns)) },
		@streamed);
	out_of_order('after STREAM STOP',
		'STREAM STOP', sub { return (4, @_[ 0 .. 3, 3 ]) }, @streamed);
	out_of_order('transaction 0',
		'STREAM START', sub { return (0, msg_stream_start(0, 1)) },
		@streamed);
	out_of_order(
		'unknown transaction',
		'STREAM COMMIT',
		sub { return (0, msg_stream_commit(12345, @lsns)) }, @streamed);
	out_of_order(
		'unknown transaction',
		'STREAM PREPARE',
		sub { return (0, msg_stream_prepare('x', @lsns, xid => 12345)) },
		@streamed);
	out_of_order('without a first part',
		'STREAM START', sub { return (0, @_[ 4 .. 7 ]) }, @streamed);
	run_cases();
	drop_subscription();
}

####
#### Prepared transactions
####

create_subscription('two_phase', ', two_phase = true');
my $prepared = sub {
	my ($what, %lsns) = @_;
	my @prepare = (
		prepare_lsn => $lsns{commit_lsn} - 0x1000,
		end_lsn => $lsns{commit_lsn} - 0x800,
		xid => $lsns{xid});
	return (
		msg_begin_prepare('x', @prepare),
		log_row($what),
		msg_prepare('x', @prepare),
		msg_commit_prepared('x', %lsns));
};
truncated('BEGIN PREPARE', 0, messages => $prepared);
truncated('PREPARE', 2, messages => $prepared);
run_cases();
drop_subscription();

stop_subscriber();
done_testing();
