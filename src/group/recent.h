/*
 * recent.h
 *	  The times of rows that were changed recently.
 */
#ifndef WEFT_GROUP_RECENT_H
#define WEFT_GROUP_RECENT_H

extern void recent_stamp(void);

#endif							/* WEFT_GROUP_RECENT_H */
