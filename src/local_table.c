/*
 * local_table.c
 *	  What leader and writers both want to know of a subscriber's table.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "local_table.h"
#include "utils/rel.h"

/* Does a change that is replicated into an open table fire a trigger? */
bool
local_table_fires_triggers(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (triggers->triggers[i].tgenabled == TRIGGER_FIRES_ALWAYS ||
			triggers->triggers[i].tgenabled == TRIGGER_FIRES_ON_REPLICA)
			return true;
	return false;
}
