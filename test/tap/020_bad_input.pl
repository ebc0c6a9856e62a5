# Bad input: whatever a publisher sends, the subscriber says clearly what is
# wrong with it, does not crash, applies nothing of the transaction, loses none
# of those before it, and goes on by itself once the input is right.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use FakePublisher;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Storable qw(dclone);
use Test::More;
use WeftTest;

# Relation ids of the publisher, and a few type OIDs.
my ($log_rel, $t_rel, $other_rel, $unknown_rel) =
  (16001, 16002, 16003, 99999);
my ($int4, $text) = (23, 25);
my @t_columns = ([ 'a', $int4, 1 ], [ 'b', $text, 0 ]);

my $node = new_subscriber(
	'subscriber',
	conf => q{
autovacuum = off
dynamic_shared_memory_type = mmap
weft.ring_size = 1MB
log_error_verbosity = verbose
max_prepared_transactions = 10
wal_retrieve_retry_interval = 1ms
});
my $pub = FakePublisher->new(log => $node->logfile);
my $postmaster_pid = postmaster_pid();

# "log" takes what each transaction has to say, and nothing ever leaves it: a
# row of a damaged transaction that was visible for a moment is there for ever,
# and one that was applied twice is there twice.
query($node, <<'EOC');
CREATE TABLE log (n int, what text);
CREATE TABLE t (a int PRIMARY KEY, b text);
CREATE VIEW v AS SELECT * FROM t;
EOC
$pub->relation($log_rel, 'public', 'log', 'd',
	[ [ 'n', $int4, 0 ], [ 'what', $text, 0 ] ]);
$pub->relation($t_rel, 'public', 't', 'd', \@t_columns);

# What the tables are to hold in the end.
my (%log, %t);

####
#### The cases
####

# The subscription under test, its cases, and their number over all.
my ($sub, @cases);
my $attempts = 0;
my $number = 0;

sub postmaster_pid
{
	return (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
}

# The subscriptions have no tables to copy: all are there and ready.
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

sub log_row
{
	my ($what, %p) = @_;
	return msg_insert($log_rel, [ $number, $what ], %p);
}

# A good transaction, which is to be applied.
sub good_transaction
{
	$number++;
	$log{"$number|before"} = 1;
	$pub->publish($sub, $pub->transaction(log_row('before')));
	return;
}

# Publishes a transaction that holds the changes and a row of the log before
# and after them.  At first, "damage" is done to its messages: BEGIN, row,
# changes, row, COMMIT.  The damaged one is the third; if another one is, then
# "damage" returns it.  The error must be as "expect" says.
#
# "native" is set if the native worker says the same.
#
# With "messages", a function of the text for the log, the transaction has just
# the messages that this returns.
sub damaged_transaction
{
	my ($name, %p) = @_;
	good_transaction();

	my $build = $p{messages} // sub {
		my ($what) = @_;
		return (log_row($what), @{ dclone($p{changes} // []) },
			log_row($what));
	};
	my $lsn = $pub->{next_lsn};
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

	$log{"$number|repaired"} =
	  grep { ($_->{data} // '') =~ /repaired/ } @{ $good->{messages} };
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

# Changes of "t", which take note of what the table is to hold.
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

# The log as a list of reports: what was said by one process at a time.
sub reports
{
	my ($log) = @_;
	my (@reports, %last, $field);

	foreach my $line (split /\n/, $log)
	{
		if ($line =~ /^\S+ \S+ \S+ \[(\d+)\] .*?\b([A-Z]+[0-9]?):  (.*)/)
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

# Each of these makes a function that tells whether a report says what it
# should say about a case.

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

# A value is not text.  Who finds that, leader, writer, or the type's own input
# function, may know the message's LSN or the transaction's only.
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

# The message has not even a header that says where it stands.
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

# The message is well-formed, but what it says cannot be done.
sub apply_error
{
	my ($regexp, $type) = @_;
	$type //= 'INSERT';
	return sub {
		my ($report, $case) = @_;
		my $lsn = lsn_text($case->{commit_lsn});
		return
			 $report->{severity} eq 'ERROR'
		  && $report->{message} =~ $regexp
		  && ($report->{CONTEXT} // '') =~
		  /processing remote data for replication origin "pg_\d+" during message type "\Q$type\E".*, finished at \Q$lsn\E/;
	};
}

# The connection is at an end.
sub connection_report
{
	my ($regexp) = @_;
	return sub { return $_[0]{message} =~ $regexp };
}

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

# Lets the subscription work through all that is published, and checks what has
# become of it.
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
		msg_insert($t_rel, [ binary(pack('N', 11)), binary('binary') ])));
delete $t{7};
$t{11} = 'binary';
run_cases();

my $start_replication = $pub->results('sub')->{start_replication};
like(
	$start_replication,
	qr/proto_version '4'.*publication_names '"p"'/,
	'the subscriber asks for what it should');
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

damaged_transaction(
	'message without content',
	expect => header_error(),
	damage => sub { $_[0][1]{data} = ''; return $_[0][1] });

truncated('BEGIN', 0);
truncated('COMMIT', -1);
truncated('INSERT', 2,
	next => sub { return (changes => [ insert_t(100 + $number, 'xy') ]) });
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

# Replaces a whole message.  The native worker would not see what is wrong with
# it, or fail an assertion, unless "native" is set.
sub absurd
{
	my ($name, $type, $data, %p) = @_;
	return unless weft() || $p{native};
	damaged_transaction(
		"$type: $name",
		changes => [ insert_t(10000 + $number, 'good') ],
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

# Text that is none.
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

####
#### Messages that are right, in a place that is not
####

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

# The functions get BEGIN, two rows and COMMIT, and return which message is
# the one that is wrong, and all messages.
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

####
#### What only the subscriber's tables can tell
####

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

# The relation is announced, as pgoutput does, before its first change.
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
		changes => [ insert_t(30000 + $number, 'good') ],
		native => 1,
		expect => connection_report($regexp),
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
SKIP:
{
	skip 'about Weft', 1 unless weft();
	poll(
		$node,
		q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'weft writer'},
		'4');
	pass('there are as many writers as there should be');
}
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

	$number++;
	$log{"$number|before"} = 3;
	$pub->publish($sub, $pub->transaction(sub { $streamed->('before', @_) }));
	run_cases();

	# Version 18 sends this for what it has never sent anything of.
	$number++;
	$log{"$number|before"} = 3;
	$pub->publish(
		$sub,
		$pub->transaction(
			sub {
				return (msg_stream_abort(12345, 12345, @abort),
					$streamed->('before', @_));
			}));
	run_cases();

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

####
#### The server has come through this
####

poll(
	$node,
	q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('weft writer', 'logical replication apply worker')},
	'0');
is(postmaster_pid(), $postmaster_pid, 'the server has not been restarted');
unlike(
	slurp_file($node->logfile),
	qr/PANIC|TRAP:|was terminated by signal|server process/,
	'no process has crashed');

# Not one segment for each time that a worker has been started.
cmp_ok(query($node, q{SELECT count(*) FROM pg_ls_dir('pg_dynshmem')}),
	'<', 10, 'shared memory is given back');

$pub->stop;
$node->stop;
done_testing();
