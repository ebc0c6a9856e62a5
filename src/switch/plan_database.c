/*
 * plan_database.c
 *	  Checks of a switch-over: what else is in both databases, sessions, and settings.
 */
#include "postgres.h"

#include "switch/plan_database.h"

/* The version of an extension as numbers, if it consists of numbers. */
#define VERSION_NUMBERS(version) \
	"CASE WHEN " version " ~ '^[0-9]{1,8}([.][0-9]{1,8})*$' THEN string_to_array(" version ", '.')::int[] END"

static const PlanCheck checks[] = {
	{
		.name = "extensions",
		.there = "SELECT extname, extversion FROM pg_extension",
		.columns = "ext, version",
		.here =
		" SELECT quote_ident(ext), 'error', 'the extension does not exist here',"
		" CASE WHEN EXISTS (SELECT FROM pg_available_extensions a WHERE a.name = ext) THEN format('CREATE EXTENSION %I;', ext)"
		"  ELSE format('CREATE EXTENSION %I; -- after installing its package', ext) END"
		" FROM there WHERE NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = ext)"
		" UNION ALL SELECT quote_ident(ext), 'warning', format('the extension has version %s here, %s on the publisher', extversion, version),"
		" format('ALTER EXTENSION %I UPDATE;', ext) FROM there JOIN pg_extension ON extname = ext"
		" WHERE version <> extversion AND coalesce(" VERSION_NUMBERS("extversion") " < " VERSION_NUMBERS("version") ", true) ORDER BY 1"
	},
	{
		.name = "missing_relations",
		.there =
		"SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
		" WHERE c.relkind IN ('v', 'm', 'f') AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'weft', 'weft_switch')"
		" AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e')",
		.columns = "nsp, rel, kind",
		.here =
		" SELECT format('%I.%I', nsp, rel), 'warning', format('%s of the publisher does not exist here',"
		"  CASE kind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' ELSE 'a foreign table' END),"
		" 'Create it here.' FROM there WHERE NOT EXISTS (SELECT FROM pg_class c"
		"  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = nsp AND c.relname = rel)"
		" UNION ALL SELECT c.oid::regclass::text, 'warning', 'the materialized view has not been filled here',"
		" format('REFRESH MATERIALIZED VIEW %s;', c.oid::regclass) FROM pg_class c WHERE c.relkind = 'm' AND NOT c.relispopulated ORDER BY 1"
	},
	{
		.name = "functions",
		.there =
		"SELECT n.nspname, p.proname, pg_get_function_identity_arguments(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
		" WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'weft', 'weft_switch')"
		" AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')",
		.columns = "nsp, fun, args",
		.here =
		" SELECT format('%I.%I(%s)', nsp, fun, args), 'warning', 'the function of the publisher does not exist here', 'Create it here.'"
		" FROM there WHERE NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
		"  WHERE n.nspname = nsp AND p.proname = fun AND pg_get_function_identity_arguments(p.oid) = args) ORDER BY 1"
	},
	{
		.name = "enum_types",
		.there =
		"SELECT n.nspname, t.typname, e.enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid"
		" JOIN pg_namespace n ON n.oid = t.typnamespace",
		.columns = "nsp, typ, label",
		.here =
		" SELECT format('%I.%I', nsp, typ), 'error', format('the type has no value %L here', label),"
		" format('ALTER TYPE %I.%I ADD VALUE %L;', nsp, typ, label)"
		" FROM there JOIN pg_namespace n ON n.nspname = nsp JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = typ"
		" WHERE NOT EXISTS (SELECT FROM pg_enum e WHERE e.enumtypid = t.oid AND e.enumlabel = label) ORDER BY 1, 3"
	},
	{
		.name = "event_triggers",
		.there = "SELECT evtname, evtevent, evtenabled FROM pg_event_trigger",
		.columns = "trg, event, enabled",
		.here =
		" SELECT quote_ident(trg), 'warning', 'the event trigger of the publisher does not exist here', 'Create the event trigger here.'"
		" FROM there WHERE enabled <> 'D' AND NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = trg)"
		" UNION ALL SELECT quote_ident(evtname), 'warning', 'the event trigger fires here, for commands of the switch-over as well',"
		" format('ALTER EVENT TRIGGER %I DISABLE;', evtname) FROM pg_event_trigger WHERE evtenabled IN ('O', 'A')"
		" UNION ALL SELECT quote_ident(trg), 'warning', 'the event trigger fires on the publisher, for commands of the switch-over as well',"
		" format('ALTER EVENT TRIGGER %I DISABLE; -- on the publisher', trg) FROM there WHERE enabled IN ('O', 'A') ORDER BY 1"
	},
	{
		.name = "large_objects",
		.there = "SELECT count(*) FROM pg_largeobject_metadata",
		.columns = "n",
		.here =
		" SELECT NULL, CASE WHEN n::bigint > here THEN 'error' ELSE 'warning' END,"
		" format('the publisher has %s large objects, this server %s; they are not replicated', n, here),"
		" 'Copy them, with lo_get() there and lo_from_bytea() here, before the switch-over and again during it.'"
		" FROM there, (SELECT count(*) FROM pg_largeobject_metadata) l(here) WHERE n::bigint > 0"
	},
	{
		.name = "encoding",
		.there =
		"SELECT pg_encoding_to_char(d.encoding), d.datcollate, d.datctype, d.datlocprovider,"
		" coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale') FROM pg_database d WHERE d.datname = current_database()",
		.columns = "encoding, coll, ctype, provider, locale",
		.here =
		" SELECT what, severity, format('%s is %s here, %s on the publisher', what, coalesce(here, 'none'), coalesce(there, 'none')),"
		" 'Only a new database can have another one: CREATE DATABASE ... TEMPLATE template0 ...;'"
		" FROM (SELECT v.* FROM there t, pg_database d, LATERAL (VALUES"
		"  ('encoding', 'error', t.encoding, pg_encoding_to_char(d.encoding)), ('lc_collate', 'warning', t.coll, d.datcollate),"
		"  ('lc_ctype', 'warning', t.ctype, d.datctype), ('locale provider', 'warning', t.provider, d.datlocprovider::text),"
		"  ('locale', 'warning', t.locale, d.datlocale)) v(what, severity, there, here)"
		"  WHERE d.datname = current_database()) s WHERE there IS DISTINCT FROM here"
	},
	{
		.name = "collation_versions",
		.here =
		"SELECT quote_ident(datname), 'warning', format('the database was created with version %s of its collation, and uses %s: indexes may be out of order', datcollversion, v),"
		" format('REINDEX DATABASE %I; ALTER DATABASE %1$I REFRESH COLLATION VERSION;', datname)"
		" FROM pg_database, pg_database_collation_actual_version(oid) v WHERE datname = current_database() AND datcollversion <> v"
		" UNION ALL SELECT format('%I.%I', nspname, collname), 'warning', format('the collation was created with version %s, and uses %s: indexes may be out of order', collversion, v),"
		" format('ALTER COLLATION %I.%I REFRESH VERSION; -- after REINDEX of its indexes', nspname, collname)"
		" FROM pg_collation c JOIN pg_namespace n ON n.oid = collnamespace, pg_collation_actual_version(c.oid) v"
		" WHERE collversion <> v AND EXISTS (SELECT FROM pg_index WHERE c.oid = ANY (indcollation)) ORDER BY 1"
	},
	{
		.name = "read_only",
		.here =
		"SELECT quote_ident(current_database()), 'error', 'default_transaction_read_only is on here, for all sessions',"
		" format('ALTER SYSTEM RESET default_transaction_read_only; ALTER DATABASE %I RESET default_transaction_read_only; SELECT pg_reload_conf();', current_database())"
		" WHERE EXISTS (SELECT FROM pg_settings WHERE name = 'default_transaction_read_only' AND reset_val = 'on' AND source <> 'user')"
		"  OR EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()"
		"   AND setrole = 0 AND 'default_transaction_read_only=on' = ANY (setconfig))"
		" UNION ALL SELECT quote_ident(rolname), 'warning', 'default_transaction_read_only is on here for sessions of the role',"
		" format('ALTER ROLE %I RESET default_transaction_read_only;', rolname)"
		" FROM pg_db_role_setting JOIN pg_roles r ON r.oid = setrole WHERE 'default_transaction_read_only=on' = ANY (setconfig) ORDER BY 1"
	},
	{
		.name = "settings",
		.there =
		"SELECT name, coalesce(boot_val, ''), coalesce(reset_val, '') FROM pg_settings WHERE name IN ('max_connections',"
		" 'TimeZone', 'DateStyle', 'IntervalStyle', 'default_text_search_config', 'lc_monetary', 'lc_numeric',"
		" 'default_transaction_isolation', 'max_prepared_transactions', 'max_locks_per_transaction', 'synchronous_commit',"
		" 'fsync', 'full_page_writes', 'xmloption', 'array_nulls', 'standard_conforming_strings')",
		.columns = "param, boot, there",
		.here =
		" SELECT s.name, 'warning', format('%s is %s here, %s on the publisher', s.name, s.reset_val, there),"
		" format('ALTER SYSTEM SET %I = %L;%s', s.name, there,"
		"  CASE WHEN context = 'postmaster' THEN ' -- then restart the server' ELSE ' SELECT pg_reload_conf();' END)"
		" FROM there JOIN pg_settings s ON s.name = param WHERE CASE WHEN vartype = 'integer'"
		"  THEN reset_val::bigint < there::bigint ELSE reset_val <> there END ORDER BY 1"
	},
	{
		.name = "database_settings",
		.there =
		"SELECT r.rolname, split_part(c, '=', 1), substr(c, strpos(c, '=') + 1) FROM pg_db_role_setting"
		" LEFT JOIN pg_roles r ON r.oid = setrole, unnest(setconfig) c"
		" WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) AND (setrole = 0 OR r.oid IS NOT NULL)",
		.columns = "role, param, setting",
		.here =
		", here AS (SELECT r.rolname, c FROM pg_db_role_setting LEFT JOIN pg_roles r ON r.oid = setrole, unnest(setconfig) c"
		"  WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))"
		" SELECT param, 'warning', 'the publisher''s database has this setting' || coalesce(' for role ' || quote_ident(role), '') || ', but this one does not',"
		" CASE WHEN role IS NULL THEN format('ALTER DATABASE %I SET %I = %L;', current_database(), param, setting)"
		"  ELSE format('ALTER ROLE %I IN DATABASE %I SET %I = %L;', role, current_database(), param, setting) END"
		" FROM there WHERE NOT EXISTS (SELECT FROM here WHERE rolname IS NOT DISTINCT FROM role AND c = param || '=' || setting) ORDER BY 1, 3"
	},
	{
		.name = "roles",
		.there = "SELECT rolname FROM pg_roles WHERE rolcanlogin AND NOT rolsuper AND rolname !~ '^pg_'",
		.columns = "role",
		.here =
		" SELECT quote_ident(role), 'warning', 'the role of the publisher does not exist here', format('CREATE ROLE %I LOGIN;', role)"
		" FROM there WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) ORDER BY 1"
	},
	{
		.name = "sessions",
		.there =
		"SELECT CASE WHEN coalesce(application_name, '') = '' THEN '(no application_name)' ELSE application_name END, 'warning',"
		" format('%s sessions are connected to the publisher, as %s', count(*), coalesce(string_agg(DISTINCT usename, ', '), 'roles that are not shown')),"
		" NULL"
		" FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
		/* An apply worker's (receive/publisher_end.c). */
		" AND application_name NOT LIKE 'weft lag of %'"
		" GROUP BY 1 ORDER BY count(*) DESC, 1",
		.remedy = "They must connect to this server after the switch-over."
	},
	{
		.name = "long_transactions",
		.there =
		"SELECT pid::text, 'warning', format('a transaction has been open on the publisher for %s; it may hold up the fence', date_trunc('second', clock_timestamp() - xact_start)),"
		" format('SELECT pg_terminate_backend(%s); -- on the publisher', pid)"
		" FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
		" AND xact_start < clock_timestamp() - interval '5 s'"
		" UNION ALL SELECT pid::text, 'warning', 'a VACUUM that prevents wraparound does not yield its lock to the fence', 'Wait until it has ended.'"
		" FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^autovacuum: .*to prevent wraparound' ORDER BY 1"
	},
	{
		.name = "long_transactions_here",
		.here =
		"SELECT pid::text, 'warning', format('a transaction has been open here for %s; it may hold up the switch-over', date_trunc('second', clock_timestamp() - xact_start)),"
		" format('SELECT pg_terminate_backend(%s);', pid)"
		" FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
		" AND xact_start < clock_timestamp() - interval '5 s' ORDER BY 1"
	},
	{
		.name = "rights_there",
		.there =
		", me AS (SELECT r.*, current_setting('server_version_num')::int AS version FROM pg_roles r WHERE rolname = current_user)"
		" SELECT quote_ident(rolname), 'error', 'the role may not create a schema in the publisher''s database',"
		" format('GRANT CREATE ON DATABASE %I TO %I; -- on the publisher', current_database(), rolname)"
		" FROM me WHERE NOT has_database_privilege(current_database(), 'CREATE')"
		" UNION ALL SELECT p.relid::regclass::text, 'error', format('role %I does not own the table on the publisher', rolname),"
		" format('GRANT %I TO %I; -- on the publisher', pg_get_userbyid(relowner), rolname)"
		" FROM me, published p JOIN pg_class c ON c.oid = p.relid WHERE NOT rolsuper AND NOT pg_has_role(relowner, 'USAGE')"
		" UNION ALL SELECT quote_ident(rolname), 'error', CASE WHEN version < 160000"
		"  THEN 'the role may not create a subscription on the publisher: PostgreSQL 15 demands a superuser'"
		"  ELSE 'the role may not create a subscription on the publisher' END,"
		" CASE WHEN version < 160000 THEN 'Name a superuser in publisher_connection.'"
		"  ELSE format('GRANT pg_create_subscription TO %I; -- on the publisher', rolname) END"
		" FROM me, subscription WHERE reverse AND NOT rolsuper AND (version < 160000 OR NOT EXISTS"
		"  (SELECT FROM pg_roles c WHERE c.rolname = 'pg_create_subscription' AND pg_has_role(c.oid, 'USAGE')))"
		" UNION ALL SELECT quote_ident(rolname), 'warning', 'the role does not see what other sessions do on the publisher',"
		" format('GRANT pg_read_all_stats TO %I; -- on the publisher', rolname)"
		" FROM me WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE') ORDER BY 1"
	},
	{
		.name = "rights_here",
		.here =
		", me AS (SELECT * FROM pg_roles WHERE oid = $2)"
		" SELECT quote_ident(rolname), 'error', 'the role may not create a schema or a publication in this database',"
		" format('GRANT CREATE ON DATABASE %I TO %I;', current_database(), rolname)"
		" FROM me WHERE NOT has_database_privilege($2, current_database(), 'CREATE')"
		" UNION ALL SELECT p.relid::regclass::text, 'error', format('role %I does not own the table here', rolname),"
		" format('GRANT %I TO %I;', pg_get_userbyid(relowner), rolname)"
		" FROM me, replicated p JOIN pg_class c ON c.oid = p.relid WHERE NOT rolsuper AND NOT pg_has_role($2, relowner, 'USAGE')"
		" UNION ALL SELECT quote_ident(rolname), 'error', 'the role may not create a replication slot here',"
		" format('ALTER ROLE %I REPLICATION;', rolname) FROM me WHERE $3 AND NOT rolsuper AND NOT rolreplication ORDER BY 1"
	},
	{
		.name = "standbys",
		.there =
		"SELECT quote_ident(application_name), 'warning', 'a standby follows the publisher, and will not follow this server',"
		" NULL FROM pg_stat_replication r WHERE NOT EXISTS"
		" (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical') ORDER BY 1",
		.remedy = "Set up standbys of this server."
	}
};

void
plan_database_run(PlanRun *run)
{
	plan_query_run(run, checks, lengthof(checks));
}
