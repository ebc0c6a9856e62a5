/*
 * writers.h
 *	  Starting and stopping a leader's writers.
 */
#ifndef WEFT_WRITERS_H
#define WEFT_WRITERS_H

extern int	writers_wanted(void);
extern bool writers_to_be_changed(void);
extern void writers_start(int count);
extern void writers_renew(int count);
extern void writers_stop(void);
extern void writers_check(void);
extern bool writers_start_for_stream(int number, uint32 stream);

#endif							/* WEFT_WRITERS_H */
