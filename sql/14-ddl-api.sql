-- Functions about schema changes that users call.

-- The statement is executed by the role that calls the function, here and on the subscribers.
-- The caller must own the publications.  They need not want such statements; others that do want
-- them get this one as well.  Parameters "weft.ddl_replication" and "weft.ddl_filter" do not matter.
-- Some statements that are not replicated otherwise can be given: those about roles, unless they
-- have a password, REFRESH MATERIALIZED VIEW, REINDEX, CLUSTER and ANALYZE.
CREATE FUNCTION weft.replicate_ddl_command(command text, publications text[])
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_replicate_ddl_command';

COMMENT ON FUNCTION weft.replicate_ddl_command(text, text[]) IS
	'executes a statement here, and on the subscribers of publications';
REVOKE ALL ON FUNCTION weft.replicate_ddl_command(text, text[]) FROM PUBLIC;
