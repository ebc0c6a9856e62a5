# Publishers that are simulated in Perl, so that the test chooses when their transactions commit.
# The subscription with the number i is named s<i>; its publisher is node i of a group.
package TimedPublisher;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PgOutput;
use Time::HiRes qw(time);
use WeftTest;

our @EXPORT =
  qw(microseconds subscribe_to publish publish_together arrived drop_subscription);

# The subscriber, and the FakePublisher that stands for all publishers.
my ($node, $pub);

# Now, as PostgreSQL counts.
sub microseconds { return int((time() - 946_684_800) * 1_000_000); }

# Subscribes the node to several publishers, all of which have the same tables.  Of each number i,
# "writers" says how many writers its subscription has.
sub subscribe_to
{
	my ($subscriber, $publisher, $tables, %writers) = @_;
	my $list = join ', ', map { "'$_'::regclass" } @$tables;

	($node, $pub) = ($subscriber, $publisher);
	foreach my $i (sort keys %writers)
	{
		query($node, <<EOS);
CREATE SUBSCRIPTION s$i CONNECTION '@{[ $pub->connstr ]}' PUBLICATION p
	WITH (connect = false, slot_name = 's$i', num_writers = $writers{$i}, detect_conflicts = on);
INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate)
	SELECT s.oid, t, 'r' FROM pg_subscription s, unnest(ARRAY[$list]) t WHERE subname = 's$i';
INSERT INTO weft.conflict_node VALUES ('s$i', $i);
ALTER SUBSCRIPTION s$i ENABLE;
EOS
	}
	return;
}

# One publisher's transaction, with its commit time in microseconds; returns it, without waiting
# for it.
sub publish
{
	my ($i, $time, @changes) = @_;

	local $PgOutput::commit_time = $time;
	return $pub->publish("s$i", $pub->transaction(@changes));
}

# Transactions of one publisher, each [time, change ...], that find each other in the ring: a session
# holds a row that the "first" of them changes, "blocker" being the condition for it, until the
# leader has received all of them.  The function "meanwhile" is called then.  Returns when they are
# applied.
sub publish_together
{
	my ($i, $options, @transactions) = @_;
	my $session = open_session($node);
	my $end;

	$session->query_safe(
		"BEGIN; SELECT FROM t WHERE $options->{blocker} FOR UPDATE");
	publish($i, @{ $options->{first} });
	writer_waits_for_lock($node);
	$end = publish($i, @$_)->{end_lsn} foreach @transactions;
	poll($node,
		"SELECT received_lsn >= '@{[ lsn_text($end) ]}' FROM weft.stat_subscription WHERE subname = 's$i'"
	);
	$options->{meanwhile}->() if $options->{meanwhile};
	$session->query_safe('COMMIT');
	$session->quit;
	arrived($i);
	return;
}

# Waits until everything has been applied that these publishers have published.
sub arrived
{
	foreach my $i (@_)
	{
		$pub->wait_for_flush("s$i") or die "s$i does not progress";
	}
	return;
}

# Drops subscriptions; their slots exist only in Perl.
sub drop_subscription
{
	query($node, <<EOS) foreach @_;
ALTER SUBSCRIPTION s$_ DISABLE;
ALTER SUBSCRIPTION s$_ SET (slot_name = NONE);
DROP SUBSCRIPTION s$_;
EOS
	return;
}

1;
