/*
 * schema_difference.c
 *	  weft.schema_differences(): compares the schemas of both sides of a subscription.
 *
 * Each side is read at a moment of its own, so a schema change that is being replicated looks like a
 * difference.  The comparison locks partitioned tables, as readers do, and nothing else.
 *
 * Of an object that one side lacks, there is one row; of a table, none for what belongs to it.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "local_query.h"
#include "miscadmin.h"
#include "result_rows.h"
#include "shmem.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"
#include "verify/owner_context.h"
#include "verify/publisher.h"
#include "verify/schema_facts.h"

PG_FUNCTION_INFO_V1(weft_schema_differences);

#define DIFFERENCE_COLUMNS 5

/* Two quoted names and a dot; a quote within a name is doubled. */
#define TABLE_NAME_SIZE (2 * (2 * NAMEDATALEN + 2) + 2)

typedef struct Comparing
{
	ReturnSetInfo *result;
	HTAB	   *missing;		/* tables that one side lacks, by name */
} Comparing;

/* The facts about one object, of both sides. */
typedef struct ObjectFacts
{
	List	   *here;
	List	   *there;
} ObjectFacts;

static void
put_difference(Comparing *comparing, const char *kind, const char *object, const char *difference,
			   const char *here, const char *there)
{
	Datum		values[DIFFERENCE_COLUMNS];
	bool		nulls[DIFFERENCE_COLUMNS] = {0};

	values[0] = CStringGetTextDatum(kind);
	values[1] = CStringGetTextDatum(object);
	values[2] = CStringGetTextDatum(difference);
	values[3] = here ? CStringGetTextDatum(here) : (Datum) 0;
	nulls[3] = here == NULL;
	values[4] = there ? CStringGetTextDatum(there) : (Datum) 0;
	nulls[4] = there == NULL;
	tuplestore_putvalues(comparing->result->setResult, comparing->result->setDesc, values, nulls);
}

static void
note_missing(Comparing *comparing, const char *table)
{
	bool		found;

	(void) hash_search(comparing->missing, table, HASH_ENTER, &found);
}

static bool
is_missing(const Comparing *comparing, const char *table)
{
	return hash_search(comparing->missing, table, HASH_FIND, NULL) != NULL;
}

/* Sorts facts by objects, and those of an object by their order. */
static int
compare_facts(const ListCell *a, const ListCell *b)
{
	const SchemaFact *one = lfirst(a);
	const SchemaFact *other = lfirst(b);
	int			result = strcmp(one->class, other->class);

	if (result == 0)
		result = strcmp(one->object, other->object);
	if (result == 0)
		result = strcmp(one->order, other->order);
	return result;
}

/* Which of two facts is about the earlier object?  Zero if they are about the same. */
static int
compare_objects(const SchemaFact *one, const SchemaFact *other)
{
	int			result = strcmp(one->class, other->class);

	return result ? result : strcmp(one->object, other->object);
}

/* Takes the facts about one object from a sorted list, from "*position" on. */
static List *
take_object(List *facts, int *position)
{
	SchemaFact *first = list_nth(facts, *position);
	List	   *result = NIL;

	while (*position < list_length(facts) &&
		   compare_objects(list_nth(facts, *position), first) == 0)
		result = lappend(result, list_nth(facts, (*position)++));
	return result;
}

static const char *
value_of(List *facts, const char *property)
{
	foreach_ptr(SchemaFact, fact, facts)
		if (strcmp(fact->property, property) == 0)
		return fact->value;
	return NULL;
}

/* Does a trigger fire when rows are applied? */
static bool
fires_on_replica(List *facts)
{
	const char *fires = value_of(facts, "fires");

	return fires != NULL && (strcmp(fires, "always") == 0 || strcmp(fires, "on replica") == 0);
}

/* Compares an object that exists on both sides. */
static void
compare_properties(Comparing *comparing, const ObjectFacts *object)
{
	foreach_ptr(SchemaFact, fact, object->here)
	{
		const char *there = value_of(object->there, fact->property);

		if (there == NULL || strcmp(there, fact->value) != 0)
			put_difference(comparing, fact->kind, fact->object, fact->property, fact->value, there);
	}
	foreach_ptr(SchemaFact, fact, object->there)
		if (value_of(object->here, fact->property) == NULL)
		put_difference(comparing, fact->kind, fact->object, fact->property, NULL, fact->value);
}

static void
compare_object(Comparing *comparing, const ObjectFacts *object)
{
	const SchemaFact *fact = linitial(object->here ? object->here : object->there);

	if (is_missing(comparing, fact->table))
		return;
	if (strcmp(fact->kind, "trigger") == 0 &&
		!fires_on_replica(object->here) && !fires_on_replica(object->there))
		return;
	if (object->here != NIL && object->there != NIL)
	{
		compare_properties(comparing, object);
		return;
	}
	if (strcmp(fact->kind, "table") == 0)
		note_missing(comparing, fact->object);
	if (object->here == NIL)
		put_difference(comparing, fact->kind, fact->object, "missing here", NULL, fact->value);
	else
		put_difference(comparing, fact->kind, fact->object, "missing there", fact->value, NULL);
}

/* Goes through the objects of both sides in the same order; tables come first. */
static void
compare_all(Comparing *comparing, List *here, List *there)
{
	int			i = 0;
	int			j = 0;

	list_sort(here, compare_facts);
	list_sort(there, compare_facts);
	while (i < list_length(here) || j < list_length(there))
	{
		int			order = i >= list_length(here) ? 1 :
			j >= list_length(there) ? -1 :
			compare_objects(list_nth(here, i), list_nth(there, j));
		ObjectFacts object = {0};

		CHECK_FOR_INTERRUPTS();
		if (order <= 0)
			object.here = take_object(here, &i);
		if (order >= 0)
			object.there = take_object(there, &j);
		compare_object(comparing, &object);
	}
}

static SchemaTable *
find_table(List *tables, const SchemaTable *wanted)
{
	foreach_ptr(SchemaTable, table, tables)
		if (strcmp(table->schema, wanted->schema) == 0 && strcmp(table->name, wanted->name) == 0)
		return table;
	return NULL;
}

/* Compares what is published with what is subscribed to, of tables that both sides have. */
static void
compare_membership(Comparing *comparing, List *published, List *subscribed)
{
	foreach_ptr(SchemaTable, table, published)
	{
		char	   *name = quote_qualified_identifier(table->schema, table->name);

		if (!table->covered && !is_missing(comparing, name) &&
			find_table(subscribed, table) == NULL)
			put_difference(comparing, "table", name, "not in the subscription", NULL, "published");
	}
	foreach_ptr(SchemaTable, table, subscribed)
	{
		char	   *name = quote_qualified_identifier(table->schema, table->name);

		if (!is_missing(comparing, name) && find_table(published, table) == NULL)
			put_difference(comparing, "table", name, "not published", "in the subscription", NULL);
	}
}

static void
compare_schemas(Comparing *comparing, Subscription *subscription, WalReceiverConn *conn)
{
	List	   *published = schema_published_tables(subscription, conn);
	List	   *subscribed = schema_subscribed_tables(subscription);
	List	   *tables = list_copy(published);

	foreach_ptr(SchemaTable, table, subscribed)
		if (find_table(published, table) == NULL)
		tables = lappend(tables, table);
	if (tables == NIL)
		return;
	compare_all(comparing, schema_facts_here(tables),
				schema_facts_there(subscription, conn, tables));
	compare_membership(comparing, published, subscribed);
}

/* Finds the subscription of that name, or else the one to the node of that name. */
static Subscription *
find_subscription(const char *name)
{
	char	   *subid;

	if (OidIsValid(get_subscription_oid(name, true)))
		return publisher_subscription(name);
	subid = local_value(psprintf("SELECT weft.local_subscription(%s)", quote_literal_cstr(name)));
	if (subid == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is neither a subscription \"%s\" nor another node \"%s\" of this group",
						name, name)));
	return publisher_subscription_by_oid(atooid(subid));
}

/*
 * weft.schema_differences(subscription_or_node name)
 *
 * sql/19-schema-differences.sql describes the result.  Fails if the caller does not own the
 * subscription, and if the publisher cannot be reached.
 */
Datum
weft_schema_differences(PG_FUNCTION_ARGS)
{
	HASHCTL		ctl = {.keysize = TABLE_NAME_SIZE,.entrysize = TABLE_NAME_SIZE,
	.hcxt = CurrentMemoryContext};
	Comparing	comparing = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	OwnerContext context;
	Subscription *subscription;
	WalReceiverConn *conn;

	shmem_require();
	subscription = find_subscription(NameStr(*PG_GETARG_NAME(0)));
	result_rows_begin(fcinfo, DIFFERENCE_COLUMNS);
	comparing.missing = hash_create("weft missing tables", 64, &ctl,
									HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	conn = publisher_connect(subscription);
	PG_TRY();
	{
		owner_context_enter(&context, subscription->owner);
		compare_schemas(&comparing, subscription, conn);
		owner_context_leave(&context);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return (Datum) 0;
}
