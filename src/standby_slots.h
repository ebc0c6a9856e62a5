/*
 * standby_slots.h
 *	  The slots of this server's standbys that weft.confirm_after_standby_slots names.
 */
#ifndef WEFT_STANDBY_SLOTS_H
#define WEFT_STANDBY_SLOTS_H

#include "access/xlogdefs.h"
#include "utils/guc.h"

/* Why a slot does not count as having received the WAL that is asked for. */
typedef enum StandbySlotProblem
{
	STANDBY_SLOT_BEHIND,		/* its standby is connected */
	STANDBY_SLOT_INACTIVE,
	STANDBY_SLOT_INVALIDATED,
	STANDBY_SLOT_LOGICAL,
	STANDBY_SLOT_MISSING,
} StandbySlotProblem;

/* The first of the slots that lacks WAL. */
typedef struct StandbySlotLack
{
	char		slot[NAMEDATALEN];	/* empty: none lacks any */
	StandbySlotProblem problem;
} StandbySlotLack;

extern bool standby_slots_check(char **value, void **extra, GucSource source);
extern void standby_slots_assign(const char *value, void *extra);
extern bool standby_slots_named(void);
extern XLogRecPtr standby_slots_flushed(XLogRecPtr wanted, StandbySlotLack *lack);

#endif							/* WEFT_STANDBY_SLOTS_H */
