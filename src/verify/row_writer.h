/*
 * row_writer.h
 *	  Writes rows of a local table as apply would.
 */
#ifndef WEFT_VERIFY_ROW_WRITER_H
#define WEFT_VERIFY_ROW_WRITER_H

#include "executor/tuptable.h"
#include "verify/row_table.h"

extern void row_writer_insert(RowTable *table, RowValues row);
extern void row_writer_update(RowTable *table, const FoundRow *found, RowValues row);
extern void row_writer_delete(RowTable *table, const FoundRow *found);
extern TupleTableSlot *row_writer_lift(RowTable *table, const FoundRow *found, RowValues row);
extern TupleTableSlot *row_writer_fetch(RowTable *table, const FoundRow *found);
extern TupleTableSlot *row_writer_key(RowTable *table, RowValues row);
extern void row_writer_put(RowTable *table, TupleTableSlot *row);

#endif							/* WEFT_VERIFY_ROW_WRITER_H */
