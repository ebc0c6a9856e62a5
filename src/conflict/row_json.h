/*
 * row_json.h
 *	  Converts rows and their keys to jsonb, for weft.conflict_history.
 */
#ifndef WEFT_ROW_JSON_H
#define WEFT_ROW_JSON_H

#include "conflict/conflict_types.h"

extern Datum row_json_key(Target *target, TupleTableSlot *slot);
extern bool row_json(TupleTableSlot *slot, Datum *result);
extern Datum row_json_text(TupleTableSlot *slot, Oid key_index);

#endif							/* WEFT_ROW_JSON_H */
