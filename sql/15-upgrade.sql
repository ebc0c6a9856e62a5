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
