# weft.repair(): a row that the publisher cannot send is reported, and the others are repaired.
#
# A row whose text is longer than a message can be (1 GB) is such a row, but takes long to make
# (114_compare_large.pl does it with WEFT_MEGABYTES=600).  Here it has a character
# that the subscriber's encoding lacks.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use RepairTest;
use Test::More;
use WeftTest;

plan skip_all => 'about Weft alone' unless weft();

my $pub = new_publisher('publisher');
my $sub = new_subscriber('subscriber');
my $connstr = $pub->connstr('windows');

query($pub,
	"CREATE DATABASE windows ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0"
);
$pub->safe_psql('windows', <<'EOS');
CREATE TABLE t (id int PRIMARY KEY, x text);
INSERT INTO t SELECT i, 'right' FROM generate_series(1, 20) i;
UPDATE t SET x = chr(129) WHERE id = 7;
CREATE PUBLICATION pub FOR TABLE t;
EOS
query($sub, <<"EOS");
CREATE TABLE t (id int PRIMARY KEY, x text);
INSERT INTO t SELECT i, 'wrong' FROM generate_series(1, 20) i;
CREATE SUBSCRIPTION sub CONNECTION \$c\$$connstr\$c\$ PUBLICATION pub WITH (copy_data = false);
EOS
$pub->wait_for_catchup('sub');
my ($ret, undef, $err) =
  $pub->psql('windows', "SET client_encoding = 'UTF8'; TABLE t");
like(
	$err,
	qr/has no equivalent in encoding "UTF8"/,
	'the publisher cannot send a row');

my $id =
  plant($sub, 'sub', map { [ 't', 'different', qq({"id": "$_"}) ] } 1 .. 20);
like(
	repair($sub, $id),
	qr/comparison $id: 19 repaired, 0 vanished, 1 not repaired/,
	'the others are repaired');
is(query($sub, 'SELECT id, x FROM t WHERE x <> \'right\''),
	'7|wrong', 'the row stays as it was');
like(
	query(
		$sub,
		"SELECT repair_result, repair_reason FROM weft.difference WHERE comparison = $id AND key ->> 'id' = '7'"
	),
	qr/^failed\|could not read rows of table public\.t from the publisher: .*has no equivalent in encoding "UTF8"/,
	'and why is recorded');
like(
	repair($sub, $id),
	qr/comparison $id: 19 repaired, 0 vanished, 1 not repaired/,
	'it can be tried again');

done_testing();
