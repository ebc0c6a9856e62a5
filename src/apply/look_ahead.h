/*
 * look_ahead.h
 *	  Showing the changes that come next to the fast path.
 */
#ifndef WEFT_LOOK_AHEAD_H
#define WEFT_LOOK_AHEAD_H

extern void look_ahead(void);

#endif							/* WEFT_LOOK_AHEAD_H */
