/*
 * row_table.h
 *	  A local table whose rows are compared with the publisher's and repaired.
 */
#ifndef WEFT_VERIFY_ROW_TABLE_H
#define WEFT_VERIFY_ROW_TABLE_H

#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/usercontext.h"
#include "verify/published_table.h"

/* An open table; everything lives in the memory context in which it was opened. */
typedef struct RowTable
{
	const PublishedTable *published;
	Relation	rel;			/* ordinary or partitioned */
	bool		run_as_owner;	/* of the subscription, instead of the table's */
	int			count;
	PublishedColumn **columns;	/* those that are compared */
	bool	   *in_key;			/* of each column */
} RowTable;

/* Values of a table's columns as text, in the order of the columns; NULL is null. */
typedef char *RowValue;
typedef RowValue *RowValues;

/* A locked local row. */
typedef struct FoundRow
{
	Oid			relid;			/* the table, or its partition */
	ItemPointerData place;
	bool		published;		/* does the publication's row filter accept
								 * it? */

	/*
	 * Which columns have the text of the row with which it was compared, and
	 * whether all have; NULL and false if it was compared with none.  The
	 * texts themselves are not kept: each can be as long as a value can be.
	 */
	bool	   *same;
	bool		equal;
} FoundRow;

extern RowTable *row_table_open(const PublishedTable *published, bool run_as_owner);
extern void row_table_close(RowTable *table);
extern bool row_table_begin(RowTable *table, UserContext *context);
extern List *row_table_find(RowTable *table, RowValues key, RowValues wanted);
extern bool row_table_same_key(RowTable *table, RowValues a, RowValues b);
extern char *row_table_publisher_query(RowTable *table, bool convert, bool versions,
									   List *rows);

#endif							/* WEFT_VERIFY_ROW_TABLE_H */
