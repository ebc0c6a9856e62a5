/*
 * applied_position.h
 *	  How far a subscription has been applied here.
 */
#ifndef WEFT_APPLIED_POSITION_H
#define WEFT_APPLIED_POSITION_H

#include "access/xlogdefs.h"

extern XLogRecPtr applied_position(Oid subid);

#endif							/* WEFT_APPLIED_POSITION_H */
