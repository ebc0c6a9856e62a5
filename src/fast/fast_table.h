/*
 * fast_table.h
 *	  Which tables take the fast path, and opening and closing them.
 */
#ifndef WEFT_FAST_TABLE_H
#define WEFT_FAST_TABLE_H

#include "fast/fast_relation.h"
#include "utils/usercontext.h"

extern FastRelation *fast_table_open(LogicalRepRelId relid);
extern FastRelation *fast_table_look_up(LogicalRepRelId relid, XLogRecPtr final_lsn);
extern bool fast_table_become_owner(FastRelation *relation, UserContext *context);
extern void fast_table_store_all(void);
extern void fast_table_close_all(void);
extern void fast_table_forget_open(void);

#endif							/* WEFT_FAST_TABLE_H */
