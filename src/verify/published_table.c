/*
 * published_table.c
 *	  What a subscription's publications publish, and what of it can be compared here.
 *
 * The publisher answers three questions: what each publication says of each table, what the tables
 * are, and what their columns are.  Everything else is found out here.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/extension.h"
#include "compat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "nodes/value.h"
#include "optimizer/plancat.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/pg_locale.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "verify/published_table.h"
#include "verify/publisher_catalog.h"
#include "verify/row_filter.h"

typedef struct Mapping
{
	Subscription *subscription;
	PublishedTables *result;
	List	   *states;			/* of SubscriptionRelState */
} Mapping;

static const char *const status_names[] = {
	[PUBLISHED_TABLE_COMPARABLE] = "comparable",
	[PUBLISHED_TABLE_NOT_SUBSCRIBED] = "not subscribed",
	[PUBLISHED_TABLE_NOT_PUBLISHED] = "not published",
	[PUBLISHED_TABLE_NOT_READY] = "not ready",
	[PUBLISHED_TABLE_PARTLY_PUBLISHED] = "partly published",
	[PUBLISHED_TABLE_ROW_FILTER] = "row filter",
	[PUBLISHED_TABLE_NO_RIGHT] = "no right",
	[PUBLISHED_TABLE_UNSUITABLE] = "unsuitable",
};

const char *
published_table_status_name(PublishedTableStatus status)
{
	return status_names[status];
}

char *
published_table_name(const PublishedTable *table)
{
	return quote_qualified_identifier(table->schema, table->name);
}

char *
published_table_rows(const PublishedTable *table, CompareSide side, const char *condition)
{
	char		relkind = side == SIDE_LOCAL ? table->relkind : table->publisher_relkind;
	const char *filter = table->filter[side];
	StringInfoData sql;

	initStringInfo(&sql);

	/* Children of an ordinary table are tables of their own to a publication. */
	appendStringInfo(&sql, "%s%s t", relkind == RELKIND_RELATION ? "ONLY " : "",
					 published_table_name(table));
	if (filter != NULL)
		appendStringInfo(&sql, " WHERE (%s)", filter);
	if (condition != NULL)
		appendStringInfo(&sql, " %s (%s)", filter ? "AND" : "WHERE", condition);
	return sql.data;
}

char *
published_table_column_list(const PublishedTable *table)
{
	StringInfoData list;
	ListCell   *cell;

	initStringInfo(&list);
	foreach(cell, table->columns)
		appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "",
						 quote_identifier(((PublishedColumn *) lfirst(cell))->name));
	return list.data;
}

/* Says that the table cannot be compared.  Only the first reason counts. */
static void
refuse(PublishedTable *table, PublishedTableStatus status, char *reason)
{
	if (table->status != PUBLISHED_TABLE_COMPARABLE)
		return;
	table->status = status;
	table->reason = reason;
}

static bool
binary_order(Oid collation)
{
	return !OidIsValid(collation) || compat_collation_is_c(collation);
}

/* Returns the column of this name here that the subscription fills, or NULL. */
static Form_pg_attribute
find_attribute(Relation rel, const char *name)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && !att->attgenerated && strcmp(NameStr(att->attname), name) == 0)
			return att;
	}
	return NULL;
}

static PublishedColumn *
make_column(const CatalogColumn *remote, Form_pg_attribute att, bool not_null)
{
	PublishedColumn *column = palloc0(sizeof(PublishedColumn));

	column->name = remote->name;
	column->attnum = att->attnum;
	column->type = att->atttypid;
	column->typmod = att->atttypmod;
	column->binary_order = binary_order(att->attcollation);
	column->publisher_type = remote->type;
	column->publisher_typmod = remote->typmod;
	column->publisher_binary_order = remote->binary_order;
	column->not_null = not_null && remote->not_null;
	return column;
}

/* The compared columns, and the right to read them there. */
static void
map_columns(PublishedTable *table, const CatalogTable *remote, Relation rel)
{
	ListCell   *cell;

	foreach(cell, remote->columns)
	{
		CatalogColumn *column = lfirst(cell);
		Form_pg_attribute att;

		if (!bms_is_member(column->attnum, remote->published))
			continue;
		att = find_attribute(rel, column->name);
		if (att == NULL)
			table->missing_columns = lappend(table->missing_columns, column->name);
		else if (!column->readable)
			refuse(table, PUBLISHED_TABLE_NO_RIGHT,
				   psprintf("The subscription's role may not read column \"%s\" on the publisher.",
							column->name));
		else
			table->columns = lappend(table->columns,
									 make_column(column, att,
												 compat_not_null(RelationGetDescr(rel), att->attnum)));
	}
	if (table->columns == NIL)
		refuse(table, PUBLISHED_TABLE_UNSUITABLE,
			   "None of the published columns exists here.");
}

static PublishedColumn *
find_column(const PublishedTable *table, const char *name)
{
	ListCell   *cell;

	foreach(cell, table->columns)
	{
		PublishedColumn *column = lfirst(cell);

		if (strcmp(column->name, name) == 0)
			return column;
	}
	return NULL;
}

/* Does a btree index find rows by the key, in its order? */
static bool
indexed(Relation rel, List *key)
{
	ListCell   *cell;
	bool		result = false;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		int			matching = 0;

		if (index->rd_index->indisvalid && index->rd_rel->relam == BTREE_AM_OID &&
			heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
			while (matching < index->rd_index->indnkeyatts && matching < list_length(key))
			{
				PublishedColumn *column = list_nth(key, matching);

				if (index->rd_index->indkey.values[matching] != column->attnum)
					break;
				matching++;
			}
		index_close(index, AccessShareLock);
		result = result || matching == list_length(key);
	}
	return result;
}

static void
map_key(PublishedTable *table, const CatalogTable *remote, Relation rel)
{
	ListCell   *cell;

	foreach(cell, remote->key)
	{
		PublishedColumn *column = NULL;
		ListCell   *other;

		foreach(other, remote->columns)
		{
			CatalogColumn *candidate = lfirst(other);

			if (candidate->attnum == lfirst_int(cell))
				column = find_column(table, candidate->name);
		}
		if (column == NULL)
		{
			table->key = NIL;
			return;
		}
		table->key = lappend(table->key, column);
	}
	table->key_indexed = table->key != NIL && indexed(rel, table->key);
}

/* Has each of these columns the same built-in type and the same values on both sides? */
static bool
same_on_both_sides(const PublishedTable *table, Bitmapset *columns)
{
	int			attnum = -1;

	while ((attnum = bms_next_member(columns, attnum)) >= 0)
	{
		bool		found = false;
		ListCell   *cell;

		foreach(cell, table->columns)
		{
			PublishedColumn *column = lfirst(cell);

			found = found || (column->attnum == attnum &&
							  column->type == column->publisher_type);
		}
		if (!found)
			return false;
	}
	return true;
}

static void
map_filters(PublishedTable *table, const CatalogTable *remote)
{
	StringInfoData filters[2];
	ListCell   *cell;

	if (remote->filters == NIL)
		return;
	initStringInfo(&filters[SIDE_PUBLISHER]);
	initStringInfo(&filters[SIDE_LOCAL]);
	foreach(cell, remote->filters)
	{
		char	   *text = lfirst(cell);
		Bitmapset  *columns = NULL;
		char	   *problem;
		char	   *local = row_filter_local(table->relid, text, &columns, &problem);
		const char *or = foreach_current_index(cell) > 0 ? " OR " : "";

		if (local == NULL)
		{
			refuse(table, PUBLISHED_TABLE_ROW_FILTER, problem);
			return;
		}
		if (!same_on_both_sides(table, columns))
		{
			refuse(table, PUBLISHED_TABLE_ROW_FILTER,
				   psprintf("The row filter %s uses a column that is not published, or has another type here.",
							text));
			return;
		}
		appendStringInfo(&filters[SIDE_PUBLISHER], "%s(%s)", or, text);
		appendStringInfo(&filters[SIDE_LOCAL], "%s(%s)", or, local);
	}
	table->filter[SIDE_PUBLISHER] = filters[SIDE_PUBLISHER].data;
	table->filter[SIDE_LOCAL] = filters[SIDE_LOCAL].data;
}

/*
 * Checks whether apply may act as the role as whom it changes the table, as which the table is
 * read, too, and the rights of that role.
 */
static void
check_local_rights(PublishedTable *table, Relation rel, Oid owner)
{
	Oid			reader = table->run_as_owner ? owner : rel->rd_rel->relowner;
	const char *who = table->run_as_owner ? "subscription" : "table";
	bool		all = pg_class_aclcheck(table->relid, reader, ACL_SELECT) == ACLCHECK_OK;
	ListCell   *cell;

	if (!member_can_set_role(owner, reader))
		refuse(table, PUBLISHED_TABLE_NO_RIGHT,
			   psprintf("The subscription's owner \"%s\" cannot SET ROLE to \"%s\", which owns the table.",
						GetUserNameFromId(owner, false), GetUserNameFromId(reader, false)));
	if (object_aclcheck(NamespaceRelationId, RelationGetNamespace(rel), reader,
						ACL_USAGE) != ACLCHECK_OK)
		refuse(table, PUBLISHED_TABLE_NO_RIGHT,
			   psprintf("The %s's owner has no USAGE privilege on schema \"%s\".",
						who, table->schema));
	foreach(cell, table->columns)
	{
		PublishedColumn *column = lfirst(cell);

		if (!all && pg_attribute_aclcheck(table->relid, column->attnum, reader,
										  ACL_SELECT) != ACLCHECK_OK)
			refuse(table, PUBLISHED_TABLE_NO_RIGHT,
				   psprintf("The %s's owner has no SELECT privilege on column \"%s\".",
							who, column->name));
	}
	if (check_enable_rls(table->relid, reader, true) == RLS_ENABLED)
		refuse(table, PUBLISHED_TABLE_NO_RIGHT,
			   psprintf("Row-level security applies to the %s's owner here.", who));
}

static double
estimate_rows(Relation rel)
{
	BlockNumber pages;
	double		rows = 0;
	double		visible;
	ListCell   *cell;

	if (rel->rd_rel->relkind == RELKIND_RELATION)
	{
		estimate_rel_size(rel, NULL, &pages, &rows, &visible);
		return rows;
	}
	foreach(cell, find_all_inheritors(RelationGetRelid(rel), NoLock, NULL))
	{
		Relation	part = try_table_open(lfirst_oid(cell), AccessShareLock);
		double		tuples;

		if (part == NULL)
			continue;
		if (RELKIND_HAS_TABLE_AM(part->rd_rel->relkind))
		{
			estimate_rel_size(part, NULL, &pages, &tuples, &visible);
			rows += tuples;
		}
		table_close(part, AccessShareLock);
	}
	return rows;
}

/* Compares what is published with the table here. */
static void
map_table(PublishedTable *table, const CatalogTable *remote, Oid owner)
{
	Relation	rel = try_table_open(table->relid, AccessShareLock);

	if (rel == NULL)
	{
		refuse(table, PUBLISHED_TABLE_NOT_SUBSCRIBED, "The table here has been dropped.");
		return;
	}
	table->relkind = rel->rd_rel->relkind;
	if (table->relkind != RELKIND_RELATION && table->relkind != RELKIND_PARTITIONED_TABLE)
		refuse(table, PUBLISHED_TABLE_UNSUITABLE,
			   "It is neither an ordinary nor a partitioned table here.");
	else
	{
		map_columns(table, remote, rel);
		check_local_rights(table, rel, owner);
		if (table->status == PUBLISHED_TABLE_COMPARABLE)
		{
			map_key(table, remote, rel);
			map_filters(table, remote);
			table->estimated_rows = Max(estimate_rows(rel), remote->estimated_rows);
		}
	}
	table_close(rel, AccessShareLock);
}

static SubscriptionRelState *
find_state(const Mapping *mapping, Oid relid)
{
	ListCell   *cell;

	foreach(cell, mapping->states)
	{
		SubscriptionRelState *state = lfirst(cell);

		if (state->relid == relid)
			return state;
	}
	return NULL;
}

static PublishedTable *
add_table(Mapping *mapping, char *schema, char *name, Oid relid)
{
	PublishedTable *table = palloc0(sizeof(PublishedTable));

	table->schema = schema;
	table->name = name;
	table->relid = relid;
	table->run_as_owner = mapping->subscription->runasowner;
	mapping->result->tables = lappend(mapping->result->tables, table);
	return table;
}

static void
check_state(const Mapping *mapping, PublishedTable *table)
{
	SubscriptionRelState *state = OidIsValid(table->relid) ?
		find_state(mapping, table->relid) : NULL;

	if (!OidIsValid(table->relid))
		refuse(table, PUBLISHED_TABLE_NOT_SUBSCRIBED,
			   "There is no such table here; create it, and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION.");
	else if (state == NULL)
		refuse(table, PUBLISHED_TABLE_NOT_SUBSCRIBED,
			   "It is no table of the subscription; run ALTER SUBSCRIPTION ... REFRESH PUBLICATION.");
	else if (state->state != SUBREL_STATE_READY)
		refuse(table, PUBLISHED_TABLE_NOT_READY, "Its initial copy is not complete.");
}

/*
 * Does a table belong to Weft?  FOR ALL TABLES publishes such tables, and a publication with schema
 * changes one of them, but they are tables of no subscription.
 */
static bool
is_own(Oid relid)
{
	Oid			extension = get_extension_oid("weft", true);

	return OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relid) == extension;
}

/* Adds a table that is published. */
static void
add_published(Mapping *mapping, CatalogTable *remote)
{
	Oid			schema = get_namespace_oid(remote->schema, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(remote->name, schema) : InvalidOid;
	PublishedTable *table;

	if (OidIsValid(relid) && is_own(relid) && find_state(mapping, relid) == NULL)
		return;
	table = add_table(mapping, remote->schema, remote->name, relid);
	table->publisher_relid = remote->relid;
	table->publisher_relkind = remote->relkind;
	check_state(mapping, table);
	if (remote->problem != NULL)
		refuse(table, PUBLISHED_TABLE_PARTLY_PUBLISHED, remote->problem);
	if (!remote->usable)
		refuse(table, PUBLISHED_TABLE_NO_RIGHT,
			   "The subscription's role may not read it on the publisher, or row-level security applies there.");
	if (table->status == PUBLISHED_TABLE_COMPARABLE)
		map_table(table, remote, mapping->subscription->owner);
}

/* Adds a table here that is not published, or none of the subscription. */
static void
add_unpublished(Mapping *mapping, Oid relid)
{
	char	   *name = get_rel_name(relid);
	PublishedTable *table;

	if (name == NULL)
		return;
	table = add_table(mapping, get_namespace_name(get_rel_namespace(relid)), name, relid);
	check_state(mapping, table);
	refuse(table, PUBLISHED_TABLE_NOT_PUBLISHED,
		   "The subscription's publications do not publish it, or publish it with its partition root.");
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	const PublishedTable *first = lfirst(a);
	const PublishedTable *second = lfirst(b);
	int			order = strcmp(first->schema, second->schema);

	return order != 0 ? order : strcmp(first->name, second->name);
}

/*
 * With SQL_ASCII on one side, the server converts nothing, and so does a subscription.
 */
static bool
must_convert(const char *encoding)
{
	int			there = pg_char_to_encoding(encoding);
	int			here = GetDatabaseEncoding();

	return there != here && there != PG_SQL_ASCII && here != PG_SQL_ASCII;
}

PublishedTables *
published_tables_get(Subscription *subscription, WalReceiverConn *conn, List *relids)
{
	Catalog    *catalog = publisher_catalog_read(subscription, conn, relids);
	Mapping		mapping = {.subscription = subscription};
	List	   *wanted = NIL;
	ListCell   *cell;

	mapping.result = palloc0(sizeof(PublishedTables));
	mapping.result->convert = must_convert(catalog->encoding);
	mapping.states = compat_subscription_tables(subscription->oid, false);

	foreach(cell, catalog->tables)
		add_published(&mapping, lfirst(cell));

	if (relids == NIL)
		foreach(cell, mapping.states)
			wanted = lappend_oid(wanted, ((SubscriptionRelState *) lfirst(cell))->relid);
	else
		wanted = list_copy(relids);
	foreach(cell, mapping.result->tables)
		wanted = list_delete_oid(wanted, ((PublishedTable *) lfirst(cell))->relid);
	foreach(cell, wanted)
		add_unpublished(&mapping, lfirst_oid(cell));
	list_sort(mapping.result->tables, compare_names);
	return mapping.result;
}
