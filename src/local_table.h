/*
 * local_table.h
 *	  What leader and writers both want to know of a subscriber's table.
 */
#ifndef WEFT_LOCAL_TABLE_H
#define WEFT_LOCAL_TABLE_H

#include "utils/relcache.h"

extern bool local_table_fires_triggers(Relation rel);

#endif							/* WEFT_LOCAL_TABLE_H */
