/*
 * dropped_column.h
 *	  Columns and tables that schema changes of a node group have dropped.
 */
#ifndef WEFT_DROPPED_COLUMN_H
#define WEFT_DROPPED_COLUMN_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/* A column, or a table. */
typedef struct DroppedColumn
{
	Oid			relid;
	char	   *schema;
	char	   *table;
	char	   *column;			/* empty: the table */
} DroppedColumn;

extern void dropped_column_record(const List *objects);
extern TimestampTz dropped_column_time(const char *schema, const char *table, const char *column);
extern bool dropped_column_find(const char *schema, const char *table, const char *column);

#endif							/* WEFT_DROPPED_COLUMN_H */
