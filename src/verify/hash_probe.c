/*
 * hash_probe.c
 *	  Checks that both servers make the same texts and hashes.
 *
 * Machines with another byte order hash differently, and other majors, or servers that are built
 * differently, might make other texts of the same values.  Then every row would seem to be
 * different.  Therefore a comparison begins with this check.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "local_query.h"
#include "mb/pg_wchar.h"
#include "remote_query.h"
#include "verify/hash_probe.h"

typedef struct Probe
{
	const char *type;			/* for the error */
	const char *value;			/* an expression */
} Probe;

/* Their texts are compared, and the hashes of their texts. */
static const Probe values[] = {
	{"bit varying", "B'10100'::pg_catalog.varbit"},
	{"boolean", "true"},
	{"box", "'(1.5,-0),(0.1,1e-300)'::pg_catalog.box"},
	{"bytea", "'\\x00ff5c27'::pg_catalog.bytea"},
	{"character", "'a  '::pg_catalog.bpchar(5)"},
	{"date", "'0044-03-15 BC'::pg_catalog.date"},
	{"date", "'infinity'::pg_catalog.date"},
	{"double precision", "'-0'::pg_catalog.float8"},
	{"double precision", "'NaN'::pg_catalog.float8"},
	{"double precision", "'-Infinity'::pg_catalog.float8"},
	{"double precision", "0.1::pg_catalog.float8 + 0.2::pg_catalog.float8"},
	{"double precision", "1e23::pg_catalog.float8"},
	{"double precision", "'4.9e-324'::pg_catalog.float8"},
	{"inet", "'::ffff:1.2.3.4/100'::pg_catalog.inet"},
	{"int4range", "'(1,5]'::pg_catalog.int4range"},
	{"integer[]", "'[0:2]={1,NULL,-3}'::pg_catalog.int4[]"},
	{"interval", "'-1 year 2 mons -3 days 04:05:06.000007'::pg_catalog.interval"},
	{"json", "'{\"b\":1, \"a\" : [1.0,2]}'::pg_catalog.json"},
	{"jsonb", "'{\"bb\":1.00, \"a\" : [1.0,2], \"a\" : null}'::pg_catalog.jsonb"},
	{"macaddr", "'08:00:2b:01:02:03'::pg_catalog.macaddr"},
	{"money", "'-1234567.891'::pg_catalog.money"},
	{"numeric", "1.00::pg_catalog.numeric"},
	{"numeric", "-123456789012345678901234567890.12345678901234567890"},
	{"numeric", "'NaN'::pg_catalog.numeric"},
	{"real", "0.1::pg_catalog.float4"},
	{"real", "16777217::pg_catalog.float4"},
	{"record", "ROW(1, 'a \"b\" \\ , ()', NULL, '', true, 0.5::pg_catalog.float8)"},
	{"text", "'a''\"\\ '"},
	{"text[]", "ARRAY['a', 'NULL', NULL, '', 'x y', '\"', E'\\\\', '{}']"},
	{"time with time zone", "'04:05:06.789-08:30'::pg_catalog.timetz"},
	{"timestamp", "'2000-02-29 23:59:59.999999'::pg_catalog.timestamp"},
	{"timestamp with time zone", "'1900-01-01 00:00:00+05:30'::pg_catalog.timestamptz"},
	{"timestamp with time zone", "'294276-12-31 23:59:59.999999+00'::pg_catalog.timestamptz"},
	{"tsvector", "'b:2A a:1,3 ''c d'''::pg_catalog.tsvector"},
	{"uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::pg_catalog.uuid"},
};

/* Their values are compared: the functions that hash a value without making a text of it. */
static const Probe hashes[] = {
	{"integer", "pg_catalog.hashint4extended(-42, 11)"},
	{"bigint", "pg_catalog.hashint8extended(-4200000000000, 11)"},
	{"oid", "pg_catalog.hashoidextended(4000000000, 11)"},
	{"uuid", "pg_catalog.uuid_hash_extended('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 11)"},
	{"character", "pg_catalog.hashbpcharextended('abcdefghijklmnop  ' COLLATE pg_catalog.\"C\", 11)"},
	{"text", "pg_catalog.hashtextextended('abcdefghijklmnopqr' COLLATE pg_catalog.\"C\", -11)"},
	{"bytea", "pg_catalog.sha256('\\x00ff')"},
};

/* Not every encoding has this. */
static const Probe letters = {"text", "U&'\\00e9\\00df'"};

static char *
query_of(const Probe *const *probes, int count)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query,
						   "SELECT pg_catalog.concat(p.text, ' ', pg_catalog.hashtextextended("
						   "p.text COLLATE pg_catalog.\"C\", 1))"
						   " FROM pg_catalog.unnest(ARRAY[");
	for (int i = 0; i < count; i++)
		appendStringInfo(&query, "%spg_catalog.concat(%s)", i > 0 ? ", " : "", probes[i]->value);
	appendStringInfoString(&query, "]) WITH ORDINALITY p (text, number) ORDER BY p.number");
	return query.data;
}

void
hash_probe_check(Subscription *subscription, WalReceiverConn *conn, bool convert)
{
	const Probe *probes[lengthof(values) + lengthof(hashes) + 1];
	int			count = 0;
	char	   *query;
	List	   *there;
	List	   *here;

	for (int i = 0; i < lengthof(values); i++)
		probes[count++] = &values[i];
	for (int i = 0; i < lengthof(hashes); i++)
		probes[count++] = &hashes[i];
	if (GetDatabaseEncoding() == PG_UTF8 && !convert)
		probes[count++] = &letters;
	query = query_of(probes, count);

	there = remote_query(conn, psprintf("check hashes on the publisher of subscription \"%s\"",
										subscription->name),
						 query, WALRCV_OK_TUPLES, 1).rows;
	here = local_rows(query, 1);
	for (int i = 0; i < count; i++)
	{
		char	   *remote = i < list_length(there) ? ((RemoteValue *) list_nth(there, i))[0] : NULL;
		char	   *local = ((LocalValue *) list_nth(here, i))[0];

		if (remote == NULL || strcmp(remote, local) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("the publisher of subscription \"%s\" and this server cannot be compared",
							subscription->name),
					 errdetail("A value of type %s has the text and hash \"%s\" there, but \"%s\" here.",
							   probes[i]->type, remote ? remote : "", local)));
	}
}
