/*
 * catch_up.h
 *	  Tables that catch up with a leader that has ended.
 */
#ifndef WEFT_COPY_CATCH_UP_H
#define WEFT_COPY_CATCH_UP_H

extern void catch_up_wait(void);

#endif							/* WEFT_COPY_CATCH_UP_H */
