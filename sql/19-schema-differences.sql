-- Comparing the schemas of both sides of a subscription.
--
-- subscription_or_node: a subscription, whose owner may call this; or another member of this
--	node's group.  If there are both, the subscription is meant.
-- object_type: 'table', 'column', 'constraint', 'index', 'trigger', 'sequence', 'type' or
--	'domain constraint'.
-- object: its name, with the schema.
-- difference: 'missing here' or 'missing there'; or the property that differs, such as 'type' or
--	'definition'; of a table also 'not in the subscription' or 'not published'.
-- here, there: the property on this server, and on the publisher.
--
-- Compared are the tables that the publisher publishes for the subscription and those that belong
-- to it, their partitions, and the tables that they are partitions of: with their columns, constraints and
-- indexes; the types and sequences that these use, but not the values of sequences; and triggers
-- that fire on one of the sides when rows are applied.  Names count, the order of columns does not.
-- Owners, privileges, comments, tablespaces and the bodies of functions are not compared.
--
-- The two sides are read one after the other.  Therefore a schema change that is being replicated
-- looks like a difference: call weft.wait_for_subscription() first.
CREATE FUNCTION weft.schema_differences(
	subscription_or_node name,
	OUT object_type text,
	OUT object text,
	OUT difference text,
	OUT here text,
	OUT there text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_schema_differences';

COMMENT ON FUNCTION weft.schema_differences(name) IS
	'compares the schema of a subscription''s tables with the publisher''s';
REVOKE ALL ON FUNCTION weft.schema_differences(name) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.schema_differences(name) TO PUBLIC;
