/*
 * hold.h
 *	  The leader's part in a cut: it holds transactions back.
 */
#ifndef WEFT_HOLD_H
#define WEFT_HOLD_H

extern int	hold_receive(char **message);
extern bool hold_active(void);
extern bool hold_wait(void);
extern void hold_turn_taken(void);

#endif							/* WEFT_HOLD_H */
