/*
 * row_filter.h
 *	  Decides whether a publisher's row filter may be evaluated here.
 */
#ifndef WEFT_VERIFY_ROW_FILTER_H
#define WEFT_VERIFY_ROW_FILTER_H

#include "nodes/bitmapset.h"

/*
 * Takes the text of a row filter, as the publisher has sent it, and returns the text of the
 * same condition for the table here, which this server has made: it consists of columns of the
 * table, constants, and built-in immutable functions, operators and types only, and depends on
 * no collation other than "C", unless the collation cannot change the result.  The names
 * of columns are not qualified, so that it fits a query on this table alone; it must run with
 * a search path that finds pg_catalog first.
 *
 * Adds the attribute numbers of the columns that the condition depends on to *columns; the
 * result is the publisher's only if these have the same types and values there.
 *
 * Returns NULL if there is no such condition, and sets *problem to one sentence that says why.
 * Nothing in the text is executed, even if it is something else than a row filter.  Runs in a
 * subtransaction of its own.
 */
extern char *row_filter_local(Oid relid, const char *text, Bitmapset **columns, char **problem);

#endif							/* WEFT_VERIFY_ROW_FILTER_H */
