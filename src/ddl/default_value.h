/*
 * default_value.h
 *	  What a new column's default gives the existing rows.
 */
#ifndef WEFT_DEFAULT_VALUE_H
#define WEFT_DEFAULT_VALUE_H

#include "nodes/parsenodes.h"

typedef enum DefaultKind
{
	DEFAULT_SAME,				/* the same value on each server */
	DEFAULT_STABLE,				/* one value for all rows, which may differ
								 * among servers */
	DEFAULT_STABLE_OF_TYPE,		/* the same, and it belongs to the type */
	DEFAULT_VOLATILE,			/* another value in each row */
} DefaultKind;

extern bool default_names_moment(Node *expression);
extern DefaultKind default_kind(ColumnDef *column, const char *source);
extern List *default_values(AlterTableStmt *statement, const char *source);
extern void default_value_apply(Node *statement, List *values);

#endif							/* WEFT_DEFAULT_VALUE_H */
