/*
 * recent_rows.h
 *	  Rewrites rows that were changed recently.
 */
#ifndef WEFT_GROUP_RECENT_ROWS_H
#define WEFT_GROUP_RECENT_ROWS_H

#include "nodes/pg_list.h"

extern void recent_rows_stamp(Oid relid, List *keys);

#endif							/* WEFT_GROUP_RECENT_ROWS_H */
