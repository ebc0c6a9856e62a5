/*
 * confirmation.h
 *	  Withholds what a publisher is told to be flushed until this server's standbys have it.
 */
#ifndef WEFT_CONFIRMATION_H
#define WEFT_CONFIRMATION_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "standby_slots.h"

typedef struct ConfirmationStatus
{
	XLogRecPtr	confirmed;		/* the publisher may know that this is flushed */
	TimestampTz withheld_since; /* zero: nothing is withheld */
	StandbySlotLack lack;		/* why something is */
} ConfirmationStatus;

extern XLogRecPtr confirmation_claim(XLogRecPtr flushed);
extern bool confirmation_withheld(long *delay);
extern void confirmation_status(ConfirmationStatus *status);
extern bool confirmation_wait(XLogRecPtr local, long limit);

#endif							/* WEFT_CONFIRMATION_H */
