/*
 * conflict_tables.h
 *	  What the SQL functions about conflicts share: tables that the caller owns, and the
 *	  tables of schema weft that only the extension's owner may change.
 */
#ifndef WEFT_CONFLICT_TABLES_H
#define WEFT_CONFLICT_TABLES_H

#include "utils/relcache.h"

extern Relation conflict_tables_open(Oid relid);
extern void conflict_tables_change(const char *table, const char *statement, int count,
								   Oid *types, Datum *values);

#endif							/* WEFT_CONFLICT_TABLES_H */
