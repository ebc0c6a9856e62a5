/*
 * back_sequences.c
 *	  Sets the other server's sequences at or beyond this one's, for a way back.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "switch/back_sequences.h"
#include "switch/fence.h"
#include "utils/builtins.h"

/* Does the subscription have everything that the publisher has? */
static bool
publishes_all_tables(const SwitchAttempt *attempt)
{
	StringInfoData names;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, attempt->subscription->publications)
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	return side_value(SIDE_THERE,
					  psprintf("SELECT true FROM pg_catalog.pg_publication WHERE puballtables"
							   " AND pubname IN (%s) LIMIT 1", names.data)) != NULL;
}

/*
 * The sequences here that have been used, or may have been: name, direction, whether the caller
 * may read it, and a value that none of them has reached.  They are the same as for the way there
 * (verify/sequences.c): those that columns of the subscription's tables own or take defaults
 * from, and others in the tables' schemas.
 */
static char *
sequences_here(const SwitchAttempt *attempt, int64 margin)
{
	return side_value(SIDE_HERE,
					  psprintf("WITH replicated AS (SELECT t.oid FROM (%s) base, LATERAL (SELECT base.oid"
							   "  UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(base.oid)"
							   "  UNION SELECT relid FROM pg_catalog.pg_partition_tree(base.oid)) t(oid)),"
							   " used AS (SELECT d.objid AS oid FROM replicated r JOIN pg_catalog.pg_depend d"
							   "   ON d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = r.oid"
							   "   AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype IN ('a', 'i')"
							   "  UNION SELECT d.refobjid FROM replicated r JOIN pg_catalog.pg_attrdef a ON a.adrelid = r.oid"
							   "   JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass"
							   "   AND d.objid = a.oid AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass)"
							   " SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object("
							   "'name', pg_catalog.format('%%I.%%I', s.schemaname, s.sequencename), 'up', s.increment_by > 0,"
							   "'readable', pg_catalog.has_sequence_privilege(c.oid, 'SELECT, USAGE'),"
							   " 'value', CASE WHEN s.increment_by > 0"
							   " THEN least(s.max_value, s.last_value + s.increment_by::pg_catalog.numeric * (s.cache_size + " INT64_FORMAT "))"
							   " ELSE greatest(s.min_value, s.last_value + s.increment_by::pg_catalog.numeric * (s.cache_size + " INT64_FORMAT ")) END))"
							   " FROM pg_catalog.pg_sequences s JOIN pg_catalog.pg_namespace n ON n.nspname = s.schemaname"
							   " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = s.sequencename"
							   " WHERE (s.last_value IS NOT NULL OR NOT pg_catalog.has_sequence_privilege(c.oid, 'SELECT, USAGE'))"
							   " AND s.schemaname NOT IN ('weft', 'weft_switch')"
							   " AND (%s OR c.oid IN (SELECT oid FROM used) OR n.oid IN (SELECT t.relnamespace"
							   "  FROM replicated r JOIN pg_catalog.pg_class t ON t.oid = r.oid))",
							   fence_base_tables(attempt, SIDE_HERE), margin, margin,
							   publishes_all_tables(attempt) ? "true" : "false"));
}

/*
 * Fails if the value of a sequence that exists there is not known here: the other server would
 * make numbers again that this one has used.
 */
static void
require_readable(const char *sequences)
{
	char	   *unreadable =
		side_value(SIDE_THERE,
				   psprintf("SELECT pg_catalog.string_agg(r.name, ', ' ORDER BY r.name COLLATE \"C\")"
							" FROM pg_catalog.jsonb_to_recordset(%s) AS r (name text, readable boolean)"
							" JOIN pg_catalog.pg_sequence q ON q.seqrelid = pg_catalog.to_regclass(r.name)"
							" WHERE NOT r.readable", quote_literal_cstr(sequences)));

	if (unreadable != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not read sequence %s here",
						GetUserNameFromId(GetUserId(), false), unreadable),
				 errdetail("The other server would make numbers again that this one has used."),
				 errhint("GRANT SELECT ON SEQUENCE %s TO %s;", unreadable,
						 quote_identifier(GetUserNameFromId(GetUserId(), false)))));
}

/*
 * Sets those sequences of the other server that exist there by the same name, and are behind.
 * "margin" is how many numbers further they should be than those here.
 */
void
back_sequences_sync(const SwitchAttempt *attempt, int64 margin)
{
	char	   *sequences = sequences_here(attempt, margin);

	if (sequences == NULL)
		return;
	require_readable(sequences);
	side_run_block(SIDE_THERE,
				   psprintf("DECLARE s record; BEGIN"
							" FOR s IN SELECT r.name, r.up, r.value, q.seqmin, q.seqmax"
							"  FROM pg_catalog.jsonb_to_recordset(%s) AS r (name text, up boolean, value bigint)"
							"  JOIN pg_catalog.pg_sequence q ON q.seqrelid = pg_catalog.to_regclass(r.name) LOOP"
							"  EXECUTE pg_catalog.format('SELECT pg_catalog.setval(%%L, %%s) FROM %%s WHERE last_value %%s %%s',"
							"   s.name, least(s.seqmax, greatest(s.seqmin, s.value)), s.name,"
							"   CASE WHEN s.up THEN '<=' ELSE '>=' END, s.value);"
							" END LOOP; END", quote_literal_cstr(sequences)));
}
