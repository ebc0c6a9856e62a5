-- Comparing a subscription with its publisher, and repairing what differs.

-- Sequences.

-- Sets the sequences here at or beyond those of the publisher, by "margin" steps: sequences
-- that published tables use, and all others in their schemas.  Logical replication does not
-- replicate sequences.  Call it again after the last write on the publisher, because numbers
-- taken there afterwards are unknown here.
--
-- A sequence is never set back; one that is beyond stays as it is.  One row for each sequence of
-- the publisher; "problem" says why a sequence may still return numbers that the publisher
-- has used, such as that it does not exist here ("sequence" is null), or that the owner of
-- the subscription lacks the right UPDATE on it.  ROLLBACK does not undo this, as with setval().
-- Sequences of weft.snowflake_nextval() are not changed.
--
-- Needs on the publisher: SELECT on the sequences, for the role that the subscription
-- connects as.  Here: ownership of the subscription.
CREATE FUNCTION weft.sync_sequences(
	subscription name,
	margin bigint DEFAULT 1000,
	OUT sequence regclass,
	OUT publisher_value bigint,
	OUT before bigint,
	OUT after bigint,
	OUT problem text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_sync_sequences';

COMMENT ON FUNCTION weft.sync_sequences(name, bigint) IS
	'sets the subscriber''s sequences at or beyond the publisher''s';
