-- Schema changes of publishers without Weft: the part of the script with the event triggers.
-- 16-ddl-capture.sql says how all of it works.

CREATE FUNCTION weft.schema_capture_events()
RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN $script$-- Any session can set a setting.  Only what comes with this counts.
CREATE OR REPLACE FUNCTION weft.ddl_signature(stack text)
RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT encode(sha256(convert_to(concat(s.last_value, stack, s.last_value), 'UTF8')), 'hex')
		FROM weft.ddl_secret_seq s
$$;

-- The statements that have begun in what the client has sent last, and not ended: what one that
-- consists of several transactions has left, when it failed, does not count.
CREATE OR REPLACE FUNCTION weft.ddl_stack()
RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	stored CONSTANT text := coalesce(current_setting('weft_capture.stack', true), '');
	stack CONSTANT text := substr(stored, 65);
BEGIN
	IF left(stored, 64) <> weft.ddl_signature(stack) THEN
		RETURN '[]';
	END IF;
	RETURN (SELECT coalesce(jsonb_agg(e.entry ORDER BY e.number), '[]')
		FROM jsonb_array_elements(stack::jsonb) WITH ORDINALITY e (entry, number)
		WHERE e.entry->>'time' = extract(epoch FROM statement_timestamp())::text);
END $$;

CREATE OR REPLACE FUNCTION weft.ddl_set_stack(stack jsonb)
RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT set_config('weft_capture.stack', weft.ddl_signature(stack::text) || stack::text, false)
$$;

-- What belongs to an unlogged table, such as a trigger, is as little replicated as the table.
CREATE OR REPLACE FUNCTION weft.ddl_unlogged()
RETURNS TABLE (class_id oid, object_id oid)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH unlogged AS (SELECT oid FROM pg_class WHERE relpersistence = 'u')
	SELECT 'pg_class'::regclass, oid FROM unlogged
	UNION ALL
	SELECT 'pg_trigger'::regclass, t.oid FROM unlogged u JOIN pg_trigger t ON tgrelid = u.oid
	UNION ALL
	SELECT 'pg_rewrite'::regclass, t.oid FROM unlogged u JOIN pg_rewrite t ON ev_class = u.oid
	UNION ALL
	SELECT 'pg_policy'::regclass, t.oid FROM unlogged u JOIN pg_policy t ON polrelid = u.oid
	UNION ALL
	SELECT 'pg_statistic_ext'::regclass, t.oid FROM unlogged u JOIN pg_statistic_ext t ON stxrelid = u.oid
	UNION ALL
	SELECT 'pg_constraint'::regclass, t.oid FROM unlogged u JOIN pg_constraint t ON conrelid = u.oid
$$;

-- The tables that publications send under their own names: {publication: [OID]}, of those where ALTER TABLE may change that.
CREATE OR REPLACE FUNCTION weft.ddl_sent()
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_object_agg(p.pubname, ARRAY(
		SELECT c.oid::text FROM pg_publication_tables t
			JOIN pg_namespace n ON n.nspname = t.schemaname
			JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
		WHERE t.pubname = p.pubname))
	FROM weft.ddl_publications p WHERE p.via_root OR NOT p.all_tables
$$;

-- A statement begins.  It assigns no transaction id, since DROP INDEX CONCURRENTLY must not have one.
CREATE OR REPLACE FUNCTION weft.ddl_start()
RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry jsonb;
BEGIN
	IF weft.ddl_is_never(TG_TAG) OR NOT EXISTS (SELECT FROM weft.ddl_publications) THEN
		RETURN;
	END IF;
	-- Between the two transactions of such a statement, the server sends the partition's rows under its own name.
	IF TG_TAG = 'ALTER TABLE' AND current_query() ~* E'\\mdetach\\M.*\\m(concurrently|finalize)\\M'
		AND EXISTS (SELECT FROM weft.ddl_publications WHERE via_root) AND weft.ddl_is_off(session_user) IS NOT TRUE
	THEN
		PERFORM weft.ddl_refuse('cannot replicate that a partition is detached concurrently',
			'A publication sends the rows of partitions as those of the partitioned table.',
			'Use DETACH PARTITION without CONCURRENTLY.');
	END IF;
	entry := jsonb_build_object('time', extract(epoch FROM statement_timestamp())::text, 'tag', TG_TAG,
		'before', (SELECT jsonb_object_agg(pubname, weft.ddl_keys(pubid))
			FROM weft.ddl_publications WHERE NOT all_tables));
	IF TG_TAG = 'ALTER TABLE' THEN
		entry := entry || jsonb_build_object('sent', weft.ddl_sent());
	ELSIF TG_TAG LIKE 'DROP %' THEN
		entry := entry || jsonb_build_object('unlogged',
			(SELECT jsonb_agg(class_id || '/' || object_id) FROM weft.ddl_unlogged()));
	END IF;
	PERFORM weft.ddl_set_stack(weft.ddl_stack() || jsonb_build_array(entry));
END $$;

-- Runs directly before ddl_capture(), with the rights and the search_path of the session.  Nothing may
-- be looked up in that search_path.
CREATE OR REPLACE FUNCTION weft.ddl_caller()
RETURNS event_trigger LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM pg_catalog.set_config('weft_capture.role', current_user, true);
	PERFORM pg_catalog.set_config('weft_capture.search_path', pg_catalog.current_setting('search_path'), true);
END $$;

-- The functions that an expression may call: it is known by name only.
CREATE OR REPLACE FUNCTION weft.ddl_called(expression text)
RETURNS SETOF pg_proc LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH called (name) AS (
		SELECT replace(trim('"' FROM m[1]), '""', '"')
		FROM regexp_matches(regexp_replace(expression, E'''([^'']|'''')*''', '', 'g'),
			E'("(?:[^"]|"")+"|[^][\\s"''(){},.;:+*/<>=~!@#%^&|`?-]+)\\s*\\(', 'g') m)
	SELECT p.* FROM called JOIN pg_proc p ON p.proname IN (called.name, lower(called.name))
$$;

-- Does it contain one of the words that are functions without parentheses?
CREATE OR REPLACE FUNCTION weft.ddl_names_session(expression text)
RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT regexp_replace(expression, E'''([^'']|'''')*''|"([^"]|"")*"', '', 'g') ~* E'\\m(current_timestamp'
		'|current_date|current_time|localtime|localtimestamp|current_user|current_role|session_user|user'
		'|system_user|current_catalog|current_schema)\\M'
$$;

-- Does an expression, as the server prints it, call a function with one of these volatilities?
CREATE OR REPLACE FUNCTION weft.ddl_calls(expression text, volatilities text)
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM weft.ddl_called(expression) WHERE strpos(volatilities, provolatile::text) > 0)
		OR strpos(volatilities, 's') > 0 AND weft.ddl_names_session(expression)
$$;

-- May an expression have another value on another server, for the same row and under the same settings?  As
-- src/ddl/expression.c has it.
CREATE OR REPLACE FUNCTION weft.ddl_depends_on_server(expression text)
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT weft.ddl_names_session(expression) OR EXISTS (SELECT FROM weft.ddl_called(expression)
		WHERE provolatile = 'v' OR provolatile = 's' AND (oid >= 16384 OR pronargs = 0
			OR proname ~ '^(pg_|has_|txid_|inet_)' OR proname = 'age' AND pronargs = 1
			OR proname = ANY ('{col_description,currtid2,cursor_to_xml,cursor_to_xmlschema,current_setting,
				database_to_xml,database_to_xml_and_xmlschema,database_to_xmlschema,obj_description,query_to_xml,
				query_to_xml_and_xmlschema,query_to_xmlschema,row_security_active,schema_to_xml,
				schema_to_xml_and_xmlschema,schema_to_xmlschema,shobj_description,table_to_xml,
				table_to_xml_and_xmlschema,table_to_xmlschema}')))
$$;

-- May a statement contain a constant such as 'now', which means the time at which it is parsed?
CREATE OR REPLACE FUNCTION weft.ddl_names_moment(statement text)
RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT statement ~* '(^|[^a-z])(now|today|tomorrow|yesterday)([^a-z(]|$)'
$$;

-- Returns a new column of a table to whose rows every server would give other values, or null.
-- "missing" asks for those whose value was computed once, for all rows.
CREATE OR REPLACE FUNCTION weft.ddl_unrepeatable_column(relation oid, missing boolean)
RETURNS name LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT a.attname
	FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
	WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
		-- written by this transaction, or by one that is newer
		AND age(a.xmin) <= 0
		AND (a.attidentity <> '' AND NOT missing
			OR a.atthasmissing = missing
				AND weft.ddl_calls(coalesce(pg_get_expr(d.adbin, d.adrelid), t.typdefault),
					CASE WHEN missing THEN 'sv' ELSE 'v' END))
	ORDER BY a.attnum LIMIT 1
$$;

CREATE OR REPLACE FUNCTION weft.ddl_is_published(relation oid)
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM weft.ddl_publications
		WHERE all_tables OR 'pg_class'::regclass::oid || '/' || relation = ANY (weft.ddl_keys(pubid)))
$$;

CREATE OR REPLACE FUNCTION weft.ddl_refuse(problem text, cause text, remedy text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF cause IS NULL THEN
		RAISE EXCEPTION '%', problem
			USING ERRCODE = 'feature_not_supported', HINT = remedy;
	END IF;
	RAISE EXCEPTION '%', problem
		USING ERRCODE = 'feature_not_supported', DETAIL = cause, HINT = remedy;
END $$;

-- May a member of the owner's role make schema changes that are not replicated?
CREATE OR REPLACE FUNCTION weft.ddl_is_off(role name)
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT lower(current_setting('weft.ddl_replication', true)) IN ('off', 'false', 'no', '0')
		AND pg_has_role(role, current_user, 'MEMBER')
$$;

-- A table is about to be rewritten.
CREATE OR REPLACE FUNCTION weft.ddl_rewrite()
RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	relation regclass := pg_event_trigger_table_rewrite_oid();
	reason integer := pg_event_trigger_table_rewrite_reason();
	role CONSTANT name := current_setting('weft_capture.role', true);
	persistence "char" := (SELECT relpersistence FROM pg_class WHERE oid = relation);
	stack jsonb := weft.ddl_stack();
	volatile_column name;
BEGIN
	IF persistence = 't' OR weft.ddl_is_off(role) OR NOT weft.ddl_is_published(relation) THEN
		RETURN;
	END IF;
	IF reason & 1 <> 0 THEN
		PERFORM weft.ddl_refuse('cannot replicate SET LOGGED or SET UNLOGGED',
			format('Rows of table %s were not replicated while it was unlogged.', relation),
			'Create another table.');
	END IF;
	volatile_column := weft.ddl_unrepeatable_column(relation, false);
	IF reason & 2 <> 0 AND volatile_column IS NOT NULL AND pg_relation_size(relation) > 0 THEN
		PERFORM weft.ddl_refuse(
			format('cannot replicate that column "%s" gets another value in each row', volatile_column),
			format('Its default is volatile, and table %s has rows.', relation),
			'Add the column without a default, then set the default, and update the rows.');
	END IF;
	IF reason & 4 <> 0 AND jsonb_array_length(stack) > 0 THEN
		PERFORM weft.ddl_set_stack(jsonb_set(stack, '{-1,converted}', 'true'));
	END IF;
END $$;

-- What the statement has created, altered and dropped.
CREATE OR REPLACE FUNCTION weft.ddl_touched(event text)
RETURNS TABLE (key text, type text, temporary boolean, unlogged boolean, own boolean, in_script boolean,
	original boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN QUERY SELECT c.classid::text || '/' || c.objid, c.object_type,
			coalesce(c.schema_name = 'pg_temp', false) OR coalesce(r.relpersistence = 't', false)
				OR coalesce(c.object_identity ~ E' on pg_temp\\.', false),
			EXISTS (SELECT FROM weft.ddl_unlogged() u WHERE u.class_id = c.classid AND u.object_id = c.objid),
			coalesce(c.schema_name = 'weft', false)
				OR coalesce(c.object_identity ~ E'^weft$| on weft\\.', false),
			c.in_extension, true
		FROM pg_event_trigger_ddl_commands() c
			LEFT JOIN pg_class r ON c.classid = 'pg_class'::regclass AND r.oid = c.objid;
	IF event = 'sql_drop' THEN
		RETURN QUERY SELECT d.classid::text || '/' || d.objid, d.object_type,
				d.is_temporary OR coalesce(d.object_identity ~ E' on pg_temp\\.', false),
				coalesce((weft.ddl_stack() -> -1 -> 'unlogged') ? (d.classid::text || '/' || d.objid), false),
				coalesce(d.schema_name = 'weft', false), false, d.original
			FROM pg_event_trigger_dropped_objects() d;
	END IF;
END $$;

-- Which publications publish the statement?  {publication: level}; null if none does.
CREATE OR REPLACE FUNCTION weft.ddl_wanted_by(event text, tag text, entry jsonb, outer_entries jsonb, role name)
RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	keys text[];
	of_tables boolean;
	has_table boolean;
	permanent boolean;
	passing boolean;
	in_script boolean;
	result jsonb;
BEGIN
	SELECT array_agg(t.key) FILTER (WHERE t.key IS NOT NULL),
			bool_or(t.type !~ 'view$|^foreign table$' AND NOT t.temporary AND NOT t.unlogged AND NOT t.own),
			bool_or(t.type = 'table' AND NOT t.temporary AND NOT t.unlogged AND NOT t.own),
			bool_or(t.type !~ '^foreign table$' AND NOT t.temporary AND NOT t.unlogged AND NOT t.own AND t.original),
			bool_or((t.temporary OR t.unlogged) AND t.original),
			bool_or(t.in_script)
		INTO keys, of_tables, has_table, permanent, passing, in_script
		FROM weft.ddl_touched(event) t;
	IF permanent IS NOT TRUE OR in_script OR weft.ddl_is_off(role)
		OR outer_entries @? '$[*] ? (@.tag == "CREATE EXTENSION" || @.tag == "ALTER EXTENSION")'
	THEN
		RETURN NULL;
	END IF;
	SELECT jsonb_object_agg(p.pubname, p.level) INTO result
		FROM weft.ddl_publications p
		WHERE (p.level = 'all' OR of_tables AND weft.ddl_is_of_tables(tag) OR has_table AND tag = 'CREATE SCHEMA')
			AND (p.all_tables OR keys && weft.ddl_keys(p.pubid)
				OR keys && ARRAY(SELECT jsonb_array_elements_text(nullif(entry->'before'->p.pubname::text, 'null'))));
	IF result IS NOT NULL AND passing AND event = 'sql_drop' THEN
		PERFORM weft.ddl_refuse(
			'cannot replicate a schema change of both permanent objects and temporary or unlogged ones',
			NULL, 'Use one statement for each.');
	END IF;
	RETURN result;
END $$;

-- A statement such as DROP SCHEMA has dropped tables, and the types and sequences that they may use, and is no schema change
-- of tables itself: publications of level "table" publish that these objects are dropped.
CREATE OR REPLACE FUNCTION weft.ddl_publish_dropped(tag text, entry jsonb, outer_entries jsonb, wanted_by jsonb,
	role name, path text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	part record;
BEGIN
	IF weft.ddl_is_of_tables(tag) OR weft.ddl_is_off(role) THEN
		RETURN;
	END IF;
	FOR part IN
		SELECT p.pubname, upper(d.object_type) AS kind, string_agg(d.object_identity, ', ') AS names
		FROM weft.ddl_publications p CROSS JOIN pg_event_trigger_dropped_objects() d
		WHERE p.level = 'table' AND (wanted_by ? p.pubname::text) IS NOT TRUE
			AND d.object_type IN ('table', 'sequence', 'type') AND d.object_identity NOT LIKE '%[]'
			AND NOT d.is_temporary AND d.schema_name <> 'weft'
			AND NOT coalesce((entry -> 'unlogged') ? (d.classid::text || '/' || d.objid), false)
			AND (p.all_tables OR d.classid::text || '/' || d.objid = ANY (ARRAY(
				SELECT jsonb_array_elements_text(nullif(entry->'before'->p.pubname::text, 'null')))))
		GROUP BY p.pubname, d.object_type ORDER BY p.pubname, d.object_type = 'type', d.object_type = 'sequence'
	LOOP
		PERFORM weft.ddl_check(tag, outer_entries);
		PERFORM weft.ddl_insert('DROP ' || part.kind,
			format('DROP %s IF EXISTS %s CASCADE', part.kind, part.names), '{}',
			jsonb_build_object(part.pubname, 'table'), role, path, '{}');
	END LOOP;
END $$;

-- The tables that the statement has altered, with their partitions and children.
CREATE OR REPLACE FUNCTION weft.ddl_altered()
RETURNS SETOF oid LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	WITH RECURSIVE altered (oid) AS (
		SELECT objid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
		UNION
		SELECT inhrelid FROM altered JOIN pg_inherits ON inhparent = altered.oid)
	SELECT oid FROM altered
$$;

-- Has the statement added a column with a value that is stored for all existing rows?
CREATE OR REPLACE FUNCTION weft.ddl_has_filled_column()
RETURNS boolean LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM weft.ddl_altered() altered (oid) JOIN pg_class c USING (oid)
		JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing AND age(a.xmin) <= 0
			AND pg_relation_size(c.oid) > 0)
$$;

-- Refuses what a subscriber could not repeat, as far as it is known without the text.
CREATE OR REPLACE FUNCTION weft.ddl_check(tag text, outer_entries jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	unrepeatable record;
BEGIN
	IF tag = 'SELECT INTO' THEN
		PERFORM weft.ddl_refuse('cannot replicate SELECT INTO with rows', NULL, 'Use CREATE TABLE and INSERT.');
	ELSIF tag = 'DROP OWNED' THEN
		PERFORM weft.ddl_refuse('cannot replicate DROP OWNED', NULL, 'Drop the objects one by one.');
	ELSIF outer_entries @? '$[*] ? (!exists(@.captured))' THEN
		PERFORM weft.ddl_refuse(format('cannot replicate %s while it is executed by another schema change', tag),
			'A subscriber would execute it twice.', 'Execute the statement on its own.');
	END IF;
	IF tag <> 'ALTER TABLE' THEN
		RETURN;
	END IF;
	SELECT weft.ddl_unrepeatable_column(c.oid, true) AS name, c.oid::regclass AS relation INTO unrepeatable
		FROM weft.ddl_altered() altered (oid) JOIN pg_class c USING (oid)
		WHERE c.relkind = 'r' AND weft.ddl_unrepeatable_column(c.oid, true) IS NOT NULL
			AND pg_relation_size(c.oid) > 0 LIMIT 1;
	IF unrepeatable.name IS NOT NULL THEN
		PERFORM weft.ddl_refuse(
			format('cannot replicate that column "%s" gets a value that each server computes', unrepeatable.name),
			format('Its default is not the same everywhere and at all times, and table %s has rows.',
				unrepeatable.relation),
			'Add the column without a default, then set the default, and update the rows.');
	END IF;
END $$;

-- The same, with the text.
CREATE OR REPLACE FUNCTION weft.ddl_check_text(tag text, statement text, words text[], entry jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF statement IS NULL THEN
		PERFORM weft.ddl_refuse(format('cannot replicate %s because its text is not known', tag),
			'It is known of statements that a client sends, or that a function of PL/pgSQL executes one by one.',
			'Execute the statement on its own.');
	ELSIF tag = 'CREATE TABLE AS' AND words[cardinality(words) - 2:] <> '{with,no,data}' THEN
		PERFORM weft.ddl_refuse('cannot replicate CREATE TABLE AS with rows', NULL, 'Use CREATE TABLE and INSERT.');
	ELSIF entry ? 'converted' AND 'using' = ANY (words)
		AND (weft.ddl_depends_on_server(statement) OR weft.ddl_names_moment(statement))
	THEN
		PERFORM weft.ddl_refuse('cannot replicate that a column gets another value in each row',
			'The expression behind USING depends on more than the row.',
			'Add another column, update the rows, and drop the old one.');
	ELSIF tag = 'ALTER TABLE' AND weft.ddl_names_moment(statement) AND weft.ddl_has_filled_column() THEN
		PERFORM weft.ddl_refuse('cannot replicate that a column gets a value that each server computes',
			'A constant such as ''now'' means the current time, and the table has rows.',
			'Add the column without a default, then set the default, and update the rows.');
	END IF;
END $$;

-- Refuses that a table joins a publication with rows that have not been published.
CREATE OR REPLACE FUNCTION weft.ddl_check_joining(entry jsonb, wanted_by jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	joining record;
BEGIN
	IF NOT entry ? 'sent' THEN
		RETURN;
	END IF;
	SELECT c.oid::regclass AS relation, p.pubname INTO joining
		FROM weft.ddl_publications p CROSS JOIN LATERAL (SELECT unnest(weft.ddl_keys(p.pubid)) EXCEPT
				SELECT jsonb_array_elements_text(nullif(entry->'before'->p.pubname::text, 'null'))) member (key)
			JOIN pg_class c ON member.key = 'pg_class'::regclass::oid || '/' || c.oid
		WHERE NOT p.all_tables AND wanted_by ? p.pubname::text AND c.relkind = 'r' AND c.relpersistence = 'p'
			AND pg_relation_size(c.oid) > 0
		LIMIT 1;
	IF FOUND THEN
		PERFORM weft.ddl_refuse(
			format('cannot replicate that table %s joins publication "%s"', joining.relation, joining.pubname),
			'It has rows, which were not published.',
			'Add the table to the publication first, and refresh the subscriptions. Or insert the rows afterwards.');
	END IF;
END $$;

-- The older tables that publications send under their own names from now on ("tables", if they have sent all of the rows
-- before, and "entered", if not), and those that they no longer include ("left").
CREATE OR REPLACE FUNCTION weft.ddl_moved(entry jsonb, wanted_by jsonb)
RETURNS jsonb LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	WITH publication AS (
		SELECT *, ARRAY(SELECT jsonb_array_elements_text(entry->'sent'->pubname::text)) AS before,
			ARRAY(SELECT jsonb_array_elements_text(weft.ddl_sent()->pubname::text)) AS now,
			ARRAY(SELECT jsonb_array_elements_text(nullif(entry->'before'->pubname::text, 'null'))) AS old_keys,
			weft.ddl_keys(pubid) AS keys
		FROM weft.ddl_publications WHERE entry->'sent' ? pubname::text AND wanted_by ? pubname::text),
	changed AS (
		SELECT p.*, c.oid AS relid, 'pg_class'::regclass::oid || '/' || c.oid AS key, c.relname, n.nspname
		FROM publication p CROSS JOIN LATERAL (
				(SELECT unnest(p.now) EXCEPT SELECT unnest(p.before))
				UNION (SELECT unnest(p.before) EXCEPT SELECT unnest(p.now))) o (oid)
			JOIN pg_class c ON c.oid = o.oid::oid
			JOIN pg_namespace n ON n.oid = c.relnamespace),
	moved AS (
		SELECT pubname, nspname, relname,
			CASE WHEN relid::text = ANY (before) THEN 'left'
				WHEN all_tables OR key = ANY (old_keys) THEN 'tables'
				ELSE 'entered' END AS how
		FROM changed
		WHERE relid::text = ANY (now) OR NOT all_tables AND (key = ANY (keys)) IS NOT TRUE),
	described AS (
		SELECT how, jsonb_build_object('publication', pubname, 'schema', nspname, 'name', relname, 'others',
			to_jsonb(ARRAY(SELECT t.pubname FROM pg_publication_tables t
				WHERE t.schemaname = m.nspname AND t.tablename = m.relname))) AS line
		FROM moved m)
	SELECT jsonb_build_object('tables', '[]'::jsonb, 'entered', '[]'::jsonb, 'left', '[]'::jsonb)
		|| coalesce((SELECT jsonb_object_agg(how, lines)
			FROM (SELECT how, jsonb_agg(line) AS lines FROM described GROUP BY how) grouped), '{}')
$$;

-- The new tables whose rows are published from now on.
CREATE OR REPLACE FUNCTION weft.ddl_new_tables(wanted_by jsonb)
RETURNS jsonb LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(jsonb_agg(jsonb_build_object(
		'publication', p.pubname, 'schema', n.nspname, 'name', c.relname)), '[]')
	FROM pg_event_trigger_ddl_commands() t
		JOIN pg_class c ON t.classid = 'pg_class'::regclass AND c.oid = t.objid
		JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN weft.ddl_publications p ON wanted_by ? p.pubname::text
	WHERE t.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS') AND c.relpersistence = 'p'
		AND (c.relkind = 'r' OR c.relkind = 'p' AND p.via_root)
		AND NOT (p.via_root AND c.relispartition)
		AND (p.all_tables OR t.classid || '/' || t.objid = ANY (weft.ddl_keys(p.pubid)))
$$;

-- Settings on which the meaning of a statement depends.
CREATE OR REPLACE FUNCTION weft.ddl_settings(path text)
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT jsonb_object_agg(name, CASE name WHEN 'search_path' THEN path ELSE current_setting(name) END)
	FROM unnest('{array_nulls,backslash_quote,bytea_output,check_function_bodies,DateStyle,
		default_table_access_method,default_text_search_config,default_toast_compression,extra_float_digits,
		IntervalStyle,lc_monetary,lc_numeric,lc_time,quote_all_identifiers,search_path,
		standard_conforming_strings,TimeZone,transform_null_equals,xmlbinary,xmloption}'::text[]) name
$$;

-- Tables that subscribers do not have, for statements of which an event trigger does not know the tables.
CREATE OR REPLACE FUNCTION weft.ddl_local(tag text)
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(jsonb_agg(CASE WHEN relpersistence = 't' THEN 'pg_temp' ELSE nspname END || '.' || relname),
		'[]')
	FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
	WHERE tag IN ('GRANT', 'REVOKE') AND relkind IN ('r', 'p', 'v', 'S')
		AND (relpersistence = 'u' OR relnamespace = pg_my_temp_schema())
$$;

-- What a role may do to its server: a role of the same name that may do more is refused elsewhere.
CREATE OR REPLACE FUNCTION weft.ddl_powers(role name)
RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT coalesce(jsonb_agg(power), '[]') FROM (
		SELECT 'superuser'
			WHERE EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(role, s.oid, 'MEMBER'))
		UNION ALL
		SELECT power FROM unnest(
			'{pg_execute_server_program,pg_read_server_files,pg_write_server_files}'::text[]) power
			WHERE pg_has_role(role, power, 'MEMBER')) powers (power)
$$;

CREATE OR REPLACE FUNCTION weft.ddl_insert(
	tag text, statement text, words text[], wanted_by jsonb, role name, path text, entry jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	id bigint := nextval('weft.ddl_queue_id_seq');
	moved jsonb := weft.ddl_moved(entry, wanted_by);
BEGIN
	PERFORM weft.ddl_set_membership(p.pubname, true) FROM weft.ddl_publications p
		WHERE wanted_by ? p.pubname::text AND NOT p.all_tables;
	INSERT INTO weft.ddl_queue VALUES (id, clock_timestamp(), json_build_object(
		'version', 1,
		'id', id,
		'source', 'trigger',
		'encoding', getdatabaseencoding(),
		'server_version', current_setting('server_version_num')::int,
		'tag', tag,
		'role', role,
		'powers', weft.ddl_powers(role),
		'session_role', session_user,
		'statement', statement,
		'concurrently', words[1:3] IN ('{create,index,concurrently}', '{drop,index,concurrently}')
			OR words[1:4] = '{create,unique,index,concurrently}'
			OR words[1:2] = '{alter,table}' AND 'detach' = ANY (words)
				AND words[cardinality(words)] = 'concurrently',
		'publications', (SELECT jsonb_agg(name) FROM jsonb_object_keys(wanted_by) name),
		'levels', wanted_by,
		'settings', weft.ddl_settings(path),
		'local', weft.ddl_local(tag),
		'tables', weft.ddl_new_tables(wanted_by) || (moved->'tables'),
		'entered', moved->'entered',
		'left', moved->'left'));
	-- a transaction that has notified somebody cannot be prepared
	PERFORM pg_notify('weft_ddl', '');
END $$;

-- A statement has succeeded.
CREATE OR REPLACE FUNCTION weft.ddl_capture()
RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	role CONSTANT name := current_setting('weft_capture.role', true);
	path CONSTANT text := current_setting('weft_capture.search_path', true);
	never CONSTANT boolean := weft.ddl_is_never(TG_TAG);
	stack jsonb := weft.ddl_stack();
	entry jsonb := jsonb_build_object('time', extract(epoch FROM statement_timestamp())::text);
	context text;
	of_client boolean;
	wanted_by jsonb;
	statement text;
	words text[];
BEGIN
	GET DIAGNOSTICS context = PG_CONTEXT;
	IF TG_TAG IN ('ALTER PUBLICATION', 'DROP PUBLICATION') AND TG_EVENT = 'ddl_command_end' THEN
		PERFORM weft.ddl_follow_publications();
	END IF;
	IF NOT EXISTS (SELECT FROM weft.ddl_publications) THEN
		RETURN;
	END IF;
	-- without it, any session could set the role
	IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = CASE TG_EVENT
			WHEN 'sql_drop' THEN '!weft_ddl_drop_a' ELSE '!weft_ddl_end_a' END AND evtenabled = 'A')
	THEN
		RAISE EXCEPTION 'an event trigger of schema "weft" is missing or disabled'
			USING HINT = 'Run the script of weft.ddl_capture_script() again.';
	END IF;
	IF NOT never THEN
		entry := coalesce(stack -> -1, entry);
		stack := stack - (-1);
	END IF;
	of_client := strpos(context, E'\n') = 0 AND jsonb_array_length(stack) = 0;
	IF NOT never AND NOT entry ? 'captured' THEN
		wanted_by := weft.ddl_wanted_by(TG_EVENT, TG_TAG, entry, stack, role);
	END IF;
	IF wanted_by IS NOT NULL THEN
		PERFORM weft.ddl_check(TG_TAG, stack);
		IF of_client THEN
			SELECT f.statement, f.words INTO statement, words FROM weft.ddl_find_in_message(TG_TAG) f;
		ELSE
			SELECT f.statement, f.words INTO statement, words
				FROM weft.ddl_find_in_context(TG_TAG, context) f;
		END IF;
		PERFORM weft.ddl_check_text(TG_TAG, statement, words, entry);
		PERFORM weft.ddl_check_joining(entry, wanted_by);
		PERFORM weft.ddl_insert(TG_TAG, statement, words, wanted_by, role, path, entry);
	END IF;
	IF TG_EVENT = 'sql_drop' THEN
		IF NOT never AND NOT entry ? 'captured' THEN
			PERFORM weft.ddl_publish_dropped(TG_TAG, entry, stack, wanted_by, role, path);
		END IF;
		PERFORM weft.ddl_set_stack(stack || jsonb_build_array(entry || '{"captured": true}'));
		RETURN;
	END IF;
	PERFORM weft.ddl_set_stack(stack);
	IF of_client AND current_query() ~ E';\\s*\\S' AND TG_TAG <> 'SELECT INTO' THEN
		PERFORM setval('weft.ddl_position_seq', coalesce(f.next, 2147483647)),
				setval('weft.ddl_message_seq', (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
			FROM weft.ddl_find_in_message(TG_TAG) f;
	END IF;
END $$;

-- PG_CONTEXT is translated.
DO $$
BEGIN
	ALTER FUNCTION weft.ddl_capture() SET lc_messages = 'C';
EXCEPTION WHEN insufficient_privilege THEN
	IF current_setting('lc_messages') !~ '^(C|POSIX|en)' THEN
		RAISE WARNING 'schema changes that functions make are refused, because "lc_messages" is not English';
	END IF;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA weft FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA weft FROM PUBLIC;

CREATE EVENT TRIGGER "!weft_ddl_start" ON ddl_command_start EXECUTE FUNCTION weft.ddl_start();
CREATE EVENT TRIGGER "!weft_ddl_rewrite_a" ON table_rewrite EXECUTE FUNCTION weft.ddl_caller();
CREATE EVENT TRIGGER "!weft_ddl_rewrite_b" ON table_rewrite EXECUTE FUNCTION weft.ddl_rewrite();
CREATE EVENT TRIGGER "!weft_ddl_drop_a" ON sql_drop EXECUTE FUNCTION weft.ddl_caller();
CREATE EVENT TRIGGER "!weft_ddl_drop_b" ON sql_drop EXECUTE FUNCTION weft.ddl_capture();
CREATE EVENT TRIGGER "!weft_ddl_end_a" ON ddl_command_end EXECUTE FUNCTION weft.ddl_caller();
CREATE EVENT TRIGGER "!weft_ddl_end_b" ON ddl_command_end EXECUTE FUNCTION weft.ddl_capture();
ALTER EVENT TRIGGER "!weft_ddl_start" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_rewrite_a" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_rewrite_b" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_drop_a" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_drop_b" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_end_a" ENABLE ALWAYS;
ALTER EVENT TRIGGER "!weft_ddl_end_b" ENABLE ALWAYS;

$script$;
REVOKE ALL ON FUNCTION weft.schema_capture_events() FROM PUBLIC;
