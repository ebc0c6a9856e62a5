# Schema changes that an event trigger captures, if the client has sent several statements at once: each
# one's text is found.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use CaptureTest;
use Test::More;
use WeftTest;

plan skip_all => 'this is about Weft alone' unless weft();

# Statements of which the client sends several at once.
sub test_messages
{
	send_once(<<'EOS');
/* ; CREATE TABLE no (a int); */ CREATE TEMP TABLE before_it (id int);
CREATE TABLE m1 (id int, a text DEFAULT ';'' CREATE TABLE no (id int);'); -- CREATE TABLE no2 ();
INSERT INTO m1 VALUES (1, $$;$$), (2, $x$ $$;' $x$), (3, E'\'; CREATE TABLE no (id int)');
CREATE ROLE somebody; DROP ROLE somebody;
CREATE TABLE IF NOT EXISTS m1 (id int);
CREATE TABLE "m;2""" ("a$$b" int);;
ALTER TABLE m1 ADD b int DEFAULT 3
EOS
	is(last_statement(), 'ALTER TABLE m1 ADD b int DEFAULT 3', 'the last');
	send_once(
		'BEGIN; CREATE TABLE m3 (id int); ROLLBACK; CREATE TABLE m4 (id int); BEGIN; CREATE TABLE m5 (id int); COMMIT; BEGIN; SAVEPOINT s; CREATE TABLE m6 (id int); ROLLBACK TO s; CREATE TABLE m7 (id int); DROP TABLE m5; COMMIT'
	);
	send_once(
		'SELECT 1 INTO TEMP into_temp; DROP TABLE IF EXISTS missing; CREATE TABLE m8 (id int)'
	);
	send_once(<<'EOS');
CREATE TABLE m9 (a text DEFAULT E'it''s; \' -- \\'
	'\'; x'); CREATE TABLE m10 (x$y$z int, b int /* /* */ ; */); ALTER TABLE m10 ADD c text DEFAULT U&'\0041;', ADD d int
EOS
	query($pub, <<'EOS') if major() < 19;
SET standard_conforming_strings = off;
SET escape_string_warning = off;
CREATE TABLE strings (a text DEFAULT 'a\'; x') \; CREATE TABLE strings2 (a text DEFAULT '\\');
EOS
	all_the_same('several statements in one message');
	is( query(
			$pub, q{SELECT count(*) FROM pg_class WHERE relname ~ '^(no|m)'}),
		7,
		'... all of them are there');

	refused(
		'CREATE TABLE lost (id int); DISCARD SEQUENCES; CREATE TABLE lost2 (id int)',
		qr/cannot replicate CREATE TABLE because its text is not known.*HINT: /s
	);
	refused(
		q{SET standard_conforming_strings = off; CREATE TABLE lost (a text DEFAULT 'a\')},
		qr/cannot replicate CREATE TABLE because its text is not known/
	) if major() < 19;

	# Strings that are hard to read, at random.
	srand(1);
	foreach my $i (1 .. 25)
	{
		my $message = random_message($i);

		note($message);
		send_once($message);
	}
	all_the_same('messages at random');
	return;
}

sub pick
{
	return $_[ rand @_ ];
}

sub random_message
{
	my ($number) = @_;
	my $text = sub {
		pick(
			q{'a;b'}, q{'it''s; '},
			q{E'\\';\\\\'}, q{$$;'$$},
			q{$x$ $$ $y$; $x$}, q{'--'},
			q{'/*'}, q{U&'\0041;'},
			q{E''';'}, q{$a1_b$;$a$;$a1_b$},
			q{''});
	};
	my $comment = sub {
		pick(
			' ', "\n",
			'/* ; \' " $$ */',
			"-- ' ; \$\$ /*\n",
			'/*/* ; */ */', '/**/', "\t");
	};
	my @statements;

	foreach my $i (1 .. 1 + int rand 6)
	{
		my $table = pick(
			"r${number}_$i", "\"r;$number\"\"$i\"",
			"\"\$\$$number $i\"", "r\$x\$${number}_$i");
		my $create =
			'CREATE'
		  . $comment->() . ' '
		  . pick('TABLE', 'TABLE IF NOT EXISTS')
		  . $comment->()
		  . " $table (id int DEFAULT (1), \"c;\" text DEFAULT "
		  . $text->() . ')';

		push @statements,
		  pick(
			$create,
			"$create; ALTER TABLE $table ADD x text DEFAULT " . $text->(),
			"$create; INSERT INTO $table VALUES (1, " . $text->() . ')',
			"BEGIN; $create; ROLLBACK",
			"$create; DROP TABLE $table",
			"CREATE TEMP TABLE t$i (a text DEFAULT "
			  . $text->()
			  . "); DROP TABLE t$i",
			"SELECT " . $text->(),
			"DO \$do\$ BEGIN EXECUTE \$e\$ $create \$e\$; END \$do\$");
	}
	return join ';' . $comment->(), @statements;
}

for_each_publisher(
	sub {
		begin_capture();
		test_messages();
	});
done_testing();
