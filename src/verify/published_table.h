/*
 * published_table.h
 *	  What a subscription's publications publish, and what of it can be compared here.
 */
#ifndef WEFT_VERIFY_PUBLISHED_TABLE_H
#define WEFT_VERIFY_PUBLISHED_TABLE_H

#include "access/attnum.h"
#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

/* Where a piece of SQL runs. */
typedef enum CompareSide
{
	SIDE_PUBLISHER,
	SIDE_LOCAL,
} CompareSide;

/* Can a table be compared?  If not, the reason says why, and what helps. */
typedef enum PublishedTableStatus
{
	PUBLISHED_TABLE_COMPARABLE,
	/* published, but no table of the subscription */
	PUBLISHED_TABLE_NOT_SUBSCRIBED,
	/* a table of the subscription that is not published any more */
	PUBLISHED_TABLE_NOT_PUBLISHED,
	/* its initial copy is not complete */
	PUBLISHED_TABLE_NOT_READY,

	/*
	 * not every INSERT, UPDATE and DELETE is published, or not of the same
	 * rows or columns
	 */
	PUBLISHED_TABLE_PARTLY_PUBLISHED,
	/* the row filter cannot be evaluated here with the same result */
	PUBLISHED_TABLE_ROW_FILTER,

	/*
	 * a right to read it is missing, or row-level security applies, on either
	 * side
	 */
	PUBLISHED_TABLE_NO_RIGHT,

	/*
	 * no ordinary or partitioned table here, or no published column exists
	 * here
	 */
	PUBLISHED_TABLE_UNSUITABLE,
} PublishedTableStatus;

/*
 * A column that is compared.  How the text of its value and its hash are made is the
 * business of row_hash.c, what is done with its order that of key_range.c.
 */
typedef struct PublishedColumn
{
	char	   *name;			/* the same on both sides; not quoted */
	AttrNumber	attnum;			/* here */
	Oid			type;			/* here */
	int32		typmod;
	bool		binary_order;	/* no collation here, or one that compares
								 * bytes */
	Oid			publisher_type; /* a type of this server only if it is a
								 * built-in one */
	int32		publisher_typmod;
	bool		publisher_binary_order;
	bool		not_null;		/* on both sides, and valid */
} PublishedColumn;

typedef struct PublishedTable
{
	char	   *schema;			/* the same on both sides; not quoted */
	char	   *name;
	Oid			relid;			/* the table here, or InvalidOid */
	char		relkind;		/* here */
	bool		run_as_owner;	/* apply acts as the subscription's owner, not
								 * as the table's */
	Oid			publisher_relid;
	char		publisher_relkind;
	PublishedTableStatus status;
	char	   *reason;			/* one sentence if it cannot be compared; else
								 * NULL */

	/* The following are set only if it can be compared. */
	List	   *columns;		/* of PublishedColumn, in the publisher's
								 * order */
	List	   *missing_columns;	/* names of published columns that do not
									 * exist here */

	/*
	 * The columns by which rows are identified, in the order of the index on
	 * the publisher; they are among the columns above.  NIL if there is no
	 * key ("keyless"): with neither a replica identity index nor a primary
	 * key on the publisher, or if a column of it does not exist here.
	 *
	 * Keys are the same if their texts are.  Nothing guarantees that a key is
	 * unique here. Rows whose keys are equal for the index without having the
	 * same text (numeric 1.0 and 1.00, nondeterministic collations) are one
	 * row missing here and one missing there; whoever repairs that must
	 * delete before inserting.
	 */
	List	   *key;			/* of PublishedColumn */
	bool		key_indexed;	/* does a btree index here begin with these
								 * columns? */

	char	   *filter[2];		/* by CompareSide: a condition for this side,
								 * or NULL */
	double		estimated_rows; /* the larger of both sides' estimates; 0 if
								 * unknown */
} PublishedTable;

/* What is the same for all tables of a subscription. */
typedef struct PublishedTables
{
	List	   *tables;			/* of PublishedTable, in the order of their
								 * names */

	/*
	 * The databases have different encodings.  Then hashes are made of text
	 * that is converted to UTF8, and text has no common order.
	 */
	bool		convert;
} PublishedTables;

/*
 * Asks the publisher what the subscription's publications publish, and finds out how to compare
 * it.  "relids" restricts it to these tables here; NIL means all of them.  Each of "relids"
 * is in the result, with a status if the publisher does not publish it.
 *
 * "conn" is an ordinary connection to the publisher, a version from 15 on, on which the
 * settings of pinned_settings_command() are in force.  The queries see the catalog as of
 * the transaction that the connection is in, if any.  The rights that count here are those of
 * the subscription's owner, whoever calls.
 *
 * A problem with one table is the table's status, and no error.  Fails if the publisher
 * does not answer as expected.  All is allocated in the current memory context.
 */
extern PublishedTables *published_tables_get(Subscription *subscription, WalReceiverConn *conn,
											 List *relids);

/* The status as a word for SQL, such as "not ready". */
extern const char *published_table_status_name(PublishedTableStatus status);

/* The table's quoted name with its schema. */
extern char *published_table_name(const PublishedTable *table);

/*
 * "[ONLY] schema.name t [WHERE condition]": the rows of the table on one side.
 * "condition", which may be NULL, is an additional one.  The alias "t" may be
 * used in it, but a column may have the same name: use only qualified names.
 */
extern char *published_table_rows(const PublishedTable *table, CompareSide side,
								  const char *condition);

/* The compared columns' quoted names, separated by commas, as for COPY. */
extern char *published_table_column_list(const PublishedTable *table);

#endif							/* WEFT_VERIFY_PUBLISHED_TABLE_H */
