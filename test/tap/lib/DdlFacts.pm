# What users have defined in a database, of all kinds of objects.
package DdlFacts;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;
use WeftTest;

our @EXPORT = qw(facts_of same_facts);

# One line for each fact, by names and definitions.  Objects of extensions are left out.
my $facts_query = <<'EOQ';
WITH member AS (
	SELECT classid, objid FROM pg_depend WHERE deptype = 'e'),
own_schema AS (
	SELECT * FROM pg_namespace
	WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'weft')),
own_relation AS (
	SELECT c.* FROM pg_class c WHERE relnamespace IN (SELECT oid FROM own_schema)
		AND ('pg_class'::regclass, c.oid) NOT IN (SELECT * FROM member)),
own_type AS (
	SELECT t.* FROM pg_type t WHERE typnamespace IN (SELECT oid FROM own_schema)
		AND ('pg_type'::regclass, t.oid) NOT IN (SELECT * FROM member)),
own_function AS (
	SELECT p.* FROM pg_proc p WHERE pronamespace IN (SELECT oid FROM own_schema)
		AND ('pg_proc'::regclass, p.oid) NOT IN (SELECT * FROM member))
SELECT line FROM (
	SELECT format('schema %s %s %s', nspname, nspowner::regrole, nspacl) AS line FROM own_schema
	UNION ALL
	SELECT format('relation %s %s %s %s %s %s %s %s', oid::regclass, relkind, relowner::regrole,
		relacl, reloptions, relrowsecurity, relforcerowsecurity, relispopulated)
		FROM own_relation
	UNION ALL
	SELECT format('column %s.%I %s %s %s %s', attrelid::regclass, attname,
		format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attacl)
		FROM own_relation r JOIN pg_attribute ON attrelid = r.oid AND attnum > 0 AND NOT attisdropped
			LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	UNION ALL
	SELECT format('constraint %s %s %s %s', conrelid::regclass, contypid::regtype, conname,
		pg_get_constraintdef(oid))
		FROM pg_constraint WHERE connamespace IN (SELECT oid FROM own_schema)
	UNION ALL
	SELECT format('index %s', pg_get_indexdef(indexrelid))
		FROM pg_index WHERE indrelid IN (SELECT oid FROM own_relation)
	UNION ALL
	SELECT format('view %s %s', oid::regclass, pg_get_viewdef(oid))
		FROM own_relation WHERE relkind IN ('v', 'm')
	UNION ALL
	SELECT format('type %s %s %s %s', oid::regtype, typtype, typowner::regrole, typacl)
		FROM own_type
	UNION ALL
	SELECT format('function %s %s %s', CASE WHEN prokind = 'a' THEN oid::regprocedure::text
			ELSE pg_get_functiondef(oid) END, proowner::regrole, proacl)
		FROM own_function
	UNION ALL
	SELECT format('aggregate %s %s %s %s', aggfnoid, aggtransfn, aggtranstype::regtype, agginitval)
		FROM pg_aggregate WHERE aggfnoid IN (SELECT oid FROM own_function)
	UNION ALL
	SELECT format('trigger %s %s', pg_get_triggerdef(oid), tgenabled)
		FROM pg_trigger WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM own_relation)
	UNION ALL
	SELECT format('rule %s %s', pg_get_ruledef(oid), ev_enabled)
		FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM own_relation)
	UNION ALL
	SELECT 'policy ' || pg_policies::text FROM pg_policies
	UNION ALL
	SELECT format('statistics %s %s', pg_get_statisticsobjdef(oid), stxstattarget)
		FROM pg_statistic_ext
	UNION ALL
	SELECT format('cast %s %s %s %s', castsource::regtype, casttarget::regtype,
		castfunc::regprocedure, castcontext)
		FROM pg_cast WHERE oid >= 16384 AND ('pg_cast'::regclass, oid) NOT IN (SELECT * FROM member)
	UNION ALL
	SELECT format('operator %s %s %s %s', oid::regoperator, oprcode, oprcom::regoperator, oprrest)
		FROM pg_operator WHERE oprnamespace IN (SELECT oid FROM own_schema)
	UNION ALL
	SELECT format('%s %s', i.type, i.identity)
		FROM pg_amop a, LATERAL pg_identify_object('pg_amop'::regclass, a.oid, 0) i
		WHERE a.oid >= 16384
	UNION ALL
	SELECT format('default privileges %s %s %s %s', defaclrole::regrole,
		defaclnamespace::regnamespace, defaclobjtype, defaclacl)
		FROM pg_default_acl
	UNION ALL
	SELECT format('dictionary %s %s', dictname, dictinitoption)
		FROM pg_ts_dict WHERE dictnamespace IN (SELECT oid FROM own_schema)
	UNION ALL
	SELECT format('text search %s %s %s', mapcfg::regconfig, maptokentype, mapdict::regdictionary)
		FROM pg_ts_config_map WHERE mapcfg >= 16384
	UNION ALL
	SELECT format('extension %s %s %s', extname, extnamespace::regnamespace, extversion)
		FROM pg_extension
	UNION ALL
	SELECT format('event trigger %s %s %s %s %s', evtname, evtevent, evtfoid::regproc, evtenabled,
		evttags)
		FROM pg_event_trigger
	UNION ALL
	SELECT format('server %s %s %s', srvname, srvoptions, srvacl) FROM pg_foreign_server
	UNION ALL
	SELECT format('foreign table %s %s', ftrelid::regclass, ftoptions) FROM pg_foreign_table
	UNION ALL
	SELECT format('%s %s %s', i.type, i.identity, pg_get_userbyid(owner))
		FROM (
			SELECT 'pg_collation'::regclass, oid, collowner FROM pg_collation
			UNION ALL
			SELECT 'pg_conversion'::regclass, oid, conowner FROM pg_conversion
			UNION ALL
			SELECT 'pg_opclass'::regclass, oid, opcowner FROM pg_opclass
			UNION ALL
			SELECT 'pg_opfamily'::regclass, oid, opfowner FROM pg_opfamily
			UNION ALL
			SELECT 'pg_ts_config'::regclass, oid, cfgowner FROM pg_ts_config
			UNION ALL
			SELECT 'pg_ts_template'::regclass, oid, 0 FROM pg_ts_template
			UNION ALL
			SELECT 'pg_ts_parser'::regclass, oid, 0 FROM pg_ts_parser
			UNION ALL
			SELECT 'pg_language'::regclass, oid, lanowner FROM pg_language
			UNION ALL
			SELECT 'pg_am'::regclass, oid, 0 FROM pg_am
			UNION ALL
			SELECT 'pg_transform'::regclass, oid, 0 FROM pg_transform
			UNION ALL
			SELECT 'pg_foreign_data_wrapper'::regclass, oid, fdwowner FROM pg_foreign_data_wrapper
		) AS object (class, oid, owner), LATERAL pg_identify_object(class, oid, 0) i
		WHERE oid >= 16384 AND (class, oid) NOT IN (SELECT * FROM member)
	UNION ALL
	SELECT format('comment %s %s: %s', i.type, i.identity, description)
		FROM pg_description, LATERAL pg_identify_object(classoid, objoid, objsubid) i
		WHERE objoid >= 16384 AND (classoid, objoid) NOT IN (SELECT * FROM member)
			AND i.schema IS DISTINCT FROM 'weft'
) facts ORDER BY line COLLATE "C"
EOQ

sub facts_of
{
	my ($node) = @_;
	return query($node, "SET search_path = ''; " . $facts_query);
}

# One test: the nodes have the same objects.
sub same_facts
{
	my ($pub, $sub, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return same_rows(facts_of($sub), facts_of($pub), $what);
}

1;
