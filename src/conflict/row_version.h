/*
 * row_version.h
 *	  The versions of rows that are stored here.
 */
#ifndef WEFT_ROW_VERSION_H
#define WEFT_ROW_VERSION_H

#include "conflict/conflict_types.h"

extern RowVersion row_version_of(Relation rel, Oid key_index, TupleTableSlot *row);
extern RowVersion row_version_in(Target *target, TupleTableSlot *row);
extern void row_version_keep(Target *target, TupleTableSlot *row, const RowVersion *version);

#endif							/* WEFT_ROW_VERSION_H */
