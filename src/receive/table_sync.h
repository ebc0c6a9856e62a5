/*
 * table_sync.h
 *	  Are tables of the subscription being synchronized?
 */
#ifndef WEFT_TABLE_SYNC_H
#define WEFT_TABLE_SYNC_H

#include "nodes/pg_list.h"

extern void table_sync_init(void);
extern void table_sync_refresh(void);
extern bool table_sync_pending(void);
extern bool table_sync_copying(bool *interrupted);
extern bool table_sync_sequences_pending(void);
extern bool table_sync_possible(void);

#endif							/* WEFT_TABLE_SYNC_H */
