/*
 * plan_tables.c
 *	  Checks of a switch-over: the tables that are replicated, and what belongs to them.
 */
#include "postgres.h"

#include "switch/plan_tables.h"

/* Schemas that users create tables in, and relations that belong to no extension. */
#define OF_A_USER \
	"n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'weft', 'weft_switch')" \
	" AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass" \
	"  AND e.objid = c.oid AND e.deptype = 'e')"

/* What identifies an index, but for its name. */
#define INDEX_TEXT \
	"(SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k)" \
	" FROM generate_series(1, i.indnkeyatts) k)" \
	" || coalesce(' WHERE ' || pg_get_expr(i.indpred, i.indrelid), '')"

/* A remedy that contains the name of a type that the publisher has sent. */
#define IF_TYPE(remedy) \
	"CASE WHEN EXISTS (SELECT FROM pg_type y WHERE format_type(y.oid, NULL) = regexp_replace(type, '[(][0-9]+(,-?[0-9]+)?[)]', ''))" \
	" THEN " remedy " ELSE " PLAN_QUOTE_PUBLISHER(remedy) " END"

static const PlanCheck checks[] = {
	{
		.name = "unpublished_tables",
		.there =
		"SELECT c.oid::regclass::text, 'warning', 'the table is not published: its rows here are not up to date, if it exists here',"
		" format('ALTER PUBLICATION %I ADD TABLE %s; -- on the publisher; here: ALTER SUBSCRIPTION %I REFRESH PUBLICATION;',"
		"  (SELECT pubname FROM publication ORDER BY pubname LIMIT 1), c.oid::regclass, name)"
		" FROM subscription, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
		" WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND " OF_A_USER
		" AND c.oid NOT IN (SELECT relid FROM published)"
		" AND NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a JOIN published p ON p.relid = a.relid)"
		" ORDER BY 1"
	},
	{
		.name = "unlogged_tables",
		.there =
		"SELECT c.oid::regclass::text, 'warning', 'the table is unlogged on the publisher, so it is not replicated',"
		" format('ALTER TABLE %s SET LOGGED; -- on the publisher, and publish it', c.oid::regclass)"
		" FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
		" WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND " OF_A_USER " ORDER BY 1"
	},
	{
		.name = "unlogged_tables_here",
		.here =
		"SELECT c.oid::regclass::text, CASE WHEN $3 THEN 'error' ELSE 'warning' END,"
		" 'the table is unlogged here: it does not survive a crash, and is not replicated on the way back',"
		" format('ALTER TABLE %s SET LOGGED;', c.oid::regclass)"
		" FROM replicated r JOIN pg_class c ON c.oid = r.relid WHERE c.relpersistence = 'u' ORDER BY 1"
	},
	{
		.name = "row_filters",
		.there =
		"SELECT r.prrelid::regclass::text, CASE WHEN reverse THEN 'error' ELSE 'warning' END, format('publication %I has a row filter for the table: rows are missing here', p.pubname),"
		" format('ALTER PUBLICATION %I SET TABLE %s; -- on the publisher; it then has no other table', p.pubname, r.prrelid::regclass)"
		" FROM subscription, pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN publication USING (pubname)"
		" WHERE r.prqual IS NOT NULL ORDER BY 1"
	},
	{
		.name = "column_lists",
		.there =
		"SELECT r.prrelid::regclass::text, CASE WHEN reverse THEN 'error' ELSE 'warning' END, format('publication %I does not publish column %I of the table', p.pubname, a.attname),"
		" format('ALTER PUBLICATION %I SET TABLE %s; -- on the publisher; it then has no other table', p.pubname, r.prrelid::regclass)"
		" FROM subscription, pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN publication USING (pubname)"
		" JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
		" WHERE r.prattrs IS NOT NULL AND a.attnum <> ALL (r.prattrs) ORDER BY 1, a.attnum"
	},
	{
		.name = "replica_identity",
		.there =
		"SELECT c.oid::regclass::text, 'warning', 'the table has no replica identity on the publisher: UPDATE and DELETE fail there',"
		" format('ALTER TABLE %s REPLICA IDENTITY FULL; -- on the publisher; a primary key is better', c.oid::regclass)"
		" FROM published p JOIN pg_class c ON c.oid = p.relid"
		" WHERE c.relkind = 'r' AND (c.relreplident = 'n'"
		"  OR c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
		"  OR c.relreplident = 'i' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))"
		" ORDER BY 1"
	},
	{
		.name = "replica_identity_here",
		.for_reverse = true,
		.here =
		"SELECT c.oid::regclass::text, 'error', 'the table has no replica identity here: UPDATE and DELETE will fail once it is published',"
		" format('ALTER TABLE %s REPLICA IDENTITY FULL; -- here; a primary key is better', c.oid::regclass)"
		" FROM replicated r, LATERAL (SELECT r.relid UNION SELECT t.relid FROM pg_partition_tree(r.relid) t) t"
		" JOIN pg_class c ON c.oid = t.relid"
		" WHERE c.relkind = 'r' AND (c.relreplident = 'n'"
		"  OR c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
		"  OR c.relreplident = 'i' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))"
		" ORDER BY 1"
	},
	{
		.name = "columns",
		.there =
		"SELECT nspname, relname, attname, format_type(atttypid, atttypmod), attnotnull, attgenerated <> '',"
		" attidentity <> '', atthasdef AND attgenerated = ''"
		" FROM published JOIN pg_attribute ON attrelid = relid AND attnum > 0 AND NOT attisdropped",
		.columns = "nsp, rel, att, type, nn, generated, identity, def",
		.here =
		", here AS (SELECT r.nspname AS nsp, r.relname AS rel, r.relid, a.* FROM replicated r"
		" JOIN pg_attribute a ON attrelid = relid AND attnum > 0 AND NOT attisdropped)"
		", pair AS (SELECT coalesce(h.nsp, t.nsp) AS nsp, coalesce(h.rel, t.rel) AS rel, h.*, t.*,"
		"  format('%I.%I', coalesce(h.nsp, t.nsp), coalesce(h.rel, t.rel)) AS tab,"
		"  format_type(h.atttypid, h.atttypmod) AS here_type FROM here h FULL JOIN there t"
		"  ON t.nsp = h.nsp AND t.rel = h.rel AND t.att = h.attname)"
		" SELECT format('%s.%I', tab, att), 'error', 'the column does not exist here',"
		" " IF_TYPE("format('ALTER TABLE %s ADD COLUMN %I %s;', tab, att, type)") " FROM pair"
		" WHERE attname IS NULL AND generated = 'f' AND to_regclass(tab) IS NOT NULL"
		" UNION ALL SELECT format('%s.%I', tab, attname), CASE WHEN $3 THEN 'error' ELSE 'warning' END,"
		" 'the column does not exist on the publisher, which could not follow this server',"
		" format('ALTER TABLE %s ADD COLUMN %I %s; -- on the publisher', tab, attname, here_type) FROM pair"
		" WHERE att IS NULL AND attgenerated = '' AND EXISTS (SELECT FROM there t WHERE format('%I.%I', t.nsp, t.rel) = tab)"
		" UNION ALL SELECT format('%s.%I', tab, attname), 'warning', format('the column is of type %s here, %s on the publisher', here_type, type),"
		" " IF_TYPE("format('ALTER TABLE %s ALTER COLUMN %I TYPE %s;', tab, attname, type)") " FROM pair WHERE here_type <> type"
		" UNION ALL SELECT format('%s.%I', tab, attname), 'warning', 'the column is NOT NULL on one side only',"
		" format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL;%s', tab, attname,"
		"  CASE WHEN attnotnull THEN ' -- on the publisher' ELSE '' END) FROM pair WHERE attnotnull <> nn::bool"
		" UNION ALL SELECT format('%s.%I', tab, attname), 'warning', 'the column has a default on the publisher, but not here',"
		" 'ALTER TABLE ' || tab || ' ALTER COLUMN ' || quote_ident(attname) || ' SET DEFAULT ...;'"
		" FROM pair WHERE def = 't' AND NOT atthasdef AND attidentity = ''"
		" UNION ALL SELECT format('%s.%I', tab, attname), 'warning', 'the column is an identity column on the publisher, but not here',"
		" format('ALTER TABLE %s ALTER COLUMN %I ADD GENERATED BY DEFAULT AS IDENTITY;', tab, attname)"
		" FROM pair WHERE identity = 't' AND attidentity = '' AND NOT atthasdef ORDER BY 1"
	},
	{
		.name = "generated_columns",
		.there =
		"SELECT nspname, relname, attname, attgenerated <> ''"
		" FROM published JOIN pg_attribute ON attrelid = relid AND attnum > 0 AND NOT attisdropped",
		.columns = "nsp, rel, att, generated",
		.here =
		" SELECT format('%I.%I.%I', nsp, rel, att), 'error', CASE WHEN generated = 't' THEN"
		"  'the column is generated on the publisher, so it is not replicated, but an ordinary one here'"
		"  ELSE 'the column is generated here, but an ordinary one on the publisher' END,"
		" 'Make the column the same on both sides.'"
		" FROM there JOIN replicated ON nspname = nsp AND relname = rel"
		" JOIN pg_attribute a ON attrelid = relid AND attname = att AND NOT attisdropped"
		" WHERE generated::bool <> (attgenerated <> '') ORDER BY 1"
	},
	{
		.name = "indexes",
		.there =
		"SELECT nspname, p.relname, c.relname, i.indisunique, " INDEX_TEXT ", pg_get_indexdef(i.indexrelid)"
		" FROM (SELECT relid, nspname, relname AS tab FROM published) p(relid, nspname, relname)"
		" JOIN pg_index i ON i.indrelid = relid AND i.indisvalid"
		" JOIN pg_class c ON c.oid = i.indexrelid",
		.columns = "nsp, rel, idx, uniq, keys, def",
		.here =
		", here AS (SELECT nspname, relname, i.* , " INDEX_TEXT " AS keys FROM replicated"
		"  JOIN pg_index i ON i.indrelid = relid)"
		" SELECT format('%I.%I', nsp, rel), CASE WHEN uniq::bool THEN 'error' ELSE 'warning' END,"
		" format('%s %I (%s) of the publisher does not exist here', CASE WHEN uniq::bool THEN 'unique index' ELSE 'index' END, idx, keys),"
		" " PLAN_QUOTE_PUBLISHER("def || ';'") " FROM there WHERE NOT EXISTS (SELECT FROM here WHERE nspname = nsp AND relname = rel"
		"  AND here.keys = there.keys AND indisvalid AND (indisunique OR NOT uniq::bool))"
		" UNION ALL SELECT indexrelid::regclass::text, 'warning', 'the index is not valid', format('REINDEX INDEX %s;', indexrelid::regclass)"
		" FROM here WHERE NOT indisvalid ORDER BY 1"
	},
	{
		.name = "constraints",
		.there =
		"SELECT nspname, relname, conname, contype, pg_get_constraintdef(k.oid, true)"
		" FROM published JOIN pg_constraint k ON conrelid = relid AND contype IN ('c', 'f', 'x')",
		.columns = "nsp, rel, con, type, def",
		.here =
		", here AS (SELECT nspname, relname, k.*, pg_get_constraintdef(k.oid, true) AS def FROM replicated"
		"  JOIN pg_constraint k ON conrelid = relid AND contype IN ('c', 'f', 'x') AND conparentid = 0)"
		" SELECT format('%I.%I', nsp, rel), 'warning', format('constraint %I of the publisher does not exist here', con),"
		" " PLAN_QUOTE_PUBLISHER("CASE WHEN def ~ ' NOT VALID$' OR type = 'x' THEN format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s;', nsp, rel, con, def)"
								 "  ELSE format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s NOT VALID; ALTER TABLE %1$I.%2$I VALIDATE CONSTRAINT %3$I;', nsp, rel, con, def) END")
		" FROM there JOIN replicated r ON r.nspname = nsp AND r.relname = rel"
		" WHERE NOT EXISTS (SELECT FROM here WHERE here.nspname = nsp AND here.relname = rel AND contype::text = type"
		"  AND (conname = con OR here.def = there.def))"
		" UNION ALL SELECT relid::regclass::text, 'warning', format('foreign key %I refers to table %s, which is not replicated', conname, confrelid::regclass),"
		" 'Publish that table as well.' FROM (SELECT conrelid AS relid, * FROM here) h WHERE contype = 'f'"
		" AND NOT EXISTS (SELECT FROM replicated r WHERE r.relid = confrelid"
		"  OR r.relid IN (SELECT a.relid FROM pg_partition_ancestors(confrelid) a UNION SELECT t.relid FROM pg_partition_tree(confrelid) t))"
		" UNION ALL SELECT conrelid::regclass::text, 'warning', format('constraint %I has not been validated', conname),"
		" format('ALTER TABLE %s VALIDATE CONSTRAINT %I;', conrelid::regclass, conname) FROM here WHERE NOT convalidated ORDER BY 1"
	},
	{
		.name = "triggers",
		.there =
		"SELECT nspname, relname, tgname, tgenabled FROM published JOIN pg_trigger ON tgrelid = relid AND NOT tgisinternal"
		" AND tgname !~ '^weft_'",
		.columns = "nsp, rel, trg, enabled",
		.here =
		", here AS (SELECT nspname, relname, tgname, tgenabled::text, format('%I.%I', nspname, relname) AS tab FROM replicated"
		"  JOIN pg_trigger ON tgrelid = relid AND NOT tgisinternal AND tgname !~ '^weft_')"
		" SELECT format('%I.%I', nsp, rel), 'warning', format('trigger %I of the publisher does not exist here', trg),"
		" 'Create the trigger here.' FROM there JOIN replicated r ON r.nspname = nsp AND r.relname = rel WHERE enabled <> 'D'"
		" AND NOT EXISTS (SELECT FROM here WHERE here.nspname = nsp AND here.relname = rel AND tgname = trg)"
		" UNION ALL SELECT tab, 'warning', format('trigger %I is disabled here, but not on the publisher', tgname),"
		" format('ALTER TABLE %s ENABLE %sTRIGGER %I;', tab, CASE enabled WHEN 'A' THEN 'ALWAYS ' WHEN 'R' THEN 'REPLICA ' ELSE '' END, tgname)"
		" FROM here JOIN there ON nspname = nsp AND relname = rel AND tgname = trg WHERE tgenabled = 'D' AND enabled <> 'D'"
		" UNION ALL SELECT tab, 'warning', format('trigger %I will fire here once this server is written to, but does not on the publisher', tgname),"
		" format('ALTER TABLE %s DISABLE TRIGGER %I;', tab, tgname) FROM here LEFT JOIN there ON nspname = nsp AND relname = rel AND tgname = trg"
		" WHERE tgenabled IN ('O', 'A') AND (enabled IS NULL OR enabled IN ('D', 'R'))"
		" UNION ALL SELECT format('%I.%I', nsp, rel), 'warning', format('trigger %I of the publisher will fire there for replicated changes, too', trg),"
		" format('ALTER TABLE %I.%I ENABLE TRIGGER %I; -- on the publisher', nsp, rel, trg) FROM there WHERE $3 AND enabled IN ('A', 'R') ORDER BY 1"
	},
	{
		.name = "row_security",
		.there = "SELECT nspname, c.relname, c.relrowsecurity FROM published JOIN pg_class c ON c.oid = relid",
		.columns = "nsp, rel, enabled",
		.here =
		" SELECT c.oid::regclass::text, 'warning', format('row-level security is %s here, but not on the publisher', CASE WHEN relrowsecurity THEN 'enabled' ELSE 'disabled' END),"
		" format('ALTER TABLE %s %s ROW LEVEL SECURITY;', c.oid::regclass, CASE WHEN relrowsecurity THEN 'DISABLE' ELSE 'ENABLE' END)"
		" FROM there JOIN replicated r ON r.nspname = nsp AND r.relname = rel JOIN pg_class c ON c.oid = r.relid"
		" WHERE relrowsecurity <> enabled::bool ORDER BY 1"
	},
	{
		.name = "grants",
		.there =
		"SELECT nspname, c.relname, "
		" CASE WHEN a.grantee <> 0 THEN pg_get_userbyid(a.grantee) END, a.privilege_type"
		" FROM published JOIN pg_class c ON c.oid = relid, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a",
		.columns = "nsp, rel, grantee, privilege",
		.here =
		", missing AS (SELECT c.oid, coalesce(quote_ident(grantee), 'PUBLIC') AS quoted, r.oid AS role, privilege FROM there"
		"  JOIN replicated p ON p.nspname = nsp AND p.relname = rel JOIN pg_class c ON c.oid = p.relid"
		"  LEFT JOIN pg_roles r ON r.rolname = grantee WHERE privilege ~ '^[A-Z]+$' AND NOT EXISTS (SELECT"
		"   FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a"
		"   WHERE a.privilege_type = privilege AND a.grantee = CASE WHEN there.grantee IS NULL THEN 0 ELSE r.oid END)"
		"   AND NOT coalesce(r.rolsuper, false))"
		" SELECT oid::regclass::text, 'warning', format('%s has rights on the publisher that it lacks here: %s', quoted, string_agg(lower(privilege), ', ')),"
		" CASE WHEN role IS NULL AND quoted <> 'PUBLIC' THEN format('CREATE ROLE %s; ', quoted) ELSE '' END"
		" || format('GRANT %s ON %s TO %s;', string_agg(privilege, ', '), oid::regclass, quoted)"
		" FROM missing GROUP BY oid, quoted, role ORDER BY 1, quoted"
	},
	{
		.name = "statistics",
		.here =
		"SELECT c.oid::regclass::text, 'warning', 'the planner has no statistics of the table here',"
		" format('ANALYZE %s;', c.oid::regclass) FROM replicated r"
		", LATERAL (SELECT r.relid UNION SELECT t.relid FROM pg_partition_tree(r.relid) t) t"
		" JOIN pg_class c ON c.oid = t.relid"
		" WHERE c.relkind = 'r' AND pg_relation_size(c.oid) > 0 AND (c.reltuples < 0"
		"  OR pg_stat_get_last_analyze_time(c.oid) IS NULL AND pg_stat_get_last_autoanalyze_time(c.oid) IS NULL"
		"  AND NOT EXISTS (SELECT FROM pg_stats s WHERE s.schemaname = c.relnamespace::regnamespace::text AND s.tablename = c.relname))"
		" ORDER BY 1"
	}
};

void
plan_tables_run(PlanRun *run)
{
	plan_query_run(run, checks, lengthof(checks));
}
