-- Switching over to a subscriber, and back.
--
-- The server that accepts writes is the source S, the other one the target T.  For
-- weft.switch_over, the publisher is S and this server T; for weft.switch_back, the reverse.
-- Both are called here, on the server that has the subscription; the other one may be a
-- stock server from version 15 on.
--
-- The steps, each a row in weft.switch_over_progress (src/switch/steps.c):
--
--	plan: runs the checks of weft.switch_over_plan; fails on errors.
--	arm_target, fence_target: T refuses all writes but those of replication, until it is opened.
--		This outlives a failure: until a switch-over succeeds or weft.switch_over_cancel is
--		called, T remains closed, so that clients that look for a server that accepts writes
--		find S alone.
--	arm_source: the same triggers on S, which let everything pass for the time being.
--	publish, create_slot, subscribe: what S will follow T with: a publication and a slot on T,
--		a disabled subscription on S (copy_data = false; origin = none from version 16 on).
--	compare: with verify => 'recent', compares all rows while S accepts writes.
--	catch_up: waits until T is close behind S, and the new slot close behind T.
--	sequences_before: those of T are set at or beyond those of S.
--	fence_source: S refuses writes; here their pause begins.  Provisional: only while this
--		session's connection to S lives, and until "max_pause" has been over for some seconds.
--		If the caller dies or is frozen, S accepts writes again by itself.
--	drain: T applies everything that S had when its fence was closed.
--	sequences: once more.
--	verify: the rows of both sides are compared, as the argument "verify" says.
--	position: the slot on T is advanced; what users write on T comes after that.
--	final: the fence of S becomes final.  The point of no return.
--	stop, open: T no longer follows S, and accepts writes; here the pause ends.
--	remove, follow: what T followed S with is removed, or kept disabled and without a slot;
--		S follows T.
--	disarm: drops the triggers of T.
--
-- A failure before "final" is undone: S continues, T remains closed.  From then on, calling
-- the procedure again completes the switch-over.  After the death of the caller or a crash,
-- calling it again undoes what was begun and begins anew, or completes it.
--
-- Only tables are fenced, and only those of the subscription, with their partitions and
-- parents (src/switch/fence.c).  Not fenced on S: sequences, large objects, tables that are not
-- published, DDL, and owners who drop the triggers "weft_switch_fence".  To open a server by
-- force, for instance when the other one is lost: DROP SCHEMA weft_switch CASCADE there.
--
-- A database has one fence, with one state.  So there is one switch-over of a database: a
-- second subscription to the same publisher, or a second subscriber, is refused as long as the
-- first one relies on a fence.
--
-- Rights.  Here, the caller owns the subscription and its tables, and has CREATE on the
-- database and, for a way back, the attribute REPLICATION.  There, the role of the
-- connection owns the tables, and has CREATE on the database; for a way back also
-- pg_create_subscription (on 15: it is a superuser), and REPLICATION for weft.switch_back.
--
-- With verify => 'counts', rows there are counted by the role that the subscription connects as, which
-- needs SELECT on the tables.
--
-- Connection strings are not stored here, nor shown by any message, view or log of the
-- other server; but the text of the CALL itself is in this server's pg_stat_activity, and in
-- its log if it fails or log_statement says so; the log may contain bound parameters, too.  Use a
-- password file if the server may, or read the string from a table:
--	CREATE TEMPORARY TABLE way (back text);
--	\copy way FROM file
--	DO $$ DECLARE w text; BEGIN SELECT back INTO w FROM way; CALL weft.switch_over('...', w); END $$;
-- On the other server, extensions that log nested commands (pgaudit, pg_stat_statements with
-- track = all), and event triggers, may see the string, unless the role there is a
-- superuser, whose session switches those extensions off.

-- What can be known before a switch-over to this server: one row for each problem, and one
-- row, of severity "ok", for each check that has found none.  Changes nothing on either server.
-- With "error", weft.switch_over would fail, or something would be lost; it refuses to begin.
-- A "warning" is for somebody who knows the application.  A remedy is SQL where possible, to be
-- run here unless its comment says "on the publisher".  What is "written by the publisher" is a
-- comment: read it before you run it anywhere.
--
-- reverse: whether the old publisher is to follow this server afterwards.
-- publisher_connection: as for weft.switch_over; it is the role whose rights there are checked.
--
-- What it cannot see: whether the publisher can connect to this server, what is stored
-- outside of the database, and sessions of other roles there without pg_read_all_stats.
CREATE FUNCTION weft.switch_over_plan(
	subscription name,
	reverse boolean DEFAULT true,
	publisher_connection text DEFAULT NULL,
	OUT check_name text,
	OUT object text,
	OUT severity text,
	OUT problem text,
	OUT remedy text)
RETURNS SETOF record
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_over_plan';

COMMENT ON FUNCTION weft.switch_over_plan(name, boolean, text) IS
	'tells what stands in the way of a switch-over, and what helps';

CREATE TABLE weft.switch_over_progress (
	subscription name NOT NULL,
	attempt bigint NOT NULL,
	direction text NOT NULL CHECK (direction IN ('over', 'back')),
	position integer NOT NULL,
	step text NOT NULL,
	started_at timestamptz NOT NULL,
	ended_at timestamptz,
	result text,
	PRIMARY KEY (subscription, attempt, position));

COMMENT ON TABLE weft.switch_over_progress IS
	'steps of switch-overs; writes are paused from the beginning of fence_source to the end of open';
GRANT SELECT ON weft.switch_over_progress TO PUBLIC;

-- The last attempt of each subscription (src/switch/switch_attempt.c).
CREATE TABLE weft.switch_attempt (
	subscription name NOT NULL,
	subid oid PRIMARY KEY,
	attempt bigint NOT NULL,
	back boolean NOT NULL,
	phase text NOT NULL CHECK (phase IN ('undone', 'begun', 'final', 'opened', 'done')),
	follow boolean NOT NULL,
	slot text,
	plugin text,
	two_phase boolean NOT NULL);

COMMENT ON TABLE weft.switch_attempt IS
	'the last attempt to switch over, of each subscription';
GRANT SELECT ON weft.switch_attempt TO PUBLIC;

-- Fails unless the caller owns the subscription.
CREATE FUNCTION weft.switch_begin(subscription name, direction text, reverse_connection text,
	publisher_connection text, verify text, timeout interval, max_pause interval,
	lock_timeout interval, sequence_margin bigint)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_begin';

COMMENT ON FUNCTION weft.switch_begin(name, text, text, text, text, interval, interval, interval, bigint) IS
	'begins a switch-over, or goes on with it; the procedures call it';

-- Fails unless this session has begun one.
CREATE FUNCTION weft.switch_step()
RETURNS boolean
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_switch_step';

COMMENT ON FUNCTION weft.switch_step() IS
	'the next part of a switch-over; the procedures call it, and commit';

-- reverse_connection: how the old server reaches this one, for the subscription that it gets;
-- NULL: it does not follow, and there is no way back.
-- publisher_connection: a connection string to the old server for a role that owns the
-- published tables, may create a schema, and, for the way back, a subscription
-- (pg_create_subscription from 16 on, a superuser on 15).  NULL: the subscription's own.
-- verify: what is compared; a difference undoes the switch-over.
--	none: nothing.
--	counts: during the pause, how many rows each table has.
--	recent: before the pause everything, as weft.compare_subscription does ("timeout" must suffice
--		for it); during the pause the number and the keys of all rows, and the contents of those
--		that have changed since (src/verify/rest_check.c argues that this finds everything).
--	full: during the pause everything, as weft.compare_subscription does.  The pause is as long as
--		the comparison: "max_pause" must suffice for it.
--	The comparison of "recent" and "full" remains in weft.comparison; its number is the result of
--	the step.  Both need the rights of weft.compare_subscription, and fail if a table of the
--	subscription cannot be compared; "recent" also fails if one is altered or truncated meanwhile.
-- timeout: for everything before the pause; max_pause: for how long writes may be paused.
-- lock_timeout: how long one attempt to lock all tables may hold up writers.
CREATE PROCEDURE weft.switch_over(
	subscription name,
	reverse_connection text,
	publisher_connection text DEFAULT NULL,
	verify text DEFAULT 'counts',
	timeout interval DEFAULT '10 min',
	max_pause interval DEFAULT '10 s',
	lock_timeout interval DEFAULT '300 ms',
	sequence_margin bigint DEFAULT 1000)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'over', reverse_connection, publisher_connection,
		verify, timeout, max_pause, lock_timeout, sequence_margin);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_over(name, text, text, text, interval, interval, interval, bigint) IS
	'makes this server the one that accepts writes, and lets the publisher follow it';

-- Run here as well, once the old server follows.  The subscription continues as before.
-- verify: none, counts or full; "recent" needs cuts, which a stock server cannot make.  "full"
-- compares counts and hashes of all rows during the pause, and tells which tables differ, but not
-- which rows.  It connects to the other server as the subscription does.
CREATE PROCEDURE weft.switch_back(
	subscription name,
	publisher_connection text DEFAULT NULL,
	verify text DEFAULT 'counts',
	timeout interval DEFAULT '10 min',
	max_pause interval DEFAULT '10 s',
	lock_timeout interval DEFAULT '300 ms',
	sequence_margin bigint DEFAULT 1000)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'back', NULL, publisher_connection,
		verify, timeout, max_pause, lock_timeout, sequence_margin);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_back(name, text, text, interval, interval, interval, bigint) IS
	'makes the old server the one that accepts writes again, and lets this one follow it';

-- Before the point of no return: undoes everything, and opens the target for writes as it was
-- before the first attempt.
CREATE PROCEDURE weft.switch_over_cancel(
	subscription name,
	publisher_connection text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM weft.switch_begin(subscription, 'cancel', NULL, publisher_connection,
		'none', '10 min', '10 s', '300 ms', 0);
	COMMIT;
	WHILE weft.switch_step() LOOP
		COMMIT;
	END LOOP;
END $$;

COMMENT ON PROCEDURE weft.switch_over_cancel(name, text) IS
	'undoes a switch-over that did not succeed, and lets this server accept writes again';
