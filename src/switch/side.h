/*
 * side.h
 *	  SQL on either side of a switch-over.
 */
#ifndef WEFT_SWITCH_SIDE_H
#define WEFT_SWITCH_SIDE_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

typedef enum SwitchSide
{
	SIDE_HERE,
	SIDE_THERE
} SwitchSide;

extern void side_run(SwitchSide side, const char *command);
extern void side_run_block(SwitchSide side, const char *body);
extern List *side_rows(SwitchSide side, const char *query, int columns);
extern char *side_value(SwitchSide side, const char *query);
extern char *side_slot_value(SwitchSide side, const char *query);
extern XLogRecPtr side_lsn(const char *value);
extern void side_run_as_extension(const char *command);

#endif							/* WEFT_SWITCH_SIDE_H */
