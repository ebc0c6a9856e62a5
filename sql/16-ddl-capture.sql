-- Schema changes of publishers where Weft is not loaded, such as managed services.
--
-- weft.ddl_capture_script() returns a script for the publisher (15 or later).  It creates event
-- triggers whose functions insert the same rows into the same table as Weft's own code does
-- (src/ddl/capture.c).  Nothing of it is ever executed here.
--
-- Who can insert a row.  Only the owner of the script's objects, from whom the capturing function has its
-- rights.  That function is SECURITY DEFINER, and the server does not tell such a function who has
-- called it.  Therefore ddl_caller(), which is not, runs directly before it, on the same event, and
-- notes the role and the search_path in settings.  Any session may set these, but no code of
-- a session runs between the two.  Nobody can call either of them otherwise.
--
-- Which text.  An event trigger knows the tag of the statement and what it has touched, but not its
-- text.  There are two places where the text can be found, and PG_CONTEXT, the stack of what is being
-- executed, says which is right:
-- - Nothing but the event trigger: the client has sent the statement, and current_query() is
--   everything that it has sent at once.
-- - A statement of SPI: the text is in PG_CONTEXT itself.  In this way functions of PL/pgSQL, and DO,
--   execute statements.
-- In either case ddl_next_statement() finds the ends of statements as the server's lexer
-- does, and ddl_fires() compares its first words with the tag.  Of what a client has sent at once, the statement is
-- the next one that fires events, behind the one that has fired the previous.  That position
-- must survive a ROLLBACK between them, and not be seen by other sessions: so it is the currval()
-- of a sequence.  Whatever is not certain is refused, and the statement fails.  The
-- subscriber parses the text again and compares the tag (src/ddl/choose_statement.c).
--
-- The text is not trusted: at worst it is another one that the same role wanted to execute.
--
-- In which order.  The names of the event triggers begin with "!", so that they run before others:
-- what those execute follows what has caused it.  A statement that drops something is captured in
-- sql_drop, for the same reason.  A setting keeps the statements that have begun and not ended: what must
-- be known of objects before they change.  A statement that another one executes while it is not
-- finished is refused, since the subscriber would execute it twice.

CREATE FUNCTION weft.ddl_capture_script(publications text[], ddl text DEFAULT 'table')
RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF ddl <> ALL ('{none,table,all}') THEN
		RAISE EXCEPTION 'invalid value for publication parameter "ddl": "%"', ddl
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use "none", "table" or "all".';
	END IF;
	RETURN weft.schema_capture_objects() || weft.schema_capture_text() || weft.schema_capture_events()
		|| coalesce((SELECT string_agg(format(E'SELECT weft.install_ddl_capture(%L, %L);\n', p.name, ddl),
				'' ORDER BY p.number)
			FROM unnest(publications) WITH ORDINALITY p (name, number)), '') || E'\nCOMMIT;\n';
END $$;

COMMENT ON FUNCTION weft.ddl_capture_script(text[], text) IS
	'a script for a publisher without Weft, which makes publications there publish schema changes';
REVOKE ALL ON FUNCTION weft.ddl_capture_script(text[], text) FROM PUBLIC;

CREATE FUNCTION weft.ddl_capture_removal_script()
RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $function$
	SELECT $script$-- Removes what the script of weft.ddl_capture_script() has created on a publisher.
BEGIN;
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_extension WHERE extname = 'weft') THEN
		RAISE EXCEPTION 'extension "weft" is installed in this database'
			USING HINT = 'Use DROP EXTENSION weft.';
	END IF;
END $$;
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_start";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_rewrite_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_rewrite_b";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_drop_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_drop_b";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_end_a";
DROP EVENT TRIGGER IF EXISTS "!weft_ddl_end_b";
DROP SCHEMA IF EXISTS weft CASCADE;
COMMIT;
$script$
$function$;

COMMENT ON FUNCTION weft.ddl_capture_removal_script() IS
	'a script for a publisher, which removes what that of weft.ddl_capture_script() has created';
REVOKE ALL ON FUNCTION weft.ddl_capture_removal_script() FROM PUBLIC;
