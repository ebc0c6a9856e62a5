-- Schema changes of publishers without Weft: the part of the script that finds the text of a statement.
-- 16-ddl-capture.sql says how all of it works.
--
-- weft.ddl_next_statement() is longer than 80 lines because each of its branches is a rule of the server's lexer.

CREATE FUNCTION weft.schema_capture_text()
RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN $script$-- Is a statement never replicated?  Of others, the subscriber's parser decides.
CREATE OR REPLACE FUNCTION weft.ddl_is_never(tag text)
RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT tag LIKE '% PUBLICATION' OR tag LIKE '% SUBSCRIPTION' OR tag LIKE '% FOREIGN %'
		OR tag LIKE '% SERVER' OR tag LIKE '% USER MAPPING' OR tag IN
			('ALTER LARGE OBJECT', 'REFRESH MATERIALIZED VIEW', 'REINDEX', 'SECURITY LABEL')
$$;

-- May a publication with ddl = table publish it?  DROP OWNED is refused if it drops tables.
CREATE OR REPLACE FUNCTION weft.ddl_is_of_tables(tag text)
RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT tag IN ('CREATE TABLE AS', 'SELECT INTO', 'DROP OWNED')
		OR tag IN (SELECT command || ' ' || object
			FROM unnest('{CREATE,ALTER,DROP}'::text[]) command,
				unnest('{TABLE,INDEX,SEQUENCE,TYPE,DOMAIN}'::text[]) object)
$$;

-- Finds the end of the statement at a position.  "words" are its words without what is in quotes, in lower
-- case; "ending" is the position behind it, and "next" that of the next one.  With
-- "quoted", the text is the inside of a line of PG_CONTEXT that begins with SQL statement "; "next" is 0
-- if the quote is closed.
--
-- Tokens are words, numbers, runs of blanks and single characters.  The end of a window of the text may cut
-- one in two, but then the statement ends later, and is read again in a larger window.
CREATE OR REPLACE FUNCTION weft.ddl_next_statement(source text, start integer, quoted boolean,
	OUT words text[], OUT ending integer, OUT next integer)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	word CONSTANT text := E'^[^\\x01-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]';
	token_pattern CONSTANT text := E'([^\\x01-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]'
		'[^\\x01-\\x2f\\x3a-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]*|[0-9]+|[ \\t]+|.)';
	backslashes CONSTANT boolean := current_setting('standard_conforming_strings') = 'off';
	size integer := 8192;
	part text;
	tokens text[];
	token text;
	follows text;
	i integer;
	skip integer;
	here integer;
	behind integer;
	mode text;			-- code, string, escapes, name, line, block, dollar
	depth integer;		-- of comments
	parentheses integer;
	body integer;		-- of BEGIN ATOMIC, CASE
	begun boolean;		-- the latest word is BEGIN
	tag text;			-- of a dollar quote
	identifier boolean;	-- the token before belongs to an identifier or a number
	prefix boolean;		-- it is E
	escapes boolean;	-- a string that begins here may be the continuation of one with E
BEGIN
	LOOP
		part := substr(source, start, size);
		tokens := ARRAY(SELECT m[1] FROM regexp_matches(part, token_pattern, 'g') m);
		i := 0; skip := 0; behind := start; mode := 'code';
		parentheses := 0; body := 0; begun := false; identifier := false; prefix := false;
		escapes := false;
		words := '{}';
		WHILE i < cardinality(tokens) LOOP
			i := i + 1;
			token := tokens[i];
			follows := tokens[i + 1];
			here := behind;
			behind := behind + length(token);
			IF skip > 0 THEN
				skip := skip - 1;
			ELSIF mode = 'code' THEN
				IF token = ';' AND parentheses = 0 AND body = 0 THEN
					ending := here;
					next := behind;
					RETURN;
				ELSIF token = '''' THEN
					mode := CASE WHEN backslashes OR prefix OR escapes THEN 'escapes' ELSE 'string' END;
				ELSIF token = '"' THEN
					IF quoted AND (here = length(source) OR substr(source, behind, 3) IN (E'\nSQ', E'\nPL')) THEN
						ending := here;
						next := 0;
						RETURN;
					END IF;
					mode := 'name';
				ELSIF token = '-' AND follows = '-' THEN
					mode := 'line';
				ELSIF token = '/' AND follows = '*' THEN
					mode := 'block'; depth := 1; skip := 1;
				ELSIF token = '$' AND NOT identifier AND follows = '$' THEN
					mode := 'dollar'; tag := ''; skip := 1;
				ELSIF token = '$' AND NOT identifier AND follows ~ word AND tokens[i + 2] = '$' THEN
					mode := 'dollar'; tag := follows; skip := 2;
				ELSIF token = '(' THEN
					parentheses := parentheses + 1;
				ELSIF token = ')' THEN
					parentheses := parentheses - 1;
				ELSIF NOT identifier AND token ~ word THEN
					token := lower(token);
					IF cardinality(words) < 200 THEN
						words := words || token;
					END IF;
					IF body > 0 THEN
						body := body + CASE token WHEN 'case' THEN 1 WHEN 'end' THEN -1 ELSE 0 END;
					ELSIF token = 'atomic' AND begun THEN
						body := 1;
					END IF;
					begun := token = 'begin' AND parentheses = 0 AND words[1] = 'create'
						AND words[2:4] && '{function,procedure}';
				END IF;
				escapes := escapes AND (token IN (E'\n', E'\r') OR token ~ E'^[ \t]' OR mode = 'line');
				prefix := token = 'e' AND NOT identifier;
				identifier := mode = 'code' AND (token ~ word OR identifier AND token ~ '^[$0-9]');
			ELSIF mode = 'string' OR mode = 'escapes' THEN
				IF token = '''' AND follows = '''' OR mode = 'escapes' AND token = E'\\' AND follows IN ('''', E'\\') THEN
					skip := 1;
				ELSIF token = '''' THEN
					escapes := mode = 'escapes';
					mode := 'code';
				END IF;
			ELSIF mode = 'name' THEN
				IF token = '"' THEN
					mode := 'code';
				END IF;
			ELSIF mode = 'line' THEN
				IF token IN (E'\n', E'\r') THEN
					mode := 'code';
				END IF;
			ELSIF mode = 'dollar' THEN
				IF token = '$' AND tag = '' AND follows = '$' THEN
					mode := 'code'; skip := 1;
				ELSIF token = '$' AND tag <> '' AND follows = tag AND tokens[i + 2] = '$' THEN
					mode := 'code'; skip := 2;
				END IF;
			ELSIF token = '/' AND follows = '*' THEN
				depth := depth + 1; skip := 1;
			ELSIF token = '*' AND follows = '/' THEN
				depth := depth - 1; skip := 1;
				IF depth = 0 THEN
					mode := 'code';
				END IF;
			END IF;
		END LOOP;
		IF length(part) < size THEN
			ending := length(source) + 1;
			next := ending;
			RETURN;
		END IF;
		size := size * 4;
	END LOOP;
END $$;

-- Does a statement with these words fire an event with this tag?  False: it fires none.  Null: it
-- fires another one.
CREATE OR REPLACE FUNCTION weft.ddl_fires(words text[], tag text)
RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	of_server CONSTANT text[] := '{database,role,group,tablespace,parameter,system}';
	expected text[] := string_to_array(lower(replace(tag, 'CREATE TABLE AS', 'CREATE TABLE')), ' ');
	place integer;
BEGIN
	IF words[1] IN ('create', 'alter', 'drop') THEN
		words := words[1:1] || ARRAY(SELECT w.word FROM unnest(words[2:10]) WITH ORDINALITY w (word, number)
			WHERE NOT (w.word = 'procedural' OR words[1] = 'create' AND w.word IN ('or', 'replace', 'global', 'local',
				'temp', 'temporary', 'unlogged', 'unique', 'constraint', 'recursive', 'trusted', 'default'))
			ORDER BY w.number);
		IF words[2] = ANY (of_server) OR words[2] = 'user' AND words[3] IS DISTINCT FROM 'mapping'
			OR words[2] = 'event' AND words[3] = 'trigger'
		THEN
			RETURN false;
		END IF;
	ELSIF words[1] IN ('comment', 'security') THEN
		place := coalesce(array_position(words, 'on'), 0);
		IF words[place + 1] = ANY (of_server) OR words[place + 1] = 'event' THEN
			RETURN false;
		END IF;
	ELSIF words[1] IN ('grant', 'revoke') THEN
		place := array_position(words, 'on');
		IF place IS NULL OR words[1:place] && '{to,from}' OR words[place + 1] = ANY (of_server) THEN
			RETURN false;
		END IF;
	ELSIF words[1] = 'reindex' AND current_setting('server_version_num')::integer < 170000
		OR words[1] IS NULL OR words[1] NOT IN ('import', 'refresh', 'reindex')
	THEN
		RETURN false;
	END IF;
	RETURN nullif(words[1:cardinality(expected)] = expected, false);
END $$;

-- The time of what the client has sent last, and where the latest statement ended there.
CREATE SEQUENCE IF NOT EXISTS weft.ddl_message_seq;
CREATE SEQUENCE IF NOT EXISTS weft.ddl_position_seq;

-- Where is the next statement in what the client has sent?  Null: not known.
CREATE OR REPLACE FUNCTION weft.ddl_position()
RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	message bigint;
BEGIN
	IF current_query() !~ E';\\s*\\S' THEN
		RETURN 1;
	END IF;
	-- statements in it may change how it was read, or lose the position
	IF current_query() ~* E'discard|standard_conforming_strings|event\\s+trigger|event_triggers' THEN
		RETURN NULL;
	END IF;
	BEGIN
		message := currval('weft.ddl_message_seq');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		RETURN 1;
	END;
	RETURN CASE WHEN message <> (extract(epoch FROM statement_timestamp()) * 1000000)::bigint THEN 1
		ELSE nullif(currval('weft.ddl_position_seq'), 2147483647) END;
END $$;

-- Finds the statement in what the client has sent that has fired an event.  All are null if that is
-- not certain.
CREATE OR REPLACE FUNCTION weft.ddl_find_in_message(tag text,
	OUT statement text, OUT words text[], OUT next integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	source CONSTANT text := current_query();
	start integer := weft.ddl_position();
	parsed record;
	fires boolean;
BEGIN
	WHILE start <= length(source) LOOP
		parsed := weft.ddl_next_statement(source, start, false);
		fires := weft.ddl_fires(parsed.words, tag);
		IF fires THEN
			statement := btrim(substr(source, start, parsed.ending - start), E' \t\r\n\f');
			words := parsed.words;
			next := parsed.next;
		END IF;
		EXIT WHEN fires OR fires IS NULL;
		start := parsed.next;
	END LOOP;
END $$;

-- Finds the statement that a function has executed.  Both are null if that is not certain.
--
-- A quoted name with a line break may look like the end of the text and the lines behind it: in any
-- case if there are quotes behind that, which may be those around the statement that has called the function.
-- Then that must begin with a word that cannot follow a name in a schema change.
CREATE OR REPLACE FUNCTION weft.ddl_find_in_context(tag text, context text,
	OUT statement text, OUT words text[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	prefix CONSTANT text := 'SQL statement "';
	source text := substr(context, strpos(context, E'\n') + 1);
	parsed record;
	rest record;
	ending integer;
BEGIN
	IF left(source, length(prefix)) <> prefix THEN
		RETURN;
	END IF;
	source := substr(source, length(prefix) + 1);
	parsed := weft.ddl_next_statement(source, 1, true);
	ending := parsed.ending;
	IF parsed.next <> 0 THEN
		rest := weft.ddl_next_statement(source, parsed.next, true);
		IF rest.next <> 0 OR cardinality(rest.words) > 0 THEN
			RETURN;
		END IF;
		ending := rest.ending;
	END IF;
	IF substr(source, ending + 1) ~ E'"(\nSQ|\nPL|$)' AND substr(source, ending + 1) !~*
		E'^[^"]*\nSQL statement "\\s*(select|call|insert|update|delete|merge)\\M'
	THEN
		RETURN;
	END IF;
	IF weft.ddl_fires(parsed.words, tag) THEN
		statement := btrim(left(source, parsed.ending - 1), E' \t\r\n\f');
		words := parsed.words;
	END IF;
END $$;

$script$;
REVOKE ALL ON FUNCTION weft.schema_capture_text() FROM PUBLIC;
