-- Switching over to a subscriber, and back.
--
-- The server that accepts writes is the source S, the other one the target T.  For
-- weft.switch_over, the publisher is S and this server T; for weft.switch_back, the reverse.
-- Both are called here, on the server that has the subscription; the other one may be a
-- stock server from version 15 on.
--
-- The steps, each a row in weft.switch_over_progress:
--
--  1. begin: takes the lock of switch-overs on both servers; undoes what is left of an attempt
--     that did not come to its end, or continues from step 11 on.
--  2. plan: runs the checks of weft.switch_over_plan; fails on errors.
--  3. arm: schema "weft_switch" on both servers, with a sequence that is the state of the
--     fence, and an ENABLE ALWAYS statement trigger on each table.  A table at a time.
--  4. fence_target: T refuses all writes but those of replication, until it is opened.  This
--     outlives a failure: until a switch-over succeeds or weft.switch_over_cancel is called, T
--     remains closed, so that clients that look for a server that accepts writes find S alone.
--  5. prepare: what T needs to be followed: publication and slot on T, and a disabled
--     subscription on S (copy_data = false, origin = none from version 16 on).
--  6. catch_up: waits until T has what S had at the beginning of the step; sequences.
--  --- the pause of writes begins
--  7. fence_source: S refuses writes.  Provisional: only while this session's connection to S
--     lives.  If the caller dies here, S accepts writes again by itself within seconds.
--  8. drain: T applies everything up to the position of S after step 7.
--  9. sequences, verify: sequences of T are set; row counts (or more) are compared.
-- 10. position: the slot on T is advanced to the present: whoever writes on T is behind it.
-- 11. final: the fence of S becomes final.  The point of no return.
-- 12. open: T accepts writes.
--  --- the pause of writes ends
-- 13. follow: what T followed S with is removed (or kept disabled, without a slot), and S
--     follows T.
--
-- A failure up to step 10 is undone: S continues, T remains closed.  From step 11 on, calling
-- the procedure again completes the switch-over.

-- What can be known before a switch-over to this server: one row for each problem, and one
-- row, of severity "ok", for each check that has found none.  Changes nothing on either server.
-- With "error", weft.switch_over would fail, or something would be lost; it refuses to begin.
-- A "warning" is for somebody who knows the application.  A remedy is SQL where possible, to be
-- run here unless its comment says "on the publisher".
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
	'steps of switch-overs; writes are paused from the end of fence_source to the end of open';
GRANT SELECT ON weft.switch_over_progress TO PUBLIC;

-- The last attempt of each subscription (src/switch/switch_attempt.c).
CREATE TABLE weft.switch_attempt (
	subscription name PRIMARY KEY,
	subid oid NOT NULL,
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
-- verify: none, counts, recent or full.
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
