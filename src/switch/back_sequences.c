/*
 * back_sequences.c
 *	  Sets the other server's sequences at or beyond this one's, for a way back.
 */
#include "postgres.h"

#include "switch/back_sequences.h"
#include "switch/fence.h"
#include "utils/builtins.h"

/*
 * The sequences here, in the schemas of the subscription's tables, that have been used: name,
 * direction, and a value that none of them has reached.
 */
static char *
sequences_here(const SwitchAttempt *attempt, int64 margin)
{
	return side_value(SIDE_HERE,
					  psprintf("SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object("
							   "'name', pg_catalog.format('%%I.%%I', s.schemaname, s.sequencename), 'up', s.increment_by > 0,"
							   " 'value', CASE WHEN s.increment_by > 0"
							   " THEN least(s.max_value, s.last_value + s.increment_by::pg_catalog.numeric * (s.cache_size + " INT64_FORMAT "))"
							   " ELSE greatest(s.min_value, s.last_value + s.increment_by::pg_catalog.numeric * (s.cache_size + " INT64_FORMAT ")) END))"
							   " FROM pg_catalog.pg_sequences s WHERE s.last_value IS NOT NULL"
							   " AND s.schemaname <> 'weft_switch' AND s.schemaname IN (SELECT n.nspname"
							   "  FROM (%s) base JOIN pg_catalog.pg_class c ON c.oid = base.oid"
							   "  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)",
							   margin, margin, fence_base_tables(attempt, SIDE_HERE)));
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
	side_run(SIDE_THERE,
			 psprintf("DO $weft$ DECLARE s record; BEGIN"
					  " FOR s IN SELECT r.name, r.up, r.value, q.seqmin, q.seqmax"
					  "  FROM pg_catalog.jsonb_to_recordset(%s) AS r (name text, up boolean, value bigint)"
					  "  JOIN pg_catalog.pg_sequence q ON q.seqrelid = pg_catalog.to_regclass(r.name) LOOP"
					  "  EXECUTE pg_catalog.format('SELECT pg_catalog.setval(%%L, %%s) FROM %%s WHERE last_value %%s %%s',"
					  "   s.name, least(s.seqmax, greatest(s.seqmin, s.value)), s.name,"
					  "   CASE WHEN s.up THEN '<=' ELSE '>=' END, s.value);"
					  " END LOOP; END $weft$", quote_literal_cstr(sequences)));
}
