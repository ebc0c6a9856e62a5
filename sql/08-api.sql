-- Functions that users call, except for parting (07-part.sql), and what only they need.

-- Subscriptions.

CREATE FUNCTION weft.copy_schema(
	conninfo text,
	publications text[],
	OUT object_type text,
	OUT object text,
	OUT created boolean,
	OUT note text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_copy_schema';

COMMENT ON FUNCTION weft.copy_schema(text, text[]) IS
	'creates the tables of a publisher''s publications that do not exist here';
REVOKE ALL ON FUNCTION weft.copy_schema(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weft.copy_schema(text, text[]) TO pg_execute_server_program;

CREATE FUNCTION weft.wait_for_subscription(subscription name, timeout interval)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_wait_for_subscription';

COMMENT ON FUNCTION weft.wait_for_subscription(name, interval) IS
	'waits until all tables are synchronized and everything that the publisher has now is applied';

-- The table has the publisher's published rows afterwards, and nothing else: values of columns
-- that are not published, rows that were stored here, and rows outside of the publication's
-- row filter are lost.  No foreign key is checked or followed, and sequences stay as they are.
-- Until the copy is complete, all sessions see the old rows.  Changes of the table that the
-- publisher makes meanwhile arrive afterwards; while the table catches up with them, the
-- subscription's other tables wait, as after its first copy.  A session here that has
-- changed a row of the table and stays in its transaction delays the copy.  The publisher
-- keeps its WAL from the call until the table is synchronized, in a slot, and needs another
-- free slot while the table is copied.  Do not start the server without Weft in
-- "shared_preload_libraries" until weft.copy_progress does not show the table any more: its
-- synchronization would fail until Weft is back.
CREATE FUNCTION weft.resync_table(subscription name, "table" regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_resync_table';

COMMENT ON FUNCTION weft.resync_table(name, regclass) IS
	'copies a table of a subscription again, in the background; its old rows stay visible until then';

-- No change is lost: the table keeps its old rows, and all changes since the call of
-- weft.resync_table are applied to them.  Meanwhile, the subscription's other tables wait, as
-- after a copy.  A copy that is complete cannot be cancelled.
CREATE FUNCTION weft.cancel_resync(subscription name, "table" regclass)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_cancel_resync';

COMMENT ON FUNCTION weft.cancel_resync(name, regclass) IS
	'stops copying a table again; its old rows stay, and catch up with the publisher';

-- Conflicts.

CREATE FUNCTION weft.record_delete()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'weft_record_delete';

COMMENT ON FUNCTION weft.record_delete() IS
	'remembers the key of a deleted row; see weft.track_deletes';

CREATE FUNCTION weft.track_deletes(relation regclass, enabled boolean DEFAULT true)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_track_deletes';

COMMENT ON FUNCTION weft.track_deletes(regclass, boolean) IS
	'makes a table remember which rows were deleted, so that older changes do not restore them';

-- The exact time of a row: SELECT weft.row_commit_timestamp(tableoid, ctid) FROM t.
CREATE FUNCTION weft.row_commit_timestamp("table" regclass, row_id tid)
RETURNS timestamptz
LANGUAGE C STRICT STABLE
AS 'MODULE_PATHNAME', 'weft_row_commit_timestamp';

COMMENT ON FUNCTION weft.row_commit_timestamp(regclass, tid) IS
	'when the transaction that wrote a row has committed, on the node where that was';

CREATE FUNCTION weft.set_delta_columns(relation regclass, columns name[])
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_set_delta_columns';

COMMENT ON FUNCTION weft.set_delta_columns(regclass, name[]) IS
	'sets the columns of a table to which an update adds its difference';

CREATE FUNCTION weft.alter_node_set_conflict_resolver(
	node_name name,
	conflict_type text,
	conflict_resolver text)
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_alter_node_set_conflict_resolver';

COMMENT ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) IS
	'sets how this node resolves a type of conflict';
REVOKE ALL ON FUNCTION weft.alter_node_set_conflict_resolver(name, text, text) FROM PUBLIC;

-- Nodes and their groups.

CREATE FUNCTION weft.create_node(node_name name, local_dsn text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_name('node', node_name);
	IF weft.local_node() IS NOT NULL THEN
		RAISE EXCEPTION 'this database is already node "%"', weft.local_node()
			USING ERRCODE = 'duplicate_object';
	END IF;
	PERFORM weft.check_own_dsn(node_name, local_dsn);
	INSERT INTO weft.node_entry (node_name, state, is_local)
		VALUES (create_node.node_name, 'created', true);
	PERFORM weft.set_node_dsn(node_name, local_dsn);
END $$;

COMMENT ON FUNCTION weft.create_node(name, text) IS
	'makes this database a node, to which others connect with this connection string';
REVOKE ALL ON FUNCTION weft.create_node(name, text) FROM PUBLIC;

CREATE FUNCTION weft.drop_node(node_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF drop_node.node_name IS DISTINCT FROM weft.local_node() THEN
		RAISE EXCEPTION 'this database is not node "%"', node_name
			USING ERRCODE = 'undefined_object';
	END IF;
	IF weft.local_group() IS NOT NULL THEN
		RAISE EXCEPTION 'node "%" is in node group "%"', node_name, weft.local_group()
			USING ERRCODE = 'object_in_use', HINT = 'Call weft.part_node first.';
	END IF;
	DELETE FROM weft.join_entry;
	PERFORM weft.set_node_dsn('join target', NULL);
	DELETE FROM weft.node_entry;
END $$;

COMMENT ON FUNCTION weft.drop_node(name) IS
	'makes this database no longer a node';
REVOKE ALL ON FUNCTION weft.drop_node(name) FROM PUBLIC;

CREATE FUNCTION weft.create_node_group(node_group_name name, num_writers integer DEFAULT NULL)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.check_name('node group', node_group_name);
	PERFORM weft.require_free_node();
	PERFORM weft.check_member(weft.member_info(), 0);
	INSERT INTO weft.node_group_entry
		VALUES (create_node_group.node_group_name, create_node_group.num_writers, 2);
	UPDATE weft.node_entry SET node_id = 1, state = 'active' WHERE is_local;
	INSERT INTO weft.conflict_node VALUES ('', 1)
		ON CONFLICT (subname) DO UPDATE SET node_id = excluded.node_id;
	PERFORM weft.member_publish();
	PERFORM weft.member_track_deletes(true);
END $$;

COMMENT ON FUNCTION weft.create_node_group(name, integer) IS
	'creates a group with this node as its only member';
REVOKE ALL ON FUNCTION weft.create_node_group(name, integer) FROM PUBLIC;

CREATE FUNCTION weft.is_joining()
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'weft join' AND datname = current_database())
$$;

COMMENT ON FUNCTION weft.is_joining() IS
	'is the background worker running that joins this node to its group?';
REVOKE ALL ON FUNCTION weft.is_joining() FROM PUBLIC;

CREATE FUNCTION weft.join_progress()
RETURNS jsonb
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_join_progress';

COMMENT ON FUNCTION weft.join_progress() IS
	'the current progress of a join, whatever the isolation level of the transaction';
REVOKE ALL ON FUNCTION weft.join_progress() FROM PUBLIC;

CREATE FUNCTION weft.join_node_group(join_target_dsn text, node_group_name name DEFAULT NULL,
	from_backup boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	checked record;
BEGIN
	IF from_backup THEN
		PERFORM weft.begin_join_from_backup(join_target_dsn, node_group_name);
		RETURN;
	END IF;
	PERFORM weft.require_free_node();
	IF NOT EXISTS (SELECT FROM weft.join_entry WHERE copied) THEN
		IF weft.is_joining() THEN
			RAISE EXCEPTION 'node "%" is already joining', weft.local_node()
				USING ERRCODE = 'object_in_use', HINT = 'Call weft.wait_for_join_completion.';
		END IF;
		SELECT * INTO checked FROM weft.check_join(join_target_dsn, node_group_name);
		DELETE FROM weft.join_entry;
		INSERT INTO weft.join_entry (node_group_name, target_node, copy_schema)
			VALUES ((checked.target ->> 'group')::name, (checked.target ->> 'node')::name,
				checked.copy_schema);
		PERFORM weft.set_node_dsn('join target', join_target_dsn);
	END IF;
	PERFORM weft.launch_join();
END $$;

COMMENT ON FUNCTION weft.join_node_group(text, name, boolean) IS
	'starts or resumes joining the group of another node, in the background; "from_backup" on a physical copy of that node';
REVOKE ALL ON FUNCTION weft.join_node_group(text, name, boolean) FROM PUBLIC;

CREATE FUNCTION weft.wait_for_join_completion(timeout interval DEFAULT '1 hour')
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	until timestamptz := clock_timestamp() + timeout;
	launched timestamptz := clock_timestamp();
	progress jsonb;
	entry jsonb;
BEGIN
	LOOP
		progress := weft.join_progress();
		entry := progress -> 'entry';
		IF entry = 'null' THEN
			IF progress ->> 'group' IS NULL THEN
				RAISE EXCEPTION 'this database is not joining a node group'
					USING ERRCODE = 'object_not_in_prerequisite_state';
			END IF;
			RETURN;
		END IF;
		IF entry ->> 'error' IS NOT NULL AND NOT (entry -> 'copied')::boolean THEN
			RAISE EXCEPTION 'node "%" could not join node group "%": %',
				weft.local_node(), entry ->> 'node_group_name', entry ->> 'error';
		END IF;
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'timed out waiting for node "%" to join node group "%"', weft.local_node(), entry ->> 'node_group_name'
				USING ERRCODE = 'query_canceled',
					DETAIL = concat_ws(' ', format('It has reached step "%s".', entry ->> 'step'), entry ->> 'error');
		END IF;
		-- After a restart of the server, nothing else starts the worker.
		PERFORM pg_stat_clear_snapshot();
		IF clock_timestamp() > launched + interval '5 s' AND NOT weft.is_joining() THEN
			PERFORM weft.launch_join();
			launched := clock_timestamp();
		END IF;
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.wait_for_join_completion(interval) IS
	'waits until this node has joined its group; fails if it cannot, or not in time';
REVOKE ALL ON FUNCTION weft.wait_for_join_completion(interval) FROM PUBLIC;

CREATE FUNCTION weft.query_group(node_group_name name, query text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF query_group.node_group_name IS DISTINCT FROM weft.local_group() THEN
		RAISE EXCEPTION 'this database is not a member of node group "%"', node_group_name
			USING ERRCODE = 'undefined_object';
	END IF;
	PERFORM weft.node_query_all(array_agg(dsn ORDER BY node_id),
			array_agg(node_name::text ORDER BY node_id), query)
		FROM weft.member;
END $$;

COMMENT ON FUNCTION weft.query_group(name, text) IS
	'runs a query on all members of the group, or, if it fails on one, on none';
REVOKE ALL ON FUNCTION weft.query_group(name, text) FROM PUBLIC;

CREATE FUNCTION weft.alter_node_group_set_conflict_resolver(node_group_name name,
	conflict_type text, conflict_resolver text)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM weft.query_group(node_group_name,
		format('SELECT weft.alter_node_set_conflict_resolver(%L, %L, %L)', '',
			conflict_type, conflict_resolver));
END $$;

COMMENT ON FUNCTION weft.alter_node_group_set_conflict_resolver(name, text, text) IS
	'sets how a type of conflict is resolved, on all members of a node group';
REVOKE ALL ON FUNCTION weft.alter_node_group_set_conflict_resolver(name, text, text) FROM PUBLIC;

-- A member of version 0.1.0 asks the publishers.
CREATE FUNCTION weft.follow_tables(member weft.member, members weft.member[])
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	info jsonb := weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_info()')::jsonb;
	other weft.member;
BEGIN
	IF (info ->> 'protocol')::integer >= 2 THEN
		PERFORM weft.node_query(member.dsn, member.node_name, 'SELECT weft.member_follow_tables()');
		RETURN;
	END IF;
	FOREACH other IN ARRAY members LOOP
		CONTINUE WHEN member.node_name = other.node_name;
		PERFORM weft.node_query(member.dsn, member.node_name,
			format('ALTER SUBSCRIPTION %I REFRESH PUBLICATION WITH (copy_data = false)',
				weft.subscription_name(weft.local_group(), other.node_name, member.node_name)), true);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.follow_tables(weft.member, weft.member[]) IS
	'makes a member apply changes of the tables that it publishes';
REVOKE ALL ON FUNCTION weft.follow_tables(weft.member, weft.member[]) FROM PUBLIC;

CREATE FUNCTION weft.refresh_node_group(node_group_name name)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	members weft.member[] := ARRAY(SELECT n FROM weft.member n ORDER BY n.node_id);
	member weft.member;
	theirs text[];
	common text[];
	stray text[] := '{}';
	relation text;
BEGIN
	FOREACH member IN ARRAY members LOOP
		theirs := coalesce(weft.node_query(member.dsn, member.node_name,
			'SELECT array_agg(r::text) FROM weft.group_tables() r'), '{}')::text[];
		-- Names as the member writes them, which this session's settings do not affect.
		common := coalesce(common, theirs);
		stray := ARRAY(SELECT unnest(stray) UNION
			(SELECT unnest(common || theirs) EXCEPT (SELECT unnest(common) INTERSECT SELECT unnest(theirs))));
		common := ARRAY(SELECT unnest(common) INTERSECT SELECT unnest(theirs));
	END LOOP;
	FOREACH relation IN ARRAY stray LOOP
		RAISE WARNING 'table % is not replicated, because not all members have it', relation
			USING HINT = 'Create it on all members and call weft.refresh_node_group again, or drop it.';
	END LOOP;
	PERFORM weft.query_group(node_group_name, format('SELECT weft.member_publish(%L)', common));
	PERFORM weft.query_group(node_group_name, 'SELECT weft.member_track_deletes(true)');
	FOREACH member IN ARRAY members LOOP
		PERFORM weft.follow_tables(member, members);
	END LOOP;
END $$;

COMMENT ON FUNCTION weft.refresh_node_group(name) IS
	'replicates tables that have been created on all members since';
REVOKE ALL ON FUNCTION weft.refresh_node_group(name) FROM PUBLIC;

CREATE FUNCTION weft.snowflake_nextval(sequence regclass)
RETURNS bigint
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_snowflake_nextval';

COMMENT ON FUNCTION weft.snowflake_nextval(regclass) IS
	'a number that is unique in the node group, made of the time, the node and the sequence';
