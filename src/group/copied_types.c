/*
 * copied_types.c
 *	  Are types of the member that is copied still what the snapshot has?
 *
 * A COPY writes values as their types are now: an enum value with its label, a row with the attributes that it has.
 * The joining node reads them as the snapshot has these types.  Locks on tables do not keep anybody from
 * ALTER TYPE.
 */
#include "postgres.h"

#include "group/copied_types.h"
#include "utils/builtins.h"

/* The row types that columns, their elements or their domains have, and all that belong to no table. */
#define ROW_TYPES \
	"c.relkind = 'c' OR c.reltype IN (SELECT coalesce(NULLIF(t.typelem, 0), NULLIF(t.typbasetype, 0), t.oid)" \
	" FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid)"

/* Each label of an enum type, and the attributes of each row type. */
#define PARTS \
	"(SELECT 'label ' || e.oid, e.enumtypid, e.enumlabel::pg_catalog.text FROM pg_catalog.pg_enum e" \
	" UNION ALL SELECT 'row ' || c.oid, c.reltype," \
	" coalesce((SELECT pg_catalog.string_agg(pg_catalog.concat_ws(':', a.attnum, a.atttypid), ' ' ORDER BY a.attnum)" \
	"  FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '')" \
	" FROM pg_catalog.pg_class c WHERE " ROW_TYPES ") p (key, type, value)"

/*
 * Returns the names of types that are not what they are in the snapshot of the transaction of "source", or NULL if there
 * is none.  "now" is another session on that member, which sees what is there now.  Labels that were added, and types that
 * were dropped, do not matter: no row in the snapshot has them.
 */
char *
copied_types_changed(Remote *source, Remote *now)
{
	char	   *parts = remote_value(now,
									 "SELECT coalesce(pg_catalog.json_object_agg(p.key, p.value), '{}') FROM " PARTS);

	return remote_value(source,
						psprintf("SELECT pg_catalog.string_agg(DISTINCT pg_catalog.format_type(p.type, NULL), ', ')"
								 " FROM " PARTS ", (SELECT %s::pg_catalog.jsonb) s (parts)"
								 " WHERE s.parts ->> p.key <> p.value",
								 quote_literal_cstr(parts)));
}
