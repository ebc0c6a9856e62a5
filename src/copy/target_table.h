/*
 * target_table.h
 *	  The subscriber's table: may helpers fill it?
 */
#ifndef WEFT_COPY_TARGET_TABLE_H
#define WEFT_COPY_TARGET_TABLE_H

#include "copy/command.h"
#include "utils/rel.h"

extern const char *target_table_obstacle(Relation rel, const CopyCommand *command,
										 bool all_indexes);
extern bool target_table_empty(Relation rel);
extern bool target_table_decoded(Relation rel);
extern bool target_table_out_of_line(Relation rel);
extern bool target_table_binary(Relation rel, const CopyCommand *command, List *types);

#endif							/* WEFT_COPY_TARGET_TABLE_H */
