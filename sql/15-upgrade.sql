-- pg_upgrade of this server (src/known_origin.c has what is lost, and the protocol).

CREATE TABLE weft.known_origin (
	subname name NOT NULL,
	subid oid NOT NULL,
	origin oid NOT NULL,
	system_identifier bigint NOT NULL);

ALTER TABLE weft.known_origin REPLICA IDENTITY NOTHING;

COMMENT ON TABLE weft.known_origin IS
	'the replication origin of each subscription that detects conflicts, and the server on which it has it';

CREATE FUNCTION weft.note_origins()
RETURNS void
LANGUAGE C STRICT VOLATILE
AS 'MODULE_PATHNAME', 'weft_note_origins';

COMMENT ON FUNCTION weft.note_origins() IS
	'stores the replication origins of subscriptions that detect conflicts';
REVOKE ALL ON FUNCTION weft.note_origins() FROM PUBLIC;

-- Those whose apply workers have started already.
SELECT weft.note_origins();

CREATE FUNCTION weft.finish_upgrade(old_data_directory text)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'weft_finish_upgrade';

COMMENT ON FUNCTION weft.finish_upgrade(text) IS
	'completes pg_upgrade: restores the commit times of the old server, so that conflicts are resolved as before';
REVOKE ALL ON FUNCTION weft.finish_upgrade(text) FROM PUBLIC;

-- SECURITY DEFINER, since nobody may read the table.
CREATE FUNCTION weft.health_of_upgrade(
	OUT id text, OUT severity text, OUT object text, OUT problem text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'H016', 'error', k.subname::text,
		'nothing is applied before weft.finish_upgrade() is called: this server was upgraded with pg_upgrade',
		'Call weft.finish_upgrade() with the data directory of the old server.'
	FROM weft.known_origin k, pg_control_system() c
	WHERE k.system_identifier <> c.system_identifier
$$;
