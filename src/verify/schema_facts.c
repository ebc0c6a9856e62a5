/*
 * schema_facts.c
 *	  Reads what a catalog says of the tables of a subscription.
 *
 * The same query runs here and on the publisher, under the settings of pinned_settings.c:
 * search_path is empty there, and "pg_catalog, pg_temp" here.  Therefore the server qualifies all names
 * but its own, and names in the query itself mean objects of the server.  Whoever can connect may read
 * these catalogs.
 *
 * A fact is about one property of one object.  OIDs and numbers of columns are left out, and so
 * is what may differ without being wrong: owners, privileges, comments, tablespaces, the order of columns, statistics.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "local_query.h"
#include "nodes/value.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "verify/schema_facts.h"

#define FACT_COLUMNS 7

static const char published_query[] =
"WITH entry AS MATERIALIZED (SELECT g.relid FROM pg_publication p,"
" LATERAL pg_get_publication_tables(p.pubname) g WHERE p.pubname IN (%s))"
" SELECT DISTINCT n.nspname::text, c.relname::text,"
" EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a"
"  WHERE a.relid <> c.oid AND a.relid IN (SELECT e2.relid FROM entry e2))::text"
" FROM entry e JOIN pg_class c ON c.oid = e.relid JOIN pg_namespace n ON n.oid = c.relnamespace"
" WHERE n.nspname <> 'weft'";

static const char subscribed_query[] =
"SELECT n.nspname, c.relname FROM pg_subscription_rel r"
" JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
" WHERE r.srsubid = %u AND n.nspname <> 'weft'";

/*
 * The parts of the query for facts.  "tab" are the tables with their partitions, and the tables
 * that they are partitions of; "used_type" the types of their columns and those that these consist
 * of; "seq" the sequences that belong to columns, or that their defaults use.
 */
static const char facts_begin[] =
"WITH RECURSIVE wanted(nspname, relname) AS (VALUES %s),"
" tab AS MATERIALIZED (SELECT DISTINCT r.oid, format('%%I.%%I', rn.nspname, r.relname) AS name"
"  FROM wanted w JOIN pg_namespace n ON n.nspname = w.nspname::name"
"  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname::name,"
"  LATERAL (SELECT c.oid AS relid UNION SELECT t.relid::oid FROM pg_partition_tree(c.oid) t"
"   UNION SELECT p.relid::oid FROM pg_partition_ancestors(c.oid) p) x"
"  JOIN pg_class r ON r.oid = x.relid JOIN pg_namespace rn ON rn.oid = r.relnamespace"
"  WHERE r.relkind IN ('r', 'p', 'f')),"
" used_type(oid) AS (SELECT a.atttypid FROM tab JOIN pg_attribute a ON a.attrelid = tab.oid"
"   WHERE a.attnum > 0 AND NOT a.attisdropped"
"  UNION SELECT x.oid FROM used_type u JOIN pg_type t ON t.oid = u.oid, LATERAL ("
"   SELECT t.typelem WHERE t.typelem <> 0"
"   UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0"
"   UNION ALL SELECT a.atttypid FROM pg_attribute a"
"    WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped"
"   UNION ALL SELECT unnest(ARRAY[g.rngsubtype, g.rngtypid]) FROM pg_range g"
"    WHERE t.oid IN (g.rngtypid, g.rngmultitypid)) x(oid)),"
" own_type AS MATERIALIZED (SELECT t.*, format('%%I.%%I', n.nspname, t.typname) AS name"
"  FROM used_type u JOIN pg_type t ON t.oid = u.oid JOIN pg_namespace n ON n.oid = t.typnamespace"
"  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')"
"  AND (t.typtype IN ('d', 'e', 'r') OR t.typtype = 'c' AND EXISTS"
"   (SELECT FROM pg_class k WHERE k.oid = t.typrelid AND k.relkind = 'c'))"
"  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_type'::regclass"
"   AND d.objid = t.oid AND d.deptype = 'e')),"
" seq AS MATERIALIZED (SELECT d.objid AS oid FROM tab JOIN pg_depend d ON d.refobjid = tab.oid"
"   AND d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_class'::regclass"
"   AND d.deptype IN ('a', 'i')"
"  UNION SELECT d.refobjid FROM tab JOIN pg_attrdef f ON f.adrelid = tab.oid"
"   JOIN pg_depend d ON d.objid = f.oid AND d.classid = 'pg_attrdef'::regclass"
"   AND d.refclassid = 'pg_class'::regclass)"
" SELECT f.class, f.kind, f.object, f.tab, f.ord, f.property, f.value FROM (";

static const char facts_of_tables[] =
"SELECT '1' AS class, 'table' AS kind, t.name AS object, '' AS tab, v.ord, v.property, v.value"
" FROM tab t JOIN pg_class c ON c.oid = t.oid, LATERAL (VALUES"
" ('1', 'kind', CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table'"
"  ELSE 'foreign table' END),"
" ('2', 'persistence', CASE c.relpersistence WHEN 'p' THEN 'permanent' WHEN 'u' THEN 'unlogged'"
"  ELSE 'temporary' END),"
" ('3', 'partition key', CASE c.relkind WHEN 'p' THEN pg_get_partkeydef(c.oid) END),"
" ('4', 'partition of', CASE WHEN c.relispartition THEN (SELECT format('%s %s',"
"  i.inhparent::regclass, pg_get_expr(c.relpartbound, c.oid)) FROM pg_inherits i"
"  WHERE i.inhrelid = c.oid AND NOT i.inhdetachpending) END),"
" ('5', 'inherits', CASE WHEN NOT c.relispartition THEN (SELECT"
"  string_agg(i.inhparent::regclass::text, ', ' ORDER BY i.inhseqno) FROM pg_inherits i"
"  WHERE i.inhrelid = c.oid) END),"
" ('6', 'of type', CASE WHEN c.reloftype <> 0 THEN format_type(c.reloftype, NULL) END),"
" ('7', 'replica identity', CASE c.relreplident WHEN 'd' THEN 'default' WHEN 'n' THEN 'nothing'"
"  WHEN 'f' THEN 'full' ELSE (SELECT format('index %I', k.relname) FROM pg_index i"
"  JOIN pg_class k ON k.oid = i.indexrelid WHERE i.indrelid = c.oid AND i.indisreplident) END),"
" ('8', 'storage parameters', (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(c.reloptions) o))"
") v(ord, property, value)";

static const char facts_of_columns[] =
" UNION ALL SELECT '2', 'column', format('%s.%I', t.name, a.attname), t.name,"
" v.ord, v.property, v.value FROM tab t JOIN pg_attribute a ON a.attrelid = t.oid"
" JOIN pg_type y ON y.oid = a.atttypid"
" LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum, LATERAL (VALUES"
" ('1', 'type', format_type(a.atttypid, a.atttypmod)),"
" ('2', 'collation', CASE WHEN a.attcollation <> y.typcollation"
"  THEN a.attcollation::regcollation::text END),"
" ('3', 'not null', CASE WHEN NOT a.attnotnull THEN 'no' WHEN EXISTS (SELECT FROM pg_constraint x"
"  WHERE x.conrelid = a.attrelid AND x.contype = 'n' AND NOT x.convalidated"
"  AND a.attnum = ANY (x.conkey)) THEN 'not valid' ELSE 'yes' END),"
" ('4', 'default', CASE a.attgenerated WHEN '' THEN pg_get_expr(f.adbin, f.adrelid) END),"
" ('5', 'generated', CASE a.attgenerated WHEN '' THEN NULL ELSE format('(%s) %s',"
"  pg_get_expr(f.adbin, f.adrelid), CASE a.attgenerated WHEN 's' THEN 'stored' ELSE 'virtual' END)"
"  END),"
" ('6', 'identity', CASE a.attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by default' END)"
") v(ord, property, value) WHERE a.attnum > 0 AND NOT a.attisdropped";

/*
 * A foreign key to a partitioned table has another entry for each partition, with a name that the
 * server makes.  From version 18 on, NOT NULL is a constraint; it is a property of the column here.
 */
static const char facts_of_constraints[] =
" UNION ALL SELECT '3', 'constraint', format('%s.%I', t.name, x.conname), t.name,"
" v.ord, v.property, v.value FROM tab t JOIN pg_constraint x ON x.conrelid = t.oid"
" LEFT JOIN pg_index i ON i.indexrelid = x.conindid AND x.contype <> 'f', LATERAL (VALUES"
" ('1', 'definition', pg_get_constraintdef(x.oid)),"
" ('2', 'valid index', CASE WHEN i.indisvalid THEN 'yes' WHEN NOT i.indisvalid THEN 'no' END)"
") v(ord, property, value) WHERE x.contype IN ('c', 'f', 'p', 'u', 'x')"
" AND NOT EXISTS (SELECT FROM pg_constraint p WHERE p.oid = x.conparentid"
"  AND p.conrelid = x.conrelid)";

static const char facts_of_indexes[] =
" UNION ALL SELECT '4', 'index', format('%I.%I', n.nspname, c.relname), t.name,"
" v.ord, v.property, v.value FROM tab t JOIN pg_index i ON i.indrelid = t.oid"
" JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace,"
" LATERAL (VALUES ('1', 'definition', pg_get_indexdef(i.indexrelid)),"
" ('2', 'valid', CASE WHEN i.indisvalid THEN 'yes' ELSE 'no' END)"
") v(ord, property, value) WHERE NOT EXISTS (SELECT FROM pg_constraint x"
" WHERE x.conindid = i.indexrelid AND x.contype IN ('p', 'u', 'x'))";

static const char facts_of_triggers[] =
" UNION ALL SELECT '5', 'trigger', format('%s.%I', t.name, g.tgname), t.name,"
" v.ord, v.property, v.value FROM tab t JOIN pg_trigger g ON g.tgrelid = t.oid, LATERAL (VALUES"
" ('1', 'definition', pg_get_triggerdef(g.oid)),"
" ('2', 'fires', CASE g.tgenabled WHEN 'A' THEN 'always' WHEN 'R' THEN 'on replica'"
"  WHEN 'O' THEN 'on origin' ELSE 'never' END)"
") v(ord, property, value) WHERE NOT g.tgisinternal";

static const char facts_of_sequences[] =
" UNION ALL SELECT '6', 'sequence', format('%I.%I', n.nspname, c.relname), '',"
" v.ord, v.property, v.value FROM seq JOIN pg_sequence s ON s.seqrelid = seq.oid"
" JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace,"
" LATERAL (VALUES ('1', 'type', format_type(s.seqtypid, NULL)),"
" ('2', 'increment', s.seqincrement::text), ('3', 'minimum', s.seqmin::text),"
" ('4', 'maximum', s.seqmax::text), ('5', 'start', s.seqstart::text),"
" ('6', 'cache', s.seqcache::text), ('7', 'cycle', CASE WHEN s.seqcycle THEN 'yes' ELSE 'no' END),"
" ('8', 'owned by', (SELECT format('%s.%I', d.refobjid::regclass, a.attname) FROM pg_depend d"
"  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid"
"  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid"
"  AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))"
") v(ord, property, value)";

static const char facts_of_types[] =
" UNION ALL SELECT '7', 'type', t.name, '', v.ord, v.property, v.value FROM own_type t,"
" LATERAL (VALUES ('1', 'kind', CASE t.typtype WHEN 'c' THEN 'composite type' WHEN 'd' THEN 'domain'"
"  WHEN 'e' THEN 'enum' ELSE 'range type' END),"
" ('2', 'labels', CASE t.typtype WHEN 'e' THEN (SELECT string_agg(quote_literal(e.enumlabel), ', '"
"  ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid) END),"
" ('3', 'attributes', CASE t.typtype WHEN 'c' THEN (SELECT string_agg(format('%I %s%s', a.attname,"
"  format_type(a.atttypid, a.atttypmod), CASE WHEN a.attcollation <> y.typcollation"
"  THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END), ', ' ORDER BY a.attnum)"
"  FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid WHERE a.attrelid = t.typrelid"
"  AND a.attnum > 0 AND NOT a.attisdropped) END),"
" ('4', 'base type', CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) END),"
" ('5', 'collation', CASE WHEN t.typtype = 'd' AND t.typcollation <> (SELECT b.typcollation"
"  FROM pg_type b WHERE b.oid = t.typbasetype) THEN t.typcollation::regcollation::text END),"
" ('6', 'not null', CASE t.typtype WHEN 'd' THEN CASE WHEN t.typnotnull THEN 'yes' ELSE 'no' END END),"
" ('7', 'default', CASE t.typtype WHEN 'd' THEN t.typdefault END),"
" ('8', 'subtype', (SELECT format('%s %s %s %s %s', format_type(g.rngsubtype, NULL),"
"  (SELECT format('%I.%I', n.nspname, o.opcname) FROM pg_opclass o"
"   JOIN pg_namespace n ON n.oid = o.opcnamespace WHERE o.oid = g.rngsubopc),"
"  CASE WHEN g.rngcollation <> 0 THEN g.rngcollation::regcollation::text END,"
"  CASE WHEN g.rngcanonical <> 0 THEN g.rngcanonical::text END,"
"  CASE WHEN g.rngsubdiff <> 0 THEN g.rngsubdiff::text END)"
"  FROM pg_range g WHERE g.rngtypid = t.oid))"
") v(ord, property, value)"
" UNION ALL SELECT '8', 'domain constraint', format('%s.%I', t.name, x.conname), '', '1',"
" 'definition', pg_get_constraintdef(x.oid) FROM own_type t JOIN pg_constraint x ON x.contypid = t.oid"
" WHERE x.contype = 'c'";

static const char facts_end[] = ") f WHERE f.value IS NOT NULL";

static const char *const facts_parts[] = {
	facts_of_tables, facts_of_columns, facts_of_constraints, facts_of_indexes,
	facts_of_triggers, facts_of_sequences, facts_of_types, facts_end,
};

static char *
facts_query(List *tables)
{
	StringInfoData names;
	StringInfoData query;

	initStringInfo(&names);
	foreach_ptr(SchemaTable, table, tables)
		appendStringInfo(&names, "%s(%s, %s)", names.len > 0 ? ", " : "",
						 quote_literal_cstr(table->schema), quote_literal_cstr(table->name));
	initStringInfo(&query);
	appendStringInfo(&query, facts_begin, names.data);
	for (int i = 0; i < lengthof(facts_parts); i++)
		appendStringInfoString(&query, facts_parts[i]);
	return query.data;
}

/* Turns rows into facts. */
static List *
make_facts(List *rows)
{
	List	   *result = NIL;

	foreach_ptr(LocalValue, row, rows)
	{
		SchemaFact *fact = palloc(sizeof(SchemaFact));

		for (int i = 0; i < FACT_COLUMNS; i++)
			if (row[i] == NULL)
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("the publisher has sent an unexpected null value")));
		fact->class = row[0];
		fact->kind = row[1];
		fact->object = row[2];
		fact->table = row[3];
		fact->order = row[4];
		fact->property = row[5];
		fact->value = row[6];
		result = lappend(result, fact);
	}
	return result;
}

static SchemaTable *
make_table(char *schema, char *name, bool covered)
{
	SchemaTable *table = palloc(sizeof(SchemaTable));

	table->schema = schema;
	table->name = name;
	table->covered = covered;
	return table;
}

/* Lists the tables that the publisher publishes for a subscription. */
List *
schema_published_tables(Subscription *subscription, WalReceiverConn *conn)
{
	char	   *purpose = psprintf("read what the publisher of subscription \"%s\" publishes",
								   subscription->name);
	StringInfoData names;
	List	   *result = NIL;

	initStringInfo(&names);
	foreach_node(String, name, subscription->publications)
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(name)));
	foreach_ptr(RemoteValue, row, remote_query(conn, purpose,
											   psprintf(published_query, names.data),
											   WALRCV_OK_TUPLES, 3).rows)
		if (row[0] != NULL && row[1] != NULL)
		result = lappend(result, make_table(row[0], row[1],
											row[2] != NULL && strcmp(row[2], "true") == 0));
	return result;
}

/* Lists the tables of a subscription. */
List *
schema_subscribed_tables(const Subscription *subscription)
{
	List	   *result = NIL;

	foreach_ptr(LocalValue, row, local_rows(psprintf(subscribed_query, subscription->oid), 2))
		result = lappend(result, make_table(row[0], row[1], false));
	return result;
}

/* Reads the facts about tables from the publisher's catalog. */
List *
schema_facts_there(Subscription *subscription, WalReceiverConn *conn, List *tables)
{
	char	   *purpose = psprintf("read the schema of the publisher of subscription \"%s\"",
								   subscription->name);

	return make_facts(remote_query(conn, purpose, facts_query(tables), WALRCV_OK_TUPLES,
								   FACT_COLUMNS).rows);
}

/* Reads the facts about tables from the catalog of this database. */
List *
schema_facts_here(List *tables)
{
	return make_facts(local_rows(facts_query(tables), FACT_COLUMNS));
}
