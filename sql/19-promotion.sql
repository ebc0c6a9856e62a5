-- What a member lacks that was promoted, or started from an older state of its files (19-node-failover.sql finds it).

-- Has this node found that another one lacks transactions of its own, which nobody can send it, or been told so of
-- itself?  A server that was made from that one lacks them, too.
CREATE FUNCTION weft.is_set_back(node name)
RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (SELECT FROM weft.promotion_loss l
		WHERE l.node_name = node AND l.of_node = node AND l.from_lsn IS NULL AND NOT l.accepted)
$$;

COMMENT ON FUNCTION weft.is_set_back(name) IS
	'whether a member must be parted because it lacks transactions of its own that others have';
REVOKE ALL ON FUNCTION weft.is_set_back(name) FROM PUBLIC;

-- "complete" says that a member which was found to lack transactions of its own is on another server now, which has them.
CREATE FUNCTION weft.accept_promotion(node_name name, complete boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	loss weft.promotion_loss;
	subscription oid := weft.local_subscription(accept_promotion.node_name);
	until timestamptz := clock_timestamp() + interval '30 s';
BEGIN
	IF complete THEN
		DELETE FROM weft.promotion_loss l USING weft.node_entry n, weft.node_copy c
			WHERE l.node_name = accept_promotion.node_name AND l.of_node = l.node_name
				AND l.from_lsn IS NULL AND NOT l.accepted
				AND n.node_name = l.node_name AND c.identity = n.identity AND c.generation > l.generation;
		IF NOT FOUND THEN
			RAISE EXCEPTION 'node "%" has not met another server of node "%" since that one was found to lack transactions',
					weft.local_node(), node_name
				USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Look at weft.health().';
		END IF;
	END IF;
	SELECT * INTO loss FROM weft.promotion_loss l
		WHERE l.node_name = accept_promotion.node_name AND l.of_node = l.node_name AND NOT l.accepted
		ORDER BY l.generation DESC LIMIT 1;
	IF NOT FOUND AND complete AND subscription IS NOT NULL THEN
		PERFORM weft.start_apply(subscription);
		RETURN;
	END IF;
	IF NOT FOUND OR subscription IS NULL THEN
		RAISE EXCEPTION 'node "%" follows node "%", or waits for something else', weft.local_node(), node_name
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Look at weft.health().';
	END IF;
	IF weft.is_set_back(node_name) THEN
		RAISE EXCEPTION 'it is not known from where on node "%" lacks transactions that node "%" has', node_name, weft.local_node()
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Part that node with weft.part_node(..., force => true), and let it join again.';
	END IF;
	LOOP
		BEGIN
			PERFORM pg_replication_origin_advance('pg_' || subscription, loss.from_lsn);
			EXIT;
		EXCEPTION WHEN object_in_use THEN
			IF clock_timestamp() > until THEN
				RAISE;
			END IF;
			PERFORM pg_sleep(0.01);
		END;
	END LOOP;
	UPDATE weft.node_copy c SET followed = loss.server
		FROM weft.node_entry n WHERE n.node_name = loss.node_name AND c.identity = n.identity;
	-- A join that repeats its last steps must not set it forward again.
	UPDATE weft.node_entry n SET start_lsn = loss.from_lsn
		WHERE n.node_name = loss.node_name AND n.start_lsn > loss.from_lsn;
	UPDATE weft.promotion_loss l SET accepted = true
		WHERE l.node_name = loss.node_name AND l.of_node = loss.node_name;
	PERFORM weft.start_apply(subscription);
END $$;

COMMENT ON FUNCTION weft.accept_promotion(name, boolean) IS
	'makes this node follow a member again that was promoted without transactions which this node has';
REVOKE ALL ON FUNCTION weft.accept_promotion(name, boolean) FROM PUBLIC;

CREATE FUNCTION weft.forget_promotion(node_name name)
RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	DELETE FROM weft.promotion_loss l WHERE l.node_name = forget_promotion.node_name AND l.accepted
$$;

COMMENT ON FUNCTION weft.forget_promotion(name) IS
	'removes the findings about a promoted member, after the tables were compared and repaired';
REVOKE ALL ON FUNCTION weft.forget_promotion(name) FROM PUBLIC;

-- A node that joins would copy everything, and then wait.
CREATE FUNCTION weft.refuse_if_set_back()
RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node name := (SELECT n.node_name FROM weft.node_entry n WHERE weft.is_set_back(n.node_name) LIMIT 1);
BEGIN
	IF node IS NOT NULL THEN
		RAISE EXCEPTION 'node "%" was started from an older state of its files, and lacks transactions that other nodes have', node
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'weft.health() says what to do.';
	END IF;
	RETURN NULL;
END $$;

COMMENT ON FUNCTION weft.refuse_if_set_back() IS
	'refuses a new member while another one must be parted';
REVOKE ALL ON FUNCTION weft.refuse_if_set_back() FROM PUBLIC;

CREATE TRIGGER node_entry_set_back AFTER INSERT ON weft.node_entry
	FOR EACH ROW WHEN (NOT NEW.is_local) EXECUTE FUNCTION weft.refuse_if_set_back();
ALTER TABLE weft.node_entry ENABLE ALWAYS TRIGGER node_entry_set_back;

-- H015 of weft.health().
CREATE FUNCTION weft.health_of_promotion(
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H015', CASE WHEN accepted THEN 'warning' ELSE 'error' END, l.node_name::text,
		CASE WHEN is_local AND of_node = l.node_name
			THEN 'this node was started from an older state of its files, and lacks transactions of its own that other nodes have; they do not follow it'
			WHEN accepted
			THEN format('node "%s" was promoted or restored at %s, and may lack transactions of node "%s" between %s and %s',
				l.node_name, date_trunc('second', found_at), of_node, from_lsn, until_lsn)
			ELSE format('node "%s" was promoted or restored without transactions of its own that this node has, between %s and %s; its changes are not applied',
				l.node_name, coalesce(from_lsn::text, 'an unknown position'), until_lsn) END,
		CASE WHEN is_local AND of_node = l.node_name
			THEN 'Part this node on another one with weft.part_node(..., force => true), and let it join again; or, if this is the one to keep, part all others here.'
			WHEN accepted
			THEN format('Compare the members with weft.compare_node, repair, then call weft.forget_promotion(%L) on each.', l.node_name)
			WHEN from_lsn IS NULL AND c.generation > l.generation
			THEN format('If the server that node "%s" is on now was not made from the one that lacked them, call weft.accept_promotion(%L, complete => true) here. Otherwise part the node with weft.part_node(..., force => true), and let it join again.',
				l.node_name, l.node_name)
			WHEN from_lsn IS NULL
			THEN 'Part the node with weft.part_node(..., force => true), and let it join again.'
			ELSE format('Call weft.accept_promotion(%L) here, then compare the members.', l.node_name) END
	FROM weft.promotion_loss l
		LEFT JOIN weft.node_entry n ON n.node_name = l.node_name
		LEFT JOIN weft.node_copy c ON c.identity = n.identity
$$;

COMMENT ON FUNCTION weft.health_of_promotion() IS
	'what promoted members lack';
